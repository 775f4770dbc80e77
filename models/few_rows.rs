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
use std::ops::Range;

use burn::backend::flex::{FlexQTensor, FlexTensor};
use burn::backend::ops::FloatTensorOps as _;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::prelude::*;
use burn::tensor::{DType, Element, FloatDType, bf16};
use pulp::bytemuck::Pod;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

pub use self::int8::BLOCK as INT8_BLOCK;
use self::int8::Int8;
use self::lane_sums::lane_sums;
use self::narrow::Narrow;
use self::prefetch::prefetch;
use self::registers::four_fit;
use crate::products::{self, Precision, PrecisionScope};
use crate::rounding::widen;

pub(crate) mod int8;
mod lane_sums;
mod narrow;
#[cfg(target_arch = "x86_64")]
mod narrow_sums;
mod prefetch;
mod registers;

/// Rows up to which this is faster than a general product.
const MOST_ROWS: usize = 256;
/// Columns that a thread takes at a time.
const COLUMNS: usize = 32;
/// Elements of a matrix that are not worth a second thread.
const SMALL: usize = 1 << 16;
/// Columns that are widened at a time: what is widened is read again before it leaves the cache.
const WIDENED: usize = 4;
/// Rows whose sums are in registers at a time.
const TOGETHER: usize = 6;

/// What a back end computes by itself.
#[backend_extension(Flex)]
trait Products: Backend {
    /// `x · weight` of few rows.
    fn few_rows(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;
    /// A weight in bf16 as f32.
    fn widened(weight: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl Products for Flex {
    fn few_rows(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        let x = x.to_contiguous();
        let found = x.as_slice::<f32>().and_then(|rows| match weight.dtype() {
            DType::F32 => Some(with_columns::<f32>(rows, &weight)?),
            DType::BF16 => Some(with_columns::<bf16>(rows, &weight)?),
            _ => None,
        });
        found.unwrap_or_else(|| <Self as products::Products>::product(x, weight_as_f32(weight)))
    }

    fn widened(weight: FlexTensor) -> FlexTensor {
        weight_as_f32(weight)
    }
}

/// `x · weight`, where the columns of the weight stand one after the other in memory.
fn with_columns<E: Element + Pod>(rows: &[f32], weight: &FlexTensor) -> Option<FlexTensor>
where
    for<'a> &'a [E]: Stored,
{
    let columns = columns_of::<E>(weight)?;
    let [inner, width] = [weight.layout().shape()[0], weight.layout().shape()[1]];
    let sums = product_of(rows, &columns, [inner, width]);
    Some(FlexTensor::from_data(TensorData::new(
        sums,
        [rows.len() / inner, width],
    )))
}

/// A matrix in f32, stored as it was.
fn weight_as_f32(weight: FlexTensor) -> FlexTensor {
    if weight.dtype() == DType::F32 {
        return weight;
    }
    let Some(columns) = columns_of::<bf16>(&weight) else {
        return Flex::float_cast(weight, FloatDType::F32);
    };
    let shape = [weight.layout().shape()[0], weight.layout().shape()[1]];
    widened(shape, |elements, wide| widen(&columns[elements], wide))
}

/// A matrix in f32 whose columns stand one after the other, some elements of whole columns at a time.
fn widened(
    [inner, width]: [usize; 2],
    widen: impl Fn(Range<usize>, &mut [f32]) + Sync,
) -> FlexTensor {
    let mut wide = vec![0.0; inner * width];
    let at_once = inner * SMALL.div_ceil(inner);
    let parts = wide.par_chunks_mut(at_once).enumerate();
    parts.for_each(|(part, wide)| {
        let start = part * at_once;
        widen(start..start + wide.len(), wide);
    });
    let wide = FlexTensor::from_data(TensorData::new(wide, [width, inner]));
    Flex::float_transpose(wide)
}

/// The columns of a matrix, one after the other, in whatever way they are stored.
trait Stored: Sync {
    /// Elements of whole columns as f32: themselves, or written to `room`.
    fn as_f32<'r>(&'r self, elements: Range<usize>, room: &'r mut Vec<f32>) -> &'r [f32];

    /// Elements of whole columns as they are, where they are narrow.
    fn narrow(&self, _: Range<usize>) -> Option<Narrow<'_>> {
        None
    }
}

impl Stored for &[f32] {
    fn as_f32<'r>(&'r self, elements: Range<usize>, _: &'r mut Vec<f32>) -> &'r [f32] {
        &self[elements]
    }
}

impl Stored for &[bf16] {
    fn as_f32<'r>(&'r self, elements: Range<usize>, room: &'r mut Vec<f32>) -> &'r [f32] {
        room.resize(elements.len(), 0.0);
        widen(&self[elements], room);
        room
    }

    fn narrow(&self, elements: Range<usize>) -> Option<Narrow<'_>> {
        Some(Narrow::Bf16(&self[elements]))
    }
}

impl Stored for Int8<'_> {
    fn as_f32<'r>(&'r self, elements: Range<usize>, room: &'r mut Vec<f32>) -> &'r [f32] {
        room.resize(elements.len(), 0.0);
        self.widen(elements, room);
        room
    }

