//! Numbers as Python and Jinja compute with them: the filters `int`, `float`, `round` and `sum`, and `%`.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, from_args};
use minijinja::{Error as JinjaError, State, filters};

use super::account::{Account, refused};

/// More digits than a float has behind its point.
const MOST_DIGITS: i32 = 1100;

type Result<T, E = JinjaError> = std::result::Result<T, E>;

/// `int`: what is no number becomes the default.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn int(state: &State, value: &Value, arguments: Rest<Value>) -> Result<Value> {
    let (given, options): (&[Value], Kwargs) = from_args(&arguments)?;
    let (_, base): (Option<Value>, Option<u32>) = from_args(given)?;
    let default = default(given, &options)?;
    let base = base.or(options.get("base")?).unwrap_or(10);
    options.assert_all_used()?;
    if !(2..=36).contains(&base) {
        return refused(format!("`int`: expected a base from 2 to 36, found {base}"));
    }
    let read = match read_text(state, value)? {
        Some(text) => whole(text, base).map(Value::from),
        None if value.is_none() => None,
        None => filters::int(state, value).ok(),
    };
    Ok(read.or(default).unwrap_or_else(|| Value::from(0)))
}

/// What is given in place of what is no number, as the first argument or by its name; it may be `none`.
fn default(given: &[Value], options: &Kwargs) -> Result<Option<Value>> {
    match given.first() {
        Some(value) => Ok(Some(value.clone())),
        None if options.has("default") => options.get("default").map(Some),
        None => Ok(None),
    }
}

/// A text without white space around it, with account of reading it.
fn read_text<'v>(state: &State, value: &'v Value) -> Result<Option<&'v str>> {
    let text = value.as_str();
    Account::of(state).spend(text.map_or(0, str::len))?;
    Ok(text.map(str::trim))
}

/// The integer of a text, with or without the mark of its base, or that of a number with a point.
fn whole(text: &str, base: u32) -> Option<i128> {
    let float = || text.parse::<f64>().ok().filter(|number| number.is_finite());
    signed(text, base).or_else(|| float().map(|number| number as i128))
}

fn signed(text: &str, base: u32) -> Option<i128> {
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    let mark = match base {
        2 => ['b', 'B'],
        8 => ['o', 'O'],
        16 => ['x', 'X'],
        _ => return i128::from_str_radix(text, base).ok(),
    };
    let marked = digits.strip_prefix('0');
    let marked = marked.and_then(|digits| digits.strip_prefix(mark));
    let digits = marked.unwrap_or(digits);
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(digits, base).ok()?;
    Some(if sign == "-" { -number } else { number })
}

/// `float`: what is no number becomes the default.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn float(state: &State, value: &Value, arguments: Rest<Value>) -> Result<Value> {
    let (given, options): (&[Value], Kwargs) = from_args(&arguments)?;
    let (_,): (Option<Value>,) = from_args(given)?;
    let default = default(given, &options)?;
    options.assert_all_used()?;
    let read = match read_text(state, value)? {
        Some(text) => text.parse::<f64>().ok().map(Value::from),
        None if value.is_none() => None,
        None => filters::float(state, value).ok(),
    };
    Ok(read.or(default).unwrap_or_else(|| Value::from(0.0)))
}

/// `round`: by the method `common` to the nearest, and of two to the even one.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn round(
    state: &State,
    value: &Value,
    precision: Option<i32>,
    method: Option<String>,
    options: Kwargs,
) -> Result<Value> {
    let precision = precision.or(options.get("precision")?).unwrap_or(0);
    let method = method.or(options.get("method")?);
    options.assert_all_used()?;
    // It looks at the clock: digits may take long to print, and they are rounded as they are printed.
    Account::of(state).spend(0)?;
    let Some(number) = number(value) else {
        return refused(format!(
            "`round`: expected a number, found a {}",
            value.kind()
        ));
    };
    let scale = 10_f64.powi(precision);
    match (method.as_deref().unwrap_or("common"), integer(value)) {
        ("common", Some(whole)) => Ok(nearest_whole(whole, precision).into()),
        ("common", None) => Ok(nearest(number, precision).into()),
        ("ceil", _) => Ok(((number * scale).ceil() / scale).into()),
        ("floor", _) => Ok(((number * scale).floor() / scale).into()),
        (other, _) => refused(format!(
            "`round`: expected the method `common`, `ceil` or `floor`, found `{other}`"
        )),
    }
}

