//! Warnings that are given once, however often what they are of is read.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The warnings that were given.
#[derive(Debug)]
struct Told(Mutex<BTreeSet<String>>);

impl Told {
    const fn nothing() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    /// Whether this was not told before; from now on it was.
    fn is_new(&self, text: &str) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert(text.to_owned())
    }
}

/// Logs a warning, unless this process has logged the same before.
pub fn warn_once(text: &str) {
    static TOLD: Told = Told::nothing();
    if TOLD.is_new(text) {
        tracing::warn!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_told_once_and_something_else_too() {
        let told = Told::nothing();
        let found = ["a", "b", "a", "c"].map(|text| told.is_new(text));
        assert_eq!(found, [true, true, false, true]);
    }
}
