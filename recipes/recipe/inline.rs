//! Values as TOML in one line.

use serde_json::Value;

/// A value as TOML in one line.
pub(crate) fn inline(value: &Value) -> String {
    let each = |values: Vec<String>| values.join(", ");
    match value {
        Value::Object(table) => {
            let entries = table.iter().filter(|(_, value)| !value.is_null());
            let entries = entries.map(|(key, value)| format!("{key} = {}", inline(value)));
            format!("{{ {} }}", each(entries.collect()))
        }
        Value::Array(values) => format!("[{}]", each(values.iter().map(inline).collect())),
        Value::String(text) => quoted(text),
        Value::Null => String::new(),
        // Numbers and booleans are the same in both.
        other => other.to_string(),
    }
}

/// Text as a string of TOML.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_in_one_line() {
        let value = serde_json::json!({"a": [1, 2.5], "b": "x\"y", "c": null, "d": {"e": true}});
        let expected = r#"{ a = [1, 2.5], b = 'x"y', d = { e = true } }"#;
        assert_eq!(inline(&value), expected);
    }
}
