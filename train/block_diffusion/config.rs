use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::bounds;

use super::cover::BlockMasking;
use crate::divergence::Divergence;
use crate::error::{Error, Result};

/// The `[objective]` table of a DFlash recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BlockLossConfig {
    /// The most blocks in a row of `data.max_length` tokens.
    pub anchors: usize,
    /// Where the blocks are placed.
    pub placement: Anchors,
    /// Which tokens of a block are masked. `recipe = "dflash-deer"` has no such key, as its stages decide on it.
    pub masking: BlockMasking,
    /// Factor on the cross-entropy with the text.
    pub label_weight: f64,
    /// Factor on the divergence from the target's distribution; with `divergence = "ce"` the label is the target's most
    /// likely token.
    pub teacher_weight: f64,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
    /// How much each slot *k*, counted from 0, counts in the loss. Validations weigh slots by `"exponential"` in place of
    /// `"d_pace"` and `"auf"`, with which a better drafter may have a larger loss. `recipe = "dflash-deer"` has no such key, as its
    /// stages decide on it, and neither `decay_slots` nor `certainty`.
    pub slot_weights: SlotWeights,
    /// Slots over which exponential weights fall to 1/e; 0 takes the authors' values: 4 for up to 8 slots, 5 for up to 12, 7
    /// beyond.
    pub decay_slots: f64,
    /// With `"rising"` weights: ratio of a slot's weight to that of the slot after it; 1.05 diverged for the authors of DEER.
    pub growth: f64,
    /// With `"d_pace"` weights: each probability `q` is replaced by `(1 - certainty) q + certainty`.
    pub certainty: f64,
    /// Whether the sum of the losses is divided by the number of slots that count, as in speculators, and not by the sum of
    /// their weights.
    pub divide_by_count: bool,
    /// Factor on the cross-entropy of the path selector, if the drafter has one.
    pub selector_weight: f64,
    /// Whether the text's token replaces the least likely candidate in slots where it is not a candidate (SpecForge,
    /// speculators); otherwise the selector learns nothing from such slots (NeMo). Validations always do so.
    pub inject: bool,
    /// Factor on the cross-entropy of the confidence head, if the drafter has one.
    pub confidence_weight: f64,
    /// Share of the loss, in the first step, that judges the slots without what the tokens before them add, if the drafter has
    /// such a bias (`markov_rank`). It falls linearly to 0, so that layers learn before the bias does. Domino uses 1.
    pub base_weight: f64,
    /// The part of the training's steps in which `base_weight` falls to 0.
    pub base_until: f64,
}

/// Where blocks stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Anchors {
    /// At random positions in replies, drawn anew for each step.
    Random,
    /// One after the other, from the start of each reply.
    Chunks,
}

/// How much each slot counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SlotWeights {
    /// `exp(-k / decay_slots)` (DFlash).
    Exponential,
    /// All slots count the same.
    Uniform,
    /// `growth` to the power of the number of slots after it (DEER).
    Rising,
    /// By how many tokens from this slot on a decoder is expected to accept, given the drafter's own probabilities (D-PACE,
    /// <https://arxiv.org/abs/2605.18810>).
    DPace,
    /// All slots count the same up to and including the first one where the drafter is wrong, and none after it (AUF,
    /// <https://arxiv.org/abs/2607.01893>).
    Auf,
}

impl Default for BlockLossConfig {
    fn default() -> Self {
        Self {
            anchors: 512,
            placement: Anchors::Random,
            masking: BlockMasking::All,
            label_weight: 1.0,
            teacher_weight: 0.0,
            divergence: Divergence::Kl,
            slot_weights: SlotWeights::DPace,
            decay_slots: 0.0,
            growth: 1.01,
            certainty: 0.5,
            divide_by_count: false,
            selector_weight: 1.0,
            inject: true,
            confidence_weight: 1.0,
            base_weight: 0.0,
            base_until: 0.5,
        }
    }
}

impl BlockLossConfig {
    /// Checks what the loss on tokens does not.
    pub(super) fn check(&self) -> Result<()> {
        let setting = |key, expected, got| Err(Error::objective(key, expected, got));
        Error::check_objective([bounds::up_to("anchors", self.anchors, bounds::TEXT)])?;
        if !(self.growth >= 1.0 && self.growth.is_finite()) {
            return setting("growth", "1 or more", self.growth.to_string());
        }
        for (key, value) in [
            ("decay_slots", self.decay_slots),
            ("selector_weight", self.selector_weight),
            ("confidence_weight", self.confidence_weight),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return setting(key, "0 or more", value.to_string());
            }
        }
        for (key, value) in [
            ("certainty", self.certainty),
            ("base_weight", self.base_weight),
            ("base_until", self.base_until),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return setting(key, "a number from 0 to 1", value.to_string());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_diffusion::BlockLoss;
    use crate::objective::Objective as _;

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        let default = BlockLossConfig::default;
        let wrong = [
            (
                "anchors",
                BlockLossConfig {
                    anchors: 0,
                    ..default()
                },
            ),
            (
                "decay_slots",
                BlockLossConfig {
                    decay_slots: -1.0,
                    ..default()
                },
            ),
            (
                "certainty",
                BlockLossConfig {
                    certainty: 1.5,
                    ..default()
                },
            ),
            (
                "label_weight",
                BlockLossConfig {
                    label_weight: -1.0,
                    ..default()
                },
            ),
            (
                "base_weight",
                BlockLossConfig {
                    base_weight: 1.5,
                    ..default()
                },
            ),
        ];
        for (key, config) in wrong {
            let error = BlockLoss::new(&config).unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}
