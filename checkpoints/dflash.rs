//! DFlash drafters in their authors' layout, which vLLM, SGLang and llama.cpp load (<https://arxiv.org/abs/2602.06036>).
//!
//! The target's embedding and head are not in the folder: engines use the target's own.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Config, DEFAULT_EPSILON, DEFAULT_POSITIONS, Rope, torch_dtype};
use crate::expected::{Expected, TensorSpec, check_tensors, specs};
use crate::folder::{ModelFolder, WEIGHTS};
use crate::tensors::{DType, NamedTensor};
use crate::{Result, checked, launch};

#[cfg(test)]
pub(crate) mod tests;

/// What all engines call it.
const ARCHITECTURE: &str = "DFlashDraftModel";
/// The target's, which some published folders repeat.
const REPEATED: [&str; 2] = ["embed_tokens.weight", "lm_head.weight"];

/// Sizes and switches of a DFlash drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct DFlashLayout {
    /// Width of the drafter and of its target.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Decoder layers of the target.
    pub target_layers: usize,
    /// Captured layers, ascending, as 0-based indices of the layers whose output is read: engines count alike.
    pub captured_layers: Vec<usize>,
    /// Tokens of a block, the last committed one counted.
    pub block_size: usize,
    /// The id that stands for tokens still to come.
    pub mask_token: u32,
    /// How many positions back a layer sees, the own one counted; 0 for all.
    pub window: usize,
    /// Whether a place of a block sees only those before it in the block.
    pub causal: bool,
    /// The epsilon of its norms.
    pub rms_norm_eps: f64,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// Rotary position embedding.
    pub rope: Rope,
    /// The type of the weights.
    pub dtype: DType,
}

/// Whether a `config.json` is of a DFlash drafter.
pub fn recognises(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    names.is_some_and(|names| names.iter().any(|name| name == ARCHITECTURE))
}

