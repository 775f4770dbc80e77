//! Blocks of a product: 32 rows by 32 columns, the sums of four tiles.
#![expect(unsafe_code, reason = "tiles are reached by assembly alone")]
use std::arch::asm;
use std::arch::x86_64::{_mm512_cvtne2ps_pbh, _mm512_loadu_ps};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, transmute};

use burn::tensor::bf16;

use super::line::{Line, SIDE, STEP, TILE_ROWS};
use super::permission::Tiles;

/// What the processor is told of its tiles: all eight have 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPES: Shapes = Shapes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// While it lives, the tiles of its thread have the shape that blocks are made with. The system saves them at each change of
/// threads until then.
pub(super) struct SetUp(PhantomData<*const ()>);

impl SetUp {
    pub(super) fn new(_: Tiles) -> Self {
        // SAFETY: the process may use tiles.
        unsafe { asm!("ldtilecfg [rip + {}]", sym SHAPES, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        // SAFETY: the process may use tiles, and this thread no longer needs what is in them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
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
            unsafe { multiply(set_up, panels, start, self.columns, is_sum) };
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
        unsafe { multiply(set_up, panels, whole.as_mut_ptr().cast(), SIDE, is_sum) };
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
            multiply(set_up, panels, whole.as_mut_ptr().cast(), SIDE, false);
            for (row, whole) in whole[..rows].iter().enumerate() {
                let narrow = rounded(whole);
                let to = start.add(row * self.columns);
                to.copy_from_nonoverlapping(narrow.as_ptr(), width);
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

/// A block of a matrix whose rows stand `apart` elements from each other.
///
/// # Safety
/// All of the block is there to be written, and to be read with `is_sum`.
#[inline]
unsafe fn multiply(
    _: &SetUp,
    [left, right]: [&[Line]; 2],
    to: *mut f32,
    apart: usize,
    is_sum: bool,
) {
    let steps = left.len() / STEP;
    assert!(
        steps > 0 && left.len() == steps * STEP && right.len() == left.len(),
        "panels of other lengths"
    );
    let row = apart * size_of::<f32>();
    let lower = to.wrapping_add(TILE_ROWS * apart);
    // SAFETY: both panels are as long as the loop reads; the caller answers for the block.
    unsafe {
        asm!(
            "test {is_sum:e}, {is_sum:e}",
            "jz 2f",
            "tileloadd tmm0, [{upper} + {row}*1]",
            "tileloadd tmm1, [{upper} + {row}*1 + 64]",
            "tileloadd tmm2, [{lower} + {row}*1]",
            "tileloadd tmm3, [{lower} + {row}*1 + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            // 32 numbers along the sum.
            ".p2align 5",
            "3:",
            "tileloadd tmm4, [{left} + {line}*1]",
            "tileloadd tmm6, [{right} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {line}*1 + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{left} + {line}*1 + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 2048",
            "add {right}, 2048",
            "dec {steps}",
            "jnz 3b",
            "tilestored [{upper} + {row}*1], tmm0",
            "tilestored [{upper} + {row}*1 + 64], tmm1",
            "tilestored [{lower} + {row}*1], tmm2",
            "tilestored [{lower} + {row}*1 + 64], tmm3",
            is_sum = in(reg) u32::from(is_sum),
            left = inout(reg) left.as_ptr() => _,
            right = inout(reg) right.as_ptr() => _,
            steps = inout(reg) steps => _,
            upper = in(reg) to,
            lower = in(reg) lower,
            row = in(reg) row,
            line = in(reg) size_of::<Line>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
