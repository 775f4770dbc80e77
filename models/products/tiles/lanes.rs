//! Factors laid out as tiles read them, each number that is not in bf16 yet rounded to it.
#![expect(
    clippy::needless_range_loop,
    reason = "loops are written out, as `lay_out` says"
)]
use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::Range;

use burn::tensor::bf16;

use super::line::{Line, SIDE, STEP, TILE_ROWS};
use super::permission::Tiles;
use crate::products::matrix::{Factor, Matrix, Numbers};

/// Numbers of a vector.
const WIDTH: usize = 16;

/// What a line of a tile is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// A lane: pairs along the sum. So the left factor's are.
    Lanes,
    /// A pair along the sum, of each of 16 lanes. So the right factor's are.
    Pairs,
}

/// The lanes of a factor.
#[derive(Clone, Copy)]
pub(super) struct Lanes<'a> {
    /// A row for each lane, along the sum.
    of: Factor<'a>,
    lines: Lines,
}

impl<'a> Lanes<'a> {
    /// # Panics
    /// The matrix lies behind the end of its numbers.
    pub(super) fn of_left(of: Factor<'a>) -> Self {
        Self::new(of, Lines::Lanes)
    }

    /// # Panics
    /// The matrix lies behind the end of its numbers.
    pub(super) fn of_right(of: Factor<'a>) -> Self {
        Self::new(of.transposed(), Lines::Pairs)
    }

    fn new(of: Factor<'a>, lines: Lines) -> Self {
        assert!(of.fits(), "a matrix lies behind the end of its numbers");
        Self { of, lines }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.of.rows
    }

    /// Lays out these lanes, with these of their numbers along the sum: one panel after the other in `room`. What a last panel or a
    /// last step lacks is 0.
    pub(super) fn lay_out(
        &self,
        _: Tiles,
        lanes: Range<usize>,
        sum: Range<usize>,
        room: &mut [Line],
    ) {
        #[expect(unsafe_code, reason = "vectors are of this processor")]
        // SAFETY: who has tiles has these vectors.
        unsafe {
            match self.of.values {
                Numbers::F32(values) => {
                    let part = some(self.of.with(values), lanes, sum);
                    lay_out(part, self.lines, room);
                }
                Numbers::Bf16(values) => {
                    let part = some(self.of.with(values), lanes, sum);
                    lay_out(part, self.lines, room);
                }
            }
        }
    }
}

/// See [`Lanes::lay_out`]. Tiles are laid out in the order in which their numbers lie in memory: where lanes lie along the sum all of a
/// panel, else a step of all panels.
///
/// Here and below loops are written out: a closure has this function's instructions, and what takes it, such as `map`, has not, so that
/// neither would be compiled into the other.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn lay_out<N: Number>(of: Matrix<&[N]>, lines: Lines, room: &mut [Line]) {
    let panels = of.rows.div_ceil(SIDE);
    let panel = room.len() / panels;
    let steps = panel / STEP;
    let (outer, inner) = match of.column_stride {
        1 => (panels, steps),
        _ => (steps, panels),
    };
    for outer in 0..outer {
        for inner in 0..inner {
            let (at, step) = match of.column_stride {
                1 => (outer, inner),
                _ => (inner, outer),
            };
            for half in 0..SIDE / TILE_ROWS {
                let lanes = part(at * SIDE + half * TILE_ROWS, TILE_ROWS, of.rows);
                let sum = part(step * SIDE, SIDE, of.columns);
                let first = at * panel + step * STEP + half * TILE_ROWS;
                let to = &mut room[first..first + TILE_ROWS];
                lay_out_tile(some(of, lanes, sum), lines, to);
            }
        }
    }
}

/// These lanes, and these of their numbers.
#[inline]
fn some<N>(of: Matrix<&[N]>, lanes: Range<usize>, sum: Range<usize>) -> Matrix<&[N]> {
    let first = match lanes.is_empty() || sum.is_empty() {
        true => 0,
        false => lanes.start * of.row_stride + sum.start * of.column_stride,
    };
    Matrix {
        values: &of.values[first..],
        rows: lanes.len(),
        columns: sum.len(),
        ..of
    }
}

/// So many from `start` on, of what ends at `end`.
#[inline]
fn part(start: usize, count: usize, end: usize) -> Range<usize> {
    start.min(end)..(start + count).min(end)
}

/// At most 16 lanes with at most 32 numbers along the sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn lay_out_tile<N: Number>(of: Matrix<&[N]>, lines: Lines, to: &mut [Line]) {
    assert_eq!(to.len(), TILE_ROWS);
    let is_whole = of.rows == TILE_ROWS && of.columns == SIDE;
    if is_whole && of.column_stride == 1 {
        by_lanes(of, lines, to);
    } else if is_whole && of.row_stride == 1 {
        by_pairs(of, lines, to);
    } else {
        let mut copy = [N::default(); TILE_ROWS * SIDE];
        for lane in 0..of.rows {
            for at in 0..of.columns {
                copy[lane * SIDE + at] = of.values[lane * of.row_stride + at * of.column_stride];
            }
        }
        let whole = Matrix {
            values: &copy[..],
            rows: TILE_ROWS,
            columns: SIDE,
            row_stride: SIDE,
            column_stride: 1,
        };
        by_lanes(whole, lines, to);
    }
}

