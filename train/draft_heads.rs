//! The loss of drafters with one head for each draft depth: cross-entropy with the text, a divergence from the target, or
//! both, summed over the heads. Medusa (<https://arxiv.org/abs/2401.10774>) weighs head `k` by `0.8^k`; Hydra
//! (<https://arxiv.org/abs/2402.05109>) weighs all alike, as does ReDrafter (<https://arxiv.org/abs/2403.09919>), whose steps
//! count as heads here; Hydra++ takes the target's distribution in place of the text.
//!
//! Head `k` reads the target's last hidden state of `x_t` (Hydra's and ReDrafter's also `x_{t+1}..=x_{t+1+k}`) and predicts `x_{t+2+k}`;
//! that token judges it, or the target's distribution of row `t+1+k`. A position counts where all of `x_{t+1}..=x_{t+2+k}` is
//! in the loss mask, as a decoder drafts from `x_{t+1}` on.
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_models::draft_heads::DraftHeads;
use spectrain_models::mask::shift_left;

use crate::batch::Batch;
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::judge::{Judge, Statistics};
use crate::objective::{Loss, Objective};
use crate::row::JudgedRow;
use crate::teacher::Teacher;
use crate::token_loss::{LABELS, TEACHER, TokenLoss, judges};
use crate::training_time_test::MaskAlign;
use crate::vocab_loss::{HeadParameter, JudgedRows, LossHead, VocabLoss, judged_loss};
use crate::weight::Weight;
use crate::workload::Workload;

/// The `[objective]` table of a recipe whose drafter has heads. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HeadsLossConfig {
    /// The loss of head *k*, counted from 0, is weighted by `decay`^*k*; above 0, at most 1. Left out: 0.8 for Medusa, 1 for
    /// Hydra and ReDrafter, whose draft steps count as heads.
    pub decay: Option<f64>,
    /// Factor on the cross-entropy with the text; 0 in Hydra++.
    pub label_weight: Weight,
    /// Factor on the divergence from the target's distribution; 1 in Hydra++.
    pub teacher_weight: Weight,
    /// The divergence from the target's distribution.
    pub divergence: Divergence,
}

impl Default for HeadsLossConfig {
    fn default() -> Self {
        Self {
            decay: None,
            label_weight: Weight::Fixed(1.0),
            teacher_weight: Weight::Fixed(0.0),
            divergence: Divergence::Kl,
        }
    }
}

impl HeadsLossConfig {
    /// See [`decay`](Self::decay).
    fn decay_for<D: DraftHeads>(&self) -> f64 {
        self.decay.unwrap_or(D::LOSS_DECAY)
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct HeadsLoss {
    /// The loss of head `k` counts `decay^k`.
    decay: f64,
    /// What each head is judged by.
    loss: TokenLoss,
}

impl<D: DraftHeads> Objective<D> for HeadsLoss {
    type Config = HeadsLossConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        let (labels, teacher) = (config.label_weight, config.teacher_weight);
        let loss = TokenLoss::new(labels, teacher, config.divergence.clone())?;
        let decay = config.decay_for::<D>();
        if decay > 0.0 && decay <= 1.0 {
            Ok(Self { decay, loss })
        } else {
            let found = decay.to_string();
            Err(Error::objective("decay", "above 0 and at most 1", found))
        }
    }

    fn explicit(config: &Self::Config) -> Self::Config {
        HeadsLossConfig {
            decay: Some(config.decay_for::<D>()),
            ..config.clone()
        }
    }

    fn workload(config: &Self::Config, _: &str) -> Workload {
        Workload::texts(judges(config.teacher_weight, &config.divergence))
    }

    /// The loss of `drafter` on `batch`. Where the target judges, the reported steps are of its divergence, else of the
    /// cross-entropy.
    ///
    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &D, batch: &Batch, statistics: Statistics) -> Loss {
        let last = batch.features().last.clone();
        let heads = drafter.max_depth().unwrap_or(0);
        let following: Vec<_> = (0..heads)
            .map(|head| shift_left(batch.tokens.clone(), 1 + head))
            .collect();
        let hidden = drafter.hidden(&following, &batch.layout, last.clone());
        let counted: Vec<_> = (0..heads)
            .map(|head| {
                let counts = |&at: &usize| MaskAlign::Label.counts(&batch.rows, at, head);
                (0..batch.rows.len()).filter(counts).collect()
            })
            .collect();
        let heads = Heads {
            drafter,
            hidden,
            counted,
            decay: self.decay,
            statistics,
        };
        let of = self.loss.at(batch.step);
        let by_text = || heads.by_text(&batch.rows.tokens, of.label_weight);
        let mut loss = if of.reports_target {
            let last = last.without_autodiff();
            let teacher = Teacher::new(last, drafter.target(), drafter.vocabulary());
            let by_target = heads.by_target(teacher, &of.divergence, of.teacher_weight);
            let mut loss = Loss::from(by_target).named(TEACHER);
            if of.label_weight > 0.0 {
                for part in by_text().parts {
                    loss.add_term(LABELS, part);
                }
            }
            loss
        } else {
            Loss::from(by_text()).named(LABELS)
        };
        loss.changing = self.loss.changing(batch.step);
        loss
    }
}

