//! A drafter of DFlash, DFlash 2 or DSpark in the layout of the speculators library, which vLLM serves with the target it
//! names. Layer ids count the layers that have run.

use std::path::Path;

use serde_json::{Value, json};

use super::parts::Family;
use super::{DFlashLayout, DFlashParts, Keys, required, to_json};
use crate::config::Config;
use crate::expected::Expected;
use crate::speculators::{MODEL_TYPE, VERSION, Verifier};
use crate::tensors::NamedTensor;
use crate::{Error, Result, checked};

pub(super) use crate::speculators::LAYER_CONFIG;

/// What the library calls each kind, and the architecture of each.
pub(crate) const KINDS: [[&str; 2]; 3] = [
    ["dflash", "DFlashSpeculator"],
    ["dflash2", "DFlash2DraftModel"],
    ["dspark", "DSparkSpeculator"],
];
const LAYER_IDS: &str = "aux_hidden_state_layer_ids";
/// What the library calls the opposite of a causal block, for sliding layers; vLLM reads it for all.
const NON_CAUSAL: &str = "sliding_window_non_causal";

pub(super) const KEYS: Keys = Keys {
    layer_ids: &[LAYER_IDS],
    first_id: 1,
    mask_token: &["mask_token_id"],
    parts: "",
    rms_norm_eps: super::DEFAULT_EPSILON,
    rope_theta: None,
    window: None,
    window_less: 0,
};

/// Whether a `config.json` is of this layout.
pub(super) fn recognises(config: &Value) -> bool {
    KINDS.iter().any(|[kind, _]| config[MODEL_TYPE] == *kind)
}

/// Whether a place of a block sees only those before it: sliding layers are so unless the key says otherwise.
pub(super) fn causal(config: &Config, sliding: bool) -> Result<bool> {
    Ok(sliding && !config.flag(NON_CAUSAL, false)?)
}

/// Writes a drafter's folder, whole or not at all. Tensors have the names and types of [`required`].
pub fn write(
    dir: &Path,
    layout: &DFlashLayout,
    tensors: &[NamedTensor],
    verifier: &Verifier,
    provenance: &Value,
) -> Result<()> {
    let dialect = "DFlash for speculators";
    let kind = kind(layout, dialect)?;
    if layout.causal && layout.window == 0 {
        return Err(Error::Layout {
            dialect,
            field: "causal",
            expected: "false where layers do not slide".to_string(),
            got: "true".to_string(),
        });
    }
    let expected = Expected {
        required: required(layout),
        optional: Vec::new(),
    };
    let config = to_speculators(layout, kind, verifier);
    checked::write(dir, &config, tensors, &expected, |_| Ok(()), provenance)
}

/// What the library calls a drafter with these parts.
fn kind(layout: &DFlashLayout, dialect: &'static str) -> Result<[&'static str; 2]> {
    match layout.parts.family() {
        Family::DFlash => Ok(KINDS[0]),
        Family::DFlash2 => Ok(KINDS[1]),
        Family::DSpark => Ok(KINDS[2]),
        Family::Own => Err(Error::Layout {
            dialect,
            field: "parts",
            expected: "those of DFlash, DFlash 2 or DSpark".to_string(),
            got: "a mixture that no engine knows".to_string(),
        }),
    }
}

fn to_speculators(
    layout: &DFlashLayout,
    [kind, architecture]: [&str; 2],
    verifier: &Verifier,
) -> Value {
    let mut layer = to_json(&DFlashLayout {
        parts: DFlashParts::default(),
        ..layout.clone()
    });
    if let Some(keys) = layer.as_object_mut() {
        for key in [
            "dflash_config",
            "block_size",
            "num_target_layers",
            "target_hidden_size",
        ] {
            keys.remove(key);
        }
    }
    layer["architectures"] = json!(["Qwen3ForCausalLM"]);
    let layers_run: Vec<usize> = layout
        .captured_layers
        .iter()
        .map(|layer| layer + 1)
        .collect();
    let mut config = json!({
        "architectures": [architecture],
        MODEL_TYPE: kind,
        "speculators_version": VERSION,
        "draft_vocab_size": layout.vocab_size,
        "block_size": layout.block_size,
        "target_hidden_size": null,
        LAYER_IDS: layers_run,
        "mask_token_id": layout.mask_token,
        // Always: without it vLLM makes every layer causal.
        NON_CAUSAL: !layout.causal,
        "sample_from_anchor": layout.parts.sample_from_anchor,
        "num_target_layers": layout.target_layers,
        "tie_word_embeddings": false,
        LAYER_CONFIG: layer,
        "speculators_config": verifier.to_json(kind),
        "torch_dtype": crate::config::torch_dtype(layout.dtype),
    });
    layout.parts.write_sizes(&mut config);
    if kind == KINDS[2][0] {
        layout.parts.write_heads(&mut config);
    }
    config
}
