//! Hydra heads (<https://arxiv.org/abs/2402.05109>). No serving engine loads them, so the layout is this program's own:
//! the names of Medusa's tensors where the two agree, and sizes in `config.json`.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Config, DEFAULT_EPSILON, Rope, check_decoder, torch_dtype};
use crate::draft_heads::{Contents, TOKEN_MAP};
use crate::folder::ModelFolder;
use crate::launch::Launch;
use crate::tensors::{DType, NamedTensor};
use crate::{Result, TensorSpec};

#[cfg(test)]
pub(crate) mod tests;

const ARCHITECTURE: &str = "HydraModel";
const DIALECT: &str = "Hydra";

/// Sizes of Hydra heads.
#[derive(Clone, Debug, PartialEq)]
pub struct HydraLayout {
    /// Width of the target's hidden states.
    pub hidden_size: usize,
    /// Size of the target's vocabulary.
    pub vocab_size: usize,
    /// Tokens that are drafted; equal to `vocab_size` where every one is.
    pub draft_vocab_size: usize,
    /// Heads.
    pub heads: usize,
    /// Blocks of each head.
    pub layers: usize,
    /// Whether the target's output layer is used: none is in the folder.
    pub shared_head: bool,
    /// The decoder layer before the heads (Hydra++).
    pub prefix: Option<PrefixLayout>,
    /// The type of the weights.
    pub dtype: DType,
}

/// Sizes of the decoder layer before the heads.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixLayout {
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// Rotary position embedding.
    pub rope: Rope,
}

/// Whether a `config.json` is of Hydra heads.
pub fn recognises(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    names.is_some_and(|names| names.iter().any(|name| name == ARCHITECTURE))
}

/// The tensors that a folder of this layout must hold.
pub fn required(layout: &HydraLayout) -> Vec<TensorSpec> {
    let (hidden, vocab) = (layout.hidden_size, layout.draft_vocab_size);
    let mut found = Vec::new();
    let mut weight = |name: String, shape: Vec<usize>| found.push((name, shape, layout.dtype));
    for head in 0..layout.heads {
        let name = format!("blocks.{head}");
        let read = (head + 2) * hidden;
        weight(format!("{name}.res_connection.weight"), vec![hidden, read]);
        weight(format!("{name}.res_connection.bias"), vec![hidden]);
        for layer in 0..layout.layers {
            let width = if layer == 0 { read } else { hidden };
            weight(format!("{name}.layers.{layer}.weight"), vec![hidden, width]);
            weight(format!("{name}.layers.{layer}.bias"), vec![hidden]);
        }
        if !layout.shared_head {
            weight(format!("lm_heads.{head}.weight"), vec![vocab, hidden]);
            weight(format!("lm_heads.{head}.bias"), vec![vocab]);
        }
    }
    if let Some(prefix) = &layout.prefix {
        let (queries, keys) = (
            prefix.heads * prefix.head_dim,
            prefix.kv_heads * prefix.head_dim,
        );
        let d_ff = prefix.intermediate_size;
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![d_ff, hidden]),
            ("mlp.up_proj", vec![d_ff, hidden]),
            ("mlp.down_proj", vec![hidden, d_ff]),
        ] {
            weight(format!("prefix_layer.{name}.weight"), shape);
        }
        weight("prefix_norm.weight".into(), vec![hidden]);
    }
    if vocab != layout.vocab_size {
        found.push((TOKEN_MAP.into(), vec![vocab], DType::I64));
    }
    found
}

/// Writes the heads' folder, whole or not at all. Tensors have the names and types of [`required`].
///
/// `provenance` says where the heads come from; unless it is null it is kept beside the weights.
pub fn write(
    dir: &Path,
    layout: &HydraLayout,
    tensors: &[NamedTensor],
    provenance: &Value,
) -> Result<()> {
    contents(layout).check_layout(DIALECT, layout.heads)?;
    if let Some(prefix) = &layout.prefix {
        let heads = [prefix.heads, prefix.kv_heads];
        check_decoder(DIALECT, heads, layout.dtype, &prefix.rope)?;
    }
    contents(layout).write(dir, &to_json(layout), tensors, provenance)
}

