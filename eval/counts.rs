//! Tokens and passes, of which τ is the ratio.
use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};
use serde_json::Number;

use crate::served::acceptance::DraftCounts;

/// Tokens that decoding passes emitted, and how many passes these were. Of passes that are only expected they are no whole
/// numbers. In JSON `[tokens, passes]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f64; 2]", into = "[Number; 2]")]
pub struct Counts {
    /// Tokens emitted.
    pub tokens: f64,
    /// Decoding passes.
    pub passes: f64,
}

impl Counts {
    /// τ. `None` without passes.
    pub fn tau(self) -> Option<f64> {
        (self.passes > 0.0).then(|| self.tokens / self.passes)
    }

    /// Whether τ is larger than that of `other`.
    pub(crate) fn exceeds(self, other: Self) -> bool {
        self.tokens * other.passes > other.tokens * self.passes
    }
}

impl From<[f64; 2]> for Counts {
    fn from([tokens, passes]: [f64; 2]) -> Self {
        Self { tokens, passes }
    }
}

impl From<DraftCounts> for Counts {
    fn from(drafts: DraftCounts) -> Self {
        let passes = drafts.drafts as f64;
        Self {
            tokens: passes + drafts.accepted as f64,
            passes,
        }
    }
}

impl From<Counts> for [Number; 2] {
    fn from(counts: Counts) -> Self {
        let number = |value: f64| {
            if value.fract() == 0.0 && value >= 0.0 {
                Number::from(value as u64)
            } else {
                Number::from_f64(value).unwrap_or_else(|| Number::from(0))
            }
        };
        [number(counts.tokens), number(counts.passes)]
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            tokens: self.tokens + more.tokens,
            passes: self.passes + more.passes,
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_counts_are_written_as_whole_numbers() {
        let read: Vec<Counts> = serde_json::from_str("[[18, 8], [12.5, 4.25]]").unwrap();
        assert_eq!(
            serde_json::to_string(&read).unwrap(),
            "[[18,8],[12.5,4.25]]"
        );
        let sum: Counts = read.iter().copied().sum();
        assert_eq!(sum, Counts::from([30.5, 12.25]));
        assert!(read[1].exceeds(read[0]) && !read[0].exceeds(read[1]));
        assert_eq!((read[0].tau(), Counts::default().tau()), (Some(2.25), None));
    }
}
