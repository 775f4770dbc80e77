//! The loss of Medusa's heads (<https://arxiv.org/abs/2401.10774>): cross-entropy with the text, head `k` weighted `0.8^k`;
//! see [`crate::draft_heads`].
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::medusa::Medusa;

use crate::batch::Batch;
use crate::divergence::Divergence;
use crate::draft_heads::HeadsLoss;
use crate::error::Result;
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::token_loss::{TokenLoss, judges};
use crate::workload::Workload;

/// The `[objective]` table of a Medusa recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MedusaLossConfig {
    /// The loss of head *k*, from 0, counts `decay`^*k*; above 0, at most 1.
    pub decay: f64,
    /// Factor on the cross-entropy with the text.
    pub label_weight: f64,
    /// Factor on the divergence from the target's distribution.
    pub teacher_weight: f64,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
}

impl Default for MedusaLossConfig {
    fn default() -> Self {
        Self {
            decay: 0.8,
            label_weight: 1.0,
            teacher_weight: 0.0,
            divergence: Divergence::Kl,
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct MedusaLoss(HeadsLoss);

impl Objective<Medusa> for MedusaLoss {
    type Config = MedusaLossConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        let (labels, teacher) = (config.label_weight, config.teacher_weight);
        let loss = TokenLoss::new(labels, teacher, config.divergence)?;
        let loss = HeadsLoss::new(config.decay, loss)?;
        Ok(Self(loss))
    }

    fn workload(config: &Self::Config, _: &str) -> Workload {
        Workload::texts(judges(config.teacher_weight, config.divergence))
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &Medusa, batch: &Batch, statistics: Statistics) -> Loss {
        self.0.of(drafter, batch, statistics)
    }
}
