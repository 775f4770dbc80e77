//! The schema of the tables that only one recipe has, from the types that read them and the documentation of their keys.

use schemars::{Schema, SchemaGenerator};

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
