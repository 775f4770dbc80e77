//! Matrix products in f32 on the CPU, by the crate that Burn multiplies with too.
//!
//! Burn's own call clears the memory of each result and copies it to another place before it multiplies, both in one thread; of a
//! product with a vocabulary that is half of the time.
use burn::backend::flex::FlexTensor;
use burn::prelude::*;
use burn::tensor::{DType, bf16};
use rayon::prelude::*;

use super::matrix::{Factor, Numbers};
use super::multiply::{How, To, multiply, sizes};
use super::tiles;
use crate::fresh::written;

/// Multiplications of a matrix that are worth a second thread.
const WORTH_A_THREAD: usize = 1 << 23;
/// The same of all matrices, of which each thread then takes some.
const WORTH_SHARING: usize = 1 << 21;
/// Matrices that are enough for the threads of any machine to share.
const MANY: usize = 4;

/// `lhs · rhs` in f32, of factors in f32, or of one in f32 and one in bf16 which tiles take as it is. Nothing where they are others,
/// where one lies backwards in memory, or where they do not go together.
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
    let together = How::shared();
    let alone = How {
        is_shared: false,
        ..together
    };
    let by_tiles = are_by_tiles(factors.sizes());
    if matrices * work == 0 || !factors.are_taken(by_tiles) {
        return None;
    }
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
            let right = if by_tiles {
                None
            } else {
                factors.right_by_rows()
            };
            for (at, to) in results.chunks_exact_mut(one).enumerate() {
                let [lhs, rhs] = factors.at(at);
                let turned = right.as_deref();
                let rhs = turned.map_or(rhs, |values| Factor::by_rows(values, inner, columns));
                multiply(lhs, rhs, To::Fresh(to), together);
            }
        }
    });
    let mut shape = factors.counts;
    shape.extend([rows, columns]);
    Some(FlexTensor::from_data(TensorData::new(values, shape)))
}

/// `lhs · rhs` of one matrix each, in bf16: what is added up is in f32. Nothing where tiles do not take less time for it, or do not add it
/// up at once.
///
/// # Shapes
/// - lhs: `[rows, inner]`
/// - rhs: `[inner, columns]`
/// - output: `[rows, columns]`, bf16
pub(super) fn rounded_product(lhs: &FlexTensor, rhs: &FlexTensor) -> Option<FlexTensor> {
    let factors = Factors::of(lhs, rhs)?;
    let [rows, _, columns] = factors.sizes();
    if !rounds_products(factors.sizes()) || !factors.counts.is_empty() {
        return None;
    }
    let [lhs, rhs] = factors.at(0);
    let values: Vec<bf16> = written(rows * columns, |to| {
        multiply(lhs, rhs, To::Rounded(to), How::shared());
    });
    Some(FlexTensor::from_data(TensorData::new(
        values,
        [rows, columns],
    )))
}

/// Whether this thread rounds products of so many rows, numbers along the sum and columns to bf16, where they may be: the result takes
/// half of the memory, and less time to be written.
pub fn rounds_products(sizes: [usize; 3]) -> bool {
    tiles::may_round(sizes[1]) && are_by_tiles(sizes)
}

/// Whether this thread takes products of so many rows, numbers along the sum and columns by tiles.
pub(crate) fn are_by_tiles(sizes: [usize; 3]) -> bool {
    How::shared().tiles(sizes).is_some()
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
        sizes([&self.left.first, &self.right.first])
    }

    /// Whether their product is to be in f32, and is taken of them as they are.
    fn are_taken(&self, by_tiles: bool) -> bool {
        let in_f32 = [&self.left, &self.right].map(|of| of.first.values.f32().is_some());
        in_f32 == [true; 2] || by_tiles && in_f32 != [false; 2]
    }

    /// Those of one place.
    fn at(&self, at: usize) -> [Factor<'a>; 2] {
        [&self.left, &self.right].map(|of| of.at(at, &self.counts))
    }

    /// The numbers of the right one row after row, where that saves time.
    fn right_by_rows(&self) -> Option<Vec<f32>> {
        let Matrices { first, counts, .. } = &self.right;
        let is_one = counts.iter().all(|&count| count == 1);
        let values = first.values.f32()?;
        let is_worth_it = is_one && first.is_worth_turning(self.left.first.rows);
        is_worth_it.then(|| first.with(values).turned())
    }
}

/// The matrices of a tensor.
struct Matrices<'a> {
    /// The first of them, with the numbers of all.
    first: Factor<'a>,
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
        let values = match x.dtype() {
            DType::F32 => Numbers::F32(x.storage::<f32>()),
            DType::BF16 => Numbers::Bf16(x.storage::<bf16>()),
            _ => return None,
        };
        Some(Self {
            first: Factor {
                values: values.from(layout.start_offset()),
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
    fn at(&self, mut at: usize, counts: &[usize]) -> Factor<'a> {
        let mut offset = 0;
        for ((&count, &own), &stride) in counts.iter().zip(self.counts).zip(&self.strides).rev() {
            offset += if own == 1 { 0 } else { at % count * stride };
            at /= count;
        }
        self.first.with(self.first.values.from(offset))
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
