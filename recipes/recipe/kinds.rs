//! Values of another kind than their key has, where the parser would say so in words of its own, or take them for something else.

use std::ops::Range;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::recipe::problem::Problem;

/// What the parser says of a value that is neither a name nor a table, where a key has one of several.
pub(super) const NO_CHOICE: &str = "wanted string or table";

/// What is wrong with one of several choices, in words; `value` is what stands at `path`.
pub(super) fn choice(message: &str, path: &str, value: &DeValue<'_>) -> Option<String> {
    let name = path.rsplit('.').next().unwrap_or_default();
    match message {
        "invalid type: unit variant, expected newtype variant" => {
            let name = value.as_str()?;
            Some(format!(
                "`{name}` has a value: expected `{{ {name} = VALUE }}`, found the name alone"
            ))
        }
        "wanted exactly 1 element, found 0 elements" => {
            Some("expected a table with the name of one choice, found none in it".into())
        }
        "wanted exactly 1 element, more than 1 element" => {
            Some("expected a table with the name of one choice, found several in it".into())
        }
        "expected empty table" | "expected empty array" => Some(without_value(name, value)),
        message if message.starts_with("expected table, found ") => {
            Some(without_value(name, value))
        }
        _ => None,
    }
}

fn without_value(name: &str, value: &DeValue<'_>) -> String {
    format!(
        "`{name}` has no value: expected `\"{name}\"` alone, found {} behind it",
        words(value)
    )
}

/// What the parser would take a value of this kind for.
pub(super) fn words(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The value that stands at this place, with its path.
pub(super) fn at<'t, 'a>(
    table: &'t DeTable<'a>,
    span: &Range<usize>,
) -> Option<(String, &'t DeValue<'a>)> {
    each(table)
        .into_iter()
        .find_map(|(path, value)| (value.span() == *span).then(|| (path, value.get_ref())))
}

/// Puts a name that there cannot be in the place of the value at `span`: what the parser says of it lists those that there are.
pub(super) fn unname(table: &mut DeTable<'_>, span: &Range<usize>) -> bool {
    table.iter_mut().any(|(_, value)| unname_in(value, span))
}

fn unname_in(value: &mut Spanned<DeValue<'_>>, span: &Range<usize>) -> bool {
    if value.span() == *span {
        *value.get_mut() = DeValue::String("".into());
        return true;
    }
    match value.get_mut() {
        DeValue::Table(table) => unname(table, span),
        DeValue::Array(values) => values.iter_mut().any(|value| unname_in(value, span)),
        _ => false,
    }
}

/// The first date, which no key has: the parser would take it for a table.
pub(super) fn date(table: &DeTable<'_>) -> Option<Problem> {
    let found = each(table);
    let mut dates = found
        .iter()
        .filter(|(_, value)| value.get_ref().is_datetime());
    let (path, _) = dates.next()?;
    Some(Problem::new(
        path,
        "expected no date; put it in quotes where a string is meant",
    ))
}

/// The first list whose values the parser has taken for those of a table, by their order; `read` is what it has read.
pub(super) fn positional(table: &DeTable<'_>, read: &Value) -> Option<Problem> {
    each(table).into_iter().find_map(|(path, value)| {
        let parts = path.split('.');
        let found = parts.fold(read, |value, part| match part.parse::<usize>() {
            Ok(number) if value.is_array() => &value[number],
            _ => &value[part],
        });
        // A list of one table may be written as that table.
        let values = value.get_ref().as_array();
        let is_plain =
            values.is_some_and(|values| values.iter().all(|value| !value.get_ref().is_table()));
        let is_taken = is_plain && found.is_object();
        is_taken.then(|| Problem::new(path, "expected a table, found a list"))
    })
}

/// Every value in a table and in the tables and lists in it, by its path; entries of lists by their number.
fn each<'t, 'a>(table: &'t DeTable<'a>) -> Vec<(String, &'t Spanned<DeValue<'a>>)> {
    let mut found = Vec::new();
    for (key, value) in table {
        add(&mut found, key.get_ref().to_string(), value);
    }
    found
}

fn add<'t, 'a>(
    found: &mut Vec<(String, &'t Spanned<DeValue<'a>>)>,
    path: String,
    value: &'t Spanned<DeValue<'a>>,
) {
    found.push((path.clone(), value));
    match value.get_ref() {
        DeValue::Table(table) => {
            for (key, value) in table {
                add(found, format!("{path}.{}", key.get_ref()), value);
            }
        }
        DeValue::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                add(found, format!("{path}.{number}"), value);
            }
        }
        _ => {}
    }
}
