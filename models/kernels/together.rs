//! Functions that stand one behind the other in each layer of a decoder, in one kernel: a launch costs the host of a GPU some ten
//! microseconds, more than most of them take there. In no graph: a backward pass needs what stands between them.
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps as _;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, TensorMetadata as _, backend_extension};
use burn::tensor::Slice;

use super::operations::Kernels;

/// Each gives what its parts give one after the other, in their types; only sums over a head may be added up in another order.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Fusion: cfg(feature = "fusion"))]
pub(super) trait Together: Backend {
    /// [`Kernels::rms_norm`] of each head, and then [`Kernels::rotate`] forwards.
    ///
    /// # Shapes
    /// - x, output: `[batch, heads, seq, d_head]`
    /// - weight: `[d_head]`
    /// - cos, sin: `[batch or 1, 1, seq, d_head / 2]`, f32
    #[fusion(dtype = x, shape = x)]
    fn norm_and_rotate(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        epsilon: f32,
    ) -> FloatTensor<Self>;

    /// `x + added`, and [`Kernels::rms_norm`] of that.
    ///
    /// # Shapes
    /// - x, added, outputs: `[…, width]`
    /// - weight: `[width]`
    #[fusion(meta = |x, _, _, _| (x.clone(), x.clone()))]
    fn add_and_norm(
        x: FloatTensor<Self>,
        added: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Writes keys and values to the places from `at` on of those that are held, in place where nobody else holds them.
    ///
    /// # Shapes
    /// - held, outputs: `[1, kv_heads, room, d_head]` of keys, and of values
    /// - new: `[1, kv_heads, seq, d_head]` of each
    #[fusion(meta = |keys, values, _, _, _| (keys.clone(), values.clone()))]
    fn write_at(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        new_keys: FloatTensor<Self>,
        new_values: FloatTensor<Self>,
        at: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl Together for Flex {
    fn norm_and_rotate(
        x: FlexTensor,
        weight: FlexTensor,
        cos: FlexTensor,
        sin: FlexTensor,
        epsilon: f32,
    ) -> FlexTensor {
        // Heads of a position stand beside one another: so they are normed in place.
        let x = Self::float_swap_dims(x, 1, 2);
        let normed = <Self as Kernels>::rms_norm(x, weight, epsilon);
        Self::rotate(Self::float_swap_dims(normed, 1, 2), cos, sin, 1.0)
    }

    fn add_and_norm(
        x: FlexTensor,
        added: FlexTensor,
        weight: FlexTensor,
        epsilon: f32,
    ) -> (FlexTensor, FlexTensor) {
        let sum = Self::float_add(x, added);
        (
            sum.clone(),
            <Self as Kernels>::rms_norm(sum, weight, epsilon),
        )
    }

    fn write_at(
        keys: FlexTensor,
        values: FlexTensor,
        new_keys: FlexTensor,
        new_values: FlexTensor,
        at: usize,
    ) -> (FlexTensor, FlexTensor) {
        written_each::<Self>([keys, values], [new_keys, new_values], at)
    }
}

/// Each of `held` with that of `new` at the places from `at` on of the last dimension but one.
pub(super) fn written_each<B: Backend>(
    [keys, values]: [FloatTensor<B>; 2],
    [new_keys, new_values]: [FloatTensor<B>; 2],
    at: usize,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let written = |held: FloatTensor<B>, new: FloatTensor<B>| {
        let mut places: Vec<Slice> = (new.shape().iter()).map(|&side| (0..side).into()).collect();
        let last = places.len() - 2;
        places[last] = (at..at + new.shape()[last]).into();
        B::float_slice_assign(held, &places, new)
    };
    (written(keys, new_keys), written(values, new_values))
}

#[cfg(feature = "cube")]
mod cube;