    fn narrow(&self, elements: Range<usize>) -> Option<Narrow<'_>> {
        Some(self.narrow(elements))
    }
}

/// The columns of a matrix one after the other, where they are so in memory.
fn columns_of<E: Element + Pod>(weight: &FlexTensor) -> Option<&[E]> {
    let layout = weight.layout();
    let [inner, columns] = layout.shape()[..] else {
        return None;
    };
    let is_transposed = layout.strides() == [1, inner as isize] && inner * columns > 0;
    let start = layout.start_offset();
    is_transposed.then(|| &weight.storage::<E>()[start..start + inner * columns])
}

thread_local! {
    /// Whether this thread decodes.
    static DECODES: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, its thread takes products of few rows here, and rounds the factors of none: a pass of a decoder.
#[must_use]
pub struct Decoding {
    /// What was so before.
    outer: bool,
    _exactly: PrecisionScope,
    /// It speaks of its own thread.
    _here: PhantomData<*const ()>,
}

impl Decoding {
    /// From here on.
    pub fn begin() -> Self {
        Self {
            outer: DECODES.replace(true),
            _exactly: Precision::F32.scope(),
            _here: PhantomData,
        }
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        DECODES.set(self.outer);
    }
}

/// `x · weight` in the type of `x`, whatever type the weight is in.
///
/// # Shapes
/// - x: `[rows, d_in]`
/// - weight: `[d_in, d_out]`
/// - output: `[rows, d_out]`
pub(crate) fn product(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    if let Some(matrix) = int8::matrix(&weight) {
        return int8_product(x, &matrix);
    }
    let is_here = |tensor: &Tensor<2>| !tensor.is_autodiff() && tensor.device() == Device::flex();
    if x.dtype() != DType::F32 || !is_here(&x) || !is_here(&weight) {
        return products::product_with_weight(x, weight);
    }
    let ([rows, inner], [_, width]) = (x.dims(), weight.dims());
    if is_decoding(&x) {
        let [x, weight] = [x, weight].map(Tensor::into_dispatch);
        return Tensor::from_dispatch(Dispatch::few_rows(x, weight));
    }
    if products::are_by_tiles([rows, inner, width]) {
        // They take a weight in bf16 as it is.
        return products::product_with_weight(x, weight);
    }
    let weight = Tensor::from_dispatch(Dispatch::widened(weight.into_dispatch()));
    let elements = rows * width;
    products::product(x, across_the_sum(weight, elements))
}

/// Elements of a product up to which the general one has loops of their own, on processors without AVX-512, for matrices that
/// both run along the sum in memory. They add up in another order: a row's result would depend on how many rows stand beside it.
pub(crate) const LOOPS_OF_THEIR_OWN: usize = 256;

/// The right-hand side of a product of so many elements, laid out in memory so that they are added up in the order of larger ones.
///
/// # Shapes
/// - weight, output: `[.., inner, width]`
pub(crate) fn across_the_sum<const D: usize>(weight: Tensor<D>, elements: usize) -> Tensor<D> {
    if elements > LOOPS_OF_THEIR_OWN {
        return weight;
    }
    // What has another shape is copied, unless it stands so in memory already.
    let shape = weight.dims();
    let mut flat = shape;
    flat[D - 2] = 1;
    flat[D - 1] = shape[D - 2] * shape[D - 1];
    weight.reshape(flat).reshape(shape)
}

/// Whether these are few rows in a pass of a decoder.
fn is_decoding(x: &Tensor<2>) -> bool {
    DECODES.get() && (1..=MOST_ROWS).contains(&x.dims()[0])
}

/// The same with a matrix of [`int8`], in the type of `x`.
fn int8_product(x: Tensor<2>, matrix: &FlexQTensor) -> Tensor<2> {
    let columns = Int8::of(matrix);
    let shape = columns.shape;
    let few = is_decoding(&x) && x.dtype() == DType::F32 && !x.is_autodiff();
    if few && let Ok(rows) = x.to_data().as_slice::<f32>() {
        let sums = product_of(rows, &columns, shape);
        let sums = TensorData::new(sums, [x.dims()[0], shape[1]]);
        return Tensor::from_data(sums, &x.device());
    }
    let wide = widened(shape, |elements, wide| columns.widen(elements, wide));
    let wide: Tensor<2> = Tensor::from_primitive::<Flex>(wide);
    let elements = x.dims()[0] * shape[1];
    let wide = across_the_sum(wide.cast(x.dtype()), elements);
    products::product(x, wide)
}

/// # Shapes
/// - rows: `[count, inner]`
/// - columns: `[width, inner]`
/// - output: `[count, width]`
fn product_of(rows: &[f32], columns: &impl Stored, [inner, width]: [usize; 2]) -> Vec<f32> {
    let count = rows.len() / inner;
    let arch = Arch::new();
    let mut sums = vec![0.0; count * width];
    let at_once = if inner * width < SMALL {
        width
    } else {
        COLUMNS
    };
    let parts = sums.par_chunks_mut(at_once * count).enumerate();
    parts.for_each(|(part, sums)| {
        let mut room = Vec::new();
        let mut first = part * at_once;
        let elements = first * inner..(first + sums.len() / count) * inner;
        if count <= TOGETHER
            && let Some(columns) = columns.narrow(elements)
            && take_narrow(arch, (rows, inner), columns, sums)
        {
            return;
        }
        for sums in sums.chunks_mut(WIDENED * count) {
            let elements = first * inner..(first + sums.len() / count) * inner;
            first += WIDENED;
            arch.dispatch(Columns {
                rows,
                columns: columns.as_f32(elements, &mut room),
                inner,
                sums,
            });
        }
    });
    if count == 1 {
        return sums;
    }
    let mut turned = vec![0.0; sums.len()];
    let at_once = SMALL.div_ceil(width) * width;
    let parts = turned.par_chunks_mut(at_once).enumerate();
    parts.for_each(|(part, turned)| {
        let first = part * at_once / width;
        for (row, turned) in turned.chunks_exact_mut(width).enumerate() {
            for (turned, sums) in turned.iter_mut().zip(sums.chunks_exact(count)) {
                *turned = sums[first + row];
            }
        }
    });
    turned
}

/// Takes the sums of up to six rows, `[count, inner]`, with columns, in the order that wide columns are read in: to `[width, count]`.
/// False where this processor cannot, or the columns are of no whole number of registers.
fn take_narrow(arch: Arch, rows: (&[f32], usize), columns: Narrow, sums: &mut [f32]) -> bool {
    match arch {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => narrow_sums::take(simd, rows, columns, sums),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => narrow_sums::take(simd, rows, columns, sums),
        _ => {
            _ = (rows, columns, sums);
            false
        }
    }
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
    fn with_simd<S: Simd>(self, simd: S) {
        if four_fit::<S>(self.rows.len() / self.inner) {
            self.with_columns_together::<S, 4>(simd);
        } else {
            self.with_columns_together::<S, 2>(simd);
        }
    }
}

impl Columns<'_> {
    /// All sums, those of `C` columns at a time: each number of a row is read once for all of them.
    #[inline(always)]
    fn with_columns_together<S: Simd, const C: usize>(mut self, simd: S) {
        let width = self.columns.len() / self.inner;
        let together = width - width % C;
        for first in (0..together).step_by(C) {
            self.sums_of::<S, C>(simd, first);
        }
        for first in together..width {
            self.sums_of::<S, 1>(simd, first);
        }
    }

    /// The sums of all rows with the `C` columns from `first` on.
    #[inline(always)]
    fn sums_of<S: Simd, const C: usize>(&mut self, simd: S, first: usize) {
        let inner = self.inner;
        let count = self.rows.len() / inner;
        let columns: [_; C] = std::array::from_fn(
            #[inline(always)]
            |column| &self.columns[(first + column) * inner..][..inner],
        );
        for row in (0..count).step_by(TOGETHER) {
            let rows = &self.rows[row * inner..];
            let sums = Sums {
                of: &mut self.sums[first * count + row..],
                count,
            };
            match count - row {
                1 => sums.take::<S, C, 1>(simd, rows, columns),
                2 => sums.take::<S, C, 2>(simd, rows, columns),
                3 => sums.take::<S, C, 3>(simd, rows, columns),
                4 => sums.take::<S, C, 4>(simd, rows, columns),
                5 => sums.take::<S, C, 5>(simd, rows, columns),
                _ => sums.take::<S, C, TOGETHER>(simd, rows, columns),
            }
        }
    }
}

