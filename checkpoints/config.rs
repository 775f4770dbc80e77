//! What the configurations of all drafters have in common: sizes, flags and rotary positions, read with errors that
//! name the key.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::absent::{self, DEFAULT_THETA, HEAD_DIM, KV_HEADS};
use crate::dialect::reading::Reading;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::folder::{CONFIG, ModelFolder, READ_QUANTISED, TensorInfo, is_quantisation_read};
use crate::keys::{MAX_SIZE, as_size, value_at};
use crate::mismatch::Mismatch;
use crate::rotary::{self, BASE, BASES, ORIGINAL_POSITIONS, SHARE, SHARES, TABLES, UNSCALED};

/// More layers or heads than any drafter has.
const MAX_COUNT: usize = 1024;

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub rope_theta: f64,
    /// `rope_type` and its parameters, where it is not the default type.
    pub scaling: Option<Value>,
}

impl Rope {
    /// As settings hold it.
    pub(crate) fn setting(&self) -> Value {
        json!({"theta": self.rope_theta, "scaling": self.scaling})
    }

    /// As newer versions of transformers write it: the base among the parameters of the scaling.
    pub(crate) fn parameters(&self) -> Value {
        let mut parameters = Map::from_iter([("rope_type".to_string(), json!("default"))]);
        if let Some(scaling) = self.scaling.as_ref().and_then(Value::as_object) {
            parameters.extend(scaling.clone());
        }
        parameters.insert("rope_theta".to_string(), json!(self.rope_theta));
        Value::Object(parameters)
    }

    /// The scaling, if it is one that engines would take for the default.
    pub(crate) fn unnamed_scaling(&self) -> Option<&Value> {
        let named = |value: &Value| {
            value["rope_type"]
                .as_str()
                .is_some_and(|name| name != "default")
        };
        self.scaling.as_ref().filter(|value| !named(value))
    }
}

/// A type of weights as `torch_dtype` calls it.
pub(crate) fn torch_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => "float32",
    }
}

/// A configuration, and where it is for the errors.
pub(crate) struct Config<'a> {
    path: PathBuf,
    root: &'a Value,
    section: Option<&'static str>,
    folder: &'a ModelFolder,
    /// How the folder is to be understood, and the stored name of each of its tensors; for drafters.
    drafter: Option<(&'a Reading, &'a BTreeMap<String, String>)>,
}

/// What is known where nothing is given.
static UNREAD: Reading = Reading {
    target_layers: None,
    target_vocab: None,
    captured_layers: None,
    absolute_ids: false,
    norm_before_residual: false,
    sees_ahead: false,
};

impl<'a> Config<'a> {
    /// That of a folder.
    pub(crate) fn of(folder: &'a ModelFolder) -> Self {
        Self {
            path: folder.path().join(CONFIG),
            root: folder.config(),
            section: None,
            folder,
            drafter: None,
        }
    }

    /// That of a drafter, which is to be understood as `reading` says, by its tensors' stored names. Keys that are not at the
    /// top are looked for in the table `section`.
    pub(crate) fn read_as(
        self,
        reading: &'a Reading,
        names: &'a BTreeMap<String, String>,
        section: Option<&'static str>,
    ) -> Self {
        Self {
            drafter: Some((reading, names)),
            section,
            ..self
        }
    }

    /// The same with other contents, as they will be written.
    pub(crate) fn with_root(self, root: &'a Value) -> Self {
        Self { root, ..self }
    }

    /// How the folder is to be understood.
    pub(crate) fn reading(&self) -> &Reading {
        self.drafter.map_or(&UNREAD, |(reading, _)| reading)
    }

    /// The drafter's tensor of this name, where there is one.
    pub(crate) fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let (_, names) = self.drafter?;
        self.folder.info(names.get(name)?).ok()
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &ModelFolder {
        self.folder
    }

