//! The loss of Hydra's heads (<https://arxiv.org/abs/2402.05109>): cross-entropy with the text, all heads alike; Hydra++ takes
//! the target's distribution in its place. See [`crate::draft_heads`].
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::hydra::Hydra;

use crate::batch::Batch;
use crate::divergence::Divergence;
use crate::draft_heads::HeadsLoss;
use crate::error::Result;
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::token_loss::{TokenLoss, judges};
use crate::workload::Workload;

/// The `[objective]` table of a Hydra recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HydraLossConfig {
    /// The loss of head *k*, from 0, counts `decay`^*k*; above 0, at most 1.
    pub decay: f64,
    /// Factor on the cross-entropy with the text; 0 in Hydra++.
    pub label_weight: f64,
    /// Factor on the divergence from the target's distribution; 1 in Hydra++.
    pub teacher_weight: f64,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
}

impl Default for HydraLossConfig {
    fn default() -> Self {
        Self {
            decay: 1.0,
            label_weight: 1.0,
            teacher_weight: 0.0,
            divergence: Divergence::Kl,
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct HydraLoss(HeadsLoss);

impl Objective<Hydra> for HydraLoss {
    type Config = HydraLossConfig;

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
    fn loss(&self, drafter: &Hydra, batch: &Batch, statistics: Statistics) -> Loss {
        self.0.of(drafter, batch, statistics)
    }
}
