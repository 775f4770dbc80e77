//! The best weights so far, which a training leaves at its end: they stand in the state of their step alone.
use std::io::ErrorKind;
use std::path::Path;

use spectrain_checkpoints::{Error as CheckpointError, NamedTensor, state};

use crate::error::{Error, Result};
use crate::fit::progress::Progress;

/// The group of a saved state that has the weights.
pub(super) const WEIGHTS: &str = "weights";

/// The weights that the state of a step in the folder of a training holds.
///
/// # Errors
/// There is no such state any more, or its weights are not as they were saved.
pub fn saved_weights(folder: &Path, step: u64) -> Result<Vec<NamedTensor>> {
    Ok(state::load_group(folder, step, WEIGHTS)?)
}

/// Whether the best weights so far are gone or damaged, of which it warns: those of another state than the one in `folder` that was
/// just taken up.
///
/// # Errors
/// The file system refuses them now, and may give them later.
pub(super) fn are_lost(progress: &Progress, folder: &Path) -> Result<bool> {
    let best = progress.best.as_ref().map(|(step, _)| *step);
    let Some(best) = best.filter(|best| *best != progress.step) else {
        return Ok(false);
    };
    let Err(source) = state::check_group(folder, best as u64, WEIGHTS) else {
        return Ok(false);
    };
    if let CheckpointError::Io { cause, .. } = &source
        && cause.kind() != ErrorKind::NotFound
    {
        return Err(Error::Damaged {
            path: state::folder_of(folder, best as u64),
            source,
            before: format!("step {}, which is validated in its place", progress.step),
        });
    }
    tracing::warn!(
        "the best weights so far, those of step {best}, are lost: {source}; step {} is validated in its place, and the best from there on \
         are taken",
        progress.step
    );
    Ok(true)
}
