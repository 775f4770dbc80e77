//! What the documentation of a key says, from the schema of recipe files.

use serde_json::Value;

use crate::cli::commands::schema;
use crate::families::registry::Recipe;

/// The keys of one kind of recipe.
pub(super) struct Keys {
    schema: Value,
}

impl Keys {
    /// Those of recipes of this kind.
    pub(super) fn of(recipe: &Recipe) -> Self {
        Self {
            schema: schema::of(&[recipe]).to_value(),
        }
    }

    /// What a key of a table means; a key of no table has the table "".
    pub(super) fn meaning(&self, table: &str, key: &str) -> String {
        let meaning = self.table(table)[key]["description"].as_str();
        meaning.unwrap_or_default().to_owned()
    }

    /// What a table is.
    pub(super) fn about(&self, table: &str) -> String {
        let about = self.schema["properties"][table]["description"].as_str();
        about.unwrap_or_default().to_owned()
    }

    /// The keys of a table.
    pub(super) fn names(&self, table: &str) -> Vec<String> {
        let keys = self.table(table).as_object();
        keys.map_or_else(Vec::new, |keys| keys.keys().cloned().collect())
    }

    fn table(&self, table: &str) -> &Value {
        let own = &self.schema["allOf"][0]["then"]["properties"][table];
        let shared = &self.schema["properties"][table];
        match table {
            "" => &self.schema["properties"],
            // Only this kind of recipe has these.
            "drafter" | "objective" => &self.resolved(own)["properties"],
            _ => &self.resolved(shared)["properties"],
        }
    }

    /// What a schema refers to.
    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        // A table that may be left out is its own or none.
        let named = schema["allOf"][0]["$ref"]
            .as_str()
            .or(schema["anyOf"][0]["$ref"].as_str())
            .or(schema["$ref"].as_str());
        let named = named.and_then(|name| self.schema.pointer(name.trim_start_matches('#')));
        named.unwrap_or(schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::registry::RECIPES;

    #[test]
    fn shared_keys_and_those_of_one_kind_have_a_meaning() {
        for recipe in RECIPES {
            let keys = Keys::of(recipe);
            for table in [
                "target",
                "data",
                "regenerate",
                "train",
                "evaluate",
                "drafter",
                "objective",
            ] {
                let names = keys.names(table);
                assert!(
                    !names.is_empty() || recipe.name == "mtp",
                    "{}: {table}",
                    recipe.name
                );
                for key in names {
                    let meaning = keys.meaning(table, &key);
                    assert!(!meaning.is_empty(), "{}: {table}.{key}", recipe.name);
                }
            }
            assert!(keys.meaning("", "name").contains("folder"));
            assert!(!keys.about("train").is_empty());
        }
    }
}
