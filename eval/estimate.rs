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
//!
//! Where chains end early, what is drafted behind a step that is not kept hangs on tokens that are not the text's. How many
//! tokens are kept does not, as whether a step is drafted hangs on the tokens before it alone. So acceptance is the decoder's
//! own, and what was drafted in vain is only known as far as the drafter would have drafted along the text.
mod drawable;
mod passes;
pub(crate) mod report;
mod seen;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use spectrain_models::{Children, DraftShape, KnownText, Proposer, Sampling, StaticTree, Stop};

pub use self::passes::Estimate;
use self::passes::Walk;
use self::seen::{Asked, Table, see};
use self::text::OwnText;
use crate::error::Result;
use crate::verify::Verifier;

/// A way of drafting that needs no decoding to be judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimable {
    how: How,
    /// How the text was drawn, and a drawn chain.
    sampling: Sampling,
    /// Where chains end early.
    stop: Option<Stop>,
    /// Whether the drafter's confidence is compared with what is kept; of chains only.
    confidence: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum How {
    /// The tree of these ranks, of the drafter's likeliest tokens.
    Fixed(StaticTree),
    /// A chain of so many tokens drawn from the drafter's distribution.
    Drawn(usize),
}

impl Estimable {
    /// Drafts of `shape` for texts drawn with `sampling`. `None` for trees whose shape depends on other branches, for trees
    /// with drawn siblings, and for verifiers that look ahead or let the output stray.
    pub fn of(shape: &DraftShape, sampling: &Sampling, verifier: &dyn Verifier) -> Option<Self> {
        if verifier.is_lossy() || !verifier.decides_in_order() {
            return None;
        }
        let how = match shape {
            DraftShape::Chain { length } | DraftShape::Confident { length, .. } => {
                How::chain(*length, sampling)
            }
            DraftShape::Static { tree, children } => {
                let drawn = *children != Children::Top && !sampling.is_greedy();
                How::Fixed((!drawn).then(|| tree.clone())?)
            }
            DraftShape::Dynamic { .. } | DraftShape::BestFirst { .. } => return None,
        };
        let stop = match shape {
            DraftShape::Confident { stop, .. } => Some(*stop),
            _ => None,
        };
        Some(Self {
            how,
            sampling: *sampling,
            stop,
            confidence: false,
        })
    }

    /// Chains of `length` at temperature 0.
    pub fn greedy_chain(length: usize) -> Self {
        Self {
            how: How::Fixed(StaticTree::chain(length)),
            sampling: Sampling::GREEDY,
            stop: None,
            confidence: false,
        }
    }

    /// Also compares the drafter's confidence with what is kept, where the drafts are chains.
    pub(crate) fn with_confidence(self) -> Self {
        Self {
            confidence: self.is_chain(),
            ..self
        }
    }

    /// Of a chain that does not end early all shorter ones, from one step on; none of other drafts.
    pub(crate) fn shorter(&self) -> Vec<Self> {
        if self.stop.is_some() || !self.is_chain() {
            return Vec::new();
        }
        let chain = |length| Self {
            how: match self.how {
                How::Fixed(_) => How::Fixed(StaticTree::chain(length)),
                How::Drawn(_) => How::Drawn(length),
            },
            sampling: self.sampling,
            stop: None,
            confidence: false,
        };
        (1..self.depth()).map(chain).collect()
    }

    fn is_chain(&self) -> bool {
        match &self.how {
            How::Fixed(tree) => tree.depth() == tree.len(),
            How::Drawn(_) => true,
        }
    }

    fn depth(&self) -> usize {
        match &self.how {
            How::Fixed(tree) => tree.depth(),
            How::Drawn(length) => *length,
        }
    }

    fn is_drawn(&self) -> bool {
        matches!(self.how, How::Drawn(_))
    }
}

impl How {
    fn chain(length: usize, sampling: &Sampling) -> Self {
        if sampling.is_greedy() {
            Self::Fixed(StaticTree::chain(length))
        } else {
            Self::Drawn(length)
        }
    }
}

/// What decoding `text` with drafts of `proposer` takes.
///
/// # Errors
/// The drafter's or the target's logits are no numbers, or the device fails.
pub fn estimate(proposer: &dyn Proposer, text: &OwnText, draft: &Estimable) -> Result<Estimate> {
    let foreseen = foresee(proposer, text, draft, &|| Ok(()))?;
    Ok(foreseen.walk(proposer, text, draft))
}

/// What a drafter makes of a text, from which the passes follow.
pub(crate) struct Foreseen {
    table: Table,
    depth: usize,
}

/// Goes over `text` once. Drafts that end at other thresholds than `draft`, and shorter ones, are walked over the same. `check` is
/// asked again and again whether to go on, and what it fails with is returned.
pub(crate) fn foresee(
    proposer: &dyn Proposer,
    text: &OwnText,
    draft: &Estimable,
    check: &dyn Fn() -> Result<()>,
) -> Result<Foreseen> {
    let longest = proposer.max_depth().unwrap_or(usize::MAX);
    let depth = draft.depth().min(longest);
    let asked = Asked {
        sampling: &draft.sampling,
        drawn: draft.is_drawn(),
        confidence: draft.confidence,
        by: draft.stop.map(|stop| stop.by),
    };
    let table = see(proposer, &text.known(depth), &text.judges, &asked, check)?;
    Ok(Foreseen { table, depth })
}

impl Foreseen {
    /// The passes over the text.
    pub(crate) fn walk(
        &self,
        proposer: &dyn Proposer,
        text: &OwnText,
        draft: &Estimable,
    ) -> Estimate {
        let walk = Walk {
            text: &text.known(self.depth.min(draft.depth())),
            seen: &self.table,
            stop: draft.stop,
            confidence: draft.confidence,
            passes: &|depth| proposer.passes(depth),
        };
        match &draft.how {
            How::Fixed(tree) => walk.fixed(tree),
            How::Drawn(_) => walk.drawn(),
        }
    }
}

impl OwnText {
    /// The text as drafters with drafts of `depth` go over it.
    fn known(&self, depth: usize) -> KnownText<'_> {
        KnownText {
            tokens: &self.tokens,
            features: &self.features,
            first: self.first,
            depth,
            limit: self.limit,
        }
    }
}
