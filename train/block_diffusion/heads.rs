//! The losses of a drafter's heads beside the one on its slots: of DFlash 2's selector of paths and of DSpark's guess how
//! likely a draft is kept.
use burn::module::Module as _;
use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::IndexingUpdateOp;
use burn::tensor::activation::{log_softmax, softmax, softplus};
use spectrain_models::dflash::{Candidates, PathSelector};
use spectrain_models::product;
use spectrain_models::reductions::likeliest;
use spectrain_models::weights::lift;

use crate::device::chunk_rows;
use crate::judge::Statistics;
use crate::row::{JudgedRow, Places, distinct};
use crate::teacher::{Teacher, indices};
use crate::vocab_loss::{joined, surrogate};

/// What the selector is judged on.
pub(super) struct Selection<'a> {
    pub(super) selector: &'a PathSelector,
    /// `[slots, d_model]`, what the head reads, in the graph.
    pub(super) hidden: &'a Tensor<2>,
    /// `[d_model, vocab]`, frozen.
    pub(super) head: Tensor<2>,
    /// The token before the one that each slot predicts.
    pub(super) previous: &'a [u32],
    /// Those of the batch.
    pub(super) tokens: &'a [u32],
    /// By whom it is judged how far drafts are kept; without one, by the text.
    pub(super) teacher: Option<&'a Teacher>,
    /// Whether a right token takes the place of the least likely candidate where it is none.
    pub(super) inject: bool,
}

/// A scalar in the graph and what it is.
pub(super) struct Term {
    /// Its backward pass delivers the gradients; its value may mean nothing.
    pub(super) surrogate: Tensor<1>,
    /// `[1]`, in no graph.
    pub(super) value: Tensor<1>,
}

/// What the selector has of some rows to choose from.
pub(super) struct Choices {
    /// For some rows at a time.
    parts: Vec<Part>,
    /// Of each row whether its right token is among the likeliest.
    pub(super) recalled: Vec<bool>,
    /// Acceptance rate and agreement of what a decoder drafts at each row, behind the text's tokens: it chooses from the likeliest
    /// tokens, a right one that is none of them can be no draft. `[rows, 2]`, where wanted.
    pub(super) statistics: Option<Tensor<2>>,
}

/// The same of some of the rows.
pub(super) struct Part {
    /// `[rows, top_k]`
    pub(super) ids: Tensor<2, Int>,
    /// `[rows, top_k]`, f32, in no graph: their logits.
    pub(super) logits: Tensor<2>,
    /// Where the right token is among them; `None` where it is not.
    pub(super) right: Vec<Option<usize>>,
}

