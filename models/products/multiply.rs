//! One matrix times another.
use std::mem::MaybeUninit;

use burn::tensor::bf16;
use gemm::Parallelism;

use super::matrix::{Factor, Numbers};
use super::precision::Precision;
use super::tiles::{self, Output, Tiles};
use crate::rounding::widen;

/// Where a product goes, row after row.
pub(super) enum To<'a> {
    /// It is written here.
    Fresh(&'a mut [MaybeUninit<f32>]),
    /// It is added to what is here.
    Sum(&'a mut [f32]),
    /// It is written here, each element rounded once it is added up. Tiles alone do so.
    Rounded(&'a mut [MaybeUninit<bf16>]),
}

impl To<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Fresh(to) => to.len(),
            Self::Sum(to) => to.len(),
            Self::Rounded(to) => to.len(),
        }
    }
}

/// How a product is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Whether all threads may share it.
    pub(super) is_shared: bool,
    pub(super) precision: Precision,
}

impl How {
    /// By all threads, with the precision of this one.
    pub(super) fn shared() -> Self {
        Self {
            is_shared: true,
            precision: Precision::of_this_thread(),
        }
    }

    /// With the tiles that take less time for a product of these rows, numbers along the sum and columns, where there are some.
    pub(super) fn tiles(self, sizes: [usize; 3]) -> Option<Tiles> {
        let is_rounded = self.precision == Precision::Bf16 && tiles::pay(sizes);
        is_rounded.then(Tiles::here).flatten()
    }
}

/// Rows, numbers along the sum and columns.
pub(super) fn sizes([lhs, rhs]: [&Factor; 2]) -> [usize; 3] {
    [lhs.rows, lhs.columns, rhs.columns]
}

/// `lhs · rhs`, of factors that are not empty. Those that are not in f32 are for tiles.
///
/// # Panics
/// Sizes do not go together, or it is for tiles and [`How::tiles`] gives none.
pub(super) fn multiply(lhs: Factor, rhs: Factor, to: To, how: How) {
    assert_eq!(lhs.columns, rhs.rows, "factors that do not go together");
    assert!(
        to.len() == lhs.rows * rhs.columns && lhs.fits() && rhs.fits(),
        "a matrix lies behind the end of its numbers"
    );
    let is_sum = matches!(to, To::Sum(_));
    if let Some(tiles) = how.tiles(sizes([&lhs, &rhs])) {
        let sides = [lhs.rows, rhs.columns];
        let output = match to {
            To::Fresh(to) => Output::of_f32(to.as_mut_ptr().cast(), sides),
            To::Sum(to) => Output::of_f32(to.as_mut_ptr(), sides),
            To::Rounded(to) => Output::of_bf16(to.as_mut_ptr().cast(), sides),
        };
        #[expect(unsafe_code, reason = "the product takes a pointer")]
        // SAFETY: the length was just compared with the sizes; `to` is borrowed alone, and is read only where it is a sum.
        unsafe {
            tiles::multiply(tiles, [lhs, rhs], output, is_sum, how.is_shared);
        }
        return;
    }
    let to = match to {
        To::Fresh(to) => to.as_mut_ptr().cast::<f32>(),
        To::Sum(to) => to.as_mut_ptr(),
        To::Rounded(_) => panic!("no tiles for a rounded product"),
    };
    let (Numbers::F32(left), Numbers::F32(right)) = (lhs.values, rhs.values) else {
        panic!("no tiles for a factor in bf16");
    };
    #[expect(unsafe_code, reason = "the product takes pointers")]
    // SAFETY: the three lengths were compared with the sizes and strides; `to` is borrowed alone, and is read only where it is a sum.
    unsafe {
        gemm::gemm(
            lhs.rows,
            rhs.columns,
            lhs.columns,
            to,
            1,
            rhs.columns as isize,
            is_sum,
            left.as_ptr(),
            lhs.column_stride as isize,
            lhs.row_stride as isize,
            right.as_ptr(),
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

/// `sum += lhsᵀ · rhs`, in place, with all threads. The right factor is in f32, or in bf16.
///
/// # Shapes
/// - lhs: `[rows, inner]`
/// - rhs: `[rows, columns]`
/// - sum: `[inner, columns]`
///
/// # Panics
/// Lengths do not go together.
pub fn add_product<'a>(
    sum: &mut [f32],
    lhs: &[f32],
    rhs: impl Into<Numbers<'a>>,
    [rows, columns]: [usize; 2],
) {
    let inner = sum.len() / columns;
    let lhs = Factor::by_rows(lhs, rows, inner).transposed();
    let rhs = Factor::by_rows(rhs, rows, columns);
    let how = How::shared();
    match rhs.values {
        Numbers::Bf16(values) if how.tiles(sizes([&lhs, &rhs])).is_none() => {
            let mut wide = vec![0.0; values.len()];
            widen(values, &mut wide);
            multiply(lhs, rhs.with(Numbers::F32(&wide)), To::Sum(sum), how);
        }
        _ => multiply(lhs, rhs, To::Sum(sum), how),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_added_to_what_is_there() {
        // Of two rows, width 2 and 3.
        let (lhs, rhs) = ([1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 2.0, 0.0, 1.0, 1.0]);
        let expected = [101.0, 103.0, 105.0, 102.0, 104.0, 108.0];
        let mut sum = vec![100.0; 6];
        add_product(&mut sum, &lhs, &rhs[..], [2, 3]);
        assert_eq!(sum, expected);
        let (mut sum, narrow) = (vec![100.0; 6], rhs.map(bf16::from_f32));
        add_product(&mut sum, &lhs, &narrow[..], [2, 3]);
        assert_eq!(sum, expected);
    }

    #[test]
    #[should_panic(expected = "numbers of another matrix")]
    fn numbers_of_another_matrix_are_refused() {
        add_product(&mut [0.0; 6], &[1.0; 5], &[1.0_f32; 6][..], [2, 3]);
    }
}
