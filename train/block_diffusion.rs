//! The loss of a block-diffusion drafter (DFlash, <https://arxiv.org/abs/2602.06036>): anchors are drawn from each text, a
//! block of masks is filled behind each, and every slot is judged, the first ones most.
//!
//! Slot `k >= 0` of a block whose anchor is `x_a` has seen the features of `x_0..x_{a-1}` and `x_a` itself, and predicts
//! `x_{a+1+k}`; that token judges it, or the target's distribution of row `a+k`. Its place in the block is `k + 1`, as the
//! anchor's own predicts nothing, unless the drafter samples from it. An anchor may stand where it and the token after it are
//! in the loss mask, as a decoder drafts after a token of the reply; a slot counts where its token is.
mod cover;
mod heads;
mod slot_weights;

use std::collections::BTreeMap;

use burn::prelude::*;
use serde::{Deserialize, Serialize};
use spectrain_data::seed::mix;
use spectrain_models::Drafter as _;
use spectrain_models::blocks::{BlockLayout, BlockPlaces};
use spectrain_models::dflash::DFlash;
use spectrain_models::weights::host_f32;

use self::cover::Cover;
pub use self::cover::Masking;
use self::heads::{Selection, be_sure, select};
use self::slot_weights::{Preview, by_reach, until_first_error};
use crate::batch::Rows;
use crate::token_loss::{Judged, TokenLoss};
use crate::{
    Batch, Divergence, Error, Head, HeadParameter, Loss, Objective, Result, Row, Statistics,
};

