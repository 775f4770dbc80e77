//! Files that appear whole or not at all: written under a temporary name, synced, then renamed.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use spectrain_checkpoints::hash::hex;

use crate::error::{Error, Result};

/// Ending of the names under which files are written before they are whole.
pub(crate) const TEMPORARY: &str = ".tmp";

/// The name a file has until it is whole.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    PathBuf::from(name)
}

/// A file under its temporary name that hashes what is written to it; dropped before [`commit`](Self::commit), it is removed.
pub(crate) struct PendingFile {
    file: File,
    path: PathBuf,
    hash: Sha256,
    bytes: u64,
    committed: bool,
}

/// What a committed file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    /// Hexadecimal SHA-256 of the content.
    pub(crate) sha256: String,
    /// Length in bytes.
    pub(crate) bytes: u64,
}

impl PendingFile {
    /// Starts the file that will be called `path`.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file =
            File::create(temporary_path(path)).map_err(|source| Error::write(path, source))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            hash: Sha256::new(),
            bytes: 0,
            committed: false,
        })
    }

    /// Syncs the content and gives the file its name.
    pub(crate) fn commit(self) -> Result<Written> {
        self.commit_and_look().map(|(written, _)| written)
    }

    /// The same, and how the file looks that was written, whatever stands under its name by now.
    pub(crate) fn commit_and_look(mut self) -> Result<(Written, Metadata)> {
        let renamed = self.rename().and_then(|()| self.file.metadata());
        let look = renamed.map_err(|source| Error::write(&self.path, source))?;
        self.committed = true;
        let hash = std::mem::take(&mut self.hash);
        let written = Written {
            sha256: hex(&hash.finalize()),
            bytes: self.bytes,
        };
        Ok((written, look))
    }

    fn rename(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(temporary_path(&self.path), &self.path)?;
        sync_folder_of(&self.path)
    }
}

impl Write for PendingFile {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        let written = self.file.write(content)?;
        self.hash.update(&content[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.committed {
            // Best effort: a leftover is removed when the folder is next written to.
            let _ = fs::remove_file(temporary_path(&self.path));
        }
    }
}

/// Makes the name of a file last: without this a power cut can forget it while remembering what refers to it.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        // A bare name stands in the working directory.
        let here = folder.as_os_str().is_empty();
        File::open(if here { Path::new(".") } else { folder })?.sync_all()?;
    }
    Ok(())
}

/// Writes a whole file, replacing one of the same name at once.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<Written> {
    let mut file = PendingFile::create(path)?;
    file.write_all(content)
        .map_err(|source| Error::write(path, source))?;
    file.commit()
}

/// Refuses a file that has another length than the one on record.
pub(crate) fn check_length(path: &Path, expected: u64) -> Result<()> {
    let data = fs::metadata(path).map_err(|source| Error::read(path, source))?;
    if data.len() != expected {
        return Err(Error::altered(path, "bytes", expected, data.len()));
    }
    Ok(())
}

/// Refuses a file of which the SHA-256 that was `found` is not the one on record.
pub(crate) fn check_sha256(path: &Path, expected: &str, found: &str) -> Result<()> {
    if found != expected {
        return Err(Error::altered(path, "sha256", expected, found));
    }
    Ok(())
}

/// Refuses a file whose length or SHA-256 is not the one on record.
pub(crate) fn verify(path: &Path, expected: &Written) -> Result<()> {
    check_length(path, expected.bytes)?;
    let mut file = File::open(path).map_err(|source| Error::read(path, source))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let length = file
            .read(&mut block)
            .map_err(|source| Error::read(path, source))?;
        if length == 0 {
            break;
        }
        hash.update(&block[..length]);
    }
    check_sha256(path, &expected.sha256, &hex(&hash.finalize()))
}

/// One hash for a set of shards: the SHA-256 of their own, one per line.
pub(crate) fn fingerprint<'a>(shards: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for sha256 in shards {
        hash.update(sha256.as_bytes());
        hash.update(b"\n");
    }
    hex(&hash.finalize())
}

/// The first of the names `PATH.old-1`, `PATH.old-2` and so on that nothing has: what stands at the path is kept under it.
pub(crate) fn old_name(path: &Path) -> PathBuf {
    let mut number = 1_u32;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".old-{number}"));
        let old = PathBuf::from(name);
        if !old.exists() {
            return old;
        }
        number += 1;
    }
}

/// Removes the files of a folder whose names the predicate picks.
pub(crate) fn remove_files(folder: &Path, picked: impl Fn(&str) -> bool) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|source| Error::read(folder, source))?;
    for entry in entries {
        let path = entry.map_err(|source| Error::read(folder, source))?.path();
        if path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(&picked)
        {
            fs::remove_file(&path).map_err(|source| Error::write(&path, source))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file_hashes_as_it_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let written = write_whole(&path, b"abc").unwrap();
        assert_eq!(
            written.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(written.bytes, 3);
        verify(&path, &written).unwrap();
        fs::write(&path, b"abd").unwrap();
        let message = verify(&path, &written).unwrap_err().to_string();
        assert!(message.contains("sha256: expected ba7816bf"), "{message}");
        assert!(!temporary_path(&path).exists());
    }

    #[test]
    fn a_dropped_file_leaves_neither_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut file = PendingFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
