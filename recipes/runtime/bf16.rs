//! Numbers as stored features have them: bits of bf16.

use burn::tensor::{DType, Tensor, TensorData};

/// The elements of a tensor, rounded, in its order.
pub(crate) fn bits_of<const D: usize>(x: Tensor<D>) -> Vec<u16> {
    let data: TensorData = x.cast(DType::BF16).into_data();
    words(data.as_bytes())
}

/// Bytes as words of this machine.
pub(crate) fn words(bytes: &[u8]) -> Vec<u16> {
    let (pairs, _) = bytes.as_chunks::<2>();
    pairs.iter().map(|pair| u16::from_ne_bytes(*pair)).collect()
}
