//! What becomes of a trainer's settings: its rows.

use serde_json::{Map, Value};
use spectrain_models::TargetSpec;

use super::settings::{Given, TARGET};
use crate::runtime::sizes::known_sizes;

/// Another trainer.
pub struct Trainer {
    /// Its name.
    pub name: &'static str,
    /// The version whose settings these are.
    pub version: &'static str,
    /// The kinds of drafters that it trains, by its own names, with our name of each.
    pub kinds: &'static [(&'static str, &'static str)],
    /// Every setting that it knows. Where two make the same key of a recipe, the later one holds.
    pub rows: &'static [Row],
    /// What it does whatever is set: the kinds of drafters, the key of a recipe and its value in JSON.
    pub always: &'static [(&'static [&'static str], &'static str, &'static str)],
    /// The kind of drafter that settings are for.
    pub(super) kind: fn(&Map<String, Value>) -> String,
    /// Whether a file of settings, with names joined by dots, is one of its own.
    pub(super) is_of: fn(&Map<String, Value>) -> bool,
    /// The setting of a file, where the file has it under a longer name.
    pub(super) named: fn(&str) -> &str,
    /// Its programs.
    pub(super) programs: &'static [Program],
    /// Programs that run before it and say something of the data: their words, and what stands before the names of their flags.
    pub(super) before: &'static [(&'static [&'static str], &'static str)],
    /// Flags that a command may have several times, whose values then are one list; of others the last one holds.
    pub(super) repeated: &'static [&'static str],
    /// The setting that names the drafter's file, and what stands before the names of its keys.
    pub further: Option<(&'static str, &'static str)>,
}

/// A program of a trainer.
pub(super) struct Program {
    /// The words by which a command calls it.
    pub(super) words: &'static [&'static str],
    /// What it has whatever its arguments are, or by default where these are other defaults than the rows', as `KEY=VALUE`.
    pub(super) implies: &'static [&'static [&'static str]],
    /// Flags that are called otherwise than the rows, with the row of each.
    pub(super) flags: &'static [(&'static str, &'static str)],
}

impl Program {
    /// One whose flags and defaults are those of the rows.
    pub(super) const fn named(words: &'static [&'static str]) -> Self {
        Self {
            words,
            implies: &[],
            flags: &[],
        }
    }
}

/// A setting of a trainer.
pub struct Row {
    /// The kinds of drafters that it is for, by the trainer's names; none stands for all.
    pub kinds: &'static [&'static str],
    /// Its name. One with a `*` behind it stands for all settings whose names begin so and that have no row of their own.
    pub key: &'static str,
    /// Its default in JSON; empty where it has none.
    pub default: &'static str,
    /// What becomes of it.
    pub becomes: Becomes,
}

