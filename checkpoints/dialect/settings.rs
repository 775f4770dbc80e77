//! A drafter in words and numbers, without an engine's spellings.

use serde_json::{Map, Value};

use crate::config::Rope;
use crate::dtype::DType;

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
