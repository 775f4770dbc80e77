//! A model's folder once more, with other tensors in the place of some of its own. Shards in which nothing changes are linked.
//!
//! Engines load every tensor of a shard, whatever the index says of it, and shards in any order. So no shard of the new folder holds
//! a tensor that was replaced: one that holds it beside others is written anew without it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::atomic;
use crate::error::{Error, Result};
use crate::expected::TensorSpec;
use crate::folder::{CONFIG, INDEX, ModelFolder, TensorFile, TensorInfo, WEIGHTS};
use crate::json as files;
use crate::seal::may_be_weights;
use crate::tensors::{Listed, NamedTensor, write_each};

/// The two shards of a model that was in one file.
const TWO: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];
/// Bytes that are copied at once.
const CHUNK: usize = 4 << 20;

/// What takes the place of some tensors of a model.
pub(crate) struct Replaced<'a> {
    /// The model.
    pub(crate) model: &'a ModelFolder,
    /// Its tensors that go, by their names in its files.
    pub(crate) gone: BTreeSet<String>,
    /// What comes.
    pub(crate) new: Vec<TensorSpec>,
    /// What the file of the new tensors is called, where the model has several.
    pub(crate) shard: &'static str,
    /// The configuration, where it is another one.
    pub(crate) config: Option<Value>,
    /// Whether shards are copied, too.
    pub(crate) copies: bool,
    /// Whether to stop.
    pub(crate) stop: fn() -> bool,
}

/// What became of the model's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlacedFiles {
    /// The new shard.
    pub new: String,
    /// Shards that are the model's own, linked or copied.
    pub kept: usize,
    /// Shards that were written anew without what was replaced.
    pub rewritten: Vec<String>,
    /// Shards that held nothing else, and are not there.
    pub dropped: Vec<String>,
    /// What else of the folder is not there: weights that the index does not name, hidden files, links to folders.
    pub left_out: Vec<String>,
}

/// What the new index says.
#[derive(Default)]
struct Contents {
    /// The shard of each tensor.
    shards: BTreeMap<String, String>,
    /// Bytes of all tensors.
    size: u64,
    /// Elements of those that went.
    gone: u64,
}

impl Contents {
    fn add(&mut self, name: &str, bytes: usize, shard: &str) {
        self.shards.insert(name.to_owned(), shard.to_owned());
        self.size += bytes as u64;
    }
}