/// What becomes of a setting.
pub enum Becomes {
    /// The same value under this key of a recipe.
    Key(&'static str),
    /// What the function makes of it, which the text says.
    Made(&'static str, fn(&Asked) -> Made),
    /// No key of its own: another setting's row reads it, or the kind of drafter follows from it, as the text says.
    Read(&'static str),
    /// No key, for this reason.
    Nothing(&'static str),
}

/// A setting's value, and where to look for others.
pub struct Asked<'a> {
    /// The trainer.
    pub(super) trainer: &'a Trainer,
    /// The kind of drafter.
    pub(super) kind: &'a str,
    /// What was given.
    pub(super) given: &'a Given,
    /// The value: what was given, or the default; null where there is neither.
    pub(super) value: Value,
}

/// Keys of a recipe with their values, of which null takes a key out again, and what is to be told of them.
#[derive(Default)]
pub struct Made {
    pub(super) keys: Vec<(&'static str, Value)>,
    pub(super) note: Option<String>,
    /// Whether the note of another setting says that this one becomes no key.
    pub(super) is_told: bool,
    /// A key that the recipe lacks, as this setting says otherwise what it would be, and why that is not known.
    pub(super) lacks: Option<(&'static str, &'static str)>,
    /// How many processes share the batches of a step, where this is known.
    pub(super) processes: Option<u64>,
}

/// A row of `Trainer::rows`.
pub(super) const fn row(
    kinds: &'static [&'static str],
    key: &'static str,
    default: &'static str,
    becomes: Becomes,
) -> Row {
    Row {
        kinds,
        key,
        default,
        becomes,
    }
}

impl Row {
    /// Whether it is for drafters of this kind.
    pub fn is_for(&self, kind: &str) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// What the names of its settings begin with, where it stands for several.
    pub(super) fn prefix(&self) -> Option<&'static str> {
        self.key.strip_suffix('*')
    }

    /// What kind of value its default is, where another value is of another kind.
    pub(super) fn expected(&self, value: &Value) -> Option<&'static str> {
        let default: Value = serde_json::from_str(self.default).unwrap_or_default();
        let is_numbers = |value: &Value| match value {
            Value::Array(several) => several.iter().all(Value::is_number),
            one => one.is_number(),
        };
        match default {
            Value::Bool(_) if !value.is_boolean() => Some("true or false"),
            Value::Number(_) if !value.is_number() => Some("a number"),
            Value::Number(number) if !number.is_f64() && !is_whole(value) => Some("a whole number"),
            Value::Array(_) if !is_numbers(value) => Some("numbers"),
            Value::String(_) if value.is_array() => Some("one value"),
            _ => None,
        }
    }

    /// What is given of it, or its default.
    pub(super) fn value(&self, given: &Given) -> Value {
        let default = || serde_json::from_str(self.default).unwrap_or_default();
        given
            .settings
            .get(self.key)
            .cloned()
            .unwrap_or_else(default)
    }
}

impl Trainer {
    /// The sizes of the target that settings name, where they are known without a download.
    pub(super) fn sizes(&self, given: &Given) -> Option<TargetSpec> {
        let mut rows = self.rows.iter();
        let named = rows.find(|row| matches!(row.becomes, Becomes::Key(TARGET)))?;
        let (spec, _) = known_sizes(named.value(given).as_str()?, None)?;
        Some(spec)
    }
}

impl Asked<'_> {
    /// The value of another setting, or its default.
    pub(super) fn of(&self, key: &str) -> Value {
        let mut rows = self.trainer.rows.iter();
        let row = rows.find(|row| row.key == key && row.is_for(self.kind));
        row.map_or(Value::Null, |row| row.value(self.given))
    }

    /// The sizes of the target, where they are known without a download.
    pub(super) fn sizes(&self) -> Option<TargetSpec> {
        self.trainer.sizes(self.given)
    }

    /// The value, where it is a whole number.
    pub(super) fn whole(&self) -> Option<u64> {
        whole(&self.value)
    }

    /// A whole number of another setting.
    pub(super) fn count(&self, key: &str) -> Option<u64> {
        whole(&self.of(key))
    }
}

/// A whole number of at least 0, which may be written with a point or a power of ten.
fn whole(value: &Value) -> Option<u64> {
    let number = value.as_f64().filter(|number| *number >= 0.0);
    let rounded = number.filter(|_| is_whole(value))?;
    value.as_u64().or(Some(rounded as u64))
}

fn is_whole(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

impl Made {
    /// No key.
    pub(super) fn nothing() -> Self {
        Self::default()
    }

    /// One key.
    pub(super) fn key(key: &'static str, value: impl Into<Value>) -> Self {
        Self::keys([(key, value.into())])
    }

    /// Several keys.
    pub(super) fn keys(keys: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            ..Self::default()
        }
    }

    /// No key, with what to know of it.
    pub(super) fn note(text: impl Into<String>) -> Self {
        Self::nothing().with_note(text)
    }

    /// No key, as the note of another setting says.
    pub(super) fn told() -> Self {
        Self {
            is_told: true,
            ..Self::default()
        }
    }

    /// No key, so that the recipe lacks this one, for this reason.
    pub(super) fn lacking(key: &'static str, why: &'static str) -> Self {
        Self {
            lacks: Some((key, why)),
            ..Self::default()
        }
    }

    /// No key, as the value is not what it has to be.
    pub(super) fn expected(what: &str) -> Self {
        Self::note(format!("expected {what}"))
    }

    /// The same keys, with what to know of them.
    pub(super) fn with_note(self, text: impl Into<String>) -> Self {
        Self {
            note: Some(text.into()),
            ..self
        }
    }
}
