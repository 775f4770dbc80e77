//! What a drafter that is unrolled on its own hidden states reads beside them.
use burn::prelude::*;
use burn::tensor::DType;

use crate::mask::{Layout, Mask, shift_left};
use crate::rope::{Rope, Rotation};
use crate::target::TargetParts;
use crate::unrolls::{Unrolls, blank_at_start};

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
    /// Whether the first position of a text reads zeros.
    starts_blank: bool,
    /// Dimensions of a head that turn.
    turned: usize,
}

impl<'a> Steps<'a> {
    /// What `drafter` reads of rows of tokens.
    ///
    /// # Shapes
    /// - tokens: `[batch, seq]`
    pub fn new(drafter: &'a impl Unrolls, tokens: Tensor<2, Int>, layout: Layout) -> Self {
        let window = drafter.sees_back();
        Self {
            target: drafter.target(),
            tokens,
            mask: layout.mask(window),
            layout,
            window,
            starts_blank: drafter.starts_blank(),
            turned: drafter.turned(),
        }
    }

    /// The same outside of any graph.
    pub fn without_autodiff(&self) -> Self {
        let layout = self.layout.moved(Tensor::without_autodiff);
        Self {
            target: self.target,
            tokens: self.tokens.clone().without_autodiff(),
            mask: self.mask.on(&layout.positions.device()),
            layout,
            ..*self
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
        let mut embedded = self.target.embed(tokens, &self.device()).cast(dtype);
        if self.starts_blank && step == 0 {
            embedded = blank_at_start(embedded, self.layout.positions.clone());
        }
        let rope = Rope::new(&self.target.spec.rope, self.turned, &self.device());
        (
            embedded,
            rope.at(self.layout.positions.clone() + step as i64),
        )
    }
}
