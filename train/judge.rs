//! What judges the drafter's distributions.
use crate::divergence::Divergence;
use crate::teacher::Teacher;

/// What judges.
#[derive(Clone, Copy)]
pub enum Judge<'a> {
    /// The target's distribution.
    Target {
        /// Where it comes from.
        teacher: &'a Teacher,
        /// The distance to it.
        divergence: &'a Divergence,
    },
    /// Cross-entropy with these tokens of the head's vocabulary, indexed by [`JudgedRow::teacher`](crate::JudgedRow::teacher).
    Labels(&'a [u32]),
}

/// Whether accuracy and acceptance rate are wanted beside the loss; they cost two more passes over the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistics {
    /// Only the loss.
    Loss,
    /// All.
    All,
}
