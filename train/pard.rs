//! Parallel adaptation of a language model (PARD, <https://arxiv.org/abs/2504.18583>): it learns to predict through masks.
//!
//! Row `(b, p)` has seen `x_0..=x_{p-b}` and `b` masks, and predicts `x_{p+1}`; the target's distribution of row `p` judges
//! it, or the text. Block 0 is the text itself. It counts where all of `x_{p-b}..=x_{p+1}` is in the loss mask, as a decoder
//! drafts from `x_{p-b}` on. The later a block, the fewer of its rows are kept (conditional drop); those that are kept see
//! their whole chain of masks, so that what is dropped changes nothing for what is not.
//!
//! Two things of the reference are not followed: it trains on prompts too, and since it pads with the end token, it never
//! trains on that token.
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::Drafter as _;
use spectrain_models::bounds;
use spectrain_models::pard::Pard;

use crate::batch::Batch;
use crate::cod::{ConditionalDrop, Subset};
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::row::JudgedRow;
use crate::teacher::{Teacher, indices};
use crate::token_loss::{DrafterOnBatch, TokenLoss, head, judges};
use crate::weight::Weight;
use crate::workload::{WorkRows, Workload};

/// The `[objective]` table of a PARD recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PardLossConfig {
    /// Tokens drafted in one pass during training; a decoder may ask for more.
    pub draft_tokens: usize,
    /// Share of one block's rows that the next block keeps.
    pub keep: f64,
    /// The smallest share of the text that each block keeps.
    pub keep_least: f64,
    /// Factor on the cross-entropy with the text; 0.1 in PARD-2.
    pub label_weight: Weight,
    /// Factor on the divergence from the target's distribution; 1 in PARD-2.
    pub teacher_weight: Weight,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
    /// Whether each row is weighted by the target's probability of the tokens under its masks (PARD-2).
    pub confidence_weights: bool,
    /// Share of the conversations in a step whose features are left out, so that the same weights can also draft without
    /// features; 0.1 to 0.2 in PARD-2.
    pub feature_dropout: f64,
}

