//! Where the `config.json` of a target or of a drafter says what its rotary positions are, and under which names: beside its
//! other keys, in a table, or in both. What is refused of it is up to who reads it.

use serde_json::{Map, Value};

/// The keys of the tables: that of transformers 5, and the older one.
pub const TABLES: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// A key that may stand beside the tables and in each of them: its places, with dots between levels.
macro_rules! places {
    ($key:literal) => {
        [
            $key,
            concat!("rope_parameters.", $key),
            concat!("rope_scaling.", $key),
        ]
    };
}

/// Where the base of the frequencies may stand. Engines and transformers 5 put one inside a table before the one beside it.
pub const BASES: [&str; 3] = places!("rope_theta");
/// The key of the base, wherever it stands.
pub const BASE: &str = BASES[0];

/// Where it may be said that positions turn a part of a head.
pub const SHARES: [&str; 3] = places!("partial_rotary_factor");
/// The key of that part, wherever it stands.
pub const SHARE: &str = SHARES[0];

/// The key of the longest sequences before rotary positions were scaled.
pub const ORIGINAL_POSITIONS: &str = "original_max_position_embeddings";

/// Names that rotary scaling goes by where it changes nothing in text.
pub const UNSCALED: [&str; 3] = ["default", "mrope", "proportional"];

/// The key of a table's rule, and that of older configurations; some have both.
const RULE: &str = "rope_type";
const OLD_RULE: &str = "type";

/// What a table says under the key of its rule, or under the older one; null says nothing.
fn named(table: &Map<String, Value>) -> Option<&Value> {
    let there = |key: &str| table.get(key).filter(|name| !name.is_null());
    there(RULE).or_else(|| there(OLD_RULE))
}

/// The name of a table's rule.
pub fn rule(table: &Map<String, Value>) -> Option<&str> {
    named(table)?.as_str()
}

/// Puts the name of a table's rule under the newer key, and leaves neither key where it has none.
pub fn rename_rule(table: &mut Map<String, Value>) {
    let name = named(table).cloned();
    table.remove(OLD_RULE);
    match name {
        Some(name) => drop(table.insert(RULE.into(), name)),
        None => drop(table.remove(RULE)),
    }
}

/// A table in which the positions before scaling that stand `beside` it override those inside, as in transformers.
pub fn with_original(table: &Map<String, Value>, beside: Option<&Value>) -> Map<String, Value> {
    let mut table = table.clone();
    if let Some(given) = beside {
        table.insert(ORIGINAL_POSITIONS.into(), given.clone());
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_stand_beside_the_tables_and_in_each() {
        for [beside, inside @ ..] in [BASES, SHARES] {
            assert_eq!(inside, TABLES.map(|table| format!("{table}.{beside}")));
        }
    }

    #[test]
    fn a_rule_goes_by_two_keys() {
        for (table, name) in [
            (json!({"type": "yarn"}), Some("yarn")),
            (json!({"rope_type": "yarn"}), Some("yarn")),
            (json!({"rope_type": "yarn", "type": "linear"}), Some("yarn")),
            (json!({"rope_type": null, "type": "linear"}), Some("linear")),
            (json!({"rope_type": null, "type": null}), None),
            (json!({"factor": 4.0}), None),
        ] {
            let mut table = table.as_object().unwrap().clone();
            assert_eq!(rule(&table), name, "{table:?}");
            rename_rule(&mut table);
            assert_eq!(table.get("rope_type"), name.map(Value::from).as_ref());
            assert!(!table.contains_key("type"), "{table:?}");
        }
    }

    #[test]
    fn positions_before_scaling_are_those_beside_the_table() {
        let table = json!({ORIGINAL_POSITIONS: 64, "factor": 4.0});
        let table = table.as_object().unwrap();
        assert_eq!(with_original(table, None), *table);
        let given = with_original(table, Some(&json!(128)));
        assert_eq!(
            json!(given),
            json!({ORIGINAL_POSITIONS: 128, "factor": 4.0})
        );
    }
}
