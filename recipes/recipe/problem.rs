//! What is wrong with the value of a key.

use spectrain_models::bounds::{self, Bounded, OutOfBounds};

use crate::errors::Misuse;

/// What is wrong with the value of a key although it has the right type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key `{key}`: {message}")]
pub struct Problem {
    /// The key, with its table once that is known.
    pub key: String,
    /// Expected and found.
    pub message: String,
}

impl Problem {
    /// A problem with `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }

    /// The same problem, seen from outside of `table`.
    pub fn within(self, table: &str) -> Self {
        Self {
            key: format!("{table}.{}", self.key),
            message: self.message,
        }
    }

    /// The same with the option that sets the key on a command line.
    pub fn of_option(&self) -> Misuse {
        let option = self.key.replace('_', "-");
        Misuse(format!("`--{option}`: {}", self.message))
    }
}

impl From<Problem> for Misuse {
    fn from(problem: Problem) -> Self {
        Self(problem.to_string())
    }
}

impl From<OutOfBounds> for Problem {
    fn from(out: OutOfBounds) -> Self {
        Self::new(out.key, out.mismatch.to_string())
    }
}

/// Refuses the first of `numbers` that is out of its bounds.
pub(crate) fn within(numbers: impl IntoIterator<Item = Bounded>) -> Result<(), Problem> {
    Ok(bounds::check(numbers)?)
}

/// Refuses an empty list.
pub(crate) fn some_of<T>(key: &str, values: &[T]) -> Result<(), Problem> {
    if values.is_empty() {
        Err(Problem::new(key, "expected at least one entry, found none"))
    } else {
        Ok(())
    }
}

/// A setting of a drafter or of its training that makes no sense.
pub(super) fn setting(error: spectrain_train::Error) -> Problem {
    match error {
        spectrain_train::Error::Setting {
            table,
            key,
            mismatch,
        } => Problem::new(format!("{table}.{key}"), mismatch.to_string()),
        spectrain_train::Error::Model(spectrain_models::Error::Drafter { key, mismatch }) => {
            Problem::new(format!("drafter.{key}"), mismatch.to_string())
        }
        other => Problem::new("train", other.to_string()),
    }
}
