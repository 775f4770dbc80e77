//! Seeds from seeds, and numbers that depend on a seed and an index alone.

/// Number `index` of the SplitMix64 sequence that starts at `seed` (Steele et al.,
/// <https://doi.org/10.1145/2660193.2660195>): a seed for each of many things, or random bits for each element.
pub fn mix(seed: u64, index: u64) -> u64 {
    let mut state = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Random bits as a number from 0 to below 1.
pub fn uniform(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
