//! The loss of a block-diffusion drafter (DFlash, <https://arxiv.org/abs/2602.06036>): anchors are drawn from each text, a
//! block of masks is filled behind each, and every slot is judged, the first ones most.
//!
//! Slot `k >= 0` of a block whose anchor is `x_a` has seen the features of `x_0..x_{a-1}` and `x_a` itself, and predicts
//! `x_{a+1+k}`; that token judges it, or the target's distribution of row `a+k`. Its place in the block is `k + 1`, as the
//! anchor's own predicts nothing, unless the drafter samples from it. An anchor may stand where it and the token after it are
//! in the loss mask, as a decoder drafts after a token of the reply; a slot counts where its token is and so are all before it.
mod anchors;
mod config;
mod cover;
mod heads;
mod paths;
mod paths_config;
mod slot_weights;
pub(crate) mod staged;
mod xpress;

use burn::prelude::*;
use spectrain_data::seed::mix;
use spectrain_models::Drafter as _;
use spectrain_models::blocks::{BlockLayout, BlockPlaces};
use spectrain_models::dflash::{DFlash, Slots};
use spectrain_models::weights::host_f32;

use self::anchors::{Anchored, previous_tokens};
pub use self::config::{Anchors, BlockLossConfig, SlotWeights};
use self::config::{BASE, CONFIDENCE, SELECTOR, fill_base};
pub use self::cover::BlockMasking;
use self::cover::Cover;
use self::heads::{Selection, be_sure};
use self::paths::Lattices;
pub use self::paths_config::PathLossConfig;
use self::paths_config::{HINGE, PATHS, PENALTY};
use self::slot_weights::preview;
use self::xpress::Drafts;
use crate::batch::{Batch, Rows};
use crate::error::Result;
use crate::judge::Statistics;
use crate::objective::{Loss, Objective};
use crate::row::{JudgedRow, times};
use crate::token_loss::{DrafterOnBatch, TokenLoss, judges};
use crate::vocab_loss::{HeadParameter, LossHead};
use crate::weighing::{Divisor, Scope, Weighing};
use crate::workload::{WorkRows, Workload};

/// See the module.
#[derive(Debug, Clone)]
pub struct BlockLoss {
    loss: TokenLoss,
    config: BlockLossConfig,
}

/// The blocks of a batch.
struct Drafted {
    anchors: Anchored,
    covers: Vec<Cover>,
    /// What their layers read of what is before them, `[batch, seq, d_model]`.
    context: Tensor<3>,
    filled: Slots,
    /// The token of the text before the one that each slot predicts.
    previous: Vec<u32>,
}

/// The blocks that rows are slots of.
struct Blocks<'a> {
    covers: &'a [Cover],
    /// Slots of each.
    slots: usize,
}

impl Blocks<'_> {
    /// What is masked of a row's block.
    fn cover(&self, row: &JudgedRow) -> &Cover {
        &self.covers[row.position / self.slots]
    }

    /// Whether a row has to guess.
    fn asks(&self, row: &JudgedRow) -> bool {
        self.cover(row).asks(row.position % self.slots)
    }

    /// Multiplies the weights of rows with what makes up for how seldom their tokens are masked.
    fn make_up(&self, rows: &mut [JudgedRow]) {
        for row in rows {
            row.weight *= self.cover(row).factor(row.position % self.slots);
        }
    }
}

impl Objective<DFlash> for BlockLoss {
    type Config = BlockLossConfig;

    fn new(config: &Self::Config) -> Result<Self> {
        config.check()?;
        let (labels, teacher) = (config.label_weight, config.teacher_weight);
        Ok(Self {
            loss: TokenLoss::new(labels, teacher, config.divergence.clone())?,
            config: config.clone(),
        })
    }

    fn fill(config: &mut Self::Config, given: &dyn Fn(&str) -> bool) {
        fill_base(config.base_weight, &mut config.base_until, given);
    }

    fn explicit(config: &Self::Config) -> Self::Config {
        config.explicit()
    }

    fn unread(config: &Self::Config) -> Vec<(&'static str, &'static str)> {
        config.unread()
    }

