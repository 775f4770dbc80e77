//! What the documentation of a key says, from the schema of recipe files.

use std::collections::BTreeSet;

use serde_json::Value;

use super::train_keys::{STAGES, TRAIN};
use crate::cli::commands::schema;
use crate::families::registry::Recipe;
use crate::recipe::schema::referred;

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

    /// What a schema of recipe files has as its title.
    pub(super) fn title(&self) -> &Value {
        &self.schema["title"]
    }

    /// What a key of a table means; a key of no table has the table "".
    pub(super) fn meaning(&self, table: &str, key: &str) -> String {
        let meaning = self.table(table)[key]["description"].as_str();
        meaning.unwrap_or_default().to_owned()
    }

    /// The values of a key, or of the entries of its list, as they are written in a recipe; none where they are no closed set.
    pub(super) fn values(&self, table: &str, key: &str) -> Vec<String> {
        let own = self.resolved(&self.table(table)[key]);
        let of_each = self.resolved(&own["items"]);
        let closed = [own, of_each].map(|schema| self.closed(schema));
        let [own, of_each] = closed.map(Option::unwrap_or_default);
        if own.is_empty() { of_each } else { own }
    }

    /// The values that a schema allows, if it names each.
    fn closed(&self, schema: &Value) -> Option<Vec<String>> {
        let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array())?;
        let each = choices.iter().map(|choice| {
            let choice = self.resolved(choice);
            match (&choice["const"], choice["properties"].as_object()) {
                (Value::Null, Some(keys)) => {
                    let key = keys.keys().next()?;
                    Some(format!("{{ {key} = … }}"))
                }
                (Value::Null, None) => None,
                (value, _) => Some(value.to_string()),
            }
        });
        let values = each.collect::<Option<Vec<String>>>()?;
        // Tables that differ by the value of a key are not told apart by it.
        let differ = values.iter().collect::<BTreeSet<_>>().len() == values.len();
        differ.then_some(values)
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
        // A stage has the keys of the whole training.
        let table = if table.starts_with(STAGES) {
            TRAIN
        } else {
            table
        };
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
        referred(&self.schema, schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::registry::RECIPES;

    #[test]
    fn closed_sets_of_values_are_known() {
        let keys = Keys::of(&RECIPES[0]);
        assert_eq!(keys.values("train", "optimizer"), ["\"adamw\"", "\"muon\""]);
        let engines = keys.values("export", "to");
        assert!(engines.contains(&"\"vllm\"".to_owned()), "{engines:?}");
        assert!(keys.values("drafter", "head").len() > 1);
        for (table, key) in [("train", "steps"), ("target", "model"), ("data", "train")] {
            assert!(keys.values(table, key).is_empty(), "{table}.{key}");
        }
    }

    #[test]
    fn a_stage_has_the_keys_of_a_training() {
        let keys = Keys::of(&RECIPES[0]);
        assert_eq!(keys.names("stages.align"), keys.names("train"));
        let rate = keys.meaning("stages.align", "learning_rate");
        assert!(rate.contains("learning rate"), "{rate}");
    }

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
                assert!(!names.is_empty(), "{}: {table}", recipe.name);
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
