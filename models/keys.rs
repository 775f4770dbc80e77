//! The keys of a `config.json`, each read as what it has to be.
use std::path::PathBuf;

use serde_json::Value;
use spectrain_checkpoints::absent::{self, HEAD_DIM, KV_HEADS};
use spectrain_checkpoints::keys::{MAX_SIZE, as_size};
use spectrain_checkpoints::{Mismatch, printable};

use crate::error::{Error, Result};

/// More layers than any model has.
const MAX_COUNT: usize = 4096;

/// Typed access to the keys of one `config.json`.
pub(crate) struct Keys<'a> {
    pub(crate) value: &'a Value,
    pub(crate) file: PathBuf,
}

impl Keys<'_> {
    pub(crate) fn problem(&self, key: &str, expected: &str) -> Error {
        Error::Config {
            file: self.file.clone(),
            key: key.into(),
            mismatch: Mismatch::new(
                expected,
                match self.value.get(key) {
                    None => "nothing".into(),
                    Some(value) => format!("`{}`", printable(&value.to_string())),
                },
            ),
        }
    }

    pub(crate) fn present(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize> {
        let size = self.value.get(key).and_then(as_size);
        size.ok_or_else(|| self.problem(key, &format!("a whole number from 1 to {MAX_SIZE}")))
    }

    /// A number of modules: what a file claims must not decide how much memory is asked for.
    pub(crate) fn count(&self, key: &str) -> Result<usize> {
        match self.size(key)? {
            count if count <= MAX_COUNT => Ok(count),
            _ => Err(self.problem(key, &format!("at most {MAX_COUNT}"))),
        }
    }

    pub(crate) fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        match self.present(key) {
            None => Ok(default),
            Some(_) => self.size(key),
        }
    }

    pub(crate) fn number(&self, key: &str) -> Result<f64> {
        let number = self.value.get(key).and_then(Value::as_f64);
        number.ok_or_else(|| self.problem(key, "a number"))
    }

    /// What keeps a norm from dividing by zero.
    pub(crate) fn epsilon(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.present(key) else {
            return Ok(default);
        };
        // Norms are computed in 32 bits.
        let sensible =
            |epsilon: &f64| *epsilon > 0.0 && *epsilon < 1.0 && (*epsilon as f32).is_normal();
        let epsilon = value.as_f64().filter(sensible);
        epsilon.ok_or_else(|| self.problem(key, "a number above 0 and below 1"))
    }

    /// The number of key and value heads, for so many query heads, which share them out.
    pub(crate) fn kv_heads(&self, heads: usize) -> Result<usize> {
        let of_type = absent::kv_heads(self.value).unwrap_or(heads);
        let kv_heads = self.size_or(KV_HEADS, of_type)?;
        if heads.is_multiple_of(kv_heads) {
            return Ok(kv_heads);
        }
        let mut expected = format!("a divisor of {heads}");
        if self.present(KV_HEADS).is_none() {
            expected += &format!(", as this `model_type` has {kv_heads} without it");
        }
        Err(self.problem(KV_HEADS, &expected))
    }

    /// The width of a head. Positions turn its halves, so it is even.
    pub(crate) fn head_dim(&self, d_model: usize, heads: usize) -> Result<usize> {
        let key = HEAD_DIM;
        if let Some(width) = absent::head_dim(self.value) {
            return Ok(width);
        }
        if self.present(key).is_none() && !d_model.is_multiple_of(heads) {
            let expected = format!(
                "a number, as a `hidden_size` of {d_model} is no multiple of {heads} heads"
            );
            return Err(self.problem(key, &expected));
        }
        match self.size_or(key, d_model / heads)? {
            width if width.is_multiple_of(2) => Ok(width),
            _ if self.present(key).is_some() => Err(self.problem(key, "an even number")),
            width => {
                let expected = format!(
                    "an even number, as a `hidden_size` of {d_model} over {heads} heads gives {width} each"
                );
                Err(self.problem(key, &expected))
            }
        }
    }

    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.present(key) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.problem(key, "`true` or `false`")),
        }
    }
}
