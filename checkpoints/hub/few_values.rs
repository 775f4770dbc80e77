//! JSON of a hub that holds few values: each takes up to a hundred times the memory of the few bytes that it is written in.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Values of the longest answer; a list of files to be downloaded is not read by this.
const MOST: usize = 200_000;

/// Any JSON, with an error where it holds more than [`MOST`] values.
#[derive(Debug, Default)]
pub(super) struct FewValues(pub(super) Value);

impl<'de> Deserialize<'de> for FewValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let left = Cell::new(MOST);
        Counted(&left).deserialize(deserializer).map(Self)
    }
}

/// A value within what may still come.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1);
        let left = left.ok_or_else(|| D::Error::custom(format!("more than {MOST} values")))?;
        self.0.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = table.next_key()? {
            values.insert(key, table.next_value_seed(self)?);
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_are_read_as_they_are_and_many_are_refused() {
        let text = r#"{"a": [null, true, 1, -1, 1.5, "x", {}, []], "b": {"c": "\n"}, "a": 2}"#;
        let read: FewValues = serde_json::from_str(text).unwrap();
        assert_eq!(read.0, serde_json::from_str::<Value>(text).unwrap());

        let lists = |count: usize| format!("[{}[]]", "[],".repeat(count - 2));
        assert!(serde_json::from_str::<FewValues>(&lists(MOST)).is_ok());
        let error = serde_json::from_str::<FewValues>(&lists(MOST + 1)).unwrap_err();
        assert!(
            error.to_string().starts_with("more than 200000 values"),
            "{error}"
        );
    }
}
