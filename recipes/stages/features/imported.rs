//! Features that others captured and `spectrain features import` has proven, of the samples that a run trains on and is judged by.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use spectrain_data::features::FeatureHeader;
use spectrain_data::tokens::TokenShards;

use crate::cli::progress::counted;
use crate::errors::Misuse;
use crate::runtime::interruption::check_interrupted;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::features::header::header;
use crate::stages::features::known::Known;
use crate::stages::features::places::{HELD_OUT, answers_at};

/// Runs the stage `features`.
pub(super) fn run(context: &StageContext) -> Result<Value> {
    let stage = context.features_folder();
    let prepared = context.folder("prepare");
    let train = TokenShards::open(prepared.join("train"))?;
    let held_out = TokenShards::open(prepared.join("eval"))?;
    write(context, &stage, ("features", "data.train"), &train)?;
    write(
        context,
        &stage.join(HELD_OUT),
        ("held out", "data.eval"),
        &held_out,
    )?;
    Ok(json!({"samples": train.len(), "held_out": held_out.len()}))
}

/// Runs the stage `answers`: held-out texts are what drafters are judged by, at every temperature.
pub(super) fn answers(context: &StageContext) -> Result<Value> {
    let held_out = TokenShards::open(context.folder("prepare").join("eval"))?;
    for sampling in context.recipe.evaluate.samplings() {
        let folder = answers_at(context, sampling.temperature);
        let what = format!("answers at T={}", sampling.temperature);
        write(context, &folder, (&what, "data.eval"), &held_out)?;
    }
    Ok(json!({"texts": held_out.len()}))
}

/// Writes the features of `tokens`, from where an earlier run stopped.
fn write(
    context: &StageContext,
    folder: &Path,
    (what, key): (&str, &str),
    tokens: &TokenShards,
) -> Result<()> {
    let header = wanted(context, tokens)?;
    let known = known(context, &header)?;
    let share = context.array.share(tokens.len());
    if share.is_empty() {
        return Ok(());
    }
    let mut writer = context.feature_writer(folder, header, share)?;
    let mut progress = context.progress(what, share.end);
    for number in writer.next_sample() as usize..share.end as usize {
        if let Err(interrupted) = check_interrupted() {
            writer.pause()?;
            return Err(interrupted);
        }
        let sample = tokens.get(number);
        let Some(found) = known.of(sample.tokens) else {
            bail!(
                "sample {number} of `{key}`: expected one of the imported texts, found other tokens; the imported texts are \
                 in `tokens.jsonl` beside their features"
            );
        };
        writer.push(&found.sample(sample.tokens, sample.loss_mask))?;
        progress.set(1 + number as u64, "samples");
    }
    context.finish_features(writer, folder)?;
    progress.finish(counted(share.end - share.first, "sample"));
    Ok(())
}

/// What features of `tokens` must be of.
fn wanted(context: &StageContext, tokens: &TokenShards) -> Result<FeatureHeader> {
    let spec = target::spec(&context.target_folder()?)?;
    let capture = context.recipe.method.capture(&spec)?;
    header(context, &capture, tokens.fingerprint(), spec.d_model)
}

/// The imported features.
fn known(context: &StageContext, wanted: &FeatureHeader) -> Result<Known> {
    let Some(folder) = &context.recipe.features.imported else {
        let message =
            "`features.imported` is missing: the folder that `spectrain features import` wrote";
        return Err(Misuse(message.into()).into());
    };
    let (target, longest) = (context.target_folder()?, context.recipe.data.max_length);
    Known::open(std::slice::from_ref(folder), wanted, &target, longest)
}
