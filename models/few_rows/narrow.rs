//! Columns of narrow numbers as they stand in memory.
use burn::tensor::bf16;

/// Some whole columns, one after the other.
#[derive(Clone, Copy)]
pub(super) enum Narrow<'a> {
    Bf16(&'a [bf16]),
    /// With a scale for every thirty-two elements.
    Int8(&'a [i8], &'a [f32]),
}
