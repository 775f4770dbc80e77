//! Attention of a drafter unrolled on its own hidden states: step `j` at index `t` sees the keys of step 0 at indices up
//! to `t`, and those of the steps `1..=j` at `t` alone (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2).
use burn::prelude::*;

use crate::attend::{Projected, attend_in_blocks};
use crate::mask::Mask;

/// Keys and values of the steps so far.
#[derive(Debug, Clone, Default)]
pub struct UnrolledCache {
    /// `[batch, kv_heads, seq, d_head]` twice, one pair per step.
    steps: Vec<(Tensor<4>, Tensor<4>)>,
}

impl UnrolledCache {
    /// Steps taken.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether no step was taken.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Keys and values of the steps so far, `[batch, kv_heads, seq, d_head]` twice for each.
    pub fn steps(&self) -> &[(Tensor<4>, Tensor<4>)] {
        &self.steps
    }

    /// The cache after steps with these keys and values.
    pub fn from_steps(steps: Vec<(Tensor<4>, Tensor<4>)>) -> Self {
        Self { steps }
    }

    /// Adds the keys and values of a step.
    pub fn push(&mut self, step: (Tensor<4>, Tensor<4>)) {
        self.steps.push(step);
    }

    /// Adds a step and attends from its queries.
    ///
    /// Each later step is one key more for each query. A query sees at most `window` positions back, the own one counted; `mask` says
    /// so for step 0.
    ///
    /// # Shapes
    /// - mask: `[batch, 1, seq, seq]`, over the keys of step 0
    /// - output: `[batch, heads, seq, d_head]`
    pub fn attend(
        &mut self,
        projected: Projected,
        mask: &Mask,
        window: Option<usize>,
    ) -> Tensor<4> {
        let Projected { query, key, value } = projected;
        self.steps.push((key, value));
        // A step stands one position behind the step before it.
        let first = window.map_or(1, |window| self.steps.len().saturating_sub(window).max(1));
        let (key, value) = &self.steps[0];
        attend_in_blocks(query, (key, value), &self.steps[first..], None, mask)
    }
}
