//! A layout as `config.json`, and back.
//!
//! Captured layers are in two keys with two meanings. The top-level `eagle_aux_hidden_state_layer_ids` counts layers that
//! have run (vLLM, llama.cpp); the one under `eagle_config` is the index of the layer whose output is taken (SGLang,
//! TensorRT-LLM), as everywhere in this program. Each engine reads one of them, so both are written.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::{Eagle3Layout, Rope};
use crate::folder::{CONFIG, ModelFolder};
use crate::tensors::DType;
use crate::{Error, Result};

const LAYER_IDS: &str = "eagle_aux_hidden_state_layer_ids";
const ARCHITECTURE: &str = "LlamaForCausalLMEagle3";
/// Architectures of one llama layer behind `fc`, under the names engines accept.
const ARCHITECTURES: [&str; 2] = [ARCHITECTURE, "Eagle3LlamaForCausalLM"];
/// What engines take where a configuration says nothing.
const DEFAULT_THETA: f64 = 10_000.0;
const DEFAULT_EPSILON: f64 = 1e-6;
const DEFAULT_POSITIONS: usize = 2048;
/// Sizes above this are not sizes; below it, products of two fit a `usize`.
const MAX_SIZE: u64 = i32::MAX as u64;

/// The layers that engines capture when a configuration names none, for a target of so many layers.
pub fn default_captured_layers(target_layers: usize) -> Option<Vec<usize>> {
    let [low, middle, high] = [
        1,
        (target_layers / 2).checked_sub(1)?,
        target_layers.checked_sub(4)?,
    ];
    (low < middle && middle < high).then(|| vec![low, middle, high])
}

/// The configuration of a checked layout.
pub(super) fn to_json(layout: &Eagle3Layout) -> Value {
    let captured = &layout.captured_layers;
    let layers_run: Vec<usize> = captured.iter().map(|layer| layer + 1).collect();
    let dtype = match layout.dtype {
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => "float32",
    };
    let mut rope_parameters = Map::from_iter([("rope_type".to_string(), json!("default"))]);
    if let Some(scaling) = layout.rope.scaling.as_ref().and_then(Value::as_object) {
        rope_parameters.extend(scaling.clone());
    }
    rope_parameters.insert("rope_theta".to_string(), json!(layout.rope.rope_theta));
    let mut config = json!({
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": layout.layers,
        "hidden_size": layout.hidden_size,
        "intermediate_size": layout.intermediate_size,
        "num_attention_heads": layout.heads,
        "num_key_value_heads": layout.kv_heads,
        "head_dim": layout.head_dim,
        "vocab_size": layout.vocab_size,
        // Null, not absent: SGLang fails without the key, and vLLM takes null as the whole vocabulary.
        "draft_vocab_size": (!layout.shared_head).then_some(layout.draft_vocab_size),
        "target_hidden_size": layout.target_hidden_size,
        "hidden_act": "silu",
        "rms_norm_eps": layout.rms_norm_eps,
        "max_position_embeddings": layout.max_position_embeddings,
        "rope_theta": layout.rope.rope_theta,
        "rope_parameters": rope_parameters,
        "tie_word_embeddings": false,
        "attention_bias": false,
        "mlp_bias": false,
        // Written even when false: vLLM's default differs between its two formats.
        "norm_before_residual": layout.norm_before_residual,
        "num_aux_hidden_states": captured.len(),
        LAYER_IDS: layers_run,
        "eagle_config": {"use_aux_hidden_state": true, LAYER_IDS: captured},
        "torch_dtype": dtype,
    });
    if let Some(scaling) = &layout.rope.scaling {
        config["rope_scaling"] = scaling.clone();
    }
    for (key, value) in [
        ("fc_norm", layout.fc_norm),
        ("norm_output", layout.norm_output),
    ] {
        if value {
            config[key] = json!(true);
        }
    }
    config
}

