//! Where several machines put what belongs together: a folder that all of them see.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::errors::Misuse;
use crate::runs::files::entries;

/// A folder.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl From<PathBuf> for Store {
    fn from(folder: PathBuf) -> Self {
        Self { folder }
    }
}

impl Store {
    /// Opens `given`: a path, or an address that begins with `file://`.
    ///
    /// # Errors
    /// The address is none of these.
    pub fn open(given: &str) -> Result<Self> {
        let folder = match given.split_once("://") {
            None => given.into(),
            Some(("file", path)) if path.starts_with('/') => path.into(),
            Some(_) => {
                let message =
                    format!("expected a folder, or an address with `file:///`, found `{given}`");
                return Err(Misuse(message).into());
            }
        };
        Ok(Self { folder })
    }

    /// What it is called.
    pub fn name(&self) -> String {
        self.folder.display().to_string()
    }

    /// Where something in it is.
    pub fn place(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The names of what is in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        if self.folder.exists() {
            entries(&self.folder)
        } else {
            Ok(Vec::new())
        }
    }

    /// The contents of a small file in it; nothing where it is not there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.place(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read `{}`", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_path_is_a_folder_and_an_unknown_address_is_misuse() {
        let folder = |given: &str| Store::open(given).unwrap().folder;
        assert_eq!(folder("a/b"), Path::new("a/b"));
        assert_eq!(folder("file:///a/b"), Path::new("/a/b"));
        for given in ["ftp://a/b", "file://a/b", "s3://a/b"] {
            let error = Store::open(given).err().unwrap();
            assert!(
                error.is::<Misuse>() && error.to_string().contains("a folder"),
                "{error}"
            );
        }
    }
}
