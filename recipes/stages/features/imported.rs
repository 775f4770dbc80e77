//! Features that others captured and `spectrain features import` has proven, of the samples that a run trains on and is judged by.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use spectrain_data::features::FeatureHeader;
use spectrain_data::tokens::TokenShards;

use crate::errors::Misuse;
use crate::progress::counted;
use crate::runs::stage_names;
use crate::runtime::interruption::check_interrupted;
use crate::runtime::target;
use crate::runtime::texts::is_whole;
use crate::stages::context::StageContext;
use crate::stages::features::header::header;
use crate::stages::features::known::Known;
use crate::stages::features::masks::Masks;
use crate::stages::features::places::{HELD_OUT, answers_at};

/// Runs the stage `features`.
pub(super) fn run(context: &StageContext) -> Result<Value> {
    let stage = context.features_folder();
    let train = context.samples_to_capture("train")?;
    let held_out = TokenShards::open(context.folder(stage_names::PREPARE).join("eval"))?;
    let known = known(context, &[&train, &held_out])?;
    let with = (Masks::Prepared, &known);
    let named = (stage_names::FEATURES, "data.train");
    write(context, &stage, named, &train, with)?;
    let named = ("held out", "data.eval");
    write(context, &stage.join(HELD_OUT), named, &held_out, with)?;
    Ok(json!({"samples": train.len(), "held_out": held_out.len()}))
}

/// Runs the stage `answers`: held-out texts are what drafters are judged by, at every temperature.
pub(super) fn answers(context: &StageContext) -> Result<Value> {
    let held_out = TokenShards::open(context.folder(stage_names::PREPARE).join("eval"))?;
    let known = known(context, &[&held_out])?;
    let with = (Masks::of_answers(context.recipe), &known);
    check_told_apart(&held_out, with)?;
    for sampling in context.recipe.evaluate.samplings() {
        let folder = answers_at(context, sampling.temperature);
        let what = format!("answers at T={}", sampling.temperature);
        write(context, &folder, (&what, "data.eval"), &held_out, with)?;
    }
    Ok(json!({"texts": held_out.len()}))
}

/// Writes the features of `tokens`, which are among those that are known, from where an earlier run stopped.
fn write(
    context: &StageContext,
    folder: &Path,
    (what, key): (&str, &str),
    tokens: &TokenShards,
    (masks, known): (Masks, &Known),
) -> Result<()> {
    let share = context.array.share(tokens.len());
    if share.is_empty() {
        return Ok(());
    }
    let header = wanted(context, folder, tokens)?;
    let mut writer = context.feature_writer(folder, header, share)?;
    let mut progress = context.progress(what, share.end);
    for number in writer.missing(share.end).into_iter().flatten() {
        let number = number as usize;
        if let Err(interrupted) = check_interrupted() {
            context.pause_features(writer, folder)?;
            return Err(interrupted);
        }
        let sample = tokens.get(number);
        let Some(found) = known.of(sample.tokens) else {
            bail!(
                "sample {number} of `{key}`: expected one of the imported texts, found other tokens; the imported texts are \
                 in `tokens.jsonl` beside their features"
            );
        };
        let loss_mask = masks.of(sample, known);
        writer.push(&found.sample(sample.tokens, loss_mask))?;
        progress.set(1 + number as u64, "samples");
    }
    context.finish_features(writer, folder)?;
    progress.finish(counted(share.end - share.first, "sample"));
    Ok(())
}

/// Fails where no held-out text tells what the target was asked. Single ones that do not are left out when drafters are judged.
fn check_told_apart(tokens: &TokenShards, (masks, known): (Masks, &Known)) -> Result<()> {
    let mut samples = tokens.iter();
    if tokens.is_empty() || samples.any(|sample| !is_whole(masks.of(sample, known))) {
        return Ok(());
    }
    let import = "of texts without a loss mask `spectrain features import --mask assistant` finds the answers";
    let nothing_tells =
        "so that nothing tells the target's answers in held-out texts from what it was asked";
    match masks {
        Masks::Imported => bail!(
            "`data.mask`: expected `assistant` or `last_turn`, because the loss masks of the imported texts have every token, \
             {nothing_tells}; found `all`; {import}"
        ),
        Masks::Prepared => bail!(
            "the loss masks of held-out texts: expected some that leave out what the target was asked, found every token in all of \
             them, {nothing_tells}; {import}"
        ),
    }
}

/// What features of `tokens` in a folder must be of.
fn wanted(context: &StageContext, folder: &Path, tokens: &TokenShards) -> Result<FeatureHeader> {
    let spec = target::spec(&context.target_folder()?)?;
    let capture = context.recipe.method.capture(&spec)?;
    header(
        context,
        folder,
        &capture,
        tokens.fingerprint(),
        spec.d_model,
    )
}

/// The imported features, of what is captured here of these sets.
fn known(context: &StageContext, sets: &[&TokenShards]) -> Result<Known> {
    let Some(folder) = &context.recipe.features.imported else {
        let message =
            "`features.imported` is missing: the folder that `spectrain features import` wrote";
        return Err(Misuse(message.into()).into());
    };
    // What they must be of beside their texts is the same for all sets.
    let wanted = wanted(context, folder, sets[0])?;
    let texts = sets.iter().flat_map(|tokens| context.texts(tokens));
    Known::open(context, std::slice::from_ref(folder), &wanted, texts)
}
