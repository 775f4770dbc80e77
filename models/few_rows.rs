//! Products of a few rows with a large matrix on the CPU, as a decoder takes them: what they cost is reading the matrix.
//!
//! Here each thread reads its columns of the matrix once, whatever the number of rows. A general product copies them into
//! blocks first, which pays with many rows only, and leaves most of these products to one thread. The sum of an element is
//! taken in the same order for any number of rows, so a row's result does not depend on the rows beside it.
//!
//! A thread that is not rayon's own waits for another to take up each product, which costs as much as a small one: the program
//! makes its main thread one of rayon's.
use std::cell::Cell;
use std::marker::PhantomData;

use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps as _;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::prelude::*;
use burn::tensor::DType;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Rows up to which this is faster than a general product.
const MOST_ROWS: usize = 64;
/// Columns that a thread takes at a time.
const COLUMNS: usize = 32;
/// Elements of a matrix that are not worth a second thread.
const SMALL: usize = 1 << 16;
/// Rows whose sums are in registers at a time.
const TOGETHER: usize = 6;

/// What a back end computes by itself.
#[backend_extension(Flex)]
trait FewRows: Backend {
    /// `x · weight`
    fn few_rows(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl FewRows for Flex {
    fn few_rows(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        let columns_in_memory = transposed_in_memory(&weight);
        let x = x.to_contiguous();
        let (Some(columns), Some(rows)) = (columns_in_memory, x.as_slice::<f32>()) else {
            return Self::float_matmul(x, weight);
        };
        let inner = weight.layout().shape()[0];
        let (count, width) = (rows.len() / inner, columns.len() / inner);
        let sums = product_of(rows, columns, inner);
        FlexTensor::from_data(TensorData::new(sums, [count, width]))
    }
}

/// The columns of a matrix one after the other, where they are so in memory.
fn transposed_in_memory(weight: &FlexTensor) -> Option<&[f32]> {
    let layout = weight.layout();
    let [inner, columns] = layout.shape()[..] else {
        return None;
    };
    let is_transposed = layout.strides() == [1, inner as isize] && inner * columns > 0;
    let start = layout.start_offset();
    is_transposed.then(|| &weight.storage::<f32>()[start..start + inner * columns])
}

thread_local! {
    /// Whether this thread decodes.
    static DECODES: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, its thread takes products of few rows here: a pass of a decoder.
#[must_use]
pub struct Decoding {
    /// What was so before.
    outer: bool,
    /// It speaks of its own thread.
    _here: PhantomData<*const ()>,
}

impl Decoding {
    /// From here on.
    pub fn begin() -> Self {
        Self {
            outer: DECODES.replace(true),
            _here: PhantomData,
        }
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        DECODES.set(self.outer);
    }
}

/// `x · weight`.
///
/// # Shapes
/// - x: `[rows, d_in]`
/// - weight: `[d_in, d_out]`
/// - output: `[rows, d_out]`
pub(crate) fn product(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    let is_few = DECODES.get() && (1..=MOST_ROWS).contains(&x.dims()[0]);
    let is_plain = |tensor: &Tensor<2>| {
        !tensor.is_autodiff() && tensor.dtype() == DType::F32 && tensor.device() == Device::flex()
    };
    if !is_few || !is_plain(&x) || !is_plain(&weight) {
        return x.matmul(weight);
    }
    let product = Dispatch::few_rows(x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(product)
}

/// # Shapes
/// - rows: `[count, inner]`
/// - columns: `[width, inner]`
/// - output: `[count, width]`
fn product_of(rows: &[f32], columns: &[f32], inner: usize) -> Vec<f32> {
    let (count, width) = (rows.len() / inner, columns.len() / inner);
    let arch = Arch::new();
    let mut sums = vec![0.0; count * width];
    let of_columns = |(sums, columns): (&mut [f32], &[f32])| {
        arch.dispatch(Columns {
            rows,
            columns,
            inner,
            sums,
        });
    };
    let at_once = if columns.len() < SMALL {
        width
    } else {
        COLUMNS
    };
    sums.par_chunks_mut(at_once * count)
        .zip(columns.par_chunks(at_once * inner))
        .for_each(of_columns);
    if count == 1 {
        return sums;
    }
    let mut turned = vec![0.0; sums.len()];
    for (row, turned) in turned.chunks_exact_mut(width).enumerate() {
        for (turned, sums) in turned.iter_mut().zip(sums.chunks_exact(count)) {
            *turned = sums[row];
        }
    }
    turned
}

/// All rows with some columns.
struct Columns<'a> {
    /// `[count, inner]`
    rows: &'a [f32],
    /// `[width, inner]`
    columns: &'a [f32],
    inner: usize,
    /// `[width, count]`
    sums: &'a mut [f32],
}

impl WithSimd for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let count = self.rows.len() / self.inner;
        for column in 0..self.columns.len() / self.inner {
            for first in (0..count).step_by(TOGETHER) {
                match count - first {
                    1 => self.sum::<S, 1>(simd, first, column),
                    2 => self.sum::<S, 2>(simd, first, column),
                    3 => self.sum::<S, 3>(simd, first, column),
                    4 => self.sum::<S, 4>(simd, first, column),
                    5 => self.sum::<S, 5>(simd, first, column),
                    _ => self.sum::<S, TOGETHER>(simd, first, column),
                }
            }
        }
    }
}

impl Columns<'_> {
    /// The sums of `M` rows from `first` on with a column, each in two halves that do not wait for one another.
    #[inline(always)]
    fn sum<S: Simd, const M: usize>(&mut self, simd: S, first: usize, column: usize) {
        let inner = self.inner;
        let rows: [_; M] = std::array::from_fn(
            #[inline(always)]
            |row| S::as_simd_f32s(&self.rows[(first + row) * inner..][..inner]),
        );
        let (weights, rest) = S::as_simd_f32s(&self.columns[column * inner..][..inner]);
        let steps = weights.len();
        assert!(rows.iter().all(|(lanes, _)| lanes.len() == steps));
        let mut sums = [[simd.splat_f32s(0.0); 2]; M];
        for step in (0..steps - steps % 2).step_by(2) {
            for (half, weights) in weights[step..step + 2].iter().enumerate() {
                for (sums, (lanes, _)) in sums.iter_mut().zip(&rows) {
                    #[expect(
                        unsafe_code,
                        reason = "a check of each index costs as much as the sums"
                    )]
                    // SAFETY: there are `steps` lanes, as was asserted, and `step + 1 < steps`.
                    let x = unsafe { *lanes.get_unchecked(step + half) };
                    sums[half] = simd.mul_add_e_f32s(x, *weights, sums[half]);
                }
            }
        }
        let count = self.rows.len() / inner;
        for (row, ([mut sum, other], (lanes, rest_of_row))) in
            sums.into_iter().zip(rows).enumerate()
        {
            if steps % 2 == 1 {
                sum = simd.mul_add_e_f32s(lanes[steps - 1], weights[steps - 1], sum);
            }
            let products = rest_of_row.iter().zip(rest).map(|(x, weight)| x * weight);
            let rest: f32 = products.sum();
            self.sums[column * count + first + row] =
                simd.reduce_sum_f32s(simd.add_f32s(sum, other)) + rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::weights::host_f32;

    fn matrix(shape: [usize; 2], seed: u64) -> Tensor<2> {
        let mut rng = StdRng::seed_from_u64(seed);
        let values = (0..shape[0] * shape[1]).map(|_| rng.random_range(-1.0..1.0));
        let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
        Tensor::from_data(data, &Device::flex())
    }

    #[test]
    fn products_are_those_of_matrices_and_do_not_depend_on_the_rows_beside() {
        for [inner, width] in [[1, 1], [7, 3], [64, 33], [300, 65], [515, 257], [129, 1031]] {
            let weight = matrix([width, inner], 1).transpose();
            for count in [1, 2, 5, 6, 7, 13, 64, 65] {
                let x = matrix([count, inner], 2);
                let found = product(x.clone(), weight.clone());
                let expected = host_f32(x.clone().matmul(weight.clone()));
                let values = host_f32(found.clone());
                for (found, expected) in values.iter().zip(&expected) {
                    let apart = (found - expected).abs();
                    assert!(apart < 1e-5 * inner as f32, "{found} {expected}");
                }
                if count > MOST_ROWS {
                    continue;
                }
                let last = x.narrow(0, count - 1, 1);
                let alone = host_f32(product(last, weight.clone()));
                assert_eq!(values[(count - 1) * width..], alone);
            }
        }
    }

    #[test]
    fn what_is_stored_otherwise_is_left_to_a_general_product() {
        let (x, weight) = (matrix([3, 40], 1), matrix([40, 20], 2));
        let expected = host_f32(x.clone().matmul(weight.clone()));
        assert_eq!(host_f32(product(x.clone(), weight.clone())), expected);
        // Columns of a wider matrix, and a part of a transposed one.
        let wide = matrix([40, 60], 3);
        let narrow = wide.narrow(1, 20, 20);
        let part = matrix([60, 40], 4).transpose().narrow(1, 20, 20);
        for weight in [narrow, part] {
            let expected = host_f32(x.clone().matmul(weight.clone()));
            for (found, expected) in host_f32(product(x.clone(), weight)).iter().zip(expected) {
                assert!((found - expected).abs() < 1e-4);
            }
        }
        assert_eq!(
            product(matrix([0, 40], 1), matrix([40, 20], 2)).dims(),
            [0, 20]
        );
    }
}