/// The layout that a folder's configuration describes. `shared_head` and `dtype` are those of the weights, which say
/// more than the configuration; `target_layers` serves configurations that name no captured layers.
pub(super) fn from_json(
    folder: &ModelFolder,
    target_layers: Option<usize>,
    dtype: DType,
) -> Result<Eagle3Layout> {
    let config = Config {
        path: folder.path().join(CONFIG),
        root: folder.config(),
    };
    config.check_variant()?;
    let hidden_size = config.size("hidden_size", None)?;
    let heads = config.size("num_attention_heads", None)?;
    let kv_heads = config.size("num_key_value_heads", Some(heads))?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(config.wrong("num_key_value_heads", format!("a divisor of `{heads}`")));
    }
    let vocab_size = config.size("vocab_size", None)?;
    Ok(Eagle3Layout {
        hidden_size,
        target_hidden_size: config.size("target_hidden_size", Some(hidden_size))?,
        intermediate_size: config.size("intermediate_size", None)?,
        heads,
        kv_heads,
        head_dim: config.size("head_dim", Some(hidden_size / heads))?,
        layers: 1,
        vocab_size,
        draft_vocab_size: config.size("draft_vocab_size", Some(vocab_size))?,
        captured_layers: config.captured_layers(target_layers)?,
        norm_before_residual: config.flag("norm_before_residual", false)?,
        fc_norm: config.flag("fc_norm", false)?,
        norm_output: config.flag("norm_output", false)?,
        rms_norm_eps: config.number("rms_norm_eps", DEFAULT_EPSILON)?,
        max_position_embeddings: config.size("max_position_embeddings", Some(DEFAULT_POSITIONS))?,
        rope: config.rope()?,
        shared_head: folder.info("lm_head.weight").is_err(),
        dtype,
    })
}

/// A configuration, and where it is for the errors.
struct Config<'a> {
    path: PathBuf,
    root: &'a Value,
}

