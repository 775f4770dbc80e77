//! A drafter at work, without its type.
use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::draft::{Draft, DraftRequest};
use crate::draft_tree;
use crate::drafter::Drafter;
use crate::known_text::{KnownText, TakeGuesses, TakeLogits};
use crate::target::Features;

/// A [`Drafter`] at work on one sequence, without its type. What the decoder holds.
pub trait Proposer {
    /// See [`Drafter::start`].
    fn start(&mut self, capacity: usize, first: u32);
    /// See [`Drafter::observe`].
    fn observe(&mut self, tokens: &[u32], features: &Features);
    /// Takes in the target's logits of all that a pass has read: the last committed token and the draft, kept or rejected.
    /// Trained drafters learn what was committed from [`observe`](Self::observe), which comes after it, and need no more.
    ///
    /// # Shapes
    /// - logits: `[tokens.len(), vocab]`
    fn judged(&mut self, tokens: &[u32], logits: &Tensor<2>);
    /// Proposes tokens to follow what was observed.
    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft;
    /// Rank of each of `tokens`, 0 for the likeliest, when those before it were drafted. Ends with the first that cannot
    /// be proposed, which has none, or at the longest path that can be drafted.
    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>>;
    /// Logits of what follows the last observed token, and each of `tokens` when those before it were drafted.
    fn forced(&mut self, tokens: &[u32]) -> Vec<Vec<f32>>;
    /// See [`Drafter::along`]. The caller has asked whether it [follows the text](Self::follows_text).
    fn along(&self, text: &KnownText, take: &mut TakeLogits);
    /// Whether what it drafts behind a place depends on the text and on nothing else, such as the drafts before.
    fn follows_text(&self) -> bool;
    /// See [`Drafter::guesses_along`].
    fn guesses_along(&self, _text: &KnownText, _take: &mut TakeGuesses) {}
    /// The tokens that it can propose.
    fn vocabulary(&self) -> &DraftVocabulary;
    /// See [`Drafter::max_depth`].
    fn max_depth(&self) -> Option<usize>;
    /// See [`Drafter::draft_length`].
    fn draft_length(&self) -> usize;
    /// See [`Drafter::passes`]; a path longer than can be drafted counts as the longest that can.
    fn passes(&self, depth: usize) -> usize;
    /// See [`Drafter::parameters_per_pass`].
    fn parameters_per_pass(&self) -> u64;
    /// See [`Drafter::has_confidence`].
    fn has_confidence(&self) -> bool;
}

/// A drafter with the state of one sequence.
pub struct Session<D: Drafter> {
    drafter: D,
    state: D::State,
}

impl<D: Drafter> Session<D> {
    /// Starts an empty sequence.
    pub fn new(drafter: D) -> Self {
        Self {
            state: drafter.start(1, 0),
            drafter,
        }
    }
}

impl<D: Drafter> Proposer for Session<D> {
    fn start(&mut self, capacity: usize, first: u32) {
        self.state = self.drafter.start(capacity, first);
    }

    fn observe(&mut self, tokens: &[u32], features: &Features) {
        self.drafter.observe(&mut self.state, tokens, features);
    }

    fn judged(&mut self, _: &[u32], _: &Tensor<2>) {}

    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        draft_tree::draft(&self.drafter, &mut self.state, request, rng)
    }

    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>> {
        draft_tree::ranks(&self.drafter, &mut self.state, tokens)
    }

    fn forced(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        draft_tree::forced(&self.drafter, &mut self.state, tokens)
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        self.drafter.along(text, take);
    }

    fn follows_text(&self) -> bool {
        true
    }

    fn guesses_along(&self, text: &KnownText, take: &mut TakeGuesses) {
        self.drafter.guesses_along(text, take);
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        self.drafter.vocabulary()
    }

    fn max_depth(&self) -> Option<usize> {
        self.drafter.max_depth()
    }

    fn draft_length(&self) -> usize {
        self.drafter.draft_length()
    }

    fn passes(&self, depth: usize) -> usize {
        let longest = self.drafter.max_depth().unwrap_or(usize::MAX);
        self.drafter.passes(depth.min(longest))
    }

    fn parameters_per_pass(&self) -> u64 {
        self.drafter.parameters_per_pass()
    }

    fn has_confidence(&self) -> bool {
        self.drafter.has_confidence()
    }
}
