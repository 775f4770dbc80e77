//! Attention of a drafter unrolled on its own hidden states: step `j` at index `t` sees the keys of step 0 at indices up
//! to `t`, and those of the steps `1..=j` at `t` alone (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2).
use burn::prelude::*;
use burn::tensor::DType;

use crate::{Mask, Projected, scores, tangent, weigh};

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
    /// Scores are `[seq, seq]` for step 0 and one column for each later step. The softmax is taken over both without
    /// joining them: weights stay unnormalised and the sum divides the `[seq, d_head]` result. Queries are taken in
    /// blocks; those of a causal mask with the keys up to the block's end only, as it hides the others.
    ///
    /// # Shapes
    /// - mask: `[batch, 1, seq, seq]`, over the keys of step 0
    /// - output: `[batch, heads, seq, d_head]`
    pub fn attend(&mut self, projected: Projected, mask: &Mask) -> Tensor<4> {
        self.attend_within(projected, mask, None)
    }

    /// The same where a query sees at most `window` positions back, the own one counted; `mask` says so for step 0.
    pub fn attend_within(
        &mut self,
        projected: Projected,
        mask: &Mask,
        window: Option<usize>,
    ) -> Tensor<4> {
        let Projected { query, key, value } = projected;
        self.steps.push((key, value));
        let seq = query.dims()[2];
        // A step stands one position behind the step before it.
        let first = window.map_or(1, |window| self.steps.len().saturating_sub(window).max(1));
        let columns: Vec<(Tensor<4>, Tensor<4>)> = self.steps[first..]
            .iter()
            .map(|(key, value)| (diagonal(query.clone(), key.clone()), value.clone()))
            .collect(); // scores [batch, heads, seq, 1], values [batch, kv_heads, seq, d_head]
        let block = query_block(&query.device()).min(seq);
        let blocks = (0..seq).step_by(block).map(|start| {
            let rows = block.min(seq - start);
            let of_block = |x: &Tensor<4>| x.clone().narrow(2, start, rows);
            let columns: Vec<_> = columns
                .iter()
                .map(|(scores, values)| (of_block(scores), of_block(values)))
                .collect();
            let seen = mask.keys_before(start + rows);
            let mask = of_block(mask.entries()).narrow(3, 0, seen);
            self.attend_block(of_block(&query), seen, columns, mask)
        });
        Tensor::cat(blocks.collect(), 2)
    }

    /// Queries of a block over the first `seen` keys of step 0 and over `columns`.
    fn attend_block(
        &self,
        query: Tensor<4>,
        seen: usize,
        columns: Vec<(Tensor<4>, Tensor<4>)>,
        mask: Tensor<4>,
    ) -> Tensor<4> {
        let dtype = query.dtype();
        let (key, value) = &self.steps[0];
        let (key, value) = (
            key.clone().narrow(2, 0, seen),
            value.clone().narrow(2, 0, seen),
        );
        let causal = scores(query, key); // [batch, heads, rows, seen]
        // Subtracting a constant from all scores changes nothing, so the maximum needs no gradient.
        let floor = columns
            .iter()
            .map(|(column, _)| column.clone().detach())
            .reduce(Tensor::max_pair);
        let (causal, largest) = if tangent::applies(&causal) {
            tangent::exponentials(causal, &mask, floor)
        } else {
            let causal = causal + mask;
            let largest = causal.clone().detach().max_dim(3);
            let largest = floor.into_iter().fold(largest, Tensor::max_pair);
            ((causal - largest.clone()).exp(), largest)
        };
        let mut sum = causal.clone().sum_dim(3);
        let mut context = weigh(causal.cast(dtype), value).cast(DType::F32);
        for (column, value) in columns {
            let weight = (column - largest.clone()).exp();
            sum = sum + weight.clone();
            context = context + scale(weight, value);
        }
        (context / sum).cast(dtype)
    }
}

/// Queries of one block: on the CPU few enough for their scores to stay in the caches.
fn query_block(device: &Device) -> usize {
    match device.clone().without_autodiff() == Device::flex() {
        true => 128,
        false => 1024,
    }
}

/// `q_t · k_t / sqrt(d_head)` in f32.
///
/// # Shapes
/// - query: `[batch, heads, seq, d_head]`
/// - key: `[batch, kv_heads, seq, d_head]`
/// - output: `[batch, heads, seq, 1]`
fn diagonal(query: Tensor<4>, key: Tensor<4>) -> Tensor<4> {
    let [batch, heads, seq, d_head] = query.dims();
    let [_, kv_heads, _, _] = key.dims();
    let query = query
        .cast(DType::F32)
        .reshape([batch, kv_heads, heads / kv_heads, seq, d_head]);
    let key = key.cast(DType::F32).unsqueeze_dim::<5>(2);
    ((query * key).sum_dim(4) * (d_head as f64).powf(-0.5)).reshape([batch, heads, seq, 1])
}

/// `w_t v_t` in f32.
///
/// # Shapes
/// - weight: `[batch, heads, seq, 1]`
/// - value: `[batch, kv_heads, seq, d_head]`
/// - output: `[batch, heads, seq, d_head]`
fn scale(weight: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    let [batch, heads, seq, _] = weight.dims();
    let [_, kv_heads, _, d_head] = value.dims();
    let weight = weight.reshape([batch, kv_heads, heads / kv_heads, seq, 1]);
    let value = value.cast(DType::F32).unsqueeze_dim::<5>(2);
    (weight * value).reshape([batch, heads, seq, d_head])
}