/// Reads heads and checks them: every tensor known, of its shape, and none missing. Floats keep the type they are stored
/// in.
pub fn read(dir: &Path) -> Result<(HydraLayout, Vec<NamedTensor>)> {
    let folder = ModelFolder::open(dir)?;
    let layout = from_json(&folder)?;
    let tensors = folder
        .tensors()
        .map(|info| folder.read(&info.name))
        .collect::<Result<Vec<_>>>()?;
    contents(&layout).check_read(dir, &tensors)?;
    Ok((layout, tensors))
}

/// What to tell who wants to serve the heads.
pub fn launch_lines() -> Vec<Launch> {
    vec![Launch::remark(
        "no serving engine loads Hydra heads; this program decodes with them: `spectrain generate`, `spectrain evaluate`",
    )]
}

fn contents(layout: &HydraLayout) -> Contents {
    Contents {
        required: required(layout),
        vocab_size: layout.vocab_size,
        draft_vocab_size: layout.draft_vocab_size,
        dtype: layout.dtype,
    }
}

fn to_json(layout: &HydraLayout) -> Value {
    let mut config = json!({
        "architectures": [ARCHITECTURE],
        "model_type": "hydra",
        "hidden_size": layout.hidden_size,
        "vocab_size": layout.vocab_size,
        // Under the name that Medusa's has: `draft_vocab_size` makes engines take a folder for EAGLE-3.
        "truncated_vocab_size": layout.draft_vocab_size,
        "hydra_num_heads": layout.heads,
        "hydra_head_layers": layout.layers,
        "hydra_prefix_layer": layout.prefix.is_some(),
        "original_lm_head": layout.shared_head,
        "torch_dtype": torch_dtype(layout.dtype),
    });
    if let Some(prefix) = &layout.prefix {
        let more = json!({
            "intermediate_size": prefix.intermediate_size,
            "num_attention_heads": prefix.heads,
            "num_key_value_heads": prefix.kv_heads,
            "head_dim": prefix.head_dim,
            "rms_norm_eps": prefix.rms_norm_eps,
            "max_position_embeddings": prefix.max_position_embeddings,
        });
        if let (Value::Object(keys), Value::Object(more)) = (&mut config, more) {
            keys.extend(more);
        }
        prefix.rope.write(&mut config);
    }
    config
}

fn from_json(folder: &ModelFolder) -> Result<HydraLayout> {
    let config = Config::of(folder);
    if !recognises(folder.config()) {
        return Err(config.wrong("architectures", format!("`{ARCHITECTURE}`")));
    }
    config.check_unquantised()?;
    let hidden_size = config.size("hidden_size", None)?;
    let vocab_size = config.size("vocab_size", None)?;
    let draft_vocab_size = config.size("truncated_vocab_size", Some(vocab_size))?;
    if draft_vocab_size > vocab_size {
        let expected = format!("at most `{vocab_size}`");
        return Err(config.wrong("truncated_vocab_size", expected));
    }
    let prefix = match config.flag("hydra_prefix_layer", false)? {
        false => None,
        true => Some(prefix_from_json(&config, hidden_size)?),
    };
    let first_float = folder.tensors().find(|tensor| tensor.dtype.is_float());
    Ok(HydraLayout {
        hidden_size,
        vocab_size,
        draft_vocab_size,
        heads: config.count("hydra_num_heads", None)?,
        layers: config.count("hydra_head_layers", None)?,
        shared_head: config.flag("original_lm_head", false)?,
        prefix,
        dtype: first_float.map_or(DType::BF16, |tensor| tensor.dtype),
    })
}

fn prefix_from_json(config: &Config, hidden_size: usize) -> Result<PrefixLayout> {
    let (heads, kv_heads) = config.heads()?;
    Ok(PrefixLayout {
        intermediate_size: config.size("intermediate_size", None)?,
        heads,
        kv_heads,
        head_dim: config.head_dim(hidden_size, heads)?,
        rms_norm_eps: config.epsilon("rms_norm_eps", DEFAULT_EPSILON)?,
        max_position_embeddings: config.size("max_position_embeddings", None)?,
        rope: config.rope()?,
    })
}
