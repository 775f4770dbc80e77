//! EAGLE-3 drafters as vLLM, SGLang, TensorRT-LLM and llama.cpp load them (<https://arxiv.org/abs/2503.01840>).
//!
//! Engines load a folder with missing tensors without a word and then draft badly, so names, shapes, types and the
//! vocabulary map are checked here, in both directions, when a folder is written and when one is read.
//!
//! What names and shapes do not show: two tensors of one shape in each other's place (`gate_proj` and `up_proj`), and a
//! captured layer that is wrong by one in both of its keys. The seal of a folder of ours shows both; in folders of others
//! they show as a low acceptance length only.

mod config;
mod launch;
mod read;
mod readings;
pub mod speculators;
#[cfg(test)]
pub(crate) mod tests;
mod vocabulary;

use std::path::Path;

use serde_json::Value;

use crate::config::check_decoder;
use crate::expected::{Expected, TensorSpec};
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result, checked};

pub use crate::config::Rope;
pub use config::default_captured_layers;
pub use config::recognises;
pub use launch::launch_lines;
pub use read::{Reading, read, read_as, read_for_target};
pub use readings::{Meaning, meanings};
pub use vocabulary::{target_ids, vocabulary_tensors};

/// Sizes and switches of an EAGLE-3 drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct Eagle3Layout {
    /// Width of the drafter.
    pub hidden_size: usize,
    /// Width of the target's hidden states.
    pub target_hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Decoder layers. The first reads embeddings beside hidden states, the others hidden states only.
    pub layers: usize,
    /// Size of the target's vocabulary.
    pub vocab_size: usize,
    /// Size of the drafter's vocabulary; equal to `vocab_size` where it drafts every token.
    pub draft_vocab_size: usize,
    /// 0-based indices of the target's layers whose outputs are the features, ascending.
    pub captured_layers: Vec<usize>,
    /// Whether the residual starts at the normed features; SGLang and TensorRT-LLM have no such switch and take `false`.
    pub norm_before_residual: bool,
    /// Whether each captured hidden state is normed before `fc` (EAGLE-3.1).
    pub fc_norm: bool,
    /// Whether the normed output is fed back to the next step (EAGLE-3.1).
    pub norm_output: bool,
    /// How many positions back a layer sees, the own one counted; 0 for all.
    pub window: usize,
    /// The epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Longest sequence; the target's, so that engines do not cap it.
    pub max_position_embeddings: usize,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Whether the target's head is used: no `lm_head.weight` in the folder.
    pub shared_head: bool,
    /// The type of the weights.
    pub dtype: DType,
}

impl Eagle3Layout {
    /// Whether the drafter has a vocabulary of its own, and with it `d2t` and `t2d`.
    pub fn has_draft_vocab(&self) -> bool {
        self.draft_vocab_size != self.vocab_size
    }
}

/// The tensors that a folder of this layout must hold. `d2t` and `t2d` are there exactly when the drafter has its own vocabulary.
pub fn required(layout: &Eagle3Layout) -> Vec<TensorSpec> {
    let (hidden, target) = (layout.hidden_size, layout.target_hidden_size);
    let (queries, keys) = (
        layout.heads * layout.head_dim,
        layout.kv_heads * layout.head_dim,
    );
    let captured = layout.captured_layers.len();
    let mut weights = vec![
        ("fc.weight".to_string(), vec![hidden, captured * target]),
        ("midlayer.input_layernorm.weight".to_string(), vec![hidden]),
        ("midlayer.hidden_norm.weight".to_string(), vec![hidden]),
        (
            "midlayer.self_attn.q_proj.weight".to_string(),
            vec![queries, 2 * hidden],
        ),
        (
            "midlayer.self_attn.k_proj.weight".to_string(),
            vec![keys, 2 * hidden],
        ),
        (
            "midlayer.self_attn.v_proj.weight".to_string(),
            vec![keys, 2 * hidden],
        ),
        (
            "midlayer.self_attn.o_proj.weight".to_string(),
            vec![hidden, queries],
        ),
        (
            "midlayer.post_attention_layernorm.weight".to_string(),
            vec![hidden],
        ),
        (
            "midlayer.mlp.gate_proj.weight".to_string(),
            vec![layout.intermediate_size, hidden],
        ),
        (
            "midlayer.mlp.up_proj.weight".to_string(),
            vec![layout.intermediate_size, hidden],
        ),
        (
            "midlayer.mlp.down_proj.weight".to_string(),
            vec![hidden, layout.intermediate_size],
        ),
        ("norm.weight".to_string(), vec![hidden]),
    ];
    weights.extend((1..layout.layers).flat_map(|layer| further_layer(layout, layer)));
    if layout.fc_norm {
        weights.extend((0..captured).map(|j| (format!("fc_norm.{j}.weight"), vec![target])));
    }
    if !layout.shared_head {
        weights.push((
            "lm_head.weight".to_string(),
            vec![layout.draft_vocab_size, hidden],
        ));
    }
    let mut specs: Vec<TensorSpec> = weights
        .into_iter()
        .map(|(name, shape)| (name, shape, layout.dtype))
        .collect();
    if layout.has_draft_vocab() {
        specs.push(("d2t".to_string(), vec![layout.draft_vocab_size], DType::I64));
        specs.push(("t2d".to_string(), vec![layout.vocab_size], DType::Bool));
    }
    specs
}

