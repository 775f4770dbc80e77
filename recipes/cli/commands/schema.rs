//! `spectrain schema`: what a recipe file may hold, as a JSON schema.

use anyhow::{Context as _, Result};
use clap::Args;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use serde_json::{Map, Value, json};

use crate::errors::Misuse;
use crate::families::registry::{self, RECIPES, Recipe};
use crate::progress::print;
use crate::recipe::file::File;
use crate::recipe::schema::OwnTables;

/// A table whose keys are another recipe's business.
type Any = Map<String, Value>;

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
                let known = registry::known(name);
                Misuse(format!("unknown recipe `{name}`; {known}"))
            };
            vec![registry::find(name).ok_or_else(unknown)?]
        }
    };
    print(text(&recipes)?)
}

/// The schema of recipe files of these kinds. Draft 7, which every editor's extension for TOML knows.
pub fn of(recipes: &[&Recipe]) -> Schema {
    let mut generator = SchemaSettings::draft07().into_generator();
    let own = |recipe: &&Recipe| (recipe.schema)(&mut generator);
    let tables: Vec<OwnTables> = recipes.iter().map(own).collect();
    let mut schema = generator.into_root_schema_for::<File<Any, Any>>();
    schema.insert("title".into(), "A recipe of spectrain".into());
    let about = "Which drafter is trained for which target, on which data, and how it is judged.";
    schema.insert("description".into(), about.into());
    // Tables without a required key may be left out.
    schema.insert("required".into(), json!(["recipe", "name"]));
    let kinds: Vec<Value> = recipes
        .iter()
        .zip(&tables)
        .map(|(recipe, own)| {
            json!({
                "if": { "properties": { "recipe": { "const": recipe.name } } },
                "then": { "properties": properties(recipe, own) },
            })
        })
        .collect();
    schema.insert("allOf".into(), kinds.into());
    let names: Vec<&str> = recipes.iter().map(|recipe| recipe.name).collect();
    // Editors complete keys by what stands here, whatever the recipe.
    let drafters: Vec<&Schema> = tables.iter().map(|own| &own.drafter).collect();
    let objectives: Vec<&Schema> = tables.iter().map(|own| &own.objective).collect();
    let shared = [
        ("recipe", "enum", json!(names)),
        ("drafter", "anyOf", json!(drafters)),
        ("objective", "anyOf", json!(objectives)),
    ];
    for (key, word, value) in shared {
        if let Some(property) = schema.pointer_mut(&format!("/properties/{key}")) {
            property[word] = value;
        }
    }
    RecursiveTransform(as_toml).transform(&mut schema);
    schema
}

/// The same as the text of a file.
///
/// # Errors
/// It cannot be written as JSON.
pub fn text(recipes: &[&Recipe]) -> Result<String> {
    let text = serde_json::to_string_pretty(&of(recipes));
    Ok(text.context("cannot write the schema")? + "\n")
}

/// TOML has no `null`: a key that may be left out is not required. Descriptions are of one paragraph.
fn as_toml(schema: &mut Schema) {
    let is_null = |value: &Value| *value == json!("null") || *value == json!({ "type": "null" });
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    object.retain(|key, value| !(key == "default" && value.is_null()));
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    for key in ["type", "anyOf"] {
        let Some(Value::Array(choices)) = object.get_mut(key) else {
            continue;
        };
        choices.retain(|choice| !is_null(choice));
        if choices.len() > 1 {
            continue;
        }
        match (key, choices.pop()) {
            ("type", Some(only)) => drop(object.insert(key.into(), only)),
            (_, Some(only)) => {
                object.remove(key);
                object.insert("allOf".into(), json!([only]));
            }
            _ => {}
        }
    }
}

/// What the tables of a recipe have to be.
fn properties(recipe: &Recipe, own: &OwnTables) -> Value {
    let stages = match recipe.stages {
        // A recipe that trains in one stage has no such table.
        [] | [_] => json!(false),
        several => json!({ "propertyNames": { "enum": several } }),
    };
    json!({
        "recipe": { "const": recipe.name, "description": recipe.about },
        "drafter": own.drafter,
        "objective": own.objective,
        "stages": stages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::registry::find;

    #[test]
    fn a_schema_has_the_tables_of_each_recipe_it_is_for_and_of_no_other() {
        let all = of(&RECIPES.iter().collect::<Vec<_>>());
        let kinds = all.get("allOf").unwrap().as_array().unwrap();
        assert_eq!(kinds.len(), RECIPES.len());
        let medusa = text(&[find("medusa").unwrap()]).unwrap();
        assert!(medusa.contains("MedusaConfig") && medusa.contains("TrainConfig"));
        assert!(
            !medusa.contains("Eagle3Config") && !medusa.contains("\"null\""),
            "{medusa}"
        );
    }
}
