//! The threshold at which chains end early, as recipes ask for it.
use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What asks for the best threshold.
const TUNED: &str = "tuned";

/// A threshold of a rule to stop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// This one, from 0 to 1.
    At(f64),
    /// The one with the greatest predicted speed on some prompts.
    Tuned,
}

impl Serialize for Threshold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::At(threshold) => serializer.serialize_f64(*threshold),
            Self::Tuned => serializer.serialize_str(TUNED),
        }
    }
}

impl<'de> Deserialize<'de> for Threshold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrTuned;
        impl de::Visitor<'_> for NumberOrTuned {
            type Value = Threshold;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a number from 0 to 1 or `{TUNED}`")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Threshold, E> {
                let unknown = || E::invalid_value(de::Unexpected::Str(word), &self);
                (word == TUNED)
                    .then_some(Threshold::Tuned)
                    .ok_or_else(unknown)
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Threshold, E> {
                Ok(Threshold::At(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Threshold, E> {
                Ok(Threshold::At(number as f64))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Threshold, E> {
                Ok(Threshold::At(number as f64))
            }
        }
        deserializer.deserialize_any(NumberOrTuned)
    }
}

impl JsonSchema for Threshold {
    fn schema_name() -> Cow<'static, str> {
        "Threshold".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "number" },
                { "enum": [TUNED] },
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_number_or_tuned() {
        for (text, expected) in [
            ("0.25", Threshold::At(0.25)),
            ("1", Threshold::At(1.0)),
            ("\"tuned\"", Threshold::Tuned),
        ] {
            let read: Threshold = serde_json::from_str(text).unwrap();
            assert_eq!(read, expected);
            let written = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Threshold>(&written).unwrap(), read);
        }
        let error = serde_json::from_str::<Threshold>("\"best\"").unwrap_err();
        let expected = "expected a number from 0 to 1 or `tuned`";
        assert!(error.to_string().contains(expected), "{error}");
    }
}
