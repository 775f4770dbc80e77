//! The lanes of registers added up.
//!
//! Functions stand where closures would be shorter: an attribute has them inlined, without which they would be compiled for the
//! oldest processor.
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};

use pulp::Simd;
use pulp::bytemuck::cast;
#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

/// The sum of the lanes of each of four registers, in an order that does not depend on the other three.
#[inline(always)]
pub(super) fn lane_sums<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> [f32; 4] {
    #[cfg(target_arch = "x86_64")]
    {
        let simd = &simd as &dyn std::any::Any;
        if let Some(simd) = simd.downcast_ref() {
            return of_four_of_sixteen(*simd, [cast(a), cast(b), cast(c), cast(d)]);
        }
        if let Some(simd) = simd.downcast_ref() {
            return of_four_of_eight(*simd, [cast(a), cast(b), cast(c), cast(d)]);
        }
    }
    let sum = |lanes| simd.reduce_sum_f32s(lanes);
    [sum(a), sum(b), sum(c), sum(d)]
}

/// Four registers become one that holds four sums in each quarter, and its quarters are added up: a third of what four sums
/// by themselves take.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn of_four_of_sixteen(simd: V4, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
    let (wide, narrow) = (simd.avx512f, simd.sse);
    let (ab, cd) = (halves_of_sixteen(simd, a, b), halves_of_sixteen(simd, c, d));
    let (low, high) = (
        wide._mm512_unpacklo_pd(ab, cd),
        wide._mm512_unpackhi_pd(ab, cd),
    );
    let quarters = wide._mm512_add_ps(wide._mm512_castpd_ps(low), wide._mm512_castpd_ps(high));
    let first = narrow._mm_add_ps(
        wide._mm512_castps512_ps128(quarters),
        wide._mm512_extractf32x4_ps::<1>(quarters),
    );
    let second = narrow._mm_add_ps(
        wide._mm512_extractf32x4_ps::<2>(quarters),
        wide._mm512_extractf32x4_ps::<3>(quarters),
    );
    cast(narrow._mm_add_ps(first, second))
}

/// In each quarter the numbers 0 and 2, and 1 and 3, of both.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn halves_of_sixteen(simd: V4, x: __m512, y: __m512) -> __m512d {
    let wide = simd.avx512f;
    let (low, high) = (wide._mm512_unpacklo_ps(x, y), wide._mm512_unpackhi_ps(x, y));
    wide._mm512_castps_pd(wide._mm512_add_ps(low, high))
}

/// As [`of_four_of_sixteen`], with registers of two quarters.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn of_four_of_eight(simd: V3, [a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    let (wide, narrow) = (simd.avx, simd.sse);
    let (ab, cd) = (halves_of_eight(simd, a, b), halves_of_eight(simd, c, d));
    let (low, high) = (
        wide._mm256_unpacklo_pd(ab, cd),
        wide._mm256_unpackhi_pd(ab, cd),
    );
    let quarters = wide._mm256_add_ps(wide._mm256_castpd_ps(low), wide._mm256_castpd_ps(high));
    cast(narrow._mm_add_ps(
        wide._mm256_castps256_ps128(quarters),
        wide._mm256_extractf128_ps::<1>(quarters),
    ))
}

/// In each quarter the numbers 0 and 2, and 1 and 3, of both.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn halves_of_eight(simd: V3, x: __m256, y: __m256) -> __m256d {
    let wide = simd.avx;
    let (low, high) = (wide._mm256_unpacklo_ps(x, y), wide._mm256_unpackhi_ps(x, y));
    wide._mm256_castps_pd(wide._mm256_add_ps(low, high))
}
