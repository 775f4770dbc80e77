//! What was expected and what was found instead.

use std::fmt;

use crate::printable::printable;

/// Characters of a number that is printed with all its digits: others have hundreds of zeros.
const LONGEST_NUMBER: usize = 24;

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
        let found = match self.found.parse::<f64>() {
            Ok(number) if self.found.len() > LONGEST_NUMBER => format!("{number:e}"),
            _ => printable(&self.found),
        };
        write!(f, "expected {}, found {found}", self.expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_hundreds_of_digits_is_printed_with_its_exponent() {
        let found = |number: f64| Mismatch::new("less", number).to_string();
        assert_eq!(found(1e308), "expected less, found 1e308");
        assert_eq!(found(0.5), "expected less, found 0.5");
        assert_eq!(found(f64::INFINITY), "expected less, found inf");
    }
}
