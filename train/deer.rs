//! The losses of a masked-diffusion drafter, one for each stage of its training (DEER,
//! <https://arxiv.org/abs/2512.15176>).
//!
//! - `adapt`: each token of the replies is masked with probability t, drawn for each text; this turns a model that writes from
//!   left to right into one that fills masks.
//! - `align` (stage I): the text is cut at a place of a reply, a separator follows, and each token of the rest of that reply is
//!   masked with probability t.
//! - `refine` (stage II): behind the cut and the separator R masks stand, R drawn from 1 to `span`; the i-th counts
//!   `alpha^(R-i)`. In a validation R is the drafter's `block_size`.
//!
//! A mask at the place of `x_i` predicts `x_i`: that token judges it, or the target's distribution of row `i-1`. The loss is
//! `1/t` times the sum over masks, over all tokens that might have been masked in the batch, or the weighted mean over masks.
//! The last token before a cut and the first one behind it are both in the loss mask, as a decoder drafts after a token of the
//! reply.
//!
//! In stage II a text may be cut at several places (`cuts`), which costs a causal text little more than the blocks and a
//! bidirectional one a copy of the text for each. The paper cuts once.
//!
//! The paper cuts an answer and goes on to its end. A conversation of several turns is continued to the end of the turn that
//! was cut: what the user says next is known to no decoder. In stage II masks go on behind the end of the reply, as a decoder's
//! do, and are not judged there; without them the number of masks would tell where the reply ends. t is drawn from
//! `least_masked` to 1, as a share of nearly 0 has a weight without bound.
mod sequences;
mod stage;

use std::collections::BTreeMap;

use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::Drafter as _;
use spectrain_models::bounds;
use spectrain_models::masked_language_model::{MaskedLanguageModel, Places};

use self::sequences::{Drawing, Mask, Sequences};
pub use self::stage::DeerStage;
use crate::batch::Batch;
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::row::JudgedRow;
use crate::teacher::indices;
use crate::token_loss::{DrafterOnBatch, TokenLoss, head, judges};
use crate::weight::Weight;
use crate::workload::{WorkRows, Workload};

/// The `[objective]` table of a DEER recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeerLossConfig {
    /// Factor on the cross-entropy with the text.
    pub label_weight: Weight,
    /// Factor on the divergence from the target's distribution.
    pub teacher_weight: Weight,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
    /// Blocks of a text in the stage `refine`, each after its own cut; the paper has one. With a bidirectional context each
    /// block costs a copy of the text.
    pub cuts: usize,
    /// The smallest share of tokens that the stages `adapt` and `align` mask; the smaller it is, the larger the weight of a
    /// rare mask.
    pub least_masked: f64,
    /// The most masks after a cut in the stage `refine`.
    pub span: usize,
    /// Ratio of a mask's weight to that of the mask after it, in the stage `refine`; at least 1. The authors found 1.02 noisy
    /// and saw 1.05 diverge.
    pub alpha: f64,
}

