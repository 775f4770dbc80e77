//! Damage to files, the same in every run: what no program wrote and no checksum catches.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A file in many kinds of damage: the lowest bit of each byte flipped, which is the sign of many numbers, and some bytes
/// changed at random, most of them near its beginning or end, where formats describe themselves.
pub(crate) fn forged(whole: &[u8], random: u64) -> impl Iterator<Item = Vec<u8>> {
    let flipped = (0..whole.len()).map(|at| {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1;
        bytes
    });
    flipped.chain((0..random).map(|seed| changed(whole, seed)))
}

fn changed(whole: &[u8], seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut bytes = whole.to_vec();
    let edge = bytes.len().min(500);
    for _ in 0..random.random_range(1..5) {
        let at = match random.random_range(0..3) {
            0 => random.random_range(0..bytes.len()),
            1 => bytes.len() - 1 - random.random_range(0..edge),
            _ => random.random_range(0..edge),
        };
        bytes[at] = match random.random_range(0..3) {
            0 => bytes[at] ^ (1 << random.random_range(0..8)),
            1 => random.random(),
            _ => [0, 0xff][random.random_range(0..2)],
        };
    }
    bytes
}

/// The messages of those kinds of damage that are noticed. Some must be such that a library panics on them.
pub(crate) fn refusals(
    whole: &[u8],
    random: u64,
    read: impl FnMut(Vec<u8>) -> crate::error::Result<()>,
) -> Vec<String> {
    let failed = forged(whole, random).map(read).filter_map(Result::err);
    let messages: Vec<String> = failed.map(|error| error.to_string()).collect();
    let contained = |message: &String| message.contains("its library fails on");
    assert!(
        messages.iter().any(contained),
        "no case would have panicked"
    );
    messages
}
