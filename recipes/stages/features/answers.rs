//! The target's answers to held-out prompts with their features, of servers: what drafters are judged by where the target itself is
//! not here.

use anyhow::Result;
use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_data::seed::mix;
use spectrain_data::tokens::TokenShards;
use spectrain_models::Sampling;

use crate::recipe::tables::FeatureMode;
use crate::runtime::capture::server::{Answering, Asked};
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::features::capturing::{Capturing, Texts};
use crate::stages::features::imported;
use crate::stages::features::places::answers_at;
use crate::stages::features::servers::held_out_prompts;

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    if context.recipe.features.mode == FeatureMode::Imported {
        return imported::answers(context);
    }
    let prepared = context.folder("prepare");
    let sets = ["train", "eval"].map(|set| TokenShards::open(prepared.join(set)));
    let [tokens, held_out] = sets;
    let prompts = held_out_prompts(context)?;
    let stop = target::stop_tokens_in(&context.target_folder()?)?;
    let mut capturing = Capturing::open(context, [&tokens?, &held_out?])?;
    let samplings = context.recipe.evaluate.samplings();
    if !prompts.is_empty() {
        for &sampling in &samplings {
            let texts = answers(context, &prompts, &stop, sampling);
            capturing.write(&answers_at(context, sampling.temperature), texts)?;
        }
    }
    Ok(json!({
        "prompts": prompts.len(),
        "tokens_per_second": capturing.tokens_per_second(),
        "servers": capturing.told(),
    }))
}

/// The answers to `prompts` under this sampling.
fn answers<'a>(
    context: &StageContext,
    prompts: &'a [Vec<u32>],
    stop: &'a [u32],
    sampling: Sampling,
) -> Texts<'a> {
    let table = &context.recipe.evaluate;
    let (max_new_tokens, seed) = (table.max_new_tokens, table.seed);
    let of = json!([prompts, sampling, max_new_tokens, stop, seed]);
    let ask = move |sample: usize| Asked {
        tokens: prompts[sample].clone(),
        answer: Some(Answering {
            max_new_tokens,
            sampling,
            seed: mix(seed, sample as u64),
            stop: stop.to_vec(),
        }),
        log_probabilities: false,
    };
    let mask = move |sample: usize, tokens: &[u32]| {
        let mut mask = vec![0; prompts[sample].len()];
        mask.resize(tokens.len(), 1);
        mask
    };
    Texts {
        what: format!("answers at T={}", sampling.temperature),
        count: prompts.len(),
        fingerprint: sha256_bytes(of.to_string().as_bytes()),
        ask: Box::new(ask),
        mask: Box::new(mask),
        may_be_known: false,
    }
}
