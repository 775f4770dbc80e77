//! The target's hidden states over the samples to train on, computed once and written to the disk.

use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use spectrain_checkpoints::ModelFolder;
use spectrain_data::features::{FeatureWriter, StoredSample};
use spectrain_data::packing::PackedBatch;
use spectrain_models::{Capture, Target as _, Transformer, load_target};
use spectrain_train::{Batch, Rows};

use self::header::header;
use self::known::Known;
use crate::families::drafter_folder::check_unheld;
use crate::progress::counted;
use crate::recipe::tables::FeatureMode;
use crate::runs::stage_names;
use crate::runtime::bf16::bits_of;
use crate::runtime::device::is_gpu;
use crate::runtime::interruption::check_interrupted;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::self_check::{SelfCheck, Shape};

pub mod answers;
pub mod capturing;
pub mod header;
pub mod imported;
mod known;
pub mod masks;
pub mod places;
pub mod served;
pub mod servers;
pub mod streamed;

/// Runs the stage. What an interrupted one has written is kept.
pub fn run(context: &StageContext) -> Result<Value> {
    match context.recipe.features.mode {
        FeatureMode::Served | FeatureMode::Streamed => return served::run(context),
        FeatureMode::Imported => return imported::run(context),
        FeatureMode::Live | FeatureMode::Stored => {}
    }
    let _precision = context.target_type.precision.scope();
    computed(context)
}

/// Those of the target here.
fn computed(context: &StageContext) -> Result<Value> {
    let recipe = context.recipe;
    let tokens = context.samples_to_capture("train")?;
    check_unheld(recipe.method.unheld(), &tokens)?;
    let folder = context.target_folder()?;
    let capture = recipe.method.capture(&target::spec(&folder)?)?;
    let target = load_target(
        &ModelFolder::open(&folder)?,
        &context.device,
        context.target_type,
    )?;
    let d_model = target.spec().d_model;
    let longest = recipe.data.max_length;
    let folder = context.features_folder();
    let header = header(context, &folder, &capture, tokens.fingerprint(), d_model)?;
    let lengths = tokens.lengths();
    let share = context.array.share(lengths.len());
    if share.is_empty() {
        return Ok(json!({"samples": 0}));
    }
    let (from, texts) = (&recipe.features.from, context.texts(&tokens));
    let known = Known::open(context, from, &header, texts).context("`features.from`")?;
    let lengths = &lengths[..share.end as usize];
    let mut writer = context.feature_writer(&folder, header, share)?;
    let shape = Shape::of_batch(&recipe.train, longest);
    let rows = shape.rows;
    if is_gpu(&context.device_name) {
        SelfCheck::new(context, &target, &capture, shape)?.target()?;
    }
    let resumed = writer.next_sample() as usize;
    let started = Instant::now();
    let mut progress = context.progress(stage_names::FEATURES, lengths.len() as u64);
    let missing = writer.missing(share.end).into_iter().flatten();
    let done: usize = missing.map(|sample| lengths[sample as usize]).sum();
    let mut taken = 0;
    // What is lost between shards that are there comes first, and these stay.
    while let Some(missing) = writer.missing(share.end).first() {
        let (next, lengths) = (missing.start as usize, &lengths[..missing.end as usize]);
        if let Err(interrupted) = check_interrupted() {
            context.pause_features(writer, &folder)?;
            return Err(interrupted);
        }
        let sample = tokens.get(next);
        if let Some(found) = known.of(sample.tokens) {
            writer.push(&found.sample(sample.tokens, sample.loss_mask))?;
            taken += 1;
            continue;
        }
        let is_known = |sample: usize| known.has(tokens.get(sample).tokens);
        let packed = in_order(lengths, next, [longest, rows], &is_known);
        let rows = Rows::new(packed, &tokens, lengths, longest);
        write(&mut writer, &target, &capture, rows, lengths)?;
        progress.set(writer.next_sample(), "samples");
    }
    context.finish_features(writer, &folder)?;
    progress.finish(counted(share.end - share.first, "sample"));
    Ok(json!({
        "samples": share.end - share.first,
        "resumed_at": resumed,
        "known": taken,
        "tokens_per_second": done as f64 / started.elapsed().as_secs_f64().max(1e-9),
    }))
}

/// Rows filled with the samples from `first` on, one after the other, up to a later one that is known.
fn in_order(
    lengths: &[usize],
    first: usize,
    [row_length, rows]: [usize; 2],
    is_known: &dyn Fn(usize) -> bool,
) -> PackedBatch {
    let mut packed = vec![Vec::new()];
    let mut filled = 0;
    for (sample, &length) in lengths.iter().enumerate().skip(first) {
        if sample > first && is_known(sample) {
            break;
        }
        if filled + length > row_length {
            if packed.len() == rows {
                break;
            }
            packed.push(Vec::new());
            filled = 0;
        }
        filled += length;
        if let Some(row) = packed.last_mut() {
            row.push(sample);
        }
    }
    PackedBatch { rows: packed }
}

fn write(
    writer: &mut FeatureWriter,
    target: &Transformer,
    capture: &Capture,
    rows: Rows,
    lengths: &[usize],
) -> Result<()> {
    let device = &target.device();
    let batch = Batch::new(rows, device);
    let features = target.features(batch.tokens.clone(), &batch.layout, capture);
    let widths = [features.captured.dims()[2], features.last.dims()[2]];
    let captured = bits_of(features.captured);
    let last = bits_of(features.last);
    let rows = &batch.rows;
    for row in 0..rows.layout.rows {
        let mut start = row * rows.layout.row_length;
        for &sample in &rows.packed.rows[row] {
            let end = start + lengths[sample];
            let loss_mask: Vec<u8> = rows.loss_mask[start..end]
                .iter()
                .map(|&bit| bit.into())
                .collect();
            writer.push(&StoredSample {
                tokens: &rows.tokens[start..end],
                loss_mask: &loss_mask,
                captured: captured[start * widths[0]..end * widths[0]].into(),
                last: last[start * widths[1]..end * widths[1]].into(),
            })?;
            start = end;
        }
    }
    Ok(())
}
