//! Matrices of whole numbers of eight bits: of each column, every [`BLOCK`] elements have a scale, so that the largest of them is 127.
use std::ops::Range;

use burn::backend::flex::{FlexQTensor, FlexTensor};
use burn::backend::ops::IntTensorOps as _;
use burn::backend::{BackendTensor, DispatchKindConversion, DispatchTensor, Flex};
use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::quantization::{QuantScheme, QuantValue, ScaleDtype};
use pulp::Arch;
use rayon::prelude::*;

use super::narrow::Narrow;
use crate::vectorised;

/// Elements of a column that share a scale.
pub const BLOCK: usize = 32;
/// The largest element.
const LARGEST: f32 = 127.0;

/// Whether a matrix of columns of this length can be held so.
pub(crate) fn fits(inner: usize) -> bool {
    inner > 0 && inner.is_multiple_of(BLOCK)
}

/// A matrix held so. `values` are `[d_out, d_in]`, as files have them, and finite, which their reader has checked; an element is off by
/// at most 1/254 of the largest in its block.
///
/// # Shapes
/// - output: `[d_in, d_out]`
pub(crate) fn held(values: &[f32], [d_in, d_out]: [usize; 2]) -> Tensor<2> {
    let mut narrow = vec![0_i8; values.len()];
    let mut scales = vec![0.0_f32; values.len() / BLOCK];
    let all = narrow.par_chunks_exact_mut(BLOCK).zip(&mut scales);
    all.zip(values.par_chunks_exact(BLOCK))
        .for_each(|((narrow, scale), values)| {
            let largest = values
                .iter()
                .fold(0.0_f32, |most, value| most.max(value.abs()));
            *scale = largest / LARGEST;
            let inverse = if largest > 0.0 {
                LARGEST / largest
            } else {
                0.0
            };
            for (narrow, value) in narrow.iter_mut().zip(values) {
                *narrow = (value * inverse).round() as i8;
            }
        });
    let scheme = QuantScheme::default()
        .with_value(QuantValue::Q8S)
        .per_block([BLOCK as u8, 1], ScaleDtype::F32);
    let columns = FlexTensor::from_data(TensorData::new(narrow, [d_out, d_in]));
    let matrix = FlexQTensor::new(Flex::int_transpose(columns), scheme, scales, None);
    let matrix: BackendTensor<Flex> = BackendTensor::Quantized(matrix);
    Tensor::from_dispatch(DispatchTensor::from_backend(matrix))
}

/// The matrix of a tensor that [`held`] has made; of any other tensor, nothing.
pub(super) fn matrix(weight: &Tensor<2>) -> Option<FlexQTensor> {
    if !matches!(weight.dtype(), DType::QFloat(_)) {
        return None;
    }
    let held = weight.clone().into_dispatch();
    match <DispatchTensor as DispatchKindConversion<Flex>>::try_into_backend(held) {
        Ok(BackendTensor::Quantized(matrix)) => Some(matrix),
        _ => None,
    }
}

/// The columns of a matrix, with their scales.
pub(super) struct Int8<'a> {
    values: &'a [i8],
    scales: &'a [f32],
    /// `[inner, width]`
    pub(super) shape: [usize; 2],
}

impl<'a> Int8<'a> {
    pub(super) fn of(matrix: &'a FlexQTensor) -> Self {
        let columns = matrix.tensor();
        let shape = columns.layout().shape();
        Self {
            values: columns.storage::<i8>(),
            scales: matrix.scales(),
            shape: [shape[0], shape[1]],
        }
    }
}

impl Int8<'_> {
    /// Elements of whole columns as they are.
    pub(super) fn narrow(&self, elements: Range<usize>) -> Narrow<'_> {
        let scales = &self.scales[elements.start / BLOCK..elements.end / BLOCK];
        Narrow::Int8(&self.values[elements], scales)
    }

    /// Elements of whole columns as f32.
    pub(super) fn widen(&self, elements: Range<usize>, wide: &mut [f32]) {
        let scales = &self.scales[elements.start / BLOCK..];
        let (values, _) = self.values[elements].as_chunks::<BLOCK>();
        let (wide, _) = wide.as_chunks_mut::<BLOCK>();
        vectorised!(Arch::new(), {
            for ((wide, values), scale) in wide.iter_mut().zip(values).zip(scales) {
                // A copy: what is read and written by references would be taken one number at a time.
                let (values, scale) = (*values, *scale);
                let mut block = [0.0; BLOCK];
                for (wide, value) in block.iter_mut().zip(values) {
                    *wide = f32::from(value) * scale;
                }
                *wide = block;
            }
        });
    }
}
