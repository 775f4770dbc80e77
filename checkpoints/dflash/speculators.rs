//! A DFlash drafter in the layout of the speculators library, which vLLM serves with the target it names. Layer ids count the
//! layers that have run.

use std::path::Path;

use serde_json::{Value, json};

use super::transformers::check_plain;
use super::{DFlashLayout, Keys, required, to_json};
use crate::config::Config;
use crate::eagle3::speculators::{MODEL_TYPE, VERSION, Verifier};
use crate::expected::Expected;
use crate::tensors::NamedTensor;
use crate::{Error, Result, checked};

pub(super) use crate::eagle3::speculators::LAYER_CONFIG;

const ARCHITECTURE: &str = "DFlashSpeculator";
const LAYER_IDS: &str = "aux_hidden_state_layer_ids";
/// What the library calls the opposite of a causal block, for sliding layers; vLLM reads it for all.
const NON_CAUSAL: &str = "sliding_window_non_causal";

pub(super) const KEYS: Keys = Keys {
    layer_ids: LAYER_IDS,
    first_id: 1,
    mask_token: "mask_token_id",
};

/// Whether a `config.json` is of this layout.
pub(super) fn recognises(config: &Value) -> bool {
    config[MODEL_TYPE] == "dflash"
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
    let dialect = "DFlash speculators";
    check_plain(layout, dialect)?;
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
    let config = to_speculators(layout, verifier);
    checked::write(dir, &config, tensors, &expected, |_| Ok(()), provenance)
}

fn to_speculators(layout: &DFlashLayout, verifier: &Verifier) -> Value {
    let mut layer = to_json(layout);
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
    json!({
        "architectures": [ARCHITECTURE],
        MODEL_TYPE: "dflash",
        "speculators_version": VERSION,
        "draft_vocab_size": layout.vocab_size,
        "block_size": layout.block_size,
        "target_hidden_size": null,
        LAYER_IDS: layers_run,
        "mask_token_id": layout.mask_token,
        // Always: without it vLLM makes every layer causal.
        NON_CAUSAL: !layout.causal,
        "sample_from_anchor": false,
        "num_target_layers": layout.target_layers,
        "tie_word_embeddings": false,
        LAYER_CONFIG: layer,
        "speculators_config": verifier.to_json("dflash"),
        "torch_dtype": crate::config::torch_dtype(layout.dtype),
    })
}
