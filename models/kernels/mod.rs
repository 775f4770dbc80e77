//! Functions between the matrix products, each in one pass over memory: on the CPU over all threads, on a GPU in a kernel of
//! its own. As tensor operations they would be five to eleven passes each, and keep what lies between them for the backward
//! pass.
use burn::backend::Dispatch;
use burn::prelude::*;
use burn::tensor::DType;

use self::operations::Kernels;

#[cfg(feature = "cube")]
mod cube;
mod gradients;
mod host;
mod operations;
mod rows;
#[cfg(test)]
mod tests;

pub use rows::exp;

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

/// Turns dimension `i` with dimension `i + d_head / 2`, computed in f32, in the type of `x`.
///
/// # Shapes
/// - x, output: `[batch, heads, seq, d_head]`
/// - cos, sin: `[batch or 1, 1, seq, d_head / 2]`, f32
pub(crate) fn rotate(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let [x, cos, sin] = [x, cos, sin].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::rotate(x, cos, sin, 1.0))
}

/// `softmax(scores + mask)` over the keys, computed in f32, in the type of the scores.
///
/// # Shapes
/// - scores, output: `[batch, heads, rows, keys]`
/// - mask: `[batch or 1, 1, rows / n, keys]`, f32, 0 or minus infinity; each of its rows is for `n` rows of a head
pub(crate) fn softmax(scores: Tensor<4>, mask: Option<&Tensor<4>>) -> Tensor<4> {
    let scores = scores.into_dispatch();
    Tensor::from_dispatch(match mask {
        None => Dispatch::attention_weights(scores),
        Some(mask) => Dispatch::masked_attention_weights(scores, mask.clone().into_dispatch()),
    })
}

/// Unnormalised attention weights `exp(scores + mask - largest)`, and `largest`, f32, which no gradient goes through.
///
/// # Shapes
/// - scores, output: `[batch, heads, rows, keys]`
/// - mask: `[batch or 1, 1, rows / n, keys]`, f32, 0 or minus infinity; each of its rows is for `n` rows of a head
/// - floor, largest: `[batch, heads, rows, 1]`; `largest` is at least `floor`
pub(crate) fn exponentials(
    scores: Tensor<4>,
    mask: Tensor<4>,
    floor: Option<Tensor<4>>,
) -> (Tensor<4>, Tensor<4>) {
    let [batch, heads, rows, _] = scores.dims();
    let floor = floor.unwrap_or_else(|| {
        let options = (&mask.device(), DType::F32);
        Tensor::full([batch, heads, rows, 1], f32::NEG_INFINITY, options)
    });
    let [scores, mask, floor] = [scores, mask, floor].map(Tensor::into_dispatch);
    let (weights, largest) = Dispatch::exponentials(scores, mask, floor);
    (
        Tensor::from_dispatch(weights),
        Tensor::from_dispatch(largest),
    )
}
