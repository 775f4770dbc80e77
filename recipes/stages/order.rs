//! The stages in their order.

use anyhow::Result;
use spectrain_checkpoints::near::did_you_mean;

use crate::errors::Misuse;
use crate::families::registry;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::FeatureMode;
use crate::stages::inputs::TRAIN;
use crate::stages::stage::{Input, Stage};
use crate::stages::{evaluate, export, features, prepare, regenerate, synthetic};

/// Every stage in order. A recipe that trains in several stages has each of them in the place of [`TRAIN`].
pub const STAGES: &[Stage] = &[
    Stage {
        name: "synthetic",
        wanted: |recipe| recipe.synthetic.is_some(),
        reads: &["seed", "synthetic"],
        inputs: &[],
        resumes: true,
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
            "data.unusable",
            "data.template_variables",
            "target.dtype",
        ],
        inputs: &[
            Input::Target,
            Input::Tokenizer,
            Input::Template,
            Input::GivenData,
        ],
        resumes: true,
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
            "data.held_out",
            "data.min_trained_tokens",
            "data.unusable",
        ],
        inputs: &[
            Input::Tokenizer,
            Input::TrainData,
            Input::EvalData,
            Input::Template,
        ],
        resumes: false,
        run: |context, _| prepare::run(context),
    },
    Stage {
        name: "features",
        wanted: |recipe| recipe.features.mode != FeatureMode::Live,
        reads: &[
            "recipe",
            "features.mode",
            "features.samples_per_shard",
            "features.from",
            "drafter",
            "target.dtype",
        ],
        inputs: &[
            Input::Target,
            Input::KnownFeatures,
            Input::Output("prepare/train/tokens.json"),
            Input::Output("prepare/eval/tokens.json"),
        ],
        resumes: true,
        run: |context, _| features::run(context),
    },
    Stage {
        name: "answers",
        wanted: |recipe| !recipe.features.mode.computes_target(),
        reads: &[
            "recipe",
            "features.mode",
            "drafter",
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
            Input::KnownFeatures,
            Input::Output("prepare/eval/tokens.json"),
            Input::Output("prepare/prompts.json"),
        ],
        resumes: true,
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
            Input::Output("prepare/train/tokens.json"),
            Input::Output("prepare/eval/tokens.json"),
            Input::Output("prepare/counts.json"),
            Input::Before,
        ],
        resumes: true,
        run: |context, stage| registry::train(context, stage),
    },
    Stage {
        name: "export",
        wanted: |_| true,
        reads: &["recipe", "export", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::Output("prepare/prompts.json"),
            Input::Trained,
        ],
        resumes: false,
        run: |context, _| export::run(context),
    },
    Stage {
        name: "evaluate",
        wanted: |_| true,
        reads: &["recipe", "evaluate", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::FurtherTargets,
            Input::Output("prepare/prompts.json"),
            Input::PromptSets,
            Input::Exported,
        ],
        resumes: false,
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
            return Err(Misuse(format!(
                "this recipe has no stage `{name}`; its stages: {}{}",
                names.join(", "),
                did_you_mean(name, names.iter().copied())
            ))
            .into());
        }
    }
    Ok(stages)
}
