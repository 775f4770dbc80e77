//! SHA-256 of inputs, remembered while a file keeps its length and time of change: a target may be many gigabytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::hash::{sha256_bytes, sha256_file};
use spectrain_checkpoints::regular::check_link;
use spectrain_checkpoints::seal;

use crate::run_folder::{entries, write_json};
use crate::target::{read_json, weight_files};

/// Hashes of large files, kept with their length and time of change.
#[derive(Debug, Default)]
pub(crate) struct HashMemory {
    path: PathBuf,
    known: BTreeMap<String, (u64, u64, String)>,
    changed: bool,
}

impl HashMemory {
    /// What cannot be read is computed again.
    pub(crate) fn read(path: &Path) -> Self {
        let known = fs::read_to_string(path)
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok());
        Self {
            path: path.to_owned(),
            known: known.unwrap_or_default(),
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
        let time = data
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let time = time.map_or(0, |time| time.as_nanos() as u64);
        let place = fs::canonicalize(path)
            .unwrap_or_else(|_| path.to_owned())
            .to_string_lossy()
            .into_owned();
        if let Some((length, then, hash)) = self.known.get(&place)
            && (*length, *then) == (data.len(), time)
        {
            return Ok(hash.clone());
        }
        let hash = sha256_file(path)?;
        self.known.insert(place, (data.len(), time, hash.clone()));
        self.changed = true;
        Ok(hash)
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
        let mut files = weight_files(folder)?;
        files.retain(|file| file.file_name() != Some(CONFIG.as_ref()));
        let config = seal::sha256_of_config(&read_json(&folder.join(CONFIG))?);
        let weights = self.of_all(&files)?;
        Ok(sha256_bytes(format!("{config} {weights}").as_bytes()))
    }

    /// Keeps what was computed for the next process.
    pub(crate) fn write(&self) -> Result<()> {
        match self.changed {
            true => write_json(&self.path, &self.known),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        fs::write(data.join("x.jsonl"), "other").unwrap();
        assert_ne!(hash(), before);
    }

    #[test]
    fn a_known_file_is_not_read_again() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("x");
        fs::write(&file, "one").unwrap();
        let mut hashes = HashMemory::read(&root.path().join("hashes.json"));
        hashes.of(&file).unwrap();
        let place = hashes.known.keys().next().unwrap().clone();
        hashes.known.get_mut(&place).unwrap().2 = "remembered".into();
        assert_eq!(hashes.of(&file).unwrap(), "remembered");
    }
}
