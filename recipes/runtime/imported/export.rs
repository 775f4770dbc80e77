//! Stored features in the layout of speculators, so that others can train on them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::*;
use burn::tensor::DType as BurnType;
use serde_json::{Value, json};
use spectrain_checkpoints::atomic::{replace_dir, start_dir};
use spectrain_checkpoints::{DType, NamedTensor, write_safetensors};
use spectrain_data::features::{FeatureShards, StoredSample};
use spectrain_data::foreign::{LAST_NORMED, LAYERS, RowsWriter};
use spectrain_models::{TargetParts, load_parts};

use super::readings::without_weight;
use crate::progress::{Output, counted};
use crate::runs::files::write_json;
use crate::runs::hashes::prove_files;
use crate::runtime::bf16::{bits_of, tensor_of};
use crate::runtime::interruption::check_interrupted;
use crate::runtime::target;

/// Where the states are in the folder of the rows.
const STATES: &str = "hidden_states";

/// What is exported.
pub struct Export<'a> {
    /// The folder of stored features.
    pub from: &'a Path,
    /// The folder to write.
    pub out: &'a Path,
    /// The target's folder.
    pub target: &'a Path,
    /// Where the norm is undone.
    pub device: Device,
    /// Where progress goes.
    pub output: Output,
}

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Samples.
    pub samples: usize,
    /// Samples whose last token has no state, and was left out.
    pub cut: usize,
    /// Ids of the slots, as vLLM and speculators count layers.
    pub layer_ids: Vec<usize>,
}

/// Exports features.
///
/// # Errors
/// They cannot be read or written, or are of another target.
pub fn export(wanted: &Export) -> Result<Exported> {
    if wanted.out.exists() {
        bail!(
            "`{}` exists already; choose another `--out`",
            wanted.out.display()
        );
    }
    let shards = FeatureShards::open_with(wanted.from, prove_files)?;
    let header = shards.header().clone();
    let sha256 = target::sha256(wanted.target)?;
    if header.target_sha256 != sha256 {
        bail!(
            "`{}`: the features are of other weights than those in `{}`: expected the SHA-256 {}, found {sha256}",
            wanted.from.display(),
            wanted.target.display(),
            header.target_sha256
        );
    }
    let target = load_parts(wanted.target, &wanted.device, DType::F32)?;
    let ids = header.captured_layers.iter().map(|layer| layer + 1);
    let layer_ids: Vec<usize> = ids.chain([target.spec.layers]).collect();
    let partial = start_dir(wanted.out)?;
    let states = partial.join(STATES);
    fs::create_dir_all(&states).with_context(|| format!("cannot create `{}`", states.display()))?;
    let mut rows = RowsWriter::create(&partial)?;
    let mut progress = wanted.output.start("export", shards.len() as u64);
    let mut cut = 0;
    for number in 0..shards.len() {
        check_interrupted()?;
        let stored = shards.get(number);
        let (captured, last) = (stored.captured.bits(), stored.last.bits());
        let sample = with_states(&stored, (&captured, &last), header.d_model);
        cut += usize::from(sample.tokens.len() < stored.tokens.len());
        if sample.tokens.is_empty() {
            bail!("sample {number}: expected a token with a state, found none");
        }
        let tensors = tensors(&sample, &target, layer_ids.len());
        let path = states.join(format!("hs_{number}.safetensors"));
        write_safetensors(&path, &tensors, &BTreeMap::new())?;
        rows.push(sample.tokens, sample.loss_mask)?;
        progress.set(number as u64 + 1, "samples");
    }
    rows.finish()?;
    write_json(&partial.join(LAYERS), &described(&layer_ids, &sha256))?;
    replace_dir(&partial, wanted.out)?;
    progress.finish(counted(shards.len() as u64, "sample"));
    Ok(Exported {
        samples: shards.len(),
        cut,
        layer_ids,
    })
}

fn described(layer_ids: &[usize], sha256: &str) -> Value {
    json!({
        "layer_ids": layer_ids,
        "target_sha256": sha256,
        "spectrain": env!("CARGO_PKG_VERSION"),
    })
}

/// A sample as it is exported, its states as bits of bf16.
struct Sample<'a> {
    tokens: &'a [u32],
    loss_mask: &'a [u8],
    captured: &'a [u16],
    last: &'a [u16],
}

/// A sample without a last token that has no state: an answer's, behind which nothing is drafted.
fn with_states<'a>(
    stored: &StoredSample<'a>,
    (captured, last): (&'a [u16], &'a [u16]),
    d_model: usize,
) -> Sample<'a> {
    let before = last.len().saturating_sub(d_model);
    let is_empty = last[before..].iter().all(|bits| bits & 0x7fff == 0);
    let tokens = stored.tokens.len() - usize::from(is_empty && !last.is_empty());
    let width = captured.len() / stored.tokens.len().max(1);
    Sample {
        tokens: &stored.tokens[..tokens],
        loss_mask: &stored.loss_mask[..tokens],
        captured: &captured[..tokens * width],
        last: &last[..tokens * d_model],
    }
}

/// A sample as the connector writes it, and the last state as it is stored beside: the norm is not undone to the last bit.
fn tensors(sample: &Sample, target: &TargetParts, slots: usize) -> Vec<NamedTensor> {
    let (tokens, d_model) = (sample.tokens.len(), target.spec.d_model);
    let before = before_norm(sample.last, target);
    let width = (slots - 1) * d_model;
    let rows = (0..tokens).flat_map(|row| {
        let captured = &sample.captured[row * width..(row + 1) * width];
        let last = &before[row * d_model..(row + 1) * d_model];
        captured.iter().chain(last)
    });
    let ids = sample.tokens.iter().map(|&token| token.into()).collect();
    vec![
        bf16("hidden_states", [tokens, slots, d_model].into(), rows),
        bf16(LAST_NORMED, [tokens, d_model].into(), sample.last.iter()),
        NamedTensor::from_i64("token_ids", [tokens], ids),
    ]
}

fn bf16<'a>(name: &str, shape: Vec<usize>, bits: impl Iterator<Item = &'a u16>) -> NamedTensor {
    NamedTensor {
        name: name.into(),
        shape,
        dtype: DType::BF16,
        bytes: bits.flat_map(|bits| bits.to_le_bytes()).collect(),
    }
}

/// A state that the norm turns into `last`: how long states are makes no difference to it, so only its weight is undone.
fn before_norm(last: &[u16], target: &TargetParts) -> Vec<u16> {
    let d_model = target.spec.d_model;
    let device = target.norm.weight.val().device();
    let last = tensor_of(last, [last.len() / d_model, d_model], &device);
    bits_of(without_weight(last.cast(BurnType::F32), target))
}
