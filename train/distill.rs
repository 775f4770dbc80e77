//! Distillation of a target into a language model of its own (DistillSpec, <https://arxiv.org/abs/2310.08461>; GKD,
//! <https://arxiv.org/abs/2306.13649>): a divergence between the two at every token of a reply, over texts of the data or
//! over replies that the drafter writes itself.
//!
//! Position `t` has seen `x_t` and predicts `x_{t+1}`; the target's distribution of row `t` judges it. It counts where
//! `x_{t+1}` is in the loss mask and so is `x_t`, after which a decoder first drafts.
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::Drafter as _;
use spectrain_models::language_model::LanguageModel;
use spectrain_models::weights::held_in;

use crate::batch::{Batch, Rows};
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::on_policy::{OnPolicyConfig, rewrite};
use crate::row::JudgedRow;
use crate::token_loss::{DrafterOnBatch, TokenLoss, head, judges};
use crate::weight::Weight;
use crate::workload::Workload;

/// The `[objective]` table of a DistillSpec recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DistillConfig {
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
    /// Factor on this divergence; 0 trains on the text alone.
    pub teacher_weight: Weight,
    /// Factor on the cross-entropy with the text.
    pub label_weight: Weight,
    /// Temperature of both distributions that the divergence compares.
    pub temperature: f64,
    /// What the losses of a batch are averaged over.
    pub average: Average,
    /// Batches whose replies the drafter writes itself.
    pub on_policy: OnPolicyConfig,
}

/// What the losses of a batch are averaged over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// All positions that count.
    Tokens,
    /// First the positions of each conversation, then the conversations, as in the paper.
    Samples,
}

impl Default for DistillConfig {
    fn default() -> Self {
        Self {
            divergence: Divergence::Kl,
            teacher_weight: Weight::Fixed(1.0),
            label_weight: Weight::Fixed(0.0),
            temperature: 1.0,
            average: Average::Tokens,
            on_policy: OnPolicyConfig::default(),
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Distill {
    loss: TokenLoss,
    config: DistillConfig,
}

impl Objective<LanguageModel> for Distill {
    type Config = DistillConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        let (labels, teacher) = (config.label_weight, config.teacher_weight);
        let loss = TokenLoss::new(labels, teacher, config.divergence.clone())?;
        let temperature = config.temperature;
        if !(temperature > 0.0 && temperature.is_finite()) {
            let got = temperature.to_string();
            return Err(Error::objective("temperature", "above 0", got));
        }
        config.on_policy.check()?;
        Ok(Self {
            loss,
            config: config.clone(),
        })
    }

    fn workload(config: &Self::Config, _: &str) -> Workload {
        Workload::texts(judges(config.teacher_weight, &config.divergence))
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &LanguageModel, batch: &Batch, statistics: Statistics) -> Loss {
        let dtype = batch.features().last.dtype();
        let hidden = drafter.hidden(batch.tokens.clone(), &batch.layout, dtype);
        let judged = DrafterOnBatch {
            head: &|| head(drafter.model(), drafter.trains_head()),
            target: drafter.target(),
            vocabulary: drafter.vocabulary(),
            batch,
            temperature: self.config.temperature,
        };
        let hidden: Tensor<2> = hidden.flatten(0, 1);
        let (rows, counted) = self.rows(&batch.rows);
        let mut loss = self.loss.of(&judged, hidden, rows, None, statistics);
        loss.counted = counted;
        // Each position reads the text itself and belongs to the drafts behind all places before it, not to one of them.
        loss.tell_no_chains();
        loss
    }

    fn on_policy_fraction(&self) -> f64 {
        self.config.on_policy.fraction
    }

    fn rewrite(
        &self,
        drafter: &LanguageModel,
        rows: &Rows,
        stop: &[u32],
        seed: u64,
    ) -> Option<Rows> {
        // As it drafts: on a GPU each token would read masters of twice the size.
        let merged = drafter.merged().expect("merging fails on nothing");
        let writer = held_in(merged, drafter.target().dtype()).fused();
        rewrite(&writer, rows, &self.config.on_policy, stop, seed)
    }
}

impl Distill {
    /// The positions that count, and what their sum is divided by.
    fn rows(&self, batch: &Rows) -> (Vec<JudgedRow>, f64) {
        let counts = |&at: &usize| batch.drafts(at, 1);
        let counted: Vec<usize> = (0..batch.len()).filter(counts).collect();
        let (weights, divisor) = match self.config.average {
            Average::Tokens => {
                let share = 1.0 / counted.len().max(1) as f32;
                (vec![share; counted.len()], counted.len())
            }
            Average::Samples => by_sample(batch, &counted),
        };
        let row = |(position, weight)| JudgedRow {
            step: 0,
            position,
            teacher: position,
            weight,
        };
        let rows = counted.into_iter().zip(weights).map(row).collect();
        (rows, divisor as f64)
    }
}

/// A weight for each of `counted` so that those of every conversation have the same sum, and all have 1; and how many
/// conversations there are.
fn by_sample(batch: &Rows, counted: &[usize]) -> (Vec<f32>, usize) {
    let layout = &batch.layout;
    let sample = |at: usize| (at / layout.row_length, layout.documents[at]);
    let mut sizes = std::collections::BTreeMap::new();
    for &at in counted {
        *sizes.entry(sample(at)).or_insert(0usize) += 1;
    }
    let samples = sizes.len() as f32;
    let weight = |&at: &usize| 1.0 / (samples * sizes[&sample(at)] as f32);
    (counted.iter().map(weight).collect(), sizes.len())
}
