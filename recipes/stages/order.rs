//! The stages in their order.

use anyhow::Result;
use spectrain_checkpoints::near::did_you_mean;

use crate::errors::Misuse;
use crate::families::registry;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::FeatureMode;
use crate::stages::inputs::TRAIN;
use crate::stages::stage::{AfterInterruption, Input, Stage, Temperatures};
use crate::stages::{evaluate, export, features, prepare, regenerate, synthetic};

/// Every stage in order. A recipe that trains in several stages has each of them in the place of [`TRAIN`].
pub const STAGES: &[Stage] = &[
    Stage {
        name: "synthetic",
        wanted: |recipe| recipe.synthetic.is_some(),
        reads: &["seed", "synthetic"],
        inputs: &[],
        after_interruption: |_| AfterInterruption::GoesOn,
        kept_aside: true,
        run: |context, _| synthetic::run(context),
    },
    Stage {
        name: "regenerate",
        wanted: |recipe| recipe.regenerate.is_some(),
        // What is not here does not change what is answered.
        reads: &[
            "regenerate.model",
            "regenerate.extra",
            "regenerate.temperature",
            "regenerate.top_p",
            "regenerate.max_tokens",
            "regenerate.seed",
            "regenerate.truncated",
            "regenerate.tools",
            "data.max_samples",
            "data.unusable",
            "data.template_variables",
            "target.dtype",
        ],
        inputs: &[
            Input::Target,
            Input::Tokenizer,
            Input::Template,
            Input::GivenData,
            Input::OwnDecoding,
        ],
        after_interruption: |_| AfterInterruption::GoesOn,
        kept_aside: true,
        run: |context, _| regenerate::run(context),
    },
    Stage {
        name: "prepare",
        wanted: |_| true,
        reads: &[
            "data.max_length",
            "data.overlong",
            "data.mask",
            "data.turns",
            "data.template_variables",
            "data.date",
            "data.held_out",
            "data.max_samples",
            "data.min_trained_tokens",
            "data.unusable",
        ],
        inputs: &[
            Input::Tokenizer,
            Input::TrainData,
            Input::EvalData,
            Input::Template,
        ],
        after_interruption: |_| AfterInterruption::StartsOver,
        kept_aside: false,
        run: |context, _| prepare::run(context),
    },
    Stage {
        name: "features",
        wanted: |recipe| recipe.features.mode != FeatureMode::Live,
        reads: &[
            "features.mode",
            "features.samples_per_shard",
            "features.from",
            "target.dtype",
        ],
        inputs: &[
            Input::Target,
            Input::CapturedLayers,
            Input::KnownFeatures,
            Input::Output("prepare/train/tokens.json"),
            Input::Output("prepare/eval/tokens.json"),
        ],
        after_interruption: |_| AfterInterruption::GoesOn,
        kept_aside: true,
        run: |context, _| features::run(context),
    },
    Stage {
        name: "answers",
        wanted: |recipe| !recipe.features.mode.computes_target(),
        reads: &[
            "features.mode",
            "target.dtype",
            "train.decode_prompts",
            "evaluate.prompts",
            "evaluate.temperatures",
            "evaluate.top_k",
            "evaluate.top_p",
            "evaluate.max_new_tokens",
            "evaluate.seed",
        ],
        inputs: &[
            Input::Target,
            Input::CapturedLayers,
            Input::StopTokens,
            Input::KnownFeatures,
            Input::AnswerMasks,
            Input::Output("prepare/eval/tokens.json"),
            Input::Output("prepare/prompts.json"),
        ],
        after_interruption: |_| AfterInterruption::GoesOn,
        kept_aside: true,
        run: |context, _| features::answers::run(context),
    },
    Stage {
        name: TRAIN,
        wanted: |_| true,
        reads: &[
            "recipe",
            "seed",
            "start",
            "features.mode",
            "drafter",
            "objective",
            "train",
            "target.dtype",
        ],
        inputs: &[
            Input::Target,
            Input::Start,
            Input::Model,
            Input::StopTokens,
            Input::Features,
            Input::Answers(Temperatures::Validated),
            Input::Output("prepare/train/tokens.json"),
            Input::Output("prepare/eval/tokens.json"),
            Input::Output("prepare/counts.json"),
            Input::Before,
        ],
        after_interruption: |_| AfterInterruption::GoesOn,
        kept_aside: true,
        run: |context, stage| registry::train(context, stage),
    },
    Stage {
        name: "export",
        wanted: |_| true,
        reads: &["recipe", "export", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::TargetName,
            Input::StopTokens,
            Input::Answers(Temperatures::First),
            Input::Output("prepare/prompts.json"),
            Input::Trained,
        ],
        after_interruption: |_| AfterInterruption::StartsOver,
        kept_aside: false,
        run: |context, _| export::run(context),
    },
    Stage {
        name: "evaluate",
        wanted: |_| true,
        reads: &["recipe", "evaluate", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::FurtherTargets,
            Input::StopTokens,
            Input::Answers(Temperatures::All),
            Input::Output("prepare/prompts.json"),
            Input::PromptSets,
            Input::Exported,
        ],
        after_interruption: |recipe| match recipe.features.mode.computes_target() {
            true => AfterInterruption::TakesWhatFits,
            // Stored answers are judged in minutes.
            false => AfterInterruption::StartsOver,
        },
        kept_aside: false,
        run: |context, _| evaluate::run(context),
    },
];

