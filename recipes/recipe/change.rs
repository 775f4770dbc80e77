//! Overrides of the command line.

use std::ops::Range;

use anyhow::{Context as _, Result, anyhow, bail};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::recipe::inline::is_bare;

/// An override as TOML of its own, at positions after the end of the file: an error's position tells which one it is about.
pub(super) struct Change {
    pub(super) given: String,
    toml: String,
    pub(super) positions: Range<usize>,
}

impl Change {
    /// All of the command line, at positions from `start` on.
    pub(super) fn all(overrides: &[String], mut start: usize) -> Result<Vec<Self>> {
        let mut changes = Vec::with_capacity(overrides.len());
        for given in overrides {
            let change =
                Self::new(given, start).with_context(|| format!("cannot read `--set {given}`"))?;
            start = change.positions.end;
            changes.push(change);
        }
        Ok(changes)
    }

    /// Reads `a.b=VALUE`; a value that is not TOML is a string.
    fn new(given: &str, start: usize) -> Result<Self> {
        let Some((key, value)) = given.split_once('=') else {
            bail!("expected KEY=VALUE");
        };
        let (key, value) = (key.trim(), value.trim());
        if !key.split('.').all(is_bare) {
            bail!("expected a key such as `train.steps`, found `{key}`");
        }
        let pad = " ".repeat(start);
        let mut toml = format!("{pad}{key}={value}");
        // Nothing after a first line may become a key of its own.
        if value.contains(['\n', '\r']) || DeTable::parse(&toml).is_err() {
            toml = format!("{pad}{key}={}", toml::Value::String(value.to_owned()));
        }
        Ok(Self {
            given: given.to_owned(),
            // An error at the end of the override is still its own.
            positions: start..toml.len() + 1,
            toml,
        })
    }

    /// The key that it sets.
    pub(super) fn key(&self) -> &str {
        self.given.split_once('=').map_or("", |(key, _)| key.trim())
    }

    /// Its table.
    pub(super) fn parse(&self) -> Result<DeTable<'_>> {
        let table = DeTable::parse(&self.toml).map_err(|error| anyhow!("{}", error.message()))?;
        Ok(table.into_inner())
    }
}

/// Puts the keys of `from` into `into`, which stands at `path`. The key `whole` of a table gets its new value as it is; a table of
/// the recipe keeps its other keys.
pub(super) fn merge<'a>(
    into: &mut DeTable<'a>,
    from: DeTable<'a>,
    (path, whole): (&str, &str),
) -> Result<()> {
    for (key, value) in from {
        let here = format!("{path}{}", key.get_ref());
        match into.get_mut(&key) {
            None => drop(into.insert(key, value)),
            Some(existing) => {
                // A key in a table is set, whatever it was: another choice takes the place of `{ tempered_kl = 0.5 }`.
                if here == whole && !path.is_empty() {
                    *existing = value;
                    continue;
                }
                let span = value.span();
                match (existing.get_mut(), value.into_inner()) {
                    (DeValue::Table(existing), DeValue::Table(changed)) => {
                        merge(existing, changed, (&format!("{here}."), whole))?;
                    }
                    (DeValue::Table(_), other) => {
                        bail!("`{here}` is a table, found {}", other.type_str())
                    }
                    (other, DeValue::Table(_)) if here != whole => {
                        bail!("`{here}` is not a table but {}", other.type_str())
                    }
                    (_, value) => *existing = Spanned::new(span, value),
                }
            }
        }
    }
    Ok(())
}
