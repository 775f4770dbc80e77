//! JSON texts cut into their parts without being taken apart: what is not needed costs no memory.

use std::borrow::Cow;

use serde::de::IgnoredAny;

/// Checks that a text is one JSON value.
pub(crate) fn check(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<IgnoredAny>(text).map(drop)
}

/// What is wrong with a text that is not JSON, and where: of a single line the column alone.
pub(crate) fn fault(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let whole = error.to_string();
    let place = format!(" at line {line} column {column}");
    let what = whole.strip_suffix(&place).unwrap_or(&whole);
    match line {
        0 => whole,
        1 => format!("{what} at column {column}"),
        _ => format!("{what} at line {line}, column {column}"),
    }
}

/// The keys and values of an object, of which `text` must be one. Of a key that stands there twice the last counts.
pub(crate) fn fields(text: &str) -> Vec<(Cow<'_, str>, &str)> {
    let mut fields: Vec<(Cow<str>, &str)> = Vec::new();
    let mut parts = parts(text);
    while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
        let key = unquoted(key);
        match fields.iter_mut().find(|(known, _)| *known == key) {
            Some(field) => field.1 = value,
            None => fields.push((key, value)),
        }
    }
    fields
}

/// The items of a list, of which `text` must be one.
pub(crate) fn items(text: &str) -> impl Iterator<Item = &str> {
    parts(text)
}

/// How many values a text holds, those inside of others included; at most as many as there are in fact separators.
pub(crate) fn count(text: &str) -> usize {
    let mut scanner = Scanner::default();
    let separates = |byte: &u8| {
        let outside = !scanner.in_text;
        scanner.step(*byte);
        outside && matches!(byte, b',' | b':' | b'[' | b'{')
    };
    1 + text.as_bytes().iter().copied().filter(separates).count()
}

/// What a value is, for a message.
pub(crate) fn kind(text: &str) -> String {
    match text.as_bytes().first() {
        Some(b'"') => "a text".to_owned(),
        Some(b'[') => format!("a list of {}", items(text).count()),
        Some(b'{') => format!("an object with {}", keys(&fields(text))),
        _ => format!("`{text}`"),
    }
}

/// The keys of an object as a list for a message.
pub(crate) fn keys<T>(fields: &[(Cow<'_, str>, T)]) -> String {
    if fields.is_empty() {
        return "no keys".to_owned();
    }
    let keys: Vec<String> = fields.iter().map(|(key, _)| format!("`{key}`")).collect();
    format!("the keys {}", keys.join(", "))
}

fn unquoted(key: &str) -> Cow<'_, str> {
    let inner = key.get(1..key.len() - 1).unwrap_or_default();
    if inner.contains('\\') {
        Cow::Owned(serde_json::from_str(key).unwrap_or_default())
    } else {
        Cow::Borrowed(inner)
    }
}

/// What stands directly inside of a list or object, keys and values alike.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.get(1..).unwrap_or_default();
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',' || c == ':');
        let mut scanner = Scanner::default();
        let mut length = 0;
        for &byte in rest.as_bytes() {
            let outside = scanner.depth == 0 && !scanner.in_text;
            let separates = byte.is_ascii_whitespace() || matches!(byte, b',' | b':' | b']' | b'}');
            if outside && (scanner.closed || separates) {
                break;
            }
            scanner.step(byte);
            length += 1;
        }
        let (part, after) = rest.split_at_checked(length)?;
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

/// Follows a JSON text byte by byte.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scanner {
    /// Lists and objects that are open.
    pub(crate) depth: usize,
    /// Whether a quoted text is open.
    pub(crate) in_text: bool,
    escaped: bool,
    /// Whether a list, object or quoted text has just ended.
    closed: bool,
}

impl Scanner {
    /// Takes the next byte.
    pub(crate) fn step(&mut self, byte: u8) {
        self.closed = false;
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_text = false;
                    self.closed = true;
                }
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_text = true,
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                self.closed = true;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists_fall_into_their_parts() {
        let text = r#"{ "a" : [1, "]"], "b\n":{"c":{}} , "d": -1.5e3,"a":"x\"y" }"#;
        let fields = fields(text);
        let fields: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (k.as_ref(), *v)).collect();
        assert_eq!(
            fields,
            [("a", r#""x\"y""#), ("b\n", r#"{"c":{}}"#), ("d", "-1.5e3")]
        );
        let items: Vec<&str> = items(r#"[ 1,[2,[3]] , {"k":","},"é",null,true ]"#).collect();
        assert_eq!(
            items,
            ["1", "[2,[3]]", r#"{"k":","}"#, "\"é\"", "null", "true"]
        );
        assert_eq!(super::items("[]").count() + super::fields("{ }").len(), 0);
    }

    #[test]
    fn what_is_no_json_is_named_by_its_column() {
        let of = |text: &str| fault(&check(text).unwrap_err());
        assert_eq!(of("not json"), "expected ident at column 2");
        assert_eq!(of("{\n]"), "key must be a string at line 2, column 1");
    }

    #[test]
    fn values_are_counted_and_named() {
        assert_eq!(count(r#"{"a": [1, 2, {"b": ",,,"}]}"#), 8);
        assert_eq!(kind(r#"[1, [2, 3]]"#), "a list of 2");
        assert_eq!(
            kind(r#"{"a": 1, "b": 2}"#),
            "an object with the keys `a`, `b`"
        );
        assert_eq!(
            (kind("\"x\""), kind("3"), kind("{}")),
            (
                "a text".into(),
                "`3`".into(),
                "an object with no keys".into()
            )
        );
    }
}