/// The tensors of a layer behind the first. vLLM norms what it reads with `input_layernorm`, SGLang and TensorRT-LLM with
/// `hidden_norm`: both are there and equal.
fn further_layer(layout: &Eagle3Layout, layer: usize) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (layout.hidden_size, layout.intermediate_size);
    let (queries, keys) = (
        layout.heads * layout.head_dim,
        layout.kv_heads * layout.head_dim,
    );
    let of_layer = [
        (NORMS[0], vec![hidden]),
        (NORMS[1], vec![hidden]),
        ("self_attn.q_proj", vec![queries, hidden]),
        ("self_attn.k_proj", vec![keys, hidden]),
        ("self_attn.v_proj", vec![keys, hidden]),
        ("self_attn.o_proj", vec![hidden, queries]),
        ("post_attention_layernorm", vec![hidden]),
        ("mlp.gate_proj", vec![inner, hidden]),
        ("mlp.up_proj", vec![inner, hidden]),
        ("mlp.down_proj", vec![hidden, inner]),
    ];
    let named = |(name, shape)| (format!("layers.{layer}.{name}.weight"), shape);
    of_layer.into_iter().map(named).collect()
}

/// The two names of the norm of what a layer behind the first reads.
const NORMS: [&str; 2] = ["input_layernorm", "hidden_norm"];

/// Fails where a layer behind the first has two norms for what it reads.
fn check_norms(file: &Path, tensors: &[NamedTensor], layout: &Eagle3Layout) -> Result<()> {
    let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    for layer in 1..layout.layers {
        let [input, hidden] = NORMS.map(|norm| format!("layers.{layer}.{norm}.weight"));
        let bytes = |name: &str| find(name).map(|tensor| &tensor.bytes);
        if bytes(&input) != bytes(&hidden) {
            return Err(Error::Values {
                reason: format!("expected the values of `{input}`: engines read one or the other"),
                name: hidden,
                path: file.to_path_buf(),
            });
        }
    }
    Ok(())
}

/// The tensors that a folder of this layout may hold besides. SGLang and TensorRT-LLM put the target's embeddings in their place.
pub fn optional(layout: &Eagle3Layout) -> Vec<TensorSpec> {
    vec![(
        "embed_tokens.weight".to_string(),
        vec![layout.vocab_size, layout.hidden_size],
        layout.dtype,
    )]
}

/// Writes a drafter's folder, whole or not at all. Tensors have the names and types of [`required`] and [`optional`].
///
/// `provenance` says where the drafter comes from; unless it is null it is kept beside the weights.
pub fn write(
    dir: &Path,
    layout: &Eagle3Layout,
    tensors: Vec<NamedTensor>,
    provenance: &Value,
) -> Result<()> {
    check_layout(layout)?;
    let expected = Expected {
        required: required(layout),
        optional: optional(layout),
    };
    let also = |weights: &Path| {
        check_norms(weights, &tensors, layout)?;
        vocabulary::check(weights, &tensors, layout)
    };
    let config = config::to_json(layout);
    checked::write(dir, &config, &tensors, &expected, also, provenance)
}

fn check_layout(layout: &Eagle3Layout) -> Result<()> {
    let wrong = |field, expected: &str, got: String| {
        let expected = expected.to_string();
        Err(Error::Layout {
            dialect: "EAGLE-3",
            field,
            expected,
            got,
        })
    };
    let ascending = layout.captured_layers.is_sorted_by(|a, b| a < b);
    if layout.layers == 0 {
        return wrong("layers", "at least 1", layout.layers.to_string());
    }
    if layout.captured_layers.is_empty() || !ascending {
        return wrong(
            "captured_layers",
            "ascending layer indices",
            format!("{:?}", layout.captured_layers),
        );
    }
    if layout.draft_vocab_size > layout.vocab_size {
        let got = layout.draft_vocab_size.to_string();
        return wrong(
            "draft_vocab_size",
            &format!("at most {}", layout.vocab_size),
            got,
        );
    }
    if layout.shared_head && layout.has_draft_vocab() {
        let expected = "false where the drafter has a vocabulary of its own";
        return wrong("shared_head", expected, "true".to_string());
    }
    let heads = [layout.heads, layout.kv_heads];
    check_decoder("EAGLE-3", heads, layout.dtype, &layout.rope)
}
