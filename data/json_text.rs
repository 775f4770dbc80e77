//! JSON as Python's `json.dumps` writes it, which is what chat templates were trained with.

use serde_json::Value;

/// The options of `json.dumps` that templates use.
#[derive(Debug, Clone, Default)]
pub(crate) struct JsonStyle {
    /// Spaces per level; one line without.
    pub(crate) indent: Option<usize>,
    /// Keys in alphabetical order instead of their own.
    pub(crate) sort_keys: bool,
    /// Characters beyond ASCII as escapes.
    pub(crate) ascii: bool,
    /// What stands between items and after keys.
    pub(crate) separators: Option<(String, String)>,
}

/// Writes a value as `json.dumps` does.
pub(crate) fn to_python_json(value: &Value, style: &JsonStyle) -> String {
    let mut output = String::new();
    write(value, style, 1, &mut output);
    output
}

fn write(value: &Value, style: &JsonStyle, depth: usize, output: &mut String) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            output.push('[');
            for (position, item) in items.iter().enumerate() {
                separate(position, style, depth, output);
                write(item, style, depth + 1, output);
            }
            break_line(style, depth - 1, output);
            output.push(']');
        }
        Value::Object(fields) if !fields.is_empty() => {
            output.push('{');
            let mut fields: Vec<_> = fields.iter().collect();
            if style.sort_keys {
                fields.sort_by_key(|(key, _)| *key);
            }
            for (position, (key, item)) in fields.into_iter().enumerate() {
                separate(position, style, depth, output);
                write_text(key, style, output);
                output.push_str(
                    style
                        .separators
                        .as_ref()
                        .map_or(": ", |(_, after_key)| after_key),
                );
                write(item, style, depth + 1, output);
            }
            break_line(style, depth - 1, output);
            output.push('}');
        }
        Value::String(text) => write_text(text, style, output),
        other => output.push_str(&other.to_string()),
    }
}

fn separate(position: usize, style: &JsonStyle, depth: usize, output: &mut String) {
    if position > 0 {
        let default = if style.indent.is_some() { "," } else { ", " };
        output.push_str(
            style
                .separators
                .as_ref()
                .map_or(default, |(between, _)| between),
        );
    }
    break_line(style, depth, output);
}

fn break_line(style: &JsonStyle, depth: usize, output: &mut String) {
    if let Some(indent) = style.indent {
        output.push('\n');
        output.push_str(&" ".repeat(indent * depth));
    }
}

fn write_text(text: &str, style: &JsonStyle, output: &mut String) {
    let quoted = Value::from(text).to_string();
    if !style.ascii {
        output.push_str(&quoted);
        return;
    }
    for character in quoted.chars() {
        if character.is_ascii() {
            output.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                output.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // Expected texts: `json.dumps` of CPython 3.11 on the same value and options.
    #[test]
    fn options_do_what_they_do_in_python() {
        let value = json!({"b": [1, 2.5, true, null], "a": {"é": "🦀\u{1}"}, "c": [], "d": {}});
        let style = JsonStyle::default();
        assert_eq!(
            to_python_json(&value, &style),
            r#"{"b": [1, 2.5, true, null], "a": {"é": "🦀\u0001"}, "c": [], "d": {}}"#
        );
        let style = JsonStyle {
            indent: Some(2),
            sort_keys: true,
            ascii: true,
            separators: None,
        };
        assert_eq!(
            to_python_json(&value, &style),
            "{\n  \"a\": {\n    \"\\u00e9\": \"\\ud83e\\udd80\\u0001\"\n  },\n  \"b\": [\n    1,\n    2.5,\n    true,\n    \
             null\n  ],\n  \"c\": [],\n  \"d\": {}\n}"
        );
        let style = JsonStyle {
            separators: Some((",".into(), ":".into())),
            ..JsonStyle::default()
        };
        assert_eq!(
            to_python_json(&json!({"a": [1, 2]}), &style),
            r#"{"a":[1,2]}"#
        );
    }
}
