//! A model as a folder: `config.json` and safetensors weights, in one file or in shards.

mod fp8;
mod generation;
mod index;
mod parts;
mod single;
mod template;
mod weights;
mod write;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expected::check_finite_bytes;
use crate::hash;
use crate::json;
use crate::mismatch::Mismatch;
use crate::regular;
use crate::tensors::NamedTensor;

pub use fp8::{READ as READ_QUANTISED, is_read as is_quantisation_read};
pub(crate) use index::shard_files;
pub use index::weight_map;
pub use parts::{
    CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, INDEX, PROCESSOR_TEMPLATE, TEXT_FILES, TOKENIZER,
    TOKENIZER_CONFIG, TOOLS_TEMPLATE, TensorInfo, WEIGHTS,
};
pub use single::TensorFile;
pub use template::{CHAT_TEMPLATE_KEY, template_file};
use weights::WeightFile;
pub use write::write_folder;

/// An opened model folder: its configuration is read, its weights are mapped and their headers checked.
#[derive(Debug)]
pub struct ModelFolder {
    path: PathBuf,
    config: Value,
    config_bytes: Vec<u8>,
    generation_config: Option<Value>,
    files: BTreeMap<PathBuf, WeightFile>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Of matrices in FP8, by their names.
    scales: BTreeMap<String, fp8::Scales>,
}

