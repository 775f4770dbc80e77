//! The schema of the tables that only one recipe has, from the types that read them and the documentation of their keys.

use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use crate::recipe::settings::Settings;

/// The schema of what only one recipe has.
pub struct OwnTables {
    /// The table `[drafter]`.
    pub drafter: Schema,
    /// The table `[objective]`.
    pub objective: Schema,
}

impl OwnTables {
    /// That of a drafter with the settings `D` and an objective with the settings `O`.
    pub fn of<D: Settings, O: Settings>(generator: &mut SchemaGenerator) -> Self {
        Self {
            drafter: generator.subschema_for::<D>(),
            objective: generator.subschema_for::<O>(),
        }
    }
}

/// What a part of a schema refers to; itself where it refers to nothing.
pub(crate) fn referred<'a>(schema: &'a Value, part: &'a Value) -> &'a Value {
    // A table that may be left out is its own or none.
    let named = part["allOf"][0]["$ref"]
        .as_str()
        .or(part["anyOf"][0]["$ref"].as_str())
        .or(part["$ref"].as_str());
    let named = named.and_then(|name| schema.pointer(name.trim_start_matches('#')));
    named.unwrap_or(part)
}
