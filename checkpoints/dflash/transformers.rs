//! A DFlash drafter as `transformers` has it: under the name of the first model that came with one. Any target decodes with it,
//! `generate(assistant_model=..., speculation_type="dflash")`.

use std::path::Path;

use serde_json::{Value, json};

use super::parts::Family;
use super::{DFlashLayout, Keys, required, to_json};
use crate::expected::{Expected, TensorSpec};
use crate::tensors::NamedTensor;
use crate::{Error, Result, checked};

const ARCHITECTURE: &str = "MuseGlimmerAssistantModel";
const MODEL_TYPE: &str = "muse_glimmer_assistant";
/// What the two layouts call differently: here, and in the authors' layout.
const RENAMED: [[&str; 2]; 2] = [
    ["encoder.fc.weight", "fc.weight"],
    ["encoder.output_norm_enc.weight", "hidden_norm.weight"],
];

pub(super) const KEYS: Keys = Keys {
    layer_ids: &["target_layer_ids", "dflash_config.target_layer_ids"],
    first_id: 0,
    mask_token: &["mask_token_id", "dflash_config.mask_token_id"],
    parts: "dflash_config.",
    rms_norm_eps: 1e-5,
    rope_theta: Some(500_000.0),
    window: Some(2048),
    window_less: 1,
};

/// Whether a `config.json` is of this layout.
pub(super) fn recognises(config: &Value) -> bool {
    config["model_type"] == MODEL_TYPE
}

/// The name of [`required`] for one of this layout.
pub(super) fn canonical(stored: &str) -> String {
    let renamed = RENAMED.iter().find(|[here, _]| *here == stored);
    renamed.map_or(stored, |[_, there]| there).to_owned()
}

fn stored(name: &str) -> String {
    let renamed = RENAMED.iter().find(|[_, there]| *there == name);
    renamed.map_or(name, |[here, _]| here).to_owned()
}

/// Writes a drafter's folder, whole or not at all. Tensors have the names and types of [`required`].
pub fn write(
    dir: &Path,
    layout: &DFlashLayout,
    tensors: &[NamedTensor],
    provenance: &Value,
) -> Result<()> {
    check_plain(layout, "DFlash for Transformers")?;
    let mut config = to_json(layout);
    if layout.window > 0 {
        config["sliding_window"] = json!(layout.window - KEYS.window_less);
    }
    config["architectures"] = json!([ARCHITECTURE]);
    config["model_type"] = json!(MODEL_TYPE);
    config["target_layer_ids"] = config["dflash_config"]["target_layer_ids"].clone();
    config["mask_token_id"] = config["dflash_config"]["mask_token_id"].clone();
    // The library's default is a token that only the first such model had.
    config["pad_token_id"] = Value::Null;
    if layout.window == 0 {
        config["layer_types"] = json!(vec!["full_attention"; layout.layers]);
    }
    let renamed = |(name, shape, dtype): TensorSpec| (stored(&name), shape, dtype);
    let expected = Expected {
        required: required(layout).into_iter().map(renamed).collect(),
        optional: Vec::new(),
    };
    let named = |tensor: &NamedTensor| NamedTensor {
        name: stored(&tensor.name),
        ..tensor.clone()
    };
    let tensors: Vec<NamedTensor> = tensors.iter().map(named).collect();
    checked::write(dir, &config, &tensors, &expected, |_| Ok(()), provenance)
}

/// Fails for a drafter with parts that this dialect has no keys for.
fn check_plain(layout: &DFlashLayout, dialect: &'static str) -> Result<()> {
    match layout.parts.family() {
        Family::DFlash if !layout.causal => Ok(()),
        Family::DFlash if layout.causal => Err(Error::Layout {
            dialect,
            field: "causal",
            expected: "false, as the library's blocks always are".to_string(),
            got: "true".to_string(),
        }),
        other => Err(Error::Layout {
            dialect,
            field: "parts",
            expected: "those of a plain DFlash drafter".to_string(),
            got: format!("those of `{}`", other.architecture()),
        }),
    }
}
