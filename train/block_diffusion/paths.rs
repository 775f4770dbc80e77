//! The loss of a lattice of paths (LiLiCorr, <https://arxiv.org/abs/2608.20530>, as Model Optimizer has it).
//!
//! A slot's candidates are judged behind the text's token before it, by what its lattice makes of them. So far as the text is a path
//! through the lattice: a slot counts where its token and all before it in the block are candidates, and all such slots count the
//! same. Each of the three parts is a mean over them: the cross-entropy of the right candidate; how much its logit lacks of being
//! `hinge` above that of the best other one; and how much less likely than the right one the target finds what would be drafted,
//! in logits, by the lattice's own probabilities.
//!
//! The gradients reach the layers too, by what the head reads, and by the log-probabilities of candidates, which the lattice reads.
use std::collections::BTreeMap;

use burn::prelude::*;
use burn::tensor::activation::{log_softmax, relu, softmax};
use burn::tensor::{DType, IndexingUpdateOp};
use spectrain_models::Drafter as _;
use spectrain_models::dflash::{DFlash, PathScores, candidates};
use spectrain_models::product;
use spectrain_models::weights::lift;

use super::anchors::Anchored;
use super::heads::{Part, Term, measured, of_target};
use super::paths_config::{HINGE, PATHS, PathLossConfig};
use crate::device::chunk_rows;
use crate::judge::Statistics;
use crate::objective::Loss;
use crate::row::JudgedRow;
use crate::teacher::{Teacher, indices};
use crate::token_loss::DrafterOnBatch;
use crate::vocab_loss::joined;

/// The blocks of a batch and what judges them.
pub(super) struct Lattices<'a> {
    pub(super) drafter: &'a DFlash,
    pub(super) anchors: &'a Anchored,
    /// What the head reads of slots, `[blocks, slots, d_model]`, in the graph.
    pub(super) hidden: &'a Tensor<3>,
    /// `[batch, seq, d_model]`, in the graph.
    pub(super) context: &'a Tensor<3>,
    pub(super) judged: &'a DrafterOnBatch<'a>,
    /// Whether the target judges how far drafts are kept, and not the text.
    pub(super) by_target: bool,
}

/// The blocks that have rows, and what there is to choose from in them.
struct Found {
    /// The number among them of each block that has rows.
    blocks: BTreeMap<usize, usize>,
    /// `[blocks * slots, top_k]`
    ids: Tensor<2, Int>,
    scores: PathScores,
    /// Where the right token is among the candidates of each slot, side by side; none too where no row asks for it.
    right: Vec<Option<usize>>,
    slots: usize,
}

