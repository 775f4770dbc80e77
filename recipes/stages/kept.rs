//! What a training that has begun keeps of its settings, where the recipe leaves them open.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::TargetType;
use crate::runs::run_folder::{
    COMPUTED_IN, RunFolder, StageState, Wanted, manifest_in, stage_state,
};
use crate::runs::stage_names::TRAIN;
use crate::stages::order;
use crate::stages::settings::{effect, settings};
use crate::stages::stage::Stage;

/// The key whose default goes with the number of steps: with other steps a training would start over for a warm-up that nobody
/// asked for.
const WARMUP: &str = "warmup_steps";

/// Overrides of `recipe` with which the trainings in the folder `run` go on, or are taken back; `is_set` says of keys whether one of
/// them was set by the user. None of a training that starts over in any case.
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
        let Some(warmup) = warmup(recipe, run, &stage)? else {
            continue;
        };
        if settings(recipe, &stage)?[TRAIN][WARMUP] == json!(warmup) {
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

/// The warm-up of a training that goes on: of what stands in its place, or else of what was set aside and is wanted again.
fn warmup(recipe: &ResolvedRecipe, run: &Path, stage: &Stage) -> Result<Option<u64>> {
    // To whatever end: one that does not fit is told without a warm-up that nobody set.
    if let Some((warmup, state)) = with_own_warmup((recipe, stage), (run, stage.name), &|| Ok(0))?
        && !matches!(state, StageState::Changed(_) | StageState::Missing)
    {
        return Ok(warmup);
    }
    let training = recipe.training(stage.name);
    let end = || -> Result<u64> {
        Ok(match training.epochs {
            None => training.steps as u64,
            // How many steps they come to is not known here.
            Some(_) => u64::MAX,
        })
    };
    // What cannot be read of these hinders nobody.
    let names = RunFolder::unlocked(run.to_owned()).asides(stage.name);
    let names = names.unwrap_or_default().into_iter();
    let found = |name: String| with_own_warmup((recipe, stage), (run, &name), &end).ok()?;
    let asides: Vec<(Option<u64>, StageState)> = names.filter_map(found).collect();
    let is_done = |state: &StageState| matches!(state, StageState::Done(_));
    let goes_on =
        |state: &StageState| matches!(state, StageState::Interrupted | StageState::Longer { .. });
    let first = |is_wanted: &dyn Fn(&StageState) -> bool| {
        let mut asides = asides.iter();
        asides.find_map(|(warmup, state)| is_wanted(state).then_some(*warmup))
    };
    Ok(first(&is_done).or_else(|| first(&goes_on)).flatten())
}

/// The warm-up of what is called `name` in the run, which epochs leave open, and its state as that of `stage` if the recipe had the
/// same; nothing where nothing is there. What it was made from beside the recipe is taken for unchanged. It `ends` there.
fn with_own_warmup(
    (recipe, stage): (&ResolvedRecipe, &Stage),
    (run, name): (&Path, &str),
    ends: &dyn Fn() -> Result<u64>,
) -> Result<Option<(Option<u64>, StageState)>> {
    // What is wrong with a manifest is told where the stage is looked at.
    let Some(manifest) = manifest_in(run, name).ok().flatten() else {
        return Ok(None);
    };
    let warmup = manifest.settings[TRAIN][WARMUP].as_u64();
    let mut wanted = settings(recipe, stage)?;
    wanted[TRAIN][WARMUP] = json!(warmup);
    wanted["target"][COMPUTED_IN] = match recipe.target.dtype {
        // What that is on the device is seen where the stage is looked at.
        TargetType::Auto => manifest.settings["target"][COMPUTED_IN].clone(),
        own => json!(own),
    };
    let wanted = Wanted {
        settings: &wanted,
        inputs: &manifest.inputs,
        defaults: &(recipe.defaults)(),
        effect,
        ends,
    };
    Ok(Some((warmup, stage_state(run, name, wanted)?)))
}

#[cfg(test)]
mod tests {
    use spectrain_checkpoints::state;

    use super::*;
    use crate::recipe::read::read;
    use crate::runs::run_folder::{Existing, Manifest, RunName, Start};

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

    /// Begins a training by the recipe with these overrides, which has saved its state after so many steps.
    fn begin(run: &RunFolder, set: &[&str], steps: u64) -> Manifest {
        let begun = recipe(set);
        let stages = order::of(&begun);
        let train = stages.iter().find(|stage| stage.name == TRAIN).unwrap();
        let mut settings = settings(&begun, train).unwrap();
        // As a run on the CPU records it.
        settings["target"][COMPUTED_IN] = json!("f32");
        let start = Start {
            settings,
            ..Start::default()
        };
        let manifest = run.start(TRAIN, start).unwrap();
        state::save_state(&run.stage(TRAIN), steps, &json!({}), &[]).unwrap();
        manifest
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

        begin(&run, &["train.steps=40"], 40);

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

    #[test]
    fn a_warm_up_that_nobody_set_is_kept_where_a_training_is_taken_back() {
        let root = tempfile::tempdir().unwrap();
        let run = RunName {
            root: root.path(),
            name: "a",
            recipe: "eagle3",
        };
        let run = RunFolder::open(run, TEXT, Existing::Continue).unwrap();
        // Lengthened, with the warm-up that it began with, and set aside for another rate.
        let manifest = begin(&run, &["train.steps=50", "train.warmup_steps=4"], 50);
        run.finish(manifest, 1.0, json!({})).unwrap();
        run.set_aside(TRAIN).unwrap();
        let other = ["train.steps=50", "train.learning_rate=0.5"];
        let warmup = ["train.warmup_steps=4"];
        // Nothing is in its place, or what was trained instead.
        for is_replaced in [false, true] {
            if is_replaced {
                let manifest = begin(&run, &other, 50);
                run.finish(manifest, 1.0, json!({})).unwrap();
            }
            assert_eq!(kept(root.path(), &["train.steps=50"]), warmup);
            assert_eq!(kept(root.path(), &["train.steps=60"]), warmup);
            assert!(kept(root.path(), &other).is_empty());
            assert!(kept(root.path(), &["train.steps=50", "train.warmup_steps=5"]).is_empty());
            // It has done more, so it is not taken back.
            assert!(kept(root.path(), &["train.steps=45"]).is_empty());
        }
        // What stands in its place goes on without one.
        run.clear(TRAIN).unwrap();
        begin(&run, &["train.epochs=2"], 50);
        assert!(kept(root.path(), &["train.epochs=2"]).is_empty());
    }
}
