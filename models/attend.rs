//! Attention over queries, keys and values.
use burn::prelude::*;
use burn::tensor::DType;

use crate::few_rows::across_the_sum;
use crate::kernels;
use crate::mask::Mask;
use crate::products::{product, wide_product};
use crate::sight::Sight;

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
    let (scale, dtype) = (scale(&query), query.dtype());
    let scores = scores(query, key);
    let weights = kernels::softmax(scores, mask.map(Mask::entries), scale, dtype);
    weighed(weights, value, product)
}

/// What queries behind a cache attend to: those of a long text some at a time, so that their scores need no memory of its
/// length squared.
///
/// # Shapes
/// See [`attend`]; of sinks [`Projects::sinks`](crate::attention::Projects::sinks).
pub(crate) fn attend_to_cache(
    query: Tensor<4>,
    (key, value): (Tensor<4>, Tensor<4>),
    sinks: Option<Tensor<1>>,
    mask: Option<&Mask>,
) -> Tensor<4> {
    let (queries, device) = (query.dims()[2], query.device());
    let long = queries > kernels::queries_at_a_time(&device);
    match mask {
        Some(mask) if long || sinks.is_some() => {
            attend_in_blocks(query, (&key, &value), &[], sinks, mask)
        }
        None if long || sinks.is_some() => {
            let keys = key.dims()[2];
            let all = (0..queries).map(|_| Some(0..keys));
            let all = Mask::new(Sight::new([queries, keys], all), &device);
            attend_in_blocks(query, (&key, &value), &[], sinks, &all)
        }
        _ => attend(query, key, value, mask),
    }
}

/// `Q Kᵀ` in f32, each key head shared by its group of query heads.
///
/// # Shapes
/// - query: `[batch, heads, seq, d_head]`
/// - key: `[batch, kv_heads, total, d_head]`
/// - output: `[batch, heads, seq, total]`
pub fn scores(query: Tensor<4>, key: Tensor<4>) -> Tensor<4> {
    let [batch, heads, seq, d_head] = query.dims();
    let [_, kv_heads, total, _] = key.dims();
    // The query heads of a group become rows of one product, so keys are never repeated.
    let rows = heads / kv_heads * seq;
    let keys = across_the_sum(key.swap_dims(2, 3), rows * total);
    let queries = query.reshape([batch, kv_heads, rows, d_head]);
    wide_product(queries, keys).reshape([batch, heads, seq, total])
}

/// Sums values by attention weight, in f32.
///
/// # Shapes
/// - weights: `[batch, heads, seq, total]`
/// - value: `[batch, kv_heads, total, d_head]`
/// - output: `[batch, heads, seq, d_head]`
pub fn weigh(weights: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    weighed(weights, value, wide_product)
}

/// The same in the type that a `product` gives.
fn weighed(
    weights: Tensor<4>,
    value: Tensor<4>,
    product: fn(Tensor<4>, Tensor<4>) -> Tensor<4>,
) -> Tensor<4> {
    let [batch, heads, seq, total] = weights.dims();
    let [_, kv_heads, _, d_head] = value.dims();
    let weights = weights.reshape([batch, kv_heads, heads / kv_heads * seq, total]);
    product(weights, value).reshape([batch, heads, seq, d_head])
}

/// Attends to `keys_values` and, of `columns` beside them, each query to the key and value that stand where it does; in f32,
/// some queries at a time.
///
/// The softmax is taken over all without joining them: weights stay unnormalised and the sum divides the
/// `[seq, d_head]` result. Keys far from all that a query of a block sees are left out.
///
/// # Shapes
/// - query: `[batch, heads, seq, d_head]`
/// - keys_values: `[batch, kv_heads, total, d_head]` twice
/// - columns: `[batch, kv_heads, seq, d_head]` twice each
/// - sinks: see [`Projects::sinks`](crate::attention::Projects::sinks)
/// - mask: of `seq` queries and `total` keys
/// - output: `[batch, heads, seq, d_head]`
pub(crate) fn attend_in_blocks(
    query: Tensor<4>,
    (key, value): (&Tensor<4>, &Tensor<4>),
    columns: &[(Tensor<4>, Tensor<4>)],
    sinks: Option<Tensor<1>>,
    mask: &Mask,
) -> Tensor<4> {
    let (dtype, scale) = (query.dtype(), scale(&query));
    let [batch, heads, seq, _] = query.dims();
    let sinks = sinks.map(by_head);
    // No score may be so far below its sink that the sink's weight is infinite.
    let floor = (sinks.clone()).map(|sinks| sinks.detach().expand([batch, heads, seq, 1]));
    let keys_values = (key.clone(), value.clone());
    let mut gathered = kernels::gather(query.clone(), keys_values, mask, floor, scale);
    for (key, value) in columns {
        gathered = gathered.with_column(query.clone(), key.clone(), value.clone());
    }
    if let Some(sinks) = sinks {
        gathered = gathered.with_sinks(sinks);
    }
    kernels::quotient(gathered.sums, dtype)
}

/// Numbers of heads as scores, `[1, heads, 1, 1]` in f32.
pub(crate) fn by_head(sinks: Tensor<1>) -> Tensor<4> {
    let [heads] = sinks.dims();
    sinks.cast(DType::F32).reshape([1, heads, 1, 1])
}

