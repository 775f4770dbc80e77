//! Values as Python prints them: what `str` and `repr` give.

use std::borrow::Cow;

use minijinja::Error as JinjaError;
use minijinja::value::{Value, ValueKind};

use super::account::{Account, check_length, refused};

/// How deep lists and mappings may lie inside of each other.
const DEEPEST: usize = 200;

/// A value as `str` prints it.
pub(crate) fn text<'v>(account: &Account, value: &'v Value) -> Result<Cow<'v, str>, JinjaError> {
    let text = match value.kind() {
        ValueKind::String => Cow::Borrowed(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => Cow::Borrowed(""),
        _ => Cow::Owned(repr(account, value)?),
    };
    account.spend_text(text.len())?;
    Ok(text)
}

/// A value as `repr` prints it.
pub(crate) fn repr(account: &Account, value: &Value) -> Result<String, JinjaError> {
    let mut output = String::new();
    write(account, value, 1, &mut output)?;
    Ok(output)
}

/// A float as `repr` prints it.
pub(crate) fn float(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number.is_nan() {
        return "nan".to_owned();
    }
    // Digits and the choice of an exponent are the same; an exponent has a sign and two digits.
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

/// A number that is no integer.
pub(crate) fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.is_number() && !value.is_integer();
    is_float
        .then(|| f64::try_from(value.clone()).ok())
        .flatten()
}

fn write(
    account: &Account,
    value: &Value,
    depth: usize,
    output: &mut String,
) -> Result<(), JinjaError> {
    if depth > DEEPEST {
        return refused(format!(
            "stopped: it prints a value of more than {DEEPEST} levels"
        ));
    }
    let before = output.len();
    match value.kind() {
        ValueKind::Undefined => output.push_str("Undefined"),
        ValueKind::None => output.push_str("None"),
        ValueKind::Bool => output.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), output),
        ValueKind::Number => match as_float(value) {
            Some(number) => output.push_str(&float(number)),
            None => output.push_str(&value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            output.push('[');
            for (position, item) in value.try_iter()?.enumerate() {
                output.push_str(if position > 0 { ", " } else { "" });
                write(account, &item, depth + 1, output)?;
            }
            output.push(']');
        }
        ValueKind::Map => {
            output.push('{');
            for (position, key) in value.try_iter()?.enumerate() {
                output.push_str(if position > 0 { ", " } else { "" });
                write(account, &key, depth + 1, output)?;
                output.push_str(": ");
                write(account, &value.get_item(&key)?, depth + 1, output)?;
            }
            output.push('}');
        }
        kind => return refused(format!("it cannot print a {kind}")),
    }
    // What lies inside is paid for twice at most, and checked before more is written.
    account.spend(output.len() - before)?;
    check_length(output.len())
}

/// A text between quotes: single ones, unless it holds such and no double ones.
fn quote(text: &str, output: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    output.push(quote);
    for character in text.chars() {
        match character {
            '\\' => output.push_str("\\\\"),
            '\n' => output.push_str("\\n"),
            '\r' => output.push_str("\\r"),
            '\t' => output.push_str("\\t"),
            c if c == quote => output.extend(['\\', c]),
            c if is_printable(c) => output.push(c),
            c => match u32::from(c) {
                code @ 0..=0xff => output.push_str(&format!("\\x{code:02x}")),
                code @ 0..=0xffff => output.push_str(&format!("\\u{code:04x}")),
                code => output.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    output.push(quote);
}

/// Neither control, format, private nor unassigned, and no space but the plain one: as Rust and Python have it.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    // Behind another character a combining one is printed as it is.
    !['x', character]
        .iter()
        .collect::<String>()
        .escape_debug()
        .to_string()
        .contains("\\u{")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // Expected texts: `str` of CPython 3.11 on the same value.
    #[test]
    fn values_are_printed_as_python_prints_them() {
        let environment = minijinja::Environment::new();
        let account = Account::of(&environment.empty_state());
        let printed = |value: serde_json::Value| {
            text(&account, &Value::from_serialize(value))
                .unwrap()
                .into_owned()
        };
        assert_eq!(printed(json!("it's")), "it's");
        assert_eq!(
            printed(json!([true, null, 1, 2.0, "a"])),
            "[True, None, 1, 2.0, 'a']"
        );
        assert_eq!(printed(json!({"a": {}, "b": []})), "{'a': {}, 'b': []}");
        assert_eq!(
            printed(json!([
                "it's",
                "\"",
                "'\"",
                "\\\n\t\u{1}",
                "é\u{301}\u{a0}\u{200b}\u{e000}🦀"
            ])),
            "[\"it's\", '\"', '\\'\"', '\\\\\\n\\t\\x01', 'é\u{301}\\xa0\\u200b\\ue000🦀']"
        );
        assert_eq!(
            printed(json!([
                1e16,
                123_456_789.5,
                0.0001,
                0.00001,
                -1.5e-7,
                1e300
            ])),
            "[1e+16, 123456789.5, 0.0001, 1e-05, -1.5e-07, 1e+300]"
        );
    }
}
