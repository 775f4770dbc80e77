//! What a drafter that is unrolled on its own hidden states reads beside them.
use burn::prelude::*;
use burn::tensor::DType;

use crate::mask::{Layout, Mask, shift_left};
use crate::rope::Rotation;
use crate::target::TargetParts;

/// What a drafter unrolled over packed rows reads at each step beside hidden states: at step `j`, index `t` reads the
/// token `x_{t+1+j}`.
pub struct Steps<'a> {
    target: &'a TargetParts,
    tokens: Tensor<2, Int>,
    layout: Layout,
    /// Of step 0.
    mask: Mask,
    /// How many positions back a query sees, the own one counted.
    window: Option<usize>,
}

impl<'a> Steps<'a> {
    /// Of rows of tokens.
    ///
    /// # Shapes
    /// - tokens: `[batch, seq]`
    pub fn new(
        target: &'a TargetParts,
        tokens: Tensor<2, Int>,
        layout: Layout,
        window: Option<usize>,
    ) -> Self {
        Self {
            target,
            tokens,
            mask: layout.mask(window),
            layout,
            window,
        }
    }

    /// The same outside of any graph.
    pub fn without_autodiff(&self) -> Self {
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
    pub fn device(&self) -> Device {
        self.tokens.device()
    }

    /// The keys of step 0 that step `step` sees.
    pub fn mask(&self, step: usize) -> Mask {
        match self.window {
            // At index `t` of step `j` stands position `t + j`.
            Some(window) if step > 0 => self.layout.mask(Some(window.saturating_sub(step))),
            _ => self.mask.clone(),
        }
    }

    /// The embedded tokens of a step, `[batch, seq, d_model]`, and where they stand.
    pub fn inputs(&self, step: usize, dtype: DType) -> (Tensor<3>, Rotation) {
        let tokens = shift_left(self.tokens.clone(), 1 + step);
        let embedded = self.target.embed(tokens, &self.device()).cast(dtype);
        let rope = self.target.spec.rotary(&self.device());
        (
            embedded,
            rope.at(self.layout.positions.clone() + step as i64),
        )
    }
}
