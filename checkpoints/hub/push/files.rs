//! Which files of a folder are pushed: those that it was sealed with, and its card. Nothing else leaves the machine.

use std::path::PathBuf;

use sha1::{Digest as _, Sha1};

use crate::error::{Error, Result};
use crate::folder::{CONFIG, INDEX, ModelFolder};
use crate::hash::{hex, sha256_file};
use crate::mismatch::Mismatch;
use crate::seal::{self, CARD, SEAL};

/// Bytes at the start of a file by which the hub tells text.
const SAMPLE: usize = 512;

/// A file to push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Its name in the folder and in the repository.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// Its SHA-256, by which large-file storage knows it.
    pub sha256: String,
}

impl Pushed {
    fn of(folder: &ModelFolder, name: String) -> Result<Self> {
        let path = folder.path().join(&name);
        let data = std::fs::metadata(&path).map_err(Error::io("read", &path))?;
        Ok(Self {
            sha256: sha256_file(&path)?,
            bytes: data.len(),
            name,
            path,
        })
    }

    pub(super) fn contents(&self) -> Result<Vec<u8>> {
        std::fs::read(&self.path).map_err(Error::io("read", &self.path))
    }

    /// Its first bytes.
    pub(super) fn sample(&self) -> Result<Vec<u8>> {
        use std::io::Read as _;
        let file = std::fs::File::open(&self.path).map_err(Error::io("open", &self.path))?;
        let mut sample = Vec::new();
        let read = file.take(SAMPLE as u64).read_to_end(&mut sample);
        read.map_err(Error::io("read", &self.path))?;
        Ok(sample)
    }

    /// The name that git gives its contents.
    pub(super) fn git_name(&self) -> Result<String> {
        let contents = self.contents()?;
        let mut digest = Sha1::new();
        digest.update(format!("blob {}\0", contents.len()));
        digest.update(contents);
        Ok(hex(&digest.finalize()))
    }
}

/// The files of a sealed folder that a push uploads, in the order of their names.
///
/// # Errors
/// The folder has no seal, or is not what was sealed.
pub fn pushed_files(folder: &ModelFolder) -> Result<Vec<Pushed>> {
    if !seal::check(folder)? {
        return Err(Error::Key {
            path: folder.path().join(CONFIG),
            key: SEAL.to_string(),
            mismatch: Mismatch::new("the seal of a folder that this program wrote", "nothing"),
        });
    }
    let mut names = seal::files(folder);
    names.insert(CONFIG.to_string());
    for name in [INDEX, CARD] {
        if folder.path().join(name).is_file() {
            names.insert(name.to_string());
        }
    }
    names
        .into_iter()
        .map(|name| Pushed::of(folder, name))
        .collect()
}
