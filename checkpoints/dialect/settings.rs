//! A drafter in words and numbers, without an engine's spellings.

use serde_json::{Map, Value};

use crate::config::Rope;
use crate::dtype::DType;

/// Whether the blocks of Medusa's heads have biases in a folder; here they always have.
pub(crate) const BLOCK_BIAS: &str = "block_bias";
/// Settings that need be no keys of `[drafter]`: those that a drafter can have in common with its target, and what is only needed to
/// read its tensors.
const NO_KEYS: [&str; 11] = [
    "d_model",
    "d_ff",
    "heads",
    "kv_heads",
    "d_head",
    "vocab",
    "target_layers",
    "norm_epsilon",
    "max_positions",
    "rope",
    BLOCK_BIAS,
];

/// What a folder says of a drafter, under the names of `[drafter]` in recipes, with every size filled in; beside these the
/// sizes that it has in common with its target: `d_model`, `d_head`, `vocab`, `target_layers`, `norm_epsilon`,
/// `max_positions` and `rope`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings(Map<String, Value>);

impl Settings {
    /// Those of a table.
    pub fn of(table: Map<String, Value>) -> Self {
        Self(table)
    }

    /// All of them.
    pub fn table(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Sets one; behind a dot, one of a table.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        match key.split_once('.') {
            None => drop(self.0.insert(key.to_owned(), value.into())),
            Some((table, key)) => self.0.entry(table).or_insert(Value::Null)[key] = value.into(),
        }
    }

    /// One of them, behind a dot one of a table; nothing where it is absent or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let value = match key.split_once('.') {
            None => self.0.get(key),
            Some((table, key)) => self.0.get(table)?.get(key),
        };
        value.filter(|value| !value.is_null())
    }

    /// The first that says something and is no key of this `[drafter]` table, nor one that need be none: a drafter of such a table would
    /// compute something else.
    pub fn beyond(&self, table: &Value) -> Option<(&str, &Value)> {
        let changes = |value: &Value| match value {
            Value::Null => false,
            Value::Bool(flag) => *flag,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(word) => !word.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Object(_) => true,
        };
        let is_known = |key: &str| table.get(key).is_some() || NO_KEYS.contains(&key);
        let mut all = self.0.iter().map(|(key, value)| (key.as_str(), value));
        all.find(|(key, value)| !is_known(key) && changes(value))
    }

    /// A size; 0 where there is none.
    pub fn size(&self, key: &str) -> usize {
        self.get(key).and_then(Value::as_u64).unwrap_or(0) as usize
    }

    /// A switch, which is off where there is none.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A word; an empty one where there is none.
    pub fn word(&self, key: &str) -> &str {
        self.get(key).and_then(Value::as_str).unwrap_or("")
    }

    /// Sizes in a list; none where there is none.
    pub fn sizes(&self, key: &str) -> Vec<usize> {
        let list = self.get(key).and_then(Value::as_array);
        let sizes = list.into_iter().flatten().filter_map(Value::as_u64);
        sizes.map(|size| size as usize).collect()
    }

    /// Whether fewer tokens can be proposed than the target knows.
    pub fn has_draft_vocab(&self) -> bool {
        self.get("draft_vocab").is_some() && self.size("draft_vocab") != self.size("vocab")
    }

    /// Whether the target's head is used, and none is the drafter's own.
    pub fn shares_head(&self) -> bool {
        self.word("head") == "shared"
    }

    /// The rotary positions, where there are any.
    pub fn rope(&self) -> Option<Rope> {
        let rope = self.get("rope")?;
        Some(Rope {
            rope_theta: rope["theta"].as_f64()?,
            scaling: Some(rope["scaling"].clone()).filter(|scaling| !scaling.is_null()),
        })
    }

    /// Sets the rotary positions.
    pub fn set_rope(&mut self, rope: &Rope) {
        self.set("rope", rope.setting());
    }

    /// Sets the type of the weights.
    pub(crate) fn set_dtype(&mut self, dtype: DType) {
        self.set("dtype", crate::config::torch_dtype(dtype));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_setting_that_is_on_and_no_key_is_beyond_a_table() {
        let table = json!({"window": 0, "mask_token": null});
        let mut settings = Settings::default();
        for (key, value) in [
            ("d_model", json!(32)),
            ("window", json!(9)),
            ("mask_token", json!(3)),
            ("gate", json!(false)),
            ("taps", json!(0)),
            ("kind", json!("")),
            ("full", json!([])),
            ("scale", Value::Null),
        ] {
            settings.set(key, value);
        }
        assert_eq!(settings.beyond(&table), None);
        for value in [json!(true), json!(0.5), json!("rnn"), json!([0])] {
            settings.set("other", value.clone());
            assert_eq!(settings.beyond(&table), Some(("other", &value)));
        }
    }
}
