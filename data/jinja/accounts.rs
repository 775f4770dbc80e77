//! What a rendering may make and how long it may take, and the functions that [`super::guard`] weaves into templates
//! to keep account of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use minijinja::value::{DynObject, Object, Value, ValueKind};
use minijinja::{Environment, Error as JinjaError, ErrorKind, State};

use super::notation::text;

/// The end of the names of functions that belong to the program.
pub(crate) const RESERVED: &str = "__";
/// Takes account of an operand or a result, and passes it on.
pub(crate) const COUNTED: &str = "counted__";
/// Takes account of all that a value holds, and passes it on.
pub(crate) const KEPT: &str = "kept__";
/// `slice__(x, a, b, c)` is `x[a:b:c]` as in Python.
pub(crate) const SLICE: &str = "slice__";
/// The text of an operand of `~`, as Python writes it.
pub(crate) const TEXT: &str = "text__";
/// Looks at the clock and passes its argument on; a second one is what each round of a loop over it adds.
pub(crate) const TIMED: &str = "timed__";

/// Bytes that a rendering may make, those of intermediate values included.
pub(crate) const BUDGET: usize = 512 << 20;
/// The longest text, in bytes.
pub(crate) const LONGEST_TEXT: usize = 32 << 20;
/// Bytes that one value in a list or mapping takes.
const PER_VALUE: usize = size_of::<Value>();
/// What going through a value counts for beside its text, in bytes: as much as a small one takes with its place.
const PER_VISIT: usize = 128;
/// How deep values may lie inside of each other.
const DEEPEST_VALUE: usize = 64;
/// The longest a rendering may take: minutes longer than any that comes to an end by itself.
const LONGEST_TIME: Duration = Duration::from_secs(120);
/// The name under which a rendering keeps its account.
const ACCOUNT: &str = "account";

type Result<T, E = JinjaError> = std::result::Result<T, E>;

/// What a rendering has made so far, and when it has to end.
#[derive(Debug)]
pub(crate) struct Account {
    spent: AtomicUsize,
    ends: Instant,
}

impl Object for Account {}

impl Account {
    /// The account of this rendering.
    pub(crate) fn of(state: &State) -> Arc<Self> {
        state.get_or_set_temp_object(ACCOUNT, || Self {
            spent: AtomicUsize::new(0),
            ends: Instant::now() + LONGEST_TIME,
        })
    }

    /// Takes account of bytes, and looks at the clock.
    pub(crate) fn spend(&self, bytes: usize) -> Result<()> {
        let before = self.spent.fetch_add(bytes.min(BUDGET), Ordering::Relaxed);
        if before.saturating_add(bytes) > BUDGET {
            let mebibytes = BUDGET >> 20;
            return refused(format!(
                "stopped: what it makes on this conversation exceeds {mebibytes} MiB"
            ));
        }
        if Instant::now() > self.ends {
            let seconds = LONGEST_TIME.as_secs();
            return refused(format!("stopped: it takes longer than {seconds} seconds"));
        }
        Ok(())
    }

    /// Takes account of a text.
    pub(crate) fn spend_text(&self, length: usize) -> Result<()> {
        check_length(length)?;
        self.spend(length)
    }

    /// Takes account of so many values of a list.
    pub(crate) fn spend_values(&self, count: usize) -> Result<()> {
        self.spend(count.saturating_mul(PER_VALUE))
    }

    /// Takes account of so many values that are made, or regrouped in lists of their own.
    pub(crate) fn spend_parts(&self, count: usize) -> Result<()> {
        self.spend(count.saturating_mul(PER_VISIT))
    }

    /// Takes account of a value itself. One that is computed on demand is computed, so that these do not lie in each other.
    pub(crate) fn settle(&self, value: Value) -> Result<Value> {
        match value.kind() {
            ValueKind::String => self.spend_text(value.as_str().map_or(0, str::len))?,
            ValueKind::Seq | ValueKind::Map => self.spend_values(value.len().unwrap_or(0))?,
            ValueKind::Iterable => {
                if let Some(length) = value.len() {
                    self.spend_values(length)?;
                    return Ok(value.try_iter()?.collect());
                }
                let mut values = Vec::new();
                for item in value.try_iter()? {
                    self.spend_values(1)?;
                    values.push(item);
                }
                return Ok(values.into());
            }
            _ => self.spend(0)?,
        }
        Ok(value)
    }

    /// Takes account of all that a value holds, as often as it holds it.
    pub(crate) fn keep(&self, value: &Value, depth: usize) -> Result<()> {
        if depth > DEEPEST_VALUE {
            return refused(format!(
                "stopped: it puts more than {DEEPEST_VALUE} lists and mappings inside of each other"
            ));
        }
        self.spend(PER_VISIT)?;
        match value.kind() {
            ValueKind::String => self.spend_text(value.as_str().map_or(0, str::len))?,
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.keep(&item, depth + 1)?;
                }
            }
            // Kept in another one, or in itself, it could be gone through without end.
            ValueKind::Map if is_namespace(value) => {
                return refused(
                    "it keeps a namespace inside of another value, which is not supported",
                );
            }
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.keep(&key, depth + 1)?;
                    self.keep(&value.get_item(&key)?, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Refuses a text that is too long.
pub(crate) fn check_length(length: usize) -> Result<()> {
    match length {
        0..=LONGEST_TEXT => Ok(()),
        _ => {
            let mebibytes = LONGEST_TEXT >> 20;
            refused(format!(
                "stopped: it makes a text of more than {mebibytes} MiB"
            ))
        }
    }
}

/// An error that ends the rendering.
pub(crate) fn refused<T>(message: impl Into<String>) -> Result<T> {
    Err(JinjaError::new(ErrorKind::InvalidOperation, message.into()))
}

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
}

/// Whether a value was made by `namespace`, as what lies in it can change.
fn is_namespace(value: &Value) -> bool {
    static TYPE: OnceLock<Option<&'static str>> = OnceLock::new();
    let name = |value: &Value| value.as_object().map(DynObject::type_name);
    let made = || name(&minijinja::functions::namespace(None).ok()?);
    name(value).is_some_and(|name| TYPE.get_or_init(made).is_some_and(|made| made == name))
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
        let left = match distance > 0 {
            true => (distance - 1) as u64 / step.unsigned_abs() + 1,
            false => 0,
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
