//! Blocks of a product: 32 rows by 32 columns, the sums of four tiles.
#![expect(unsafe_code, reason = "tiles are reached by assembly alone")]
use std::arch::asm;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

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
    start: *mut f32,
    rows: usize,
    columns: usize,
}

// SAFETY: whoever writes through it answers for who else does.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Of a matrix of so many rows and columns.
    pub(crate) fn new(start: *mut f32, [rows, columns]: [usize; 2]) -> Self {
        Self {
            start,
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
        // SAFETY: the element is within the matrix.
        let start = unsafe { self.start.add(row * self.columns + column) };
        if [rows, width] == [SIDE; 2] {
            // SAFETY: the whole block is within the matrix.
            unsafe { multiply(set_up, panels, start, self.columns, is_sum) };
            return;
        }
        let mut whole = [[MaybeUninit::new(0.0_f32); SIDE]; SIDE];
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
