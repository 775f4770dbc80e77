//! DEER's two stages of alignment (<https://arxiv.org/abs/2512.15176>) on a DFlash drafter: first blocks of which some tokens are
//! masked, then blocks of any length that are masked whole and count most where they begin.
use spectrain_models::dflash::DFlash;

use super::BlockLoss;
use super::config::{BlockLossConfig, SlotWeights};
use super::cover::BlockMasking;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::workload::Workload;

/// [`BlockLoss`] in two stages, which decide on `masking` and `slot_weights`.
#[derive(Debug, Clone)]
pub struct StagedBlockLoss(BlockLoss);

const ALIGN: &str = "align";
const REFINE: &str = "refine";

impl Objective<DFlash> for StagedBlockLoss {
    type Config = BlockLossConfig;

    const STAGES: &'static [&'static str] = &[ALIGN, REFINE];

    fn new(config: &Self::Config) -> Result<Self> {
        Self::of_stage(config, REFINE)
    }

    fn of_stage(config: &Self::Config, stage: &str) -> Result<Self> {
        let default = BlockLossConfig::default();
        for (key, given) in [
            ("masking", config.masking != default.masking),
            ("slot_weights", config.slot_weights != default.slot_weights),
        ] {
            if given {
                let expected = "none, as the stages decide on it";
                return Err(Error::objective(key, expected, "a value".into()));
            }
        }
        Ok(Self(BlockLoss::new(&Self::settings_of(config, stage))?))
    }

    fn settings_of(config: &Self::Config, stage: &str) -> Self::Config {
        let (default, config) = (BlockLossConfig::default(), config.clone());
        let (masking, slot_weights, growth) = match stage {
            ALIGN => (BlockMasking::Some, SlotWeights::Uniform, default.growth),
            _ => (BlockMasking::Last, SlotWeights::Rising, config.growth),
        };
        BlockLossConfig {
            masking,
            slot_weights,
            growth,
            // The curriculum is at the beginning of the training.
            base_weight: if stage == ALIGN {
                config.base_weight
            } else {
                0.0
            },
            ..config
        }
    }

    fn workload(config: &Self::Config, stage: &str) -> Workload {
        BlockLoss::workload(&Self::settings_of(config, stage), stage)
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
        let config = BlockLossConfig {
            growth: 1.02,
            base_weight: 0.8,
            ..BlockLossConfig::default()
        };
        let align = StagedBlockLoss::settings_of(&config, ALIGN);
        assert_eq!(
            (align.masking, align.slot_weights, align.growth),
            (BlockMasking::Some, SlotWeights::Uniform, 1.01)
        );
        let refine = StagedBlockLoss::settings_of(&config, REFINE);
        assert_eq!(
            (refine.masking, refine.slot_weights, refine.growth),
            (BlockMasking::Last, SlotWeights::Rising, 1.02)
        );
        assert_eq!([align.base_weight, refine.base_weight], [0.8, 0.0]);
        let config = BlockLossConfig {
            masking: BlockMasking::Last,
            ..config
        };
        let error = StagedBlockLoss::new(&config).unwrap_err().to_string();
        assert!(
            error.contains("masking") && error.contains("stages"),
            "{error}"
        );
    }
}
