//! Why a drafter is not that of the training that its run asks for now, and what to do about it.

use std::path::Path;

use anyhow::Result;
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::seal;

use crate::recipe::read::read;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::places::EXPORTED;
use crate::runs::run_folder::{Inputs, differences, stale};
use crate::runs::stage_names::{ANSWERS, EXPORT};
use crate::runtime::model_files::read_json;
use crate::stages::order;
use crate::stages::settings::effect_on;
use crate::stages::stage::Stage;

/// That the drafter in `folder`, which `stage` of the run in `run` left, is not that of the training that the run asks for now, and
/// why; nothing where it is.
///
/// # Errors
/// A manifest of the run, or what a stage left, cannot be read.
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
///
/// # Errors
/// Those of [`outdated`].
pub fn outdated_export(run: &Path) -> Result<Option<String>> {
    let folder = run.join(EXPORTED);
    match folder.join(CONFIG).is_file() {
        true => outdated(run, EXPORT, &folder),
        false => Ok(None),
    }
}

/// What the recipe of a run asks of its training, and of the stages before it, otherwise than when the drafter in `folder` was trained;
/// nothing where one of the two does not say it.
fn changed(run: &Path, folder: &Path) -> Vec<String> {
    // This only explains what is told in any case.
    let found = || {
        let config = read_json(&folder.join(CONFIG)).ok()?;
        let mut before = seal::provenance(&config)?["recipe"].clone();
        let text = std::fs::read_to_string(run.join("recipe.toml")).ok()?;
        let now = read(&text, &[]).ok()?;
        (now.defaults)().complete(&mut before, &now.json);
        let stages = making_drafter(&now);
        let none = Inputs::new();
        let both = [(&before, &none), (&now.json, &none)];
        let effect = |key: &str| effect_on(&stages, key);
        before.is_object().then(|| differences(both, effect))
    };
    found().unwrap_or_default()
}

/// The stages that make the drafter of a recipe what it is: its trainings, and those that make what these read.
fn making_drafter(recipe: &ResolvedRecipe) -> Vec<Stage> {
    let mut stages = order::of(recipe);
    let last = recipe.last_trained();
    if let Some(last) = stages.iter().position(|stage| stage.name == last) {
        stages.truncate(last + 1);
    }
    let reads_answers = recipe.features.mode.answers_are_data();
    stages.retain(|stage| stage.name != ANSWERS || reads_answers);
    stages
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use spectrain_train::Effect;

    use super::*;

    const TEXT: &str = "name = \"a\"\n[target]\nmodel = \"m\"\n[data]\ntrain = \"t.jsonl\"\n";

    fn recipe(kind: &str, set: &[&str]) -> ResolvedRecipe {
        let set: Vec<String> = set.iter().map(|&set| set.to_owned()).collect();
        read(&format!("recipe = {kind:?}\n{TEXT}"), &set).unwrap()
    }

    #[test]
    fn what_answers_are_asked_for_makes_another_drafter_of_imported_ones_alone() {
        for (mode, expected) in [
            ("live", Effect::Nothing),
            ("served", Effect::Nothing),
            ("streamed", Effect::Nothing),
            ("imported", Effect::StartsOver),
        ] {
            let stages = making_drafter(&recipe("eagle3", &[&format!("features.mode={mode}")]));
            for key in ["evaluate.temperatures", "evaluate.seed"] {
                assert_eq!(effect_on(&stages, key), expected, "{mode}: {key}");
            }
            assert_eq!(effect_on(&stages, "train.beta1"), Effect::StartsOver);
            assert_eq!(effect_on(&stages, "export.dtype"), Effect::Nothing);
        }
    }

    #[test]
    fn keys_that_an_earlier_version_did_not_have_are_no_change_in_the_table_of_a_stage() {
        let root = tempfile::tempdir().unwrap();
        let now = recipe("deer", &["stages.refine.beta1=0.5"]);
        std::fs::write(root.path().join("recipe.toml"), &now.toml).unwrap();
        let changed_since = |before: &Value| {
            let config = json!({ "spectrain": { "provenance": { "recipe": before } } });
            std::fs::write(root.path().join(CONFIG), config.to_string()).unwrap();
            changed(root.path(), root.path())
        };
        let mut before = recipe("deer", &[]).json;
        for table in ["/train", "/stages/align", "/stages/refine"] {
            let keys = before.pointer_mut(table).unwrap();
            let keys = keys.as_object_mut().unwrap();
            keys.shift_remove("ema_decay").unwrap();
        }
        let told = ["`stages.refine.beta1`: 0.9 → 0.5"];
        assert_eq!(changed_since(&before), told);
        // What says nothing of the training is passed over.
        assert!(changed_since(&json!("a recipe")).is_empty());
    }
}
