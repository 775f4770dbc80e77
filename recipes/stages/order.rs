//! The stages in their order.

use anyhow::Result;
use spectrain_checkpoints::near::did_you_mean;

use crate::errors::Misuse;
use crate::families::registry;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::FeatureMode;
use crate::runs::stage_names::{
    ANSWERS, EVALUATE, EXPORT, FEATURES, PREPARE, REGENERATE, SYNTHETIC, TRAIN,
};
use crate::stages::stage::{AfterInterruption, Input, Stage, Temperatures};
use crate::stages::{evaluate, export, features, prepare, regenerate, synthetic};

/// Every stage in order. A recipe that trains in several stages has each of them in the place of [`TRAIN`].
pub const STAGES: &[Stage] = &[
    Stage {
        name: SYNTHETIC,
        wanted: |recipe| recipe.synthetic.is_some(),
        wanted_by: Some("a table `[synthetic]`"),
        reads: &["seed", "synthetic"],
        inputs: &[],
        after_interruption: |_| AfterInterruption::GoesOn,
        kept_aside: true,
        run: |context, _| synthetic::run(context),
    },
    Stage {
        name: REGENERATE,
        wanted: |recipe| recipe.regenerate.is_some(),
        wanted_by: Some("a table `[regenerate]`"),
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
        name: PREPARE,
        wanted: |_| true,
        wanted_by: None,
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
        name: FEATURES,
        wanted: |recipe| recipe.features.mode != FeatureMode::Live,
        wanted_by: Some("`features.mode = \"stored\"` (or `\"served\"`)"),
        reads: &[
            "features.mode",
            "features.dtype",
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
        name: ANSWERS,
        wanted: |recipe| !recipe.features.mode.computes_target(),
        wanted_by: Some("`features.mode = \"served\"`"),
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
        wanted_by: None,
        reads: &[
            "recipe",
            "seed",
            "start",
            "features.mode",
            "features.dtype",
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
        name: EXPORT,
        wanted: |_| true,
        wanted_by: None,
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
        name: EVALUATE,
        wanted: |_| true,
        wanted_by: None,
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
        kept_aside: true,
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
            let known = STAGES.iter().find(|stage| stage.name == name);
            let why = match known.and_then(|stage| stage.wanted_by) {
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
    use crate::families::registry::RECIPES;
    use crate::recipe::read;

    /// A recipe that says nothing of its stages.
    fn plain() -> ResolvedRecipe {
        let text = "recipe = \"eagle3\"\nname = \"a\"\n[target]\nmodel = \"m\"\n[data]\ntrain = \"t.jsonl\"\n";
        read(text, &[]).unwrap()
    }

    #[test]
    fn stages_that_not_every_recipe_has_say_what_makes_them_exist() {
        let recipe = plain();
        for stage in STAGES {
            let is_always_there = (stage.wanted)(&recipe);
            assert_eq!(stage.wanted_by.is_none(), is_always_there, "{}", stage.name);
        }
    }

    #[test]
    fn what_a_stage_reads_of_others_is_of_stages_before_it() {
        for (at, stage) in STAGES.iter().enumerate() {
            for input in stage.inputs {
                let Input::Output(path) = input else { continue };
                let of = path.split('/').next().unwrap();
                let is_before = STAGES[..at].iter().any(|stage| stage.name == of);
                assert!(is_before, "{}: {path}", stage.name);
            }
        }
    }

    /// The names of stages in the rows of the table on the page, each with when a recipe has them.
    fn told() -> Vec<(Vec<&'static str>, &'static str)> {
        let page = include_str!("../README.md");
        let (_, table) = page
            .split_once("| stage | when | what it leaves |\n")
            .unwrap();
        let rows = table.lines().skip(1).take_while(|row| row.starts_with('|'));
        let cells = rows.map(|row| {
            let mut cells = row.trim_start_matches("| ").split(" | ");
            (cells.next().unwrap(), cells.next().unwrap())
        });
        let names = |cell: &'static str| cell.split(", ").map(|name| name.trim_matches('`'));
        cells
            .map(|(cell, when)| (names(cell).collect(), when))
            .collect()
    }

    #[test]
    fn the_table_of_stages_on_the_page_has_all_of_them_in_their_order() {
        let mut expected = Vec::new();
        for stage in STAGES {
            expected.push(vec![stage.name]);
            if stage.name == TRAIN {
                let several = RECIPES.iter().flat_map(|kind| kind.stages).copied();
                let mut several: Vec<&str> = several.filter(|name| *name != TRAIN).collect();
                several.sort_unstable();
                several.dedup();
                expected.push(several);
            }
        }
        let told = told();
        let named: Vec<_> = told.iter().map(|(names, _)| names.clone()).collect();
        assert_eq!(named, expected);
        for (names, when) in told {
            let stage = STAGES.iter().find(|stage| names == [stage.name]);
            let is_always_there = stage.is_some_and(|stage| stage.wanted_by.is_none());
            assert_eq!(when == "always", is_always_there, "{names:?}: {when}");
        }
    }

    #[test]
    fn a_stage_that_a_recipe_lacks_is_named_with_what_makes_it_exist() {
        let recipe = plain();
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
