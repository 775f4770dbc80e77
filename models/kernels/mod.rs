//! Functions between the matrix products, each in one pass over memory: on the CPU over all threads, on a GPU in a kernel of
//! its own. As tensor operations they would be five to eleven passes each, and keep what lies between them for the backward
//! pass.
use burn::backend::Dispatch;
use burn::prelude::*;
use burn::tensor::DType;

use self::columns::{Column, Columns as _};
use self::gather::{Gathers as _, Given};
use self::operations::Kernels as _;
use self::together::{Together as _, written_each};
use crate::mask::Mask;
use crate::sight::AtATime;

mod columns;
#[cfg(feature = "cube")]
mod cube;
mod gather;
mod gradients;
mod host;
mod operations;
mod rows;
#[cfg(test)]
mod tests;
mod together;
mod within;

pub use rows::{exp, ln};

/// `x / sqrt(mean(x²) + epsilon) * weight`, over the last dimension, computed in f32, in the type of `x`.
///
/// # Shapes
/// - x, output: `[…, width]`
/// - weight: `[width]`
pub(crate) fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let [x, weight] = [x.into_dispatch(), weight.into_dispatch()];
    Tensor::from_dispatch(Dispatch::rms_norm(x, weight, epsilon as f32))
}

/// `silu(gate) · up`, computed in f32.
///
/// # Shapes
/// - gate, up, output: the same
pub(crate) fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::swiglu(gate.into_dispatch(), up.into_dispatch()))
}

/// `x · sigmoid(x)`, computed in f32.
///
/// # Shapes
/// - x, output: the same
pub(crate) fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let ones = x.ones_like();
    swiglu(x, ones)
}

/// Turns dimension `i` with dimension `i + d_head / 2`, computed in f32, in the type of `x`.
///
/// # Shapes
/// - x, output: `[batch, heads, seq, d_head]`
/// - cos, sin: `[batch or 1, 1, seq, d_head / 2]`, f32
pub(crate) fn rotate(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let [x, cos, sin] = [x, cos, sin].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::rotate(x, cos, sin, 1.0))
}

/// Norms each head and turns dimension `i` with dimension `i + d_head / 2`: [`rms_norm`] and
/// [`rotate`].
///
/// # Shapes
/// - x: `[batch, seq, heads, d_head]`
/// - weight: `[d_head]`
/// - cos, sin: `[batch or 1, 1, seq, d_head / 2]`, f32
/// - output: `[batch, heads, seq, d_head]`
pub(crate) fn norm_and_rotate(
    x: Tensor<4>,
    (weight, epsilon): (Tensor<1>, f64),
    [cos, sin]: [Tensor<4>; 2],
) -> Tensor<4> {
    if x.is_autodiff() || weight.is_autodiff() {
        let normed = rms_norm(x, weight, epsilon);
        return rotate(normed.swap_dims(1, 2), cos, sin);
    }
    let [x, cos, sin] = [x.swap_dims(1, 2), cos, sin].map(Tensor::into_dispatch);
    let weight = weight.into_dispatch();
    Tensor::from_dispatch(Dispatch::norm_and_rotate(
        x,
        weight,
        cos,
        sin,
        epsilon as f32,
    ))
}

/// `x + added`, and [`rms_norm`] of that.
///
/// # Shapes
/// - x, added, outputs: `[…, width]`
/// - weight: `[width]`
pub(crate) fn add_and_norm<const D: usize>(
    x: Tensor<D>,
    added: Tensor<D>,
    (weight, epsilon): (Tensor<1>, f64),
) -> (Tensor<D>, Tensor<D>) {
    if x.is_autodiff() || added.is_autodiff() || weight.is_autodiff() {
        let sum = x + added;
        return (sum.clone(), rms_norm(sum, weight, epsilon));
    }
    let [x, added] = [x, added].map(Tensor::into_dispatch);
    let weight = weight.into_dispatch();
    let (sum, normed) = Dispatch::add_and_norm(x, added, weight, epsilon as f32);
    (Tensor::from_dispatch(sum), Tensor::from_dispatch(normed))
}

/// Keys and values with new ones at the places from `at` on, in the memory of those that are held where nobody else holds them.
///
/// # Shapes
/// - held, output: `[1, kv_heads, room, d_head]` of keys, and of values
/// - new: `[1, kv_heads, seq, d_head]` of each
pub(crate) fn write_at(held: [Tensor<4>; 2], new: [Tensor<4>; 2], at: usize) -> [Tensor<4>; 2] {
    let in_graph = held.iter().chain(&new).any(Tensor::is_autodiff);
    let [keys, values] = held.map(Tensor::into_dispatch);
    let [new_keys, new_values] = new.map(Tensor::into_dispatch);
    let (keys, values) = match in_graph {
        true => written_each::<Dispatch>([keys, values], [new_keys, new_values], at),
        false => Dispatch::write_at(keys, values, new_keys, new_values, at),
    };
    [keys, values].map(Tensor::from_dispatch)
}

