//! Factors laid out as tiles read them, each number rounded to bf16.
#![expect(
    clippy::needless_range_loop,
    reason = "loops are written out, as `lay_out` says"
)]
use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::Range;

use super::line::{Line, SIDE, STEP, TILE_ROWS};
use super::permission::Tiles;
use crate::products::matrix::Matrix;

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
    of: Matrix<'a>,
    lines: Lines,
}

/// Vectors of the lines of a tile.
type Tile = [__m512i; TILE_ROWS];

impl<'a> Lanes<'a> {
    /// # Panics
    /// The matrix lies behind the end of its numbers.
    pub(super) fn of_left(of: Matrix<'a>) -> Self {
        Self::new(of, Lines::Lanes)
    }

    /// # Panics
    /// The matrix lies behind the end of its numbers.
    pub(super) fn of_right(of: Matrix<'a>) -> Self {
        Self::new(of.transposed(), Lines::Pairs)
    }

    fn new(of: Matrix<'a>, lines: Lines) -> Self {
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
        let part = some(self.of, lanes, sum);
        #[expect(unsafe_code, reason = "vectors are of this processor")]
        // SAFETY: who has tiles has these vectors.
        unsafe {
            lay_out(part, self.lines, room);
        }
    }
}

/// See [`Lanes::lay_out`]. All panels are laid out a step after the other, since a step of one lies beside that of the next where pairs lie
/// row by row.
///
/// Here and below loops are written out: a closure has this function's instructions, and what takes it, such as `map`, has not, so that
/// neither would be compiled into the other.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn lay_out(of: Matrix, lines: Lines, room: &mut [Line]) {
    let panels = of.rows.div_ceil(SIDE);
    let panel = room.len() / panels;
    for step in 0..panel / STEP {
        for at in 0..panels {
            for half in 0..SIDE / TILE_ROWS {
                let lanes = part(at * SIDE + half * TILE_ROWS, TILE_ROWS, of.rows);
                let sum = part(step * SIDE, SIDE, of.columns);
                let first = at * panel + step * STEP + half * TILE_ROWS;
                let to = &mut room[first..first + TILE_ROWS];
                store(tile(some(of, lanes, sum), lines), to);
            }
        }
    }
}

/// These lanes, and these of their numbers.
#[inline]
fn some<'a>(of: Matrix<'a>, lanes: Range<usize>, sum: Range<usize>) -> Matrix<'a> {
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

#[inline]
#[target_feature(enable = "avx512f")]
fn store(tile: Tile, to: &mut [Line]) {
    assert_eq!(to.len(), TILE_ROWS);
    for at in 0..TILE_ROWS {
        #[expect(unsafe_code, reason = "a vector is stored by a pointer")]
        // SAFETY: a line has the size and the place of a vector.
        unsafe {
            _mm512_store_si512(to[at].0.as_mut_ptr().cast(), tile[at]);
        }
    }
}

/// At most 16 lanes with at most 32 numbers along the sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn tile(of: Matrix, lines: Lines) -> Tile {
    let is_whole = of.rows == TILE_ROWS && of.columns == SIDE;
    if is_whole && of.column_stride == 1 {
        tile_by_lanes(of, lines)
    } else if is_whole && of.row_stride == 1 {
        tile_by_pairs(of, lines)
    } else {
        let mut copy = [0.0; TILE_ROWS * SIDE];
        for lane in 0..of.rows {
            for at in 0..of.columns {
                copy[lane * SIDE + at] = of.values[lane * of.row_stride + at * of.column_stride];
            }
        }
        tile_by_lanes(Matrix::by_rows(&copy, TILE_ROWS, SIDE), lines)
    }
}

/// 16 lanes with 32 numbers each, which stand beside each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn tile_by_lanes(of: Matrix, lines: Lines) -> Tile {
    let mut tile = [_mm512_setzero_si512(); TILE_ROWS];
    for lane in 0..TILE_ROWS {
        let values = &of.values[lane * of.row_stride..][..SIDE];
        tile[lane] = rounded(vector(values), vector(&values[WIDTH..]));
    }
    match lines {
        Lines::Lanes => tile,
        Lines::Pairs => turned(tile),
    }
}

/// 16 lanes with 32 numbers each: those of all lanes at a place stand beside each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn tile_by_pairs(of: Matrix, lines: Lines) -> Tile {
    let mut tile = [_mm512_setzero_si512(); TILE_ROWS];
    for pair in 0..TILE_ROWS {
        let even = &of.values[2 * pair * of.column_stride..];
        let odd = &even[of.column_stride..];
        tile[pair] = paired(rounded(vector(even), vector(odd)));
    }
    match lines {
        Lines::Lanes => turned(tile),
        Lines::Pairs => tile,
    }
}

/// The first 16.
#[inline]
#[target_feature(enable = "avx512f")]
fn vector(of: &[f32]) -> __m512 {
    assert!(of.len() >= WIDTH);
    #[expect(unsafe_code, reason = "a vector is loaded by a pointer")]
    // SAFETY: so many are there.
    unsafe {
        _mm512_loadu_ps(of.as_ptr())
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
fn turned(tile: Tile) -> Tile {
    let mut pairs = tile;
    for at in (0..TILE_ROWS).step_by(2) {
        let (even, odd) = (tile[at], tile[at + 1]);
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
    whole
}
