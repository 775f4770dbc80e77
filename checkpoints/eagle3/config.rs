//! A layout as `config.json`, and back.
//!
//! Captured layers are in two keys with two meanings. The top-level `eagle_aux_hidden_state_layer_ids` counts layers that
//! have run (vLLM, llama.cpp); the one under `eagle_config` is the index of the layer whose output is taken (SGLang,
//! TensorRT-LLM), as everywhere in this program. Each engine reads one of them, so both are written. AngelSlim has a third,
//! `aux_hidden_states_layer_ids`, with the second meaning.

use serde_json::{Value, json};

use super::{Eagle3Layout, Reading, speculators};
use crate::Result;
use crate::config::{Config, DEFAULT_EPSILON, DEFAULT_POSITIONS, MAX_SIZE, torch_dtype};
use crate::folder::ModelFolder;
use crate::speculators::{LAYER_CONFIG, MODEL_TYPE};
use crate::tensors::DType;

pub(super) const LAYER_IDS: &str = "eagle_aux_hidden_state_layer_ids";
pub(super) const NESTED_LAYER_IDS: &str = "eagle_config.eagle_aux_hidden_state_layer_ids";
pub(super) const ANGELSLIM_LAYER_IDS: &str = "aux_hidden_states_layer_ids";
/// The types of a layer that sees some positions back, and of one that sees all.
const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";
const ARCHITECTURE: &str = "LlamaForCausalLMEagle3";
/// Architectures of llama layers behind `fc`, under the names engines accept.
const ARCHITECTURES: [&str; 3] = [
    ARCHITECTURE,
    "Eagle3LlamaForCausalLM",
    speculators::ARCHITECTURE,
];
/// What the training code of the paper's authors says; only they have the key beside it.
const PUBLISHED: (&str, &str) = ("LlamaForCausalLM", "draft_vocab_size");

/// Whether a `config.json` is of an EAGLE-3 drafter, ours or a published one.
pub fn recognises(config: &Value) -> bool {
    let names = config["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    let eagle3 = |name: &str| {
        let published = name == PUBLISHED.0 && config.get(PUBLISHED.1).is_some();
        name.to_lowercase().contains("eagle3") || published
    };
    names.any(eagle3) || config[MODEL_TYPE] == "eagle3"
}

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
        "tie_word_embeddings": false,
        "attention_bias": false,
        "mlp_bias": false,
        // Written even when false: vLLM's default differs between its two formats.
        "norm_before_residual": layout.norm_before_residual,
        "num_aux_hidden_states": captured.len(),
        LAYER_IDS: layers_run,
        "eagle_config": {"use_aux_hidden_state": true, LAYER_IDS: captured},
        "torch_dtype": torch_dtype(layout.dtype),
    });
    layout.rope.write(&mut config);
    write_window(layout, &mut config);
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

/// Adds the window of the layers, which vLLM reads under their types.
pub(super) fn write_window(layout: &Eagle3Layout, config: &mut Value) {
    if layout.window > 0 {
        config["layer_types"] = json!(vec![SLIDING; layout.layers]);
        config["sliding_window"] = json!(layout.window);
    }
}

/// The layout that a folder's configuration describes. `shared_head` and `dtype` are those of the weights, which say
/// more than the configuration.
pub(super) fn from_json(
    folder: &ModelFolder,
    reading: &Reading,
    shared_head: bool,
    dtype: DType,
) -> Result<Eagle3Layout> {
    let config = of(folder);
    config.check_variant()?;
    let hidden_size = config.size("hidden_size", None)?;
    let (heads, kv_heads) = config.heads()?;
    let vocab_size = config.size("vocab_size", None)?;
    Ok(Eagle3Layout {
        hidden_size,
        target_hidden_size: config.size("target_hidden_size", Some(hidden_size))?,
        intermediate_size: config.size("intermediate_size", None)?,
        heads,
        kv_heads,
        head_dim: config.head_dim(hidden_size, heads)?,
        layers: config.count("num_hidden_layers", Some(1))?,
        vocab_size,
        draft_vocab_size: config.size("draft_vocab_size", Some(vocab_size))?,
        captured_layers: {
            let layers = match &reading.captured_layers {
                Some(layers) => layers.clone(),
                None => config.captured_layers(reading.target_layers)?,
            };
            config.check_count(&layers)?;
            layers
        },
        norm_before_residual: config.flag("norm_before_residual", reading.norm_before_residual)?,
        fc_norm: config.flag("fc_norm", false)?,
        norm_output: config.flag("norm_output", false)?,
        window: config.window()?,
        rms_norm_eps: config.epsilon("rms_norm_eps", DEFAULT_EPSILON)?,
        max_position_embeddings: config.size("max_position_embeddings", Some(DEFAULT_POSITIONS))?,
        rope: config.rope()?,
        shared_head,
        dtype,
    })
}

