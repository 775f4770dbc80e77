//! EAGLE-1 drafters, HASS's included, as vLLM and SGLang load them (<https://arxiv.org/abs/2401.15077>).
//!
//! What names and shapes do not show: two tensors of one shape in each other's place (`gate_proj` and `up_proj`), and an
//! `fc.weight` that takes the feature before the embedding. The seal of a folder of ours shows the first; in folders of
//! others both show as a low acceptance length only.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Config, DEFAULT_EPSILON, DEFAULT_POSITIONS, Rope, check_decoder, torch_dtype};
use crate::expected::{Expected, TensorSpec, check_tensors, specs};
use crate::folder::{ModelFolder, WEIGHTS};
use crate::launch::{self, Launch};
use crate::names::{read_named, stored_names, unwrapped};
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result, checked, eagle3, language_model};

/// vLLM's name of the architecture and SGLang's: each takes the one it knows.
const ARCHITECTURES: [&str; 2] = ["EagleLlamaForCausalLM", "LlamaForCausalLMEagle"];
/// What folders of the paper's authors say, where only the single layer gives a drafter away.
const PUBLISHED: &str = "LlamaForCausalLM";

pub(crate) const BIAS: &str = "fc.bias";
/// The target's embeddings, and frequencies that older versions of transformers saved with every attention.
const REPEATED: [&str; 3] = [
    "embed_tokens.weight",
    "layers.0.self_attn.rotary_emb.inv_freq",
    "rotary_emb.inv_freq",
];

/// Sizes and switches of an EAGLE-1 drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct Eagle1Layout {
    /// Width of the drafter and of its target.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Whether `fc` adds a bias. SGLang always adds one, vLLM never.
    pub bias: bool,
    /// The epsilon of its norm.
    pub rms_norm_eps: f64,
    /// Longest sequence; the target's, so that engines do not cap it.
    pub max_position_embeddings: usize,
    /// Rotary position embedding.
    pub rope: Rope,
    /// The type of the weights.
    pub dtype: DType,
}

/// Whether a `config.json` is of an EAGLE-1 drafter, ours or a published one.
pub fn recognises(config: &Value) -> bool {
    let is = |name: &str| {
        let lower = name.to_lowercase();
        let eagle = lower.contains("eagle") && !lower.contains("eagle3");
        let published = name == PUBLISHED && config["num_hidden_layers"] == 1;
        let other = language_model::is_marked(config)
            || language_model::mask_token(config).is_some()
            || eagle3::names_eagle3(config);
        eagle || (published && !other)
    };
    let names = config["architectures"].as_array();
    names.is_some_and(|names| names.iter().filter_map(Value::as_str).any(is))
}

/// The tensors that a folder of this layout must hold. `fc.bias` is one whatever the layout: SGLang adds a random one
/// where there is none, so a drafter without a bias is written with zeros.
pub fn required(layout: &Eagle1Layout) -> Vec<TensorSpec> {
    let (hidden, inner) = (layout.hidden_size, layout.intermediate_size);
    let (queries, keys) = (
        layout.heads * layout.head_dim,
        layout.kv_heads * layout.head_dim,
    );
    let of_layer = |name: &str, shape: Vec<usize>| (format!("layers.0.{name}.weight"), shape);
    let weights = vec![
        ("fc.weight".to_string(), vec![hidden, 2 * hidden]),
        (BIAS.to_string(), vec![hidden]),
        of_layer("self_attn.q_proj", vec![queries, hidden]),
        of_layer("self_attn.k_proj", vec![keys, hidden]),
        of_layer("self_attn.v_proj", vec![keys, hidden]),
        of_layer("self_attn.o_proj", vec![hidden, queries]),
        of_layer("post_attention_layernorm", vec![hidden]),
        of_layer("mlp.gate_proj", vec![inner, hidden]),
        of_layer("mlp.up_proj", vec![inner, hidden]),
        of_layer("mlp.down_proj", vec![hidden, inner]),
    ];
    let typed = |(name, shape)| (name, shape, layout.dtype);
    weights.into_iter().map(typed).collect()
}

/// Writes a drafter's folder, whole or not at all. Tensors have the names and types of [`required`].
///
/// `provenance` says where the drafter comes from; unless it is null it is kept beside the weights.
pub fn write(
    dir: &Path,
    layout: &Eagle1Layout,
    tensors: Vec<NamedTensor>,
    provenance: &Value,
) -> Result<()> {
    let heads = [layout.heads, layout.kv_heads];
    check_decoder("EAGLE-1", heads, layout.dtype, &layout.rope)?;
    let expected = Expected {
        required: required(layout),
        optional: Vec::new(),
    };
    let zero = |weights: &Path| match layout.bias {
        true => Ok(()),
        false => check_zero(weights, &tensors),
    };
    checked::write(dir, &to_json(layout), &tensors, &expected, zero, provenance)
}

