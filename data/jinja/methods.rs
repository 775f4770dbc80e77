//! Python's methods of texts, lists and mappings, as `minijinja_contrib` has them, with account of what they make.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error as JinjaError, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::account::{Account, refused};
use super::filters::{check_format, joined, parts, replaced};

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
        return account.settle(unknown_method_callback(state, value, method, arguments)?);
    };
    match method {
        "replace" => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(arguments)?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            return replaced(&account, text, (from, to), count).map(Value::from);
        }
        "count" => {
            let (what,): (&str,) = from_args(arguments)?;
            account.spend_text(text.len())?;
            // As in Python, an empty text is before and after every character.
            return Ok(text.matches(what).count().into());
        }
        "join" => {
            let (values,): (&Value,) = from_args(arguments)?;
            return joined(&account, values, text).map(Value::from);
        }
        "format" => {
            check_format(&account, &[std::slice::from_ref(value), arguments].concat())?;
        }
        "split" | "splitlines" => {
            account.spend_text(text.len())?;
            let separator = arguments.first().filter(|_| method == "split");
            account.spend_parts(parts(text, separator))?;
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
        _ => account.spend_text(text.len())?,
    }
    account.settle(unknown_method_callback(state, value, method, arguments)?)
}