    /// The value under keys separated by dots; null is as good as nothing.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let in_section = || value_at(self.root.get(self.section?)?, key);
        value_at(self.root, key).or_else(in_section)
    }

    /// The table with the type of model whose sizes it holds: the section where that names one, as what is at the top then is a type
    /// of drafter.
    fn typed(&self) -> &'a Value {
        let section = self.section.and_then(|section| self.root.get(section));
        let typed = section.filter(|section| section.get("model_type").is_some());
        typed.unwrap_or(self.root)
    }

    /// The one of these keys that is there; the first where none is.
    ///
    /// # Errors
    /// Two of them are there and say different things.
    pub(crate) fn one_key(&self, keys: &[&'static str]) -> Result<&'static str> {
        let mut there = keys.iter().filter(|key| self.get(key).is_some());
        let Some(first) = there.next() else {
            return Ok(keys[0]);
        };
        match there.find(|key| self.get(key) != self.get(first)) {
            None => Ok(first),
            Some(other) => Err(self.wrong(other, format!("the same as in `{first}`"))),
        }
    }

    /// Fails for weights that are quantised otherwise than as [`ModelFolder`] reads them.
    pub(crate) fn check_quantisation(&self) -> Result<()> {
        match self.get("quantization_config") {
            Some(found) if !is_quantisation_read(found) => {
                Err(self.wrong("quantization_config", READ_QUANTISED))
            }
            _ => Ok(()),
        }
    }

    /// Sizes of lists of modules: what a folder claims must not decide how much memory is asked for.
    pub(crate) fn count(&self, key: &str, default: Option<usize>) -> Result<usize> {
        match self.size(key, default)? {
            count if count <= MAX_COUNT => Ok(count),
            _ => Err(self.wrong(key, format!("a whole number from 1 to {MAX_COUNT}"))),
        }
    }

    pub(crate) fn wrong(&self, key: &str, expected: impl Display) -> Error {
        Error::Key {
            path: self.path.clone(),
            key: key.to_string(),
            mismatch: Mismatch::new(
                expected,
                self.get(key)
                    .map_or("nothing".to_string(), |value| format!("`{value}`")),
            ),
        }
    }

    /// The width of a head. Positions turn its halves, so it is even.
    pub(crate) fn head_dim(&self, hidden_size: usize, heads: usize) -> Result<usize> {
        let key = HEAD_DIM;
        let of_type = absent::head_dim(self.typed()).filter(|_| self.get(key).is_none());
        if let Some(width) = of_type {
            return Ok(width);
        }
        if self.get(key).is_none() && !hidden_size.is_multiple_of(heads) {
            let expected = format!(
                "a number, as a `hidden_size` of `{hidden_size}` is no multiple of `{heads}` heads"
            );
            return Err(self.wrong(key, expected));
        }
        let width = self.size(key, Some((hidden_size / heads).max(1)))?;
        if width.is_multiple_of(2) {
            return Ok(width);
        }
        let mut expected = "an even number".to_owned();
        if self.get(key).is_none() {
            expected += &format!(
                ", as a `hidden_size` of `{hidden_size}` over `{heads}` heads gives `{width}` each"
            );
        }
        Err(self.wrong(key, expected))
    }

    /// What keeps a norm from dividing by zero.
    pub(crate) fn epsilon(&self, key: &str, default: f64) -> Result<f64> {
        let epsilon = self.number(key, default)?;
        if (epsilon as f32).is_normal() && epsilon < 1.0 {
            Ok(epsilon)
        } else {
            Err(self.wrong(key, "a number above 0 and below 1"))
        }
    }

    pub(crate) fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        let size = match (self.get(key), default) {
            (None, Some(default)) => as_size(&json!(default)),
            (value, _) => value.and_then(as_size),
        };
        size.ok_or_else(|| self.wrong(key, format!("a whole number from 1 to {MAX_SIZE}")))
    }

    /// Query heads, and key and value heads, which share them out.
    pub(crate) fn heads(&self) -> Result<(usize, usize)> {
        let heads = self.size("num_attention_heads", None)?;
        let of_type = absent::kv_heads(self.typed()).unwrap_or(heads);
        let kv_heads = self.size(KV_HEADS, Some(of_type))?;
        if heads.is_multiple_of(kv_heads) {
            return Ok((heads, kv_heads));
        }
        let mut expected = format!("a divisor of `{heads}`");
        if self.get(KV_HEADS).is_none() {
            expected += &format!(", as this `model_type` has `{kv_heads}` without it");
        }
        Err(self.wrong(KV_HEADS, expected))
    }

    pub(crate) fn number(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_f64()
            .filter(|number| *number > 0.0 && (*number as f32).is_finite())
            .ok_or_else(|| self.wrong(key, "a number above 0 that 32 bits hold"))
    }

    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_bool()
            .ok_or_else(|| self.wrong(key, "`true` or `false`"))
    }

    /// The word at `key`, the first of `words` where there is none.
    pub(crate) fn one_of(&self, key: &str, words: &[&str]) -> Result<String> {
        let Some(value) = self.get(key) else {
            return Ok(words[0].to_owned());
        };
        let known = value.as_str().filter(|word| words.contains(word));
        let expected = || words.iter().map(|word| format!("`\"{word}\"`"));
        let wrong = || self.wrong(key, expected().collect::<Vec<_>>().join(" or "));
        Ok(known.ok_or_else(wrong)?.to_owned())
    }

    /// Whether the base of the frequencies is given.
    pub(crate) fn has_rope_theta(&self) -> bool {
        BASES.iter().any(|key| self.get(key).is_some())
    }

    /// `rope_parameters` or the older `rope_theta` and `rope_scaling`. Where there are both they must say the same.
    pub(crate) fn rope(&self) -> Result<Rope> {
        self.rope_or(DEFAULT_THETA)
    }

    /// The same with another base where none is given.
    pub(crate) fn rope_or(&self, default: f64) -> Result<Rope> {
        for key in SHARES {
            if self.number(key, 1.0)? != 1.0 {
                return Err(self.wrong(
                    key,
                    "`1.0`, as rotary positions must cover whole heads here",
                ));
            }
        }
        self.rope_of_share(default)
    }

    /// The share of a head that positions turn, `default` where nothing is said.
    pub(crate) fn rotary_share(&self, default: f64) -> Result<f64> {
        let named = SHARES.iter().find(|key| self.get(key).is_some());
        named.map_or(Ok(default), |key| self.number(key, default))
    }

    /// The same as [`rope_or`](Self::rope_or) where positions may turn a part of a head.
    pub(crate) fn rope_of_share(&self, default: f64) -> Result<Rope> {
        let rope_theta = self.rope_theta(default)?;
        let [parameters, older] = TABLES;
        if self.get(parameters).is_none() {
            return Ok(Rope {
                rope_theta,
                scaling: self.scaling(older)?,
            });
        }
        let scaling = self.scaling(parameters)?;
        if self.get(older).is_some() && !are_same(&self.scaling(older)?, &scaling) {
            return Err(self.wrong(older, format!("the same as in `{parameters}`")));
        }
        Ok(Rope {
            rope_theta,
            scaling,
        })
    }

    /// The base of the frequencies, which all that name it must name alike.
    fn rope_theta(&self, default: f64) -> Result<f64> {
        let mut named = BASES.iter().filter(|key| self.get(key).is_some());
        let Some(first) = named.next() else {
            return Ok(default);
        };
        let theta = self.number(first, default)?;
        for key in named {
            if self.number(key, default)? != theta {
                return Err(self.wrong(key, format!("`{theta}` as in `{first}`")));
            }
        }
        Ok(theta)
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
        scaling.remove(BASE);
        scaling.remove(SHARE);
        rotary::rename_rule(&mut scaling);
        match scaling.get("rope_type").and_then(Value::as_str) {
            Some(kind) if UNSCALED.contains(&kind) => Ok(None),
            Some(_) => {
                let original = self.get(ORIGINAL_POSITIONS);
                let scaling = rotary::with_original(&scaling, original);
                Ok(Some(Value::Object(scaling)))
            }
            None if scaling.is_empty() => Ok(None),
            None => Err(self.wrong(key, "a table with a `rope_type`")),
        }
    }
}

/// Whether two tables say the same, where `4` is `4.0`.
fn are_same(one: &Option<Value>, other: &Option<Value>) -> bool {
    let numbers = |table: &Option<Value>| -> Option<Map<String, Value>> {
        let entries = table.as_ref()?.as_object()?.clone().into_iter();
        let number = |value: Value| value.as_f64().map_or(value, |number| json!(number));
        Some(entries.map(|(key, value)| (key, number(value))).collect())
    };
    numbers(one) == numbers(other)
}