fn nearest_whole(number: i128, precision: i32) -> i128 {
    let Ok(digits @ 1..) = u32::try_from(precision.saturating_neg()) else {
        return number;
    };
    let Some(unit) = 10_i128.checked_pow(digits) else {
        return 0;
    };
    let (below, rest) = (number.div_euclid(unit), number.rem_euclid(unit));
    let above = match rest.cmp(&(unit - rest)) {
        Ordering::Less => 0,
        Ordering::Equal => below & 1,
        Ordering::Greater => 1,
    };
    (below + above).saturating_mul(unit)
}

fn nearest(number: f64, precision: i32) -> f64 {
    match usize::try_from(precision.min(MOST_DIGITS)) {
        // Printed, a number is rounded by its exact value, as in Python.
        Ok(digits) => format!("{number:.digits$}").parse().unwrap_or(number),
        Err(_) => {
            let unit = 10_f64.powi(precision.saturating_neg());
            if unit.is_finite() {
                (number / unit).round_ties_even() * unit
            } else {
                0.0
            }
        }
    }
}

/// `sum` of numbers, or of what items have under an attribute such as `a.b`.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn sum(
    state: &State,
    values: &Value,
    attribute: Option<Value>,
    start: Option<Value>,
    options: Kwargs,
) -> Result<Value> {
    let account = Account::of(state);
    account.spend_parts(values.len().unwrap_or(0))?;
    let attribute = attribute.or(options.get("attribute")?);
    let mut total = start
        .or(options.get("start")?)
        .unwrap_or_else(|| Value::from(0));
    options.assert_all_used()?;
    for item in values.try_iter()? {
        let item = match &attribute {
            Some(path) => at(item, path)?,
            None => item,
        };
        total = added(&total, &item)?;
        account.spend(0)?;
    }
    Ok(total)
}

/// What a value has under a name, under names separated by points, or at a place.
fn at(value: Value, path: &Value) -> Result<Value> {
    let Some(path) = path.as_str() else {
        return value.get_item(path);
    };
    path.split('.')
        .try_fold(value, |value, name| match name.parse::<usize>() {
            Ok(place) => value.get_item(&place.into()),
            Err(_) => value.get_attr(name),
        })
}

fn added(one: &Value, other: &Value) -> Result<Value> {
    if let (Some(one), Some(other)) = (integer(one), integer(other)) {
        return match one.checked_add(other) {
            Some(sum) => Ok(sum.into()),
            None => refused("`sum`: the numbers are too large"),
        };
    }
    match (number(one), number(other)) {
        (Some(one), Some(other)) => Ok((one + other).into()),
        _ => refused(format!(
            "`sum`: expected numbers, found a {} and a {}",
            one.kind(),
            other.kind()
        )),
    }
}

/// `one % other` of numbers: as in Python, of the sign of the latter.
pub(super) fn remainder(one: &Value, other: &Value) -> Result<Value> {
    if let (Some(one), Some(other)) = (integer(one), integer(other)) {
        return match one.checked_rem(other) {
            Some(rest) if rest != 0 && (rest < 0) != (other < 0) => Ok((rest + other).into()),
            Some(rest) => Ok(rest.into()),
            None => refused("`%`: a division by zero"),
        };
    }
    match (number(one), number(other)) {
        (Some(_), Some(0.0)) => refused("`%`: a division by zero"),
        (Some(one), Some(other)) => match one % other {
            rest if rest != 0.0 && (rest < 0.0) != (other < 0.0) => Ok((rest + other).into()),
            rest => Ok(rest.into()),
        },
        _ => refused(format!(
            "`%`: expected numbers, or a text before it, found a {} and a {}",
            one.kind(),
            other.kind()
        )),
    }
}

/// An integer or a truth value.
pub(super) fn integer(value: &Value) -> Option<i128> {
    let is_one = value.is_integer() || value.kind() == ValueKind::Bool;
    is_one.then(|| i128::try_from(value.clone()).ok()).flatten()
}

/// A number or a truth value.
pub(super) fn number(value: &Value) -> Option<f64> {
    match integer(value) {
        Some(whole) => Some(whole as f64),
        None if value.is_number() => f64::try_from(value.clone()).ok(),
        None => None,
    }
}