/// The stages of a recipe.
pub fn of(recipe: &ResolvedRecipe) -> Vec<Stage> {
    let wanted = STAGES.iter().filter(|stage| (stage.wanted)(recipe));
    let each = |stage: &Stage| match stage.name {
        TRAIN => {
            let named = |&name: &&'static str| Stage { name, ..*stage };
            recipe.training_stages().iter().map(named).collect()
        }
        _ => vec![*stage],
    };
    wanted.flat_map(each).collect()
}

/// What of a recipe makes a stage exist that not every recipe has.
fn wanted_by(stage: &str) -> Option<&'static str> {
    match stage {
        "synthetic" => Some("a table `[synthetic]`"),
        "regenerate" => Some("a table `[regenerate]`"),
        "features" => Some("`features.mode = \"stored\"` (or `\"served\"`)"),
        "answers" => Some("`features.mode = \"served\"`"),
        _ => None,
    }
}

/// Whether a stage is wanted where those named in `only` are, or all where none is.
pub fn is_selected(stage: &str, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|name| name == stage)
}

/// The stages of a recipe, of which there are those named in `only`.
pub fn selected(recipe: &ResolvedRecipe, only: &[String]) -> Result<Vec<Stage>> {
    let stages = of(recipe);
    for name in only {
        if !stages.iter().any(|stage| stage.name == name) {
            let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
            let why = match wanted_by(name) {
                Some(key) => format!("; {key} makes it exist"),
                None => did_you_mean(name, names.iter().copied()),
            };
            return Err(Misuse(format!(
                "this recipe has no stage `{name}`; its stages: {}{why}",
                names.join(", "),
            ))
            .into());
        }
    }
    Ok(stages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::read;

    #[test]
    fn a_stage_that_a_recipe_lacks_is_named_with_what_makes_it_exist() {
        let text = "recipe = \"eagle3\"\nname = \"a\"\n[target]\nmodel = \"m\"\n[data]\ntrain = \"t.jsonl\"\n";
        let recipe = read(text, &[]).unwrap();
        let refused = |stage: &str| {
            let found = selected(&recipe, &[stage.to_owned()]);
            found.err().unwrap().to_string()
        };
        for stage in STAGES.iter().filter(|stage| !(stage.wanted)(&recipe)) {
            let told = refused(stage.name);
            assert!(told.ends_with(" makes it exist"), "{told}");
        }
        let told = refused("features");
        assert!(
            told.contains("`features.mode = \"stored\"` (or `\"served\"`)"),
            "{told}"
        );
        assert!(refused("trian").ends_with("did you mean `train`?"));
    }
}
