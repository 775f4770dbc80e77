//! Keys of a drafter's file, a `config.json` of Transformers, that are the same in the files of all drafters.
//!
//! They have no key of a recipe: a drafter takes its target's, or has one value for all targets. Where a file says something else, the
//! drafter would be another one, and that is told.

use serde_json::{Value, json};
use spectrain_models::TargetSpec;

/// A key of a drafter's file.
pub struct FileKey {
    /// Its name, tables and keys joined by dots. One with a `*` behind it stands for all keys whose names begin so.
    pub key: &'static str,
    /// What holds in place of it.
    pub holds: &'static str,
    /// Whether a value says that as well.
    is_same: fn(&Value, Option<&TargetSpec>) -> bool,
}

/// Tables and keys of the rotary embedding.
const ROTARIES: [&str; 3] = ["rope_theta", "rope_scaling.", "rope_parameters."];

const fn key(
    key: &'static str,
    holds: &'static str,
    is_same: fn(&Value, Option<&TargetSpec>) -> bool,
) -> FileKey {
    FileKey {
        key,
        holds,
        is_same,
    }
}

const METADATA: &str = "it changes nothing that a drafter computes";
const ROTARY: &str =
    "a drafter keeps the target's rotary embedding, with its scaling, in training as in the export";
const NO_BIAS: &str = "the layers have no bias, as engines expect";

// One key a line, as a table.
#[rustfmt::skip]
/// Every one of them; the first that fits holds.
pub const FILE_KEYS: &[FileKey] = &[
    key("hidden_size", "the drafter is as wide as the target", |value, target| same(value, target, |spec| spec.d_model)),
    key("target_hidden_size", "the target's own", |value, target| same(value, target, |spec| spec.d_model)),
    key("num_target_layers", "the target's own", |value, target| same(value, target, |spec| spec.layers)),
    key("vocab_size", "the target's own", |value, target| same(value, target, |spec| spec.vocab)),
    key("rms_norm_eps", "norms have the target's epsilon", |value, target| close(value, target, |spec| spec.norm_epsilon)),
    key("rope_*", ROTARY, |_, _| false),
    key("partial_rotary_factor", ROTARY, |value, _| value.as_f64() == Some(1.0)),
    key("hidden_act", "layers have SiLU, as engines expect", |value, _| value == "silu"),
    key("attention_bias", NO_BIAS, |value, _| value == false),
    key("mlp_bias", NO_BIAS, |value, _| value == false),
    key("attention_dropout", "there is no dropout", |value, _| value.as_f64() == Some(0.0)),
    key("pretraining_tp", METADATA, |value, _| value == 1),
    key("initializer_range", "spectrain draws weights that start at random in its own way", |_, _| true),
    key("tie_word_embeddings", "which parts a drafter shares with the target its own keys say", |_, _| true),
    key("max_position_embeddings", "the export says the target's longest context", |_, _| true),
    key("architectures", "`recipe` names the drafter", |_, _| true),
    key("auto_map.*", "spectrain runs no code of a model's folder", |_, _| true),
    key("model_type", METADATA, |_, _| true),
    key("torch_dtype", "weights are trained in f32, and exported in `export.dtype`", |_, _| true),
    key("dtype", "weights are trained in f32, and exported in `export.dtype`", |_, _| true),
    key("transformers_version", METADATA, |_, _| true),
    key("use_cache", METADATA, |_, _| true),
    key("bos_token_id", METADATA, |_, _| true),
    key("eos_token_id", METADATA, |_, _| true),
    key("pad_token_id", METADATA, |_, _| true),
    key("max_window_layers", METADATA, |_, _| true),
    key("_attn_implementation", METADATA, |_, _| true),
    key("_name_or_path", METADATA, |_, _| true),
];

/// What is to be told of a key that is none of these.
pub(super) const UNKNOWN: &str =
    "no key of a drafter's file that is known; see whether it changes what the drafter computes";

/// A key by its name in the file, where it is one of these.
pub(super) fn find(name: &str) -> Option<&'static FileKey> {
    FILE_KEYS
        .iter()
        .find(|known| match known.key.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => known.key == name,
        })
}

impl FileKey {
    /// What is to be told of a value under this name; nothing where the recipe says the same.
    pub(super) fn why_not(
        &self,
        name: &str,
        value: &Value,
        target: Option<&TargetSpec>,
    ) -> Option<&'static str> {
        let is_same = is_rotary(name, value, target) || (self.is_same)(value, target);
        (!is_same).then_some(self.holds)
    }
}

/// Whether a key is one of the target's rotary embedding, with the target's value, as far as that is known.
fn is_rotary(name: &str, value: &Value, target: Option<&TargetSpec>) -> bool {
    if !ROTARIES.iter().any(|table| name.starts_with(table)) {
        return false;
    }
    let Some(spec) = target else { return true };
    let last = name.rsplit('.').next().unwrap_or_default();
    let own = match last {
        "rope_theta" => json!(spec.rope.theta),
        last => {
            let last = if last == "type" { "rope_type" } else { last };
            serde_json::to_value(&spec.rope.scaling).unwrap_or_default()[last].clone()
        }
    };
    match (value.as_f64(), own.as_f64()) {
        (Some(number), Some(own)) => (number - own).abs() <= 1e-6 * own.abs(),
        _ => *value == own,
    }
}

/// Whether a number is the target's, as far as that is known.
fn same(value: &Value, target: Option<&TargetSpec>, of: fn(&TargetSpec) -> usize) -> bool {
    target.is_none_or(|spec| value.as_u64() == Some(of(spec) as u64))
}

fn close(value: &Value, target: Option<&TargetSpec>, of: fn(&TargetSpec) -> f64) -> bool {
    let is_close = |number: f64, other: f64| (number - other).abs() <= 1e-6 * other.abs();
    target.is_none_or(|spec| {
        value
            .as_f64()
            .is_some_and(|number| is_close(number, of(spec)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sizes::known_sizes;

    #[test]
    fn what_a_file_says_otherwise_is_told() {
        let (spec, _) = known_sizes("Qwen/Qwen3-8B", None).unwrap();
        let told = |name: &str, value: Value| find(name)?.why_not(name, &value, Some(&spec));
        for (name, value) in [
            ("hidden_size", json!(4096)),
            ("rope_theta", json!(1_000_000)),
            ("rms_norm_eps", json!(1e-6)),
            ("attention_bias", json!(false)),
            ("attention_dropout", json!(0.0)),
            ("rope_parameters.rope_type", json!("default")),
            ("dtype", json!("bfloat16")),
        ] {
            assert_eq!(told(name, value), None, "{name}");
        }
        for (name, value, part) in [
            ("hidden_size", json!(2048), "as wide"),
            ("rope_theta", json!(10000), "rotary"),
            ("rope_scaling.factor", json!(4.0), "rotary"),
            ("hidden_act", json!("gelu"), "SiLU"),
        ] {
            let found = told(name, value).unwrap_or_default();
            assert!(found.contains(part), "{name}: {found}");
        }
        // Of a target that is not known nothing is said.
        let width = find("hidden_size").unwrap();
        assert_eq!(width.why_not("hidden_size", &json!(1), None), None);
        assert!(find("unheard_of").is_none());
    }
}
