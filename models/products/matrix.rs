//! Matrices as they lie in memory.
use burn::tensor::bf16;

use super::turned::turn;
use crate::fresh::written;

/// Rows of a product for which laying out its right factor by rows pays.
const WORTH_TURNING: usize = 128;
/// Numbers that the processor's caches hold, beside the rest of a product.
const CACHED: usize = 1 << 22;

/// A matrix wherever its numbers stand.
#[derive(Clone, Copy)]
pub(super) struct Matrix<V> {
    pub(super) values: V,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// How far a row stands behind the one before.
    pub(super) row_stride: usize,
    /// How far a column stands behind the one before.
    pub(super) column_stride: usize,
}

/// Numbers of a matrix, in the type that they are held in.
#[derive(Clone, Copy)]
pub enum Numbers<'a> {
    /// As they are.
    F32(&'a [f32]),
    /// Rounded.
    Bf16(&'a [bf16]),
}

/// A matrix in whatever type it is held.
pub(super) type Factor<'a> = Matrix<Numbers<'a>>;

impl<'a> Numbers<'a> {
    fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// From one of them on.
    pub(super) fn from(self, start: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[start..]),
            Self::Bf16(values) => Self::Bf16(&values[start..]),
        }
    }

    /// As what they are, where they are f32.
    pub(super) fn f32(self) -> Option<&'a [f32]> {
        match self {
            Self::F32(values) => Some(values),
            Self::Bf16(_) => None,
        }
    }
}

impl<'a> From<&'a [f32]> for Numbers<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a [bf16]> for Numbers<'a> {
    fn from(values: &'a [bf16]) -> Self {
        Self::Bf16(values)
    }
}

impl<V> Matrix<V> {
    /// The same matrix with its numbers said otherwise.
    pub(super) fn with<W>(self, values: W) -> Matrix<W> {
        let Self {
            rows,
            columns,
            row_stride,
            column_stride,
            ..
        } = self;
        Matrix {
            values,
            rows,
            columns,
            row_stride,
            column_stride,
        }
    }
}

impl<'a> Factor<'a> {
    /// One row after the other.
    ///
    /// # Panics
    /// There are not as many numbers.
    pub(super) fn by_rows(values: impl Into<Numbers<'a>>, rows: usize, columns: usize) -> Self {
        let values = values.into();
        assert_eq!(values.len(), rows * columns, "numbers of another matrix");
        Self {
            values,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    pub(super) fn transposed(self) -> Self {
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

    /// Whether none of it lies behind the end of its numbers.
    pub(super) fn fits(&self) -> bool {
        let [rows, columns] = [self.rows, self.columns].map(|count| count.saturating_sub(1));
        rows * self.row_stride + columns * self.column_stride < self.values.len()
    }
}

impl Matrix<&[f32]> {
    /// The numbers of a matrix that lies by columns, row after row.
    pub(super) fn turned(self) -> Vec<f32> {
        written(self.rows * self.columns, |to| {
            turn(self.values, self.column_stride, self.columns, to);
        })
    }
}
