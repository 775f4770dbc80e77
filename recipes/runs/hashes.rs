//! SHA-256 of inputs and outputs. Those of large files are remembered while nothing touches the file: a target may be many
//! gigabytes.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl HashMemory {
    /// What cannot be read, or is not what was written, is computed again.
    pub(crate) fn read(path: &Path) -> Self {
        let read = || -> Option<BTreeMap<String, Known>> {
            let text = fs::read_to_string(path).ok()?;
            let mut memory: Value = serde_json::from_str(&text).ok()?;
            let files = memory.get_mut("files")?.take();
            (memory["sha256"] == digest(&files)).then(|| serde_json::from_value(files).ok())?
        };
        Self {
            path: path.to_owned(),
            known: read().unwrap_or_default(),
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
        check_interrupted()?;
        let sha256 = sha256_file(path)?;
        self.learn(place, look, sha256.clone());
        Ok(sha256)
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

    /// Keeps what was computed for the next process.
    pub(crate) fn write(&self) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        let files = json!(self.known);
        write_json(
            &self.path,
            &json!({ "sha256": digest(&files), "files": files }),
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
