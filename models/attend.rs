//! Attention over queries, keys and values.
use burn::prelude::*;
use burn::tensor::DType;

use crate::kernels;
use crate::mask::Mask;

/// Queries, keys and values of a pass.
#[derive(Debug, Clone)]
pub struct Projected {
    /// `[batch, heads, seq, d_head]`
    pub query: Tensor<4>,
    /// `[batch, kv_heads, seq, d_head]`
    pub key: Tensor<4>,
    /// `[batch, kv_heads, seq, d_head]`
    pub value: Tensor<4>,
}

/// `softmax(Q Kᵀ / sqrt(d_head) + mask) V`, softmax in f32.
///
/// # Shapes
/// - query: `[batch, heads, seq, d_head]`
/// - key, value: `[batch, kv_heads, total, d_head]`
/// - mask: of `seq` queries and `total` keys
/// - output: `[batch, heads, seq, d_head]`
pub fn attend(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: Option<&Mask>,
) -> Tensor<4> {
    let scores = scores(query, key);
    weigh(kernels::softmax(scores, mask.map(Mask::entries)), value)
}

/// What queries behind a cache attend to: those of a long text some at a time, so that their scores need no memory of its
/// length squared.
///
/// # Shapes
/// See [`attend`].
pub(crate) fn attend_to_cache(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: Option<&Mask>,
) -> Tensor<4> {
    let queries = query.dims()[2];
    match mask {
        Some(mask) if queries > kernels::queries_at_a_time(&query.device()) => {
            attend_in_blocks(query, (&key, &value), &[], mask)
        }
        _ => attend(query, key, value, mask),
    }
}

/// `Q Kᵀ / sqrt(d_head)` in the type of the query, each key head shared by its group of query heads.
///
/// # Shapes
/// - query: `[batch, heads, seq, d_head]`
/// - key: `[batch, kv_heads, total, d_head]`
/// - output: `[batch, heads, seq, total]`
pub fn scores(query: Tensor<4>, key: Tensor<4>) -> Tensor<4> {
    let [batch, heads, seq, d_head] = query.dims();
    let [_, kv_heads, total, _] = key.dims();
    // The query heads of a group become rows of one product, so keys are never repeated.
    scaled(query)
        .reshape([batch, kv_heads, heads / kv_heads * seq, d_head])
        .matmul(key.swap_dims(2, 3))
        .reshape([batch, heads, seq, total])
}

/// Sums values by attention weight.
///
/// # Shapes
/// - weights: `[batch, heads, seq, total]`
/// - value: `[batch, kv_heads, total, d_head]`
/// - output: `[batch, heads, seq, d_head]`
pub fn weigh(weights: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    let [batch, heads, seq, total] = weights.dims();
    let [_, kv_heads, _, d_head] = value.dims();
    weights
        .reshape([batch, kv_heads, heads / kv_heads * seq, total])
        .matmul(value)
        .reshape([batch, heads, seq, d_head])
}

/// One key a query: its score with it `[batch, heads, seq, 1]` and its value `[batch, kv_heads, seq, d_head]`.
pub(crate) type Column = (Tensor<4>, Tensor<4>);

/// Attends to `keys_values` and to `columns` beside them, in f32, some queries at a time.
///
/// The softmax is taken over both without joining them: weights stay unnormalised and the sum divides the
/// `[seq, d_head]` result. Keys before the first and behind the last that a query of a block sees are left out.
///
/// # Shapes
/// - query: `[batch, heads, seq, d_head]`
/// - keys_values: `[batch, kv_heads, total, d_head]` twice
/// - mask: of `seq` queries and `total` keys
/// - output: `[batch, heads, seq, d_head]`
pub(crate) fn attend_in_blocks(
    query: Tensor<4>,
    (key, value): (&Tensor<4>, &Tensor<4>),
    columns: &[Column],
    mask: &Mask,
) -> Tensor<4> {
    let dtype = query.dtype();
    // Subtracting a constant from all scores changes nothing, so the maximum needs no gradient.
    let floor = columns
        .iter()
        .map(|(column, _)| column.clone().detach())
        .reduce(Tensor::max_pair);
    let keys_values = (key.clone(), value.clone());
    let gathered = kernels::gather(scaled(query), keys_values, mask, floor);
    let (mut context, mut sum) = (gathered.context, gathered.sum);
    for (column, value) in columns {
        let weight = (column.clone() - gathered.largest.clone()).exp();
        sum = sum + weight.clone();
        context = context + scale(weight, value.clone());
    }
    (context / sum).cast(dtype)
}

/// Queries over the root of their width.
pub(crate) fn scaled(query: Tensor<4>) -> Tensor<4> {
    let d_head = query.dims()[3];
    query * (d_head as f64).powf(-0.5)
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
