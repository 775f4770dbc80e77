//! Where a key belongs that stands in no table.

use std::collections::BTreeSet;

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};
use spectrain_checkpoints::near::nearest;

use crate::recipe::other_names::meant;
use crate::recipe::schema::referred;

/// The keys of tables of the file `T` that `given`, which stands in none, may be meant for, as a question names them; none where it is
/// like none of them. Tables that are not there are named only where no other one has such a key.
pub(super) fn in_tables<T: JsonSchema>(
    given: &str,
    is_there: impl Fn(&str) -> bool,
) -> Option<String> {
    let schema = SchemaGenerator::default().into_root_schema_for::<T>();
    let schema = schema.to_value();
    let tables = schema["properties"].as_object()?.iter();
    let tables = tables.filter_map(|(name, table)| {
        let keys = referred(&schema, table)["properties"].as_object()?;
        Some((name.as_str(), keys))
    });
    let tables: Vec<(&str, &Map<String, Value>)> = tables.collect();
    let keys = tables.iter().flat_map(|(_, keys)| keys.keys());
    let known: BTreeSet<&str> = keys.map(String::as_str).collect();
    let all = || known.iter().copied();
    let own = known.get(given).copied();
    let key = own
        .or_else(|| meant(given, all()))
        .or_else(|| nearest(given, all()))?;
    let with_key = tables.iter().filter(|(_, keys)| keys.contains_key(key));
    let (there, absent): (Vec<&str>, Vec<&str>) = with_key
        .map(|(table, _)| *table)
        .partition(|table| is_there(table));
    let tables = if there.is_empty() { absent } else { there };
    let named: Vec<String> = tables
        .iter()
        .map(|table| format!("`{table}.{key}`"))
        .collect();
    Some(named.join(" or "))
}
