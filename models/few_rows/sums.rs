//! The sums of a few rows with columns: a register of a column is read, and widened, once for up to six rows.
use pulp::{Simd, WithSimd};

use super::lane_sums::lane_sums;
use super::prefetch::prefetch;

/// Rows whose sums are in registers at a time.
pub(super) const TOGETHER: usize = 6;
/// Bytes that a processor fetches at a time.
const LINE: usize = 64;

/// Columns of a matrix, one after the other in memory.
pub(super) trait Columns<'a, S: Simd>: Copy {
    /// One of them, in whole registers.
    type Column: Column<S>;

    /// A column of so many elements, and what of it does not fill a register.
    fn column(self, number: usize, inner: usize) -> (Self::Column, &'a [f32]);
}

/// A column as registers of numbers.
pub(super) trait Column<S: Simd>: Copy {
    /// What a register's numbers are in memory.
    type Stored;

    /// All of them.
    fn stored(&self) -> &[Self::Stored];

    /// The numbers of a register.
    ///
    /// # Safety
    /// It is one of those that are [`stored`](Self::stored).
    #[expect(
        unsafe_code,
        reason = "a check of each index costs as much as the sums"
    )]
    unsafe fn register(&self, simd: S, step: usize) -> S::f32s;
}

/// Columns in f32.
#[derive(Clone, Copy)]
pub(super) struct Wide<'a>(pub(super) &'a [f32]);

impl<'a, S: Simd> Columns<'a, S> for Wide<'a> {
    type Column = &'a [S::f32s];

    #[inline(always)]
    fn column(self, number: usize, inner: usize) -> (Self::Column, &'a [f32]) {
        S::as_simd_f32s(&self.0[number * inner..][..inner])
    }
}

impl<S: Simd> Column<S> for &[S::f32s] {
    type Stored = S::f32s;

    #[inline(always)]
    fn stored(&self) -> &[S::f32s] {
        self
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "as promised")]
    unsafe fn register(&self, _: S, step: usize) -> S::f32s {
        // SAFETY: the caller's.
        unsafe { *self.get_unchecked(step) }
    }
}

/// All rows with some columns.
pub(super) struct Sums<'a, C> {
    /// `[count, inner]`
    pub(super) rows: &'a [f32],
    /// `[width, inner]`
    pub(super) columns: C,
    pub(super) inner: usize,
    /// `[width, count]`
    pub(super) sums: &'a mut [f32],
}

impl WithSimd for Sums<'_, Wide<'_>> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.take(simd);
    }
}

impl<'c, C> Sums<'_, C> {
    /// Takes the sums, each in an order that depends neither on the rows and columns beside it nor on what these are stored as.
    #[inline(always)]
    pub(super) fn take<S: Simd>(mut self, simd: S)
    where
        C: Columns<'c, S>,
    {
        let count = self.rows.len() / self.inner;
        for row in (0..count).step_by(TOGETHER) {
            match count - row {
                1 => self.of_rows::<S, 1>(simd, row),
                2 => self.of_rows::<S, 2>(simd, row),
                3 => self.of_rows::<S, 3>(simd, row),
                4 => self.of_rows::<S, 4>(simd, row),
                5 => self.of_rows::<S, 5>(simd, row),
                _ => self.of_rows::<S, TOGETHER>(simd, row),
            }
        }
    }

    /// Those of the `M` rows from `row` on, as many columns at a time as there are registers for beside a number of each row and
    /// column: a sum waits for the one before it.
    #[inline(always)]
    fn of_rows<S: Simd, const M: usize>(&mut self, simd: S, row: usize)
    where
        C: Columns<'c, S>,
    {
        if S::REGISTER_COUNT >= 32 || M <= 3 {
            self.with_columns::<S, 4, M>(simd, row);
        } else {
            self.with_columns::<S, 2, M>(simd, row);
        }
    }

    /// Those with all columns, `N` at a time.
    #[inline(always)]
    fn with_columns<S: Simd, const N: usize, const M: usize>(&mut self, simd: S, row: usize)
    where
        C: Columns<'c, S>,
    {
        let count = self.rows.len() / self.inner;
        let width = self.sums.len() / count;
        let together = width - width % N;
        for first in (0..together).step_by(N) {
            self.of_some::<S, N, M>(simd, row, first);
        }
        for first in together..width {
            self.of_some::<S, 1, M>(simd, row, first);
        }
    }

    /// Those of the `M` rows from `row` on with the `N` columns from `first` on.
    #[inline(always)]
    fn of_some<S: Simd, const N: usize, const M: usize>(
        &mut self,
        simd: S,
        row: usize,
        first: usize,
    ) where
        C: Columns<'c, S>,
    {
        let inner = self.inner;
        let count = self.rows.len() / inner;
        let rows: [_; M] = std::array::from_fn(
            #[inline(always)]
            |number| S::as_simd_f32s(&self.rows[(row + number) * inner..][..inner]),
        );
        let columns: [_; N] = std::array::from_fn(
            #[inline(always)]
            |number| self.columns.column(first + number, inner),
        );
        let lanes = side_by_side(simd, rows.map(|x| x.0), columns.map(|column| column.0));
        for number in 0..M {
            let whole = lane_sums(simd, lanes[number]);
            for column in 0..N {
                let pairs = rows[number].1.iter().zip(columns[column].1);
                let rest: f32 = pairs.map(|(x, weight)| x * weight).sum();
                self.sums[(first + column) * count + row + number] = whole[column] + rest;
            }
        }
    }
}

/// Sums of rows with all columns at a time.
#[inline(always)]
fn side_by_side<S: Simd, C: Column<S>, const N: usize, const M: usize>(
    simd: S,
    rows: [&[S::f32s]; M],
    columns: [C; N],
) -> [[S::f32s; 4]; M] {
    let steps = columns[0].stored().len();
    assert!(rows.iter().all(|lanes| lanes.len() == steps));
    assert!(columns.iter().all(|column| column.stored().len() == steps));
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    // The columns behind these, asked for in the order of memory.
    let next = columns[0].stored().as_ptr().wrapping_add(N * steps);
    let line = const { LINE.div_ceil(size_of::<C::Stored>()) };
    #[expect(
        unsafe_code,
        reason = "a check of each index costs as much as the sums"
    )]
    for step in 0..steps {
        for number in (0..N).step_by(line) {
            prefetch(next.wrapping_add(step * N + number));
        }
        // SAFETY: all have `steps` registers, as was asserted.
        let weights: [_; N] = std::array::from_fn(
            #[inline(always)]
            |column| unsafe { columns[column].register(simd, step) },
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
