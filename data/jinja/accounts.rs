//! The functions that [`super::guard`] weaves into templates to keep account of what a rendering makes.

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error as JinjaError, State};

use super::account::{Account, refused};
use super::formats::{printed, takes_several};
use super::notation::text;
use super::numbers::remainder;

/// The end of the names of functions that belong to the program.
pub(crate) const RESERVED: &str = "__";
/// Takes account of an operand or a result, and passes it on.
pub(crate) const COUNTED: &str = "counted__";
/// Takes account of all that a value holds, and passes it on.
pub(crate) const KEPT: &str = "kept__";
/// `slice__(x, a, b, c)` is `x[a:b:c]` as in Python.
pub(crate) const SLICE: &str = "slice__";
/// `modulo__(a, b)` is `a % b`; a third argument says that `b` is written as a tuple, whose values a text shows one by one. Other
/// tuples, as `dictsort` gives them, are lists here, and known by the fields that they are for.
pub(crate) const MODULO: &str = "modulo__";
/// The text of an operand of `~`, as Python writes it.
pub(crate) const TEXT: &str = "text__";
/// Looks at the clock and passes its argument on; a second one is what each round of a loop over it adds.
pub(crate) const TIMED: &str = "timed__";

type Result<T, E = JinjaError> = std::result::Result<T, E>;

/// Adds the functions that are woven into templates.
pub(crate) fn add_functions(environment: &mut Environment<'static>) {
    environment.add_function(COUNTED, |state: &State, value: Value| {
        Account::of(state).settle(value)
    });
    environment.add_function(KEPT, |state: &State, value: Value| -> Result<Value> {
        Account::of(state).keep(&value, 0)?;
        Ok(value)
    });
    environment.add_function(TEXT, |state: &State, value: Value| -> Result<Value> {
        match value.kind() {
            // Shared, not copied.
            ValueKind::String => Account::of(state).settle(value),
            _ => Ok(text(&Account::of(state), &value)?.into_owned().into()),
        }
    });
    environment.add_function(
        TIMED,
        |state: &State, value: Value, round: Option<usize>| -> Result<Value> {
            let rounds = round.and(value.len()).unwrap_or(1);
            let added = round.unwrap_or(0).saturating_mul(rounds);
            Account::of(state).spend(added)?;
            Ok(value)
        },
    );
    environment.add_function(SLICE, slice);
    environment.add_function(MODULO, modulo);
}

/// A format with values in it, or the remainder of a division.
fn modulo(state: &State, one: Value, other: Value, is_tuple: Option<bool>) -> Result<Value> {
    if one.kind() != ValueKind::String {
        return remainder(&one, &other);
    }
    let is_list = matches!(other.kind(), ValueKind::Seq | ValueKind::Iterable);
    let is_tuple =
        is_tuple == Some(true) || (is_list && takes_several(one.as_str().unwrap_or_default()));
    let mut arguments = vec![one];
    if is_tuple {
        arguments.extend(other.try_iter()?);
    } else {
        arguments.push(other);
    }
    printed(state, &arguments)
}

/// `value[start:stop:step]` of a text or list, as in Python.
fn slice(
    state: &State,
    value: Value,
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
) -> Result<Value> {
    let account = Account::of(state);
    let step = step.unwrap_or(1);
    if step == 0 {
        return refused("a slice cannot have the step 0");
    }
    let range = |length: usize| Steps::of(length, (start, stop, step));
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            if step == 1 {
                let length = text.chars().count();
                let (from, count) = range(length).run();
                let part: String = text.chars().skip(from).take(count).collect();
                account.spend_text(part.len())?;
                return Ok(part.into());
            }
            // Reordered, a text takes four bytes for each character for a moment.
            account.spend(text.len().saturating_mul(4))?;
            let characters: Vec<char> = text.chars().collect();
            let picked = range(characters.len()).map(|at| characters[at]);
            Ok(picked.collect::<String>().into())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let values: Vec<Value> = account.settle(value)?.try_iter()?.collect();
            Ok(range(values.len()).map(|at| values[at].clone()).collect())
        }
        ValueKind::Undefined | ValueKind::None => Ok(Vec::<Value>::new().into()),
        kind => refused(format!("a {kind} cannot be sliced")),
    }
}

/// The places that a slice picks.
struct Steps {
    next: i64,
    step: i64,
    left: usize,
}

impl Steps {
    fn of(length: usize, (start, stop, step): (Option<i64>, Option<i64>, i64)) -> Self {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let (lowest, highest) = if step > 0 {
            (0, length)
        } else {
            (-1, length - 1)
        };
        let place = |given: Option<i64>, default: i64| match given {
            None => default,
            Some(at) if at < 0 => at.saturating_add(length).max(lowest),
            Some(at) => at.min(highest),
        };
        let (first, last) = if step > 0 {
            (lowest, highest)
        } else {
            (highest, lowest)
        };
        let (start, stop) = (place(start, first), place(stop, last));
        let distance = if step > 0 { stop - start } else { start - stop };
        let left = if distance > 0 {
            (distance - 1) as u64 / step.unsigned_abs() + 1
        } else {
            0
        };
        Self {
            next: start,
            step,
            left: usize::try_from(left).unwrap_or(usize::MAX),
        }
    }

    /// The first place and how many follow one another, for steps of one.
    fn run(&self) -> (usize, usize) {
        (usize::try_from(self.next).unwrap_or(0), self.left)
    }
}

impl Iterator for Steps {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let place = usize::try_from(self.next).ok()?;
        self.next = self.next.saturating_add(self.step);
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_pick_what_they_pick_in_python() {
        let of = |start, stop, step| {
            let places: Vec<usize> = Steps::of(5, (start, stop, step)).collect();
            places
        };
        // Expected: `list(range(5))[start:stop:step]` in Python.
        assert_eq!(of(None, None, 1), [0, 1, 2, 3, 4]);
        assert_eq!(of(Some(1), Some(-1), 1), [1, 2, 3]);
        assert_eq!(of(Some(-9), Some(9), 2), [0, 2, 4]);
        assert_eq!(of(None, None, -1), [4, 3, 2, 1, 0]);
        assert_eq!(of(Some(3), Some(0), -2), [3, 1]);
        assert_eq!(of(Some(9), Some(-9), -3), [4, 1]);
        assert_eq!(of(Some(3), Some(3), 1), [0; 0]);
        assert_eq!(of(Some(4), Some(2), 1), [0; 0]);
        assert_eq!(of(Some(1), Some(3), -1), [0; 0]);
        assert_eq!(of(Some(i64::MIN), Some(i64::MAX), i64::MAX), [0]);
        assert_eq!(of(Some(i64::MAX), Some(i64::MIN), i64::MIN), [4]);
        let empty: Vec<usize> = Steps::of(0, (None, None, -1)).collect();
        assert_eq!(empty, [0; 0]);
    }
}
