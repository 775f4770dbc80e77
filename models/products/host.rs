//! Matrix products in f32 on the CPU, by the crate that Burn multiplies with too.
//!
//! Burn's own call clears the memory of each result and copies it to another place before it multiplies, both in one thread; of a
//! product with a vocabulary that is half of the time.
use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;
use burn::prelude::*;
use burn::tensor::DType;
use gemm::Parallelism;
use rayon::prelude::*;

/// Multiplications of a matrix that are worth a second thread.
const WORTH_A_THREAD: usize = 1 << 23;
/// The same of all matrices, of which each thread then takes some.
const WORTH_SHARING: usize = 1 << 21;
/// Matrices that are enough for the threads of any machine to share.
const MANY: usize = 4;

/// `lhs · rhs` in f32. Nothing where they are in another type, lie backwards in memory, or do not go together.
///
/// # Shapes
/// - lhs: `[…, rows, inner]`
/// - rhs: `[…, inner, columns]`
/// - output: `[…, rows, columns]`
pub(super) fn product(lhs: &FlexTensor, rhs: &FlexTensor) -> Option<FlexTensor> {
    let factors = Factors::of(lhs, rhs)?;
    let [rows, inner, columns] = factors.sizes();
    let matrices: usize = factors.counts.iter().product();
    let (one, work) = (rows * columns, rows * columns * inner);
    if matrices * work == 0 {
        return None;
    }
    let mut values: Vec<f32> = Vec::with_capacity(matrices * one);
    let results = &mut values.spare_capacity_mut()[..matrices * one];
    let is_shared = matrices >= MANY || work < WORTH_A_THREAD;
    if is_shared && matrices > 1 && matrices * work >= WORTH_SHARING {
        let each = results.par_chunks_exact_mut(one).enumerate();
        each.for_each(|(at, to)| factors.multiply(at, to, Parallelism::None));
    } else {
        let parallelism = if work >= WORTH_A_THREAD {
            Parallelism::Rayon(0)
        } else {
            Parallelism::None
        };
        let each = results.chunks_exact_mut(one).enumerate();
        each.for_each(|(at, to)| factors.multiply(at, to, parallelism));
    }
    #[expect(
        unsafe_code,
        reason = "clearing what is written anyway takes as long as a product"
    )]
    // SAFETY: so many elements were allocated, and the products wrote each of them.
    unsafe {
        values.set_len(matrices * one);
    }
    let mut shape = factors.counts;
    shape.extend([rows, columns]);
    Some(FlexTensor::from_data(TensorData::new(values, shape)))
}

/// The factors of a product.
struct Factors<'a> {
    left: Matrices<'a>,
    right: Matrices<'a>,
    /// How many matrices there are in each of the first dimensions.
    counts: Vec<usize>,
}

impl<'a> Factors<'a> {
    fn of(lhs: &'a FlexTensor, rhs: &'a FlexTensor) -> Option<Self> {
        let (left, right) = (Matrices::of(lhs)?, Matrices::of(rhs)?);
        let counts = together(left.counts, right.counts)?;
        (left.columns == right.rows).then_some(Self {
            left,
            right,
            counts,
        })
    }

    /// Rows, columns of the left one, and columns.
    fn sizes(&self) -> [usize; 3] {
        [self.left.rows, self.left.columns, self.right.columns]
    }

    /// Writes the product of the matrices of one place.
    fn multiply(&self, at: usize, to: &mut [MaybeUninit<f32>], parallelism: Parallelism) {
        let Self { left, right, .. } = self;
        let [rows, inner, columns] = self.sizes();
        let [lhs, rhs] = [left, right].map(|of| &of.values[of.offset(at, &self.counts)..]);
        assert!(
            to.len() == rows * columns && left.fits(lhs) && right.fits(rhs),
            "a matrix lies behind the end of its tensor"
        );
        #[expect(unsafe_code, reason = "the product takes pointers")]
        // SAFETY: the three lengths were just compared with the sizes and strides; `to` is borrowed alone, and is not read.
        unsafe {
            gemm::gemm(
                rows,
                columns,
                inner,
                to.as_mut_ptr().cast::<f32>(),
                1,
                columns as isize,
                false,
                lhs.as_ptr(),
                left.column_stride as isize,
                left.row_stride as isize,
                rhs.as_ptr(),
                right.column_stride as isize,
                right.row_stride as isize,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}

/// The matrices of a tensor.
struct Matrices<'a> {
    values: &'a [f32],
    /// How many there are in each of the first dimensions.
    counts: &'a [usize],
    /// How far one stands behind the other there.
    strides: Vec<usize>,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrices<'a> {
    fn of(x: &'a FlexTensor) -> Option<Self> {
        let layout = x.layout();
        let [counts @ .., rows, columns] = &layout.shape()[..] else {
            return None;
        };
        let strides = layout.strides().iter().map(|&stride| stride.try_into());
        let mut strides: Vec<usize> = strides.collect::<Result<_, _>>().ok()?;
        let (column_stride, row_stride) = (strides.pop()?, strides.pop()?);
        (x.dtype() == DType::F32).then(|| Self {
            values: &x.storage::<f32>()[layout.start_offset()..],
            counts,
            strides,
            rows: *rows,
            columns: *columns,
            row_stride,
            column_stride,
        })
    }

    /// Where the matrix of a result stands whose matrices are `counts`; one matrix may be for all.
    fn offset(&self, mut at: usize, counts: &[usize]) -> usize {
        let mut offset = 0;
        for ((&count, &own), &stride) in counts.iter().zip(self.counts).zip(&self.strides).rev() {
            offset += if own == 1 { 0 } else { at % count * stride };
            at /= count;
        }
        offset
    }

    /// Whether one of them lies in `values` from the start on.
    fn fits(&self, values: &[f32]) -> bool {
        (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride < values.len()
    }
}

/// How many matrices a product has whose factors have so many.
fn together(left: &[usize], right: &[usize]) -> Option<Vec<usize>> {
    if left.len() != right.len() {
        return None;
    }
    let pairs = left.iter().zip(right);
    pairs
        .map(|(&left, &right)| match (left, right) {
            (left, right) if left == right || right == 1 => Some(left),
            (1, right) => Some(right),
            _ => None,
        })
        .collect()
}
