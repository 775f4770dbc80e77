//! What decoding is asked for, and what it gives.
use serde::{Deserialize, Serialize};
use spectrain_models::{DraftShape, Sampling};

use crate::counts::Counts;

/// How a prompt is continued.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeSettings {
    /// Tokens after which it ends, at least 1.
    pub max_new_tokens: usize,
    /// What is drafted before each target pass.
    pub draft: DraftShape,
    /// How the target's tokens, and those of a sampled draft, are chosen.
    pub sampling: Sampling,
    /// Tokens that end it; the one found is kept.
    pub stop: Vec<u32>,
    /// Seed of a second draft before each pass, which decides nothing and is only kept. It shows what the drafter prefers,
    /// settled before the target's tokens are drawn.
    pub shadow: Option<u64>,
}

/// Where the time went, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// The drafter, taking in committed tokens included.
    pub draft: f64,
    /// The target's pass and the verdict.
    pub verify: f64,
    /// Everything else.
    pub other: f64,
}

impl std::iter::Sum for Seconds {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, more| Self {
            draft: sum.draft + more.draft,
            verify: sum.verify + more.verify,
            other: sum.other + more.other,
        })
    }
}

impl Seconds {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.draft + self.verify + self.other
    }
}

/// One decoding pass of the target.
///
/// `emitted = accepted + 1` always: where a stop token cuts the pass short, what follows it counts nowhere, and the stop
/// token takes the place of the bonus token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PassRecord {
    /// Tokens drafted.
    pub drafted: usize,
    /// Steps drafted: the longest path.
    pub depth: usize,
    /// Passes of the drafter, one after the other, that the draft took.
    pub draft_passes: usize,
    /// Steps that were judged: the accepted ones, and the one at which every candidate was rejected.
    pub tested: usize,
    /// Drafted tokens accepted.
    pub accepted: usize,
    /// Tokens emitted, the bonus token included.
    pub emitted: usize,
    /// Sequences that the pass was of, this one included.
    pub together: usize,
    /// Where the time went: of what was done for all sequences of the pass together an equal share.
    pub seconds: Seconds,
}

/// A continued prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// The new tokens. The first comes from the prompt's pass, the others from `passes`.
    pub tokens: Vec<u32>,
    /// Decoding passes of the target; the prompt's is not among them.
    pub passes: Vec<PassRecord>,
    /// What a second draft, which decided nothing, had at the place of each token; shorter where there was none.
    pub shadows: Vec<Vec<u32>>,
    /// Seconds for the prompt, up to its first token and the drafter's taking it in.
    pub prompt_seconds: f64,
}

impl Generation {
    /// Seconds of all passes.
    pub fn seconds(&self) -> Seconds {
        self.passes.iter().map(|pass| pass.seconds).sum()
    }

    /// Tokens that the passes emitted, and how many passes that were.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            tokens: self.passes.iter().map(|pass| pass.emitted as f64).sum(),
            passes: self.passes.len() as f64,
        }
    }
}
