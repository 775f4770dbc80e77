//! The lanes of registers added up.
use pulp::Simd;
use pulp::bytemuck::cast;

/// The sum of the lanes of each of four registers, in an order that does not depend on the other three.
#[inline(always)]
pub(super) fn lane_sums<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> [f32; 4] {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = (&simd as &dyn std::any::Any).downcast_ref::<pulp::x86::V4>() {
        return of_four(*simd, [cast(a), cast(b), cast(c), cast(d)]);
    }
    let sum = |lanes| simd.reduce_sum_f32s(lanes);
    [sum(a), sum(b), sum(c), sum(d)]
}

/// Four registers become one that holds four sums in each quarter, and its quarters are added up: a third of what four sums
/// by themselves take.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn of_four(simd: pulp::x86::V4, [a, b, c, d]: [std::arch::x86_64::__m512; 4]) -> [f32; 4] {
    let (wide, narrow) = (simd.avx512f, simd.sse);
    // In each quarter the numbers 0 and 2, and 1 and 3, of both.
    let halves = |x, y| {
        let (low, high) = (wide._mm512_unpacklo_ps(x, y), wide._mm512_unpackhi_ps(x, y));
        wide._mm512_castps_pd(wide._mm512_add_ps(low, high))
    };
    let (ab, cd) = (halves(a, b), halves(c, d));
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
