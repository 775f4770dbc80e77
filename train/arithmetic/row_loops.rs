//! Loops over a row of the vocabulary, for functions that are compiled for the widest vectors.
use spectrain_models::exp;

/// Elements summed side by side: two registers of AVX-512, four of AVX2.
pub(super) const LANES: usize = 32;

/// The largest number of a row, and where it stands first.
#[inline(always)]
pub(super) fn largest(row: &[f32]) -> (f32, usize) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let blocks = row.chunks_exact(LANES);
    let rest = blocks.remainder();
    for block in blocks {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane = lane.max(value);
        }
    }
    let largest = lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max);
    (largest, first_place(row, largest))
}

/// Where a number stands first in a row; 0 where it does not.
#[inline(always)]
fn first_place(row: &[f32], number: f32) -> usize {
    // All lanes of a block are compared before any is asked for.
    let is_there = |block: &[f32]| {
        let found = block.iter().map(|&value| u32::from(value == number));
        found.sum::<u32>() > 0
    };
    let blocks = row.chunks(LANES).zip((0..).step_by(LANES));
    for (block, start) in blocks {
        if is_there(block) {
            let at = block.iter().position(|&value| value == number);
            return start + at.unwrap_or(0);
        }
    }
    0
}

/// What a row of logits says of its exponentials.
pub(super) struct Exponentials {
    /// The largest logit, which is taken off all.
    pub(super) largest: f32,
    /// Where it stands first.
    pub(super) best: usize,
    /// Sum of the exponentials.
    pub(super) sum: f32,
    /// `Σ p · logit` with a distribution `p`.
    pub(super) dot: f32,
}

/// Replaces a row of logits by their exponentials, the largest taken off.
#[inline(always)]
pub(super) fn exponentials(row: &mut [f32], p: &[f32]) -> Exponentials {
    let (largest, best) = largest(row);
    let (mut sums, mut dots) = ([0.0f32; LANES], [0.0f32; LANES]);
    let mut blocks = row.chunks_exact_mut(LANES);
    let mut p_blocks = p.chunks_exact(LANES);
    for (block, p) in (&mut blocks).zip(&mut p_blocks) {
        let lanes = block.iter_mut().zip(&mut sums).zip(&mut dots);
        for (((value, sum), dot), &p) in lanes.zip(p) {
            let shifted = *value - largest;
            *dot += p * shifted;
            *value = exp(shifted);
            *sum += *value;
        }
    }
    let (mut sum, mut dot) = (sums.iter().sum::<f32>(), dots.iter().sum::<f32>());
    let rest = blocks.into_remainder().iter_mut();
    for (value, &p) in rest.zip(p_blocks.remainder()) {
        let shifted = *value - largest;
        dot += p * shifted;
        *value = exp(shifted);
        sum += *value;
    }
    Exponentials {
        largest,
        best,
        sum,
        dot,
    }
}
