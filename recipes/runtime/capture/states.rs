//! The hidden states of one request, as the file of a server has them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use burn::prelude::*;
use spectrain_checkpoints::folder::{parse_safetensors, read_safetensors};
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::regenerate::Failure;
use spectrain_models::weights::tensor_from;

use crate::runtime::server::client::{lasting, passing};

/// Bytes of a file beside its tensors, at most.
const HEADER: u64 = 1 << 20;

/// The contents of a file of hidden states.
#[derive(Debug, Clone)]
pub struct HiddenStates {
    /// The tokens that it has states of.
    pub tokens: Vec<u32>,
    /// `[tokens, slots, d_model]`, in the engine's type.
    pub states: NamedTensor,
}

/// One slot of states `[tokens, slots, d_model]`: `[tokens, d_model]`, f32. Only they go to the device.
///
/// # Panics
/// There are not as many slots.
pub fn slot(states: &NamedTensor, slot: usize, device: &Device) -> Tensor<2> {
    let [tokens, slots, d_model] = [0, 1, 2].map(|axis| states.shape[axis]);
    assert!(slot < slots, "slot {slot} of {slots}");
    let of_slot = states.bytes.chunks(d_model * states.dtype.size());
    let states = NamedTensor {
        name: states.name.clone(),
        dtype: states.dtype,
        shape: vec![tokens, d_model],
        bytes: of_slot
            .skip(slot)
            .step_by(slots)
            .flatten()
            .copied()
            .collect(),
    };
    tensor_from::<2>(states, device).cast(burn::tensor::DType::F32)
}

/// Reads a file. It may have the states of so many tokens, so many of each, and numbers in each.
///
/// # Errors
/// It was not written whole, which another request may not meet, or it holds something else.
pub fn read(path: &Path, sizes: [usize; 3]) -> std::result::Result<HiddenStates, Failure> {
    check_length(path, sizes).map_err(|error| lasting(&error))?;
    let tensors = read_safetensors(path).map_err(in_part)?;
    states_in(tensors, path, sizes).map_err(|error| lasting(&error))
}

/// The same of a file's bytes, which errors call `name`.
///
/// # Errors
/// As of [`read`].
pub fn parse(
    bytes: Vec<u8>,
    name: &Path,
    sizes: [usize; 3],
) -> std::result::Result<HiddenStates, Failure> {
    let tensors = parse_safetensors(bytes, name).map_err(in_part)?;
    states_in(tensors, name, sizes).map_err(|error| lasting(&error))
}

/// A writer that fails leaves what it has written by then.
fn in_part(error: spectrain_checkpoints::Error) -> Failure {
    passing(format!(
        "{error}: the server did not write it whole; its folder may be full"
    ))
}

/// Bytes of a file of these sizes, at most.
pub fn most_bytes([tokens, slots, d_model]: [usize; 3]) -> u64 {
    (tokens as u64).saturating_mul(slots as u64 * d_model as u64 * 4 + 8) + HEADER
}

/// Fails where a file is longer than one of these sizes can be.
fn check_length(path: &Path, sizes: [usize; 3]) -> Result<()> {
    let named = || format!("`{}`", path.display());
    let (most, bytes) = (
        most_bytes(sizes),
        fs::metadata(path).with_context(named)?.len(),
    );
    if bytes > most {
        bail!(
            "{}: expected at most {most} bytes for {} tokens, found {bytes}",
            named(),
            sizes[0]
        );
    }
    Ok(())
}

fn states_in(
    mut tensors: Vec<NamedTensor>,
    path: &Path,
    [_, slots, d_model]: [usize; 3],
) -> Result<HiddenStates> {
    let named = || format!("`{}`", path.display());
    let mut take = |name: &str| {
        let place = tensors.iter().position(|tensor| tensor.name == name);
        let found = place.map(|place| tensors.swap_remove(place));
        found.with_context(|| format!("{}: expected a tensor `{name}`, found none", named()))
    };
    let (states, tokens) = (take("hidden_states")?, take("token_ids")?);
    let tokens: Option<Vec<u32>> = tokens
        .to_i64()
        .with_context(named)?
        .into_iter()
        .map(|token| token.try_into().ok())
        .collect();
    let tokens = tokens
        .with_context(|| format!("{}: `token_ids`: expected whole numbers from 0 on", named()))?;
    let expected = [tokens.len(), slots, d_model];
    if states.shape != expected {
        bail!(
            "{}: `hidden_states`: expected the shape {expected:?} of tokens, layers asked for and `hidden_size`, found {:?}",
            named(),
            states.shape
        );
    }
    if ![DType::BF16, DType::F16, DType::F32].contains(&states.dtype) {
        bail!(
            "{}: `hidden_states`: expected numbers of 16 or 32 bits, found {:?}",
            named(),
            states.dtype
        );
    }
    Ok(HiddenStates { tokens, states })
}
