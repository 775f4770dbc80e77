//! Hidden states as they are stored: bits of bf16, or integers of eight bits, which take half as much.
//!
//! A language model's hidden states have some channels that are tens of times as large as the others at every token, and a few tokens with
//! single numbers that are thousands of times as large. So an eight-bit number is scaled twice: by a power of two that its channel
//! has in the whole sample, and by what the 64 numbers beside it share. Each keeps an error of about a hundredth of its channel's size
//! then, where numbers of eight bits with an exponent of their own (E4M3) and a scale a row have 2.6 hundredths, and integers without the
//! channels' powers lose what stands beside a large channel (`recipes/README.md`, under `[features]`, has what was measured).

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How hidden states are written to disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoredType {
    /// 16-bit brain floats.
    #[default]
    Bf16,
    /// Eight-bit integers: 52 % of the bytes. 64 of them share a scale, and each channel of a sample has a power of two.
    Int8,
}

impl StoredType {
    /// The name in a recipe and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Whether it is what states were always stored in, which needs no word.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// What is read back where these rows, bits of bf16, were written; nothing where one of the numbers cannot be written.
    pub fn read_back(self, bits: &[u16], width: usize) -> Option<Cow<'_, [u16]>> {
        match self {
            Self::Bf16 => Some(Cow::Borrowed(bits)),
            Self::Int8 => {
                let packed = Packed::of(bits, width)?;
                Some(Cow::Owned(
                    States::Int8(packed.states()).bits().into_owned(),
                ))
            }
        }
    }

    /// Bytes that rows of so many numbers take, but for the channels' powers, of which each sample has a row.
    pub const fn bytes(self, rows: u64, width: u64) -> u64 {
        let a_row = match self {
            Self::Bf16 => width.saturating_mul(2),
            Self::Int8 => width.saturating_add(width.div_ceil(BLOCK as u64).saturating_mul(2)),
        };
        rows.saturating_mul(a_row)
    }
}

/// Numbers of a row that share a scale.
pub(super) const BLOCK: usize = 64;

/// The largest integer.
const LARGEST: f32 = 127.0;

/// The largest number of bf16.
const MAX: f32 = f32::from_bits(0x7f7f_0000);

/// Hidden states of a sample, one row a token, wherever they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum States<'a> {
    /// Bits of bf16.
    Bf16(&'a [u16]),
    /// Eight-bit integers.
    Int8(Int8States<'a>),
}

impl<'a> States<'a> {
    /// How many numbers there are.
    pub fn len(self) -> usize {
        match self {
            Self::Bf16(bits) => bits.len(),
            Self::Int8(states) => states.values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The numbers as bits of bf16.
    pub fn bits(self) -> Cow<'a, [u16]> {
        match self {
            Self::Bf16(bits) => Cow::Borrowed(bits),
            Self::Int8(states) => {
                let mut bits = Vec::new();
                states.add_to(&mut bits);
                Cow::Owned(bits)
            }
        }
    }

    /// Adds the numbers to others, as bits of bf16.
    pub fn add_to(self, others: &mut Vec<u16>) {
        match self {
            Self::Bf16(bits) => others.extend_from_slice(bits),
            Self::Int8(states) => states.add_to(others),
        }
    }
}

impl<'a> From<&'a [u16]> for States<'a> {
    fn from(bits: &'a [u16]) -> Self {
        Self::Bf16(bits)
    }
}

impl<'a> From<&'a Vec<u16>> for States<'a> {
    fn from(bits: &'a Vec<u16>) -> Self {
        Self::Bf16(bits)
    }
}

/// Hidden states in eight bits: the number at a row and a channel is its integer, times the scale of its block of the row, times two to
/// the power of its channel.
///
/// # Shapes
///
/// - values: `[rows, width]`
/// - scales: `[rows, width / 64]`, rounded up
/// - exponents: `[width]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int8States<'a> {
    /// Integers from -127 to 127.
    pub values: &'a [i8],
    /// Bits of bf16.
    pub scales: &'a [u16],
    /// Powers of two.
    pub exponents: &'a [i8],
}

