//! The filters of templates: minijinja's, with account of what they take and make, and our own where one call could
//! make more than its arguments are long.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, from_args};
use minijinja::{Environment, Error as JinjaError, State, filters};

use super::account::{Account, check_length, refused};
use super::formats::printed;
use super::json_text::{JsonStyle, to_python_json};
use super::notation::text;
use super::numbers;

/// The longest pause between items of JSON, the widest indentation and the like.
const LONGEST_OPTION: usize = 1000;
/// The most lists that `batch` and `slice` make room for.
const MOST_PARTS: usize = 100_000;

type Result<T, E = JinjaError> = std::result::Result<T, E>;

/// What a filter does with its first argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    /// It reads its text.
    Text,
    /// It goes through its items; those of a text are its characters.
    Items,
    /// It splits its text.
    Split,
    /// It looks at it as a whole.
    Whole,
}

/// Replaces the filters of an environment.
pub(crate) fn add_filters(environment: &mut Environment<'static>) {
    for (name, input, filter) in of_minijinja() {
        environment.add_filter(name, move |state: &State, arguments: Rest<Value>| {
            bounded(state, &arguments, input, &filter)
        });
    }
    environment.add_filter("tojson", tojson);
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment.add_filter("indent", indent);
    environment.add_filter("string", |state: &State, value: &Value| {
        text(&Account::of(state), value).map(|text| Value::from(&*text))
    });
    environment.add_filter("format", |state: &State, arguments: Rest<Value>| {
        printed(state, &arguments)
    });
    environment.add_filter("int", numbers::int);
    environment.add_filter("float", numbers::float);
    environment.add_filter("round", numbers::round);
    environment.add_filter("sum", numbers::sum);
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    // They are minijinja's own, not Jinja's, and make values that lie in each other without being a list.
    for name in ["chain", "zip", "pprint"] {
        environment.remove_filter(name);
    }
}

fn of_minijinja() -> Vec<(&'static str, Input, Value)> {
    use Input::{Items, Split, Text, Whole};
    vec![
        ("safe", Text, Value::from_function(filters::safe)),
        ("escape", Text, Value::from_function(filters::escape)),
        ("e", Text, Value::from_function(filters::escape)),
        ("lower", Text, Value::from_function(filters::lower)),
        ("upper", Text, Value::from_function(filters::upper)),
        ("title", Text, Value::from_function(filters::title)),
        (
            "capitalize",
            Text,
            Value::from_function(filters::capitalize),
        ),
        ("trim", Text, Value::from_function(filters::trim)),
        ("split", Split, Value::from_function(filters::split)),
        ("lines", Split, Value::from_function(filters::lines)),
        ("dictsort", Items, Value::from_function(filters::dictsort)),
        ("items", Items, Value::from_function(filters::items)),
        ("reverse", Items, Value::from_function(filters::reverse)),
        ("first", Whole, Value::from_function(filters::first)),
        ("last", Items, Value::from_function(filters::last)),
        ("min", Items, Value::from_function(filters::min)),
        ("max", Items, Value::from_function(filters::max)),
        ("sort", Items, Value::from_function(filters::sort)),
        ("list", Items, Value::from_function(filters::list)),
        ("batch", Items, Value::from_function(filters::batch)),
        ("slice", Items, Value::from_function(filters::slice)),
        ("select", Items, Value::from_function(filters::select)),
        ("reject", Items, Value::from_function(filters::reject)),
        (
            "selectattr",
            Items,
            Value::from_function(filters::selectattr),
        ),
        (
            "rejectattr",
            Items,
            Value::from_function(filters::rejectattr),
        ),
        ("map", Items, Value::from_function(filters::map)),
        ("groupby", Items, Value::from_function(filters::groupby)),
        ("unique", Items, Value::from_function(filters::unique)),
        ("default", Whole, Value::from_function(filters::default)),
        ("d", Whole, Value::from_function(filters::default)),
        ("attr", Whole, Value::from_function(filters::attr)),
        ("abs", Whole, Value::from_function(filters::abs)),
        ("bool", Whole, Value::from_function(filters::bool)),
    ]
}

/// Calls a filter of minijinja, with account of what it takes before and of what it makes afterwards.
fn bounded(state: &State, arguments: &[Value], input: Input, filter: &Value) -> Result<Value> {
    let account = Account::of(state);
    let [first, options @ ..] = arguments else {
        return filter.call(state, arguments);
    };
    for option in options {
        check_option(option)?;
    }
    let made = match (input, first.as_str()) {
        (Input::Text, None) if first.kind() != ValueKind::Undefined => {
            let printed = Value::from(&*text(&account, first)?);
            filter.call(state, &[&[printed], options].concat())
        }
        (Input::Text, _) => {
            account.spend_text(first.as_str().map_or(0, str::len))?;
            filter.call(state, arguments)
        }
        (Input::Split, Some(text)) => {
            account.spend_text(text.len())?;
            account.spend_parts(parts(text, options.first()))?;
            filter.call(state, arguments)
        }
        (Input::Items, Some(text)) => {
            account.spend_parts(text.len())?;
            filter.call(state, arguments)
        }
        (Input::Items, None) => {
            account.spend_parts(first.len().unwrap_or(0))?;
            filter.call(state, arguments)
        }
        (Input::Whole | Input::Split, _) => filter.call(state, arguments),
    };
    account.settle(made?)
}

