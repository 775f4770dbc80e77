//! The language model that `drafter.model` names, looked at before the values of its weights are read.

use std::path::Path;

use anyhow::{Context as _, Result};
use spectrain_checkpoints::ModelFolder;
use spectrain_checkpoints::hub::check_model;
use spectrain_models::{Start, check_start_weights};

use crate::families::drafter_folder::check_same_tokens;
use crate::runtime::sizes::folder_of;
use crate::runtime::target;

/// What messages call it.
pub(crate) const WHAT: &str = "model to start from";

/// Fails unless training can start as `start` says beside the target in `target`, if that is known. Nothing is downloaded: a model
/// that is not on this machine passes where it can be the id of one on the hub.
pub(crate) fn check_here(start: &Start<'_>, target: Option<&Path>) -> Result<()> {
    let model = start.model;
    let check = || {
        check_model(model)?;
        match folder_of(model, start.revision) {
            // Of a download that was interrupted some files are missing, which the run fetches.
            Some(folder) if Path::new(model).is_dir() || ModelFolder::open(&folder).is_ok() => {
                check_folder(&folder, start, target)
            }
            _ => Ok(()),
        }
    };
    check().with_context(|| named(model))
}

/// The same, and downloads what is missing.
pub(crate) fn check(start: &Start<'_>, target: &Path) -> Result<()> {
    let folder = target::resolve_as(WHAT, start.model, start.revision);
    let folder = folder.context("`drafter.model`")?;
    check_folder(&folder, start, Some(target)).with_context(|| named(start.model))
}

fn check_folder(folder: &Path, start: &Start<'_>, target: Option<&Path>) -> Result<()> {
    check_start_weights(&ModelFolder::open(folder)?, start)?;
    target.map_or(Ok(()), |target| check_same_tokens(folder, target))
}

fn named(model: &str) -> String {
    format!("`drafter.model`: cannot start from `{model}`")
}
