//! How many sums a processor has registers for.
use pulp::Simd;

/// Whether there are registers for the sums of so many rows with four columns, beside a number of a row and one of each column;
/// else there are for two.
#[inline(always)]
pub(super) fn four_fit<S: Simd>(rows: usize) -> bool {
    S::REGISTER_COUNT >= 32 || rows <= 2
}