impl Selection<'_> {
    /// What there is to choose from at each of `rows`.
    pub(super) fn choices(&self, rows: &[JudgedRow], wanted: Statistics) -> Choices {
        let plain = self.hidden.clone().without_autodiff();
        let (head, device) = (self.plain_head(), plain.device());
        let selector = (wanted == Statistics::All).then(|| self.selector.valid());
        let mut choices = Choices {
            parts: Vec::new(),
            recalled: Vec::with_capacity(rows.len()),
            statistics: None,
        };
        let mut drafted = Vec::new();
        for rows in rows.chunks(chunk_rows(head.dims()[1], &device)) {
            let states = plain.clone().select(0, indices(&places(rows), &device));
            let logits = product(states.clone(), head.clone()).cast(DType::F32);
            let own = self.selector.candidates(logits.clone());
            let ids: Vec<i64> = own.ids.clone().into_data().iter::<i64>().collect();
            let right = self.right(rows, &ids);
            let is_there = right.iter().map(Option::is_some);
            choices.recalled.extend(is_there);
            if let Some(selector) = &selector {
                let scores = self.scores(selector, states, rows, own.ids.clone());
                drafted.push(Part {
                    ids: own.ids.clone(),
                    logits: own.logits.clone() + scores,
                    right: right.clone(),
                });
            }
            choices.parts.push(if self.inject {
                self.injected(logits, (ids, right), rows)
            } else {
                let Candidates { ids, logits } = own;
                Part { ids, logits, right }
            });
        }
        let at_a_time = chunk_rows(self.head.dims()[1], &device) / 2;
        choices.statistics = selector.map(|_| match rows.is_empty() {
            true => joined(Vec::new(), 2, &device),
            false => measured(Part::joined(drafted), rows, self.teacher, at_a_time),
        });
        choices
    }

    /// Cross-entropy of the right token among the candidates of each of `rows`, whose logits are those of the slot with the
    /// selector's scores behind the right token before. Its gradient goes to the slots' hidden states too, through both.
    /// `None` where no row has its right token among the candidates.
    pub(super) fn term(&self, choices: Choices, rows: &[JudgedRow]) -> Option<Term> {
        let device = self.hidden.device();
        let plain = device.clone().without_autodiff();
        let parts = choices.parts;
        let right: Vec<Option<usize>> = parts.iter().flat_map(|part| part.right.clone()).collect();
        if right.iter().all(Option::is_none) {
            return None;
        }
        let ids = Tensor::cat(parts.iter().map(|part| part.ids.clone()).collect(), 0);
        let shared = Tensor::cat(parts.into_iter().map(|part| part.logits).collect(), 0);
        let weight = |(row, right): (&JudgedRow, &Option<usize>)| right.map_or(0.0, |_| row.weight);
        let weights: Vec<f32> = rows.iter().zip(&right).map(weight).collect();
        let weights = Tensor::<1>::from_floats(weights.as_slice(), &plain);
        let weights: Tensor<2> = weights.unsqueeze_dim(1);
        let at: Vec<usize> = right.iter().map(|right| right.unwrap_or(0)).collect();
        let at: Tensor<2, Int> = indices(&at, &plain).unsqueeze_dim(1);

        let places = places(rows);
        let states = self.hidden.clone().select(0, indices(&places, &device));
        let scores = self.scores(self.selector, states, rows, ids.clone());
        let log_q = log_softmax(scores + lift(shared, &device), 1);
        let of_right = log_q.clone().gather(1, lift(at.clone(), &device));
        let term = -(of_right * lift(weights.clone(), &device)).sum();
        let value = term.clone().without_autodiff();

        // Through the logits of the slots: outside the graph, as only the candidates' columns of the head count.
        let q = softmax(log_q.without_autodiff(), 1);
        let ones = -Tensor::ones(at.dims(), (&plain, DType::F32));
        let gradient = q.scatter(1, at, ones, IndexingUpdateOp::Add) * weights;
        let head = self.plain_head();
        let chunk = chunk_rows(head.dims()[1], &plain);
        let to_hidden = through_all(&head, ids, gradient, chunk);
        let hidden = std::slice::from_ref(self.hidden);
        let surrogate = if self.hidden.is_autodiff() {
            term + surrogate(hidden, to_hidden, &places, &Places::new(hidden, None))
        } else {
            term
        };
        Some(Term { surrogate, value })
    }

    /// The head outside the graph, in the type of the hidden states.
    fn plain_head(&self) -> Tensor<2> {
        let head = self.head.clone().without_autodiff();
        head.cast(self.hidden.dtype())
    }

    /// What is added to the logits of candidates of `rows` behind the right token before, `[rows, top_k]`. `states` are in the
    /// graph of the selector's parameters, if there is one; `ids` are in none.
    fn scores(
        &self,
        selector: &PathSelector,
        states: Tensor<2>,
        rows: &[JudgedRow],
        ids: Tensor<2, Int>,
    ) -> Tensor<2> {
        let device = states.device();
        let before = |row: &JudgedRow| self.previous[row.position] as usize;
        let before: Vec<usize> = rows.iter().map(before).collect();
        let before = indices(&before, &device);
        selector.scores(states, before, lift(ids, &device))
    }

    /// The right token of a row.
    fn label(&self, row: &JudgedRow) -> u32 {
        self.tokens[row.teacher + 1]
    }

    /// Where the right token of each row is among its candidates, which are all side by side.
    fn right(&self, rows: &[JudgedRow], ids: &[i64]) -> Vec<Option<usize>> {
        let of_row = ids.chunks(self.selector.top_k()).zip(rows);
        let place = |(ids, row): (&[i64], &JudgedRow)| {
            let label = self.label(row) as i64;
            ids.iter().position(|&id| id == label)
        };
        of_row.map(place).collect()
    }

    /// With the right token of each row as the last of its candidates where it is none of them.
    fn injected(
        &self,
        logits: Tensor<2>,
        (mut ids, mut right): (Vec<i64>, Vec<Option<usize>>),
        rows: &[JudgedRow],
    ) -> Part {
        let (device, top_k) = (logits.device(), self.selector.top_k());
        for ((ids, right), row) in ids.chunks_mut(top_k).zip(&mut right).zip(rows) {
            if right.is_none() {
                ids[top_k - 1] = self.label(row) as i64;
                *right = Some(top_k - 1);
            }
        }
        let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &device);
        let ids = ids.reshape([rows.len(), top_k]);
        Part {
            logits: logits.gather(1, ids.clone()),
            ids,
            right,
        }
    }
}

