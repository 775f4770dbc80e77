//! Opening files that others wrote: only regular ones, and a link that leads nowhere is called one.

use std::fs::{self, File};
use std::path::Path;

use crate::error::{Error, Result};

/// Whether something has this name, be it a link that leads nowhere.
pub(crate) fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Fails for a link to a file that does not exist.
pub fn check_link(path: &Path) -> Result<()> {
    match fs::read_link(path) {
        Ok(leads_to) if !path.exists() => Err(Error::Link {
            path: path.to_path_buf(),
            leads_to,
        }),
        _ => Ok(()),
    }
}

/// Opens a regular file.
pub(crate) fn open(path: &Path) -> Result<File> {
    check_link(path)?;
    // Before it is opened: a pipe would wait for a writer.
    let metadata = fs::metadata(path).map_err(Error::io("open", path))?;
    if !metadata.is_file() {
        return Err(Error::Folder {
            path: path.to_path_buf(),
            reason: "not a regular file".to_string(),
        });
    }
    File::open(path).map_err(Error::io("open", path))
}
