//! Reads a recipe file, with overrides from the command line.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::errors::Misuse;
use crate::families::registry;
use crate::recipe::change::Change;
use crate::recipe::document::Document;
use crate::recipe::problem::Problem;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::shipped::text_of;

/// Reads the recipe that a user names, a file or one that is shipped, and changes the keys that `overrides` (`train.steps=100`)
/// name.
pub fn read_file(path: &Path, overrides: &[String]) -> Result<ResolvedRecipe> {
    let text = text_of(path)?;
    let wrong = || Misuse(format!("cannot read the recipe `{}`", path.display()));
    read(&text, overrides).with_context(wrong)
}

/// Whether the recipe that a user names, or one of the overrides, sets one of these keys, such as `train.warmup_steps`.
pub fn is_set(path: &Path, overrides: &[String], keys: &[String]) -> Result<bool> {
    let text = text_of(path)?;
    let changes = Change::all(overrides, text.len() + 1)?;
    let document = Document::parse(&text, &changes)?;
    Ok(keys.iter().any(|key| document.sets(key)))
}

/// Reads the text of a recipe file.
pub fn read(text: &str, overrides: &[String]) -> Result<ResolvedRecipe> {
    let changes = Change::all(overrides, text.len() + 1)?;
    let document = Document::parse(text, &changes)?;
    let known = registry::names();
    let name = document.recipe(&known)?;
    let Some(kind) = registry::find(name) else {
        let message = format!("unknown recipe `{name}`; {}", registry::known(name));
        return Err(document.locate(&Problem::new("recipe", message)));
    };
    let resolved = (kind.read)(&document)?;
    resolved
        .check()
        .map_err(|problem| document.locate(&problem))?;
    Ok(resolved)
}
