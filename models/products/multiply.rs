//! One matrix times another.
use std::mem::MaybeUninit;

use gemm::Parallelism;

use super::matrix::Matrix;
use super::precision::Precision;
use super::tiles::{self, Output, Tiles};

/// Where a product goes, row after row.
pub(super) enum To<'a> {
    /// It is written here.
    Fresh(&'a mut [MaybeUninit<f32>]),
    /// It is added to what is here.
    Sum(&'a mut [f32]),
}

/// How a product is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Whether all threads may share it.
    pub(super) is_shared: bool,
    pub(super) precision: Precision,
}

impl How {
    /// With the tiles that take less time for this product, where there are some.
    pub(super) fn tiles(self, [lhs, rhs]: [Matrix; 2]) -> Option<Tiles> {
        let is_rounded = self.precision == Precision::Bf16 && tiles::pay(lhs, rhs);
        is_rounded.then(Tiles::here).flatten()
    }
}

/// `lhs · rhs`, of factors that are not empty.
pub(super) fn multiply(lhs: Matrix, rhs: Matrix, to: To, how: How) {
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
        if let Some(tiles) = how.tiles([lhs, rhs]) {
            let output = Output::new(to, [lhs.rows, rhs.columns]);
            return tiles::multiply(tiles, [lhs, rhs], output, is_sum, how.is_shared);
        }
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
            match how.is_shared {
                true => Parallelism::Rayon(0),
                false => Parallelism::None,
            },
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
    let how = How {
        is_shared: true,
        precision: Precision::of_this_thread(),
    };
    multiply(lhs, rhs, To::Sum(sum), how);
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
