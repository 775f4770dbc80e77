//! Hidden states that servers of the target hand out, written to the disk: of the samples to train on, unless they are streamed,
//! and of held-out ones for the loss of validations.

use anyhow::Result;
use serde_json::{Value, json};
use spectrain_data::tokens::TokenShards;

use crate::recipe::tables::FeatureMode;
use crate::runs::stage_names;
use crate::runtime::capture::server::Asked;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::features::capturing::{Capturing, Texts};
use crate::stages::features::places::HELD_OUT;

/// Runs the stage.
pub(super) fn run(context: &StageContext) -> Result<Value> {
    for remark in target::remarks(&context.target_folder()?)? {
        context.output.warn(remark);
    }
    let tokens = context.samples_to_capture("train")?;
    let held_out = TokenShards::open(context.folder(stage_names::PREPARE).join("eval"))?;
    let mut capturing = Capturing::open(context, [&tokens, &held_out])?;
    let folder = context.features_folder();
    let mut summary = json!({});
    if context.recipe.features.mode == FeatureMode::Served {
        let [resumed, known] = capturing.write(&folder, samples(stage_names::FEATURES, &tokens))?;
        summary = json!({"samples": tokens.len(), "resumed_at": resumed, "known": known});
    }
    capturing.write(&folder.join(HELD_OUT), samples("held out", &held_out))?;
    summary["tokens_per_second"] = json!(capturing.tokens_per_second());
    summary["servers"] = json!(capturing.told());
    Ok(summary)
}

/// The samples in `tokens`.
fn samples<'a>(what: &str, tokens: &'a TokenShards) -> Texts<'a> {
    let ask = move |sample: usize| Asked {
        tokens: tokens.get(sample).tokens.to_vec(),
        ..Asked::default()
    };
    Texts {
        what: what.into(),
        count: tokens.len(),
        fingerprint: tokens.fingerprint(),
        ask: Box::new(ask),
        mask: Box::new(move |sample, _: &[u32]| tokens.get(sample).loss_mask.to_vec()),
        may_be_known: true,
    }
}
