//! Blocks by the tiles of AMX: the sums of four tiles, which read two tiles of each factor.
#![expect(unsafe_code, reason = "tiles are reached by assembly alone")]
use std::arch::asm;
use std::marker::PhantomData;

use super::line::{Line, TILE_ROWS};
use super::permission::Amx;

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
    pub(super) fn new(_: Amx) -> Self {
        // SAFETY: the process may use tiles.
        unsafe { asm!("ldtilecfg [rip + {}]", sym SHAPES, options(nostack, readonly)) };
        Self(PhantomData)
    }

    /// A block of a matrix whose rows stand `apart` elements from each other.
    ///
    /// # Safety
    /// Both panels are of so many steps; all of the block is there to be written, and to be read with `is_sum`.
    #[inline]
    pub(super) unsafe fn multiply(
        &self,
        [left, right]: [&[Line]; 2],
        steps: usize,
        to: *mut f32,
        apart: usize,
        is_sum: bool,
    ) {
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
}

impl Drop for SetUp {
    fn drop(&mut self) {
        // SAFETY: the process may use tiles, and this thread no longer needs what is in them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
