//! Reading an EAGLE-3 folder, ours or a published one.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Eagle3Layout, config, optional, required, vocabulary};
use crate::expected::{Expected, check_tensors};
use crate::folder::{ModelFolder, WEIGHTS};
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result};

/// The layer's name in some published folders, and here.
const PREFIXES: (&str, &str) = ("layers.0.", "midlayer.");

/// Reads a drafter and checks it: every tensor known, of its shape, and none missing. Names are those of [`required`],
/// floats keep the type they are stored in, and `d2t` becomes 64-bit. `t2d` and `embed_tokens.weight` may be absent.
///
/// A folder that names no captured layers is refused, as the default ones depend on the target: see [`read_for_target`].
pub fn read(dir: &Path) -> Result<(Eagle3Layout, Vec<NamedTensor>)> {
    read_folder(dir, None)
}

/// Like [`read`], for a target of `target_layers` layers: a folder that names no captured layers means the default ones.
pub fn read_for_target(
    dir: &Path,
    target_layers: usize,
) -> Result<(Eagle3Layout, Vec<NamedTensor>)> {
    read_folder(dir, Some(target_layers))
}

fn read_folder(
    dir: &Path,
    target_layers: Option<usize>,
) -> Result<(Eagle3Layout, Vec<NamedTensor>)> {
    let folder = ModelFolder::open(dir)?;
    let dtype = folder
        .info("fc.weight")
        .map_or(DType::BF16, |info| info.dtype);
    let layout = config::from_json(&folder, target_layers, dtype)?;
    check_head(&folder, &layout)?;
    let stored_names = canonical_names(&folder)?;
    let file = dir.join(WEIGHTS);
    let mut present = Vec::new();
    for (name, stored) in &stored_names {
        let info = folder.info(stored)?;
        present.push((name.clone(), info.shape.clone(), info.dtype));
    }
    check_tensors(&file, &present, &expected(&layout), same_kind)?;
    let mut tensors = Vec::new();
    for (name, stored) in stored_names {
        let tensor = NamedTensor {
            name,
            ..folder.read(&stored)?
        };
        tensors.push(widen(tensor)?);
    }
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

/// The stored name of each tensor by its canonical one.
fn canonical_names(folder: &ModelFolder) -> Result<BTreeMap<String, String>> {
    let mut names = BTreeMap::new();
    for info in folder.tensors() {
        let name = match info.name.strip_prefix(PREFIXES.0) {
            Some(rest) => format!("{}{rest}", PREFIXES.1),
            None => info.name.clone(),
        };
        if let Some(first) = names.insert(name.clone(), info.name.clone()) {
            let reason = format!(
                "holds one tensor under two names, `{first}` and `{}`",
                info.name
            );
            return Err(Error::Folder {
                path: info.file.clone(),
                reason,
            });
        }
    }
    Ok(names)
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
