//! What each kind of device computes in kernels of its own.
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata as _, backend_extension};
use burn::tensor::DType;

use super::within::within;
use crate::products::{Products, of_type, wide};

/// Functions that read their inputs and write their output once. They compute in f32; what they return is in the type of
/// their first argument, unless they say otherwise. In a graph [`gradients`](super::gradients) implements them.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff, Fusion: cfg(feature = "fusion"))]
pub(super) trait Kernels: Backend {
    /// `x / sqrt(mean(x²) + epsilon) * weight`, over the last dimension.
    ///
    /// # Shapes
    /// - x, output: `[…, width]`
    /// - weight: `[width]`
    #[fusion(dtype = x, shape = x)]
    fn rms_norm(x: FloatTensor<Self>, weight: FloatTensor<Self>, epsilon: f32)
    -> FloatTensor<Self>;

    /// `silu(gate) · up`.
    ///
    /// # Shapes
    /// - gate, up, output: the same
    #[fusion(dtype = gate, shape = gate)]
    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Turns dimension `i` with dimension `i + d_head / 2`: forwards where `turn` is 1, back where it is -1.
    ///
    /// # Shapes
    /// - x, output: `[batch, heads, seq, d_head]`
    /// - cos, sin: `[batch or 1, 1, seq, d_head / 2]`, f32
    #[fusion(dtype = x, shape = x)]
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: f32,
    ) -> FloatTensor<Self>;

    /// `softmax(scores * scale)` in the type `dtype`, over the last dimension; `scale` is above 0.
    ///
    /// # Shapes
    /// - scores, output: `[batch, heads, rows, keys]`
    #[fusion(dtype = *dtype, shape = scores)]
    fn attention_weights(scores: FloatTensor<Self>, scale: f32, dtype: DType) -> FloatTensor<Self>;

    /// `softmax(scores * scale + mask)` in the type `dtype`, over the last dimension; `scale` is above 0.
    ///
    /// # Shapes
    /// - scores, output: `[batch, heads, rows, keys]`
    /// - mask: `[batch or 1, 1, rows / n, keys]`, f32, 0 or minus infinity; each of its rows is for `n` rows of a head
    #[fusion(dtype = *dtype, shape = scores)]
    fn masked_attention_weights(
        scores: FloatTensor<Self>,
        mask: FloatTensor<Self>,
        scale: f32,
        dtype: DType,
    ) -> FloatTensor<Self>;
}

/// What is computed in no graph: gradients of [`Kernels`] with respect to their inputs, from the gradient of their output, and the
/// weights of [`gather`](super::gather).
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Fusion: cfg(feature = "fusion"))]
pub(super) trait Backwards: Backend + Products {
    /// Of [`Kernels::rms_norm`]: `[…, width]` as `x` is, and `[width]`.
    #[fusion(meta = |x, weight, _, _| (x.clone(), weight.clone()))]
    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        epsilon: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Of [`Kernels::swiglu`]: of the gate and of the other factor.
    #[fusion(meta = |gate, up, _| (gate.clone(), up.clone()))]
    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Of a softmax whose values are `weights`, with respect to the scores that it multiplied by `scale`, in the type `dtype`.
    ///
    /// # Shapes
    /// - all: `[batch, heads, rows, keys]`
    #[fusion(dtype = *dtype, shape = weights)]
    fn softmax_backward(
        weights: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scale: f32,
        dtype: DType,
    ) -> FloatTensor<Self>;

