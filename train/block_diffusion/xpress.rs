//! What the loss of a drafter with XPress' head has besides, as the speculators library has it.
//!
//! Behind the tokens of the text its slots are judged as those of any drafter. A decoder gives the head other tokens: those that
//! are guessed without it, and then those of its own passes. So slots are judged behind these too, which are not differentiated,
//! and guesses by themselves: else they would decay while the layers learn to serve the head.
//!
//! The head also reads the token before the anchor. In training it is the text's, as in the library; engines do not have it, and put
//! the anchor in its place. So do validations and whatever measures how far drafts are kept.
use burn::module::Module as _;
use burn::prelude::*;
use spectrain_models::Drafter as _;
use spectrain_models::dflash::{DFlash, Slots};
use spectrain_models::mask::token_ids;

use super::anchors::{Anchored, earlier_tokens};
use super::config::{BlockLossConfig, CONSISTENCY, GUESSES};
use crate::batch::Batch;
use crate::device::chunk_rows;
use crate::judge::Statistics;
use crate::objective::Loss;
use crate::row::{JudgedRow, times};
use crate::token_loss::{DrafterOnBatch, TokenLoss};
use crate::vocab_loss::LossHead;

/// The slots of a batch and what judges them.
pub(super) struct Drafts<'a> {
    pub(super) drafter: &'a DFlash,
    pub(super) slots: &'a Slots,
    /// The token of the text before the one that each slot predicts.
    pub(super) previous: &'a [u32],
    pub(super) loss: &'a TokenLoss,
    pub(super) judged: &'a DrafterOnBatch<'a>,
    /// The rows that are judged, with their weights.
    pub(super) rows: &'a [JudgedRow],
}

/// The slots of blocks in training, with the token before each anchor where the drafter reads it.
pub(super) fn slots(
    drafter: &DFlash,
    batch: &Batch,
    anchors: &Anchored,
    block: Tensor<3>,
) -> Slots {
    let mut slots = drafter.slots(block);
    if drafter.refines() && batch.seed.is_some() {
        let earlier = earlier_tokens(&batch.rows, anchors);
        let earlier = token_ids(&earlier, &batch.tokens.device());
        slots.earlier = Some(earlier.reshape([anchors.len(), 1]));
    }
    slots
}

impl Drafts<'_> {
    /// Adds to a loss what it has besides, and takes into it what is wanted of how far a decoder's drafts are kept, unless the loss
    /// has that already.
    pub(super) fn add_to(
        &self,
        loss: &mut Loss,
        config: &BlockLossConfig,
        wanted: Option<Statistics>,
    ) {
        let (rounds, step) = (config.rounds(), self.judged.batch.step);
        let weight = config.consistency().at(step);
        if weight > 0.0 {
            let share = weight / rounds as f64;
            for previous in self.rounds(rounds) {
                let read = self.drafter.widened(self.slots, previous);
                let read: Tensor<2> = read.flatten(0, 1);
                let part = self.part(self.judged, read, share);
                add(loss, CONSISTENCY, part, weight);
            }
        }
        let weight = config.guesses().at(step);
        if weight > 0.0 {
            let head = || LossHead {
                weight: self.drafter.target_head(),
                bias: None,
                trained: None,
            };
            let judged = DrafterOnBatch {
                head: &head,
                ..*self.judged
            };
            let guessed: Tensor<2> = self.slots.hidden.clone().flatten(0, 1);
            let part = self.part(&judged, guessed, weight);
            add(loss, GUESSES, part, weight);
        }
        match wanted {
            Some(Statistics::All) => loss.measure_as(&self.as_drafted(&loss.rows)),
            // Not by what weights that go by the drafter were found by.
            Some(Statistics::Loss) => loss.measure_by(None, Vec::new()),
            None => {}
        }
    }

    /// The loss of the rows, with their weights times `factor`.
    fn part(&self, judged: &DrafterOnBatch, read: Tensor<2>, factor: f64) -> Loss {
        let rows = times(self.rows, factor as f32);
        self.loss.of(judged, read, rows, None, Statistics::Loss)
    }

    /// Of each round the token before the one that each slot predicts, `[blocks, slots]`: in the first those that are guessed, in
    /// each further one what a pass has made of them.
    fn rounds(&self, rounds: usize) -> Vec<Tensor<2, Int>> {
        let (drafter, slots) = (self.drafter.valid(), self.slots.clone().without_graph());
        let [blocks, count, _] = slots.hidden.dims();
        let previous = token_ids(self.previous, &slots.hidden.device());
        let anchors = previous.reshape([blocks, count]).narrow(1, 0, 1);
        let sizes = (rounds - 1, self.at_a_time());
        let made = drafter.refinements(&slots, anchors.clone(), sizes);
        let behind = |tokens| Tensor::cat(vec![anchors.clone(), tokens], 1).narrow(1, 0, count);
        made.into_iter().map(behind).collect()
    }

    /// What is reported of `rows` as a decoder would draft them.
    fn as_drafted(&self, rows: &[JudgedRow]) -> Loss {
        let drafter = self.drafter.valid();
        let mut slots = self.slots.clone().without_graph();
        slots.earlier = None;
        let read = drafter.as_drafted(&slots, self.previous, self.at_a_time());
        self.loss
            .measured(self.judged, read.flatten(0, 1), rows.to_vec())
    }

    /// Rows of logits in memory at a time: those that are guessed stay beside those of each pass.
    fn at_a_time(&self) -> usize {
        let vocab = self.drafter.target().spec.vocab;
        let device = self.slots.hidden.device().without_autodiff();
        chunk_rows(vocab, &device) / 2
    }
}

/// Adds to a loss another one, in whose rows' weights its weight is. Its gradient of a head is taken into the one that is there: there
/// is one, whatever the number of rounds.
fn add(loss: &mut Loss, name: &'static str, mut part: Loss, weight: f64) {
    for (id, gradient) in std::mem::take(&mut part.head_gradients) {
        let mut there = loss.head_gradients.iter_mut();
        match there.find(|(own, _)| *own == id) {
            Some((_, sum)) => sum.inplace(|sum| sum + gradient),
            None => loss.head_gradients.push((id, gradient)),
        }
    }
    loss.add_whole(name, part, weight);
}
