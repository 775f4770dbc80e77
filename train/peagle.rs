//! Parallel drafting on EAGLE-3's inputs (P-EAGLE, <https://arxiv.org/abs/2602.01469>): a drafter learns to predict through
//! masks.
//!
//! Row `(b, p)` has seen `x_1..=x_{p-b}`, each beside the features of the token before it, and `b` masks, and predicts
//! `x_{p+1}`; the target's distribution of row `p` judges it. It counts where all of `x_{p-b}..=x_{p+1}` is in the loss mask,
//! as a decoder drafts from `x_{p-b}` on. The later a block, the fewer of its rows are kept (conditional drop).
//!
//! The reference also trains on rows that begin in a prompt.
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::Drafter as _;
use spectrain_models::peagle::PEagle;

use crate::batch::Batch;
use crate::cod::{ConditionalDrop, Subset};
use crate::divergence::Divergence;
use crate::error::Result;
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::pard::{PardLoss, PardLossConfig};
use crate::row::JudgedRow;
use crate::token_loss::{DrafterOnBatch, TokenLoss};
use crate::vocab_loss::{HeadParameter, LossHead};
use crate::weight::Weight;
use crate::workload::Workload;

/// The `[objective]` table of a P-EAGLE recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PEagleLossConfig {
    /// Tokens drafted in one pass during training; a decoder may ask for more.
    pub draft_tokens: usize,
    /// Share of one block's rows that the next block keeps.
    pub keep: f64,
    /// The smallest share of the text that each block keeps.
    pub keep_least: f64,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
}

impl Default for PEagleLossConfig {
    fn default() -> Self {
        Self {
            draft_tokens: 8,
            keep: 0.8,
            keep_least: 0.2,
            divergence: Divergence::Kl,
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct PEagleLoss {
    loss: TokenLoss,
    drop: ConditionalDrop,
}

impl PEagleLossConfig {
    /// The keys that are PARD's.
    fn as_pard(&self) -> PardLossConfig {
        PardLossConfig {
            draft_tokens: self.draft_tokens,
            keep: self.keep,
            keep_least: self.keep_least,
            label_weight: Weight::Fixed(0.0),
            teacher_weight: Weight::Fixed(1.0),
            divergence: self.divergence.clone(),
            ..PardLossConfig::default()
        }
    }
}

impl Objective<PEagle> for PEagleLoss {
    type Config = PEagleLossConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        let own = config.as_pard();
        PardLoss::new(&own)?;
        Ok(Self {
            loss: TokenLoss::new(own.label_weight, own.teacher_weight, own.divergence)?,
            drop: ConditionalDrop {
                blocks: config.draft_tokens,
                keep: config.keep,
                least: config.keep_least,
            },
        })
    }

    fn workload(config: &Self::Config, stage: &str) -> Workload {
        PardLoss::workload(&config.as_pard(), stage)
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &PEagle, batch: &Batch, statistics: Statistics) -> Loss {
        let subset = match batch.seed {
            Some(seed) => self.drop.draw(&batch.rows, seed),
            None => self.drop.chains(&batch.rows),
        };
        let subset = subset.behind_features();
        let hidden = hidden(drafter, batch, &subset);
        let judged = DrafterOnBatch {
            head: &|| LossHead {
                weight: drafter.head(),
                bias: None,
                trained: drafter.head_parameter().map(HeadParameter::Weight),
            },
            target: drafter.target(),
            vocabulary: drafter.vocabulary(),
            batch,
            temperature: 1.0,
        };
        let counted = subset.counted(&batch.rows);
        let weight = 1.0 / (counted.len() as f32).max(1.0);
        let rows = counted.iter().map(|&(row, (_, position))| JudgedRow {
            step: 0,
            position: row,
            teacher: position,
            weight,
        });
        let mut loss = self
            .loss
            .of(&judged, hidden, rows.collect(), None, statistics);
        loss.counted = counted.len() as f64;
        // A chain of drafts is known by the position of the token it follows.
        loss.tell_chains(|row| {
            let (block, position) = subset.places()[row]?;
            Some((block, position - block))
        });
        loss
    }
}

/// What the head reads at each row, `[batch * width, d_model]`.
fn hidden(drafter: &PEagle, batch: &Batch, subset: &Subset) -> Tensor<2> {
    let (device, rows) = (batch.tokens.device(), &batch.rows);
    let shape = [rows.layout.rows, subset.width()];
    let ints =
        |values: Vec<i64>| Tensor::<1, Int>::from_ints(values.as_slice(), &device).reshape(shape);
    let (tokens, positions) = subset.inputs(rows, drafter.mask_token());
    // The first token that is read is the second of the text.
    let positions = positions.into_iter().map(|at| (at - 1).max(0)).collect();
    let features = subset.features(rows, 0.0, None);
    let of_text = |(feature, place): (&usize, &Option<(usize, usize)>)| {
        let is_text = place.is_some_and(|(block, _)| block == 0);
        (is_text && *feature < rows.len()).then_some(*feature)
    };
    let of: Vec<Option<usize>> = features.iter().zip(subset.places()).map(of_text).collect();
    let fused = drafter.fused(batch.features().captured.clone(), &of);
    let width = fused.dims()[2];
    let fused = fused.reshape([shape[0], shape[1], width]);
    let rotation = drafter.target().spec.rotary(&device).at(ints(positions));
    let mask = subset.mask(drafter.sees_back(), &device);
    drafter
        .rows(ints(tokens), fused, &rotation, &mask)
        .flatten(0, 1)
}
