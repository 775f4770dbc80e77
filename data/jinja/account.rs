//! What a rendering may make and how long it may take.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use minijinja::value::{DynObject, Object, Value, ValueKind};
use minijinja::{Error as JinjaError, ErrorKind, State};

use crate::patience::Patience;

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

/// What a rendering has made so far, and since when it works.
#[derive(Debug)]
pub(crate) struct Account {
    spent: AtomicUsize,
    patience: Patience,
}

impl Object for Account {}

impl Account {
    /// The account of this rendering.
    pub(crate) fn of(state: &State) -> Arc<Self> {
        state.get_or_set_temp_object(ACCOUNT, || Self {
            spent: AtomicUsize::new(0),
            patience: Patience::begin(),
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
        if self.patience.exceeds(LONGEST_TIME) {
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

    /// Takes account of all that values hold, and returns how many bytes that is.
    pub(crate) fn keep_all(&self, values: &[Value]) -> Result<usize> {
        let before = self.spent.load(Ordering::Relaxed);
        values.iter().try_for_each(|value| self.keep(value, 0))?;
        Ok(self.spent.load(Ordering::Relaxed) - before)
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

/// Whether a value was made by `namespace`, as what lies in it can change.
fn is_namespace(value: &Value) -> bool {
    static TYPE: OnceLock<Option<&'static str>> = OnceLock::new();
    let name = |value: &Value| value.as_object().map(DynObject::type_name);
    let made = || name(&minijinja::functions::namespace(None).ok()?);
    name(value).is_some_and(|name| TYPE.get_or_init(made).is_some_and(|made| made == name))
}
