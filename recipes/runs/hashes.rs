//! SHA-256 of inputs and outputs. Those of large files are remembered while nothing touches the file: a target may be many
//! gigabytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::hash::{sha256_bytes, sha256_file};
use spectrain_checkpoints::regular::check_link;
use spectrain_checkpoints::seal;

use crate::runs::files::{entries, write_json};
use crate::runtime::interruption::check_interrupted;
use crate::runtime::model_files::{drafter_files, read_json, weight_files};

/// The file of a run that hashes are remembered in.
pub(crate) const HASHES: &str = "hashes.json";

/// Bytes up to which a file is read every time: that takes milliseconds.
const SMALL: u64 = 4 << 20;

/// Hashes of large files.
#[derive(Debug, Default)]
pub(crate) struct HashMemory {
    path: PathBuf,
    known: BTreeMap<String, Known>,
    /// The memories of the runs whose files were linked here. Whoever links these once more has them know how they look since, and
    /// nobody else.
    lenders: BTreeSet<String>,
    /// What these know, once they were asked.
    lent: Option<BTreeMap<Look, String>>,
    changed: bool,
}

/// A hash, and how the file looked then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Known {
    #[serde(flatten)]
    look: Look,
    sha256: String,
}

/// What tells that a file was not touched. Its time of change can be set to what it was; the time at which the system
/// changed anything about the file cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Look {
    length: u64,
    modified: u64,
    touched: i64,
    number: u64,
}

impl Look {
    fn of(data: &Metadata) -> Self {
        let modified = data
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let (touched, number) = touched(data);
        Self {
            length: data.len(),
            modified: modified.map_or(0, |time| time.as_nanos() as u64),
            touched,
            number,
        }
    }
}

/// When the system last changed a file or what it says of it, in nanoseconds, and the file's number.
#[cfg(unix)]
fn touched(data: &Metadata) -> (i64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let seconds = data.ctime().wrapping_mul(1_000_000_000);
    (seconds.wrapping_add(data.ctime_nsec()), data.ino())
}

#[cfg(not(unix))]
fn touched(_data: &Metadata) -> (i64, u64) {
    (0, 0)
}

/// Files that were linked, and how they looked before: another name of a file is a change of it to the system, and none of what it
/// holds.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Before and behind, by the file's number.
    looks: BTreeMap<u64, [Look; 2]>,
}

impl Links {
    /// Links a file as `link`, or copies it where that cannot be.
    pub(crate) fn link(&mut self, file: &Path, link: &Path) -> io::Result<()> {
        let before = Look::of(&fs::metadata(file)?);
        if fs::hard_link(file, link).is_err() {
            return fs::copy(file, link).map(drop);
        }
        let behind = Look::of(&fs::metadata(link)?);
        let touched = behind.touched;
        // Whoever changed it meanwhile is noticed.
        if (Look { touched, ..before }) == behind && before != behind {
            self.looks.insert(behind.number, [before, behind]);
        }
        Ok(())
    }
}

impl HashMemory {
    /// What cannot be read, or is not what was written, is computed again.
    pub(crate) fn read(path: &Path) -> Self {
        let read = || -> Option<(BTreeMap<String, Known>, BTreeSet<String>)> {
            let text = fs::read_to_string(path).ok()?;
            let mut memory: Value = serde_json::from_str(&text).ok()?;
            let files = memory.get_mut("files")?.take();
            if memory["sha256"] != digest(&files) {
                return None;
            }
            let lenders = memory.get_mut("lenders").map(Value::take);
            let lenders = lenders.and_then(|lenders| serde_json::from_value(lenders).ok());
            Some((
                serde_json::from_value(files).ok()?,
                lenders.unwrap_or_default(),
            ))
        };
        let (known, lenders) = read().unwrap_or_default();
        Self {
            path: path.to_owned(),
            known,
            lenders,
            lent: None,
            changed: false,
        }
    }

