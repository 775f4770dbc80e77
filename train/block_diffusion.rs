//! The loss of a block-diffusion drafter (DFlash, <https://arxiv.org/abs/2602.06036>): anchors are drawn from each text, a
//! block of masks is filled behind each, and every slot is judged, the first ones most.
//!
//! Slot `k >= 0` of a block whose anchor is `x_a` has seen the features of `x_0..x_{a-1}` and `x_a` itself, and predicts
//! `x_{a+1+k}`; that token judges it, or the target's distribution of row `a+k`. Its place in the block is `k + 1`, as the
//! anchor's own predicts nothing, unless the drafter samples from it. An anchor may stand where it and the token after it are
//! in the loss mask, as a decoder drafts after a token of the reply; a slot counts where its token is.
mod anchors;
mod config;
mod cover;
mod heads;
mod slot_weights;
mod staged;

use std::collections::BTreeMap;

use burn::prelude::*;
use spectrain_data::seed::mix;
use spectrain_models::Drafter as _;
use spectrain_models::blocks::{BlockLayout, BlockPlaces};
use spectrain_models::dflash::DFlash;
use spectrain_models::weights::host_f32;

use self::anchors::{Anchored, previous_tokens};
pub use self::config::{Anchors, BlockLossConfig, SlotWeights};
use self::cover::Cover;
pub use self::cover::Masking;
use self::heads::{Selection, be_sure, select};
use self::slot_weights::{Preview, by_reach, until_first_error};
pub use self::staged::StagedBlockLoss;
use crate::batch::Rows;
use crate::token_loss::{Judged, TokenLoss};
use crate::{Batch, Head, HeadParameter, Loss, Objective, Result, Row, Statistics};

/// See the module.
#[derive(Debug, Clone)]
pub struct BlockLoss {
    loss: TokenLoss,
    config: BlockLossConfig,
}

impl Objective<DFlash> for BlockLoss {
    type Config = BlockLossConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        config.check()?;
        let (labels, teacher) = (config.label_weight, config.teacher_weight);
        Ok(Self {
            loss: TokenLoss::new(labels, teacher, config.divergence)?,
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
        anchors::place(
            rows,
            self.config.placement,
            self.config.anchors,
            block_size,
            seed,
        )
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
