//! The sums of a few rows with narrow columns, each of which is widened in a register on its way to the sums.
//!
//! Here a closure that `std::array::from_fn` or `map` calls for each element would not be inlined, and be compiled for the oldest
//! processor: loops stand in their place.
use burn::tensor::bf16;
use pulp::bytemuck::{Pod, cast};
use pulp::x86::{V3, V4};
use pulp::{Simd, WithSimd};

use super::int8::BLOCK as INT8_BLOCK;
use super::lane_sums::lane_sums;
use super::narrow::Narrow;
use super::prefetch::prefetch;
use super::registers::four_fit;

/// Elements of a register of AVX-512.
const OF_AVX512: usize = 16;
/// Elements of a register of AVX2.
const OF_AVX2: usize = 8;
/// Bytes that a processor fetches at a time.
const LINE: usize = 64;

/// Registers of so many numbers that narrow ones are widened to.
pub(super) trait Widens<const LANES: usize>: Simd {
    fn widened_bf16(self, values: [bf16; LANES]) -> Self::f32s;

    fn widened_int8(self, values: [i8; LANES], scale: f32) -> Self::f32s;
}

impl Widens<OF_AVX512> for V4 {
    #[inline(always)]
    fn widened_bf16(self, values: [bf16; OF_AVX512]) -> Self::f32s {
        let wide = self.avx512f._mm512_cvtepu16_epi32(cast(values));
        cast(self.avx512f._mm512_slli_epi32::<16>(wide))
    }

    #[inline(always)]
    fn widened_int8(self, values: [i8; OF_AVX512], scale: f32) -> Self::f32s {
        let wide = self.avx512f._mm512_cvtepi8_epi32(cast(values));
        let wide = cast(self.avx512f._mm512_cvtepi32_ps(wide));
        self.mul_f32s(wide, self.splat_f32s(scale))
    }
}

impl Widens<OF_AVX2> for V3 {
    #[inline(always)]
    fn widened_bf16(self, values: [bf16; OF_AVX2]) -> Self::f32s {
        let wide = self.avx2._mm256_cvtepu16_epi32(cast(values));
        cast(self.avx2._mm256_slli_epi32::<16>(wide))
    }

    #[inline(always)]
    fn widened_int8(self, values: [i8; OF_AVX2], scale: f32) -> Self::f32s {
        let values: u64 = cast(values);
        let wide = self.avx2._mm256_cvtepi8_epi32(cast([values, 0]));
        let wide = cast(self.avx._mm256_cvtepi32_ps(wide));
        self.mul_f32s(wide, self.splat_f32s(scale))
    }
}

/// Takes the sums of up to six rows, `[count, inner]`, with whole columns, in the order in which wide columns are added up: to
/// `[width, count]`. False where columns are of no whole number of registers.
pub(super) fn take<S: Widens<LANES>, const LANES: usize>(
    simd: S,
    (rows, inner): (&[f32], usize),
    columns: Narrow,
    sums: &mut [f32],
) -> bool
where
    [f32; LANES]: Pod,
{
    let fills = inner.is_multiple_of(LANES);
    if fills {
        simd.vectorize(Sums {
            simd,
            rows,
            columns,
            inner,
            sums,
        });
    }
    fills
}

/// What [`take`] takes.
struct Sums<'a, S, const LANES: usize> {
    simd: S,
    rows: &'a [f32],
    columns: Narrow<'a>,
    inner: usize,
    sums: &'a mut [f32],
}

impl<S: Widens<LANES>, const LANES: usize> WithSimd for Sums<'_, S, LANES>
where
    [f32; LANES]: Pod,
{
    type Output = ();

    #[inline(always)]
    fn with_simd<Same: Simd>(self, _: Same) {
        match self.rows.len() / self.inner {
            1 => self.of_rows::<1>(),
            2 => self.of_rows::<2>(),
            3 => self.of_rows::<3>(),
            4 => self.of_rows::<4>(),
            5 => self.of_rows::<5>(),
            _ => self.of_rows::<6>(),
        }
    }
}

