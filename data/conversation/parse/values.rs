//! Parts of a row taken in, within limits.

use std::borrow::Cow;

use serde_json::Value;
use spectrain_checkpoints::Mismatch;

use crate::conversation::TEMPLATE_KEY;
use crate::json::{check, count, fault, fields, items, kind};

/// The most values in further keys of messages, in definitions of tools and in variables, those inside of others included.
pub(crate) const MOST_VALUES: usize = 200_000;
/// The most keys of a row or message.
const MOST_KEYS: usize = 1000;

/// Keys with their values as JSON.
pub(crate) type Fields<'t> = Vec<(Cow<'t, str>, &'t str)>;

/// The fields of an object, unless there are too many.
pub(crate) fn object<'t>(text: &'t str, what: &str) -> Result<Fields<'t>, Mismatch> {
    // Found one by one they take the square of their number.
    let most = MOST_KEYS;
    let found = items(text).take(2 * most + 2).count() / 2;
    if found > most {
        Err(Mismatch::new(
            format!("{what} of at most {most} keys"),
            "more",
        ))
    } else {
        Ok(fields(text))
    }
}

/// A value taken in as a whole, as long as the row has not too many of them.
pub(super) fn value(text: &str, budget: &mut usize) -> Result<Value, Mismatch> {
    match budget.checked_sub(count(text)) {
        None => Err(Mismatch::new(
            format!(
                "at most {MOST_VALUES} values in further keys of messages, in `tools` and in `{TEMPLATE_KEY}`"
            ),
            "more",
        )),
        Some(left) => {
            *budget = left;
            serde_json::from_str(text).map_err(|error| {
                Mismatch::new(
                    "values that are nested, but not too deep, and texts without halves of surrogate pairs",
                    error.to_string(),
                )
            })
        }
    }
}

/// A list or an object itself, or the one in a text, as columns of some tables have it; none where the text says nothing.
pub(super) fn inner<'t>(given: &'t str, expected: &str) -> Result<Option<Cow<'t, str>>, Mismatch> {
    if !given.starts_with('"') {
        return Ok(Some(Cow::Borrowed(given)));
    }
    let inner = text(given, || expected.into())?;
    let inner = inner.trim();
    if ["", "null"].contains(&inner) {
        return Ok(None);
    }
    let checked = check(inner);
    checked.map_err(|error| Mismatch::new(expected, format!("a text that is no JSON: {error}")))?;
    Ok(Some(Cow::Owned(inner.to_owned())))
}

pub(super) fn text(given: &str, expected: impl Fn() -> String) -> Result<String, Mismatch> {
    serde_json::from_str(given).map_err(|error| {
        // That it is JSON is known by now, but not that each half of a surrogate pair has its other half.
        let found = match given.as_bytes().first() {
            Some(b'"') => format!("a text with half of a surrogate pair: {}", fault(&error)),
            _ => kind(given),
        };
        Mismatch::new(expected(), found)
    })
}