/// The tensors that a folder of this layout must hold.
pub fn required(layout: &DFlashLayout) -> Vec<TensorSpec> {
    let (hidden, inner) = (layout.hidden_size, layout.intermediate_size);
    let (queries, keys) = (
        layout.heads * layout.head_dim,
        layout.kv_heads * layout.head_dim,
    );
    let mut weights = vec![
        (
            "fc.weight".to_owned(),
            vec![hidden, layout.captured_layers.len() * hidden],
        ),
        ("hidden_norm.weight".to_owned(), vec![hidden]),
        ("norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layout.layers {
        let of_layer = [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("self_attn.q_norm", vec![layout.head_dim]),
            ("self_attn.k_norm", vec![layout.head_dim]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ];
        let named = |(name, shape)| (format!("layers.{layer}.{name}.weight"), shape);
        weights.extend(of_layer.into_iter().map(named));
    }
    let typed = |(name, shape)| (name, shape, layout.dtype);
    weights.into_iter().map(typed).collect()
}

/// Writes a drafter's folder, whole or not at all. Tensors have the names and types of [`required`].
///
/// `provenance` says where the drafter comes from; unless it is null it is kept beside the weights.
pub fn write(
    dir: &Path,
    layout: &DFlashLayout,
    tensors: &[NamedTensor],
    provenance: &Value,
) -> Result<()> {
    let expected = Expected {
        required: required(layout),
        optional: Vec::new(),
    };
    checked::write(
        dir,
        &to_json(layout),
        tensors,
        &expected,
        |_| Ok(()),
        provenance,
    )
}

/// Reads a drafter and checks it: every tensor known, of its shape, and none missing. Floats keep the type they are stored
/// in; what a folder may repeat of the target is left out.
pub fn read(dir: &Path) -> Result<(DFlashLayout, Vec<NamedTensor>)> {
    let folder = ModelFolder::open(dir)?;
    let dtype = folder
        .info("fc.weight")
        .map_or(DType::BF16, |info| info.dtype);
    let layout = from_json(&folder, dtype)?;
    let mut tensors = Vec::new();
    for info in folder.tensors() {
        if !REPEATED.contains(&info.name.as_str()) {
            tensors.push(folder.read(&info.name)?);
        }
    }
    let expected = Expected {
        required: required(&layout),
        optional: Vec::new(),
    };
    let file = dir.join(WEIGHTS);
    check_tensors(&file, &specs(&tensors), &expected, |got, _| got.is_float())?;
    Ok((layout, tensors))
}

/// One command for each engine. `draft_tokens` is the length of the draft, at most one less than the block.
pub fn launch_lines(
    dir: &Path,
    layout: &DFlashLayout,
    target: &str,
    draft_tokens: usize,
) -> Vec<String> {
    let draft_tokens = draft_tokens.min(layout.block_size - 1);
    vec![
        launch::vllm(dir, "dflash", target, draft_tokens),
        launch::sglang_block(dir, "DFLASH", target, draft_tokens),
    ]
}

fn to_json(layout: &DFlashLayout) -> Value {
    let mut dflash = json!({
        "mask_token_id": layout.mask_token,
        "target_layer_ids": layout.captured_layers,
    });
    // Engines take sliding layers for causal ones unless they are told, so they always are.
    if layout.causal || layout.window > 0 {
        dflash["causal"] = json!(layout.causal);
    }
    let mut config = json!({
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
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
        "tie_word_embeddings": false,
        "block_size": layout.block_size,
        "num_target_layers": layout.target_layers,
        "target_hidden_size": layout.hidden_size,
        "dflash_config": dflash,
        "torch_dtype": torch_dtype(layout.dtype),
    });
    if layout.window > 0 {
        config["layer_types"] = json!(vec!["sliding_attention"; layout.layers]);
        config["sliding_window"] = json!(layout.window);
        config["use_sliding_window"] = json!(true);
    }
    layout.rope.write(&mut config);
    config
}

fn from_json(folder: &ModelFolder, dtype: DType) -> Result<DFlashLayout> {
    let config = Config::of(folder);
    if !recognises(folder.config()) {
        return Err(config.wrong("architectures", format!("`{ARCHITECTURE}`")));
    }
    if config.flag("attention_bias", false)? {
        return Err(config.wrong("attention_bias", "`false`"));
    }
    let hidden_size = config.size("hidden_size", None)?;
    let (heads, kv_heads) = config.heads()?;
    let layers = config.count("num_hidden_layers", None)?;
    let sliding = sliding_layers(&config, layers)?;
    let ids = "dflash_config.target_layer_ids";
    let mask = "dflash_config.mask_token_id";
    let captured = config.get(ids).and_then(Value::as_array);
    let captured =
        captured.and_then(|ids| ids.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
    let captured = captured.filter(|ids| !ids.is_empty() && ids.is_sorted_by(|a, b| a < b));
    let captured = captured.ok_or_else(|| config.wrong(ids, "ascending layers"))?;
    let mask_token = config.get(mask).and_then(Value::as_u64);
    let mask_token = mask_token.and_then(|id| u32::try_from(id).ok());
    Ok(DFlashLayout {
        hidden_size,
        intermediate_size: config.size("intermediate_size", None)?,
        layers,
        heads,
        kv_heads,
        head_dim: config.size("head_dim", Some(hidden_size / heads))?,
        vocab_size: config.size("vocab_size", None)?,
        target_layers: config.size("num_target_layers", None)?,
        captured_layers: captured.into_iter().map(|id| id as usize).collect(),
        block_size: config.size("block_size", None)?,
        mask_token: mask_token.ok_or_else(|| config.wrong(mask, "the id of a token"))?,
        window: match sliding {
            true => config.size("sliding_window", None)?,
            false => 0,
        },
        // Engines read sliding layers as causal ones where nothing is said.
        causal: config.flag("dflash_config.causal", sliding)?,
        rms_norm_eps: config.number("rms_norm_eps", DEFAULT_EPSILON)?,
        max_position_embeddings: config.size("max_position_embeddings", Some(DEFAULT_POSITIONS))?,
        rope: config.rope()?,
        dtype,
    })
}

/// Whether all layers slide; none or all of them may.
fn sliding_layers(config: &Config, layers: usize) -> Result<bool> {
    let Some(types) = config.get("layer_types").and_then(Value::as_array) else {
        return Ok(false);
    };
    let sliding = types
        .iter()
        .filter(|kind| *kind == "sliding_attention")
        .count();
    match sliding {
        0 => Ok(false),
        all if all == layers => Ok(true),
        _ => Err(config.wrong("layer_types", "layers of one kind")),
    }
}
