//! Numbers as stored features have them: bits of bf16.

use burn::prelude::Device;
use burn::tensor::{DType, Tensor, TensorData};

/// The elements of a tensor, rounded, in its order.
pub(crate) fn bits_of<const D: usize>(x: Tensor<D>) -> Vec<u16> {
    let data: TensorData = x.cast(DType::BF16).into_data();
    words(data.as_bytes())
}

/// The tensor of this shape with these elements, in bf16.
pub(crate) fn tensor_of<const D: usize>(
    bits: &[u16],
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    let bytes = bits.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
    let data = TensorData::from_bytes_vec(bytes, shape.to_vec(), DType::BF16);
    Tensor::from_data(data, (device, DType::BF16))
}

/// Where the first one is that is infinite or no number: all bits of its exponent are set.
pub(crate) fn no_number(bits: &[u16]) -> Option<usize> {
    bits.iter().position(|bits| bits & 0x7f80 == 0x7f80)
}

/// Bytes as words of this machine.
pub(crate) fn words(bytes: &[u8]) -> Vec<u16> {
    let (pairs, _) = bytes.as_chunks::<2>();
    pairs.iter().map(|pair| u16::from_ne_bytes(*pair)).collect()
}
