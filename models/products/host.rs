//! Matrix products in f32 on the CPU, by the crate that Burn multiplies with too.
//!
//! Burn's own call clears the memory of each result and copies it to another place before it multiplies, both in one thread; of a
//! product with a vocabulary that is half of the time.
use burn::backend::flex::FlexTensor;
use burn::prelude::*;
use burn::tensor::DType;
use rayon::prelude::*;

use super::matrix::{Matrix, written};
use super::multiply::{How, To, multiply};
use super::precision::Precision;

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
    let precision = Precision::of_this_thread();
    let [alone, together] = [false, true].map(|is_shared| How {
        is_shared,
        precision,
    });
    let values = written(matrices * one, |results| {
        let of_place = |(at, to)| {
            let [lhs, rhs] = factors.at(at);
            multiply(lhs, rhs, To::Fresh(to), alone);
        };
        let is_shared = matrices >= MANY || work < WORTH_A_THREAD;
        if is_shared && matrices > 1 && matrices * work >= WORTH_SHARING {
            let each = results.par_chunks_exact_mut(one).enumerate();
            each.for_each(of_place);
        } else if work < WORTH_A_THREAD {
            let each = results.chunks_exact_mut(one).enumerate();
            each.for_each(of_place);
        } else {
            // Tiles are laid out anew however it lies.
            let right = match together.tiles(factors.at(0)) {
                Some(_) => None,
                None => factors.right_by_rows(),
            };
            for (at, to) in results.chunks_exact_mut(one).enumerate() {
                let [lhs, rhs] = factors.at(at);
                let turned = right.as_deref();
                let rhs = turned.map_or(rhs, |values| Matrix::by_rows(values, inner, columns));
                multiply(lhs, rhs, To::Fresh(to), together);
            }
        }
    });
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
        (left.first.columns == right.first.rows).then_some(Self {
            left,
            right,
            counts,
        })
    }

    /// Rows, columns of the left one, and columns.
    fn sizes(&self) -> [usize; 3] {
        let (left, right) = (self.left.first, self.right.first);
        [left.rows, left.columns, right.columns]
    }

    /// Those of one place.
    fn at(&self, at: usize) -> [Matrix<'a>; 2] {
        [&self.left, &self.right].map(|of| of.at(at, &self.counts))
    }

    /// The numbers of the right one row after row, where that saves time.
    fn right_by_rows(&self) -> Option<Vec<f32>> {
        let Matrices { first, counts, .. } = &self.right;
        let is_one = counts.iter().all(|&count| count == 1);
        (is_one && first.is_worth_turning(self.left.first.rows)).then(|| first.turned())
    }
}

/// The matrices of a tensor.
struct Matrices<'a> {
    /// The first of them, with the numbers of all.
    first: Matrix<'a>,
    /// How many there are in each of the first dimensions.
    counts: &'a [usize],
    /// How far one stands behind the other there.
    strides: Vec<usize>,
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
            first: Matrix {
                values: &x.storage::<f32>()[layout.start_offset()..],
                rows: *rows,
                columns: *columns,
                row_stride,
                column_stride,
            },
            counts,
            strides,
        })
    }

    /// The matrix for that of a result whose matrices are `counts`; one matrix may be for all.
    fn at(&self, mut at: usize, counts: &[usize]) -> Matrix<'a> {
        let mut offset = 0;
        for ((&count, &own), &stride) in counts.iter().zip(self.counts).zip(&self.strides).rev() {
            offset += if own == 1 { 0 } else { at % count * stride };
            at /= count;
        }
        Matrix {
            values: &self.first.values[offset..],
            ..self.first
        }
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
