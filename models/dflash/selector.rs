//! The path selector of DFlash 2: of the likeliest tokens of each slot, those that go well with the token before.
use burn::module::Param;
use burn::prelude::*;
use burn::tensor::{DType, IndexingUpdateOp};

use crate::error::Result;
use crate::linear::{Bias, Linear};
use crate::reductions::likeliest_of_each;
use crate::weights::{Init, Scope};

/// Adds `⟨A[a] ⊙ (W h_t), B[b]⟩` to the logit of a candidate `b` for slot `t` behind the token `a`. A fresh one adds 0.
#[derive(Module, Debug)]
pub struct PathSelector {
    /// `A`, `[vocab, rank]`
    predecessor_codebook: Param<Tensor<2>>,
    /// `B`, `[vocab, rank]`
    successor_codebook: Param<Tensor<2>>,
    /// `W`
    hidden_projection: Linear,
    #[module(skip)]
    top_k: usize,
}

/// What a selector chooses from in some slots.
#[derive(Debug, Clone)]
pub struct Candidates {
    /// The likeliest tokens, the likeliest first. `[slots, top_k]`
    pub ids: Tensor<2, Int>,
    /// Their logits, f32. No numbers where one of all tokens is none. `[slots, top_k]`
    pub logits: Tensor<2>,
}

impl Candidates {
    /// Those of one slot, so many times.
    pub(super) fn of_slot(&self, slot: usize, times: usize) -> Self {
        Self {
            ids: self.ids.clone().narrow(0, slot, 1).repeat_dim(0, times),
            logits: self.logits.clone().narrow(0, slot, 1).repeat_dim(0, times),
        }
    }
}

impl PathSelector {
    /// The selector `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(super) fn new(
        scope: &mut Scope,
        vocab: usize,
        d_model: usize,
        rank: usize,
        top_k: usize,
    ) -> Result<Self> {
        let codes = [vocab, rank];
        Ok(Self {
            predecessor_codebook: scope.matrix(
                "predecessor_codebook",
                codes,
                Init::Normal(0.02),
            )?,
            successor_codebook: scope.matrix("successor_codebook", codes, Init::Constant(0.0))?,
            hidden_projection: Linear::new(
                &mut scope.child("hidden_projection"),
                d_model,
                rank,
                Bias::Without,
            )?,
            top_k,
        })
    }

    /// Candidates of a slot.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// What it chooses from, outside any graph.
    ///
    /// # Shapes
    /// - logits: `[slots, vocab]`, f32, what the head makes of the slots
    pub fn candidates(&self, logits: Tensor<2>) -> Candidates {
        let ids = likeliest_of_each(logits.clone(), self.top_k);
        // 0 where all are numbers.
        let doubt = logits.clone().sum_dim(1) * 0.0;
        Candidates {
            logits: logits.gather(1, ids.clone()) + doubt,
            ids,
        }
    }

    /// The logits of slots by it, f32: minus infinity for what it does not choose from, and no numbers where those of candidates
    /// are none, so that who asked sees it.
    ///
    /// # Shapes
    /// - hidden: `[slots, d_model]`, what the head reads
    /// - previous: `[slots]`
    /// - output: `[slots, vocab]`
    pub fn logits(
        &self,
        candidates: &Candidates,
        hidden: Tensor<2>,
        previous: Tensor<1, Int>,
    ) -> Tensor<2> {
        let scores = self.scores(hidden, previous, candidates.ids.clone());
        let chosen = candidates.logits.clone() + scores;
        let [vocab, _] = self.successor_codebook.dims();
        over_vocabulary(candidates.ids.clone(), chosen, vocab)
    }

    /// What is added to the logits of candidates, f32.
    ///
    /// # Shapes
    /// - hidden: `[rows, d_model]`, what the head reads
    /// - previous: `[rows]`
    /// - candidates: `[rows, count]`
    /// - output: `[rows, count]`
    pub fn scores(
        &self,
        hidden: Tensor<2>,
        previous: Tensor<1, Int>,
        candidates: Tensor<2, Int>,
    ) -> Tensor<2> {
        let [rows, count] = candidates.dims();
        let codes = |book: &Param<Tensor<2>>, ids| book.val().select(0, ids).cast(DType::F32);
        let before = codes(&self.predecessor_codebook, previous);
        let context = before * self.hidden_projection.forward(hidden).cast(DType::F32); // [rows, rank]
        let [_, rank] = context.dims();
        let behind = codes(&self.successor_codebook, candidates.reshape([rows * count]));
        let behind: Tensor<3> = behind.reshape([rows, count, rank]);
        (behind * context.unsqueeze_dim(1))
            .sum_dim(2)
            .squeeze_dim(2)
    }
}

/// The logits of slots, f32, of which some tokens have these: minus infinity for all others, and no numbers where one of these is none.
///
/// # Shapes
/// - ids, chosen: `[slots, top_k]`
/// - output: `[slots, vocab]`
pub(super) fn over_vocabulary(ids: Tensor<2, Int>, chosen: Tensor<2>, vocab: usize) -> Tensor<2> {
    let [slots, _] = chosen.dims();
    let options = (&chosen.device(), DType::F32);
    let none: Tensor<2> = Tensor::full([slots, vocab], f32::NEG_INFINITY, options);
    let doubt = chosen.clone().sum_dim(1) * 0.0;
    none.scatter(1, ids, chosen, IndexingUpdateOp::Assign) + doubt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;
    use crate::weights::{RandomWeights, host_f32};

    #[test]
    fn what_is_not_chosen_from_is_impossible_and_what_is_no_number_is_seen() {
        let device = test_device();
        let mut random = RandomWeights::new(5);
        let mut scope = Scope::root(&mut random, &device, spectrain_checkpoints::DType::F32);
        // A fresh one adds nothing.
        let selector = PathSelector::new(&mut scope, 6, 3, 2, 3).unwrap();
        let numbers = [1.0, 5.0, 3.0, 5.0, 0.0, 3.0];
        let none = [1.0, 2.0, f32::NAN, 0.0, 0.0, 0.0];
        let logits = Tensor::<2>::from_floats([numbers, none], &device);
        let previous = Tensor::from_ints([0, 4], &device);
        let candidates = selector.candidates(logits);
        let found = selector.logits(&candidates, Tensor::ones([2, 3], &device), previous);
        let found = host_f32(found);
        let never = f32::NEG_INFINITY;
        assert_eq!(found[..6], [never, 5.0, 3.0, 5.0, never, never]);
        assert!(found[6..].iter().all(|logit| logit.is_nan()), "{found:?}");
    }
}
