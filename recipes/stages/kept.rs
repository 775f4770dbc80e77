//! What a training that has begun keeps of its settings, where the recipe leaves them open.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::TargetType;
use crate::runs::run_folder::{COMPUTED_IN, StageState, Wanted, manifest_in, stage_state};
use crate::stages::inputs::{TRAIN, effect, settings};
use crate::stages::order;

/// The key whose default goes with the number of steps: with other steps a training would start over for a warm-up that nobody
/// asked for.
const WARMUP: &str = "warmup_steps";

/// Overrides of `recipe` with which the trainings in the folder `run` go on; `is_set` says of keys whether one of them was set by
/// the user. None of a training that starts over in any case.
pub fn overrides(
    recipe: &ResolvedRecipe,
    run: &Path,
    is_set: &dyn Fn(&[String]) -> Result<bool>,
) -> Result<Vec<String>> {
    let mut kept = Vec::new();
    for stage in order::of(recipe) {
        if !recipe.training_stages().contains(&stage.name) {
            continue;
        }
        // What is wrong with a manifest is told where the stage is looked at.
        let Some(manifest) = manifest_in(run, stage.name).ok().flatten() else {
            continue;
        };
        let Some(warmup) = manifest.settings[TRAIN][WARMUP].as_u64() else {
            continue;
        };
        let mut wanted = settings(recipe, &stage)?;
        if wanted[TRAIN][WARMUP] == json!(warmup) {
            continue;
        }
        wanted[TRAIN][WARMUP] = json!(warmup);
        wanted["target"][COMPUTED_IN] = match recipe.target.dtype {
            // What that is on the device is seen where the stage is looked at.
            TargetType::Auto => manifest.settings["target"][COMPUTED_IN].clone(),
            own => json!(own),
        };
        let wanted = Wanted {
            settings: &wanted,
            inputs: &manifest.inputs,
            effect,
            // To whatever end: one that does not fit is told without a warm-up that nobody set.
            ends: &|| Ok(0),
        };
        if matches!(
            stage_state(run, stage.name, wanted)?,
            StageState::Changed(_) | StageState::Missing
        ) {
            continue;
        }
        let shared = format!("{TRAIN}.{WARMUP}");
        let own = match recipe.stages.contains_key(stage.name) {
            true => format!("stages.{}.{WARMUP}", stage.name),
            false => shared.clone(),
        };
        if !is_set(&[shared, own.clone()])? {
            kept.push(format!("{own}={warmup}"));
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use spectrain_checkpoints::state;

    use super::*;
    use crate::recipe::read::read;
    use crate::runs::run_folder::{Existing, RunFolder, RunName, Start};

    const TEXT: &str = "recipe = \"eagle3\"\nname = \"a\"\n[synthetic]\n";

    fn recipe(overrides: &[&str]) -> ResolvedRecipe {
        let overrides: Vec<String> = overrides.iter().map(|&set| set.into()).collect();
        read(TEXT, &overrides).unwrap()
    }

    /// What is kept of a training of 40 steps in the folder `root`, by the recipe with these overrides.
    fn kept(root: &Path, set: &[&str]) -> Vec<String> {
        let is_set = |keys: &[String]| {
            let key = |set: &str| set.split('=').next().unwrap_or_default().to_owned();
            Ok(set.iter().any(|set| keys.contains(&key(set))))
        };
        overrides(&recipe(set), &root.join("a"), &is_set).unwrap()
    }

    #[test]
    fn a_warm_up_that_nobody_set_is_kept_where_training_goes_on() {
        let root = tempfile::tempdir().unwrap();
        let run = RunName {
            root: root.path(),
            name: "a",
            recipe: "eagle3",
        };
        let run = RunFolder::open(run, TEXT, Existing::Continue).unwrap();
        assert!(kept(root.path(), &["train.steps=50"]).is_empty());

        let begun = recipe(&["train.steps=40"]);
        let stages = order::of(&begun);
        let train = stages.iter().find(|stage| stage.name == TRAIN).unwrap();
        let mut settings = settings(&begun, train).unwrap();
        // As a run on the CPU records it.
        settings["target"][COMPUTED_IN] = json!("f32");
        let start = Start {
            settings,
            ..Start::default()
        };
        run.start(TRAIN, start).unwrap();
        state::save_state(&run.stage(TRAIN), 40, &json!({}), &[]).unwrap();

        assert!(kept(root.path(), &["train.steps=40"]).is_empty());
        let warmup = ["train.warmup_steps=4"];
        for other in [
            &["train.steps=50"][..],
            // What is advised where `auto` means another type.
            &["train.steps=50", "target.dtype=f32"],
            // It is refused for its steps, and does not start over for its warm-up.
            &["train.steps=20"],
            &["train.epochs=2"],
            // Or ends within its warm-up.
            &["train.steps=3"],
        ] {
            assert_eq!(kept(root.path(), other), warmup, "{other:?}");
        }
        let longer = recipe(&["train.steps=50", warmup[0]]);
        assert_eq!(longer.train.warmup_steps, 4);

        for other in [
            &["train.steps=50", "train.warmup_steps=5"][..],
            &["train.steps=50", "train.learning_rate=0.5"],
            &["train.steps=50", "target.dtype=bf16"],
        ] {
            assert!(kept(root.path(), other).is_empty(), "{other:?}");
        }
    }
}