    fn workload(config: &Self::Config, _: &str) -> Workload {
        Workload {
            rows: WorkRows::Blocks(config.anchors),
            judged: match config.masking {
                BlockMasking::All => 1.0,
                BlockMasking::Some | BlockMasking::Last => 0.5,
            },
            again: match config.consistency().largest() > 0.0 {
                true => config.rounds(),
                false => 0,
            },
            guessed: usize::from(config.guesses().largest() > 0.0),
            ..Workload::texts(judges(config.teacher_weight, &config.divergence))
        }
    }

    /// # Panics
    /// The batch has no features.
    fn loss(&self, drafter: &DFlash, batch: &Batch, statistics: Statistics) -> Loss {
        let slots = drafter.config().slots();
        let drafted = self.drafted(drafter, batch);
        let (anchors, filled) = (&drafted.anchors, &drafted.filled);
        let hidden = filled.hidden.clone();
        let previous = drafted.previous.as_slice();
        let ids = table(previous, [anchors.len(), slots], &hidden.device());
        let read: Tensor<2> = drafter.widened(filled, ids.clone()).flatten(0, 1);
        let d_model = hidden.dims()[2];
        let parameter = |id| HeadParameter::LowerRows(id, d_model);
        let judged = DrafterOnBatch {
            head: &|| LossHead {
                weight: drafter.head(),
                bias: None,
                trained: drafter.trained_head().map(parameter),
            },
            target: drafter.target(),
            vocabulary: drafter.vocabulary(),
            batch,
            temperature: 1.0,
        };
        let mut rows = self.rows(&batch.rows, anchors, slots);
        let blocks = Blocks {
            covers: &drafted.covers,
            slots,
        };
        rows.retain(|row| blocks.asks(row));
        let confidence = (self.config.confidence_weight.largest() > 0.0)
            .then(|| drafter.confidence_logits(hidden.clone(), ids))
            .flatten();
        let wanted = confidence.as_ref().map_or(statistics, |_| Statistics::All);
        let apart = self.measures_apart(drafter, batch);
        let of_slots = if apart { Statistics::Loss } else { wanted };
        let mut loss = self.weighed(&judged, read, rows, &blocks, of_slots);
        let of_slots = (&hidden, previous);
        self.add_selector(&mut loss, (drafter, &judged), of_slots, &blocks, wanted);
        self.add_lattice(&mut loss, (drafter, &judged), &drafted, wanted);
        let rows = loss.rows.clone();
        if self.refines(drafter, batch) {
            let drafts = Drafts {
                drafter,
                slots: filled,
                previous,
                loss: &self.loss,
                judged: &judged,
                rows: &rows,
            };
            drafts.add_to(&mut loss, &self.config, apart.then_some(statistics));
        }
        self.add_base(&mut loss, drafter, judged, (&hidden, &rows));
        if let Some(logits) = confidence {
            self.add_confidence(&mut loss, batch, logits.flatten(0, 1), &rows, slots);
        }
        self.tell_changing(&mut loss, drafter, batch);
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

    /// The blocks of a batch, with what is made of them before any token is known.
    fn drafted(&self, drafter: &DFlash, batch: &Batch) -> Drafted {
        let (size, first) = (drafter.config().block_size, drafter.config().first_slot());
        let anchors = self.anchors(&batch.rows, size, batch.seed.unwrap_or(0));
        let covers = self.covers(&anchors, (size, first), batch.seed);
        let context = drafter.context(batch.features(), batch.tokens.clone());
        let block = self.covered(drafter, batch, &context, (&anchors, &covers));
        Drafted {
            filled: xpress::slots(drafter, batch, &anchors, block),
            previous: previous_tokens(&batch.rows, &anchors, drafter.config().slots()),
            anchors,
            covers,
            context,
        }
    }

    /// What the head reads of the blocks behind `anchors`, all masked. `[batch * blocks, block_size, d_model]`.
    ///
    /// # Panics
    /// The batch has no features.
    pub fn hidden(&self, drafter: &DFlash, batch: &Batch, anchors: &Anchored) -> Tensor<3> {
        let config = drafter.config();
        let whole = Cover::whole(config.block_size, config.first_slot());
        let context = drafter.context(batch.features(), batch.tokens.clone());
        let covers = vec![whole; anchors.len()];
        self.covered(drafter, batch, &context, (anchors, &covers))
    }

    /// What is masked of each block of `size` places, whose first slot is at the place `first`. Outside of training, where
    /// `seed` is none, everything is, as a decoder would have it.
    fn covers(
        &self,
        anchors: &Anchored,
        (size, first): (usize, usize),
        seed: Option<u64>,
    ) -> Vec<Cover> {
        let of_block = |anchor: &Option<(usize, usize)>| match (anchor, seed) {
            (&Some((anchor, _)), Some(seed)) => {
                Cover::drawn(self.config.masking, size, first, mix(seed, anchor as u64))
            }
            _ => Cover::whole(size, first),
        };
        anchors.iter().map(of_block).collect()
    }

    /// Whether blocks hold what a decoder knows and no token of a draft.
    fn drafts(&self, batch: &Batch) -> bool {
        batch.seed.is_none() || self.config.masking != BlockMasking::Some
    }

    /// Whether drafts are refined.
    fn refines(&self, drafter: &DFlash, batch: &Batch) -> bool {
        drafter.refines() && self.drafts(batch)
    }

    /// Whether how far drafts are kept is measured apart from the loss on slots: by what a selector, a lattice or passes make of them. Passes
    /// that settle all tokens make of them in validations what that loss judges.
    fn measures_apart(&self, drafter: &DFlash, batch: &Batch) -> bool {
        let is_judged = batch.seed.is_none() && !drafter.is_unsettled(drafter.config().slots());
        let chooses =
            drafter.selector().is_some() || drafter.lattice().is_some() && self.drafts(batch);
        chooses || self.refines(drafter, batch) && !is_judged
    }

    /// Tells the weights that change, of those parts of the loss that there are with this drafter.
    fn tell_changing(&self, loss: &mut Loss, drafter: &DFlash, batch: &Batch) {
        let has = |part: &str| match part {
            BASE => drafter.trained_head().is_some(),
            SELECTOR => drafter.selector().is_some(),
            CONFIDENCE => drafter.config().confidence,
            PATHS | HINGE | PENALTY => drafter.lattice().is_some() && self.drafts(batch),
            _ => self.refines(drafter, batch),
        };
        loss.changing.extend(self.config.changing(batch.step, has));
    }

    /// [`Self::hidden`] with some tokens shown, or with fewer.
    fn covered(
        &self,
        drafter: &DFlash,
        batch: &Batch,
        context: &Tensor<3>,
        (anchors, covers): (&Anchored, &[Cover]),
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
        // XPress' head and a lattice read whole blocks, whatever is asked of them.
        let is_whole = config.reads_whole_blocks();
        let length = |cover: &Cover| if is_whole { size } else { cover.length };
        let lengths: Vec<usize> = covers.iter().map(length).collect();
        let places = BlockPlaces {
            positions: &batch.rows.layout.positions,
            anchors,
            row_length: batch.rows.layout.row_length,
            block_size: size,
            lengths: lengths
                .iter()
                .any(|&length| length < size)
                .then_some(&lengths),
            sights: &config.sights(),
        };
        let layout = BlockLayout::new(&places, &device);
        drafter.hidden(
            context.clone(),
            tokens.reshape([anchors.len(), size]),
            &layout,
        )
    }

    /// The slots that count, all with weight 1.
    fn rows(&self, rows: &Rows, anchors: &Anchored, slots: usize) -> Vec<JudgedRow> {
        let of_blocks = anchors.iter().enumerate().flat_map(|(block, anchor)| {
            let of_block = anchor.map_or(0..0, |_| 0..slots);
            of_block.filter_map(move |slot| Some((block, slot, (*anchor)?.0)))
        });
        of_blocks
            .filter(|&(_, slot, anchor)| rows.drafts(anchor, slot + 1))
            .map(|(block, slot, anchor)| JudgedRow {
                step: 0,
                position: block * slots + slot,
                teacher: anchor + slot,
                weight: 1.0,
            })
            .collect()
    }

    /// The loss of rows that all weigh 1, weighed as the settings say. Weights that go by what the drafter makes of rows would
    /// let a better drafter have the larger loss, as later slots begin to count; so outside of training, where there is no seed,
    /// fixed ones take their place.
    fn weighed(
        &self,
        judged: &DrafterOnBatch,
        read: Tensor<2>,
        mut rows: Vec<JudgedRow>,
        blocks: &Blocks,
        wanted: Statistics,
    ) -> Loss {
        let slots = blocks.slots;
        let is_trained = judged.batch.seed.is_some();
        let Some(weigh) = self.by_drafter(slots).filter(|_| is_trained) else {
            let counted = self.weigh(&mut rows, blocks);
            let mut loss = self.loss.of(judged, read, rows, None, wanted);
            loss.counted = counted;
            return loss;
        };
        let weighing = Weighing {
            scope: Scope::Group(&|row| row.position / slots),
            weigh: &|rows, found| {
                weigh(rows, found);
                blocks.make_up(rows);
            },
            divisor: self.divisor(),
        };
        self.loss.of(judged, read, rows, Some(weighing), wanted)
    }

    /// Makes a part of the loss that of the same rows without what the tokens before them add, as long as that is to be.
    fn add_base(
        &self,
        loss: &mut Loss,
        drafter: &DFlash,
        judged: DrafterOnBatch,
        (hidden, rows): (&Tensor<3>, &[JudgedRow]),
    ) {
        let share = self.config.base().at(judged.batch.step);
        if share == 0.0 || drafter.trained_head().is_none() {
            return;
        }
        let head = || LossHead {
            weight: drafter.target_head(),
            bias: None,
            trained: None,
        };
        let judged = DrafterOnBatch {
            head: &head,
            ..judged
        };
        let (hidden, rows) = (hidden.clone().flatten(0, 1), times(rows, share as f32));
        let base = self.loss.of(&judged, hidden, rows, None, Statistics::Loss);
        loss.scale(1.0 - share);
        loss.add_whole(BASE, base, share);
    }

    /// Adds the loss of the guesses `logits`, `[slots]`, how likely drafts are kept.
    fn add_confidence(
        &self,
        loss: &mut Loss,
        batch: &Batch,
        logits: Tensor<1>,
        rows: &[JudgedRow],
        slots: usize,
    ) {
        let Some(measured) = loss.statistics() else {
            return;
        };
        let alpha = measured.narrow(1, 0, 1).squeeze_dim(1);
        let rows = self.sure_rows(rows, slots);
        let term = be_sure(logits, &rows, alpha);
        // At a step where it is 0 too: the head, which nothing else trains, has a gradient of 0 then, and not none.
        let factor = self.config.confidence_weight.at(batch.step);
        loss.add_scalar(CONFIDENCE, term.surrogate * factor, term.value, factor);
    }

    /// Measures by the selector of paths, if there is one, how far drafts are kept, as it decides on them, and adds its loss, where
    /// a right token is among its candidates. Weights that go by the drafter go by the selector here, as in speculators; but a
    /// right token that a decoder could not choose is none, while that library goes by its probability once it was added.
    fn add_selector(
        &self,
        loss: &mut Loss,
        (drafter, judged): (&DFlash, &DrafterOnBatch),
        (hidden, previous): (&Tensor<3>, &[u32]),
        blocks: &Blocks,
        wanted: Statistics,
    ) {
        let Some(selector) = drafter.selector() else {
            return;
        };
        let (weight, batch) = (self.config.selector_weight, judged.batch);
        let (learns, is_trained) = (weight.largest() > 0.0, batch.seed.is_some());
        let weigh = self.by_drafter(blocks.slots);
        let weigh = weigh.filter(|_| learns && is_trained);
        let wanted = weigh.as_ref().map_or(wanted, |_| Statistics::All);
        if !learns && wanted == Statistics::Loss {
            return loss.measure_by(None, Vec::new());
        }
        let teacher = self.loss.reports_target().then(|| judged.teacher());
        let selection = Selection {
            selector,
            hidden: &hidden.clone().flatten(0, 1),
            head: drafter.head(),
            previous,
            tokens: &batch.rows.tokens,
            teacher: teacher.as_ref(),
            // A slot that has no loss because its candidates are bad is no gain.
            inject: self.config.inject || !is_trained,
        };
        let mut rows = loss.rows.clone();
        let choices = selection.choices(&rows, wanted);
        loss.measure_by(choices.statistics.clone(), choices.recalled.clone());
        if !learns {
            return;
        }
        if let (Some(weigh), Some(found)) = (weigh, &choices.statistics) {
            let found = host_f32(found.clone());
            weigh(&mut rows, found.as_chunks::<2>().0);
            blocks.make_up(&mut rows);
            self.divide(&mut rows);
        }
        if let Some(term) = selection.term(choices, &rows) {
            // At a step where it is 0 too, as for confidence.
            let factor = weight.at(batch.step);
            loss.add_scalar(SELECTOR, term.surrogate * factor, term.value, factor);
        }
    }

    /// Measures by the lattice of paths, if there is one, how far drafts are kept, as it decides on them, and adds its loss.
    fn add_lattice(
        &self,
        loss: &mut Loss,
        (drafter, judged): (&DFlash, &DrafterOnBatch),
        drafted: &Drafted,
        wanted: Statistics,
    ) {
        if drafter.lattice().is_none() || !self.drafts(judged.batch) {
            return;
        }
        let lattices = Lattices {
            drafter,
            anchors: &drafted.anchors,
            hidden: &drafted.filled.hidden,
            context: &drafted.context,
            judged,
            by_target: self.loss.reports_target(),
        };
        lattices.add_to(loss, &self.config.paths(), wanted);
    }

    /// How rows of whole blocks are weighed by what the drafter makes of them, where they are.
    fn by_drafter(&self, slots: usize) -> Option<impl Fn(&mut [JudgedRow], &[[f32; 2]])> {
        let certainty = self.config.certainty as f32;
        let by_reach = match self.config.slot_weights {
            SlotWeights::DPace => true,
            SlotWeights::Auf => false,
            _ => return None,
        };
        Some(move |rows: &mut [JudgedRow], found: &[[f32; 2]]| {
            let seen = preview(rows, found);
            if by_reach {
                slot_weights::by_reach(rows, &seen, slots, certainty);
            } else {
                slot_weights::until_first_error(rows, &seen, slots);
            }
        })
    }

    /// Gives each row a weight that is known before anything is computed. Returns what their sum was divided by.
    fn weigh(&self, rows: &mut [JudgedRow], blocks: &Blocks) -> f64 {
        let slots = blocks.slots;
        match self.config.slot_weights {
            // The last two go by the drafter in training alone.
            SlotWeights::Exponential | SlotWeights::DPace | SlotWeights::Auf => {
                self.decline(rows, slots);
            }
            SlotWeights::Rising => {
                for row in rows.iter_mut() {
                    let behind = blocks.cover(row).slots() - 1 - row.position % slots;
                    row.weight = self.config.growth.powi(behind as i32) as f32;
                }
            }
            SlotWeights::Uniform => {}
        }
        blocks.make_up(rows);
        self.divide(rows)
    }

    /// Divides the weights of rows by what a sum over them is divided by, which it returns.
    fn divide(&self, rows: &mut [JudgedRow]) -> f64 {
        let divisor = self.divisor().of(rows);
        let share = Divisor::share(divisor, 1.0) as f32;
        rows.iter_mut().for_each(|row| row.weight *= share);
        divisor
    }

    fn divisor(&self) -> Divisor {
        if self.config.divide_by_count {
            Divisor::Rows
        } else {
            Divisor::Weights
        }
    }

    /// Exponential weights.
    fn decline(&self, rows: &mut [JudgedRow], slots: usize) {
        let decay = self.decay(slots);
        for row in rows {
            let slot = row.position % slots;
            row.weight = (-(slot as f64) / decay).exp() as f32;
        }
    }

    /// `rows` with the weights for the guess how likely a draft is kept. Weights that go by the drafter's own errors would
    /// teach it to guess only where it is right; there it has exponential ones instead, as in speculators.
    fn sure_rows(&self, rows: &[JudgedRow], slots: usize) -> Vec<JudgedRow> {
        let mut rows = rows.to_vec();
        if self.by_drafter(slots).is_some() {
            self.decline(&mut rows, slots);
            let sum: f32 = rows.iter().map(|row| row.weight).sum();
            rows.iter_mut().for_each(|row| row.weight /= sum);
        }
        rows
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
}

/// Tokens as a tensor of this shape.
fn table(tokens: &[u32], shape: [usize; 2], device: &Device) -> Tensor<2, Int> {
    let tokens: Vec<i64> = tokens.iter().map(|&token| token as i64).collect();
    Tensor::<1, Int>::from_ints(tokens.as_slice(), device).reshape(shape)
}
