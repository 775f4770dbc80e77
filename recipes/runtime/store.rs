//! Where several machines put what belongs together: a folder that all of them see, or a prefix of an object store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::runs::files::entries;

pub use remote::Remote;

mod connector;
mod remote;

/// A folder, or a prefix of an object store.
pub enum Store {
    /// A folder.
    Folder(PathBuf),
    /// A prefix.
    Remote(Remote),
}

impl Store {
    /// Opens `given`: a path, or an address that begins with `file:///`, `s3://`, `gs://` or `az://`. Keys and endpoints of object
    /// stores come from the environment, as their own tools have them.
    ///
    /// # Errors
    /// The address is none of these, or the environment lacks what it needs.
    pub fn open(given: &str) -> Result<Self> {
        match given.split_once("://") {
            None => Ok(Self::Folder(given.into())),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::Folder(path.into())),
            Some(_) => Remote::open(given).map(Self::Remote),
        }
    }

    /// What it is called.
    pub fn name(&self) -> String {
        match self {
            Self::Folder(folder) => folder.display().to_string(),
            Self::Remote(remote) => remote.name().to_owned(),
        }
    }

    /// The names of what is in it: folders, or what stands before the next `/`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        match self {
            Self::Folder(folder) if !folder.exists() => Ok(Vec::new()),
            Self::Folder(folder) => entries(folder),
            Self::Remote(remote) => remote.names(),
        }
    }

    /// The contents of a small file in it; nothing where it is not there.
    ///
    /// # Errors
    /// It cannot be read, or is large.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Folder(folder) => read(&folder.join(name)),
            Self::Remote(remote) => remote.read(name),
        }
    }

    /// The length of a file in it; nothing where it is not there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn length(&self, name: &str) -> Result<Option<u64>> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                if_there(&path, fs::metadata(&path).map(|data| data.len()))
            }
            Self::Remote(remote) => remote.length(name),
        }
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    if_there(path, fs::read(path))
}

/// What was found at a path; nothing where nothing is there.
fn if_there<T>(path: &Path, found: io::Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read `{}`", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Misuse;

    #[test]
    fn a_path_is_a_folder_and_an_unknown_address_is_misuse() {
        let folder = |given: &str| match Store::open(given).unwrap() {
            Store::Folder(folder) => folder,
            Store::Remote(remote) => panic!("{}", remote.name()),
        };
        assert_eq!(folder("a/b"), Path::new("a/b"));
        assert_eq!(folder("file:///a/b"), Path::new("/a/b"));
        for given in ["ftp://a/b", "file://a/b", "s3:///b"] {
            let error = Store::open(given).err().unwrap();
            assert!(
                error.is::<Misuse>() && error.to_string().contains("`s3://BUCKET/PREFIX`"),
                "{error}"
            );
        }
    }
}
