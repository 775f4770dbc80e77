//! Parts of tensors.
use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata as _};
use burn::tensor::Slice;

/// Some places along a dimension; all of them are the tensor itself.
pub(super) fn within<B: Backend>(
    x: FloatTensor<B>,
    dim: usize,
    places: &Range<usize>,
) -> FloatTensor<B> {
    let shape = x.shape();
    if places.len() == shape[dim] {
        return x;
    }
    let slice = |at| match at == dim {
        true => Slice::from(places.clone()),
        false => Slice::from(0..shape[at]),
    };
    B::float_slice(x, &[0, 1, 2, 3].map(slice))
}
