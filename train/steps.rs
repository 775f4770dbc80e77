use burn::prelude::*;
use burn::tensor::DType;
use spectrain_models::mask::shift_left;
use spectrain_models::{Mask, Rotation, TargetParts};

use crate::Batch;

/// What a drafter unrolled over packed rows reads at each step beside hidden states: at step `j`, index `t` reads the
/// token `x_{t+1+j}`.
pub(crate) struct Steps<'a> {
    target: &'a TargetParts,
    tokens: Tensor<2, Int>,
    positions: Tensor<2, Int>,
    mask: Mask,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(target: &'a TargetParts, batch: &Batch) -> Self {
        Self {
            target,
            tokens: batch.tokens.clone(),
            positions: batch.layout.positions.clone(),
            mask: batch.layout.mask(None),
        }
    }

    /// The same outside of any graph.
    pub(crate) fn without_autodiff(&self) -> Self {
        Self {
            target: self.target,
            tokens: self.tokens.clone().without_autodiff(),
            positions: self.positions.clone().without_autodiff(),
            mask: self.mask.without_autodiff(),
        }
    }

    /// Where the batch is, and in which graph.
    pub(crate) fn device(&self) -> Device {
        self.tokens.device()
    }

    /// The keys of step 0 that are seen, `[batch, 1, seq, seq]`.
    pub(crate) fn mask(&self) -> &Mask {
        &self.mask
    }

    /// The embedded tokens of a step, `[batch, seq, d_model]`, and where they stand.
    pub(crate) fn inputs(&self, step: usize, dtype: DType) -> (Tensor<3>, Rotation) {
        let tokens = shift_left(self.tokens.clone(), 1 + step);
        let embedded = self.target.embed(tokens, &self.device()).cast(dtype);
        let rope = self.target.spec.rotary(&self.device());
        (embedded, rope.at(self.positions.clone() + step as i64))
    }
}
