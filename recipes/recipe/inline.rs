//! Values as TOML in one line.

use serde_json::Value;

/// Keys with their values, for messages.
pub(crate) fn assigned(keys: &[(String, Value)]) -> String {
    let keys = keys.iter();
    let keys = keys.map(|(key, value)| format!("`{key} = {}`", inline(value)));
    keys.collect::<Vec<_>>().join(" and ")
}

/// A value as TOML in one line.
pub(crate) fn inline(value: &Value) -> String {
    let each = |values: Vec<String>| values.join(", ");
    match value {
        Value::Object(table) => {
            let entries = table.iter().filter(|(_, value)| !value.is_null());
            let entries = entries.map(|(key, value)| format!("{} = {}", named(key), inline(value)));
            format!("{{ {} }}", each(entries.collect()))
        }
        Value::Array(values) => format!("[{}]", each(values.iter().map(inline).collect())),
        Value::String(text) => quoted(text),
        Value::Null => String::new(),
        // Numbers and booleans are the same in both.
        other => other.to_string(),
    }
}

/// A key of an inline table.
fn named(key: &str) -> String {
    match is_bare(key) {
        true => key.to_owned(),
        // A string in JSON stays on its line, and is one of TOML too but for this character.
        false => Value::from(key).to_string().replace('\u{7f}', "\\u007f"),
    }
}

/// Whether a part of a key needs no quotes.
pub(super) fn is_bare(part: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    !part.is_empty() && part.chars().all(is_plain)
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

    #[test]
    fn keys_of_any_text_are_read_back_as_they_were() {
        let keys = [
            "a b", "c.d", "", "é", "\"", "'", "\\", "\n", "\u{7f}", "e-f_1",
        ];
        let table = keys.iter().map(|key| ((*key).to_owned(), Value::from(1)));
        let table = Value::Object(table.collect());
        let written = inline(&table);
        assert!(
            !written.contains('\n') && written.contains("e-f_1 = 1"),
            "{written}"
        );
        let read: toml::Table = format!("a = {written}").parse().unwrap();
        assert_eq!(serde_json::to_value(&read["a"]).unwrap(), table);
    }
}
