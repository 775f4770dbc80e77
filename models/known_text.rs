//! A text whose tokens are known, behind every place of which a drafter could draft.
use std::ops::{ControlFlow, Range};

use burn::prelude::*;

use crate::mask::{Layout, token_ids};
use crate::target::Features;

/// Places whose masks or blocks are run at a time.
const GROUP: usize = 64;

/// A text, and what the target made of it.
#[derive(Clone, Copy)]
pub struct KnownText<'a> {
    /// `x_0, x_1, …`
    pub tokens: &'a [u32],
    /// Of `x_0, x_1, …`, up to the token before the last at least; batch 1.
    pub features: &'a Features,
    /// Where the token stands behind which the first tokens are drafted, 1 or more; they are drafted behind every later
    /// one too.
    pub first: usize,
    /// The most tokens of a draft.
    pub depth: usize,
    /// Tokens that a decoder may let the text grow to.
    pub limit: usize,
}

/// A step of a draft: it proposes the token at `place + 1 + step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DraftStep {
    /// Where the last committed token stands.
    pub place: usize,
    /// Tokens drafted before it.
    pub step: usize,
}

/// Takes how likely the target keeps each of some steps, as a drafter guesses.
pub type TakeGuesses<'a> = dyn FnMut(&[DraftStep], Vec<f32>) + 'a;

/// Takes the logits of some steps, one row for each: `[steps, draft_vocab]`, f32, outside autodiff. Says whether others are wanted.
pub type TakeLogits<'a> = dyn FnMut(&[DraftStep], Tensor<2>) -> ControlFlow<()> + 'a;

impl KnownText<'_> {
    /// Steps of a draft behind `place`. The pass that verifies it gives one token more, and neither goes beyond the limit.
    pub fn steps(&self, place: usize) -> usize {
        self.depth.min(self.limit.saturating_sub(place + 2))
    }

    /// Those of them whose token is known.
    pub fn known(&self, place: usize) -> usize {
        self.steps(place).min(self.tokens.len() - 1 - place)
    }

    /// The places behind which a step `step` proposes a token that is known.
    pub(crate) fn places(&self, step: usize) -> Range<usize> {
        if step >= self.depth {
            return self.first..self.first;
        }
        let by_text = self.tokens.len().saturating_sub(1 + step);
        let end = by_text.min(self.limit.saturating_sub(2 + step));
        self.first..end.max(self.first)
    }

    /// The places behind which something is drafted, some at a time.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Vec<usize>> {
        let places: Vec<usize> = self.places(0).collect();
        let starts = (0..places.len()).step_by(GROUP);
        starts.map(move |start| places[start..places.len().min(start + GROUP)].to_vec())
    }

    /// The tokens that have features and something behind them, as a row. `[1, rows]`
    pub(crate) fn row(&self, device: &Device) -> Tensor<2, Int> {
        token_ids(&self.tokens[..self.rows()], device)
    }

    pub(crate) fn rows(&self) -> usize {
        self.tokens.len() - 1
    }

    /// The tokens that stand `by` behind those of [`row`](Self::row); 0 behind the end.
    pub(crate) fn following(&self, by: usize, device: &Device) -> Tensor<2, Int> {
        let mut ids: Vec<u32> = self.tokens.iter().skip(by).copied().collect();
        ids.resize(self.rows(), 0);
        token_ids(&ids, device)
    }

    pub(crate) fn layout(&self, device: &Device) -> Layout {
        Layout::whole([1, self.rows()], device)
    }

    /// The features of places from `start` up to, but not with, `end`.
    pub(crate) fn features(&self, start: usize, end: usize) -> Features {
        let cut = |x: &Tensor<3>| x.clone().narrow(1, start, end - start);
        Features {
            captured: cut(&self.features.captured),
            last: cut(&self.features.last),
        }
    }
}
