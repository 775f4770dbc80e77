//! Blocks of a product, 32 rows by 32 columns, and their places.
#![expect(unsafe_code, reason = "blocks are written by pointers")]
use std::arch::x86_64::{_mm512_cvtne2ps_pbh, _mm512_loadu_ps};
use std::mem::{MaybeUninit, transmute};

use burn::tensor::bf16;

use super::line::{Line, SIDE, STEP};
use super::permission::{By, Tiles};
use super::{amx, vectors};

/// How this thread multiplies panels, ready for it.
pub(super) enum SetUp {
    Amx(amx::SetUp),
    Vectors,
}

impl SetUp {
    pub(super) fn new(tiles: Tiles) -> Self {
        match tiles.by() {
            By::Amx(amx) => Self::Amx(amx::SetUp::new(amx)),
            By::Vectors => Self::Vectors,
        }
    }

    /// A block of a matrix whose rows stand `apart` elements from each other.
    ///
    /// # Safety
    /// All of the block is there to be written, and to be read with `is_sum`.
    #[inline]
    unsafe fn multiply(&self, panels: [&[Line]; 2], to: *mut f32, apart: usize, is_sum: bool) {
        let [left, right] = panels;
        let steps = left.len() / STEP;
        assert!(
            steps > 0 && left.len() == steps * STEP && right.len() == left.len(),
            "panels of other lengths"
        );
        // SAFETY: both panels are as long as said; who has tiles has the vectors; the caller answers for the block.
        unsafe {
            match self {
                Self::Amx(amx) => amx.multiply(panels, steps, to, apart, is_sum),
                Self::Vectors => vectors::multiply(panels, steps, to, apart, is_sum),
            }
        }
    }
}

/// The place of a product, row after row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    start: Start,
    rows: usize,
    columns: usize,
}

/// The first element, in its type.
#[derive(Debug, Clone, Copy)]
enum Start {
    F32(*mut f32),
    /// Each element is rounded.
    Bf16(*mut bf16),
}

/// The elements of a block.
type Whole = [[MaybeUninit<f32>; SIDE]; SIDE];

// SAFETY: whoever writes through it answers for who else does.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Of a matrix of so many rows and columns.
    pub(crate) fn of_f32(start: *mut f32, [rows, columns]: [usize; 2]) -> Self {
        Self {
            start: Start::F32(start),
            rows,
            columns,
        }
    }

    /// The same of a matrix that is held in bf16.
    pub(crate) fn of_bf16(start: *mut bf16, [rows, columns]: [usize; 2]) -> Self {
        Self {
            start: Start::Bf16(start),
            rows,
            columns,
        }
    }

    /// Writes the product of two panels, or adds it to what is there: the block whose first element is in this row and column, as far
    /// as it is within the matrix.
    ///
    /// # Safety
    /// The memory is that of such a matrix, and nobody else reads or writes the block meanwhile; with `is_sum` it has been written.
    pub(super) unsafe fn add(
        &self,
        set_up: &SetUp,
        [row, column]: [usize; 2],
        panels: [&[Line]; 2],
        is_sum: bool,
    ) {
        assert!(
            row < self.rows && column < self.columns,
            "a block elsewhere"
        );
        let rows = SIDE.min(self.rows - row);
        let width = SIDE.min(self.columns - column);
        let first = row * self.columns + column;
        // SAFETY: the element is within the matrix, and so are these parts of rows; the caller answers for the rest.
        unsafe {
            match self.start {
                Start::F32(start) => {
                    let start = start.add(first);
                    self.add_sums(set_up, start, [rows, width], panels, is_sum);
                }
                Start::Bf16(start) => {
                    assert!(!is_sum, "a sum of what is rounded");
                    let start = start.add(first);
                    self.write_rounded(set_up, start, [rows, width], panels);
                }
            }
        }
    }

    /// See [`Self::add`]: the block from `start` on.
    ///
    /// # Safety
    /// So many rows of this width are within the matrix; see there.
    unsafe fn add_sums(
        &self,
        set_up: &SetUp,
        start: *mut f32,
        [rows, width]: [usize; 2],
        panels: [&[Line]; 2],
        is_sum: bool,
    ) {
        if [rows, width] == [SIDE; 2] {
            // SAFETY: the whole block is within the matrix.
            unsafe { set_up.multiply(panels, start, self.columns, is_sum) };
            return;
        }
        let mut whole: Whole = [[MaybeUninit::new(0.0); SIDE]; SIDE];
        // SAFETY: these parts of rows are within the matrix, whose place the caller answers for.
        let part = |row| unsafe { start.add(row * self.columns).cast::<MaybeUninit<f32>>() };
        if is_sum {
            for (row, whole) in whole[..rows].iter_mut().enumerate() {
                // SAFETY: as above.
                unsafe {
                    whole
                        .as_mut_ptr()
                        .copy_from_nonoverlapping(part(row), width)
                };
            }
        }
        // SAFETY: the block is all there, and ours.
        unsafe { set_up.multiply(panels, whole.as_mut_ptr().cast(), SIDE, is_sum) };
        for (row, whole) in whole[..rows].iter().enumerate() {
            // SAFETY: as above.
            unsafe { part(row).copy_from_nonoverlapping(whole.as_ptr(), width) };
        }
    }

    /// The same of a block that is rounded.
    ///
    /// # Safety
    /// See [`Self::add_sums`].
    unsafe fn write_rounded(
        &self,
        set_up: &SetUp,
        start: *mut bf16,
        [rows, width]: [usize; 2],
        panels: [&[Line]; 2],
    ) {
        let mut whole: Whole = [[MaybeUninit::uninit(); SIDE]; SIDE];
        // SAFETY: the block is all there, and ours; who has tiles has the vectors of a row; its first numbers are within the matrix.
        unsafe {
            set_up.multiply(panels, whole.as_mut_ptr().cast(), SIDE, false);
            for (row, whole) in whole[..rows].iter().enumerate() {
                let to = start.add(row * self.columns);
                match width {
                    SIDE => to.cast::<[bf16; SIDE]>().write_unaligned(rounded(whole)),
                    _ => to.copy_from_nonoverlapping(rounded(whole).as_ptr(), width),
                }
            }
        }
    }
}

/// A row of a block in bf16.
///
/// # Safety
/// All of it was written.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn rounded(row: &[MaybeUninit<f32>; SIDE]) -> [bf16; SIDE] {
    let start = row.as_ptr().cast::<f32>();
    // SAFETY: a row has two vectors of numbers; every pattern of 64 bytes is 32 numbers in bf16.
    unsafe {
        let first = _mm512_loadu_ps(start);
        let second = _mm512_loadu_ps(start.add(SIDE / 2));
        transmute(_mm512_cvtne2ps_pbh(second, first))
    }
}
