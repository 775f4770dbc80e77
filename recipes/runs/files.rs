//! Files and folders of runs.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;
use spectrain_checkpoints::atomic::write_file;

/// The names of what is in a folder, sorted.
pub(crate) fn entries(folder: &Path) -> Result<Vec<String>> {
    let read = || -> std::io::Result<Vec<String>> {
        let names = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    };
    let mut names = read().with_context(|| format!("cannot read `{}`", folder.display()))?;
    names.sort();
    Ok(names)
}

/// Removes a file or a folder, under another name, so that under its own it is there whole or not at all.
pub(crate) fn remove_whole(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // No run has a name that begins with a dot.
    let removed = path.with_file_name(format!(".{name}.removed"));
    let remove = || {
        if removed.is_dir() {
            fs::remove_dir_all(&removed)?;
        }
        fs::rename(path, &removed)?;
        if removed.is_dir() {
            fs::remove_dir_all(&removed)
        } else {
            fs::remove_file(&removed)
        }
    };
    remove().with_context(|| format!("cannot remove `{}`", path.display()))
}

/// Writes JSON that people may read.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    text.push('\n');
    write_file(path, text.as_bytes()).map_err(Into::into)
}
