//! The path selector of DFlash 2: of the likeliest tokens of each slot, those that go well with the token before.
use burn::module::Param;
use burn::prelude::*;
use burn::tensor::DType;

use crate::error::Result;
use crate::linear::{Bias, Linear};
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