/// The `[objective]` table of a DFlash recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlockLossConfig {
    /// The most blocks of a row. 512.
    pub anchors: usize,
    /// Where they stand. `"random"`.
    pub placement: Anchors,
    /// Which tokens of a block are masked. `"all"`.
    pub masking: Masking,
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
    /// By how much a slot counts more than the one behind it, with rising weights. 1.01.
    pub growth: f64,
    /// Share of certainty in D-PACE. 0.5.
    pub certainty: f64,
    /// Whether the sum is divided by the positions that count, and not by their weights (speculators). `false`.
    pub divide_by_count: bool,
    /// Factor on the cross-entropy of the selector of paths, where the drafter has one. 1.
    pub selector_weight: f64,
    /// Whether the text's token takes the place of the least likely candidate where it is none (SpecForge, speculators), or
    /// such slots teach the selector nothing (NeMo). `true`.
    pub inject: bool,
    /// Factor on the cross-entropy of the guess how likely a draft is kept, where the drafter has a head for it. 1.
    pub confidence_weight: f64,
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
    /// Slot `k`, the first being 0, counts `exp(-k / decay_slots)`.
    Exponential,
    /// All alike.
    Uniform,
    /// Slot `k` of `R` counts `growth^(R - 1 - k)` (DEER, <https://arxiv.org/abs/2512.15176>).
    Rising,
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
            masking: Masking::All,
            label_weight: 1.0,
            teacher_weight: 0.0,
            divergence: Divergence::Kl,
            slot_weights: SlotWeights::Exponential,
            decay_slots: 0.0,
            growth: 1.01,
            certainty: 0.5,
            divide_by_count: false,
            selector_weight: 1.0,
            inject: true,
            confidence_weight: 1.0,
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
        if !(config.growth >= 1.0 && config.growth.is_finite()) {
            return setting("growth", "1 or more", config.growth.to_string());
        }
        for (key, weight) in [
            ("selector_weight", config.selector_weight),
            ("confidence_weight", config.confidence_weight),
        ] {
            if !(weight >= 0.0 && weight.is_finite()) {
                return setting(key, "0 or more", weight.to_string());
            }
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
        let (slots, first) = (drafter.config().slots(), drafter.config().first_slot());
        let anchors = self.anchors(&batch.rows, size, batch.seed.unwrap_or(0));
        let covers = self.covers(&anchors, size, batch.seed);
        let hidden = self.covered(drafter, batch, &anchors, &covers);
        let hidden = hidden.narrow(1, first, slots);
        let previous = previous_tokens(&batch.rows, &anchors, slots);
        let ids: Vec<i64> = previous.iter().map(|&token| token as i64).collect();
        let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &hidden.device())
            .reshape([anchors.len(), slots]);
        let read: Tensor<2> = drafter.widened(hidden.clone(), ids.clone()).flatten(0, 1);
        let d_model = hidden.dims()[2];
        let judged = Judged {
            head: &|| Head {
                weight: drafter.head(),
                bias: None,
                trained: drafter
                    .trained_head()
                    .map(|id| HeadParameter::LowerRows(id, d_model)),
            },
            target: drafter.target(),
            vocabulary: drafter.vocabulary(),
            batch,
        };
        let mut rows = self.rows(&batch.rows, &anchors, slots);
        rows.retain(|row| covers[row.position / slots].asks(row.position % slots));
        let rows = self.weigh(rows, &judged, &read, slots, &|row| {
            let cover = &covers[row.position / slots];
            (cover.factor, cover.length - first)
        });
        let confidence = match self.config.confidence_weight > 0.0 {
            true => drafter.confidence_logits(hidden.clone(), ids),
            false => None,
        };
        let wanted = match confidence {
            Some(_) => Statistics::All,
            None => statistics,
        };
        let mut loss = self.loss.of(&judged, read, rows.clone(), 1.0, wanted);
        if let (Some(logits), Some(measured)) = (confidence, loss.statistics()) {
            let alpha = measured.narrow(1, 0, 1).squeeze_dim(1);
            let rows = self.sure_rows(&rows, &loss.rows, slots);
            let term = be_sure(logits.flatten(0, 1), &rows, alpha);
            let factor = self.config.confidence_weight;
            loss.add_scalar("confidence", term.surrogate * factor, term.value * factor);
        }
        if let (Some(selector), true) = (drafter.selector(), self.config.selector_weight > 0.0) {
            let selection = Selection {
                selector,
                hidden: &hidden.flatten(0, 1),
                head: drafter.head(),
                previous: &previous,
                labels: rows
                    .iter()
                    .map(|row| batch.rows.tokens[row.teacher + 1])
                    .collect(),
                inject: self.config.inject,
            };
            if let Some(term) = select(&selection, &rows) {
                let factor = self.config.selector_weight;
                loss.add_scalar("selector", term.surrogate * factor, term.value * factor);
            }
        }
        loss.tell_chains(|row| {
            let (anchor, _) = anchors[row / slots]?;
            Some((row % slots, anchor))
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

    /// What the head reads of the blocks behind `anchors`, all masked. `[batch * blocks, block_size, d_model]`.
    ///
    /// # Panics
    /// The batch has no features.
    pub fn hidden(&self, drafter: &DFlash, batch: &Batch, anchors: &Anchored) -> Tensor<3> {
        let whole = Cover::whole(drafter.config().block_size);
        self.covered(drafter, batch, anchors, &vec![whole; anchors.len()])
    }

    /// What is masked of each block. Outside of training, where `seed` is none, everything is, as a decoder would have it.
    fn covers(&self, anchors: &Anchored, size: usize, seed: Option<u64>) -> Vec<Cover> {
        let of_block = |anchor: &Option<(usize, usize)>| match (anchor, seed) {
            (&Some((anchor, _)), Some(seed)) => {
                Cover::drawn(self.config.masking, size, mix(seed, anchor as u64))
            }
            _ => Cover::whole(size),
        };
        anchors.iter().map(of_block).collect()
    }

    /// [`Self::hidden`] with some tokens shown, or with fewer.
    fn covered(
        &self,
        drafter: &DFlash,
        batch: &Batch,
        anchors: &Anchored,
        covers: &[Cover],
    ) -> Tensor<3> {
        let config = drafter.config();
        let (size, device) = (config.block_size, batch.tokens.device());
        let mut tokens = vec![drafter.mask_token() as i64; anchors.len() * size];
        for ((block, anchor), cover) in tokens.chunks_mut(size).zip(anchors).zip(covers) {
            let Some((anchor, _)) = *anchor else {
                continue;
            };
            for (place, token) in block.iter_mut().enumerate() {
                // Behind the end of a text nothing can be shown.
                if !cover.masked[place] && batch.rows.reaches(anchor, place) {
                    *token = batch.rows.tokens[anchor + place] as i64;
                }
            }
        }
        let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &device);
        let lengths: Vec<usize> = covers.iter().map(|cover| cover.length).collect();
        let places = BlockPlaces {
            positions: &batch.rows.layout.positions,
            anchors,
            row_length: batch.rows.layout.row_length,
            block_size: size,
            lengths: lengths
                .iter()
                .any(|&length| length < size)
                .then_some(&lengths),
            causal: config.causal,
            window: Some(config.window).filter(|&window| window > 0),
        };
        let layout = BlockLayout::new(&places, &device);
        let context = drafter.context(batch.features(), batch.tokens.clone());
        drafter.hidden(context, tokens.reshape([anchors.len(), size]), &layout)
    }

    /// The slots that count, all with weight 1.
    fn rows(&self, rows: &Rows, anchors: &Anchored, slots: usize) -> Vec<Row> {
        let of_blocks = anchors.iter().enumerate().flat_map(|(block, anchor)| {
            let of_block = anchor.map_or(0..0, |_| 0..slots);
            of_block.filter_map(move |slot| Some((block, slot, (*anchor)?.0)))
        });
        of_blocks
            .filter(|&(_, slot, anchor)| {
                rows.reaches(anchor, slot + 1) && rows.loss_mask[anchor + slot + 1]
            })
            .map(|(block, slot, anchor)| Row {
                step: 0,
                position: block * slots + slot,
                teacher: anchor + slot,
                weight: 1.0,
            })
            .collect()
    }

    /// Gives each row its weight, where `block` knows the factor on its block and how many slots that has.
    fn weigh(
        &self,
        mut rows: Vec<Row>,
        judged: &Judged,
        hidden: &Tensor<2>,
        slots: usize,
        block: &dyn Fn(&Row) -> (f32, usize),
    ) -> Vec<Row> {
        let count = rows.len().max(1) as f32;
        match self.config.slot_weights {
            SlotWeights::Uniform => {}
            SlotWeights::Exponential => self.decline(&mut rows, slots),
            SlotWeights::Rising => {
                for row in &mut rows {
                    let behind = block(row).1 - 1 - row.position % slots;
                    row.weight = self.config.growth.powi(behind as i32) as f32;
                }
            }
            SlotWeights::DPace | SlotWeights::Auf => {
                let seen = self.preview(&rows, judged, hidden);
                match self.config.slot_weights {
                    SlotWeights::Auf => until_first_error(&mut rows, &seen, slots),
                    _ => by_reach(&mut rows, &seen, slots, self.config.certainty as f32),
                }
                rows.retain(|row| row.weight > 0.0);
            }
        }
        rows.iter_mut().for_each(|row| row.weight *= block(row).0);
        let sum: f32 = match self.config.divide_by_count {
            true => count,
            false => rows.iter().map(|row| row.weight).sum(),
        };
        rows.iter_mut()
            .for_each(|row| row.weight /= sum.max(f32::MIN_POSITIVE));
        rows
    }

    /// Exponential weights.
    fn decline(&self, rows: &mut [Row], slots: usize) {
        let decay = self.decay(slots);
        for row in rows {
            let slot = row.position % slots;
            row.weight = (-(slot as f64) / decay).exp() as f32;
        }
    }

    /// `judged`, which are some of `rows`, with the weights for the guess how likely a draft is kept: those of `rows`. Weights
    /// that go by the drafter's own errors would teach it to guess only where it is right; there it has exponential ones
    /// instead, as in speculators.
    fn sure_rows(&self, rows: &[Row], judged: &[Row], slots: usize) -> Vec<Row> {
        let mut rows = rows.to_vec();
        if matches!(
            self.config.slot_weights,
            SlotWeights::DPace | SlotWeights::Auf
        ) {
            self.decline(&mut rows, slots);
            let sum: f32 = rows.iter().map(|row| row.weight).sum();
            rows.iter_mut().for_each(|row| row.weight /= sum);
        }
        let weights: BTreeMap<usize, f32> =
            rows.iter().map(|row| (row.position, row.weight)).collect();
        let weighed = judged.iter().map(|row| Row {
            weight: weights[&row.position],
            ..*row
        });
        weighed.collect()
    }

    fn decay(&self, slots: usize) -> f64 {
        match self.config.decay_slots {
            0.0 => match slots {
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

/// The token before the one that each slot predicts: for each anchor, `slots` of the text.
fn previous_tokens(rows: &Rows, anchors: &Anchored, slots: usize) -> Vec<u32> {
    let of_block = |anchor: &Option<(usize, usize)>| {
        let first = anchor.map_or(0, |(anchor, _)| anchor);
        let at = move |slot| rows.tokens.get(first + slot).copied().unwrap_or(0);
        (0..slots).map(at).collect::<Vec<_>>()
    };
    anchors.iter().flat_map(of_block).collect()
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
