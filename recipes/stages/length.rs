//! How long a stage trains, and on what.

use std::sync::Arc;

use anyhow::Result;
use spectrain_data::seed::mix;
use spectrain_data::tokens::TokenShards;
use spectrain_train::Samples;

use crate::runs::stage_names;
use crate::stages::context::StageContext;

/// What is prepared to train on.
pub(super) fn tokens(context: &StageContext) -> Result<Arc<TokenShards>> {
    let folder = context.folder(stage_names::PREPARE).join("train");
    Ok(Arc::new(TokenShards::open(folder)?))
}

/// The samples of `tokens` in the order in which a stage trains on them.
pub(super) fn samples(context: &StageContext, stage: &str, tokens: Arc<TokenShards>) -> Samples {
    let recipe = context.recipe;
    let row_length = recipe.data.max_length;
    let rows = recipe.training(stage).batch_tokens / row_length;
    let mut stages = recipe.method.stages().iter();
    // Another order and other draws than in the stages before.
    let seed = match stages.position(|&name| name == stage) {
        None | Some(0) => recipe.seed,
        Some(place) => mix(recipe.seed, place as u64),
    };
    Samples::new(tokens, row_length, rows, seed)
}

/// The step at which a stage ends: the number that is set, or as many as its epochs come to on what is prepared.
pub(super) fn end(context: &StageContext, stage: &str) -> Result<u64> {
    let training = context.recipe.training(stage);
    let steps = match training.epochs {
        None => training.steps,
        Some(_) => {
            let samples = samples(context, stage, tokens(context)?);
            training.with_steps(&samples)?.steps
        }
    };
    Ok(steps as u64)
}
