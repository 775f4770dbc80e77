//! Acceptance without decoding: what a decoder counts, from texts that the target wrote and one pass of the drafter over
//! each.
//!
//! Whatever the drafter does, the output is the target's own text. So at temperature 0, and wherever the draft is not drawn,
//! a pass behind a place accepts the longest part of the draft that the text goes on with, and walking from pass to pass
//! gives the decoder's counts themselves. Where the draft is drawn from the drafter's distribution `q`, a step is accepted,
//! given the text, with probability `min(1, q(y) / p(y))` of its token `y`: drafted and kept is `min(p, q)(y)`, emitted at all
//! is `p(y)`. What comes later depends on the tokens and not on how they were accepted, so the expected counts of all
//! passes follow place by place. They are the conditional expectation of what a decoder counts: the same mean, with
//! less variance (Rao–Blackwell).
mod passes;
pub(crate) mod report;
mod seen;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use spectrain_models::{Children, DraftShape, KnownText, Proposer, Sampling, StaticTree};

pub use self::passes::Estimate;
use self::passes::{Walk, drawn, fixed};
use self::seen::see;
use self::text::OwnText;
use crate::error::Result;
use crate::verify::Verifier;

/// A way of drafting that needs no decoding to be judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimable(How);

#[derive(Debug, Clone, PartialEq)]
enum How {
    /// The tree of these ranks, of the drafter's likeliest tokens.
    Fixed(StaticTree),
    /// A chain drawn from the drafter's distribution.
    Drawn(usize, Sampling),
}

impl Estimable {
    /// Drafts of `shape` for texts drawn with `sampling`. `None` for trees whose shape depends on other branches, for trees
    /// with drawn siblings, for chains that end early, and for verifiers that look ahead or let the output stray.
    pub fn of(shape: &DraftShape, sampling: &Sampling, verifier: &dyn Verifier) -> Option<Self> {
        if verifier.is_lossy() || !verifier.decides_in_order() {
            return None;
        }
        let how = match shape {
            DraftShape::Chain { length } if sampling.is_greedy() => {
                How::Fixed(StaticTree::chain(*length))
            }
            DraftShape::Chain { length } => How::Drawn(*length, *sampling),
            DraftShape::Static { tree, children } => {
                let drawn = *children != Children::Top && !sampling.is_greedy();
                How::Fixed((!drawn).then(|| tree.clone())?)
            }
            DraftShape::Dynamic { .. }
            | DraftShape::BestFirst { .. }
            | DraftShape::Confident { .. } => return None,
        };
        Some(Self(how))
    }

    /// Chains of `length` at temperature 0.
    pub fn greedy_chain(length: usize) -> Self {
        Self(How::Fixed(StaticTree::chain(length)))
    }

    fn depth(&self) -> usize {
        match &self.0 {
            How::Fixed(tree) => tree.depth(),
            How::Drawn(length, _) => *length,
        }
    }
}

/// What decoding `text` with drafts of `proposer` takes.
///
/// # Errors
/// The drafter's or the target's logits are no numbers, or the device fails.
pub fn estimate(proposer: &dyn Proposer, text: &OwnText, draft: &Estimable) -> Result<Estimate> {
    let known = KnownText {
        tokens: &text.tokens,
        features: &text.features,
        first: text.first,
        depth: draft
            .depth()
            .min(proposer.max_depth().unwrap_or(usize::MAX)),
        limit: text.limit,
    };
    let sampling = match &draft.0 {
        How::Fixed(_) => None,
        How::Drawn(_, sampling) => Some(sampling),
    };
    let seen = see(proposer, &known, &text.judges, sampling)?;
    let walk = Walk {
        text: &known,
        seen: &seen,
        passes: &|depth| proposer.passes(depth),
    };
    Ok(match &draft.0 {
        How::Fixed(tree) => fixed(&walk, tree),
        How::Drawn(..) => drawn(&walk),
    })
}