/// Where sums of some rows with some columns go.
struct Sums<'a> {
    /// From that of the first row and column on.
    of: &'a mut [f32],
    /// From one column to the next.
    count: usize,
}

/// Sums of rows with all columns at a time.
#[inline(always)]
fn side_by_side<S: Simd, const C: usize, const M: usize>(
    simd: S,
    rows: [&[S::f32s]; M],
    columns: [&[S::f32s]; C],
) -> [[S::f32s; 4]; M] {
    let steps = columns[0].len();
    let mut all = rows.iter().chain(&columns);
    assert!(all.all(|lanes| lanes.len() == steps));
    let mut sums = [[simd.splat_f32s(0.0); C]; M];
    // The columns behind these, asked for in the order of memory.
    let next = columns[0].as_ptr().wrapping_add(C * steps);
    #[expect(
        unsafe_code,
        reason = "a check of each index costs as much as the sums"
    )]
    for step in 0..steps {
        for number in 0..C {
            prefetch(next.wrapping_add(step * C + number));
        }
        // SAFETY: all have `steps` registers, as was asserted.
        let weights: [_; C] = std::array::from_fn(
            #[inline(always)]
            |column| unsafe { *columns[column].get_unchecked(step) },
        );
        // A number of a row is needed once, those of the columns for every row: so all sums stay in registers.
        for (sums, row) in sums.iter_mut().zip(&rows) {
            // SAFETY: as above.
            let x = unsafe { *row.get_unchecked(step) };
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = simd.mul_add_e_f32s(x, weight, *sum);
            }
        }
    }
    // A copy: what is read in a loop must not keep the sums above from registers.
    let mut lanes = [[simd.splat_f32s(0.0); 4]; M];
    for (lanes, sums) in lanes.iter_mut().zip(&sums) {
        for (lanes, sum) in lanes.iter_mut().zip(sums) {
            *lanes = *sum;
        }
    }
    lanes
}

impl Sums<'_> {
    /// Those of the first `M` rows with `C` columns. The order of each sum depends neither on `M` nor on `C`.
    #[inline(always)]
    fn take<S: Simd, const C: usize, const M: usize>(
        self,
        simd: S,
        rows: &[f32],
        columns: [&[f32]; C],
    ) {
        let inner = columns[0].len();
        let rows: [_; M] = std::array::from_fn(
            #[inline(always)]
            |row| S::as_simd_f32s(&rows[row * inner..][..inner]),
        );
        let columns = columns.map(
            #[inline(always)]
            |column| S::as_simd_f32s(column),
        );
        let lanes = side_by_side(simd, rows.map(|x| x.0), columns.map(|x| x.0));
        for row in 0..M {
            let whole = lane_sums(simd, lanes[row]);
            for column in 0..C {
                let pairs = rows[row].1.iter().zip(columns[column].1);
                let rest: f32 = pairs.map(|(x, weight)| x * weight).sum();
                self.of[column * self.count + row] = whole[column] + rest;
            }
        }
    }
}

#[cfg(test)]
mod tests;
