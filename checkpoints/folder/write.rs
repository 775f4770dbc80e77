//! Writing a model folder.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::index::is_plain_name;
use super::parts::{CONFIG, WEIGHTS};
use crate::atomic;
use crate::error::{Error, Result};
use crate::json;
use crate::tensors::{NamedTensor, write_safetensors};

/// Writes `config.json`, `model.safetensors` and further files as a folder that appears whole.
///
/// A model folder of the same name is replaced. Anything else under that name is left alone, and that is an error.
pub fn write_folder(
    dir: &Path,
    config: &Value,
    tensors: &[NamedTensor],
    extra_files: &[(&str, &[u8])],
) -> Result<()> {
    refuse_other_folders(dir)?;
    let partial = atomic::start_dir(dir)?;
    let written = fill(&partial, config, tensors, extra_files)
        .and_then(|()| atomic::replace_dir(&partial, dir));
    if written.is_err() {
        // The first error is the one to report.
        let _ = atomic::remove_dir(&partial);
    }
    written
}

fn fill(
    partial: &Path,
    config: &Value,
    tensors: &[NamedTensor],
    extra_files: &[(&str, &[u8])],
) -> Result<()> {
    for (name, bytes) in extra_files {
        let path = partial.join(name);
        if !is_plain_name(name) || [CONFIG, WEIGHTS].contains(name) {
            let reason = "expected a plain file name of its own".to_string();
            return Err(Error::Folder { path, reason });
        }
        atomic::write_file(&path, bytes)?;
    }
    write_safetensors(&partial.join(WEIGHTS), tensors, &BTreeMap::new())?;
    atomic::write_file(&partial.join(CONFIG), &json::to_bytes(config))
}

fn refuse_other_folders(dir: &Path) -> Result<()> {
    let empty = || {
        dir.read_dir()
            .is_ok_and(|mut entries| entries.next().is_none())
    };
    if !dir.exists() || dir.join(CONFIG).exists() || empty() {
        return Ok(());
    }
    let reason = format!("exists and is not a model folder (no `{CONFIG}`); it is not replaced");
    Err(Error::Folder {
        path: dir.to_path_buf(),
        reason,
    })
}
