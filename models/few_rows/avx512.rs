//! The sums of a few rows with narrow columns in registers of sixteen numbers: each is widened on its way to the sums.
use std::arch::x86_64::{__m128i, __m256i, __m512};

use burn::tensor::bf16;
use pulp::bytemuck::cast;
use pulp::x86::V4;
use pulp::{Simd, WithSimd};

use super::lane_sums::lane_sums;
use super::narrow::Narrow;
use super::prefetch::prefetch;

/// Elements of a register.
pub(super) const LANES: usize = 16;

/// Sums of up to six rows with whole columns, in the order in which wide columns are added up.
pub(super) struct Sums<'a> {
    /// `[count, inner]`
    pub(super) rows: &'a [f32],
    pub(super) columns: Narrow<'a>,
    pub(super) inner: usize,
    /// `[width, count]`
    pub(super) sums: &'a mut [f32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Some(simd) = (&simd as &dyn std::any::Any).downcast_ref::<V4>() else {
            unreachable!("asked of another processor");
        };
        match self.rows.len() / self.inner {
            1 => self.of_rows::<1>(*simd),
            2 => self.of_rows::<2>(*simd),
            3 => self.of_rows::<3>(*simd),
            4 => self.of_rows::<4>(*simd),
            5 => self.of_rows::<5>(*simd),
            _ => self.of_rows::<6>(*simd),
        }
    }
}

impl Sums<'_> {
    #[inline(always)]
    fn of_rows<const M: usize>(self, simd: V4) {
        match self.columns {
            Narrow::Bf16(values) => {
                let (registers, _) = values.as_chunks::<LANES>();
                self.with::<M>(
                    simd,
                    #[inline(always)]
                    |at| widened_bf16(simd, registers[at]),
                    #[inline(always)]
                    |at| {
                        // Four registers are two lines of a cache.
                        prefetch(registers.as_ptr().wrapping_add(at));
                        prefetch(registers.as_ptr().wrapping_add(at + 2));
                    },
                );
            }
            Narrow::Int8(values, scales) => {
                let (registers, _) = values.as_chunks::<LANES>();
                self.with::<M>(
                    simd,
                    #[inline(always)]
                    |at| widened_int8(simd, registers[at], scales[at / 2]),
                    #[inline(always)]
                    |at| prefetch(registers.as_ptr().wrapping_add(at)),
                );
            }
        }
    }

    /// With columns of which `register` gives each register, and `ask` asks for four of them.
    #[inline(always)]
    fn with<const M: usize>(
        self,
        simd: V4,
        register: impl Fn(usize) -> __m512,
        ask: impl Fn(usize),
    ) {
        let steps = self.inner / LANES;
        let rows: [_; M] = std::array::from_fn(
            #[inline(always)]
            |row| {
                &self.rows[row * self.inner..][..self.inner]
                    .as_chunks::<LANES>()
                    .0[..steps]
            },
        );
        let none: __m512 = cast([0.0_f32; LANES]);
        for (four, sums) in self.sums.chunks_mut(4 * M).enumerate() {
            let first = 4 * four * steps;
            let lanes = if sums.len() == 4 * M {
                of_columns::<4, M>(simd, rows, (first, steps), &register, &ask)
            } else {
                let mut lanes = [[none; 4]; M];
                for column in 0..sums.len() / M {
                    let first = first + column * steps;
                    let one = of_columns::<1, M>(simd, rows, (first, steps), &register, &|_| ());
                    for (lanes, one) in lanes.iter_mut().zip(one) {
                        lanes[column] = one[0];
                    }
                }
                lanes
            };
            for (row, [a, b, c, d]) in lanes.into_iter().enumerate() {
                let whole = lane_sums(simd, [cast(a), cast(b), cast(c), cast(d)]);
                for (sums, whole) in sums.chunks_exact_mut(M).zip(whole) {
                    sums[row] = whole;
                }
            }
        }
    }
}

/// The lanes of the sums of rows with `C` columns, the first of which begins at the register `first`.
#[inline(always)]
fn of_columns<const C: usize, const M: usize>(
    simd: V4,
    rows: [&[[f32; LANES]]; M],
    (first, steps): (usize, usize),
    register: &impl Fn(usize) -> __m512,
    ask: &impl Fn(usize),
) -> [[__m512; 4]; M] {
    let none: __m512 = cast([0.0_f32; LANES]);
    let mut sums = [[none; C]; M];
    for step in 0..steps {
        // The columns behind these, in the order of memory.
        ask(first + C * (steps + step));
        let mut weights = [none; C];
        for (column, weight) in weights.iter_mut().enumerate() {
            *weight = register(first + column * steps + step);
        }
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let x: __m512 = cast(row[step]);
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = simd.avx512f._mm512_fmadd_ps(x, weight, *sum);
            }
        }
    }
    // A copy: what is read in a loop must not keep the sums above from registers.
    let mut lanes = [[none; 4]; M];
    for (lanes, sums) in lanes.iter_mut().zip(&sums) {
        for (lanes, sum) in lanes.iter_mut().zip(sums) {
            *lanes = *sum;
        }
    }
    lanes
}

#[inline(always)]
fn widened_bf16(simd: V4, values: [bf16; LANES]) -> __m512 {
    let values: __m256i = cast(values);
    let wide = simd.avx512f._mm512_cvtepu16_epi32(values);
    let bits = simd.avx512f._mm512_slli_epi32::<16>(wide);
    simd.avx512f._mm512_castsi512_ps(bits)
}

#[inline(always)]
fn widened_int8(simd: V4, values: [i8; LANES], scale: f32) -> __m512 {
    let values: __m128i = cast(values);
    let wide = simd.avx512f._mm512_cvtepi8_epi32(values);
    let wide = simd.avx512f._mm512_cvtepi32_ps(wide);
    simd.avx512f
        ._mm512_mul_ps(wide, simd.avx512f._mm512_set1_ps(scale))
}