/// 16 lanes with 32 numbers each, which stand beside each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn by_lanes<N: Number>(of: Matrix<&[N]>, lines: Lines, to: &mut [Line]) {
    for lane in 0..TILE_ROWS {
        let values = &of.values[lane * of.row_stride..][..SIDE];
        to[lane].set(halves(values, &values[WIDTH..]));
    }
    if lines == Lines::Pairs {
        turn(to);
    }
}

/// 16 lanes with 32 numbers each: those of all lanes at a place stand beside each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn by_pairs<N: Number>(of: Matrix<&[N]>, lines: Lines, to: &mut [Line]) {
    for pair in 0..TILE_ROWS {
        let even = &of.values[2 * pair * of.column_stride..];
        let odd = &even[of.column_stride..];
        to[pair].set(paired(halves(even, odd)));
    }
    if lines == Lines::Lanes {
        turn(to);
    }
}

/// A type that factors are held in.
trait Number: Copy + Default {
    /// 16 numbers, then 16 others, all in bf16.
    ///
    /// # Safety
    /// So many are there, and the processor has these vectors.
    #[expect(unsafe_code, reason = "vectors are loaded by pointers")]
    unsafe fn halves(first: *const Self, second: *const Self) -> __m512i;
}

#[expect(unsafe_code, reason = "vectors are loaded by pointers")]
impl Number for f32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn halves(first: *const Self, second: *const Self) -> __m512i {
        // SAFETY: the caller answers for it.
        unsafe { rounded(_mm512_loadu_ps(first), _mm512_loadu_ps(second)) }
    }
}

#[expect(unsafe_code, reason = "vectors are loaded by pointers")]
impl Number for bf16 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn halves(first: *const Self, second: *const Self) -> __m512i {
        // SAFETY: the caller answers for it.
        unsafe {
            let half = _mm512_castsi256_si512(_mm256_loadu_si256(first.cast()));
            _mm512_inserti64x4::<1>(half, _mm256_loadu_si256(second.cast()))
        }
    }
}

/// The first 16 of both, in bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn halves<N: Number>(first: &[N], second: &[N]) -> __m512i {
    assert!(first.len() >= WIDTH && second.len() >= WIDTH);
    #[expect(unsafe_code, reason = "vectors are loaded by pointers")]
    // SAFETY: so many are there, and this function is for such processors.
    unsafe {
        N::halves(first.as_ptr(), second.as_ptr())
    }
}

/// All in bf16, `first` before `second`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn rounded(first: __m512, second: __m512) -> __m512i {
    let both = _mm512_cvtne2ps_pbh(second, first);
    #[expect(
        unsafe_code,
        reason = "there is no cast between these types of vectors"
    )]
    // SAFETY: both are 64 bytes of which every pattern is a value.
    unsafe {
        transmute::<__m512bh, __m512i>(both)
    }
}

/// The first half and the second one, number by number in turn.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn paired(halves: __m512i) -> __m512i {
    #[rustfmt::skip]
    let order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
        23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0,
    );
    _mm512_permutexvar_epi16(order, halves)
}

/// Pairs of column `n` of all lines in line `n`.
#[inline]
#[target_feature(enable = "avx512f")]
fn turn(lines: &mut [Line]) {
    let mut pairs = [_mm512_setzero_si512(); TILE_ROWS];
    for at in (0..TILE_ROWS).step_by(2) {
        let (even, odd) = (lines[at].get(), lines[at + 1].get());
        pairs[at] = _mm512_unpacklo_epi32(even, odd);
        pairs[at + 1] = _mm512_unpackhi_epi32(even, odd);
    }
    let mut fours = pairs;
    for at in (0..TILE_ROWS).step_by(4) {
        let (a, b, c, d) = (pairs[at], pairs[at + 1], pairs[at + 2], pairs[at + 3]);
        fours[at] = _mm512_unpacklo_epi64(a, c);
        fours[at + 1] = _mm512_unpackhi_epi64(a, c);
        fours[at + 2] = _mm512_unpacklo_epi64(b, d);
        fours[at + 3] = _mm512_unpackhi_epi64(b, d);
    }
    // Now each vector has, of four columns, four lines each.
    let mut whole = fours;
    for at in 0..4 {
        let (a, b, c, d) = (fours[at], fours[at + 4], fours[at + 8], fours[at + 12]);
        let (even, odd) = (
            _mm512_shuffle_i32x4::<0x88>(a, b),
            _mm512_shuffle_i32x4::<0xdd>(a, b),
        );
        let (later_even, later_odd) = (
            _mm512_shuffle_i32x4::<0x88>(c, d),
            _mm512_shuffle_i32x4::<0xdd>(c, d),
        );
        whole[at] = _mm512_shuffle_i32x4::<0x88>(even, later_even);
        whole[at + 4] = _mm512_shuffle_i32x4::<0x88>(odd, later_odd);
        whole[at + 8] = _mm512_shuffle_i32x4::<0xdd>(even, later_even);
        whole[at + 12] = _mm512_shuffle_i32x4::<0xdd>(odd, later_odd);
    }
    for at in 0..TILE_ROWS {
        lines[at].set(whole[at]);
    }
}

impl Line {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn set(&mut self, to: __m512i) {
        #[expect(unsafe_code, reason = "a vector is stored by a pointer")]
        // SAFETY: a line has the size and the place of a vector.
        unsafe {
            _mm512_store_si512(self.0.as_mut_ptr().cast(), to);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn get(&self) -> __m512i {
        #[expect(unsafe_code, reason = "a vector is loaded by a pointer")]
        // SAFETY: as above.
        unsafe {
            _mm512_load_si512(self.0.as_ptr().cast())
        }
    }
}
