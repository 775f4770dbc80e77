//! Whether the weights in the folder of a target are those of which its `config.json` speaks. Only the headers of files are read.

use std::path::Path;

use anyhow::{Context as _, Result};
use spectrain_checkpoints::ModelFolder;
use spectrain_models::{check_part_weights, check_target_weights, is_part};

use crate::recipe::tables::FeatureMode;
use crate::runtime::target::{check_computed, remarks};

/// Fails where a tensor that a run of this mode reads of the target in a folder is missing, is one too many, or has another shape than
/// `config.json` says. Of files that cannot be opened, or are not all here yet, and of configurations that are not understood other
/// checks tell.
///
/// # Errors
/// The first such tensor, its file, and the key that does not fit.
pub fn check_weights(folder: &Path, mode: FeatureMode) -> Result<()> {
    let (opened, is_understood) = match mode.computes_target() {
        true => (ModelFolder::open(folder), check_computed(folder).is_ok()),
        false => (
            ModelFolder::open_some(folder, &is_part),
            remarks(folder).is_ok(),
        ),
    };
    let Some(model) = opened.ok().filter(|_| is_understood) else {
        return Ok(());
    };
    let checked = match mode.computes_target() {
        true => check_target_weights(&model),
        false => check_part_weights(&model),
    };
    checked.with_context(|| format!("cannot open the target `{}`", folder.display()))
}