impl Config<'_> {
    /// The value under keys separated by dots; null is as good as nothing.
    fn get(&self, key: &str) -> Option<&Value> {
        let value = key
            .split('.')
            .try_fold(self.root, |value, part| value.get(part))?;
        (!value.is_null()).then_some(value)
    }

    fn wrong(&self, key: &str, expected: impl Into<String>) -> Error {
        Error::Key {
            path: self.path.clone(),
            key: key.to_string(),
            expected: expected.into(),
            got: self
                .get(key)
                .map_or("nothing".to_string(), |value| format!("`{value}`")),
        }
    }

    fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        let wrong = || self.wrong(key, format!("a whole number from 1 to {MAX_SIZE}"));
        let size = match (self.get(key), default) {
            (None, Some(default)) => default as u64,
            (value, _) => value.and_then(Value::as_u64).ok_or_else(wrong)?,
        };
        if (1..=MAX_SIZE).contains(&size) {
            Ok(size as usize)
        } else {
            Err(wrong())
        }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_f64()
            .filter(|number| *number > 0.0)
            .ok_or_else(|| self.wrong(key, "a number above 0"))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_bool()
            .ok_or_else(|| self.wrong(key, "`true` or `false`"))
    }

    /// Refuses what would be loaded into a module that computes something else.
    fn check_variant(&self) -> Result<()> {
        let named = self.get("architectures").and_then(Value::as_array);
        let known = |name: &Value| {
            name.as_str()
                .is_some_and(|name| ARCHITECTURES.contains(&name))
        };
        if !named.is_some_and(|names| names.iter().any(known)) {
            return Err(self.wrong(
                "architectures",
                format!("`{}` or `{}`", ARCHITECTURES[0], ARCHITECTURES[1]),
            ));
        }
        if self.size("num_hidden_layers", Some(1))? != 1 {
            return Err(self.wrong("num_hidden_layers", "`1`"));
        }
        if self.get("hidden_act").is_some_and(|value| value != "silu") {
            return Err(self.wrong("hidden_act", "`\"silu\"`"));
        }
        if self.number("logit_scale", 1.0)? != 1.0 {
            return Err(self.wrong("logit_scale", "`1.0`"));
        }
        let off = [
            "attention_bias",
            "mlp_bias",
            "bias",
            "tie_word_embeddings",
            "norm_before_fc",
            "eagle_config.norm_before_fc",
        ];
        for key in off {
            if self.flag(key, false)? {
                return Err(self.wrong(key, "`false`"));
            }
        }
        if !self.flag("eagle_config.use_aux_hidden_state", true)? {
            return Err(self.wrong("eagle_config.use_aux_hidden_state", "`true`"));
        }
        Ok(())
    }

    fn captured_layers(&self, target_layers: Option<usize>) -> Result<Vec<usize>> {
        let nested_key = format!("eagle_config.{LAYER_IDS}");
        let top = self.layer_ids(LAYER_IDS, 1)?;
        let nested = self.layer_ids(&nested_key, 0)?;
        let layers = match (top, nested) {
            (Some(top), Some(nested)) if top != nested => {
                return Err(self.wrong(&nested_key, format!("`{top:?}` (`{LAYER_IDS}` less one)")));
            }
            (Some(layers), _) | (None, Some(layers)) => layers,
            (None, None) => {
                let default = target_layers.and_then(default_captured_layers);
                default.ok_or_else(|| {
                    self.wrong(
                        LAYER_IDS,
                        "layer ids, or a target whose number of layers gives the default ones",
                    )
                })?
            }
        };
        if self.size("num_aux_hidden_states", Some(layers.len()))? != layers.len() {
            return Err(self.wrong(
                "num_aux_hidden_states",
                format!("`{}`, as many as there are layer ids", layers.len()),
            ));
        }
        Ok(layers)
    }

    /// Ascending layer ids under a key, counted from 0.
    fn layer_ids(&self, key: &str, first: u64) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let index = |id: &Value| {
            id.as_u64()
                .filter(|&id| id <= MAX_SIZE)?
                .checked_sub(first)
                .map(|id| id as usize)
        };
        let ids: Option<Vec<usize>> = value
            .as_array()
            .and_then(|ids| ids.iter().map(index).collect());
        match ids {
            Some(ids) if !ids.is_empty() && ids.is_sorted_by(|a, b| a < b) => Ok(Some(ids)),
            _ => Err(self.wrong(key, format!("ascending layer ids from {first}"))),
        }
    }

    /// `rope_parameters` or the older `rope_theta` and `rope_scaling`. Where there are both they must say the same.
    fn rope(&self) -> Result<Rope> {
        let rope_theta = self.number("rope_theta", DEFAULT_THETA)?;
        if self.get("rope_parameters").is_none() {
            return Ok(Rope {
                rope_theta,
                scaling: self.scaling("rope_scaling")?,
            });
        }
        let new_theta = self.number("rope_parameters.rope_theta", rope_theta)?;
        if self.get("rope_theta").is_some() && new_theta != rope_theta {
            return Err(self.wrong(
                "rope_parameters.rope_theta",
                format!("`{rope_theta}` as in `rope_theta`"),
            ));
        }
        let scaling = self.scaling("rope_parameters")?;
        if self.get("rope_scaling").is_some() && self.scaling("rope_scaling")? != scaling {
            return Err(self.wrong("rope_scaling", "the same as in `rope_parameters`"));
        }
        Ok(Rope {
            rope_theta: new_theta,
            scaling,
        })
    }

    /// The type of scaling and its parameters, without the base; nothing for the default type.
    fn scaling(&self, key: &str) -> Result<Option<Value>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let mut scaling = value
            .as_object()
            .cloned()
            .ok_or_else(|| self.wrong(key, "a table"))?;
        scaling.remove("rope_theta");
        // Older configurations call it `type`, some name it twice.
        if let Some(kind) = scaling.remove("type") {
            scaling.entry("rope_type").or_insert(kind);
        }
        match scaling.get("rope_type").and_then(Value::as_str) {
            Some("default") => Ok(None),
            Some(_) => Ok(Some(Value::Object(scaling))),
            None if scaling.is_empty() => Ok(None),
            None => Err(self.wrong(key, "a table with a `rope_type`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_layers_are_those_of_the_reference() {
        assert_eq!(default_captured_layers(32), Some(vec![1, 15, 28]));
        assert_eq!(default_captured_layers(8), Some(vec![1, 3, 4]));
        for layers in [0, 3, 4, 6] {
            assert_eq!(default_captured_layers(layers), None);
        }
    }
}