impl Lattices<'_> {
    /// Adds its loss to one on slots, and measures by it how far drafts are kept, as a decoder has it.
    pub(super) fn add_to(&self, loss: &mut Loss, config: &PathLossConfig, wanted: Statistics) {
        let weights = config.parts();
        let learns = weights.iter().any(|(_, weight)| weight.largest() > 0.0);
        let device = self.hidden.device().without_autodiff();
        if loss.rows.is_empty() || !learns && wanted == Statistics::Loss {
            let none = (wanted == Statistics::All).then(|| joined(Vec::new(), 2, &device));
            return loss.measure_by(none, Vec::new());
        }
        let rows = loss.rows.clone();
        let is_judge = self.by_target && wanted == Statistics::All;
        let teacher =
            (is_judge || config.penalty_weight.largest() > 0.0).then(|| self.judged.teacher());
        let found = self.found(&rows, learns);
        let statistics = (wanted == Statistics::All).then(|| {
            let part = found.part(&rows);
            let by = teacher.as_ref().filter(|_| self.by_target);
            measured(part, &rows, by, self.at_a_time())
        });
        loss.measure_by(statistics, found.recalled(&rows));
        let rows = found.along_the_text(&rows);
        for (name, weight) in weights {
            // At a step where it is 0 too: the lattice, which nothing else trains, has a gradient of 0 then, and not none.
            if weight.largest() > 0.0 && !rows.is_empty() {
                let term = self.term(name, &found, (&rows, teacher.as_ref()), config);
                let factor = weight.at(self.judged.batch.step);
                loss.add_scalar(name, term.surrogate * factor, term.value, factor);
            }
        }
    }

    /// Positions whose distribution is in memory at a time.
    fn at_a_time(&self) -> usize {
        let vocab = self.drafter.target().spec.vocab;
        chunk_rows(vocab, &self.hidden.device().without_autodiff()) / 2
    }

    /// The lattices of blocks that have rows.
    fn found(&self, rows: &[JudgedRow], learns: bool) -> Found {
        let [_, slots, d_model] = self.hidden.dims();
        let mut used: Vec<usize> = rows.iter().map(|row| row.position / slots).collect();
        used.sort_unstable();
        used.dedup();
        let device = self.hidden.device();
        let hidden = self.hidden.clone().select(0, indices(&used, &device));
        let states: Tensor<2> = hidden.clone().reshape([used.len() * slots, d_model]);
        let (ids, log_p) = self.candidates(states, learns);
        let blocks: BTreeMap<usize, usize> = used.iter().copied().zip(0..).collect();
        let mut found = Found {
            right: vec![None; used.len() * slots],
            scores: self.scores(&used, (ids.clone(), log_p), hidden),
            blocks,
            ids,
            slots,
        };
        found.find(rows, &self.judged.batch.rows.tokens);
        found
    }

    /// The candidates of slots, and their log-probabilities. These are in the graph of the `states` if a loss is wanted.
    ///
    /// # Shapes
    /// - states: `[slots, d_model]`
    /// - output: `[slots, top_k]` each
    fn candidates(&self, states: Tensor<2>, learns: bool) -> (Tensor<2, Int>, Tensor<2>) {
        let top_k = self.drafter.lattice().map_or(1, |lattice| lattice.top_k());
        let (device, plain) = (states.device(), states.clone().without_autodiff());
        let head = self
            .drafter
            .target_head()
            .without_autodiff()
            .cast(plain.dtype());
        let ([d_model, vocab], [all, _]) = (head.dims(), plain.dims());
        let follows = learns && states.is_autodiff();
        let (mut ids, mut log_p, mut columns) = (Vec::new(), Vec::new(), Vec::new());
        let chunk = chunk_rows(vocab, &plain.device());
        for start in (0..all).step_by(chunk) {
            let count = chunk.min(all - start);
            let some = plain.clone().narrow(0, start, count);
            let logits = product(some, head.clone()).cast(DType::F32);
            let (best, of_best) = candidates(logits.clone(), top_k);
            if follows {
                // A log-probability grows with a state as the token's column of the head does, less the mean of all columns.
                let q = softmax(logits, 1).cast(head.dtype());
                let mean: Tensor<3> = product(q, head.clone().transpose()).unsqueeze_dim(1);
                let own = head
                    .clone()
                    .select(1, best.clone().reshape([count * top_k]));
                let own: Tensor<3> = own.transpose().reshape([count, top_k, d_model]);
                columns.push(own - mean);
            }
            ids.push(best);
            log_p.push(of_best);
        }
        let (ids, log_p) = (Tensor::cat(ids, 0), lift(Tensor::cat(log_p, 0), &device));
        if !follows {
            return (ids, log_p);
        }
        let columns = lift(Tensor::cat(columns, 0), &device);
        let moved = (columns * states.unsqueeze_dim::<3>(1)).sum_dim(2);
        let moved: Tensor<2> = moved.squeeze_dim::<2>(2).cast(DType::F32);
        let still = lift(moved.clone().without_autodiff(), &device);
        (ids, log_p + (moved - still))
    }

    /// The scores of paths through some of the blocks.
    fn scores(
        &self,
        used: &[usize],
        candidates: (Tensor<2, Int>, Tensor<2>),
        hidden: Tensor<3>,
    ) -> PathScores {
        let before = |block: &usize| {
            let (anchor, start) = self.anchors[*block].unwrap_or((0, 0));
            (anchor > start).then(|| anchor - 1)
        };
        let before: Vec<Option<usize>> = used.iter().map(before).collect();
        let is_there: Vec<bool> = before.iter().map(Option::is_some).collect();
        let rows: Vec<usize> = before.iter().map(|row| row.unwrap_or(0)).collect();
        let context: Tensor<2> = self.context.clone().flatten(0, 1);
        let context = context.select(0, indices(&rows, &hidden.device()));
        (self.drafter).path_scores(candidates, hidden, (context, &is_there))
    }

    /// A part of the loss, over rows at which the text is a path through the lattice, at least one.
    fn term(
        &self,
        name: &str,
        found: &Found,
        (rows, teacher): (&[JudgedRow], Option<&Teacher>),
        config: &PathLossConfig,
    ) -> Term {
        let device = self.hidden.device();
        let plain = device.clone().without_autodiff();
        let logits = found.logits(rows, &found.scores.scores);
        let right = rows.iter().map(|row| found.right[found.place(row)]);
        let right: Vec<usize> = right.map(|right| right.unwrap_or(0)).collect();
        let right: Tensor<2, Int> = indices(&right, &plain).unsqueeze_dim(1);
        let at = || lift(right.clone(), &device);
        let each = match name {
            PATHS => -log_softmax(logits, 1).gather(1, at()),
            HINGE => {
                let others = Tensor::zeros(logits.dims(), (&plain, DType::F32));
                let never = Tensor::full(right.dims(), f32::MIN, (&plain, DType::F32));
                let others = others.scatter(1, right.clone(), never, IndexingUpdateOp::Assign);
                let best = (logits.clone() + lift(others, &device)).max_dim(1);
                relu(-(logits.gather(1, at()) - best) + config.hinge)
            }
            _ => {
                let ids = found.ids_of(rows);
                let (log_p, _) = match teacher {
                    Some(teacher) => of_target(teacher, (rows, ids), self.at_a_time()),
                    None => unreachable!("there is one where the penalty has a weight"),
                };
                let lacking = relu(log_p.clone().gather(1, right.clone()) - log_p);
                (softmax(logits, 1) * lift(lacking, &device)).sum_dim(1)
            }
        };
        let surrogate = each.sum() / rows.len() as f64;
        Term {
            value: surrogate.clone().without_autodiff(),
            surrogate,
        }
    }
}