    /// The hash of a file, or of every file of a folder.
    pub(crate) fn of(&mut self, path: &Path) -> Result<String> {
        check_link(path)?;
        let data =
            fs::metadata(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        if data.is_dir() {
            let files: Vec<PathBuf> = entries(path)?.iter().map(|name| path.join(name)).collect();
            return self.of_all(&files);
        }
        if data.len() <= SMALL {
            return Ok(sha256_file(path)?);
        }
        let (place, look) = (place(path), Look::of(&data));
        if let Some(known) = self.known.get(&place)
            && known.look == look
        {
            return Ok(known.sha256.clone());
        }
        let sha256 = match self.lent(look) {
            Some(sha256) => sha256,
            None => {
                check_interrupted()?;
                sha256_file(path)?
            }
        };
        self.learn(place, look, sha256.clone());
        Ok(sha256)
    }

    /// What a lender knows of a file that looks like this.
    fn lent(&mut self, look: Look) -> Option<String> {
        // Where files have no numbers, others may look the same.
        if look.number == 0 {
            return None;
        }
        let lenders = self.lenders.iter();
        let known = lenders.flat_map(|lender| Self::read(Path::new(lender)).known.into_values());
        let known = known.map(|Known { look, sha256 }| (look, sha256));
        let lent = self.lent.get_or_insert_with(|| known.collect());
        lent.get(&look).cloned()
    }

    /// Asks from now on what `lender` knows and whom it asks, where a file that was linked from there looks otherwise.
    pub(crate) fn ask(&mut self, lender: &Self) {
        let asked = lender.lenders.iter().cloned();
        let asked: Vec<String> = asked.chain([place(&lender.path)]).collect();
        for memory in asked {
            self.changed |= self.lenders.insert(memory);
        }
        self.lent = None;
    }

    /// The memories that are asked, but for this one.
    pub(crate) fn lenders(&self) -> impl Iterator<Item = &Path> {
        let own = place(&self.path);
        let lenders = self.lenders.iter().filter(move |lender| **lender != own);
        lenders.map(Path::new)
    }

    fn learn(&mut self, place: String, look: Look, sha256: String) {
        self.known.insert(place, Known { look, sha256 });
        self.changed = true;
    }

    /// Takes the hash of a file from whoever has just written it.
    pub(crate) fn remember(&mut self, path: &Path, sha256: &str) -> Result<()> {
        let data =
            fs::metadata(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        self.learn(place(path), Look::of(&data), sha256.to_owned());
        Ok(())
    }

    /// Knows files by how they look since they were linked.
    pub(crate) fn follow(&mut self, links: &Links) {
        for known in self.known.values_mut() {
            if let Some([before, behind]) = links.looks.get(&known.look.number)
                && known.look == *before
            {
                known.look = *behind;
                self.changed = true;
            }
        }
    }

    /// Takes what `other` knows of files in the folder `from` for what they are in the folder `to`, too.
    pub(crate) fn adopt(&mut self, other: &Self, [from, to]: [&Path; 2]) {
        let from = place(from);
        for (at, Known { look, sha256 }) in &other.known {
            let Ok(inner) = Path::new(at).strip_prefix(&from) else {
                continue;
            };
            let link = to.join(inner);
            if fs::metadata(&link).is_ok_and(|data| Look::of(&data) == *look) {
                self.learn(place(&link), *look, sha256.clone());
            }
        }
    }

    /// The hash of several files or folders, by their names and contents.
    pub(crate) fn of_all(&mut self, paths: &[PathBuf]) -> Result<String> {
        let mut parts = String::new();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            parts.push_str(&format!("{name} {}\n", self.of(path)?));
        }
        Ok(sha256_bytes(parts.as_bytes()))
    }

    /// The hash of a drafter's folder: its weights, and its configuration without what an evaluation found.
    pub(crate) fn of_drafter(&mut self, folder: &Path) -> Result<String> {
        let files = drafter_files(folder)?;
        self.of_sealed(folder, files)
    }

    /// The same of a folder with a language model, which may be a drafter's: all of its weights.
    pub(crate) fn of_language_model(&mut self, folder: &Path) -> Result<String> {
        let files = weight_files(folder)?;
        self.of_sealed(folder, files)
    }

    /// The hash of these files in `folder`, and of its configuration without what an evaluation found.
    fn of_sealed(&mut self, folder: &Path, mut files: Vec<PathBuf>) -> Result<String> {
        files.retain(|file| file.file_name() != Some(CONFIG.as_ref()));
        let config = seal::sha256_of_config(&read_json(&folder.join(CONFIG))?);
        let weights = self.of_all(&files)?;
        Ok(sha256_bytes(format!("{config} {weights}").as_bytes()))
    }

    /// Whether there is anything to keep.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }

    /// Keeps what was computed for the next process.
    pub(crate) fn write(&self) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        let files = json!(self.known);
        write_json(
            &self.path,
            &json!({ "sha256": digest(&files), "files": files, "lenders": self.lenders }),
        )
    }
}

fn place(path: &Path) -> String {
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    place.to_string_lossy().into_owned()
}

