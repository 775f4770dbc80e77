//! Python's methods of texts that minijinja_contrib lacks or has otherwise. As in Python, places are counted in characters.

use minijinja::Error as JinjaError;
use minijinja::value::{Kwargs, Value, ValueKind, from_args};

use super::account::{Account, refused};

type Result<T, E = JinjaError> = std::result::Result<T, E>;

/// Between which characters of a text is searched: `start` and `end` of Python's methods.
type Bounds = (Option<i64>, Option<i64>);

/// Calls a method of a text; none where it is none of these.
pub(super) fn called(
    account: &Account,
    text: &str,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>> {
    let made = match method {
        "find" | "rfind" | "index" | "rindex" => place(text, method, arguments)?,
        "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
            // As in Python, an empty text is before and after every character.
            let count = |(_, part): (usize, &str)| part.matches(what).count();
            searched(text, (start, end)).map_or(0, count).into()
        }
        "startswith" | "endswith" => has_at_end(text, method, arguments)?.into(),
        "split" | "rsplit" => split(account, text, method, arguments)?,
        "partition" | "rpartition" => partition(text, method, arguments)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "zfill" => zero_filled(account, text, arguments)?.into(),
        _ => return Ok(None),
    };
    Ok(Some(made))
}

/// Where a text has another one, from the front or from the back.
fn place(text: &str, method: &str, arguments: &[Value]) -> Result<Value> {
    let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
    let found = searched(text, (start, end)).and_then(|(before, part)| {
        let at = match method {
            "rfind" | "rindex" => part.rfind(what),
            _ => part.find(what),
        };
        Some(before + part[..at?].chars().count())
    });
    match found {
        Some(place) => Ok(place.into()),
        None if method.ends_with("find") => Ok((-1_i64).into()),
        None => refused(format!("`{method}`: the text has no such part")),
    }
}

/// The part of a text that is searched, and how many characters stand before it; none where it would end before it begins.
fn searched(text: &str, (start, end): Bounds) -> Option<(usize, &str)> {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let place = |given: i64| match given {
        ..0 => given.saturating_add(length).max(0),
        _ => given,
    };
    let start = place(start.unwrap_or(0));
    let end = place(end.unwrap_or(length)).min(length);
    let count = usize::try_from(end - start).ok()?;
    let start = usize::try_from(start).ok()?;
    let rest = &text[byte_of(text, start)..];
    Some((start, &rest[..byte_of(rest, count)]))
}

/// The byte at which the character of this number begins.
fn byte_of(text: &str, character: usize) -> usize {
    let mut places = text.char_indices();
    places.nth(character).map_or(text.len(), |(at, _)| at)
}

/// Whether a text begins or ends with another one, or with one of several.
fn has_at_end(text: &str, method: &str, arguments: &[Value]) -> Result<bool> {
    let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(arguments)?;
    let part = searched(text, (start, end)).map(|(_, part)| part);
    let has = |what: &Value| match what.as_str() {
        Some(what) if method == "startswith" => Ok(part.is_some_and(|part| part.starts_with(what))),
        Some(what) => Ok(part.is_some_and(|part| part.ends_with(what))),
        None => refused(format!("`{method}`: expected a text or several of them")),
    };
    if !matches!(what.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return has(what);
    }
    for what in what.try_iter()? {
        if has(&what)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The parts of a text between separators, or between white space; at most so many cuts are made.
fn split(account: &Account, text: &str, method: &str, arguments: &[Value]) -> Result<Value> {
    let (arguments, named): (&[Value], Kwargs) = from_args(arguments)?;
    let (separator, most): (Option<String>, Option<i64>) = from_args(arguments)?;
    let separator = separator.or(named.get("sep")?);
    let most = most.or(named.get("maxsplit")?);
    named.assert_all_used()?;
    let cuts = match separator.as_deref() {
        Some("") => return refused(format!("`{method}`: the separator is empty")),
        Some(separator) => text.matches(separator).count(),
        None => text.matches(char::is_whitespace).count(),
    };
    account.spend_parts(cuts + 1)?;
    let most = most.and_then(|most| usize::try_from(most).ok());
    let most = most.unwrap_or(cuts).min(cuts);
    let from_end = method == "rsplit";
    let mut parts: Vec<&str> = match separator.as_deref() {
        Some(separator) if from_end => text.rsplitn(most + 1, separator).collect(),
        Some(separator) => text.splitn(most + 1, separator).collect(),
        None => words(text, most, from_end),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// What stands between white space, and what is left after so many words; from the end, the last one first.
fn words(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_end {
            rest.trim_end()
        } else {
            rest.trim_start()
        };
        let cut = match (words.len() < most, from_end) {
            (false, _) => None,
            (true, false) => rest.find(char::is_whitespace),
            (true, true) => rest.rfind(char::is_whitespace),
        };
        let Some(at) = cut else {
            words.extend(Some(rest).filter(|rest| !rest.is_empty()));
            return words;
        };
        let (before, behind) = rest.split_at(at);
        if from_end {
            words.push(behind.trim_start());
            rest = before;
        } else {
            words.push(before);
            rest = behind;
        }
    }
}

/// What stands before a separator, the separator, and what stands behind it.
fn partition(text: &str, method: &str, arguments: &[Value]) -> Result<Value> {
    let (separator,): (&str,) = from_args(arguments)?;
    if separator.is_empty() {
        return refused(format!("`{method}`: the separator is empty"));
    }
    let from_end = method == "rpartition";
    let found = if from_end {
        text.rsplit_once(separator)
    } else {
        text.split_once(separator)
    };
    let parts = match found {
        Some((before, behind)) => [before, separator, behind],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// A text with zeros before it, behind its sign, up to a number of characters.
fn zero_filled(account: &Account, text: &str, arguments: &[Value]) -> Result<String> {
    let (width,): (i64,) = from_args(arguments)?;
    let width = usize::try_from(width).unwrap_or(0);
    let zeros = width.saturating_sub(text.chars().count());
    account.spend_text(text.len().saturating_add(zeros))?;
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    Ok(format!("{sign}{}{digits}", "0".repeat(zeros)))
}