impl Found {
    /// Finds where right tokens are among candidates.
    fn find(&mut self, rows: &[JudgedRow], tokens: &[u32]) {
        let [_, top_k] = self.ids.dims();
        let ids: Vec<i64> = self.ids.clone().into_data().iter::<i64>().collect();
        for row in rows {
            let place = self.place(row);
            let label = i64::from(tokens[row.teacher + 1]);
            let mut candidates = ids[place * top_k..][..top_k].iter();
            self.right[place] = candidates.position(|&id| id == label);
        }
    }

    /// The slot of a row, among those of blocks that have rows.
    fn place(&self, row: &JudgedRow) -> usize {
        self.blocks[&(row.position / self.slots)] * self.slots + row.position % self.slots
    }

    /// The logits of the candidates of rows, behind the text's token before. `[rows, top_k]`
    fn logits(&self, rows: &[JudgedRow], scores: &Tensor<2>) -> Tensor<2> {
        let of_row = |row: &JudgedRow| {
            let (place, slot) = (self.place(row), row.position % self.slots);
            let before = slot.checked_sub(1).and_then(|_| self.right[place - 1]);
            self.scores.row(place / self.slots, slot, before)
        };
        let places: Vec<usize> = rows.iter().map(of_row).collect();
        scores.clone().select(0, indices(&places, &scores.device()))
    }

    /// The candidates of rows. `[rows, top_k]`
    fn ids_of(&self, rows: &[JudgedRow]) -> Tensor<2, Int> {
        let places: Vec<usize> = rows.iter().map(|row| self.place(row)).collect();
        self.ids
            .clone()
            .select(0, indices(&places, &self.ids.device()))
    }

    /// What a decoder has of rows to choose from.
    fn part(&self, rows: &[JudgedRow]) -> Part {
        let scores = self.scores.scores.clone().without_autodiff();
        Part {
            ids: self.ids_of(rows),
            logits: self.logits(rows, &scores),
            right: rows.iter().map(|row| self.right[self.place(row)]).collect(),
        }
    }

    /// Of each row whether its right token is among the candidates.
    fn recalled(&self, rows: &[JudgedRow]) -> Vec<bool> {
        let is_there = |row: &JudgedRow| self.right[self.place(row)].is_some();
        rows.iter().map(is_there).collect()
    }

    /// The rows up to which, with their own, the text is a path through the lattice of their block.
    fn along_the_text(&self, rows: &[JudgedRow]) -> Vec<JudgedRow> {
        let is_path = |row: &&JudgedRow| {
            let place = self.place(row);
            let first = place - row.position % self.slots;
            self.right[first..=place].iter().all(Option::is_some)
        };
        rows.iter().filter(is_path).copied().collect()
    }
}