impl ModelFolder {
    /// Opens a folder. Nothing of the weights but their headers is read yet.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path.as_ref(), &|_| true)
    }

    /// Opens a folder of which only the tensors that `wanted` says are needed: of a model in shards, those without any of
    /// them need not be there.
    pub fn open_some(path: impl AsRef<Path>, wanted: &dyn Fn(&str) -> bool) -> Result<Self> {
        Self::open_with(path.as_ref(), wanted)
    }

    /// Opens a folder of whose tensors only the names are needed: of a model in shards none need be there, and what else is known of
    /// its tensors means nothing.
    pub(crate) fn open_names(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut folder = Self::open_some(path, &|_| false)?;
        for (name, shard) in index::weight_map(path)?.into_iter().flatten() {
            let info = TensorInfo {
                name: name.clone(),
                shape: Vec::new(),
                dtype: DType::F32,
                file: path.join(shard),
                range: 0..0,
            };
            folder.tensors.insert(name, info);
        }
        Ok(folder)
    }

    fn open_with(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Self> {
        regular::check_link(path)?;
        if !path.is_dir() {
            let reason = "no such model folder".to_string();
            return Err(Error::Folder {
                path: path.to_path_buf(),
                reason,
            });
        }
        let config_bytes = json::read_bytes(&path.join(CONFIG))?;
        let mut folder = ModelFolder {
            path: path.to_path_buf(),
            config: json::parse(&path.join(CONFIG), &config_bytes)?,
            config_bytes,
            generation_config: None,
            files: BTreeMap::new(),
            tensors: BTreeMap::new(),
            scales: BTreeMap::new(),
        };
        let generation_config = path.join(GENERATION_CONFIG);
        if regular::is_there(&generation_config) {
            folder.generation_config = Some(generation::read(&generation_config)?);
        }
        folder.open_weights(wanted)?;
        folder.scales = fp8::take_scales(&mut folder.tensors, &folder.config)?;
        Ok(folder)
    }

    fn open_weights(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        let single = self.path.join(WEIGHTS);
        let index = self.path.join(INDEX);
        if regular::is_there(&single) {
            return self.add_file(&single);
        }
        if !regular::is_there(&index) {
            return Err(Error::Folder {
                path: self.path.clone(),
                reason: no_weights(&self.path),
            });
        }
        let mut weight_map = index::read(&index)?;
        weight_map.retain(|name, _| wanted(name));
        let shards: BTreeSet<&String> = weight_map.values().collect();
        for shard in shards {
            let file = self.path.join(shard);
            if !regular::is_there(&file) {
                let reason = format!("shard `{shard}` is not in the folder");
                return Err(Error::Index {
                    path: index,
                    reason,
                });
            }
            self.add_file(&file)?;
        }
        for (name, shard) in &weight_map {
            if self
                .tensors
                .get(name)
                .is_none_or(|info| info.file != self.path.join(shard))
            {
                let reason = format!("tensor `{name}` is not in shard `{shard}`");
                return Err(Error::Index {
                    path: index,
                    reason,
                });
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        let (file, tensors) = WeightFile::open(path)?;
        for info in tensors {
            if let Some(first) = self.tensors.get(&info.name) {
                let (name, first) = (info.name, first.file.clone());
                return Err(Error::Duplicate {
                    name,
                    first,
                    second: path.to_path_buf(),
                });
            }
            self.tensors.insert(info.name.clone(), info);
        }
        self.files.insert(path.to_path_buf(), file);
        Ok(())
    }

    /// The folder's path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The contents of `config.json`.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The contents of `generation_config.json`, if there is one.
    pub fn generation_config(&self) -> Option<&Value> {
        self.generation_config.as_ref()
    }

    /// Whether matrices are in FP8.
    pub fn has_fp8(&self) -> bool {
        !self.scales.is_empty()
    }

    /// The contents of `config.json` as they stand there.
    pub(crate) fn config_bytes(&self) -> &[u8] {
        &self.config_bytes
    }

    /// The files of its weights that were opened.
    pub(crate) fn weight_files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// Whether a tensor is a matrix in FP8.
    pub fn is_in_fp8(&self, name: &str) -> bool {
        self.scales.contains_key(name)
    }

    /// Every tensor, by name in alphabetical order. Matrices in FP8 are BF16 here, and their scales are none.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// What the header says about one tensor.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.tensors.get(name).ok_or_else(|| Error::NoTensor {
            name: name.to_string(),
            path: self.path.clone(),
        })
    }

    /// Reads a tensor as it is stored; a matrix in FP8 as BF16.
    ///
    /// # Errors
    /// There is none of this name, or an element of it is infinite or no number.
    pub fn read(&self, name: &str) -> Result<NamedTensor> {
        let info = self.info(name)?;
        Ok(NamedTensor {
            name: name.to_string(),
            shape: info.shape.clone(),
            dtype: info.dtype,
            bytes: self.checked(info)?.into_owned(),
        })
    }

    /// Reads a tensor of the shape `expected`; see [`read`](Self::read).
    pub fn read_bytes(&self, name: &str, expected: &[usize]) -> Result<(DType, Vec<u8>)> {
        let info = self.info(name)?;
        if info.shape != expected {
            return Err(Error::Shape {
                name: name.to_string(),
                path: info.file.clone(),
                mismatch: Mismatch::new(format!("{:?}", expected), format!("{:?}", info.shape)),
            });
        }
        Ok((info.dtype, self.checked(info)?.into_owned()))
    }

    /// The elements of a tensor, all finite.
    fn checked(&self, info: &TensorInfo) -> Result<Cow<'_, [u8]>> {
        let bytes = match self.scales.get(&info.name) {
            None => Cow::Borrowed(self.stored(info)),
            Some(scales) => {
                let factors = NamedTensor {
                    name: scales.info.name.clone(),
                    shape: scales.info.shape.clone(),
                    dtype: scales.info.dtype,
                    bytes: self.stored(&scales.info).to_vec(),
                };
                let widened = scales.widened(self.stored(info), &info.shape, &factors.to_f32()?);
                Cow::Owned(widened)
            }
        };
        check_finite_bytes(&info.file, &info.name, (info.dtype, &bytes))?;
        Ok(bytes)
    }

    fn stored(&self, info: &TensorInfo) -> &[u8] {
        self.files[&info.file].bytes(info.range.clone())
    }

    /// Checks that every required tensor is there, and no other than the required and the optional ones.
    pub fn check_names(&self, required: &[String], optional: &[String]) -> Result<()> {
        let known: BTreeSet<&String> = required.iter().chain(optional).collect();
        let missing: Vec<_> = required
            .iter()
            .filter(|name| !self.tensors.contains_key(*name))
            .cloned()
            .collect();
        let unexpected: Vec<_> = self
            .tensors
            .keys()
            .filter(|name| !known.contains(name))
            .cloned()
            .collect();
        if missing.is_empty() && unexpected.is_empty() {
            return Ok(());
        }
        Err(Error::Names {
            path: self.path.clone(),
            missing,
            unexpected,
        })
    }

    /// The digest of the configuration and of every file of weights, with their names, in alphabetical order.
    pub fn sha256(&self) -> String {
        let weights = self.files.iter().map(|(path, file)| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            (name, file.whole())
        });
        hash::sha256_parts(std::iter::once((CONFIG, &self.config_bytes[..])).chain(weights))
    }
}