impl Replaced<'_> {
    /// Fills the empty folder `to`. `read` gives each of the new tensors.
    pub(crate) fn write(
        &self,
        to: &Path,
        read: &dyn Fn(&str) -> Result<NamedTensor>,
    ) -> Result<PlacedFiles> {
        let mut placed = PlacedFiles::default();
        let mut contents = Contents::default();
        for path in self.model.weight_files() {
            self.shard(path, to, &mut contents, &mut placed)?;
        }
        placed.new = self.new_name(&contents);
        let listed = self.new.iter().map(|(name, shape, dtype)| Listed {
            name,
            shape,
            dtype: *dtype,
            of: name.as_str(),
        });
        let listed: Vec<_> = listed.collect();
        for tensor in &listed {
            let bytes = tensor.dtype.size() * tensor.shape.iter().product::<usize>();
            contents.add(tensor.name, bytes, &placed.new);
        }
        write_each(
            &to.join(&placed.new),
            listed,
            &BTreeMap::new(),
            &mut |name| {
                self.check_stop(to)?;
                Ok(Cow::Owned(read(name)?.bytes))
            },
        )?;
        let index = self.index(contents)?;
        atomic::write_file(&to.join(INDEX), &files::to_bytes(&index))?;
        let config = self.config.as_ref().map(files::to_bytes);
        let config = config.as_deref().unwrap_or(self.model.config_bytes());
        atomic::write_file(&to.join(CONFIG), config)?;
        self.others(self.model.path(), to, Path::new(""), &mut placed)?;
        Ok(placed)
    }

    fn is_single(&self) -> bool {
        self.is_shard(&self.model.path().join(WEIGHTS))
    }

    fn is_shard(&self, path: &Path) -> bool {
        self.model.weight_files().any(|file| file == path)
    }

    /// One that no shard has which stays.
    fn new_name(&self, contents: &Contents) -> String {
        if self.is_single() {
            return TWO[1].to_owned();
        }
        let is_free = |name: &String| !contents.shards.values().any(|taken| taken == name);
        let numbered = (2..).map(|number| format!("{}-{number}.safetensors", self.shard));
        let mut names = std::iter::once(format!("{}.safetensors", self.shard)).chain(numbered);
        names.find(is_free).unwrap_or_default()
    }

    /// What stays of a shard.
    fn shard(
        &self,
        path: &Path,
        to: &Path,
        contents: &mut Contents,
        placed: &mut PlacedFiles,
    ) -> Result<()> {
        let file = TensorFile::open(path)?;
        let is_gone = |info: &&TensorInfo| self.gone.contains(&info.name);
        let (gone, stays): (Vec<_>, Vec<_>) = file.tensors().partition(is_gone);
        let elements = |info: &&TensorInfo| info.shape.iter().product::<usize>() as u64;
        contents.gone += gone.iter().map(elements).sum::<u64>();
        let own = path.file_name().unwrap_or_default().to_string_lossy();
        let name = if self.is_single() { TWO[0] } else { &own };
        for info in &stays {
            contents.add(&info.name, file.bytes(info).len(), name);
        }
        if stays.is_empty() {
            placed.dropped.push(own.into_owned());
            return Ok(());
        }
        if gone.is_empty() {
            placed.kept += 1;
            return self.keep(path, &to.join(name));
        }
        placed.rewritten.push(name.to_owned());
        let listed = stays.iter().map(|info| Listed {
            name: &info.name,
            shape: &info.shape,
            dtype: info.dtype,
            of: info,
        });
        write_each(
            &to.join(name),
            listed.collect(),
            &BTreeMap::new(),
            &mut |info| {
                self.check_stop(to)?;
                Ok(Cow::Borrowed(file.bytes(info)))
            },
        )
    }

    /// The model's index with the new tensors in the place of those that went.
    fn index(&self, mut contents: Contents) -> Result<Value> {
        let mut index = match self.is_single() {
            true => json!({}),
            false => files::read(&self.model.path().join(INDEX))?,
        };
        let mut map = Map::new();
        let in_order = index["weight_map"].as_object();
        let in_order: Vec<String> = in_order
            .into_iter()
            .flat_map(|map| map.keys().cloned())
            .collect();
        for name in in_order {
            // What an index does not name is no part of the model, even if a shard holds it.
            if let Some(shard) = contents.shards.remove(&name) {
                map.insert(name, json!(shard));
            }
        }
        let is_new = |name: &str| self.new.iter().any(|(new, ..)| new == name);
        let is_single = self.is_single();
        contents.shards.retain(|name, _| is_single || is_new(name));
        map.extend(
            contents
                .shards
                .into_iter()
                .map(|(name, shard)| (name, json!(shard))),
        );
        if !index["metadata"].is_object() {
            index["metadata"] = json!({});
        }
        let metadata = &mut index["metadata"];
        metadata["total_size"] = json!(contents.size);
        if let Some(total) = metadata["total_parameters"].as_u64() {
            let elements = |(_, shape, _): &TensorSpec| shape.iter().product::<usize>() as u64;
            let new: u64 = self.new.iter().map(elements).sum();
            metadata["total_parameters"] = json!((total + new).saturating_sub(contents.gone));
        }
        index["weight_map"] = Value::Object(map);
        Ok(index)
    }

    /// Copies what else is in the folder, which is small, and which its owner may want to change.
    fn others(
        &self,
        from: &Path,
        to: &Path,
        inside: &Path,
        placed: &mut PlacedFiles,
    ) -> Result<()> {
        let entries = fs::read_dir(from).map_err(Error::io("read", from))?;
        let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
        let mut paths = paths.map_err(Error::io("read", from))?;
        paths.sort();
        for path in paths {
            let name = path.file_name().unwrap_or_default();
            let (shown, inside) = (name.to_string_lossy(), inside.join(name));
            let is_done =
                inside == Path::new(CONFIG) || inside == Path::new(INDEX) || self.is_shard(&path);
            if is_done {
                continue;
            }
            let is_link = path.is_symlink();
            if shown.starts_with('.') || may_be_weights(&shown) || path.is_dir() && is_link {
                placed.left_out.push(inside.display().to_string());
            } else if path.is_dir() {
                let folder = to.join(name);
                fs::create_dir(&folder).map_err(Error::io("create", &folder))?;
                self.others(&path, &folder, &inside, placed)?;
            } else if path.is_file() {
                self.copy(&path, &to.join(name))?;
            } else {
                placed.left_out.push(inside.display().to_string());
            }
        }
        Ok(())
    }

    /// A shard as it is: under a second name of the same file, or where that cannot be, by a link.
    fn keep(&self, from: &Path, to: &Path) -> Result<()> {
        // A folder of the hub's cache has links itself.
        let from = from.canonicalize().map_err(Error::io("open", from))?;
        if self.copies {
            return self.copy(&from, to);
        }
        match fs::hard_link(&from, to) {
            Ok(()) => Ok(()),
            Err(_) => self.link(&from, to),
        }
    }

    #[cfg(unix)]
    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        std::os::unix::fs::symlink(from, to).map_err(Error::io("link", to))
    }

    #[cfg(not(unix))]
    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.copy(from, to)
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let mut file = File::open(from).map_err(Error::io("open", from))?;
        let mut chunk = vec![0; CHUNK];
        atomic::write_with(to, |to| {
            loop {
                if (self.stop)() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                match file.read(&mut chunk)? {
                    0 => return Ok(()),
                    count => to.write_all(&chunk[..count])?,
                }
            }
        })
    }

    fn check_stop(&self, to: &Path) -> Result<()> {
        match (self.stop)() {
            true => Err(Error::io("write", to)(io::ErrorKind::Interrupted.into())),
            false => Ok(()),
        }
    }
}
