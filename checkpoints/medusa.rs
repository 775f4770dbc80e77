//! Medusa heads as vLLM loads them, up to 0.32.0 (<https://arxiv.org/abs/2401.10774>).
//!
//! vLLM neither misses absent tensors nor says that it drops biases where the configuration has no `medusa_fc_bias`, so
//! everything is checked here when a folder is written and when one is read.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Config, torch_dtype};
use crate::draft_heads::{Contents, TOKEN_MAP};
use crate::folder::{ModelFolder, TensorInfo};
use crate::launch::{self, Launch};
use crate::names::{read_named, stored_names, unwrapped};
use crate::tensors::{DType, NamedTensor};
use crate::{Error, Result, TensorSpec};

#[cfg(test)]
pub(crate) mod tests;

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
    contents(layout).check_layout("Medusa", layout.heads)?;
    contents(layout).write(dir, &to_json(layout), tensors, provenance)
}

/// Whether a `config.json` is of Medusa heads, ours or published ones.
pub fn recognises(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    let named = names.is_some_and(|names| names.iter().any(|name| name == ARCHITECTURE));
    let keys = [AUTHORS.heads, MODELOPT.heads];
    let published = keys.iter().any(|key| lookup(config, key).is_some());
    named || config["model_type"] == "medusa" || published
}

/// Reads heads and checks them: every tensor known, of its shape, and none missing. Names are those of [`required`];
/// those of the authors' own files (`0.0.linear.weight`, `0.1.weight`) are understood too, and their configuration, which
/// names no sizes. Floats keep the type they are stored in.
pub fn read(dir: &Path) -> Result<(MedusaLayout, Vec<NamedTensor>)> {
    let folder = ModelFolder::open(dir)?;
    let layers = layers(&Config::of(&folder))?;
    let names = stored_names(&folder, |stored| canonical_name(stored, layers))?;
    let info = |name: &str| names.get(name).and_then(|stored| folder.info(stored).ok());
    let layout = from_json(&folder, layers, &info)?;
    let tensors = read_named(&folder, &names)?;
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
) -> Vec<Launch> {
    vec![
        Launch::remark(
            "vLLM up to 0.32.0, which drafts a chain; 0.33 and other engines do not load Medusa",
        ),
        launch::vllm(dir, "medusa", target, draft_tokens.min(layout.heads)).likeliest_alone(),
    ]
}

fn contents(layout: &MedusaLayout) -> Contents {
    Contents {
        required: required(layout),
        vocab_size: layout.vocab_size,
        draft_vocab_size: layout.draft_vocab_size,
        dtype: layout.dtype,
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

/// Where configurations other than vLLM's name numbers of heads and blocks.
struct Keys {
    heads: &'static str,
    layers: &'static str,
}

const VLLM: Keys = Keys {
    heads: "num_heads",
    layers: "num_hidden_layers",
};
const AUTHORS: Keys = Keys {
    heads: "medusa_num_heads",
    layers: "medusa_num_layers",
};
const MODELOPT: Keys = Keys {
    heads: "medusa.num_medusa_heads",
    layers: "medusa.num_medusa_layers",
};

fn lookup<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.')
        .try_fold(config, |value, part| value.get(part))
}

/// Which of these a configuration uses.
fn keys(config: &Config) -> Keys {
    let used = |keys: &Keys| config.get(keys.heads).is_some();
    let others = [AUTHORS, MODELOPT];
    others.into_iter().find(used).unwrap_or(VLLM)
}

/// Fails where two programs' keys for one number are there and differ.
fn check_counts(config: &Config) -> Result<()> {
    let all = [AUTHORS, MODELOPT, VLLM];
    let used = all.iter().filter(|keys| config.get(keys.heads).is_some());
    let used: Vec<&Keys> = used.collect();
    if used.is_empty() {
        return Ok(());
    }
    config.one_key(&used.iter().map(|keys| keys.heads).collect::<Vec<_>>())?;
    // In a folder without vLLM's number of heads its other key is the target's.
    config.one_key(&used.iter().map(|keys| keys.layers).collect::<Vec<_>>())?;
    Ok(())
}

fn layers(config: &Config) -> Result<usize> {
    config.count(keys(config).layers, Some(1))
}

/// The authors' configuration has neither sizes nor a word on the bias; the tensors do.
fn from_json<'a>(
    folder: &ModelFolder,
    layers: usize,
    info: &impl Fn(&str) -> Option<&'a TensorInfo>,
) -> Result<MedusaLayout> {
    let config = Config::of(folder);
    if !recognises(folder.config()) {
        return Err(config.wrong("architectures", format!("`{ARCHITECTURE}`")));
    }
    config.check_unquantised()?;
    if config.number("logit_scale", 1.0)? != 1.0 {
        return Err(config.wrong("logit_scale", "`1.0`"));
    }
    check_counts(&config)?;
    let heads = config.count(keys(&config).heads, None)?;
    let shared_head = config.flag("original_lm_head", false)?;
    let head = match shared_head {
        true => "lm_head.weight",
        false => "lm_heads.0.weight",
    };
    let head = info(head).map(|head| head.shape.as_slice());
    let &[rows, width] = head.unwrap_or_default() else {
        let name = "lm_heads.0.weight".to_string();
        let path = folder.path().to_path_buf();
        return Err(Error::NoTensor { name, path });
    };
    let vocab_size = config.size("vocab_size", Some(rows))?;
    let draft_vocab_size = config.size("truncated_vocab_size", Some(vocab_size))?;
    if draft_vocab_size > vocab_size {
        let expected = format!("at most `{vocab_size}`");
        return Err(config.wrong("truncated_vocab_size", expected));
    }
    let first_float = folder.tensors().find(|tensor| tensor.dtype.is_float());
    let has_bias = info("blocks.0.layers.0.bias").is_some();
    // What vLLM takes a missing key for would drop the authors' biases.
    let default = keys(&config).heads != VLLM.heads && has_bias;
    Ok(MedusaLayout {
        hidden_size: config.size("hidden_size", Some(width))?,
        vocab_size,
        draft_vocab_size,
        heads,
        layers,
        bias: config.flag("medusa_fc_bias", default)?,
        shared_head,
        dtype: first_float.map_or(DType::BF16, |tensor| tensor.dtype),
    })
}

/// `0.0.linear.weight` is a block and `0.1.weight` the output layer, where heads have one block.
fn canonical_name(stored: &str, layers: usize) -> String {
    let name = unwrapped(stored);
    let name = name.strip_prefix("medusa_heads.").unwrap_or(name);
    let name = name.strip_prefix("medusa_head.").unwrap_or(name);
    let parts: Vec<&str> = name.split('.').collect();
    let number = |part: &str| part.parse::<usize>().ok();
    match parts[..] {
        [head, layer, "linear", kind] if number(head).is_some() && number(layer).is_some() => {
            format!("blocks.{head}.layers.{layer}.{kind}")
        }
        [head, layer, "weight"] if number(head).is_some() && number(layer) == Some(layers) => {
            format!("lm_heads.{head}.weight")
        }
        _ => name.to_string(),
    }
}
