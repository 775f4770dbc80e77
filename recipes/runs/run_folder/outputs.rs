//! What a finished stage has left: the files that it vouches for, and whether they are still the same.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_checkpoints::seal;

use super::aside::{is_aside, is_rest};
use super::manifest::{Damage, Inputs, JOURNAL, MANIFEST};
use crate::runs::files::entries;
use crate::runs::hashes::HashMemory;
use crate::runtime::model_files::read_json;

/// Folders of a stage that are no result: curves, and states that a training goes on from, which check themselves.
const APART: [&str; 2] = ["events", "training"];
const STATES: &str = "step-";

/// SHA-256 of every file that a stage vouches for, by its path in `folder`.
pub(super) fn of(folder: &Path, memory: &mut HashMemory) -> Result<Inputs> {
    let mut outputs = Inputs::new();
    let files = files(folder)?;
    learn(folder, files.iter(), memory)?;
    for file in files {
        let hash = hash(&folder.join(&file), memory)?;
        outputs.insert(file, hash);
    }
    Ok(outputs)
}

/// Which files in `folder` are not what was left there.
pub(super) fn damage(folder: &Path, left: &Inputs, memory: &mut HashMemory) -> Result<Vec<Damage>> {
    let mut damage = Vec::new();
    // Earlier versions vouched for journals.
    let left = left.iter().filter(|(file, _)| !file.ends_with(JOURNAL));
    learn(folder, left.clone().map(|(file, _)| file), memory)?;
    for (file, expected) in left {
        let path = folder.join(file);
        match fs::metadata(&path) {
            Ok(data) if !data.is_file() => damage.push(Damage::Changed(file.clone())),
            Ok(_) if hash(&path, memory)? != *expected => {
                damage.push(Damage::Changed(file.clone()));
            }
            Ok(_) => {}
            Err(error) if is_gone(&error) => damage.push(Damage::Missing(file.clone())),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read `{}`", path.display()));
            }
        }
    }
    Ok(damage)
}

/// Reads the files in `folder` that are unknown, several at a time.
fn learn<'f>(
    folder: &Path,
    files: impl Iterator<Item = &'f String>,
    memory: &mut HashMemory,
) -> Result<()> {
    let paths: Vec<PathBuf> = files.map(|file| folder.join(file)).collect();
    memory.learn_each(paths.iter().map(PathBuf::as_path))
}

fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    [NotFound, NotADirectory].contains(&error.kind())
}

/// The same for a sealed configuration before and after a report is added to it.
fn hash(path: &Path, memory: &mut HashMemory) -> Result<String> {
    if path.file_name() == Some(CONFIG.as_ref())
        && let Ok(config) = read_json(path)
        && let Some(sealed) = seal::sha256_of_sealed(&config)
    {
        return Ok(sha256_bytes(sealed.as_bytes()));
    }
    memory.of(path)
}

fn files(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        for name in entries(&folder.join(&inner))? {
            let path = inner.join(&name);
            let top = inner.as_os_str().is_empty();
            let is_folder = folder.join(&path).is_dir();
            let apart = APART.contains(&name.as_str()) || name.starts_with(STATES);
            let aside = is_aside(&name) || is_rest(&name);
            if top && (name == MANIFEST || aside || is_folder && apart) {
                continue;
            }
            // The card of a drafter is for people, who may change it.
            if name == seal::CARD || name.ends_with(JOURNAL) {
                continue;
            }
            if is_folder {
                folders.push(path)
            } else {
                files.push(path.to_string_lossy().into_owned())
            }
        }
    }
    Ok(files)
}