/// Reads a drafter and checks it: every tensor known, of its shape, and none missing. Floats keep the type they are
/// stored in. `fc.bias` is returned exactly when the drafter has a bias that is not zero; what a folder may repeat of the
/// target is left out.
pub fn read(dir: &Path) -> Result<(Eagle1Layout, Vec<NamedTensor>)> {
    let folder = ModelFolder::open(dir)?;
    let mut names = stored_names(&folder, |stored| unwrapped(stored).to_string())?;
    names.retain(|name, _| !REPEATED.contains(&name.as_str()));
    let dtype = match names.get("fc.weight") {
        Some(stored) => folder.info(stored)?.dtype,
        None => DType::BF16,
    };
    let mut layout = from_json(&folder, dtype)?;
    let mut tensors = read_named(&folder, &names)?;
    check_read(dir, &tensors, &layout)?;
    let bias = tensors.iter().find(|tensor| tensor.name == BIAS);
    layout.bias = match bias {
        Some(bias) => bias.to_f32()?.iter().any(|&value| value != 0.0),
        None => false,
    };
    if !layout.bias {
        tensors.retain(|tensor| tensor.name != BIAS);
    }
    Ok((layout, tensors))
}

/// One command for each engine that can run the layout: vLLM, unless its lack of a bias rules it out, and SGLang.
///
/// `draft_tokens` is the length of the drafted chain.
pub fn launch_lines(
    dir: &Path,
    layout: &Eagle1Layout,
    target: &str,
    draft_tokens: usize,
) -> Vec<Launch> {
    let sglang = launch::sglang(dir, "EAGLE", target, draft_tokens);
    match layout.bias {
        true => vec![sglang],
        false => vec![launch::vllm(dir, "eagle", target, draft_tokens), sglang],
    }
}

/// `fc.bias` may be absent unless the configuration says that there is one.
fn check_read(dir: &Path, tensors: &[NamedTensor], layout: &Eagle1Layout) -> Result<()> {
    let (bias, mut required): (Vec<_>, Vec<_>) = required(layout)
        .into_iter()
        .partition(|(name, ..)| name == BIAS);
    let mut optional = Vec::new();
    match layout.bias {
        true => required.extend(bias),
        false => optional.extend(bias),
    }
    let expected = Expected { required, optional };
    let file = dir.join(WEIGHTS);
    check_tensors(&file, &specs(tensors), &expected, |got, _| got.is_float())
}

fn check_zero(file: &Path, tensors: &[NamedTensor]) -> Result<()> {
    for tensor in tensors.iter().filter(|tensor| tensor.name == BIAS) {
        if tensor.to_f32()?.iter().any(|&value| value != 0.0) {
            return Err(Error::Values {
                name: BIAS.to_string(),
                path: file.to_path_buf(),
                reason: "expected zeros, as the drafter has no bias".to_string(),
            });
        }
    }
    Ok(())
}

fn to_json(layout: &Eagle1Layout) -> Value {
    let mut config = json!({
        "architectures": ARCHITECTURES,
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": layout.hidden_size,
        "intermediate_size": layout.intermediate_size,
        "num_attention_heads": layout.heads,
        "num_key_value_heads": layout.kv_heads,
        "head_dim": layout.head_dim,
        "vocab_size": layout.vocab_size,
        "hidden_act": "silu",
        "rms_norm_eps": layout.rms_norm_eps,
        "max_position_embeddings": layout.max_position_embeddings,
        "tie_word_embeddings": false,
        "attention_bias": false,
        "mlp_bias": false,
        "bias": layout.bias,
        "torch_dtype": torch_dtype(layout.dtype),
    });
    layout.rope.write(&mut config);
    config
}

/// The layout that a folder's configuration describes; `dtype` is that of the weights. Its `bias` is what the key says,
/// as the weights are not looked at.
fn from_json(folder: &ModelFolder, dtype: DType) -> Result<Eagle1Layout> {
    let config = Config::of(folder);
    check_variant(&config)?;
    let hidden_size = config.size("hidden_size", None)?;
    let (heads, kv_heads) = config.heads()?;
    Ok(Eagle1Layout {
        hidden_size,
        intermediate_size: config.size("intermediate_size", None)?,
        heads,
        kv_heads,
        head_dim: config.head_dim(hidden_size, heads)?,
        vocab_size: config.size("vocab_size", None)?,
        bias: config.flag("bias", false)?,
        rms_norm_eps: config.epsilon("rms_norm_eps", DEFAULT_EPSILON)?,
        max_position_embeddings: config.size("max_position_embeddings", Some(DEFAULT_POSITIONS))?,
        rope: config.rope()?,
        dtype,
    })
}

/// Refuses what would be loaded into a module that computes something else.
fn check_variant(config: &Config) -> Result<()> {
    let named = config.get("architectures").and_then(Value::as_array);
    let known = |name: &Value| {
        name.as_str()
            .is_some_and(|name| ARCHITECTURES.contains(&name) || name == PUBLISHED)
    };
    if !named.is_some_and(|names| names.iter().any(known)) {
        let [vllm, sglang] = ARCHITECTURES;
        return Err(config.wrong(
            "architectures",
            format!("`{vllm}`, `{sglang}` or `{PUBLISHED}`"),
        ));
    }
    if config.size("num_hidden_layers", Some(1))? != 1 {
        return Err(config.wrong("num_hidden_layers", "`1`"));
    }
    if config
        .get("hidden_act")
        .is_some_and(|value| value != "silu")
    {
        return Err(config.wrong("hidden_act", "`\"silu\"`"));
    }
    config.check_unquantised()?;
    if config.number("logit_scale", 1.0)? != 1.0 {
        return Err(config.wrong("logit_scale", "`1.0`"));
    }
    if config.get("hot_vocab_size").is_some() {
        return Err(config.wrong("hot_vocab_size", "nothing: the whole vocabulary"));
    }
    for key in ["attention_bias", "mlp_bias"] {
        if config.flag(key, false)? {
            return Err(config.wrong(key, "`false`"));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