/// What to do about a folder without weights that can be read.
fn no_weights(dir: &Path) -> String {
    let reason = format!("holds neither `{WEIGHTS}` nor `{INDEX}`");
    let files = dir.read_dir().into_iter().flatten().flatten();
    let mut names: Vec<String> = files
        .filter_map(|file| file.file_name().into_string().ok())
        .collect();
    names.sort();
    names.retain(|name| is_plain_word(name));
    if let Some(name) = pickle_among(&names) {
        return format!(
            "{reason}; `{name}` is a pickle, which can run any program and is not read; if you trust it, convert it with \
             `{}`",
            conversion(name)
        );
    }
    match names.iter().find(|name| name.ends_with(".safetensors")) {
        Some(name) if name.contains("-of-") => format!(
            "{reason}, but shards such as `{name}`: `{INDEX}`, which says what each of them holds, is missing; fetch it, too"
        ),
        Some(name) => format!("{reason}, but `{name}`: rename it to `{WEIGHTS}`"),
        None => format!("{reason}; other formats of weights are not read"),
    }
}

/// The pickle with the weights among these names of files, in alphabetical order.
pub(crate) fn pickle_among(names: &[String]) -> Option<&str> {
    let pickled = |name: &&String| {
        is_plain_word(name) && [".bin", ".pt"].iter().any(|ending| name.ends_with(ending))
    };
    let mut pickles = names.iter().filter(pickled);
    // Beside it there may be the state of an optimizer.
    let usual = |name: &&String| name.starts_with("pytorch_model");
    let found = pickles.clone().find(usual).or_else(|| pickles.next());
    found.map(String::as_str)
}

/// The command that makes weights that are read here of a pickle, in its folder; of one of several shards, of all.
pub(crate) fn conversion(pickle: &str) -> String {
    let (each, file) = match shards_of(pickle) {
        Some((count, file)) => (
            format!("for n in range(1, {}) ", count + 1),
            format!("f'{file}'"),
        ),
        None => (String::new(), format!("'{pickle}'")),
    };
    format!(
        "python -c \"import torch; from safetensors.torch import save_file; save_file({{k: v.contiguous().clone() {each}for k, v in \
         torch.load({file}, weights_only=True).items()}}, '{WEIGHTS}')\""
    )
}

/// How many shards there are, where this is the name of one, and what Python calls that of number `n`.
fn shards_of(name: &str) -> Option<(usize, String)> {
    let (shard, all) = name.rsplit_once("-of-")?;
    let (stem, number) = shard.rsplit_once('-')?;
    let (count, _) = all.split_once('.')?;
    number.parse::<usize>().ok()?;
    let width = number.len();
    Some((
        count.parse().ok()?,
        format!("{stem}-{{n:0{width}}}-of-{all}"),
    ))
}

/// Whether a name may stand in a command for the user's shell as it is.
fn is_plain_word(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.bytes().all(plain)
}

/// Reads every tensor of one safetensors file, by name in alphabetical order.
pub fn read_safetensors(path: &Path) -> Result<Vec<NamedTensor>> {
    WeightFile::open(path).map(all_of)
}

/// The same of the bytes of a file that came some other way; `path` is what errors call it.
pub fn parse_safetensors(bytes: Vec<u8>, path: &Path) -> Result<Vec<NamedTensor>> {
    WeightFile::held(bytes, path).map(all_of)
}

fn all_of((file, tensors): (WeightFile, Vec<TensorInfo>)) -> Vec<NamedTensor> {
    let mut tensors: Vec<_> = tensors
        .into_iter()
        .map(|info| NamedTensor {
            bytes: file.bytes(info.range).to_vec(),
            name: info.name,
            shape: info.shape,
            dtype: info.dtype,
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

#[cfg(test)]
mod tests;