impl Default for PardLossConfig {
    fn default() -> Self {
        Self {
            draft_tokens: 8,
            keep: 0.7,
            keep_least: 0.2,
            label_weight: Weight::Fixed(1.0),
            teacher_weight: Weight::Fixed(0.0),
            divergence: Divergence::Kl,
            confidence_weights: false,
            feature_dropout: 0.0,
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct PardLoss {
    loss: TokenLoss,
    config: PardLossConfig,
}

impl Objective<Pard> for PardLoss {
    type Config = PardLossConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        let (labels, teacher) = (config.label_weight, config.teacher_weight);
        let loss = TokenLoss::new(labels, teacher, config.divergence.clone())?;
        let setting = |key, expected, got| Err(Error::objective(key, expected, got));
        let draft = bounds::up_to("draft_tokens", config.draft_tokens, bounds::DRAFT);
        Error::check_objective([draft])?;
        for (key, share) in [("keep", config.keep), ("keep_least", config.keep_least)] {
            if !(share > 0.0 && share <= 1.0) {
                return setting(key, "above 0 and at most 1", share.to_string());
            }
        }
        if !(0.0..=1.0).contains(&config.feature_dropout) {
            let got = config.feature_dropout.to_string();
            return setting("feature_dropout", "a number from 0 to 1", got);
        }
        Ok(Self {
            loss,
            config: config.clone(),
        })
    }

    fn workload(config: &Self::Config, _: &str) -> Workload {
        let drop = ConditionalDrop {
            blocks: config.draft_tokens,
            keep: config.keep,
            least: config.keep_least,
        };
        Workload {
            rows: WorkRows::Extended(drop.rows_per_position()),
            ..Workload::texts(judges(config.teacher_weight, &config.divergence))
        }
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &Pard, batch: &Batch, statistics: Statistics) -> Loss {
        let subset = self.subset(batch);
        let hidden = self.hidden(drafter, batch, &subset);
        let judged = DrafterOnBatch {
            head: &|| head(drafter.model(), drafter.trains_head()),
            target: drafter.target(),
            vocabulary: drafter.vocabulary(),
            batch,
            temperature: 1.0,
        };
        let (rows, counted) = self.rows(drafter, batch, &subset);
        let mut loss = self.loss.of(&judged, hidden, rows, None, statistics);
        loss.counted = counted;
        // A chain of drafts is known by the position of the token it follows.
        loss.tell_chains(|row| {
            let (block, position) = subset.places()[row]?;
            Some((block, position - block))
        });
        loss
    }
}

impl PardLoss {
    /// The rows that a batch is trained on: drawn from its seed, or whole chains where it has none.
    pub fn subset(&self, batch: &Batch) -> Subset {
        let drop = ConditionalDrop {
            blocks: self.config.draft_tokens,
            keep: self.config.keep,
            least: self.config.keep_least,
        };
        match batch.seed {
            Some(seed) => drop.draw(&batch.rows, seed),
            None => drop.chains(&batch.rows),
        }
    }

    /// What the head reads at each row, `[batch * width, d_model]`.
    ///
    /// # Panics
    /// The batch has no features.
    pub fn hidden(&self, drafter: &Pard, batch: &Batch, subset: &Subset) -> Tensor<2> {
        let device = batch.tokens.device();
        let shape = [batch.rows.layout.rows, subset.width()];
        let ints = |values: Vec<i64>| {
            Tensor::<1, Int>::from_ints(values.as_slice(), &device).reshape(shape)
        };
        let (tokens, positions) = subset.inputs(&batch.rows, drafter.mask_token());
        let added = drafter.project(batch.features()).map(|projected| {
            let [_, _, width] = projected.dims();
            let projected: Tensor<2> = projected.flatten(0, 1);
            // The row behind the last one stands for no feature.
            let none = Tensor::zeros([1, width], (&projected.device(), projected.dtype()));
            let known = Tensor::cat(vec![projected, none], 0);
            let of = subset.features(&batch.rows, self.config.feature_dropout, batch.seed);
            known
                .select(0, indices(&of, &device))
                .reshape([shape[0], shape[1], width])
        });
        let mask = |window| Some(subset.mask(window, &device));
        let dtype = batch.features().last.dtype();
        let hidden = drafter.hidden(ints(tokens), ints(positions), added, (&mask, None), dtype);
        hidden.flatten(0, 1)
    }

    /// The rows that count, and what their sum is divided by.
    fn rows(&self, drafter: &Pard, batch: &Batch, subset: &Subset) -> (Vec<JudgedRow>, f64) {
        let counted = subset.counted(&batch.rows);
        let weights = if self.config.confidence_weights {
            confidence(drafter, batch, &counted)
        } else {
            vec![1.0; counted.len()]
        };
        let sum: f32 = weights.iter().sum();
        let row = |(&(row, (_, position)), weight): (&(usize, (usize, usize)), f32)| JudgedRow {
            step: 0,
            position: row,
            teacher: position,
            weight: weight / sum.max(f32::MIN_POSITIVE),
        };
        let rows = counted.iter().zip(weights).map(row).collect();
        (rows, sum as f64)
    }
}

/// The product of the target's probabilities of the tokens under the masks of each row (PARD-2's confidence-adaptive
/// weights).
fn confidence(drafter: &Pard, batch: &Batch, counted: &[(usize, (usize, usize))]) -> Vec<f32> {
    let rows = &batch.rows;
    let mut wanted: Vec<usize> = counted
        .iter()
        .flat_map(|&(_, (block, position))| position - block..position)
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    let last = batch.features().last.clone().without_autodiff();
    let vocabulary = spectrain_data::vocabulary::DraftVocabulary::full(drafter.target().spec.vocab);
    let teacher = Teacher::new(last, drafter.target(), &vocabulary);
    let tokens: Vec<u32> = wanted.iter().map(|&at| rows.tokens[at + 1]).collect();
    let sure = teacher.log_probabilities(&wanted, &tokens);
    let of = |at: usize| wanted.binary_search(&at).map_or(0.0, |place| sure[place]);
    let weight = |&(_, (block, position)): &(usize, (usize, usize))| {
        (position - block..position).map(of).sum::<f32>().exp()
    };
    counted.iter().map(weight).collect()
}
