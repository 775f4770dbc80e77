//! One matrix times another.
use std::mem::MaybeUninit;

use gemm::Parallelism;

use super::turned::turn;

/// Rows of a product for which laying out its right factor by rows pays.
const WORTH_TURNING: usize = 128;
/// Numbers that the processor's caches hold, beside the rest of a product.
const CACHED: usize = 1 << 22;

/// A matrix wherever its numbers stand.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) values: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// How far a row stands behind the one before.
    pub(super) row_stride: usize,
    /// How far a column stands behind the one before.
    pub(super) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// One row after the other.
    ///
    /// # Panics
    /// There are not as many numbers.
    pub(super) fn by_rows(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "numbers of another matrix");
        Self {
            values,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Whether the product of so many rows with this matrix takes less time once it is laid out by rows: where it lies by columns, the
    /// product copies it number by number, and a narrow one in one thread.
    pub(super) fn is_worth_turning(self, rows: usize) -> bool {
        let lies_by_columns = self.row_stride == 1 && self.column_stride >= self.rows;
        let is_narrow = self.columns <= 2 * self.rows;
        lies_by_columns && is_narrow && rows >= WORTH_TURNING && self.rows * self.columns <= CACHED
    }

    /// The numbers of a matrix that lies by columns, row after row.
    pub(super) fn turned(self) -> Vec<f32> {
        written(self.rows * self.columns, |to| {
            turn(self.values, self.column_stride, self.columns, to);
        })
    }

    fn fits(&self) -> bool {
        let [rows, columns] = [self.rows, self.columns].map(|count| count.saturating_sub(1));
        rows * self.row_stride + columns * self.column_stride < self.values.len()
    }
}

/// So many numbers, all of which `write` writes.
pub(super) fn written(count: usize, write: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<f32> {
    let mut values = Vec::with_capacity(count);
    write(&mut values.spare_capacity_mut()[..count]);
    #[expect(
        unsafe_code,
        reason = "clearing what is written anyway takes as long as a product"
    )]
    // SAFETY: so many elements were allocated, and each of them was written.
    unsafe {
        values.set_len(count);
    }
    values
}

/// Where a product goes, row after row.
pub(super) enum To<'a> {
    /// It is written here.
    Fresh(&'a mut [MaybeUninit<f32>]),
    /// It is added to what is here.
    Sum(&'a mut [f32]),
}

/// `lhs · rhs`, of factors that are not empty.
pub(super) fn multiply(lhs: Matrix, rhs: Matrix, to: To, parallelism: Parallelism) {
    let (to, length, is_sum) = match to {
        To::Fresh(to) => (to.as_mut_ptr().cast::<f32>(), to.len(), false),
        To::Sum(to) => (to.as_mut_ptr(), to.len(), true),
    };
    assert_eq!(lhs.columns, rhs.rows, "factors that do not go together");
    assert!(
        length == lhs.rows * rhs.columns && lhs.fits() && rhs.fits(),
        "a matrix lies behind the end of its numbers"
    );
    #[expect(unsafe_code, reason = "the product takes pointers")]
    // SAFETY: the three lengths were just compared with the sizes and strides; `to` is borrowed alone, and is read only where it is a sum.
    unsafe {
        gemm::gemm(
            lhs.rows,
            rhs.columns,
            lhs.columns,
            to,
            1,
            rhs.columns as isize,
            is_sum,
            lhs.values.as_ptr(),
            lhs.column_stride as isize,
            lhs.row_stride as isize,
            rhs.values.as_ptr(),
            rhs.column_stride as isize,
            rhs.row_stride as isize,
            f32::from(is_sum),
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// `sum += lhsᵀ · rhs`, in place, with all threads.
///
/// # Shapes
/// - lhs: `[rows, inner]`
/// - rhs: `[rows, columns]`
/// - sum: `[inner, columns]`
///
/// # Panics
/// Lengths do not go together.
pub fn add_product(sum: &mut [f32], lhs: &[f32], rhs: &[f32], [rows, columns]: [usize; 2]) {
    let inner = sum.len() / columns;
    let lhs = Matrix::by_rows(lhs, rows, inner).transposed();
    let rhs = Matrix::by_rows(rhs, rows, columns);
    multiply(lhs, rhs, To::Sum(sum), Parallelism::Rayon(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_added_to_what_is_there() {
        // Of two rows, width 2 and 3.
        let mut sum = vec![100.0; 6];
        let (lhs, rhs) = ([1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 2.0, 0.0, 1.0, 1.0]);
        add_product(&mut sum, &lhs, &rhs, [2, 3]);
        assert_eq!(sum, [101.0, 103.0, 105.0, 102.0, 104.0, 108.0]);
    }

    #[test]
    #[should_panic(expected = "numbers of another matrix")]
    fn numbers_of_another_matrix_are_refused() {
        add_product(&mut [0.0; 6], &[1.0; 5], &[1.0; 6], [2, 3]);
    }
}
