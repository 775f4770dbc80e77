//! Values of a `config.json` by their keys.

use serde_json::Value;

/// Sizes in a configuration above this are not sizes; below it, products of two fit a `usize`.
pub const MAX_SIZE: u64 = i32::MAX as u64;

/// The value under keys separated by dots; null is as good as nothing.
pub fn value_at<'a>(config: &'a Value, keys: &str) -> Option<&'a Value> {
    let mut keys = keys.split('.');
    let value = keys.try_fold(config, |value, key| value.get(key))?;
    (!value.is_null()).then_some(value)
}

/// The value as a size, if it can be one.
pub fn as_size(value: &Value) -> Option<usize> {
    let size = value.as_u64();
    let size = size.filter(|size| (1..=MAX_SIZE).contains(size));
    size.map(|size| size as usize)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_that_is_null_or_behind_what_is_no_table_is_not_there() {
        let config = json!({"a": {"b": 1, "c": null}, "d": 2});
        assert_eq!(value_at(&config, "a.b"), Some(&json!(1)));
        assert_eq!(value_at(&config, "d"), Some(&json!(2)));
        for keys in ["a.c", "a.x", "d.b", "x", ""] {
            assert_eq!(value_at(&config, keys), None, "{keys}");
        }
    }

    #[test]
    fn sizes_are_whole_numbers_of_at_least_one() {
        assert_eq!(as_size(&json!(MAX_SIZE)), Some(MAX_SIZE as usize));
        for value in [
            json!(0),
            json!(-1),
            json!(1.5),
            json!("1"),
            json!(MAX_SIZE + 1),
        ] {
            assert_eq!(as_size(&value), None, "{value}");
        }
    }
}