/// What the scores of queries are multiplied by: `1 / sqrt(d_head)`. Queries stay as they are: in bf16 they would be rounded once more.
pub(crate) fn scale(query: &Tensor<4>) -> f32 {
    (query.dims()[3] as f64).powf(-0.5) as f32
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;
    use spectrain_data::packing::RowLayout;

    use super::*;
    use crate::blocks::{BlockLayout, BlockPlaces, BlockSight, attend_blocks};
    use crate::device::test_device;
    use crate::mask::Layout;
    use crate::weights::host_f32;

    /// Numbers in `[-3, 3]`, which bf16 holds.
    fn numbers([heads, seq, width]: [usize; 3], seed: usize) -> Tensor<4> {
        let values: Vec<f32> = (0..heads * seq * width)
            .map(|at| ((at * 7919 + seed * 104_729) % 6007) as f32 / 1001.0 - 3.0)
            .collect();
        let values = TensorData::new(values, [1, heads, seq, width]);
        let narrow = Tensor::<4>::from_data(values, &test_device()).cast(DType::BF16);
        narrow.cast(DType::F32)
    }

    /// In bf16 a score of 72 would be off by up to 1/4, and its weight by a quarter.
    #[test]
    fn scores_in_bf16_far_from_zero_give_what_those_in_f32_give() {
        let device = test_device();
        // What queries and keys have in common adds the same to all scores.
        let moved = |heads, seed| {
            let x = numbers([heads, 20, 8], seed);
            let common = x.ones_like() * 6.0;
            Tensor::cat(vec![x, common], 3)
        };
        let given = |dtype: DType| Projected {
            query: moved(2, 1).cast(dtype),
            key: moved(1, 2).cast(dtype),
            value: numbers([1, 20, 16], 3).cast(dtype),
        };
        let whole = |dtype| {
            let Projected { query, key, value } = given(dtype);
            attend(query, key, value, None)
        };
        // A block before which there is nothing.
        let places = BlockPlaces {
            positions: &[0],
            anchors: &[Some((0, 0))],
            row_length: 1,
            block_size: 20,
            lengths: None,
            sights: &[BlockSight {
                causal: false,
                window: None,
            }],
        };
        let layout = BlockLayout::new(&places, &device);
        let block = |dtype| {
            let context = numbers([1, 1, 16], 4).cast(dtype);
            let keys_values = (context.clone(), context);
            attend_blocks(given(dtype), keys_values, None, layout.masks(0))
        };
        let expected = host_f32(whole(DType::F32));
        assert_eq!(whole(DType::BF16).dtype(), DType::BF16);
        for found in [whole(DType::BF16), block(DType::F32), block(DType::BF16)] {
            for (one, other) in host_f32(found).iter().zip(&expected) {
                assert!((one - other).abs() < 0.02, "{one} {other}");
            }
        }
    }

    #[test]
    fn a_long_text_that_sees_itself_whole_takes_no_memory_of_its_length_squared() {
        let device = Device::flex();
        let queries = kernels::queries_at_a_time(&device) + 3;
        let drawn = |heads, seq| {
            Tensor::<4>::random([1, heads, seq, 8], Distribution::Normal(0.0, 1.0), &device)
        };
        let (query, key, value) = (drawn(4, queries), drawn(2, 301), drawn(2, 301));
        let whole = attend(query.clone(), key.clone(), value.clone(), None);
        let found = attend_to_cache(query, (key, value), None, None);
        for (one, other) in host_f32(found).iter().zip(host_f32(whole)) {
            assert!((one - other).abs() < 1e-5, "{one} {other}");
        }
    }

    #[test]
    fn a_text_comes_to_the_same_bits_alone_and_beside_others_in_a_row() {
        let device = Device::flex();
        for [first, second] in [[27, 37], [5, 59], [9, 300], [300, 13], [130, 131]] {
            let all = first + second;
            let place = |at: usize| if at < first { (1, at) } else { (2, at - first) };
            let layout = RowLayout {
                rows: 1,
                row_length: all,
                documents: (0..all).map(|at| place(at).0).collect(),
                positions: (0..all).map(|at| place(at).1 as u32).collect(),
            };
            let drawn = |heads| {
                Tensor::<4>::random([1, heads, all, 8], Distribution::Normal(0.0, 1.0), &device)
            };
            let (query, key, value) = (drawn(4), drawn(2), drawn(2));
            let mask = Layout::new(layout, &device).mask(None);
            let together = attend_in_blocks(query.clone(), (&key, &value), &[], None, &mask);
            for (start, count) in [(0, first), (first, second)] {
                let own = |x: &Tensor<4>| x.clone().narrow(2, start, count);
                let mask = Layout::whole([1, count], &device).mask(None);
                let alone =
                    attend_in_blocks(own(&query), (&own(&key), &own(&value)), &[], None, &mask);
                let found = host_f32(own(&together));
                assert_eq!(
                    found,
                    host_f32(alone),
                    "{count} tokens from {start} on of {all}"
                );
            }
        }
    }
}
