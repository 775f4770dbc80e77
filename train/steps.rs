use burn::prelude::*;
use burn::tensor::DType;
use spectrain_models::mask::{Layout, shift_left};
use spectrain_models::{Mask, Rotation, TargetParts};

use crate::batch::Batch;

/// What a drafter unrolled over packed rows reads at each step beside hidden states: at step `j`, index `t` reads the
/// token `x_{t+1+j}`.
pub(crate) struct Steps<'a> {
    target: &'a TargetParts,
    tokens: Tensor<2, Int>,
    layout: Layout,
    /// Of step 0.
    mask: Mask,
    /// How many positions back a query sees, the own one counted.
    window: Option<usize>,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(target: &'a TargetParts, batch: &Batch, window: Option<usize>) -> Self {
        Self {
            target,
            tokens: batch.tokens.clone(),
            layout: batch.layout.clone(),
            mask: batch.layout.mask(window),
            window,
        }
    }

    /// The same outside of any graph.
    pub(crate) fn without_autodiff(&self) -> Self {
        Self {
            target: self.target,
            tokens: self.tokens.clone().without_autodiff(),
            layout: Layout {
                documents: self.layout.documents.clone().without_autodiff(),
                positions: self.layout.positions.clone().without_autodiff(),
            },
            mask: self.mask.without_autodiff(),
            window: self.window,
        }
    }

    /// Where the batch is, and in which graph.
    pub(crate) fn device(&self) -> Device {
        self.tokens.device()
    }

    /// The keys of step 0 that step `step` sees.
    pub(crate) fn mask(&self, step: usize) -> Mask {
        match self.window {
            // At index `t` of step `j` stands position `t + j`.
            Some(window) if step > 0 => self.layout.mask(Some(window.saturating_sub(step))),
            _ => self.mask.clone(),
        }
    }

    /// The embedded tokens of a step, `[batch, seq, d_model]`, and where they stand.
    pub(crate) fn inputs(&self, step: usize, dtype: DType) -> (Tensor<3>, Rotation) {
        let tokens = shift_left(self.tokens.clone(), 1 + step);
        let embedded = self.target.embed(tokens, &self.device()).cast(dtype);
        let rope = self.target.spec.rotary(&self.device());
        (
            embedded,
            rope.at(self.layout.positions.clone() + step as i64),
        )
    }
}
