//! The losses of a drafter's heads beside the one on its slots: of DFlash 2's selector of paths and of DSpark's guess how
//! likely a draft is kept.
use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::IndexingUpdateOp;
use burn::tensor::activation::{log_softmax, softmax, softplus};
use spectrain_models::dflash::PathSelector;
use spectrain_models::product;
use spectrain_models::weights::lift;

use crate::arithmetic::arithmetic;
use crate::device::chunk_rows;
use crate::row::JudgedRow;
use crate::teacher::indices;
use crate::vocab_loss::surrogate;

/// What the selector is judged on.
pub(super) struct Selection<'a> {
    pub(super) selector: &'a PathSelector,
    /// `[slots, d_model]`, what the head reads, in the graph.
    pub(super) hidden: &'a Tensor<2>,
    /// `[d_model, vocab]`, frozen.
    pub(super) head: Tensor<2>,
    /// The token before the one that each slot predicts.
    pub(super) previous: &'a [u32],
    /// The right token of each row.
    pub(super) labels: Vec<u32>,
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

/// Candidates of some slots.
struct Candidates {
    /// `[rows, top_k]`
    ids: Tensor<2, Int>,
    /// `[rows, top_k]`, f32, in no graph: their logits.
    logits: Tensor<2>,
    /// Where the right token is among them; `None` where it is not.
    right: Vec<Option<usize>>,
}

/// Cross-entropy of the right token among the candidates of each of `rows`, whose logits are those of the slot with the
/// selector's scores behind the right token before. Its gradient goes to the slots' hidden states too, through both.
/// `None` where no row has its right token among the candidates.
pub(super) fn select(selection: &Selection, rows: &[JudgedRow]) -> Option<Term> {
    let device = selection.hidden.device();
    let plain = selection.hidden.clone().without_autodiff();
    let head = selection
        .head
        .clone()
        .without_autodiff()
        .cast(plain.dtype());
    let places: Vec<usize> = rows.iter().map(|row| row.position).collect();
    let chunk = chunk_rows(head.dims()[1], &plain.device());
    let parts = places.chunks(chunk).zip(selection.labels.chunks(chunk));
    let parts: Vec<Candidates> = parts
        .map(|(places, labels)| {
            let states = plain.clone().select(0, indices(places, &plain.device()));
            let logits = product(states, head.clone()).cast(DType::F32);
            candidates(logits, selection.selector.top_k(), labels, selection.inject)
        })
        .collect();
    let right: Vec<Option<usize>> = parts.iter().flat_map(|part| part.right.clone()).collect();
    if right.iter().all(Option::is_none) {
        return None;
    }
    let ids = Tensor::cat(parts.iter().map(|part| part.ids.clone()).collect(), 0);
    let shared = Tensor::cat(parts.iter().map(|part| part.logits.clone()).collect(), 0);
    let weight = |(row, right): (&JudgedRow, &Option<usize>)| right.map_or(0.0, |_| row.weight);
    let weights: Vec<f32> = rows.iter().zip(&right).map(weight).collect();
    let weights = Tensor::<1>::from_floats(weights.as_slice(), &plain.device());
    let weights: Tensor<2> = weights.unsqueeze_dim(1);
    let at: Vec<usize> = right.iter().map(|right| right.unwrap_or(0)).collect();
    let at: Tensor<2, Int> = indices(&at, &plain.device()).unsqueeze_dim(1);

    let previous: Vec<usize> = places
        .iter()
        .map(|&place| selection.previous[place] as usize)
        .collect();
    let states = selection
        .hidden
        .clone()
        .select(0, indices(&places, &device));
    let scores = selection.selector.scores(
        states,
        indices(&previous, &device),
        lift(ids.clone(), &device),
    );
    let log_q = log_softmax(scores + lift(shared, &device), 1);
    let of_right = log_q.clone().gather(1, lift(at.clone(), &device));
    let term = -(of_right * lift(weights.clone(), &device)).sum();
    let value = term.clone().without_autodiff();

    // Through the logits of the slots: outside the graph, as only the candidates' columns of the head count.
    let q = softmax(log_q.without_autodiff(), 1);
    let ones = -Tensor::ones(at.dims(), (&plain.device(), DType::F32));
    let gradient = q.scatter(1, at, ones, IndexingUpdateOp::Add) * weights;
    let to_hidden = through_all(&head, ids, gradient, chunk);
    let hidden = std::slice::from_ref(selection.hidden);
    let surrogate = if selection.hidden.is_autodiff() {
        term + surrogate(hidden, to_hidden, &places)
    } else {
        term
    };
    Some(Term { surrogate, value })
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

/// The likeliest tokens of each row, with the right one as their last where it is not among them and is to be.
fn candidates(logits: Tensor<2>, top_k: usize, labels: &[u32], inject: bool) -> Candidates {
    let device = logits.device();
    let mut ids = arithmetic(&device).likeliest(&logits, top_k);
    let mut right = Vec::with_capacity(labels.len());
    for (ids, &label) in ids.chunks_mut(top_k).zip(labels) {
        let found = ids.iter().position(|&id| id == label as i64);
        right.push(match found {
            None if inject => {
                ids[top_k - 1] = label as i64;
                Some(top_k - 1)
            }
            found => found,
        });
    }
    let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &device);
    let ids = ids.reshape([labels.len(), top_k]);
    Candidates {
        logits: logits.gather(1, ids.clone()),
        ids,
        right,
    }
}

/// Cross-entropy of the guesses `logits`, `[slots]` in the graph, with the acceptance rates of `rows`. `[1]`.
pub(super) fn be_sure(logits: Tensor<1>, rows: &[JudgedRow], alpha: Tensor<1>) -> Term {
    let device = logits.device();
    let places: Vec<usize> = rows.iter().map(|row| row.position).collect();
    let weights: Vec<f32> = rows.iter().map(|row| row.weight).collect();
    let weights = Tensor::<1>::from_floats(weights.as_slice(), &device);
    let z = logits.select(0, indices(&places, &device));
    let loss = softplus(z.clone(), 1.0) - z * lift(alpha, &device);
    let term = (loss * weights).sum();
    Term {
        value: term.clone().without_autodiff(),
        surrogate: term,
    }
}
