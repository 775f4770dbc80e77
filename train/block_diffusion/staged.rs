//! DEER's two stages of alignment (<https://arxiv.org/abs/2512.15176>) on a DFlash drafter: first blocks of which some tokens are
//! masked, then blocks of any length that are masked whole and count most where they begin.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::dflash::DFlash;

use super::BlockLoss;
use super::config::{Anchors, BlockLossConfig, SlotWeights, fill_base};
use super::cover::BlockMasking;
use super::paths_config::PathLossConfig;
use crate::batch::Batch;
use crate::divergence::Divergence;
use crate::error::Result;
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::weight::Weight;
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
    pub label_weight: Weight,
    /// Factor on the divergence from the target's distribution; with `divergence = "ce"` the label is the target's most
    /// likely token.
    pub teacher_weight: Weight,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
    /// In `refine`: ratio of a slot's weight to that of the slot after it; 1.05 diverged for the authors of DEER.
    pub growth: f64,
    /// Whether the sum of the losses is divided by the number of slots that count, as in speculators, and not by the sum of
    /// their weights.
    pub divide_by_count: bool,
    /// Factor on the cross-entropy of the path selector, if the drafter has one.
    pub selector_weight: Weight,
    /// Whether the text's token replaces the least likely candidate in slots where it is not a candidate (speculators,
    /// TorchSpec); otherwise the selector learns nothing from such slots (SpecForge, NeMo, ModelOpt). Validations always do so.
    pub inject: bool,
    /// Factor on the cross-entropy of the confidence head, if the drafter has one.
    pub confidence_weight: Weight,
    /// In `align`: share of the loss that judges the slots without what the tokens before them add, if the drafter has such a
    /// bias (`markov_rank`). A number is the share in the first step, which falls linearly to 0, so that layers learn before the
    /// bias does; Domino uses 1. A table says itself how the share changes.
    pub base_weight: Weight,
    /// The part of the steps of `align` in which a number `base_weight` falls to 0; a table has its own `until` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_until: Option<f64>,
    /// In `refine`, with `markov = "xpress"`, and nowhere else: factor on the mean loss of the slots behind tokens that the drafter
    /// has drafted itself, in place of the text's; 0.3 where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency_weight: Option<Weight>,
    /// How many such losses there are, 3 where it is left out: the first is behind what is guessed at once, each further one behind
    /// what another pass makes of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency_passes: Option<usize>,
    /// In `refine`, with `markov = "xpress"`, and nowhere else: factor on the loss of what is guessed at once, without the bias; 0.6
    /// where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guess_weight: Option<Weight>,
    /// In `refine`, with a table `lattice` of the drafter, and nowhere else: the loss of its lattice, which is as by default where this
    /// is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<PathLossConfig>,
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
            consistency_weight: of_blocks.consistency_weight,
            consistency_passes: of_blocks.consistency_passes,
            guess_weight: of_blocks.guess_weight,
            paths: of_blocks.paths,
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
        // Neither of these weights reads them.
        let BlockLossConfig {
            decay_slots,
            certainty,
            ..
        } = BlockLossConfig::default();
        BlockLossConfig {
            masking,
            slot_weights,
            decay_slots,
            certainty,
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
            consistency_weight: own.consistency_weight,
            consistency_passes: own.consistency_passes,
            guess_weight: own.guess_weight,
            paths: own.paths,
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
            // Some tokens are shown there, and nothing is drafted.
            ALIGN => StagedBlockLossConfig {
                growth: default.growth,
                consistency_weight: default.consistency_weight,
                consistency_passes: default.consistency_passes,
                guess_weight: default.guess_weight,
                paths: default.paths,
                ..config
            },
            // The curriculum is at the beginning of the training.
            _ => StagedBlockLossConfig {
                base_weight: Weight::Fixed(0.0),
                ..config
            },
        }
    }

    fn fill(config: &mut Self::Config, given: &dyn Fn(&str) -> bool) {
        fill_base(config.base_weight, &mut config.base_until, given);
    }

    fn explicit(config: &Self::Config) -> Self::Config {
        let blocks = config.blocks(REFINE).explicit();
        StagedBlockLossConfig {
            consistency_weight: blocks.consistency_weight,
            consistency_passes: blocks.consistency_passes,
            guess_weight: blocks.guess_weight,
            paths: blocks.paths,
            ..config.clone()
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
            base_weight: 0.8.into(),
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
        // A validation of the first stage, whose settings have no key of XPress, counts nothing that the stage does not learn.
        let of_drafts = [&align, &refine].map(|blocks| [blocks.consistency(), blocks.guesses()]);
        let counted = [Weight::Fixed(0.3), Weight::Fixed(0.6)];
        assert_eq!(of_drafts, [[Weight::Fixed(0.0); 2], counted]);
        let [align, refine] = [align, refine].map(|blocks| blocks.base_weight);
        assert_eq!([align, refine], [0.8.into(), 0.0.into()]);
    }

    /// Keys of [`BlockLossConfig`] on which the stages decide, or which what they decide on does not read.
    const NO_KEYS: [&str; 4] = ["masking", "slot_weights", "decay_slots", "certainty"];

    fn keys<T: JsonSchema>() -> Vec<String> {
        let schema = schemars::schema_for!(T).to_value();
        let keys = schema["properties"].as_object().unwrap().keys();
        keys.cloned().collect()
    }

    #[test]
    fn every_key_of_the_loss_is_one_of_the_stages_but_those_that_they_decide_on() {
        let mut expected = keys::<BlockLossConfig>();
        let of_blocks = expected.len();
        expected.retain(|key| !NO_KEYS.contains(&key.as_str()));
        assert_eq!(expected.len(), of_blocks - NO_KEYS.len());
        assert_eq!(keys::<StagedBlockLossConfig>(), expected);
    }

    #[test]
    fn what_the_stages_decide_on_is_no_key_even_with_the_value_that_dflash_has_by_default() {
        let default = serde_json::to_value(StagedBlockLossConfig::default()).unwrap();
        let of_dflash = serde_json::to_value(BlockLossConfig::default()).unwrap();
        for key in NO_KEYS {
            assert!(default.get(key).is_none(), "{key}");
            let given = serde_json::json!({ key: of_dflash[key] });
            let read = serde_json::from_value::<StagedBlockLossConfig>(given);
            let error = read.unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")), "{error}");
        }
    }

    #[test]
    fn the_keys_of_drafts_are_written_where_they_are_given_in_the_stage_that_reads_them() {
        let written = |config: &StagedBlockLossConfig, stage| {
            let of_stage = StagedBlockLoss::settings_of(config, stage);
            let written = serde_json::to_value(of_stage).unwrap();
            let keys = [
                "consistency_weight",
                "consistency_passes",
                "guess_weight",
                "paths",
            ];
            keys.map(|key| written.get(key).is_some())
        };
        let none = StagedBlockLossConfig::default();
        let given = StagedBlockLossConfig {
            consistency_weight: Some(0.1.into()),
            consistency_passes: Some(2),
            guess_weight: Some(0.2.into()),
            paths: Some(PathLossConfig::default()),
            ..none.clone()
        };
        assert_eq!(written(&none, ALIGN), [false; 4]);
        assert_eq!(written(&none, REFINE), [false; 4]);
        assert_eq!(written(&given, ALIGN), [false; 4]);
        assert_eq!(written(&given, REFINE), [true; 4]);
    }

    #[test]
    fn settings_of_either_stage_are_checked_before_the_first() {
        let default = StagedBlockLossConfig::default;
        let base_weight = StagedBlockLossConfig {
            base_weight: 1.5.into(),
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
