//! JSON as Python's `json.dumps` writes it, which is what chat templates were trained with.

use minijinja::Error as JinjaError;
use minijinja::value::{Value, ValueKind};

use super::account::{Account, check_length, refused};
use super::notation::{as_float, float};

/// How deep lists and mappings may lie inside of each other.
const DEEPEST: usize = 200;

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
pub(crate) fn to_python_json(
    value: &Value,
    style: &JsonStyle,
    account: &Account,
) -> Result<String, JinjaError> {
    let mut writer = Writer {
        style,
        account,
        output: String::new(),
    };
    writer.write(value, 1)?;
    Ok(writer.output)
}

struct Writer<'w> {
    style: &'w JsonStyle,
    account: &'w Account,
    output: String,
}

impl Writer<'_> {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), JinjaError> {
        if depth > DEEPEST {
            return refused(format!(
                "stopped: `tojson` of a value of more than {DEEPEST} levels"
            ));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.put("null"),
            ValueKind::Bool if value.is_true() => self.put("true"),
            ValueKind::Bool => self.put("false"),
            ValueKind::Number => self.put(&number(value)),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.between(['[', ']'], depth, &items, |writer, item| {
                    writer.write(item, depth + 1)
                })
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort();
                }
                self.between(['{', '}'], depth, &keys, |writer, key| {
                    writer.write_key(key)?;
                    let after_key = writer.style.separators.as_ref();
                    writer.put(after_key.map_or(": ", |(_, after_key)| after_key))?;
                    writer.write(&value.get_item(key)?, depth + 1)
                })
            }
            ValueKind::String => self.quote(value.as_str().unwrap_or_default()),
            kind => refused(format!("`tojson` cannot write a {kind}")),
        }
    }

    /// Brackets with items in between.
    fn between(
        &mut self,
        [open, close]: [char; 2],
        depth: usize,
        items: &[Value],
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), JinjaError>,
    ) -> Result<(), JinjaError> {
        self.put(open.encode_utf8(&mut [0; 4]))?;
        for (position, item) in items.iter().enumerate() {
            if position > 0 {
                let default = if self.style.indent.is_some() {
                    ","
                } else {
                    ", "
                };
                let between = self.style.separators.as_ref();
                self.put(between.map_or(default, |(between, _)| between))?;
            }
            self.break_line(depth)?;
            write(self, item)?;
        }
        if !items.is_empty() {
            self.break_line(depth - 1)?;
        }
        self.put(close.encode_utf8(&mut [0; 4]))
    }

    /// A key is a text; others become one as in Python.
    fn write_key(&mut self, key: &Value) -> Result<(), JinjaError> {
        match key.kind() {
            ValueKind::String => self.quote(key.as_str().unwrap_or_default()),
            ValueKind::Bool | ValueKind::None | ValueKind::Number => {
                self.put("\"")?;
                self.write(key, 1)?;
                self.put("\"")
            }
            kind => refused(format!(
                "`tojson` cannot write a mapping with a {kind} as a key"
            )),
        }
    }

    fn break_line(&mut self, depth: usize) -> Result<(), JinjaError> {
        let Some(indent) = self.style.indent else {
            return Ok(());
        };
        self.put("\n")?;
        self.put(&" ".repeat(indent * depth))
    }

    fn quote(&mut self, text: &str) -> Result<(), JinjaError> {
        self.account.spend_text(text.len())?;
        let quoted = serde_json::Value::from(text).to_string();
        if !self.style.ascii {
            return self.put(&quoted);
        }
        let mut escaped = String::with_capacity(quoted.len());
        for character in quoted.chars() {
            if character.is_ascii() {
                escaped.push(character);
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
        self.put(&escaped)
    }

    fn put(&mut self, text: &str) -> Result<(), JinjaError> {
        self.account.spend(text.len())?;
        self.output.push_str(text);
        check_length(self.output.len())
    }
}

fn number(value: &Value) -> String {
    match as_float(value) {
        None => value.to_string(),
        Some(number) if number.is_nan() => "NaN".to_owned(),
        Some(number) if number.is_infinite() => float(number).replace("inf", "Infinity"),
        Some(number) => float(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(value: &serde_json::Value, style: &JsonStyle) -> String {
        let environment = minijinja::Environment::new();
        let account = Account::of(&environment.empty_state());
        to_python_json(&Value::from_serialize(value), style, &account).unwrap()
    }

    // Expected texts: `json.dumps` of CPython 3.11 on the same value and options.
    #[test]
    fn options_do_what_they_do_in_python() {
        let value = json!({"b": [1, 2.5, true, null], "a": {"é": "🦀\u{1}"}, "c": [], "d": {}});
        let style = JsonStyle::default();
        assert_eq!(
            written(&value, &style),
            r#"{"b": [1, 2.5, true, null], "a": {"é": "🦀\u0001"}, "c": [], "d": {}}"#
        );
        let style = JsonStyle {
            indent: Some(2),
            sort_keys: true,
            ascii: true,
            separators: None,
        };
        assert_eq!(
            written(&value, &style),
            "{\n  \"a\": {\n    \"\\u00e9\": \"\\ud83e\\udd80\\u0001\"\n  },\n  \"b\": [\n    1,\n    2.5,\n    true,\n    \
             null\n  ],\n  \"c\": [],\n  \"d\": {}\n}"
        );
        let style = JsonStyle {
            separators: Some((",".into(), ":".into())),
            ..JsonStyle::default()
        };
        assert_eq!(written(&json!({"a": [1, 2]}), &style), r#"{"a":[1,2]}"#);
    }
}
