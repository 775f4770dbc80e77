//! Files and folders of runs.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;
use spectrain_checkpoints::atomic::write_file;

/// The names of what is in a folder, sorted.
pub(crate) fn entries(folder: &Path) -> Result<Vec<String>> {
    let read = || -> io::Result<Vec<String>> {
        let names = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    };
    let mut names = read().with_context(|| format!("cannot read `{}`", folder.display()))?;
    names.sort();
    Ok(names)
}

/// How what is being removed is called, around its name. No run has a name that begins with a dot.
const REMOVED: [&str; 2] = [".", ".removed"];

/// The name of what was being removed, of which there is a rest of this name if that was killed.
pub(crate) fn removed(rest: &str) -> Option<&str> {
    let [before, behind] = REMOVED;
    rest.strip_prefix(before)?.strip_suffix(behind)
}

/// Removes a file or a folder, under another name, so that under its own it is there whole or not at all. A process that is killed
/// meanwhile leaves a rest under that name; see [`removed`].
pub(crate) fn remove_whole(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let [before, behind] = REMOVED;
    let rest = path.with_file_name(format!("{before}{name}{behind}"));
    let remove = || {
        if rest.is_dir() {
            fs::remove_dir_all(&rest)?;
        }
        fs::rename(path, &rest)?;
        remove_now(&rest)
    };
    remove().with_context(|| format!("cannot remove `{}`", path.display()))
}

/// Removes the rest of what was being removed.
pub(crate) fn remove_rest(rest: &Path) -> Result<()> {
    remove_now(rest).with_context(|| format!("cannot remove `{}`", rest.display()))
}

fn remove_now(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

/// Writes JSON that people may read.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    text.push('\n');
    write_file(path, text.as_bytes()).map_err(Into::into)
}
