//! EAGLE-3 drafters as vLLM, SGLang, TensorRT-LLM and llama.cpp load them (<https://arxiv.org/abs/2503.01840>).
//!
//! Engines load a folder with missing tensors without a word and then draft badly, so names, shapes, types and the
//! vocabulary map are checked here, in both directions, when a folder is written and when one is read.
//!
//! What no check of a folder can see: two tensors of one shape in each other's place (`gate_proj` and `up_proj`), and a
//! captured layer that is wrong by one in both of its keys. Both show as a low acceptance length only.

mod config;
mod launch;
mod read;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::path::Path;

use serde_json::Value;

use crate::expected::{Expected, TensorSpec};
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result, checked};

pub use crate::config::Rope;
pub use config::default_captured_layers;
pub use launch::launch_lines;
pub use read::{read, read_for_target};
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
    /// Decoder layers; this dialect has one.
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
    let vocabulary = |weights: &Path| vocabulary::check(weights, &tensors, layout);
    let config = config::to_json(layout);
    checked::write(dir, &config, &tensors, &expected, vocabulary, provenance)
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
    if layout.layers != 1 {
        return wrong("layers", "1", layout.layers.to_string());
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
    if layout.kv_heads == 0 || !layout.heads.is_multiple_of(layout.kv_heads) {
        let got = format!("{} for {} heads", layout.kv_heads, layout.heads);
        return wrong("kv_heads", "a divisor of the number of heads", got);
    }
    if !layout.dtype.is_float() {
        return wrong("dtype", "F32, F16 or BF16", layout.dtype.to_string());
    }
    if let Some(scaling) = layout.rope.unnamed_scaling() {
        let got = scaling.to_string();
        return wrong(
            "rope.scaling",
            "a table whose `rope_type` is not `default`",
            got,
        );
    }
    Ok(())
}
