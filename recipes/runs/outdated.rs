//! Why a drafter is not that of the training that its run asks for now, and what to do about it.

use std::path::Path;

use anyhow::Result;
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::seal;
use spectrain_train::Effect;

use crate::recipe::read::read;
use crate::runs::places::EXPORTED;
use crate::runs::run_folder::{Inputs, differences, stale};
use crate::runtime::model_files::read_json;

/// Keys and tables of a recipe that say nothing of what is trained.
const BEHIND_TRAINING: [&str; 4] = ["name", "export", "evaluate", "track"];

/// That the drafter in `folder`, which `stage` of the run in `run` left, is not that of the training that the run asks for now, and
/// why; nothing where it is.
pub fn outdated(run: &Path, stage: &str, folder: &Path) -> Result<Option<String>> {
    let Some(why) = stale(run, stage)? else {
        return Ok(None);
    };
    let what = match &changed(run, folder)[..] {
        [] => why,
        changed => format!("it is of the previous training ({})", changed.join(", ")),
    };
    Ok(Some(format!(
        "the drafter in `{}` is stale: {what}; run the recipe again for the new one",
        folder.display()
    )))
}

/// The same of the drafter that a run has exported; nothing where there is none.
pub fn outdated_export(run: &Path) -> Result<Option<String>> {
    let folder = run.join(EXPORTED);
    match folder.join(CONFIG).is_file() {
        true => outdated(run, "export", &folder),
        false => Ok(None),
    }
}

/// What the recipe of a run asks of its training otherwise than when the drafter in `folder` was trained; nothing where one of the two
/// does not say it.
fn changed(run: &Path, folder: &Path) -> Vec<String> {
    // This only explains what is told in any case.
    let found = || {
        let config = read_json(&folder.join(CONFIG)).ok()?;
        let before = seal::provenance(&config)?["recipe"].clone();
        let text = std::fs::read_to_string(run.join("recipe.toml")).ok()?;
        let now = read(&text, &[]).ok()?;
        let none = Inputs::new();
        let both = [(&before, &none), (&now.json, &none)];
        before.is_object().then(|| differences(both, effect))
    };
    found().unwrap_or_default()
}

/// What a change of a setting does to what is trained.
fn effect(path: &str) -> Effect {
    match path.split_once('.') {
        Some(("train", key)) => Effect::of(key),
        split => {
            let table = split.map_or(path, |(table, _)| table);
            match BEHIND_TRAINING.contains(&table) {
                true => Effect::Nothing,
                false => Effect::StartsOver,
            }
        }
    }
}
