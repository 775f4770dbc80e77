//! DEER's two stages of alignment (<https://arxiv.org/abs/2512.15176>) on a DFlash drafter: first blocks of which some tokens are
//! masked, then blocks of any length that are masked whole and count most where they begin.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::dflash::DFlash;

use super::BlockLoss;
use super::config::{Anchors, BlockLossConfig, SlotWeights};
use super::cover::BlockMasking;
use crate::batch::Batch;
use crate::divergence::Divergence;
use crate::error::Result;
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::workload::Workload;

/// The `[objective]` table of a DFlash recipe by DEER, whose stages decide on `masking` and `slot_weights`. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StagedBlockLossConfig {
    /// The most blocks in a row of `data.max_length` tokens.
    pub anchors: usize,
    /// Where the blocks are placed.
    pub placement: Anchors,
    /// Factor on the cross-entropy with the text.
    pub label_weight: f64,
    /// Factor on the divergence from the target's distribution; with `divergence = "ce"` the label is the target's most
    /// likely token.
    pub teacher_weight: f64,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
    /// In `refine`: ratio of a slot's weight to that of the slot after it; 1.05 diverged for the authors of DEER.
    pub growth: f64,
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
    /// In `align`: share of the loss, in the first step, that judges the slots without what the tokens before them add, if the
    /// drafter has such a bias (`markov_rank`). It falls linearly to 0, so that layers learn before the bias does. Domino uses 1.
    pub base_weight: f64,
    /// The part of the steps of `align` in which `base_weight` falls to 0.
    pub base_until: f64,
}

impl Default for StagedBlockLossConfig {
    fn default() -> Self {
        let of_blocks = BlockLossConfig::default();
        Self {
            anchors: of_blocks.anchors,
            placement: of_blocks.placement,
            label_weight: of_blocks.label_weight,
            teacher_weight: of_blocks.teacher_weight,
            divergence: of_blocks.divergence,
            growth: of_blocks.growth,
            divide_by_count: of_blocks.divide_by_count,
            selector_weight: of_blocks.selector_weight,
            inject: of_blocks.inject,
            confidence_weight: of_blocks.confidence_weight,
            base_weight: of_blocks.base_weight,
            base_until: of_blocks.base_until,
        }
    }
}

impl StagedBlockLossConfig {
    /// What one of the stages reads, with what it decides on.
    fn blocks(&self, stage: &str) -> BlockLossConfig {
        let (masking, slot_weights) = match stage {
            ALIGN => (BlockMasking::Some, SlotWeights::Uniform),
            _ => (BlockMasking::Last, SlotWeights::Rising),
        };
        let own = StagedBlockLoss::settings_of(self, stage);
        BlockLossConfig {
            masking,
            slot_weights,
            anchors: own.anchors,
            placement: own.placement,
            label_weight: own.label_weight,
            teacher_weight: own.teacher_weight,
            divergence: own.divergence,
            growth: own.growth,
            divide_by_count: own.divide_by_count,
            selector_weight: own.selector_weight,
            inject: own.inject,
            confidence_weight: own.confidence_weight,
            base_weight: own.base_weight,
            base_until: own.base_until,
            ..BlockLossConfig::default()
        }
    }
}

/// [`BlockLoss`] in two stages, which decide on `masking` and `slot_weights`.
#[derive(Debug, Clone)]
pub struct StagedBlockLoss(BlockLoss);

const ALIGN: &str = "align";
const REFINE: &str = "refine";

impl Objective<DFlash> for StagedBlockLoss {
    type Config = StagedBlockLossConfig;

    const STAGES: &'static [&'static str] = &[ALIGN, REFINE];

    fn new(config: &Self::Config) -> Result<Self> {
        // Each reads settings that the other one leaves alone.
        Self::of_stage(config, ALIGN)?;
        Self::of_stage(config, REFINE)
    }

    fn of_stage(config: &Self::Config, stage: &str) -> Result<Self> {
        Ok(Self(BlockLoss::new(&config.blocks(stage))?))
    }

    fn settings_of(config: &Self::Config, stage: &str) -> Self::Config {
        let (default, config) = (StagedBlockLossConfig::default(), config.clone());
        match stage {
            ALIGN => StagedBlockLossConfig {
                growth: default.growth,
                ..config
            },
            // The curriculum is at the beginning of the training.
            _ => StagedBlockLossConfig {
                base_weight: 0.0,
                ..config
            },
        }
    }

    fn workload(config: &Self::Config, stage: &str) -> Workload {
        BlockLoss::workload(&config.blocks(stage), stage)
    }

    fn loss(&self, drafter: &DFlash, batch: &Batch, statistics: Statistics) -> Loss {
        self.0.loss(drafter, batch, statistics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_masks_and_weighs_in_its_own_way() {
        let config = StagedBlockLossConfig {
            growth: 1.02,
            base_weight: 0.8,
            ..StagedBlockLossConfig::default()
        };
        let align = config.blocks(ALIGN);
        assert_eq!(
            (align.masking, align.slot_weights, align.growth),
            (BlockMasking::Some, SlotWeights::Uniform, 1.01)
        );
        let refine = config.blocks(REFINE);
        assert_eq!(
            (refine.masking, refine.slot_weights, refine.growth),
            (BlockMasking::Last, SlotWeights::Rising, 1.02)
        );
        assert_eq!([align.base_weight, refine.base_weight], [0.8, 0.0]);
    }

    #[test]
    fn what_the_stages_decide_on_is_no_key_even_with_the_value_that_dflash_has_by_default() {
        let default = serde_json::to_value(StagedBlockLossConfig::default()).unwrap();
        let of_dflash = serde_json::to_value(BlockLossConfig::default()).unwrap();
        for key in ["masking", "slot_weights", "decay_slots", "certainty"] {
            assert!(default.get(key).is_none(), "{key}");
            let given = serde_json::json!({ key: of_dflash[key] });
            let read = serde_json::from_value::<StagedBlockLossConfig>(given);
            let error = read.unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")), "{error}");
        }
    }

    #[test]
    fn settings_of_either_stage_are_checked_before_the_first() {
        let default = StagedBlockLossConfig::default;
        let base_weight = StagedBlockLossConfig {
            base_weight: 1.5,
            ..default()
        };
        let growth = StagedBlockLossConfig {
            growth: 0.5,
            ..default()
        };
        for (key, config) in [("base_weight", base_weight), ("growth", growth)] {
            let error = StagedBlockLoss::new(&config).unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}
