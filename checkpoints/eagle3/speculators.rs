//! The layout of the speculators library, which vLLM serves with the target it names. The tensors are those of the other
//! layout, the layer's under `layers.0.`; layer ids count the layers that have run.

use std::path::Path;

use serde_json::{Value, json};

use super::config::{LAYER_IDS, write_window};
use super::{Eagle3Layout, check_layout, check_norms, optional, required, vocabulary};
use crate::config::torch_dtype;
use crate::expected::{Expected, TensorSpec};
use crate::speculators::{LAYER_CONFIG, MODEL_TYPE, VERSION, Verifier};
use crate::tensors::NamedTensor;
use crate::{Error, Result, checked};

/// What the library's configuration calls the architecture; what it saves names its own class of the model in its place.
pub(super) const ARCHITECTURE: &str = "Eagle3Speculator";

/// The tensors that a folder must hold.
pub fn required_here(layout: &Eagle3Layout) -> Vec<TensorSpec> {
    let renamed = |(name, shape, dtype): TensorSpec| (stored(&name), shape, dtype);
    required(layout).into_iter().map(renamed).collect()
}

/// Writes a drafter's folder, whole or not at all. Tensors have the names and types of [`required`]; the layout has a head
/// of its own, as the library makes one where there is none.
pub fn write(
    dir: &Path,
    layout: &Eagle3Layout,
    tensors: Vec<NamedTensor>,
    verifier: &Verifier,
    provenance: &Value,
) -> Result<()> {
    check_layout(layout)?;
    check_here(layout)?;
    let also = |weights: &Path| {
        check_norms(weights, &tensors, layout)?;
        vocabulary::check(weights, &tensors, layout)
    };
    let renamed: Vec<NamedTensor> = tensors
        .iter()
        .map(|tensor| NamedTensor {
            name: stored(&tensor.name),
            ..tensor.clone()
        })
        .collect();
    let expected = Expected {
        required: required_here(layout),
        optional: optional(layout),
    };
    let config = to_json(layout, verifier);
    checked::write(dir, &config, &renamed, &expected, also, provenance)
}

fn stored(name: &str) -> String {
    match name.strip_prefix("midlayer.") {
        Some(rest) => format!("layers.0.{rest}"),
        None => name.to_string(),
    }
}

fn check_here(layout: &Eagle3Layout) -> Result<()> {
    let wrong = |field, expected: &str, got: String| {
        Err(Error::Layout {
            dialect: "EAGLE-3 for speculators",
            field,
            expected: expected.to_string(),
            got,
        })
    };
    if layout.shared_head {
        return wrong("shared_head", "false", "true".to_string());
    }
    if layout.target_hidden_size != layout.hidden_size {
        let got = layout.target_hidden_size.to_string();
        return wrong("target_hidden_size", "the drafter's own width", got);
    }
    Ok(())
}

fn to_json(layout: &Eagle3Layout, verifier: &Verifier) -> Value {
    let mut layer = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layout.layers,
        "hidden_size": layout.hidden_size,
        "intermediate_size": layout.intermediate_size,
        "num_attention_heads": layout.heads,
        "num_key_value_heads": layout.kv_heads,
        "head_dim": layout.head_dim,
        "vocab_size": layout.vocab_size,
        "hidden_act": "silu",
        "rms_norm_eps": layout.rms_norm_eps,
        "max_position_embeddings": layout.max_position_embeddings,
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": false,
        // vLLM reads it here, and takes three for granted where it is absent.
        "num_aux_hidden_states": layout.captured_layers.len(),
        "torch_dtype": torch_dtype(layout.dtype),
    });
    layout.rope.write(&mut layer);
    write_window(layout, &mut layer);
    let layers_run: Vec<usize> = layout
        .captured_layers
        .iter()
        .map(|layer| layer + 1)
        .collect();
    json!({
        "architectures": [ARCHITECTURE],
        MODEL_TYPE: "eagle3",
        "speculators_version": VERSION,
        "draft_vocab_size": layout.draft_vocab_size,
        // Always: the library takes false where it is absent, vLLM true.
        "norm_before_residual": layout.norm_before_residual,
        "norm_before_fc": false,
        "fc_norm": layout.fc_norm,
        "norm_output": layout.norm_output,
        "target_hidden_size": null,
        "embed_requires_grad": false,
        "tie_word_embeddings": false,
        LAYER_IDS: layers_run,
        LAYER_CONFIG: layer,
        "speculators_config": verifier.to_json("eagle3"),
        "torch_dtype": torch_dtype(layout.dtype),
    })
}
