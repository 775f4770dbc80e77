//! Formats with values in them, as Python fills them: those of `%` and of the filter `format`, and what those of the method
//! `format` may take.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error as JinjaError, FormatStyle, State, format_filter};

use super::account::{Account, check_length, refused};
use super::notation::{repr, text};
use super::numbers::{integer, number};

/// The most digits of the width of a field, and of its precision.
const MOST_DIGITS: usize = 3;

type Result<T, E = JinjaError> = std::result::Result<T, E>;

/// A field of a format of `%`.
struct Field<'f> {
    /// The name under which a mapping has the value.
    name: Option<&'f str>,
    /// Flags, width and precision.
    options: &'f str,
    /// What is made of the value.
    letter: char,
}

/// What a format of `%` has before its first field, that field, and what is behind it; none where it has no field.
fn split(format: &str) -> Result<Option<(&str, Field<'_>, &str)>> {
    let Some((before, behind)) = format.split_once('%') else {
        return Ok(None);
    };
    let (name, behind) = match behind.strip_prefix('(') {
        None => (None, behind),
        Some(named) => match named.split_once(')') {
            Some((name, behind)) => (Some(name), behind),
            None => return refused("a format has a name without a `)`"),
        },
    };
    let is_option = |c: char| c.is_ascii_digit() || "#- +.*".contains(c);
    let letter = behind.trim_start_matches(is_option);
    let options = &behind[..behind.len() - letter.len()];
    let digits = options.split(|c: char| !c.is_ascii_digit());
    if options.contains('*') || digits.map(str::len).any(|digits| digits > MOST_DIGITS) {
        return refused("stopped: a format asks for a field wider than 999");
    }
    // Python takes C's modifiers and does nothing with them.
    let mut letters = letter.trim_start_matches(['h', 'l', 'L']).chars();
    let Some(letter) = letters.next() else {
        return refused("a format ends inside of a field");
    };
    let field = Field {
        name,
        options,
        letter,
    };
    Ok(Some((before, field, letters.as_str())))
}

/// Whether a format of `%` has several fields without names.
pub(super) fn takes_several(format: &str) -> bool {
    let (mut fields, mut rest) = (0, format);
    while let Ok(Some((_, field, behind))) = split(rest) {
        fields += usize::from(field.name.is_none() && field.letter != '%');
        rest = behind;
    }
    fields > 1
}

/// A format of `%`, the first of these, with the others in it, or with those of a mapping.
pub(super) fn printed(state: &State, arguments: &[Value]) -> Result<Value> {
    let account = Account::of(state);
    let [format, values @ ..] = arguments else {
        return refused("`format`: expected a text");
    };
    let format = text(&account, format)?;
    let mapping = values
        .first()
        .filter(|value| value.kind() == ValueKind::Map);
    let mut values_left = values.iter();
    let mut output = String::new();
    let mut rest = &*format;
    while let Some((before, field, behind)) = split(rest)? {
        output.push_str(before);
        rest = behind;
        if field.letter == '%' {
            output.push('%');
            continue;
        }
        let value = match field.name {
            Some(name) => named(mapping, name)?,
            None => match values_left.next() {
                Some(value) => value.clone(),
                None => return refused("a format has more fields than there are values"),
            },
        };
        let shown = shown(&account, &field, &value)?;
        account.spend(shown.len())?;
        output.push_str(&shown);
        check_length(output.len())?;
    }
    output.push_str(rest);
    // Python counts the values of a tuple, and neither those of a list nor of a mapping.
    let is_open = |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Map | ValueKind::Seq | ValueKind::Iterable
        )
    };
    if values_left.next().is_some() && !values.first().is_some_and(is_open) {
        return refused("a format has fewer fields than there are values");
    }
    account.settle(output.into())
}

/// The value that a mapping has under a name.
fn named(mapping: Option<&Value>, name: &str) -> Result<Value> {
    let Some(mapping) = mapping else {
        return refused("a format with names expects a mapping");
    };
    match mapping.get_attr(name)? {
        value if value.is_undefined() => refused(format!(
            "a format asks for `{name}`, which the mapping does not have"
        )),
        value => Ok(value),
    }
}

/// What a field shows of a value.
fn shown(account: &Account, field: &Field<'_>, value: &Value) -> Result<String> {
    let letter = field.letter;
    let expected = |what: &str| {
        let found = value.kind();
        refused(format!("`%{letter}`: expected {what}, found a {found}"))
    };
    let truncated = |number: f64| number.is_finite().then_some(number as i128);
    let whole = || integer(value).or_else(|| number(value).and_then(truncated));
    let (letter, converted): (char, Value) = match letter {
        's' => ('s', Value::from(&*text(account, value)?)),
        'r' => ('s', repr(account, value)?.into()),
        'd' | 'i' | 'u' => match whole() {
            Some(number) => ('d', number.into()),
            None => return expected("a number"),
        },
        'o' | 'x' | 'X' => match integer(value) {
            Some(number) => (letter, number.into()),
            None => return expected("an integer"),
        },
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match number(value) {
            Some(number) => (letter, number.into()),
            None => return expected("a number"),
        },
        'c' => (
            'c',
            integer(value).map_or_else(|| value.clone(), Value::from),
        ),
        _ => return refused(format!("a format has the unknown conversion `%{letter}`")),
    };
    // A point without digits asks for none.
    let none = if field.options.ends_with('.') {
        "0"
    } else {
        ""
    };
    let format = format!("%{}{none}{letter}", field.options);
    format_filter(FormatStyle::Printf, &format, &[converted])
}

/// Takes account of what a format of the method `format` may make of these values: in each field all that they hold.
pub(super) fn check_braces(account: &Account, format: &str, values: &[Value]) -> Result<()> {
    account.spend_text(format.len())?;
    let held = account.keep_all(values)?;
    let fields = format.matches('{').count();
    // What fills a field may be a character of four bytes.
    let filled = widths(format).saturating_mul(4);
    account.spend(fields.saturating_mul(held).saturating_add(filled))
}

/// The sum of the numbers of a format behind the first field that has more than a name: some of them are widths.
fn widths(format: &str) -> usize {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let has_name_alone = |field: &&str| {
        let name = field.split_once('}').map_or(*field, |(name, _)| name);
        name.chars().all(is_name)
    };
    let fields = format.split('{').skip(1).skip_while(has_name_alone);
    let numbers = fields.flat_map(|field| field.split(|c: char| !c.is_ascii_digit()));
    let numbers = numbers.filter(|number| !number.is_empty());
    let numbers = numbers.map(|number| number.parse().unwrap_or(usize::MAX));
    numbers.fold(0, usize::saturating_add)
}