impl Default for DeerLossConfig {
    fn default() -> Self {
        Self {
            label_weight: Weight::Fixed(1.0),
            teacher_weight: Weight::Fixed(0.0),
            divergence: Divergence::Kl,
            cuts: 1,
            least_masked: 0.001,
            span: 96,
            alpha: 1.01,
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct DeerLoss {
    loss: TokenLoss,
    drawing: Drawing,
}

impl Objective<MaskedLanguageModel> for DeerLoss {
    type Config = DeerLossConfig;

    const STAGES: &'static [&'static str] = &[
        DeerStage::ALL[0].0,
        DeerStage::ALL[1].0,
        DeerStage::ALL[2].0,
    ];

    /// The loss of the last stage.
    fn new(config: &Self::Config) -> Result<Self> {
        Self::at(config, DeerStage::Refine)
    }

    fn of_stage(config: &Self::Config, stage: &str) -> Result<Self> {
        match DeerStage::ALL.iter().find(|(name, _)| *name == stage) {
            Some(&(_, stage)) => Self::at(config, stage),
            None => panic!("there is no stage `{stage}`"),
        }
    }

    fn settings_of(config: &Self::Config, stage: &str) -> Self::Config {
        let unread = Self::Config::default();
        let mut settings = config.clone();
        if stage == DeerStage::ALL[2].0 {
            settings.least_masked = unread.least_masked;
        } else {
            (settings.span, settings.alpha) = (unread.span, unread.alpha);
            settings.cuts = unread.cuts;
        }
        settings
    }

    fn workload(config: &Self::Config, stage: &str) -> Workload {
        let stage = DeerStage::ALL.iter().find(|(name, _)| *name == stage);
        let (cuts, places) = match stage.map(|(_, stage)| stage) {
            Some(DeerStage::Adapt) => (1, 0),
            // The rest of the text goes on behind what separates it.
            Some(DeerStage::Align) => (1, 1),
            Some(DeerStage::Refine) | None => (config.cuts, 1 + config.span),
        };
        Workload {
            rows: WorkRows::Behind { cuts, places },
            // Of tokens masked with any probability half are, on average.
            judged: if places > 1 { 1.0 } else { 0.5 },
            ..Workload::texts(judges(config.teacher_weight, &config.divergence))
        }
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &MaskedLanguageModel, batch: &Batch, statistics: Statistics) -> Loss {
        let sequences = self.sequences(drafter, batch);
        let dtype = batch.features().last.dtype();
        let places = sequences.places(&batch.tokens.device());
        let hidden = drafter.hidden(&places, dtype).flatten(0, 1);
        let judged = DrafterOnBatch {
            head: &|| head(drafter.model(), drafter.trains_head()),
            target: drafter.target(),
            vocabulary: drafter.vocabulary(),
            batch,
            temperature: 1.0,
        };
        let row_of = |mask: &Mask| mask.row * places.width() + mask.column;
        let rows = sequences.masks.iter().map(|mask| JudgedRow {
            step: 0,
            position: row_of(mask),
            teacher: mask.predicts - 1,
            weight: mask.weight as f32,
        });
        let rows = rows.collect();
        let mut loss = self.loss.of(&judged, hidden, rows, None, statistics);
        loss.counted = sequences.whole;
        match self.drawing.stage {
            // Masks stand among tokens that no decoder knows yet.
            DeerStage::Adapt | DeerStage::Align => loss.tell_no_chains(),
            DeerStage::Refine => {
                // A chain of drafts is known by the place of its first token, of which there is one in a batch.
                let chains: BTreeMap<usize, (usize, usize)> = sequences
                    .masks
                    .iter()
                    .map(|mask| (row_of(mask), (mask.predicts - mask.cut, mask.cut)))
                    .collect();
                loss.tell_chains(|row| chains.get(&row).copied());
            }
        }
        loss
    }

    /// Before the stage `align` no separator was ever seen.
    fn drafts(&self) -> bool {
        self.drawing.stage != DeerStage::Adapt
    }
}

impl DeerLoss {
    /// The loss of a stage.
    ///
    /// # Errors
    /// A setting makes no sense.
    pub fn at(config: &DeerLossConfig, stage: DeerStage) -> Result<Self> {
        let (labels, teacher) = (config.label_weight, config.teacher_weight);
        let loss = TokenLoss::new(labels, teacher, config.divergence.clone())?;
        let setting = |key, expected, got| Err(Error::objective(key, expected, got));
        if !(config.least_masked > 0.0 && config.least_masked <= 1.0) {
            let got = config.least_masked.to_string();
            return setting("least_masked", "above 0 and at most 1", got);
        }
        Error::check_objective([
            bounds::up_to("span", config.span, bounds::DRAFT),
            bounds::up_to("cuts", config.cuts, bounds::DRAFT),
        ])?;
        if !(config.alpha >= 1.0 && config.alpha.is_finite()) {
            let got = config.alpha.to_string();
            return setting("alpha", "1 or more", got);
        }
        Ok(Self {
            loss,
            drawing: Drawing {
                stage,
                least_masked: config.least_masked,
                span: config.span,
                alpha: config.alpha,
                // Whole continuations are long, and hold many masks each.
                cuts: match stage {
                    DeerStage::Refine => config.cuts,
                    _ => 1,
                },
            },
        })
    }

    /// What the head reads at each mask that is judged, with places in the batch: that of the first token of its block, and
    /// that of the token which it predicts.
    ///
    /// # Shapes
    /// - output: `[masks, d_model]`
    ///
    /// # Panics
    /// The batch has no features.
    pub fn masks(
        &self,
        drafter: &MaskedLanguageModel,
        batch: &Batch,
    ) -> (Vec<(usize, usize)>, Tensor<2>) {
        let sequences = self.sequences(drafter, batch);
        let places = sequences.places(&batch.tokens.device());
        let hidden = drafter.hidden(&places, batch.features().last.dtype());
        let of = |mask: &Mask| mask.row * places.width() + mask.column;
        let rows: Vec<usize> = sequences.masks.iter().map(of).collect();
        let masks = sequences.masks.iter();
        let hidden: Tensor<2> = hidden.flatten(0, 1);
        let rows = indices(&rows, &hidden.device());
        (
            masks.map(|mask| (mask.cut, mask.predicts)).collect(),
            hidden.select(0, rows),
        )
    }

    /// The rows that the drafter reads of a batch.
    ///
    /// # Panics
    /// The batch has no features.
    pub fn places(&self, drafter: &MaskedLanguageModel, batch: &Batch) -> Places {
        self.sequences(drafter, batch)
            .places(&batch.tokens.device())
    }

    fn sequences(&self, drafter: &MaskedLanguageModel, batch: &Batch) -> Sequences {
        self.drawing
            .draw(&batch.rows, &drafter.blocks(), batch.seed)
    }
}
