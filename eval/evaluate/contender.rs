//! The drafters of one evaluation: the one that it is of, and others beside it.
use spectrain_models::{Capture, Proposer, Sampling};

use crate::draft::DraftChoice;
use crate::speculate::Decoder;

/// A drafter that is evaluated.
pub struct Contender<'a> {
    /// What the report calls it; nothing for the one that the report is of.
    pub name: Option<String>,
    /// It at work.
    pub proposer: &'a mut dyn Proposer,
    /// The hidden states that it reads.
    pub capture: &'a Capture,
    /// What it drafts.
    pub drafts: Vec<DraftChoice>,
}

impl Contender<'_> {
    /// It, and what decodes with it.
    pub(crate) fn at_work<'a>(
        &'a mut self,
        decoder: &Decoder<'a>,
    ) -> (Decoder<'a>, &'a mut dyn Proposer) {
        let decoder = decoder.reading(self.capture);
        (decoder, self.proposer)
    }

    /// What it drafts at `sampling`.
    fn at(&self, sampling: &Sampling) -> impl Iterator<Item = DraftChoice> {
        self.drafts.iter().flat_map(|draft| draft.at(sampling))
    }
}

/// Every draft at `sampling`, and whose it is.
pub(super) fn drafts_at(
    contenders: &[Contender],
    sampling: &Sampling,
) -> Vec<(usize, DraftChoice)> {
    let of = |(at, contender): (usize, &Contender)| {
        let drafts = contender.at(sampling).map(move |draft| (at, draft));
        drafts.collect::<Vec<_>>()
    };
    contenders.iter().enumerate().flat_map(of).collect()
}

/// How many times all prompts are continued: for every draft, and at each sampling once more without one where `baseline`.
pub(super) fn rounds(contenders: &[Contender], samplings: &[Sampling], baseline: bool) -> usize {
    let of = |sampling| drafts_at(contenders, sampling).len() + usize::from(baseline);
    samplings.iter().map(of).sum()
}