impl Int8States<'_> {
    /// Fails where there are not as many scales and powers as these integers need, where a row is so wide.
    pub(super) fn require_scales(&self, sample: u64, width: usize) -> Result<()> {
        let rows = self.values.len() / width.max(1);
        for (what, expected, found) in [
            ("scales", rows * width.div_ceil(BLOCK), self.scales.len()),
            ("exponents", width, self.exponents.len()),
        ] {
            if expected != found {
                return Err(Error::sample(sample, what, expected, found));
            }
        }
        Ok(())
    }

    fn add_to(self, others: &mut Vec<u16>) {
        let width = self.exponents.len();
        if width == 0 {
            return;
        }
        let channels: Vec<f32> = self.exponents.iter().map(|&power| two_to(power)).collect();
        others.reserve(self.values.len());
        let rows = self.values.chunks_exact(width);
        for (row, scales) in rows.zip(self.scales.chunks_exact(width.div_ceil(BLOCK))) {
            let blocks = row.chunks(BLOCK).zip(channels.chunks(BLOCK));
            for ((values, channels), &scale) in blocks.zip(scales) {
                let scale = widened(scale);
                let numbers = values.iter().zip(channels);
                others.extend(numbers.map(|(&value, channel)| {
                    rounded((f32::from(value) * scale * channel).clamp(-MAX, MAX))
                }));
            }
        }
    }
}

/// Hidden states in eight bits that are to be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) values: Vec<i8>,
    pub(super) scales: Vec<u16>,
    pub(super) exponents: Vec<i8>,
}

impl Packed {
    /// Those of rows of this width, in bits of bf16; nothing where one of them is infinite or no number.
    pub(super) fn of(bits: &[u16], width: usize) -> Option<Self> {
        if width == 0 {
            return Some(Self::default());
        }
        if bits.iter().any(|bits| bits & 0x7f80 == 0x7f80) {
            return None;
        }
        let exponents = exponents(bits, width);
        let shrunk: Vec<f32> = exponents.iter().map(|&power| two_to(-power)).collect();
        let mut packed = Self {
            values: Vec::with_capacity(bits.len()),
            scales: Vec::with_capacity(bits.len() / width * width.div_ceil(BLOCK)),
            exponents,
        };
        for row in bits.chunks_exact(width) {
            for (bits, channels) in row.chunks(BLOCK).zip(shrunk.chunks(BLOCK)) {
                packed.add_block(bits, channels);
            }
        }
        Some(packed)
    }

    fn add_block(&mut self, bits: &[u16], channels: &[f32]) {
        let mut numbers = [0.0_f32; BLOCK];
        let mut largest = 0.0_f32;
        for ((number, &bits), channel) in numbers.iter_mut().zip(bits).zip(channels) {
            *number = (widened(bits) * channel).clamp(-f32::MAX, f32::MAX);
            largest = largest.max(number.abs());
        }
        // Rounded up, so that no integer is beyond the largest one.
        let exact = (largest / LARGEST).to_bits();
        let scale = (exact >> 16) as u16 + u16::from(exact & 0xffff != 0);
        let divisor = match scale {
            0 => 1.0,
            scale => widened(scale),
        };
        self.scales.push(scale);
        let numbers = &numbers[..bits.len()];
        let values = numbers.iter().map(|number| {
            (number / divisor)
                .round_ties_even()
                .clamp(-LARGEST, LARGEST) as i8
        });
        self.values.extend(values);
    }

    fn states(&self) -> Int8States<'_> {
        Int8States {
            values: &self.values,
            scales: &self.scales,
            exponents: &self.exponents,
        }
    }
}

/// The mean power of two of each channel over all rows in which it is not 0: a few large numbers make little difference to it.
fn exponents(bits: &[u16], width: usize) -> Vec<i8> {
    let mut sums = vec![(0_i64, 0_i64); width];
    for row in bits.chunks_exact(width) {
        for ((sum, count), bits) in sums.iter_mut().zip(row) {
            let biased = i64::from(bits >> 7 & 0xff);
            *sum += biased;
            *count += i64::from(biased > 0);
        }
    }
    let mean = |(sum, count): (i64, i64)| match count {
        0 => 0,
        _ => ((sum as f64 / count as f64).round() as i64 - 127).clamp(-126, 126) as i8,
    };
    sums.into_iter().map(mean).collect()
}

/// Two to a power from -126 to 127.
fn two_to(power: i8) -> f32 {
    f32::from_bits(((i32::from(power) + 127).clamp(1, 254) as u32) << 23)
}

fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Bits of the nearest bf16; of two that are as near, the even one.
fn rounded(number: f32) -> u16 {
    let bits = number.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [[usize; 2]; 6] = [[1, 1], [3, 2], [7, 63], [40, 64], [33, 65], [300, 200]];

    /// Rows whose channels differ as those of language models do: some tens of times as large as others, one number of one token
    /// thousands of times as large, a channel and a row of zeros.
    fn rows([rows, width]: [usize; 2]) -> Vec<u16> {
        let mut state = 1_u32;
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut bits = Vec::new();
        for row in 0..rows {
            for channel in 0..width {
                let size = match channel % 37 {
                    5 => 60.0,
                    9 => 0.0,
                    other => 0.1 + other as f32 / 10.0,
                };
                let massive = if row == 2 && channel == 17 {
                    4000.0
                } else {
                    1.0
                };
                let is_blank = row > 0 && row + 1 == rows;
                let number = number() * size * massive;
                bits.push(rounded(if is_blank { 0.0 } else { number }));
            }
        }
        bits
    }

    fn through(bits: &[u16], width: usize) -> Vec<u16> {
        let packed = Packed::of(bits, width).unwrap();
        packed.states().require_scales(0, width).unwrap();
        let mut found = vec![7];
        States::Int8(packed.states()).add_to(&mut found);
        assert_eq!(found.remove(0), 7);
        assert_eq!(*States::Int8(packed.states()).bits(), found);
        found
    }

    /// The error that a channel may have, as a share of its size: a few rows tell less of how large it is.
    fn most(rows: usize) -> f64 {
        if rows < 100 { 0.03 } else { 0.012 }
    }

    #[test]
    fn each_channel_keeps_its_size_whatever_stands_beside_it() {
        for [count, width] in SIZES {
            let bits = rows([count, width]);
            let found = through(&bits, width);
            assert_eq!(found.len(), bits.len());
            for channel in 0..width {
                let column = |bits: &[u16]| -> Vec<f64> {
                    // The token with a massive number is another matter.
                    let rows = (0..count).filter(|row| *row != 2);
                    rows.map(|row| f64::from(widened(bits[row * width + channel])))
                        .collect()
                };
                let (expected, found) = (column(&bits), column(&found));
                let square: f64 = expected.iter().map(|x| x * x).sum();
                let pairs = expected.iter().zip(&found);
                let error: f64 = pairs.map(|(x, y)| (x - y) * (x - y)).sum();
                let most = most(count);
                let share = (error / square.max(1e-30)).sqrt();
                assert!(
                    share < most,
                    "[{count}, {width}] channel {channel}: {share}"
                );
            }
        }
    }

    #[test]
    fn what_is_0_stays_0_and_what_is_not_does_not_vanish() {
        for [count, width] in SIZES {
            let bits = rows([count, width]);
            let found = through(&bits, width);
            for (expected, found) in bits.chunks(width).zip(found.chunks(width)) {
                for (expected, found) in expected.iter().zip(found) {
                    assert!(
                        expected & 0x7fff != 0 || *found == 0,
                        "{expected:x} {found:x}"
                    );
                }
                let is_blank = |row: &[u16]| row.iter().all(|bits| bits & 0x7fff == 0);
                assert_eq!(is_blank(expected), is_blank(found));
            }
        }
    }

    #[test]
    fn numbers_at_the_ends_of_their_range_stay_numbers() {
        let ends = [0x7f7f, 0xff7f, 0x0001, 0x8001, 0x0080, 0x3f80, 0, 0x8000];
        for width in [1, 2, 8] {
            for bits in through(&ends, width) {
                assert_ne!(bits & 0x7f80, 0x7f80, "{bits:x}");
            }
        }
        let alone = through(&[0x7f7f, 0xff7f], 2);
        assert_eq!(alone, [0x7f7f, 0xff7f]);
        for none in [0x7f80, 0xff80, 0x7fc0] {
            assert_eq!(Packed::of(&[0x3f80, none], 2), None);
        }
    }

    #[test]
    fn rows_without_channels_are_nothing() {
        let packed = Packed::of(&[], 0).unwrap();
        let states = States::Int8(packed.states());
        assert!(states.is_empty() && states.bits().is_empty());
    }

    #[test]
    fn eight_bits_take_a_little_more_than_half() {
        assert_eq!(StoredType::Bf16.bytes(10, 4096), 10 * 8192);
        assert_eq!(StoredType::Int8.bytes(10, 4096), 10 * (4096 + 128));
        assert_eq!(StoredType::Int8.bytes(1, 65), 65 + 4);
    }
}
