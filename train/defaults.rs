//! What a table of settings says where nobody sets its keys, so that what was recorded before there was some key can be compared.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// The defaults of the keys of tables.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// The schemas of how tables are written, by their names.
    tables: Map<String, Value>,
}

impl Defaults {
    /// Adds those of a table with the settings `T`.
    #[must_use]
    pub fn with<T: JsonSchema>(mut self, table: &str) -> Self {
        // As it is written, a table requires just the keys that are never left out.
        let settings = SchemaSettings::default().for_serialize();
        let settings = settings.with(|settings| settings.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<T>();
        self.tables.insert(table.to_owned(), schema.to_value());
        self
    }

    /// Adds to the tables that were `recorded` the keys that they lack of the tables as they are `now`, where these have their
    /// defaults: what was made before there was such a key was made as with its default. So a default never changes: with another
    /// one, what was made with the old one would count as made with the new one. A key that is not always written tells nothing by
    /// its absence, and stays absent.
    pub fn complete(&self, recorded: &mut Value, now: &Value) {
        for (table, schema) in &self.tables {
            if let (Some(recorded), Some(now)) = (recorded.get_mut(table), now.get(table)) {
                complete(recorded, now, schema);
            }
        }
    }
}

/// The same of one table, which is written by this schema.
fn complete(recorded: &mut Value, now: &Value, schema: &Value) {
    let tables = (recorded.as_object_mut(), now.as_object(), of_table(schema));
    let (Some(recorded), Some(now), Some(schema)) = tables else {
        return;
    };
    let always = schema["required"].as_array();
    for (key, now) in now {
        let own = schema["properties"].get(key);
        let own = own.unwrap_or(&schema[OTHERS]);
        let is_always_written = || always.is_some_and(|keys| keys.iter().any(|known| known == key));
        match recorded.get_mut(key) {
            Some(recorded) => complete(recorded, now, own),
            None if own.get("default") == Some(now) && is_always_written() => {
                recorded.insert(key.clone(), now.clone());
            }
            None => {}
        }
    }
}

/// What schemas call the schema of all keys that have none of their own.
const OTHERS: &str = "additionalProperties";

/// The part of a schema that says which keys a table has, of what is a table of one kind or none.
fn of_table(schema: &Value) -> Option<&Value> {
    let is_table = |schema: &Value| schema["properties"].is_object() || schema[OTHERS].is_object();
    if is_table(schema) {
        return Some(schema);
    }
    let mut tables = schema["anyOf"].as_array()?.iter().filter(|of| is_table(of));
    let only = tables.next()?;
    tables.next().is_none().then_some(only)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;
    use serde_json::json;

    use super::*;
    use crate::distill::DistillConfig;
    use crate::settings::TrainConfig;

    /// A table with a key of each kind.
    #[derive(Serialize, JsonSchema)]
    #[serde(default)]
    struct Table {
        plain: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<usize>,
        always: Option<usize>,
        inner: Inner,
        perhaps: Option<Inner>,
    }

    impl Default for Table {
        fn default() -> Self {
            Self {
                plain: 3,
                left_out: Some(4),
                always: Some(5),
                inner: Inner::default(),
                perhaps: None,
            }
        }
    }

    #[derive(Default, Serialize, JsonSchema)]
    #[serde(default)]
    struct Inner {
        one: usize,
        other: bool,
    }

    /// What is recorded of a table, completed for the same table as it is now.
    fn completed(recorded: &Value, now: &Value) -> Value {
        let defaults = Defaults::default().with::<Table>("table");
        let mut completed = json!({ "table": recorded, "other": {} });
        let now = json!({ "table": now, "other": { "key": 0 } });
        defaults.complete(&mut completed, &now);
        // A table of which nothing is known stays as it was.
        assert_eq!(completed["other"], json!({}));
        completed["table"].clone()
    }

    #[test]
    fn a_key_that_was_not_there_yet_has_its_default() {
        let mut now = json!(Table::default());
        now.as_object_mut().unwrap().remove("left_out");
        assert_eq!(completed(&json!({}), &now), now);
        // So has one of a table within, and of one that may be absent.
        now["inner"] = json!({ "one": 7, "other": false });
        now["perhaps"] = json!({ "one": 8, "other": false });
        let mut recorded = now.clone();
        for table in ["inner", "perhaps"] {
            recorded[table].as_object_mut().unwrap().remove("other");
        }
        assert_ne!(recorded, now);
        assert_eq!(completed(&recorded, &now), now);
    }

    #[test]
    fn a_key_has_its_default_in_each_of_several_tables_with_names() {
        let defaults = Defaults::default().with::<BTreeMap<String, Table>>("stages");
        let now = json!({ "stages": { "first": Table::default(), "second": Table::default() } });
        let mut recorded = now.clone();
        let first = recorded["stages"]["first"].as_object_mut().unwrap();
        first.retain(|key, _| key != "plain");
        // A table that was not there at all may have been anything.
        let stages = recorded["stages"].as_object_mut().unwrap();
        let second = stages.shift_remove("second").unwrap();
        defaults.complete(&mut recorded, &now);
        assert!(recorded["stages"].get("second").is_none());
        recorded["stages"]["second"] = second;
        assert_eq!(recorded, now);
        // What is no table is left alone.
        let mut other = json!({ "stages": 1 });
        defaults.complete(&mut other, &now);
        assert_eq!(other, json!({ "stages": 1 }));
    }

    #[test]
    fn what_may_have_been_another_value_stays_as_it_is_recorded() {
        let recorded = json!({ "plain": 2, "always": null, "inner": { "one": 1 } });
        for now in [
            // It is no longer so, or is not recorded as absent.
            json!({ "plain": 3, "always": 5, "inner": { "one": 0 } }),
            // Absence is a value of its own, and a default is known of none that is another.
            json!({ "left_out": 4 }),
            json!({ "inner": { "other": true }, "perhaps": { "one": 0, "other": false } }),
            // A stage reads a part of the keys only.
            json!({}),
            json!({ "unknown": 0 }),
        ] {
            assert_eq!(completed(&recorded, &now), recorded, "{now}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_settings() {
        fn check<T: JsonSchema + Serialize + Default>(key: &str) {
            let now = json!({ "table": T::default() });
            let mut recorded = now.clone();
            let keys = recorded["table"].as_object_mut().unwrap();
            assert!(keys.remove(key).is_some(), "{key}");
            let defaults = Defaults::default().with::<T>("table");
            defaults.complete(&mut recorded, &now);
            assert_eq!(recorded, now, "{key}");
        }
        for key in ["learning_rate", "schedule", "ema_decay", "optimizer"] {
            check::<TrainConfig>(key);
        }
        for key in ["divergence", "label_weight", "on_policy"] {
            check::<DistillConfig>(key);
        }
    }

    #[test]
    fn what_epochs_leave_open_is_no_default() {
        let defaults = Defaults::default().with::<TrainConfig>("train");
        let now = json!({ "train": TrainConfig::default() });
        let mut recorded = now.clone();
        let keys = recorded["train"].as_object_mut().unwrap();
        keys.retain(|key, _| !["steps", "warmup_steps"].contains(&key.as_str()));
        let before = recorded.clone();
        defaults.complete(&mut recorded, &now);
        assert_eq!(recorded, before);
    }
}
