//! The loss of a block-diffusion drafter (DFlash, <https://arxiv.org/abs/2602.06036>): anchors are drawn from each text, a
//! block of masks is filled behind each, and every slot is judged, the first ones most.
//!
//! Slot `k >= 1` of a block whose anchor is `x_a` has seen the features of `x_0..x_{a-1}` and `x_a` itself, and predicts
//! `x_{a+k}`; that token judges it, or the target's distribution of row `a+k-1`. An anchor may stand where it and the token
//! after it are in the loss mask, as a decoder drafts after a token of the reply; a slot counts where its token is.
mod slot_weights;

use burn::prelude::*;
use serde::{Deserialize, Serialize};
use spectrain_data::seed::mix;
use spectrain_models::Drafter as _;
use spectrain_models::blocks::{BlockLayout, BlockPlaces};
use spectrain_models::dflash::DFlash;
use spectrain_models::weights::host_f32;

use self::slot_weights::{Preview, by_reach, until_first_error};
use crate::batch::Rows;
use crate::token_loss::{Judged, TokenLoss};
use crate::{Batch, Divergence, Error, Head, Loss, Objective, Result, Row, Statistics};

/// The `[objective]` table of a DFlash recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlockLossConfig {
    /// The most blocks of a row. 512.
    pub anchors: usize,
    /// Where they stand. `"random"`.
    pub placement: Anchors,
    /// Factor on the cross-entropy with the text. 1.
    pub label_weight: f64,
    /// Factor on the divergence from the target's distribution. 0.
    pub teacher_weight: f64,
    /// That divergence; `"ce"` is the target's most likely token. `"kl"`.
    pub divergence: Divergence,
    /// How much each slot counts. `"exponential"`.
    pub slot_weights: SlotWeights,
    /// Slots over which exponential weights fall to 1/e. Left out or 0: the authors', by the size of the block.
    pub decay_slots: f64,
    /// Share of certainty in D-PACE. 0.5.
    pub certainty: f64,
    /// Whether the sum is divided by the positions that count, and not by their weights (speculators). `false`.
    pub divide_by_count: bool,
}

/// Where blocks stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Anchors {
    /// Anywhere in replies, drawn anew for each step.
    Random,
    /// One behind the other, from the start of each reply on.
    Chunks,
}

/// How much each slot counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotWeights {
    /// Slot `k` counts `exp(-(k - 1) / decay_slots)`.
    Exponential,
    /// All alike.
    Uniform,
    /// By the probability that a decoder gets so far, as the drafter sees it (D-PACE, <https://arxiv.org/abs/2605.18810>).
    DPace,
    /// All alike up to the first slot where the drafter errs, none behind it (AUF, <https://arxiv.org/abs/2607.01893>).
    Auf,
}

