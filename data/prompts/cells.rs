//! What the columns of a row say.

use std::borrow::Cow;

use spectrain_checkpoints::Mismatch;

use crate::json::{items, kind};

/// Columns and their values as JSON.
pub(super) type Values<'t> = [(Cow<'t, str>, &'t str)];

/// The value of a column, where a row has it.
pub(super) fn given<'t>(column: &str, values: &Values<'t>) -> Option<&'t str> {
    let found = values.iter().find(|(name, _)| name == column);
    found.map(|(_, value)| *value)
}

/// What a column says: a text, a number or truth value as it is written, texts of a list one a line, and nothing where it is null.
pub(super) fn said(column: &str, value: &str) -> Result<String, Mismatch> {
    match value.as_bytes().first() {
        _ if value == "null" => Ok(String::new()),
        Some(b'[') => Ok(texts(column, value)?.join("\n")),
        Some(b'"') => text(column, value),
        Some(b'{') => Err(Mismatch::new(
            format!("`{column}` to be a text"),
            kind(value),
        )),
        _ => Ok(value.to_owned()),
    }
}

/// The one text that a column says.
pub(super) fn text(column: &str, value: &str) -> Result<String, Mismatch> {
    serde_json::from_str(value)
        .map_err(|_| Mismatch::new(format!("`{column}` to be texts"), kind(value)))
}

/// The texts of a column that is a list.
pub(super) fn texts(column: &str, list: &str) -> Result<Vec<String>, Mismatch> {
    items(list).map(|item| text(column, item)).collect()
}
