//! Narrow numbers that become f32 in registers, on their way to the sums.
use burn::tensor::bf16;
use pulp::Simd;

/// A processor that widens a register of narrow numbers.
pub(super) trait Widens: Simd {
    /// As many numbers of bf16 as a register has in f32.
    type Bf16s: Copy + 'static;
    /// As many of eight bits.
    type Int8s: Copy + 'static;

    /// Numbers by the register; what does not fill one is left out.
    fn bf16s(values: &[bf16]) -> &[Self::Bf16s];

    /// Numbers by the register; what does not fill one is left out.
    fn int8s(values: &[i8]) -> &[Self::Int8s];

    /// Every number of bf16 is one of f32, with the same first bits.
    fn widen_bf16(self, values: Self::Bf16s) -> Self::f32s;

    /// Whole numbers times their scale.
    fn widen_int8(self, values: Self::Int8s, scale: f32) -> Self::f32s;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m128i, __m256i};

    use pulp::bytemuck::cast;
    use pulp::x86::{V3, V4};

    use super::*;

    impl Widens for V4 {
        type Bf16s = [bf16; 16];
        type Int8s = [i8; 16];

        #[inline(always)]
        fn bf16s(values: &[bf16]) -> &[Self::Bf16s] {
            values.as_chunks().0
        }

        #[inline(always)]
        fn int8s(values: &[i8]) -> &[Self::Int8s] {
            values.as_chunks().0
        }

        #[inline(always)]
        fn widen_bf16(self, values: Self::Bf16s) -> Self::f32s {
            let values: __m256i = cast(values);
            let wide = self.avx512f._mm512_cvtepu16_epi32(values);
            cast(self.avx512f._mm512_slli_epi32::<16>(wide))
        }

        #[inline(always)]
        fn widen_int8(self, values: Self::Int8s, scale: f32) -> Self::f32s {
            let values: __m128i = cast(values);
            let wide = self.avx512f._mm512_cvtepi8_epi32(values);
            let wide = self.avx512f._mm512_cvtepi32_ps(wide);
            let scale = self.avx512f._mm512_set1_ps(scale);
            cast(self.avx512f._mm512_mul_ps(wide, scale))
        }
    }

    impl Widens for V3 {
        type Bf16s = [bf16; 8];
        type Int8s = [i8; 8];

        #[inline(always)]
        fn bf16s(values: &[bf16]) -> &[Self::Bf16s] {
            values.as_chunks().0
        }

        #[inline(always)]
        fn int8s(values: &[i8]) -> &[Self::Int8s] {
            values.as_chunks().0
        }

        #[inline(always)]
        fn widen_bf16(self, values: Self::Bf16s) -> Self::f32s {
            let values: __m128i = cast(values);
            let wide = self.avx2._mm256_cvtepu16_epi32(values);
            cast(self.avx2._mm256_slli_epi32::<16>(wide))
        }

        #[inline(always)]
        fn widen_int8(self, values: Self::Int8s, scale: f32) -> Self::f32s {
            let values = [values, [0; 8]];
            let values: __m128i = cast(values);
            let wide = self.avx2._mm256_cvtepi8_epi32(values);
            let wide = self.avx._mm256_cvtepi32_ps(wide);
            let scale = self.avx._mm256_set1_ps(scale);
            cast(self.avx._mm256_mul_ps(wide, scale))
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl Widens for pulp::aarch64::Neon {
    type Bf16s = [bf16; 4];
    type Int8s = [i8; 4];

    #[inline(always)]
    fn bf16s(values: &[bf16]) -> &[Self::Bf16s] {
        values.as_chunks().0
    }

    #[inline(always)]
    fn int8s(values: &[i8]) -> &[Self::Int8s] {
        values.as_chunks().0
    }

    #[inline(always)]
    fn widen_bf16(self, values: Self::Bf16s) -> Self::f32s {
        pulp::bytemuck::cast(values.map(|value| u32::from(value.to_bits()) << 16))
    }

    #[inline(always)]
    fn widen_int8(self, values: Self::Int8s, scale: f32) -> Self::f32s {
        pulp::bytemuck::cast(values.map(|value| f32::from(value) * scale))
    }
}