/// Acceptance rate and agreement of what a decoder drafts at each of `rows`, at least one, by the logits in `drafted` with all that is
/// added to them; the target judges if there is a `teacher`, else the text. `[rows, 2]`
pub(super) fn measured(
    drafted: Part,
    rows: &[JudgedRow],
    teacher: Option<&Teacher>,
    at_a_time: usize,
) -> Tensor<2> {
    let device = &drafted.ids.device();
    let likeliest = likeliest(drafted.logits.clone());
    let q = softmax(drafted.logits, 1);
    let (alpha, same) = if let Some(teacher) = teacher {
        let (log_p, best) = of_target(teacher, (rows, drafted.ids.clone()), at_a_time);
        let same = drafted.ids.gather(1, likeliest).equal(best);
        (log_p.exp().min_pair(q).sum_dim(1), found(same))
    } else {
        let right = drafted.right.iter();
        let at: Vec<usize> = right.clone().map(|right| right.unwrap_or(0)).collect();
        let at: Tensor<2, Int> = indices(&at, device).unsqueeze_dim(1);
        let there: Vec<f32> = right.map(|right| f32::from(right.is_some())).collect();
        let there = Tensor::<1>::from_floats(there.as_slice(), device);
        let there: Tensor<2> = there.unsqueeze_dim(1);
        let same = found(likeliest.equal(at.clone()));
        (q.gather(1, at) * there.clone(), same * there)
    };
    Tensor::cat(vec![alpha, same], 1)
}

impl Part {
    /// That of all rows, of at least one.
    fn joined(parts: Vec<Self>) -> Self {
        let ids = parts.iter().map(|part| part.ids.clone()).collect();
        let logits = parts.iter().map(|part| part.logits.clone()).collect();
        Self {
            ids: Tensor::cat(ids, 0),
            logits: Tensor::cat(logits, 0),
            right: parts.into_iter().flat_map(|part| part.right).collect(),
        }
    }
}

/// 1 where it is so, f32.
fn found(same: Tensor<2, Bool>) -> Tensor<2> {
    same.float().cast(DType::F32)
}

/// The target's log-probabilities of tokens `ids`, `[rows, top_k]`, behind each of `rows`, at least one, and its most likely token there,
/// `[rows, 1]`. Each position is judged once, whatever the number of rows that it judges; `at_a_time` are in memory together.
pub(super) fn of_target(
    teacher: &Teacher,
    (rows, ids): (&[JudgedRow], Tensor<2, Int>),
    at_a_time: usize,
) -> (Tensor<2>, Tensor<2, Int>) {
    let device = ids.device();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&row| rows[row].teacher);
    let sorted: Vec<JudgedRow> = order.iter().map(|&row| rows[row]).collect();
    let (positions, of) = distinct(&sorted);
    let ids = ids.select(0, indices(&order, &device));
    let (mut p, mut best, mut done) = (Vec::new(), Vec::new(), 0);
    for (chunk, positions) in positions.chunks(at_a_time).enumerate() {
        let start = chunk * at_a_time;
        let log_p = teacher.rows(positions).log_p;
        let [count, vocab] = log_p.dims();
        let here = of[done..].partition_point(|&place| place < start + count);
        let places: Vec<usize> = of[done..done + here].iter().map(|of| of - start).collect();
        best.push(likeliest(log_p.clone()).select(0, indices(&places, &device)));
        // Without a copy of a position's distribution for each of its rows.
        let first: Vec<usize> = places.iter().map(|place| place * vocab).collect();
        let first: Tensor<2, Int> = indices(&first, &device).unsqueeze_dim(1);
        let of_rows = ids.clone().narrow(0, done, here);
        let dims = of_rows.dims();
        let flat = (of_rows + first).reshape([dims[0] * dims[1]]);
        let log_p: Tensor<1> = log_p.reshape([count * vocab]);
        p.push(log_p.select(0, flat).reshape(dims));
        done += here;
    }
    let mut back = vec![0; order.len()];
    for (place, &row) in order.iter().enumerate() {
        back[row] = place;
    }
    let back = indices(&back, &device);
    let (p, best) = (Tensor::cat(p, 0), Tensor::cat(best, 0));
    (p.select(0, back.clone()), best.select(0, back))
}

