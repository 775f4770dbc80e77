//! Reads a recipe file, with overrides from the command line.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::errors::Misuse;
use crate::families::registry;
use crate::recipe::change::Change;
use crate::recipe::document::Document;
use crate::recipe::problem::Problem;
use crate::recipe::resolved::ResolvedRecipe;

/// Reads a recipe file and changes the keys that `overrides` (`train.steps=100`) name.
pub fn read_file(path: &Path, overrides: &[String]) -> Result<ResolvedRecipe> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the recipe `{}`", path.display()))?;
    let wrong = || Misuse(format!("cannot read the recipe `{}`", path.display()));
    read(&text, overrides).with_context(wrong)
}

/// Reads the text of a recipe file.
pub fn read(text: &str, overrides: &[String]) -> Result<ResolvedRecipe> {
    let changes = Change::all(overrides, text.len() + 1)?;
    let document = Document::parse(text, &changes)?;
    let known = registry::names();
    let name = document.recipe(&known)?;
    let Some(kind) = registry::find(name) else {
        let message = format!("unknown recipe `{name}`; known recipes: {known}");
        return Err(document.locate(&Problem::new("recipe", message)));
    };
    let resolved = (kind.read)(&document)?;
    resolved
        .check()
        .map_err(|problem| document.locate(&problem))?;
    Ok(resolved)
}
