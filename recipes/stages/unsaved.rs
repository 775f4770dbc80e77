//! Interrupted trainings of which no state was saved: nothing of their steps is left.

use std::path::Path;

use spectrain_checkpoints::{Result, state};

use crate::recipe::resolved::ResolvedRecipe;

/// How what is said of them begins; why follows.
pub(crate) const BEGINS_ANEW: &str = "begins anew: ";

/// What is said of an interrupted `stage` that has its outputs in `folder`, where it trains and has saved no state there; nothing of
/// others.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn unsaved(
    recipe: &ResolvedRecipe,
    stage: &str,
    folder: &Path,
) -> Result<Option<String>> {
    if !recipe.training_stages().contains(&stage) || !state::list(folder)?.is_empty() {
        return Ok(None);
    }
    let table = match recipe.stages.contains_key(stage) {
        true => format!("stages.{stage}"),
        false => "train".to_owned(),
    };
    let every = recipe.training(stage).save_every;
    Ok(Some(format!(
        "{BEGINS_ANEW}no state was saved yet (`{table}.save_every = {every}`)"
    )))
}
