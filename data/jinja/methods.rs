//! Python's methods of texts, lists and mappings, with account of what they make: ours, else those of `minijinja_contrib`.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error as JinjaError, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::account::{Account, refused};
use super::filters::{joined, parts, replaced};
use super::formats::check_braces;
use super::texts;

/// The longest set of characters to strip.
const LONGEST_SET: usize = 1000;

/// Calls a method that minijinja does not know.
pub(crate) fn call(
    state: &State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, JinjaError> {
    let account = Account::of(state);
    let Some(text) = value.as_str().filter(|_| value.kind() == ValueKind::String) else {
        if method == "index" && value.kind() == ValueKind::Seq {
            return place(&account, value, arguments);
        }
        return account.settle(unknown_method_callback(state, value, method, arguments)?);
    };
    match method {
        "replace" => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(arguments)?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            return replaced(&account, text, (from, to), count).map(Value::from);
        }
        "join" => {
            let (values,): (&Value,) = from_args(arguments)?;
            return joined(&account, values, text).map(Value::from);
        }
        "format" => check_braces(&account, text, arguments)?,
        "splitlines" => {
            account.spend_text(text.len())?;
            account.spend_parts(parts(text, None))?;
        }
        "strip" | "lstrip" | "rstrip" => {
            let set = arguments.first().and_then(Value::as_str);
            if set.is_some_and(|set| set.len() > LONGEST_SET) {
                return refused(format!(
                    "stopped: `{method}` of more than {LONGEST_SET} bytes of characters"
                ));
            }
            account.spend_text(text.len())?;
        }
        _ => {
            account.spend_text(text.len())?;
            if let Some(made) = texts::called(&account, text, method, arguments)? {
                return account.settle(made);
            }
        }
    }
    account.settle(unknown_method_callback(state, value, method, arguments)?)
}

/// The place of a value in a list.
fn place(account: &Account, list: &Value, arguments: &[Value]) -> Result<Value, JinjaError> {
    let (what,): (&Value,) = from_args(arguments)?;
    account.spend_values(list.len().unwrap_or(0))?;
    match list.try_iter()?.position(|item| item == *what) {
        Some(place) => Ok(place.into()),
        None => refused("`index`: the list has no such value"),
    }
}
