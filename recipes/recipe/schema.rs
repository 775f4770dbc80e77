//! The JSON schema of recipe files, from the types that read them and the documentation of their keys.

use anyhow::{Context as _, Result};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{File, Settings};
use crate::families::registry::Recipe;

/// A table whose keys are another recipe's business.
type Any = Map<String, Value>;

/// The schema of what only one recipe has.
pub struct OwnTables {
    drafter: Schema,
    objective: Schema,
    stages: &'static [&'static str],
}

impl OwnTables {
    /// That of a drafter with the settings `D` and an objective with the settings `O` that trains in these stages.
    pub fn of<D: Settings, O: Settings>(
        generator: &mut SchemaGenerator,
        stages: &'static [&'static str],
    ) -> Self {
        Self {
            drafter: generator.subschema_for::<D>(),
            objective: generator.subschema_for::<O>(),
            stages,
        }
    }

    fn properties(&self, recipe: &Recipe) -> Value {
        let stages = match self.stages {
            // A recipe that trains in one stage has no such table.
            [] | [_] => json!(false),
            several => json!({ "propertyNames": { "enum": several } }),
        };
        json!({
            "recipe": { "const": recipe.name, "description": recipe.about },
            "drafter": self.drafter,
            "objective": self.objective,
            "stages": stages,
        })
    }
}

/// The schema of recipe files of these kinds. Draft 7, which every editor's extension for TOML knows.
pub fn of(recipes: &[&Recipe]) -> Schema {
    let mut generator = SchemaSettings::draft07().into_generator();
    let own = |recipe: &&Recipe| (recipe.schema)(&mut generator);
    let tables: Vec<OwnTables> = recipes.iter().map(own).collect();
    let mut schema = generator.into_root_schema_for::<File<Any, Any>>();
    schema.insert("title".into(), "A recipe of spectrain".into());
    // Tables without a required key may be left out.
    schema.insert("required".into(), json!(["recipe", "name"]));
    let kinds: Vec<Value> = recipes
        .iter()
        .zip(&tables)
        .map(|(recipe, own)| {
            json!({
                "if": { "properties": { "recipe": { "const": recipe.name } } },
                "then": { "properties": own.properties(recipe) },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::registry::{RECIPES, find};

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