impl Default for BlockLossConfig {
    fn default() -> Self {
        Self {
            anchors: 512,
            placement: Anchors::Random,
            label_weight: 1.0,
            teacher_weight: 0.0,
            divergence: Divergence::Kl,
            slot_weights: SlotWeights::Exponential,
            decay_slots: 0.0,
            certainty: 0.5,
            divide_by_count: false,
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct BlockLoss {
    loss: TokenLoss,
    config: BlockLossConfig,
}

/// Anchors of a batch: for each row the same number, each with the start of its document.
type Anchored = Vec<Option<(usize, usize)>>;

impl Objective<DFlash> for BlockLoss {
    type Config = BlockLossConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        let (labels, teacher) = (config.label_weight, config.teacher_weight);
        let loss = TokenLoss::new(labels, teacher, config.divergence)?;
        let setting = |key, expected, got| Err(Error::objective(key, expected, got));
        if config.anchors == 0 {
            return setting("anchors", "at least 1", "0".into());
        }
        if !(config.decay_slots >= 0.0 && config.decay_slots.is_finite()) {
            return setting("decay_slots", "0 or more", config.decay_slots.to_string());
        }
        if !(0.0..=1.0).contains(&config.certainty) {
            let got = config.certainty.to_string();
            return setting("certainty", "a number from 0 to 1", got);
        }
        Ok(Self {
            loss,
            config: config.clone(),
        })
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &DFlash, batch: &Batch, statistics: Statistics) -> Loss {
        let size = drafter.config().block_size;
        let anchors = self.anchors(&batch.rows, size, batch.seed.unwrap_or(0));
        let hidden: Tensor<2> = self.hidden(drafter, batch, &anchors).flatten(0, 1);
        let judged = Judged {
            head: &|| Head {
                weight: drafter.head(),
                bias: None,
                trained: None,
            },
            target: drafter.target(),
            vocabulary: drafter.vocabulary(),
            batch,
        };
        let rows = self.rows(&batch.rows, &anchors, size);
        let rows = self.weigh(rows, &judged, &hidden, size);
        let mut loss = self.loss.of(&judged, hidden, rows, 1.0, statistics);
        loss.tell_chains(|row| {
            let (anchor, _) = anchors[row / size]?;
            Some((row % size - 1, anchor))
        });
        loss
    }
}

impl BlockLoss {
    /// The anchors of a batch, ascending in each row; rows with fewer than others are filled up.
    pub fn anchors(&self, rows: &Rows, block_size: usize, seed: u64) -> Anchored {
        let length = rows.layout.row_length;
        let mut chosen: Vec<Vec<usize>> = Vec::with_capacity(rows.layout.rows);
        for row in 0..rows.layout.rows {
            let may =
                |&at: &usize| rows.reaches(at, 1) && rows.loss_mask[at] && rows.loss_mask[at + 1];
            let mut anchors: Vec<usize> = (row * length..(row + 1) * length).filter(may).collect();
            match self.config.placement {
                Anchors::Random => anchors.sort_by_cached_key(|&at| mix(seed, at as u64)),
                Anchors::Chunks => {
                    let mut next = 0;
                    anchors.retain(|&at| {
                        // A new reply starts anew.
                        let first = at < next && !rows.loss_mask[at - 1];
                        let kept = at >= next || first;
                        if kept {
                            next = at + block_size;
                        }
                        kept
                    });
                }
            }
            anchors.truncate(self.config.anchors);
            anchors.sort_unstable();
            chosen.push(anchors);
        }
        let most = chosen.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let start = |at: usize| at - rows.layout.positions[at] as usize;
        let filled = chosen.into_iter().flat_map(|anchors| {
            let anchors = anchors.into_iter().map(|at| Some((at, start(at))));
            anchors.chain(std::iter::repeat(None)).take(most)
        });
        filled.collect()
    }

    /// What the head reads of the blocks behind `anchors`, `[batch * blocks, block_size, d_model]`.
    ///
    /// # Panics
    /// The batch has no features.
    pub fn hidden(&self, drafter: &DFlash, batch: &Batch, anchors: &Anchored) -> Tensor<3> {
        let config = drafter.config();
        let (size, device) = (config.block_size, batch.tokens.device());
        let mut tokens = vec![drafter.mask_token() as i64; anchors.len() * size];
        for (block, anchor) in tokens.chunks_mut(size).zip(anchors) {
            block[0] = anchor.map_or(0, |(anchor, _)| batch.rows.tokens[anchor] as i64);
        }
        let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &device);
        let places = BlockPlaces {
            positions: &batch.rows.layout.positions,
            anchors,
            row_length: batch.rows.layout.row_length,
            block_size: size,
            causal: config.causal,
            window: Some(config.window).filter(|&window| window > 0),
        };
        let layout = BlockLayout::new(&places, &device);
        let context = drafter.context(batch.features().captured.clone());
        drafter.hidden(context, tokens.reshape([anchors.len(), size]), &layout)
    }

    /// The slots that count, all with weight 1.
    fn rows(&self, rows: &Rows, anchors: &Anchored, size: usize) -> Vec<Row> {
        let slots = anchors.iter().enumerate().flat_map(|(block, anchor)| {
            let slots = anchor.map_or(1..1, |_| 1..size);
            slots.filter_map(move |slot| Some((block, slot, (*anchor)?.0)))
        });
        slots
            .filter(|&(_, slot, anchor)| {
                rows.reaches(anchor, slot) && rows.loss_mask[anchor + slot]
            })
            .map(|(block, slot, anchor)| Row {
                step: 0,
                position: block * size + slot,
                teacher: anchor + slot - 1,
                weight: 1.0,
            })
            .collect()
    }

    /// Gives each row its weight.
    fn weigh(
        &self,
        mut rows: Vec<Row>,
        judged: &Judged,
        hidden: &Tensor<2>,
        size: usize,
    ) -> Vec<Row> {
        let count = rows.len().max(1) as f32;
        match self.config.slot_weights {
            SlotWeights::Uniform => {}
            SlotWeights::Exponential => {
                let decay = self.decay(size);
                for row in &mut rows {
                    let slot = row.position % size;
                    row.weight = (-((slot - 1) as f64) / decay).exp() as f32;
                }
            }
            SlotWeights::DPace | SlotWeights::Auf => {
                let seen = self.preview(&rows, judged, hidden);
                match self.config.slot_weights {
                    SlotWeights::Auf => until_first_error(&mut rows, &seen, size),
                    _ => by_reach(&mut rows, &seen, size, self.config.certainty as f32),
                }
                rows.retain(|row| row.weight > 0.0);
            }
        }
        let sum: f32 = match self.config.divide_by_count {
            true => count,
            false => rows.iter().map(|row| row.weight).sum(),
        };
        rows.iter_mut()
            .for_each(|row| row.weight /= sum.max(f32::MIN_POSITIVE));
        rows
    }

    fn decay(&self, size: usize) -> f64 {
        match self.config.decay_slots {
            0.0 => match size {
                0..=8 => 4.0,
                9..=12 => 5.0,
                _ => 7.0,
            },
            given => given,
        }
    }

    /// Of each position in `rows`, before anything is weighed: the drafter's probability of the right token, or its
    /// acceptance rate where the target judges; and whether its most likely token is the right one.
    fn preview(&self, rows: &[Row], judged: &Judged, hidden: &Tensor<2>) -> Preview {
        let hidden = hidden.clone().without_autodiff();
        let loss = self
            .loss
            .of(judged, hidden, rows.to_vec(), 1.0, Statistics::All);
        let Some(statistics) = loss.statistics().map(host_f32) else {
            return Default::default();
        };
        let pairs = loss.rows.iter().zip(statistics.as_chunks::<2>().0);
        pairs
            .map(|(row, [alpha, correct])| (row.position, (*alpha, *correct > 0.5)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        let default = BlockLossConfig::default;
        let wrong = [
            (
                "anchors",
                BlockLossConfig {
                    anchors: 0,
                    ..default()
                },
            ),
            (
                "decay_slots",
                BlockLossConfig {
                    decay_slots: -1.0,
                    ..default()
                },
            ),
            (
                "certainty",
                BlockLossConfig {
                    certainty: 1.5,
                    ..default()
                },
            ),
            (
                "label_weight",
                BlockLossConfig {
                    label_weight: -1.0,
                    ..default()
                },
            ),
        ];
        for (key, config) in wrong {
            let error = BlockLoss::new(&config).unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}