/// How many parts a text has between separators, at most; without one, between spaces and line breaks.
pub(super) fn parts(text: &str, separator: Option<&Value>) -> usize {
    let separators = match separator.and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count(),
        None => text.matches(char::is_whitespace).count(),
    };
    separators + 1
}

/// Refuses an option that a filter would take time or room for beyond its input: a set of characters to strip, a number
/// of parts.
fn check_option(option: &Value) -> Result<()> {
    if option
        .as_str()
        .is_some_and(|text| text.len() > LONGEST_OPTION)
    {
        return refused(format!(
            "stopped: a filter has an option of more than {LONGEST_OPTION} bytes"
        ));
    }
    match option.as_usize() {
        Some(parts) if parts > MOST_PARTS && option.kind() == ValueKind::Number => refused(
            format!("stopped: a filter has an option above {MOST_PARTS}"),
        ),
        _ => Ok(()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn tojson(state: &State, value: Value, options: Kwargs) -> Result<String> {
    let separators: Option<Vec<String>> = options.get("separators")?;
    let separators = match separators.as_deref() {
        Some([item, key]) => Some((item.clone(), key.clone())),
        _ => None,
    };
    let style = JsonStyle {
        indent: options.get("indent")?,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        separators,
    };
    options.assert_all_used()?;
    let widest = [
        style.indent.unwrap_or(0),
        style
            .separators
            .as_ref()
            .map_or(0, |(one, two)| one.len().max(two.len())),
    ];
    if widest.iter().any(|&width| width > LONGEST_OPTION) {
        return refused(format!(
            "stopped: `tojson` with `indent` or `separators` wider than {LONGEST_OPTION}"
        ));
    }
    to_python_json(&value, &style, &Account::of(state))
}

fn replace(state: &State, value: &Value, from: &Value, to: &Value) -> Result<String> {
    let account = Account::of(state);
    let (from, to) = (text(&account, from)?, text(&account, to)?);
    replaced(&account, &text(&account, value)?, (&from, &to), None)
}

/// A text with its first `count` occurrences of one part replaced by another, or with all.
pub(super) fn replaced(
    account: &Account,
    value: &str,
    (from, to): (&str, &str),
    count: Option<usize>,
) -> Result<String> {
    let count = count.unwrap_or(usize::MAX);
    account.spend_text(value.len())?;
    let found = value.matches(from).take(count).count();
    let added = found.saturating_mul(to.len());
    account.spend_text((value.len() - found * from.len()).saturating_add(added))?;
    Ok(value.replacen(from, to, count))
}

fn join(state: &State, values: &Value, between: Option<&Value>) -> Result<String> {
    let account = Account::of(state);
    let between = between.map_or(Ok("".into()), |between| text(&account, between))?;
    joined(&account, values, &between)
}

/// The texts of values, with another one between them.
pub(super) fn joined(account: &Account, values: &Value, between: &str) -> Result<String> {
    let mut output = String::new();
    for (number, item) in values.try_iter()?.enumerate() {
        let before = if number > 0 { between } else { "" };
        let item = text(account, &item)?;
        account.spend(before.len())?;
        output.push_str(before);
        output.push_str(&item);
        check_length(output.len())?;
    }
    Ok(output)
}

/// As in Jinja, what is not defined has no length.
fn length(state: &State, value: &Value) -> Result<usize> {
    // The characters of a text are counted each time.
    Account::of(state).spend(value.as_str().map_or(0, str::len))?;
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        _ => filters::length(value),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn indent(state: &State, value: &Value, arguments: Rest<Value>) -> Result<String> {
    let (width, first, blank, options): (Option<Value>, Option<bool>, Option<bool>, Kwargs) =
        from_args(&arguments)?;
    let account = Account::of(state);
    let width = width
        .or(options.get("width")?)
        .unwrap_or_else(|| Value::from(4));
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let (indentation, times) = match (width.as_str(), width.as_usize()) {
        (Some(indentation), _) => (indentation, 1),
        (None, Some(width)) => (" ", width),
        (None, None) => {
            let kind = width.kind();
            return refused(format!(
                "`indent`: expected a width or a text, found a {kind}"
            ));
        }
    };
    // Of several line breaks at its end one stays less, as in Jinja.
    let shown = format!("{}\n", text(&account, value)?);
    let added = indentation.len().saturating_mul(times);
    let added = added.saturating_mul(shown.lines().count());
    account.spend_text(shown.len().saturating_add(added))?;
    let indentation = indentation.repeat(times);
    let mut output = String::new();
    for (number, line) in shown.lines().enumerate() {
        let is_indented = match number {
            0 => first,
            _ => blank || !line.is_empty(),
        };
        output.push_str(if number > 0 { "\n" } else { "" });
        output.push_str(if is_indented { &indentation } else { "" });
        output.push_str(line);
    }
    Ok(output)
}
