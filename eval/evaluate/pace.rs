//! How fast passes give tokens.
use std::ops::Add;

use crate::counts::Counts;
use crate::prompts::Answer;
use crate::speculate::PassRecord;

/// Tokens, passes and the seconds that these took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pace {
    pub(crate) counts: Counts,
    pub(crate) seconds: f64,
}

/// The pace of all passes, and of those of full batches alone: at the end of an evaluation there are no prompts left that could
/// take the place of those that are done.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Paces {
    pub(crate) all: Pace,
    pub(crate) full: Pace,
}

impl Paces {
    /// Of turns that were decoded so many at a time.
    pub(crate) fn of(turns: &[Answer], batch_size: usize) -> Self {
        let mut paces = Self::default();
        for pass in turns.iter().flat_map(|turn| &turn.generation.passes) {
            let pace = Pace::of(pass);
            paces.all = paces.all + pace;
            if pass.together == batch_size {
                paces.full = paces.full + pace;
            }
        }
        paces
    }
}

impl Pace {
    fn of(pass: &PassRecord) -> Self {
        Self {
            counts: Counts {
                tokens: pass.emitted as f64,
                passes: 1.0,
            },
            seconds: pass.seconds.total(),
        }
    }

    /// Tokens per second over those of `other`. `None` where one of them is unknown.
    pub(crate) fn over(self, other: Self) -> Option<f64> {
        let rate = |pace: Self| {
            let known = pace.counts.tokens > 0.0 && pace.seconds > 0.0;
            known.then(|| pace.counts.tokens / pace.seconds)
        };
        Some(rate(self)? / rate(other)?)
    }
}

impl Add for Pace {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            counts: self.counts + other.counts,
            seconds: self.seconds + other.seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::{Generation, Seconds};

    fn pass(together: usize, emitted: usize, verify: f64) -> PassRecord {
        PassRecord {
            together,
            emitted,
            seconds: Seconds {
                verify,
                ..Seconds::default()
            },
            ..PassRecord::default()
        }
    }

    #[test]
    fn passes_of_full_batches_are_counted_by_themselves() {
        let turn = |passes: &[PassRecord]| Answer {
            conversation: 0,
            turn: 0,
            prompt: Vec::new(),
            generation: Generation {
                passes: passes.to_vec(),
                ..Generation::default()
            },
        };
        let turns = [
            turn(&[pass(2, 3, 0.5), pass(2, 1, 0.5)]),
            turn(&[pass(1, 2, 2.0)]),
        ];
        let found = Paces::of(&turns, 2);
        assert_eq!(found.all.counts, Counts::from([6.0, 3.0]));
        assert_eq!(found.full.counts, Counts::from([4.0, 2.0]));
        assert_eq!((found.all.seconds, found.full.seconds), (3.0, 1.0));
        assert_eq!(found.full.over(found.all), Some(2.0));
        assert_eq!(found.full.over(Pace::default()), None);
    }
}
