//! The drafters of one evaluation: the one that it is of, and others beside it.
use spectrain_models::{Capture, Proposer, Sampling};

use crate::draft::{DraftChoice, Reach, drafted};

/// A drafter that is evaluated.
pub struct Contender<'a, 'p> {
    /// What the report calls it; nothing for the one that the report is of.
    pub name: Option<String>,
    /// Puts it to work on one more sequence.
    pub sessions: &'a dyn Fn() -> Box<dyn Proposer + 'p>,
    /// The hidden states that it reads.
    pub capture: &'a Capture,
    /// What it is asked to draft.
    pub drafts: Vec<DraftChoice>,
}

impl Contender<'_, '_> {
    /// What it can draft.
    pub(super) fn reach(&self) -> Reach {
        Reach::of((self.sessions)().as_ref())
    }

    /// What it drafts at `sampling`: of longer chains than it can draft the longest that it can.
    pub(super) fn at(&self, sampling: &Sampling) -> Vec<DraftChoice> {
        drafted(&self.drafts, &self.reach(), sampling)
    }
}

/// How many times all prompts are continued: for every draft, and at each sampling once more without one where `baseline`.
pub(super) fn rounds(contenders: &[Contender], samplings: &[Sampling], baseline: bool) -> usize {
    let of = |sampling| {
        let drafts = contenders
            .iter()
            .map(|contender| contender.at(sampling).len());
        drafts.sum::<usize>() + usize::from(baseline)
    };
    samplings.iter().map(of).sum()
}
