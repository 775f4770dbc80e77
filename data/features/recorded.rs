//! Files of features as they are on record, and the proof that they are still so.

use std::fs::Metadata;
use std::path::PathBuf;

use crate::durable::{self, Written};
use crate::error::{Error, Result};

/// A file of features, as the index of its folder has it on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Hexadecimal SHA-256 of what was written.
    pub sha256: String,
}

/// A shard that a [`FeatureWriter`](super::FeatureWriter) has written.
#[derive(Debug, Clone)]
pub struct WrittenShard {
    /// Its name in the folder.
    pub file: String,
    /// Hexadecimal SHA-256 of what was written.
    pub sha256: String,
    /// How the file looked when it was whole: one that looks otherwise may hold something else.
    pub look: Metadata,
}

impl Recorded {
    /// Fails unless the SHA-256 that the file has is the one on record.
    ///
    /// # Errors
    /// It is another one.
    pub fn check(&self, sha256: &str) -> Result<()> {
        durable::check_sha256(&self.path, &self.sha256, sha256)
    }
}

/// The proof of who knows nothing of the files: each is read whole.
pub(super) fn by_reading(files: &[Recorded]) -> Result<()> {
    files.iter().try_for_each(|file| {
        let Recorded {
            path,
            bytes,
            sha256,
        } = file.clone();
        durable::verify(&path, &Written { sha256, bytes })
    })
}

/// Fails unless each file has the length on record, and `proof` finds it unaltered.
pub(super) fn prove<E: From<Error>>(
    files: &[Recorded],
    proof: impl FnOnce(&[Recorded]) -> Result<(), E>,
) -> Result<(), E> {
    for file in files {
        durable::check_length(&file.path, file.bytes)?;
    }
    proof(files)
}
