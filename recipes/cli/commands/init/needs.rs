//! Keys of a drafter that have no default, as what is right for them is the target's: tokens that no text holds, and layers.

use anyhow::{Context as _, Result, anyhow, bail};

use super::keys::Keys;
use crate::runtime::free_tokens::{FreeToken, free_tokens};
use crate::runtime::sizes::sizes_of;

/// Keys that take a token that no text holds, each another one.
const TOKENS: [&str; 2] = ["mask_token", "separator_token"];
/// The key that takes the target's layers that a language model starts from.
const LAYERS: &str = "keep_layers";
/// The keys that say otherwise what a language model starts from.
const STARTS: [&str; 2] = ["model", "fresh"];

/// A line of `[drafter]`.
pub(super) struct Needed {
    /// Its key.
    pub(super) key: &'static str,
    /// `KEY = VALUE`, as in the recipe.
    pub(super) line: String,
    /// What is to be known of the value, in a sentence; empty where that is nothing.
    pub(super) about: String,
}

/// The lines of `[drafter]` that a recipe of these keys needs for `target` at `revision`; `is_set` says of a key of that table that it
/// is set already.
///
/// # Errors
/// The target's sizes or tokens are not known, or it has no token that no text holds.
pub(super) fn of(
    keys: &Keys,
    target: &str,
    revision: Option<&str>,
    is_set: &dyn Fn(&str) -> bool,
) -> Result<Vec<Needed>> {
    let names = keys.names("drafter");
    let has = |key: &&str| names.iter().any(|name| name == key) && !is_set(key);
    let tokens: Vec<&'static str> = TOKENS.into_iter().filter(has).collect();
    let starts = has(&LAYERS) && !STARTS.iter().any(|key| is_set(key));
    if tokens.is_empty() && !starts {
        return Ok(Vec::new());
    }
    let hint =
        |key: &str| format!("`--set drafter.{key}=VALUE` sets the key without reading the target");
    let sizes = sizes_of(target, revision);
    let first = tokens.first().copied().unwrap_or(LAYERS);
    let sizes = sizes.with_context(|| {
        format!(
            "the sizes of `{target}` are not known until it is downloaded; {}",
            hint(first)
        )
    })?;
    let mut lines = Vec::new();
    if starts {
        let last = sizes.spec.layers.saturating_sub(1);
        let layers = if last == 0 {
            "0".to_owned()
        } else {
            format!("0, {last}")
        };
        lines.push(Needed {
            key: LAYERS,
            line: format!("{LAYERS} = [{layers}]"),
            about: String::new(),
        });
    }
    if tokens.is_empty() {
        return Ok(lines);
    }
    let free = free_tokens(target, revision, sizes.spec.vocab);
    let free = free.map_err(|error| anyhow!("{error:#}; {}", hint(tokens[0])))?;
    if free.len() < tokens.len() {
        bail!(
            "`{target}` has too few tokens that occur in no text; {}",
            hint(tokens[0])
        );
    }
    let with_token = |(key, FreeToken { id, about }): (&'static str, &FreeToken)| Needed {
        key,
        line: format!("{key} = {id}"),
        about: format!("Token {id} of this target is {about}."),
    };
    lines.extend(tokens.into_iter().zip(&free).map(with_token));
    Ok(lines)
}