/// The configuration of a folder, in this layout or in that of speculators.
pub(super) fn of(folder: &ModelFolder) -> Config<'_> {
    let config = Config::of(folder);
    match config.get(MODEL_TYPE).is_some() {
        true => config.with_section(LAYER_CONFIG),
        false => config,
    }
}

impl Config<'_> {
    /// Refuses what would be loaded into a module that computes something else.
    fn check_variant(&self) -> Result<()> {
        let named = self.get("architectures").and_then(Value::as_array);
        let known = |name: &Value| {
            name.as_str()
                .is_some_and(|name| ARCHITECTURES.contains(&name) || name == PUBLISHED.0)
        };
        // The library's name of the kind says more than the class, which it calls otherwise in each version.
        let by_kind = self.get(MODEL_TYPE).is_some();
        if !by_kind && !named.is_some_and(|names| names.iter().any(known)) {
            let known = ARCHITECTURES.map(|name| format!("`{name}`")).join(", ");
            return Err(self.wrong("architectures", format!("one of {known}")));
        }
        if self.get("model_type").is_some_and(|kind| kind != "llama") {
            return Err(self.wrong("model_type", "`\"llama\"`"));
        }
        if self.get(MODEL_TYPE).is_some_and(|kind| kind != "eagle3") {
            return Err(self.wrong(MODEL_TYPE, "`\"eagle3\"`"));
        }
        self.check_unquantised()?;
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
        // How ModelOpt spells that its layer is the usual one.
        for key in [
            "eagle_config.use_aux_hidden_state",
            "eagle_config.use_input_layernorm_in_first_layer",
            "eagle_config.use_last_layernorm",
        ] {
            if !self.flag(key, true)? {
                return Err(self.wrong(key, "`true`"));
            }
        }
        if self.flag("eagle_config.use_mtp_layernorm", false)? {
            return Err(self.wrong("eagle_config.use_mtp_layernorm", "`false`"));
        }
        let steps = "eagle_config.parallel_draft_step";
        if self.size(steps, Some(1))? != 1 {
            return Err(self.wrong(steps, "`1`"));
        }
        Ok(())
    }

    /// How many positions back every layer sees, as their types say; 0 for all.
    fn window(&self) -> Result<usize> {
        let key = "layer_types";
        let Some(value) = self.get(key) else {
            return Ok(0);
        };
        let layers = self.count("num_hidden_layers", Some(1))?;
        let types = value.as_array().filter(|types| types.len() == layers);
        let all = |kind: &str| types.is_some_and(|types| types.iter().all(|found| *found == kind));
        if all(FULL) {
            Ok(0)
        } else if all(SLIDING) {
            self.size("sliding_window", None)
        } else {
            Err(self.wrong(
                key,
                format!("{layers} of `{FULL}`, or as many of `{SLIDING}`"),
            ))
        }
    }

    fn captured_layers(&self, target_layers: Option<usize>) -> Result<Vec<usize>> {
        let top = self.layer_ids(LAYER_IDS, 1)?;
        let nested = self.layer_ids(NESTED_LAYER_IDS, 0)?;
        let angelslim = self.layer_ids(ANGELSLIM_LAYER_IDS, 0)?;
        let layers = match (top, nested.or(angelslim)) {
            (Some(top), Some(nested)) if top != nested => {
                let key = match self.get(NESTED_LAYER_IDS) {
                    Some(_) => NESTED_LAYER_IDS,
                    None => ANGELSLIM_LAYER_IDS,
                };
                return Err(self.wrong(key, format!("`{top:?}` (`{LAYER_IDS}` less one)")));
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
        Ok(layers)
    }

    fn check_count(&self, layers: &[usize]) -> Result<()> {
        match self.size("num_aux_hidden_states", Some(layers.len()))? == layers.len() {
            true => Ok(()),
            false => Err(self.wrong(
                "num_aux_hidden_states",
                format!("`{}`, as many as there are layer ids", layers.len()),
            )),
        }
    }

    /// Fails unless every key of layer ids that is there holds some, ascending, whatever they count from.
    pub(super) fn check_layer_ids(&self) -> Result<()> {
        if self
            .get("eagle_config")
            .is_some_and(|table| !table.is_object())
        {
            return Err(self.wrong("eagle_config", "a table"));
        }
        for key in [LAYER_IDS, NESTED_LAYER_IDS, ANGELSLIM_LAYER_IDS] {
            self.layer_ids(key, 0)?;
        }
        Ok(())
    }

    /// Ascending layer ids under a key, counted from 0.
    pub(super) fn layer_ids(&self, key: &str, first: u64) -> Result<Option<Vec<usize>>> {
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
