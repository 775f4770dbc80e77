//! What a drafter can draft, whatever the text: known before anything is decoded, and of a recipe before anything is trained.
use spectrain_models::{Drafter, Proposer};

/// What a drafter can draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Tokens of its longest path, such as the number of its heads; `None` without a limit.
    pub longest: Option<usize>,
    /// Tokens of the chain that it drafts where no length is asked for.
    pub own: usize,
    /// Whether it makes all steps of a draft in one pass.
    pub one_pass: bool,
    /// Whether it guesses how likely a step is accepted.
    pub has_confidence: bool,
}

impl Reach {
    /// That of a drafter at work.
    pub fn of(proposer: &dyn Proposer) -> Self {
        Self {
            longest: proposer.max_depth(),
            own: proposer.draft_length(),
            one_pass: proposer.passes(2) <= 1,
            has_confidence: proposer.has_confidence(),
        }
    }

    /// That of a drafter whose weights may be missing.
    pub fn of_drafter<D: Drafter>(drafter: &D) -> Self {
        let longest = drafter.max_depth();
        let steps = longest.map_or(2, |longest| longest.min(2));
        Self {
            longest,
            own: drafter.draft_length(),
            one_pass: drafter.passes(steps) <= 1,
            has_confidence: drafter.has_confidence(),
        }
    }

    /// Tokens of the chain that is drafted where one of `asked` tokens is asked for.
    pub fn chain(&self, asked: usize) -> usize {
        self.longest.map_or(asked, |longest| asked.min(longest))
    }
}
