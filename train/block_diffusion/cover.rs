//! Which tokens of a block are masked in training.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::seed::{mix, uniform};

/// Which tokens of a block are masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockMasking {
    /// All after the anchor, as in decoding (DFlash).
    All,
    /// Each with probability `t`, which is drawn for each block; a masked token counts `1 / t`. This is the likelihood of masked
    /// diffusion, and the first stage of DEER (<https://arxiv.org/abs/2512.15176>). The token behind a block, which drafters
    /// with `sample_from_anchor` always predict, counts 1.
    Some,
    /// All after the anchor, in blocks whose lengths are drawn: the second stage of DEER.
    Last,
}

/// What is masked of a block.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cover {
    /// Of each place; never the anchor's.
    pub(super) masked: Vec<bool>,
    /// Places that there are.
    pub(super) length: usize,
    /// Place of the first slot: 0 where the anchor's own predicts a token, else 1.
    first: usize,
    /// What each place is masked with.
    probability: f64,
}

impl Cover {
    /// All of a block of `size` places, the first slot of which is at the place `first`.
    pub(super) fn whole(size: usize, first: usize) -> Self {
        Self {
            masked: (0..size).map(|place| place > 0).collect(),
            length: size,
            first,
            probability: 1.0,
        }
    }

    /// What `seed` decides of such a block.
    pub(super) fn drawn(masking: BlockMasking, size: usize, first: usize, seed: u64) -> Self {
        let whole = Self::whole(size, first);
        match masking {
            BlockMasking::All => whole,
            BlockMasking::Last => Self {
                length: 1 + first + (uniform(mix(seed, 0)) * (size - first) as f64) as usize,
                ..whole
            },
            BlockMasking::Some => {
                // From the half-open interval to (0, 1].
                let t = 1.0 - uniform(mix(seed, 0));
                let drawn = |place: usize| uniform(mix(seed, place as u64)) < t;
                Self {
                    masked: (0..size).map(|place| place > 0 && drawn(place)).collect(),
                    probability: t,
                    ..whole
                }
            }
        }
    }

    /// Slots that there are, which stand one behind the other up to the end.
    pub(super) fn slots(&self) -> usize {
        self.length - self.first
    }

    /// Whether a slot, which predicts the token one place further than it counts, has to guess.
    pub(super) fn asks(&self, slot: usize) -> bool {
        let place = slot + 1;
        place < self.length && self.masked[place] || self.is_behind(place)
    }

    /// Factor on the loss of a slot that has to guess: what makes up for how seldom its token is masked.
    pub(super) fn factor(&self, slot: usize) -> f32 {
        match self.is_behind(slot + 1) {
            true => 1.0,
            false => (1.0 / self.probability) as f32,
        }
    }

    /// Whether a place is that of the token behind the block, which the last slot of one that samples from the anchor predicts:
    /// it is never shown.
    fn is_behind(&self, place: usize) -> bool {
        self.first == 0 && place == self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 6;

    #[test]
    fn everything_is_asked_of_a_whole_block() {
        for first in [0, 1] {
            let whole = Cover::whole(SIZE, first);
            assert_eq!(whole.slots(), SIZE - first);
            assert!((0..whole.slots()).all(|slot| whole.asks(slot)));
            assert_eq!(Cover::drawn(BlockMasking::All, SIZE, first, 3), whole);
        }
    }

    #[test]
    fn a_token_is_asked_for_as_often_as_its_weight_makes_up_for() {
        let draws = 20_000;
        for first in [0, 1] {
            let mut sums = vec![0.0; SIZE - first];
            for seed in 0..draws {
                let cover = Cover::drawn(BlockMasking::Some, SIZE, first, seed);
                assert!(!cover.masked[0] && cover.length == SIZE);
                for (slot, sum) in sums.iter_mut().enumerate() {
                    if cover.asks(slot) {
                        *sum += cover.factor(slot).min(100.0) as f64 / draws as f64;
                    }
                }
            }
            // A masked token counts 1 / t with probability t: 1 on average, less what the bound above cuts off. So does the
            // token behind the block, each time.
            assert!(sums.iter().all(|sum| (0.9..1.1).contains(sum)), "{sums:?}");
        }
    }

    #[test]
    fn shorter_blocks_are_of_every_length_alike_and_ask_for_all_that_a_decoder_drafts() {
        for first in [0, 1] {
            let mut counts = [0; SIZE + 1];
            let draws = 1000 * (SIZE - first) as u64;
            for seed in 0..draws {
                let cover = Cover::drawn(BlockMasking::Last, SIZE, first, seed);
                counts[cover.slots()] += 1;
                // The slots of a draft of so many tokens, which are in a row from the first on, and none behind the block.
                let asked = (0..SIZE).map(|slot| cover.asks(slot));
                let drafted = (0..SIZE).map(|slot| slot < cover.slots());
                assert!(asked.eq(drafted), "{cover:?}");
            }
            let of_drafts = &counts[1..=SIZE - first];
            assert_eq!(of_drafts.iter().sum::<u64>(), draws, "{counts:?}");
            assert!(
                of_drafts.iter().all(|count| (900..1100).contains(count)),
                "{counts:?}"
            );
        }
    }
}
