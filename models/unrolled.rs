//! Attention of a drafter unrolled on its own hidden states: step `j` at index `t` sees the keys of step 0 at indices up
//! to `t`, and those of the steps `1..=j` at `t` alone (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2).
use burn::prelude::*;

use crate::attend::{Projected, attend_in_blocks};
use crate::mask::Mask;

/// Keys and values of one layer in one step, `[batch, kv_heads, seq, d_head]` each.
pub type KeyAndValue = (Tensor<4>, Tensor<4>);

/// Keys and values of the steps so far.
#[derive(Debug, Clone)]
pub struct UnrolledCache {
    /// Of each layer those of every step.
    layers: Vec<Vec<KeyAndValue>>,
}

impl UnrolledCache {
    /// Before the first step of a drafter of so many layers.
    pub fn new(layers: usize) -> Self {
        Self {
            layers: vec![Vec::new(); layers],
        }
    }

    /// Of each layer the keys and values of every step so far.
    pub fn layers(&self) -> &[Vec<KeyAndValue>] {
        &self.layers
    }

    /// The cache after steps with these keys and values: of each layer those of every step.
    pub fn from_layers(layers: Vec<Vec<KeyAndValue>>) -> Self {
        Self { layers }
    }

    /// Adds a step: the keys and values of each layer.
    pub fn push(&mut self, step: impl IntoIterator<Item = KeyAndValue>) {
        for (layer, own) in self.layers.iter_mut().zip(step) {
            layer.push(own);
        }
    }

    /// Adds a step of one layer and attends from its queries.
    ///
    /// Each later step is one key more for each query. A query sees at most `window` positions back, the own one counted; `mask` says
    /// so for step 0.
    ///
    /// # Shapes
    /// - mask: `[batch, 1, seq, seq]`, over the keys of step 0
    /// - output: `[batch, heads, seq, d_head]`
    pub fn attend(
        &mut self,
        layer: usize,
        projected: Projected,
        mask: &Mask,
        window: Option<usize>,
    ) -> Tensor<4> {
        let Projected { query, key, value } = projected;
        let steps = &mut self.layers[layer];
        steps.push((key, value));
        // A step stands one position behind the step before it.
        let first = window.map_or(1, |window| steps.len().saturating_sub(window).max(1));
        let (key, value) = &steps[0];
        attend_in_blocks(query, (key, value), &steps[first..], None, mask)
    }
}
