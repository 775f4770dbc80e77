//! Bounds of the whole numbers in tables of settings: far beyond any model or draft in use, and small enough that a slip of
//! the hand neither takes all memory nor overflows a product of sizes.
use std::ops::RangeInclusive;

use spectrain_checkpoints::Mismatch;

use crate::error::Error;

/// Decoder layers, heads of Medusa, blocks of a head.
pub const LAYERS: usize = 1 << 10;
/// Query heads, and key and value heads.
pub const HEADS: usize = 1 << 12;
/// Width of a residual stream, or of a head.
pub const WIDTH: usize = 1 << 16;
/// Width of a feed-forward layer.
pub const FEED_FORWARD: usize = 1 << 18;
/// Experts of a layer.
pub const EXPERTS: usize = 1 << 10;
/// Width between two low-rank matrices.
pub const RANK: usize = 1 << 14;
/// Tokens of a vocabulary.
pub const VOCABULARY: usize = 1 << 22;
/// Tokens of a text, and positions that a layer sees.
pub const TEXT: usize = 1 << 22;
/// Tokens of a reply that is decoded.
pub const REPLY: usize = 1 << 17;
/// Tokens of a draft or of a block.
pub const DRAFT: usize = 1 << 10;
/// Optimiser steps.
pub const STEPS: usize = 1 << 30;
/// Batches of a step.
pub const BATCHES: usize = 1 << 16;
/// Sequences that are decoded at a time.
pub const BATCH: usize = 1 << 12;
/// Conversations, prompts and samples.
pub const SAMPLES: usize = 1 << 24;

/// A number of a table of settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounded {
    /// Its key.
    pub key: &'static str,
    /// What it is.
    pub value: usize,
    /// What it may be.
    pub bounds: RangeInclusive<usize>,
}

/// A number that is out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Its key.
    pub key: &'static str,
    /// The bound that it breaks, and what it is.
    pub mismatch: Mismatch,
}

/// A number of at least 1 and at most `most`.
pub fn up_to(key: &'static str, value: usize, most: usize) -> Bounded {
    Bounded {
        key,
        value,
        bounds: 1..=most,
    }
}

/// The same where 0 stands for a default or for none.
pub fn or_none(key: &'static str, value: usize, most: usize) -> Bounded {
    Bounded {
        key,
        value,
        bounds: 0..=most,
    }
}

/// Refuses a width of heads, 0 for a default, that is out of its bounds or odd: half of a head's dimensions turn with the other half.
///
/// # Errors
/// It is such a width.
pub fn check_heads(key: &'static str, width: usize) -> Result<(), OutOfBounds> {
    check([or_none(key, width, WIDTH)])?;
    if width.is_multiple_of(2) {
        return Ok(());
    }
    Err(OutOfBounds {
        key,
        mismatch: Mismatch::new("an even number", width),
    })
}

/// Whether a size is left to the target. A key that recipes did not always have is not written then, as what identifies a run is made
/// of the keys.
pub(crate) fn is_left_out(size: &usize) -> bool {
    *size == 0
}

/// Refuses the first of `numbers` that is out of its bounds.
///
/// # Errors
/// There is one.
pub fn check(numbers: impl IntoIterator<Item = Bounded>) -> Result<(), OutOfBounds> {
    let out = |number: &Bounded| !number.bounds.contains(&number.value);
    let Some(number) = numbers.into_iter().find(out) else {
        return Ok(());
    };
    let (least, most) = (number.bounds.start(), number.bounds.end());
    Err(OutOfBounds {
        key: number.key,
        mismatch: Mismatch::new(
            if number.value < *least {
                format!("at least {least}")
            } else {
                format!("at most {most}")
            },
            number.value,
        ),
    })
}

impl From<OutOfBounds> for Error {
    /// A key of `[drafter]`.
    fn from(out: OutOfBounds) -> Self {
        Self::Drafter {
            key: out.key,
            mismatch: out.mismatch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_refused_with_the_bound_that_it_breaks() {
        let found = |value| check([up_to("a", 3, 4), up_to("b", value, 4)]);
        assert_eq!((found(1), found(4)), (Ok(()), Ok(())));
        let refused = |value| found(value).unwrap_err();
        assert_eq!(
            (refused(0).mismatch.expected, refused(5).mismatch.expected),
            ("at least 1".into(), "at most 4".into())
        );
        assert_eq!(
            (refused(5).key, refused(5).mismatch.found),
            ("b", "5".into())
        );
        assert_eq!(check([or_none("c", 0, 4)]), Ok(()));
    }

    #[test]
    fn heads_of_an_odd_width_are_refused() {
        let refused = |width| check_heads("d_head", width).unwrap_err().mismatch.expected;
        assert_eq!(
            (check_heads("d_head", 0), check_heads("d_head", 6)),
            (Ok(()), Ok(()))
        );
        assert_eq!(refused(5), "an even number");
        assert_eq!(refused(WIDTH + 1), format!("at most {WIDTH}"));
    }
}
