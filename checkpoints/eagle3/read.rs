//! Reading an EAGLE-3 folder, ours or a published one.

use std::path::Path;

use super::{Eagle3Layout, NORMS, check_norms, config, optional, required, vocabulary};
use crate::expected::{Expected, check_tensors, specs};
use crate::folder::{ModelFolder, WEIGHTS};
use crate::names::{read_named, stored_names, unwrapped};
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result};

/// The first layer's name in some published folders, and here.
const PREFIXES: (&str, &str) = ("layers.0.", "midlayer.");
/// The target's, and frequencies that older versions of transformers saved with every attention.
const REPEATED: [&str; 4] = [
    "verifier_norm.weight",
    "verifier_lm_head.weight",
    "midlayer.self_attn.rotary_emb.inv_freq",
    "rotary_emb.inv_freq",
];

/// How a folder is to be understood where it may mean more than one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Layers of the target, for folders that name no captured layers and mean the default ones.
    pub target_layers: Option<usize>,
    /// Tokens of the target, for DFlash folders that do not say how many they are.
    pub target_vocab: Option<usize>,
    /// The captured layers, whatever the folder says.
    pub captured_layers: Option<Vec<usize>>,
    /// Whether `d2t` holds the target's ids, and not offsets.
    pub absolute_ids: bool,
    /// Whether the residual starts behind the norm of the features, for folders that do not say so.
    pub norm_before_residual: bool,
}

/// Reads a drafter and checks it: every tensor known, of its shape, and none missing. Names are those of [`required`],
/// floats keep the type they are stored in, and `d2t` becomes 64-bit. `t2d` and `embed_tokens.weight` may be absent.
///
/// A folder that names no captured layers is refused, as the default ones depend on the target: see [`read_for_target`].
pub fn read(dir: &Path) -> Result<(Eagle3Layout, Vec<NamedTensor>)> {
    read_as(dir, &Reading::default())
}

/// Like [`read`], for a target of `target_layers` layers: a folder that names no captured layers means the default ones.
pub fn read_for_target(
    dir: &Path,
    target_layers: usize,
) -> Result<(Eagle3Layout, Vec<NamedTensor>)> {
    let reading = Reading {
        target_layers: Some(target_layers),
        ..Reading::default()
    };
    read_as(dir, &reading)
}

/// Like [`read`], with what the folder does not say given.
pub fn read_as(dir: &Path, reading: &Reading) -> Result<(Eagle3Layout, Vec<NamedTensor>)> {
    let folder = ModelFolder::open(dir)?;
    let mut names = stored_names(&folder, canonical)?;
    names.retain(|name, _| !REPEATED.contains(&name.as_str()));
    let dtype = match names.get("fc.weight") {
        Some(stored) => folder.info(stored)?.dtype,
        None => DType::BF16,
    };
    let shared_head = !names.contains_key("lm_head.weight");
    let layout = config::from_json(&folder, reading, shared_head, dtype)?;
    check_head(&folder, &layout)?;
    let file = dir.join(WEIGHTS);
    let mut tensors = Vec::new();
    for tensor in read_named(&folder, &names)? {
        tensors.push(widen(tensor)?);
    }
    complete_norms(&mut tensors, &layout);
    if !layout.has_draft_vocab() {
        vocabulary::drop_identity(&mut tensors)?;
    }
    check_tensors(&file, &specs(&tensors), &expected(&layout), same_kind)?;
    if reading.absolute_ids {
        vocabulary::make_offsets(&mut tensors)?;
    }
    check_norms(&file, &tensors, &layout)?;
    vocabulary::check(&file, &tensors, &layout)?;
    Ok((layout, tensors))
}

/// Without a head of its own a drafter speaks the target's vocabulary. Engines do not notice when it does not.
fn check_head(folder: &ModelFolder, layout: &Eagle3Layout) -> Result<()> {
    if !layout.shared_head || !layout.has_draft_vocab() {
        return Ok(());
    }
    Err(Error::NoTensor {
        name: "lm_head.weight".to_string(),
        path: folder.path().to_path_buf(),
    })
}

/// The name of [`required`] for a stored one.
pub(super) fn canonical(stored: &str) -> String {
    let name = unwrapped(stored);
    match name.strip_prefix(PREFIXES.0) {
        Some(rest) => format!("{}{rest}", PREFIXES.1),
        None => name.to_string(),
    }
}

/// Layers behind the first that have one of the two norms get the other.
fn complete_norms(tensors: &mut Vec<NamedTensor>, layout: &Eagle3Layout) {
    for layer in 1..layout.layers {
        let names = NORMS.map(|norm| format!("layers.{layer}.{norm}.weight"));
        let found = names
            .each_ref()
            .map(|name| tensors.iter().find(|tensor| tensor.name == *name));
        let (given, missing) = match found {
            [Some(given), None] => (given.clone(), &names[1]),
            [None, Some(given)] => (given.clone(), &names[0]),
            _ => continue,
        };
        tensors.push(NamedTensor {
            name: missing.clone(),
            ..given
        });
    }
}

/// What [`required`] and [`optional`] ask for, but that `t2d`, which no engine reads, may be absent.
fn expected(layout: &Eagle3Layout) -> Expected {
    let (t2d, required): (Vec<_>, Vec<_>) = required(layout)
        .into_iter()
        .partition(|(name, ..)| name == "t2d");
    let mut optional = optional(layout);
    optional.extend(t2d);
    Expected { required, optional }
}

/// Whether a stored type holds the values asked for, in whatever width.
fn same_kind(got: DType, asked: DType) -> bool {
    match asked {
        DType::I64 => matches!(got, DType::I64 | DType::I32),
        DType::Bool => got == DType::Bool,
        _ => got.is_float(),
    }
}

/// `d2t` in 64 bits, whichever width it is stored in.
fn widen(tensor: NamedTensor) -> Result<NamedTensor> {
    if tensor.dtype != DType::I32 {
        return Ok(tensor);
    }
    let values = tensor.to_i64()?;
    Ok(NamedTensor::from_i64(tensor.name, tensor.shape, values))
}