impl<S: Widens<LANES>, const LANES: usize> Sums<'_, S, LANES>
where
    [f32; LANES]: Pod,
{
    #[inline(always)]
    fn of_rows<const M: usize>(self) {
        if four_fit::<S>(M) {
            self.of_columns::<4, M>();
        } else {
            self.of_columns::<2, M>();
        }
    }

    /// `C` columns at a time.
    #[inline(always)]
    fn of_columns<const C: usize, const M: usize>(self) {
        let simd = self.simd;
        match self.columns {
            Narrow::Bf16(values) => {
                let (registers, _) = values.as_chunks::<LANES>();
                self.with::<C, M>(
                    #[inline(always)]
                    |at| simd.widened_bf16(registers[at]),
                    #[inline(always)]
                    |at| ask::<C, _>(registers, at),
                );
            }
            Narrow::Int8(values, scales) => {
                let (registers, _) = values.as_chunks::<LANES>();
                self.with::<C, M>(
                    #[inline(always)]
                    |at| simd.widened_int8(registers[at], scales[at / (INT8_BLOCK / LANES)]),
                    #[inline(always)]
                    |at| ask::<C, _>(registers, at),
                );
            }
        }
    }

    /// With columns of which `register` gives each register, and `ask` asks for `C` of them.
    #[inline(always)]
    fn with<const C: usize, const M: usize>(
        self,
        register: impl Fn(usize) -> S::f32s,
        ask: impl Fn(usize),
    ) {
        let (simd, steps) = (self.simd, self.inner / LANES);
        let mut rows: [&[[f32; LANES]]; M] = [&[]; M];
        for (row, values) in rows.iter_mut().zip(self.rows.chunks_exact(self.inner)) {
            *row = &values.as_chunks().0[..steps];
        }
        for (four, sums) in self.sums.chunks_mut(4 * M).enumerate() {
            let columns = sums.len() / M;
            let mut lanes = [[simd.splat_f32s(0.0); 4]; M];
            let mut done = 0;
            while done < columns {
                let first = (4 * four + done) * steps;
                if done + C <= columns {
                    let some =
                        lanes_of::<S, LANES, C, M>(simd, rows, (first, steps), &register, &ask);
                    for (lanes, some) in lanes.iter_mut().zip(some) {
                        lanes[done..done + C].copy_from_slice(&some);
                    }
                    done += C;
                } else {
                    let one =
                        lanes_of::<S, LANES, 1, M>(simd, rows, (first, steps), &register, &|_| ());
                    for (lanes, one) in lanes.iter_mut().zip(one) {
                        lanes[done] = one[0];
                    }
                    done += 1;
                }
            }
            for (row, lanes) in lanes.into_iter().enumerate() {
                let whole = lane_sums(simd, lanes);
                for (sums, whole) in sums.chunks_exact_mut(M).zip(whole) {
                    sums[row] = whole;
                }
            }
        }
    }
}

/// Asks for the `C` registers from one on.
#[inline(always)]
fn ask<const C: usize, T>(registers: &[T], at: usize) {
    let lines = (C * size_of::<T>()).div_ceil(LINE);
    for line in 0..lines {
        prefetch(registers.as_ptr().wrapping_add(at + line * C / lines));
    }
}

/// The lanes of the sums of rows with `C` columns, the first of which begins at the register `first`.
#[inline(always)]
fn lanes_of<S: Simd, const LANES: usize, const C: usize, const M: usize>(
    simd: S,
    rows: [&[[f32; LANES]]; M],
    (first, steps): (usize, usize),
    register: &impl Fn(usize) -> S::f32s,
    ask: &impl Fn(usize),
) -> [[S::f32s; C]; M]
where
    [f32; LANES]: Pod,
{
    let mut sums = [[simd.splat_f32s(0.0); C]; M];
    for step in 0..steps {
        // The columns behind these, in the order of memory.
        ask(first + C * (steps + step));
        let mut weights = [simd.splat_f32s(0.0); C];
        for (column, weight) in weights.iter_mut().enumerate() {
            *weight = register(first + column * steps + step);
        }
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let x = cast(row[step]);
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = simd.mul_add_e_f32s(x, weight, *sum);
            }
        }
    }
    // A copy: what is read in a loop must not keep the sums above from registers.
    let mut lanes = [[simd.splat_f32s(0.0); C]; M];
    for (lanes, sums) in lanes.iter_mut().zip(&sums) {
        for (lanes, sum) in lanes.iter_mut().zip(sums) {
            *lanes = *sum;
        }
    }
    lanes
}
