//! Medusa heads as vLLM loads them, up to 0.32.0 (<https://arxiv.org/abs/2401.10774>).
//!
//! vLLM neither misses absent tensors nor says that it drops biases where the configuration has no `medusa_fc_bias`, so
//! everything is checked here when a folder is written and when one is read.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Config, torch_dtype};
use crate::draft_heads::{Contents, TOKEN_MAP};
use crate::folder::{ModelFolder, WEIGHTS};
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result, TensorSpec, launch};

#[cfg(test)]
mod tests;

const ARCHITECTURE: &str = "MedusaModel";

/// Sizes of Medusa heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MedusaLayout {
    /// Width of the target's hidden states.
    pub hidden_size: usize,
    /// Size of the target's vocabulary.
    pub vocab_size: usize,
    /// Tokens that are drafted; equal to `vocab_size` where every one is.
    pub draft_vocab_size: usize,
    /// Heads.
    pub heads: usize,
    /// Residual blocks of each head.
    pub layers: usize,
    /// Whether the blocks add a bias.
    pub bias: bool,
    /// Whether all heads use one output layer, the target's, which then stands in the folder.
    pub shared_head: bool,
    /// The type of the weights.
    pub dtype: DType,
}

/// The tensors that a folder of this layout must hold.
pub fn required(layout: &MedusaLayout) -> Vec<TensorSpec> {
    let (hidden, vocab) = (layout.hidden_size, layout.draft_vocab_size);
    let mut found = Vec::new();
    let mut weight = |name: String, shape: Vec<usize>| found.push((name, shape, layout.dtype));
    for head in 0..layout.heads {
        for layer in 0..layout.layers {
            let name = format!("blocks.{head}.layers.{layer}");
            weight(format!("{name}.weight"), vec![hidden, hidden]);
            if layout.bias {
                weight(format!("{name}.bias"), vec![hidden]);
            }
        }
        if !layout.shared_head {
            weight(format!("lm_heads.{head}.weight"), vec![vocab, hidden]);
        }
    }
    if layout.shared_head {
        weight("lm_head.weight".into(), vec![vocab, hidden]);
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
    layout: &MedusaLayout,
    tensors: &[NamedTensor],
    provenance: &Value,
) -> Result<()> {
    contents(layout).write(dir, &to_json(layout), tensors, provenance)
}

/// Reads heads and checks them: every tensor known, of its shape, and none missing. Names are those of [`required`];
/// those of the authors' own files (`0.0.linear.weight`, `0.1.weight`) are understood too. Floats keep the type they are
/// stored in.
pub fn read(dir: &Path) -> Result<(MedusaLayout, Vec<NamedTensor>)> {
    let folder = ModelFolder::open(dir)?;
    let layout = from_json(&folder)?;
    let mut tensors = Vec::new();
    let mut stored_as: BTreeMap<String, String> = BTreeMap::new();
    for info in folder.tensors() {
        let name = canonical_name(&info.name, layout.layers);
        if let Some(first) = stored_as.insert(name.clone(), info.name.clone()) {
            let reason = format!(
                "holds one tensor under two names, `{first}` and `{}`",
                info.name
            );
            return Err(Error::Folder {
                path: dir.join(WEIGHTS),
                reason,
            });
        }
        tensors.push(NamedTensor {
            name,
            ..folder.read(&info.name)?
        });
    }
    contents(&layout).check_read(dir, &tensors)?;
    Ok((layout, tensors))
}

/// A command for vLLM, behind a line that says which versions it is for.
///
/// `draft_tokens` is the length of the drafted chain.
pub fn launch_lines(
    dir: &Path,
    layout: &MedusaLayout,
    target: &str,
    draft_tokens: usize,
) -> Vec<String> {
    vec![
        "# vLLM up to 0.32.0, which drafts a chain of the most likely tokens; 0.33 and other engines do not load Medusa"
            .to_string(),
        launch::vllm(dir, "medusa", target, draft_tokens.min(layout.heads)),
    ]
}

fn contents(layout: &MedusaLayout) -> Contents {
    Contents {
        required: required(layout),
        vocab_size: layout.vocab_size,
    }
}

fn to_json(layout: &MedusaLayout) -> Value {
    json!({
        "architectures": [ARCHITECTURE],
        "model_type": "medusa",
        "hidden_size": layout.hidden_size,
        "vocab_size": layout.vocab_size,
        "truncated_vocab_size": layout.draft_vocab_size,
        "num_heads": layout.heads,
        "num_hidden_layers": layout.layers,
        "medusa_fc_bias": layout.bias,
        "original_lm_head": layout.shared_head,
        "logit_scale": 1.0,
        "torch_dtype": torch_dtype(layout.dtype),
    })
}

fn from_json(folder: &ModelFolder) -> Result<MedusaLayout> {
    let config = Config::of(folder);
    let names = config.get("architectures").and_then(Value::as_array);
    let named = names.is_some_and(|names| names.iter().any(|name| name == ARCHITECTURE));
    if !named && config.get("model_type").is_none_or(|kind| kind != "medusa") {
        return Err(config.wrong("architectures", format!("`{ARCHITECTURE}`")));
    }
    if config.number("logit_scale", 1.0)? != 1.0 {
        return Err(config.wrong("logit_scale", "`1.0`"));
    }
    let vocab_size = config.size("vocab_size", None)?;
    let draft_vocab_size = config.size("truncated_vocab_size", Some(vocab_size))?;
    if draft_vocab_size > vocab_size {
        let expected = format!("at most `{vocab_size}`");
        return Err(config.wrong("truncated_vocab_size", expected));
    }
    let first_float = folder.tensors().find(|tensor| tensor.dtype.is_float());
    Ok(MedusaLayout {
        hidden_size: config.size("hidden_size", None)?,
        vocab_size,
        draft_vocab_size,
        heads: config.size("num_heads", None)?,
        layers: config.size("num_hidden_layers", Some(1))?,
        bias: config.flag("medusa_fc_bias", false)?,
        shared_head: config.flag("original_lm_head", false)?,
        dtype: first_float.map_or(DType::BF16, |tensor| tensor.dtype),
    })
}

/// `0.0.linear.weight` is a block and `0.1.weight` the output layer, where heads have one block.
fn canonical_name(stored: &str, layers: usize) -> String {
    let name = stored.strip_prefix("medusa_heads.").unwrap_or(stored);
    let parts: Vec<&str> = name.split('.').collect();
    let number = |part: &str| part.parse::<usize>().ok();
    match parts[..] {
        [head, layer, "linear", kind] if number(head).is_some() && number(layer).is_some() => {
            format!("blocks.{head}.layers.{layer}.{kind}")
        }
        [head, layer, "weight"] if number(head).is_some() && number(layer) == Some(layers) => {
            format!("lm_heads.{head}.weight")
        }
        _ => stored.to_string(),
    }
}
