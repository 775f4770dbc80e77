//! `spectrain schema`: what a recipe file may hold, as a JSON schema.

use anyhow::Result;
use clap::Args;

use crate::cli::Misuse;
use crate::cli::progress::print;
use crate::families::registry::{self, RECIPES, Recipe};
use crate::recipe::schema;

/// Arguments of `spectrain schema`.
#[derive(Debug, Args)]
pub struct SchemaArguments {
    /// Only this kind of recipe, by its name in `spectrain recipes`
    recipe: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &SchemaArguments) -> Result<()> {
    let recipes: Vec<&Recipe> = match &arguments.recipe {
        None => RECIPES.iter().collect(),
        Some(name) => {
            let unknown = || {
                let known = registry::names();
                Misuse(format!("unknown recipe `{name}`; known recipes: {known}"))
            };
            vec![registry::find(name).ok_or_else(unknown)?]
        }
    };
    print(schema::text(&recipes)?)
}
