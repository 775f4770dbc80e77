//! Attention of a drafter unrolled on its own hidden states: step `j` at index `t` sees the keys of step 0 at indices up
//! to `t`, and those of the steps `1..=j` at `t` alone (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2).
use burn::prelude::*;
use burn::tensor::DType;

use crate::{Projected, scores, weigh};

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

    /// Adds a step and attends from its queries.
    ///
    /// Scores are `[seq, seq]` for step 0 and one column for each later step. The softmax is taken over both without
    /// joining them: weights stay unnormalised and the sum divides the `[seq, d_head]` result.
    ///
    /// # Shapes
    /// - mask: `[batch, 1, seq, seq]`, over the keys of step 0
    /// - output: `[batch, heads, seq, d_head]`
    pub fn attend(&mut self, projected: Projected, mask: &Tensor<4>) -> Tensor<4> {
        let Projected { query, key, value } = projected;
        let dtype = query.dtype();
        self.steps.push((key, value));
        let (first_key, first_value) = &self.steps[0];
        let causal = scores(query.clone(), first_key.clone()) + mask.clone(); // [batch, heads, seq, seq]
        let columns: Vec<Tensor<4>> = self.steps[1..]
            .iter()
            .map(|(key, _)| diagonal(query.clone(), key.clone()))
            .collect(); // [batch, heads, seq, 1] each

        // Subtracting a constant from all scores changes nothing, so the maximum needs no gradient.
        let largest = columns
            .iter()
            .map(|column| column.clone().detach())
            .fold(causal.clone().detach().max_dim(3), Tensor::max_pair);
        let causal = (causal - largest.clone()).exp();
        let mut sum = causal.clone().sum_dim(3);
        let mut context = weigh(causal.cast(dtype), first_value.clone()).cast(DType::F32);
        for (column, (_, value)) in columns.into_iter().zip(&self.steps[1..]) {
            let weight = (column - largest.clone()).exp();
            sum = sum + weight.clone();
            context = context + scale(weight, value.clone());
        }
        (context / sum).cast(dtype)
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
