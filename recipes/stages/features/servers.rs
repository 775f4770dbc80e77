//! The servers of a run, before anything is taken from them.

use std::time::Duration;

use anyhow::Result;
use spectrain_data::tokens::TokenShards;
use spectrain_eval::evenly;
use spectrain_models::{Capture, TargetParts};

use crate::runtime::capture::in_order::Asking;
use crate::runtime::capture::servers::{PROVEN, Servers};
use crate::runtime::prompts::distinct_tokens;
use crate::runtime::server::waiting::Waiting;
use crate::stages::context::StageContext;
use crate::stages::prepare;

/// Prompts that the target answers, for drafters to be judged by, each once; and how many were left out because they repeat others.
pub fn held_out_prompts(context: &StageContext) -> Result<(Vec<Vec<u32>>, usize)> {
    let recipe = context.recipe;
    let count = recipe.evaluate.of_eval().max(recipe.train.decode_prompts);
    let (prompts, repeated) = distinct_tokens(prepare::prompts(context.run)?);
    Ok((evenly(prompts, count), repeated))
}

/// Finds the servers of the recipe, and proves each by samples of the first of `sets`, once it is known that they take the samples
/// of all and the answers to held-out prompts. So many `ranks` ask them at the same time.
///
/// # Errors
/// Those of [`Servers`].
pub fn open(
    context: &StageContext,
    ranks: usize,
    layers: Capture,
    target: TargetParts,
    sets: [&TokenShards; 2],
) -> Result<Servers> {
    let recipe = context.recipe;
    let asking = Asking {
        ranks,
        waiting: Waiting {
            longest: Duration::from_secs(recipe.features.wait),
            key: "features.wait",
            output: context.output,
        },
    };
    let mut servers = Servers::connect(&recipe.target, &recipe.features, layers, target, asking)?;
    // The server generates one token more.
    let samples = sets.iter().flat_map(|set| set.lengths());
    let samples: Vec<_> = samples.map(|length| length + 1).collect();
    servers.check_lengths(&samples, ("samples", "set `data.max_length`"))?;
    let answer = recipe.evaluate.max_new_tokens;
    let (prompts, _) = held_out_prompts(context)?;
    let prompts: Vec<_> = prompts.iter().map(|prompt| prompt.len() + answer).collect();
    let what = "held-out prompts with their answers";
    servers.check_lengths(&prompts, (what, "set `evaluate.max_new_tokens`"))?;
    // A part of an array job has the tokens of its own samples alone.
    let proven = sets[0].iter().map(|sample| sample.tokens.to_vec());
    let proven = proven.filter(|tokens| !tokens.is_empty()).take(PROVEN);
    servers.prove(&proven.collect::<Vec<_>>(), context.output)?;
    Ok(servers)
}