fn digest(files: &Value) -> String {
    sha256_bytes(files.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_hash_of_a_changed_file_or_folder_is_another() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("hashes.json");
        let data = root.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("x.jsonl"), "one").unwrap();
        let hash = || {
            let mut hashes = HashMemory::read(&memory);
            let hash = hashes.of(&data).unwrap();
            hashes.write().unwrap();
            hash
        };
        let before = hash();
        assert_eq!(hash(), before);
        fs::write(data.join("x.jsonl"), "two").unwrap();
        assert_ne!(hash(), before);
    }

    #[test]
    fn a_memory_of_another_form_is_none() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("hashes.json");
        for text in ["3", "[]", "null", "\"files\"", "{}", "{\"files\": 3}"] {
            fs::write(&memory, text).unwrap();
            assert!(HashMemory::read(&memory).known.is_empty(), "{text}");
        }
    }

    /// Just large enough to be remembered.
    fn large(root: &Path) -> PathBuf {
        let path = root.join("large");
        File::create(&path).unwrap().set_len(SMALL + 1).unwrap();
        path
    }

    #[test]
    fn a_known_large_file_is_not_read_again() {
        let root = tempfile::tempdir().unwrap();
        let (memory, file) = (root.path().join("hashes.json"), large(root.path()));
        let mut hashes = HashMemory::read(&memory);
        hashes.remember(&file, "remembered").unwrap();
        hashes.write().unwrap();
        assert_eq!(HashMemory::read(&memory).of(&file).unwrap(), "remembered");
        let text = fs::read_to_string(&memory).unwrap();
        fs::write(&memory, text.replace("remembered", "misremembered")).unwrap();
        let read = HashMemory::read(&memory).of(&file).unwrap();
        assert_eq!(read, sha256_file(&file).unwrap());
    }

    /// Returns once a file that is changed now has another time than `data`: clocks of file systems are coarse.
    #[cfg(unix)]
    fn await_clock(root: &Path, data: &Metadata) {
        let probe = root.join("probe");
        let passed = || {
            fs::write(&probe, "").unwrap();
            touched(&fs::metadata(&probe).unwrap()).0 > touched(data).0
        };
        while !passed() {}
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_linked_is_known_under_both_names_until_it_is_changed() {
        use std::os::unix::fs::FileExt as _;
        let root = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| root.path().join(name));
        for folder in [&from, &to] {
            fs::create_dir(folder).unwrap();
        }
        let file = large(&from);
        let link = to.join("large");
        let mut lender = HashMemory::default();
        lender.remember(&file, "remembered").unwrap();
        await_clock(root.path(), &fs::metadata(&file).unwrap());
        let mut links = Links::default();
        links.link(&file, &link).unwrap();
        assert_eq!(links.looks.len(), 1);
        lender.follow(&links);
        let mut borrower = HashMemory::default();
        borrower.adopt(&lender, [&from, &to]);
        assert!(lender.has_changed() && borrower.has_changed());
        assert_eq!(lender.of(&file).unwrap(), "remembered");
        assert_eq!(borrower.of(&link).unwrap(), "remembered");
        // What nobody knew nobody knows now.
        let mut other = HashMemory::default();
        other.follow(&links);
        other.adopt(&HashMemory::default(), [&from, &to]);
        assert!(!other.has_changed());

        await_clock(root.path(), &fs::metadata(&file).unwrap());
        let opened = File::options().write(true).open(&file).unwrap();
        opened.write_at(&[1], 3).unwrap();
        lender.follow(&links);
        borrower.adopt(&lender, [&from, &to]);
        let sha256 = sha256_file(&file).unwrap();
        assert_eq!(lender.of(&file).unwrap(), sha256);
        assert_eq!(borrower.of(&link).unwrap(), sha256);
    }

    #[cfg(unix)]
    #[test]
    fn a_byte_changed_under_the_same_length_and_time_is_noticed() {
        use std::os::unix::fs::FileExt as _;
        let root = tempfile::tempdir().unwrap();
        let small = root.path().join("small");
        fs::write(&small, [0; 8]).unwrap();
        for path in [small, large(root.path())] {
            let mut hashes = HashMemory::default();
            let before = hashes.of(&path).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            let data = file.metadata().unwrap();
            let modified = data.modified().unwrap();
            await_clock(root.path(), &data);
            file.write_at(&[1], 3).unwrap();
            file.set_modified(modified).unwrap();
            assert_ne!(hashes.of(&path).unwrap(), before, "{}", path.display());
        }
    }
}