/// The slots of rows.
fn places(rows: &[JudgedRow]) -> Vec<usize> {
    rows.iter().map(|row| row.position).collect()
}

/// [`through`] for so many rows at a time.
fn through_all(
    head: &Tensor<2>,
    ids: Tensor<2, Int>,
    gradient: Tensor<2>,
    chunk: usize,
) -> Tensor<2> {
    let [rows, _] = ids.dims();
    let parts = (0..rows).step_by(chunk).map(|start| {
        let count = chunk.min(rows - start);
        let ids = ids.clone().narrow(0, start, count);
        through(head, ids, gradient.clone().narrow(0, start, count))
    });
    Tensor::cat(parts.collect(), 0)
}

/// `Σ_k gradient[r, k] · head[:, ids[r, k]]`, `[rows, d_model]`.
fn through(head: &Tensor<2>, ids: Tensor<2, Int>, gradient: Tensor<2>) -> Tensor<2> {
    let [rows, count] = ids.dims();
    let [d_model, _] = head.dims();
    let columns = head.clone().select(1, ids.reshape([rows * count]));
    let columns: Tensor<3> = columns.reshape([d_model, rows, count]);
    let gradient = gradient.cast(head.dtype()).unsqueeze_dim::<3>(0);
    let sum: Tensor<2> = (columns * gradient).sum_dim(2).squeeze_dim(2);
    sum.transpose()
}

/// Cross-entropy of the guesses `logits`, `[slots]` in the graph, with the acceptance rates of `rows`. `[1]`.
pub(super) fn be_sure(logits: Tensor<1>, rows: &[JudgedRow], alpha: Tensor<1>) -> Term {
    let device = logits.device();
    let weights: Vec<f32> = rows.iter().map(|row| row.weight).collect();
    let weights = Tensor::<1>::from_floats(weights.as_slice(), &device);
    let z = logits.select(0, indices(&places(rows), &device));
    let loss = softplus(z.clone(), 1.0) - z * lift(alpha, &device);
    let term = (loss * weights).sum();
    Term {
        value: term.clone().without_autodiff(),
        surrogate: term,
    }
}

#[cfg(test)]
mod tests {
    use spectrain_data::vocabulary::DraftVocabulary;
    use spectrain_models::device::test_device;
    use spectrain_models::weights::host_f32;

    use super::*;

    #[test]
    fn the_target_says_the_same_of_rows_however_many_positions_are_judged_at_a_time() {
        let device = test_device();
        let states = [[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]];
        let states = Tensor::<2>::from_floats(states, &device);
        let head = [[3.0, -1.0, 0.5, 1.0], [0.25, 2.0, -4.0, 0.0]];
        let head = Tensor::<2>::from_floats(head, &device);
        let teacher = Teacher::made_up(states, head, &DraftVocabulary::full(4));
        // Blocks overlap: rows of a position do not stand together.
        let row = |(position, teacher)| JudgedRow {
            step: 0,
            position,
            teacher,
            weight: 1.0,
        };
        let rows: Vec<JudgedRow> = [2, 0, 1, 0, 2].into_iter().enumerate().map(row).collect();
        let ids = [[0, 3], [1, 2], [3, 0], [2, 2], [1, 0]];
        let ids = Tensor::<2, Int>::from_ints(ids, &device);
        let log_p = rows.iter().map(|row| teacher.rows(&[row.teacher]).log_p);
        let log_p = Tensor::cat(log_p.collect(), 0);
        let expected = host_f32(log_p.clone().gather(1, ids.clone()));
        let expected_best = host_f32(likeliest(log_p).float());
        for at_a_time in [1, 2, 8] {
            let (p, best) = of_target(&teacher, (rows.as_slice(), ids.clone()), at_a_time);
            for (found, expected) in host_f32(p).iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-6, "{found} {expected}");
            }
            assert_eq!(host_f32(best.float()), expected_best, "{at_a_time}");
        }
    }
}