    /// Unnormalised attention weights `exp(scores * scale - largest)` in the type `dtype`, 0 for keys that a query does not see, and `largest`
    /// of those products that it does. The keys begin with that at place `first`; `scale` is above 0.
    ///
    /// # Shapes
    /// - scores, output: `[batch, heads, rows, keys]`
    /// - ranges: `[batch or 1, 1, rows / n, 2 * ranges]`, f32, of [`Mask::ranges`](crate::Mask); each of its rows is for `n` rows of a head
    /// - floor, largest: `[batch, heads, rows, 1]`, f32; `largest` is at least `floor`
    #[fusion(meta = |scores, _, floor, _, _, dtype| (TensorSpec::new(scores.shape.clone(), *dtype), floor.clone()))]
    fn exponentials(
        scores: FloatTensor<Self>,
        ranges: FloatTensor<Self>,
        floor: FloatTensor<Self>,
        first: usize,
        scale: f32,
        dtype: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Each row's sum of the weights that [`exponentials`](Self::exponentials) gives for the same ranges. On the CPU it is taken in an
    /// order that depends on the keys that the query sees and not on those beside them: a text packed into a row with others comes to
    /// the states that it has alone.
    ///
    /// # Shapes
    /// - weights: `[batch, heads, rows, keys]`
    /// - ranges: as there
    /// - largest, output: `[batch, heads, rows, 1]`, f32; of the former only the shape is read
    #[fusion(dtype = largest, shape = largest)]
    fn sums_of_seen(
        weights: FloatTensor<Self>,
        ranges: FloatTensor<Self>,
        largest: FloatTensor<Self>,
        first: usize,
    ) -> FloatTensor<Self>;

    /// Of sums of attention, or of their gradient, those of `count` queries from `first` on: the sums of values in the type `dtype`, and those
    /// of weights.
    ///
    /// # Shapes
    /// - sums: `[batch, heads, rows, d_head + 1]`, f32
    /// - output: `[batch, heads, count, d_head]`, and `[batch, heads, count, 1]`, f32
    #[fusion(meta = |sums, _, count, dtype| parts_of(sums, *count, *dtype))]
    fn parts_of_sums(
        sums: FloatTensor<Self>,
        first: usize,
        count: usize,
        dtype: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let d_head = sums.shape()[3] - 1;
        let sums = within::<Self>(sums, 2, &(first..first + count));
        let of_weights = within::<Self>(sums.clone(), 3, &(d_head..d_head + 1));
        let of_values = within::<Self>(sums, 3, &(0..d_head));
        (of_type::<Self>(of_values, dtype), of_weights)
    }

    /// `sum`, with `more` added to its keys from `first` on.
    ///
    /// # Shapes
    /// - sum, output: `[batch, heads, keys, width]`, f32
    /// - more: `[batch, heads, count, width]`, f32
    #[fusion(meta = |sum, _, _| sum.clone())]
    fn added_at(sum: FloatTensor<Self>, more: FloatTensor<Self>, first: usize)
    -> FloatTensor<Self>;

    /// The gradient with respect to scaled scores, in the type `dtype`: `weights · (of_weights + of_sum)`.
    ///
    /// # Shapes
    /// - weights, of_weights (f32), output: `[batch, heads, rows, keys]`
    /// - of_sum: `[batch, heads, rows, 1]`, f32
    #[fusion(dtype = *dtype, shape = weights)]
    fn by_scores(
        weights: FloatTensor<Self>,
        of_weights: FloatTensor<Self>,
        of_sum: FloatTensor<Self>,
        dtype: DType,
    ) -> FloatTensor<Self> {
        let of_weights = Self::float_add(of_weights, of_sum);
        of_type::<Self>(Self::float_mul(wide::<Self>(weights), of_weights), dtype)
    }

    /// The same tensor, on the CPU with the rows of a head side by side: what is read several times is copied once, by all threads.
    ///
    /// # Shapes
    /// - x, output: `[batch, heads, rows, width]`
    #[fusion(default)]
    fn in_row_order(x: FloatTensor<Self>) -> FloatTensor<Self> {
        x
    }
}

/// What [`Backwards::parts_of_sums`] gives.
#[cfg(feature = "fusion")]
fn parts_of(sums: &TensorSpec, count: usize, dtype: DType) -> (TensorSpec, TensorSpec) {
    let (mut of_values, mut of_weights) = (sums.shape.clone(), sums.shape.clone());
    of_values[2] = count;
    of_values[3] -= 1;
    of_weights[2] = count;
    of_weights[3] = 1;
    (
        TensorSpec::new(of_values, dtype),
        TensorSpec::new(of_weights, DType::F32),
    )
}
