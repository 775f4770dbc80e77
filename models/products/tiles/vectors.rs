//! Blocks by vectors, on processors that multiply pairs of bf16 (AVX512-BF16) and have no tiles, as AMD's from Zen 4 on: what is laid
//! out for tiles is in the order of these vectors, too.
#![expect(
    unsafe_code,
    reason = "vectors are loaded and stored by pointers, and are of this processor"
)]
use std::arch::x86_64::*;
use std::mem::transmute;

use super::line::{Line, SIDE, STEP, TILE_ROWS};

/// Rows whose sums are held at a time: with two vectors each they take half of the registers, and hide how long a product takes.
const ROWS: usize = 8;

/// A block of a matrix whose rows stand `apart` elements from each other.
///
/// # Safety
/// The processor has these vectors; both panels are of so many steps; all of the block is there to be written, and to be read with
/// `is_sum`.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn multiply(
    [left, right]: [&[Line]; 2],
    steps: usize,
    to: *mut f32,
    apart: usize,
    is_sum: bool,
) {
    for row in (0..SIDE).step_by(ROWS) {
        // SAFETY: these lines and rows are among those that the caller answers for; a step has a line for each lane of the left panel.
        unsafe {
            let left = left.as_ptr().add(row);
            multiply_rows(
                left,
                right.as_ptr(),
                steps,
                to.add(row * apart),
                apart,
                is_sum,
            );
        }
    }
}

/// The rows of some lines of the left panel, and of those that stand a step behind them.
///
/// # Safety
/// See [`multiply`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply_rows(
    mut left: *const Line,
    mut right: *const Line,
    steps: usize,
    to: *mut f32,
    apart: usize,
    is_sum: bool,
) {
    // SAFETY: the caller answers for what is read and written.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        if is_sum {
            for (row, sums) in sums.iter_mut().enumerate() {
                let to = to.add(row * apart);
                *sums = [_mm512_loadu_ps(to), _mm512_loadu_ps(to.add(TILE_ROWS))];
            }
        }
        for _ in 0..steps {
            for pair in 0..TILE_ROWS {
                let columns = [line(right.add(pair)), line(right.add(TILE_ROWS + pair))];
                for (row, [first, second]) in sums.iter_mut().enumerate() {
                    let numbers = both(left.add(row), pair);
                    *first = _mm512_dpbf16_ps(*first, numbers, columns[0]);
                    *second = _mm512_dpbf16_ps(*second, numbers, columns[1]);
                }
            }
            left = left.add(STEP);
            right = right.add(STEP);
        }
        for (row, [first, second]) in sums.into_iter().enumerate() {
            let to = to.add(row * apart);
            _mm512_storeu_ps(to, first);
            _mm512_storeu_ps(to.add(TILE_ROWS), second);
        }
    }
}

/// All pairs of a line.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn line(from: *const Line) -> __m512bh {
    // SAFETY: the caller answers for it; a line has the size and the place of a vector, and every pattern is numbers.
    unsafe { transmute::<__m512i, __m512bh>(_mm512_load_si512(from.cast())) }
}

/// One pair of a line, as often as a vector has pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn both(from: *const Line, pair: usize) -> __m512bh {
    // SAFETY: as above.
    unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32((*from).0[pair].cast_signed())) }
}
