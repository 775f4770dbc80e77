//! Columns of narrow numbers as they stand in memory.
use burn::tensor::bf16;
use pulp::Arch;

use super::sums::{Column, Columns, Sums, TOGETHER};
use super::widens::Widens;

/// Elements of a column of eight bits that share a scale.
pub const BLOCK: usize = 32;

/// Some whole columns, one after the other.
#[derive(Clone, Copy)]
pub(super) enum Narrow<'a> {
    Bf16(&'a [bf16]),
    /// With a scale for each [`BLOCK`].
    Int8(&'a [i8], &'a [f32]),
}

impl Narrow<'_> {
    /// The sums of up to six rows, `[count, inner]`, with these columns, as they would be if the columns were wide: to
    /// `[width, count]`. False where there are more rows, this processor has no such registers, or columns do not fill them.
    pub(super) fn take(self, arch: Arch, (rows, inner): (&[f32], usize), sums: &mut [f32]) -> bool {
        if rows.len() > TOGETHER * inner {
            return false;
        }
        match arch {
            #[cfg(target_arch = "x86_64")]
            Arch::V4(simd) => self.with(simd, (rows, inner), sums),
            #[cfg(target_arch = "x86_64")]
            Arch::V3(simd) => self.with(simd, (rows, inner), sums),
            #[cfg(target_arch = "aarch64")]
            Arch::Neon(simd) => self.with(simd, (rows, inner), sums),
            _ => false,
        }
    }

    fn with<S: Widens>(self, simd: S, (rows, inner): (&[f32], usize), sums: &mut [f32]) -> bool {
        if !inner.is_multiple_of(S::F32_LANES) {
            return false;
        }
        simd.vectorize(
            #[inline(always)]
            move || match self {
                Self::Bf16(values) => Sums {
                    rows,
                    columns: Bf16(values),
                    inner,
                    sums,
                }
                .take(simd),
                Self::Int8(values, scales) => Sums {
                    rows,
                    columns: Int8s { values, scales },
                    inner,
                    sums,
                }
                .take(simd),
            },
        );
        true
    }
}

/// Columns in bf16.
#[derive(Clone, Copy)]
struct Bf16<'a>(&'a [bf16]);

/// One of [`Bf16`].
#[derive(Clone, Copy)]
struct Bf16Column<'a, S: Widens>(&'a [S::Bf16s]);

impl<'a, S: Widens> Columns<'a, S> for Bf16<'a> {
    type Column = Bf16Column<'a, S>;

    #[inline(always)]
    fn column(self, number: usize, inner: usize) -> (Self::Column, &'a [f32]) {
        let registers = S::bf16s(&self.0[number * inner..][..inner]);
        (Bf16Column(registers), &[])
    }
}

impl<S: Widens> Column<S> for Bf16Column<'_, S> {
    type Stored = S::Bf16s;

    #[inline(always)]
    fn stored(&self) -> &[S::Bf16s] {
        self.0
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "as promised")]
    unsafe fn register(&self, simd: S, step: usize) -> S::f32s {
        // SAFETY: the caller's.
        simd.widen_bf16(unsafe { *self.0.get_unchecked(step) })
    }
}

/// Columns in eight bits with the scales of their blocks.
#[derive(Clone, Copy)]
struct Int8s<'a> {
    values: &'a [i8],
    scales: &'a [f32],
}

/// One of [`Int8s`].
#[derive(Clone, Copy)]
struct Int8Column<'a, S: Widens> {
    values: &'a [S::Int8s],
    scales: &'a [f32],
}

impl<'a, S: Widens> Columns<'a, S> for Int8s<'a> {
    type Column = Int8Column<'a, S>;

    #[inline(always)]
    fn column(self, number: usize, inner: usize) -> (Self::Column, &'a [f32]) {
        let blocks = inner / BLOCK;
        let column = Int8Column {
            values: S::int8s(&self.values[number * inner..][..inner]),
            scales: &self.scales[number * blocks..][..blocks],
        };
        (column, &[])
    }
}

impl<S: Widens> Column<S> for Int8Column<'_, S> {
    type Stored = S::Int8s;

    #[inline(always)]
    fn stored(&self) -> &[S::Int8s] {
        self.values
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "as promised")]
    unsafe fn register(&self, simd: S, step: usize) -> S::f32s {
        // SAFETY: the caller's; a block is a whole number of registers.
        let (values, scale) = unsafe {
            let block = step / (BLOCK / S::F32_LANES);
            (
                *self.values.get_unchecked(step),
                *self.scales.get_unchecked(block),
            )
        };
        simd.widen_int8(values, scale)
    }
}