/// `softmax(scores * scale + mask)` over the keys, computed in f32, in the type `dtype`; `scale` is above 0.
///
/// # Shapes
/// - scores, output: `[batch, heads, rows, keys]`
/// - mask: `[batch or 1, 1, rows / n, keys]`, f32, 0 or minus infinity; each of its rows is for `n` rows of a head
pub(crate) fn softmax(
    scores: Tensor<4>,
    mask: Option<&Tensor<4>>,
    scale: f32,
    dtype: DType,
) -> Tensor<4> {
    let scores = scores.into_dispatch();
    Tensor::from_dispatch(match mask {
        None => Dispatch::attention_weights(scores, scale, dtype),
        Some(mask) => {
            let mask = mask.clone().into_dispatch();
            Dispatch::masked_attention_weights(scores, mask, scale, dtype)
        }
    })
}

/// Attention before its division: of each query the values of the keys that it sees summed by `exp(query · key * scale - largest)` and the
/// sum of these weights; all in f32. No weight is kept for a backward pass.
#[derive(Debug, Clone)]
pub(crate) struct Gathered {
    /// `[batch, heads, rows, d_head + 1]`; the sum of the weights stands behind those of the values.
    pub(crate) sums: Tensor<4>,
    /// The largest score of each query, which no gradient goes through. `[batch, heads, rows, 1]`
    pub(crate) largest: Tensor<4>,
    /// What scores are multiplied by.
    scale: f32,
}

impl Gathered {
    /// With one key more for each query.
    ///
    /// # Shapes
    /// - query: `[batch, heads, rows, d_head]`
    /// - key, value: `[batch, kv_heads, rows, d_head]`
    pub(crate) fn with_column(self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Self {
        let [query, key, value, largest, sums] =
            [query, key, value, self.largest, self.sums].map(Tensor::into_dispatch);
        let column = Column {
            query,
            key,
            value,
            largest,
            scale: self.scale,
        };
        let (sums, largest) = Dispatch::add_column(column, sums);
        Self {
            sums: Tensor::from_dispatch(sums),
            largest: Tensor::from_dispatch(largest),
            scale: self.scale,
        }
    }

    /// With a score of each head's own, of no value.
    ///
    /// # Shapes
    /// - sinks: `[1, heads, 1, 1]`, f32, at most `largest`
    pub(crate) fn with_sinks(self, sinks: Tensor<4>) -> Self {
        let d_head = self.sums.dims()[3] - 1;
        let context = self.sums.clone().narrow(3, 0, d_head);
        let sum = self.sums.narrow(3, d_head, 1) + (sinks - self.largest.clone()).exp();
        Self {
            sums: Tensor::cat(vec![context, sum], 3),
            largest: self.largest,
            scale: self.scale,
        }
    }
}

/// Sums of values over the sum of their weights, which stands behind them, computed in f32, in the type `dtype`.
///
/// # Shapes
/// - sums: `[batch, heads, rows, d_head + 1]`, f32
/// - output: `[batch, heads, rows, d_head]`
pub(crate) fn quotient(sums: Tensor<4>, dtype: DType) -> Tensor<4> {
    let (quotient, _) = Dispatch::quotient(sums.into_dispatch(), dtype);
    Tensor::from_dispatch(quotient)
}

/// Queries of a sequence that [`gather`] takes at a time.
pub(crate) fn queries_at_a_time(device: &Device) -> usize {
    AtATime::on(device).queries
}

/// See [`Gathered`].
///
/// # Shapes
/// - query: `[batch, heads, rows, d_head]`
/// - key, value: `[batch, kv_heads, keys, d_head]`
/// - mask: of `rows / n` queries, each for `n` rows of a head, and `keys`
/// - floor: `[batch, heads, rows, 1]`, f32, of which `largest` is at least
pub(crate) fn gather(
    query: Tensor<4>,
    keys_values: (Tensor<4>, Tensor<4>),
    mask: &Mask,
    floor: Option<Tensor<4>>,
    scale: f32,
) -> Gathered {
    let some = AtATime::on(&query.device());
    gather_some(query, keys_values, mask, floor, scale, some)
}

/// [`gather`], so many queries at a time.
fn gather_some(
    query: Tensor<4>,
    (key, value): (Tensor<4>, Tensor<4>),
    mask: &Mask,
    floor: Option<Tensor<4>>,
    scale: f32,
    some: AtATime,
) -> Gathered {
    let [batch, heads, rows, _] = query.dims();
    let [queries, _] = mask.sight().dims();
    let blocks = mask.sight().blocks(batch, rows / queries, some);
    let ranges = mask.ranges().clone();
    let floor = floor.unwrap_or_else(|| {
        let options = (&ranges.device(), DType::F32);
        // The lowest number and no infinity: between two of those there is no difference.
        Tensor::full([batch, heads, rows, 1], f32::MIN, options)
    });
    let [query, key, value, ranges, floor] =
        [query, key, value, ranges, floor].map(Tensor::into_dispatch);
    let given = Given {
        query,
        key,
        value,
        ranges,
        floor,
        scale,
    };
    let (sums, largest) = Dispatch::gather(given, blocks.into());
    Gathered {
        sums: Tensor::from_dispatch(sums),
        largest: Tensor::from_dispatch(largest),
        scale,
    }
}