/// All heads over a batch.
struct Heads<'a, D> {
    drafter: &'a D,
    /// What each output layer reads, `[batch * seq, width]`.
    hidden: Vec<Tensor<2>>,
    /// The positions that count for each.
    counted: Vec<Vec<usize>>,
    decay: f64,
    statistics: Statistics,
}

/// The losses of all heads.
struct Parts {
    parts: Vec<VocabLoss>,
    /// Head and position of what counts, but is judged by a token that cannot be proposed.
    missed: Vec<(usize, usize)>,
}

impl From<Parts> for Loss {
    fn from(parts: Parts) -> Self {
        let mut loss: Self = parts.parts.into_iter().collect();
        loss.missed = parts.missed;
        loss
    }
}

impl<D: DraftHeads> Heads<'_, D> {
    /// Cross-entropy with the tokens of the text.
    fn by_text(&self, tokens: &[u32], weight: f64) -> Parts {
        let vocabulary = self.drafter.vocabulary();
        let labels: Vec<_> = tokens.iter().map(|&t| vocabulary.to_draft(t)).collect();
        let known: Vec<u32> = labels.iter().map(|label| label.unwrap_or(0)).collect();
        self.judge(2, weight, |at| labels[at].is_some(), &|| {
            Judge::Labels(&known)
        })
    }

    /// Divergence from the target's distributions.
    fn by_target(&self, mut teacher: Teacher, divergence: &Divergence, weight: f64) -> Parts {
        let counted = self.counted.iter().enumerate();
        let judging = counted.flat_map(|(head, positions)| {
            positions.iter().map(move |position| position + 1 + head)
        });
        teacher.find_proposable(judging);
        let teacher = &teacher;
        let judge = || Judge::Target {
            teacher,
            divergence,
        };
        self.judge(1, weight, |at| teacher.can_be_met(at), &judge)
    }

    /// The loss of each head, times `weight`, where head `k` at position `t` is judged by row `t + ahead + k`, unless what that
    /// row asks for cannot be proposed.
    fn judge<'a>(
        &self,
        ahead: usize,
        weight: f64,
        proposable: impl Fn(usize) -> bool,
        judge: &dyn Fn() -> Judge<'a>,
    ) -> Parts {
        let mut found = Parts {
            parts: Vec::with_capacity(self.hidden.len()),
            missed: Vec::new(),
        };
        let heads = self.hidden.len();
        // Heads with one output layer are judged together: the target's side is computed once, and there is one gradient.
        let together = if self.drafter.shares_output() {
            heads
        } else {
            1
        };
        for first in (0..heads).step_by(together) {
            let group = first..first + together;
            let mut rows = Vec::new();
            for head in group.clone() {
                let (kept, missed): (Vec<usize>, Vec<usize>) = self.counted[head]
                    .iter()
                    .partition(|&position| proposable(position + ahead + head));
                found
                    .missed
                    .extend(missed.iter().map(|&position| (head, position)));
                let share = self.decay.powi(head as i32) / kept.len().max(1) as f64;
                rows.extend(kept.into_iter().map(|position| JudgedRow {
                    step: head - first,
                    position,
                    teacher: position + ahead + head,
                    weight: share as f32,
                }));
            }
            let output = self.drafter.output(first);
            let output = LossHead {
                weight: output.weight,
                bias: output.bias,
                trained: output.parameter.map(HeadParameter::Weight),
            };
            let judged = JudgedRows {
                factor: weight,
                ..JudgedRows::new(rows, judge(), self.statistics)
            };
            let mut part = judged_loss(&self.hidden[group], output, judged);
            part.rows.iter_mut().for_each(|row| row.step += first);
            found.parts.push(part);
        }
        found
    }
}
