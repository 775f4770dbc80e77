//! What was expected and what was found instead.

use std::fmt;

use crate::printable::printable;

/// What was expected and what was found instead: the part that all errors about wrong values share. Text out of files is
/// printed so that it does not steer the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What would do.
    pub expected: String,
    /// What was given, or stands there.
    pub found: String,
}

impl Mismatch {
    /// `expected`, and `found` in its place.
    pub fn new(expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        Self {
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = printable(&self.found);
        write!(f, "expected {}, found {found}", self.expected)
    }
}
