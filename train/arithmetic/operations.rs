//! What each kind of device does in its own way.
use std::collections::BTreeMap;

use burn::prelude::*;
use spectrain_models::product;

use crate::device::chunk_rows;
use crate::divergence::Distance;
use crate::judge::{Judge, Statistics};
use crate::row::JudgedRow;

/// Gradients by the name of their parameter, flat, f32.
pub(crate) type NamedGradients = BTreeMap<String, Tensor<1>>;

/// What each kind of device does in its own way. Tensors are in no graph.
pub(crate) trait Arithmetic {
    /// The sum of the squares of a gradient, `[1]`.
    fn square_sum(&self, gradient: &mut Tensor<1>) -> Tensor<1>;

    /// What gradients of this norm are multiplied by so that it is at most `largest`, `[1]`; `None` where they surely stay as they are.
    fn clip_factor(&self, norm: Tensor<1>, largest: f64) -> Option<Tensor<1>>;

    /// Weights and moments of a parameter behind a step of AdamW.
    ///
    /// # Shapes
    /// - all: `[elements]`, f32
    fn adamw(
        &self,
        weights: Tensor<1>,
        moments: Moments,
        gradient: Gradient,
        step: &AdamWStep,
    ) -> (Tensor<1>, Moments);

    /// Rows of [`Self::logits`], by a head of this shape, that are alive at a time.
    fn chunk_rows(&self, [_, vocab]: [usize; 2], device: &Device) -> usize {
        chunk_rows(vocab, device)
    }

    /// `hidden · head`, for what takes narrow logits: in the type of both, or in a narrower one.
    ///
    /// # Shapes
    /// - hidden: `[rows, d_model]`
    /// - head: `[d_model, vocab]`
    /// - output: `[rows, vocab]`
    fn logits(&self, hidden: Tensor<2>, head: Tensor<2>) -> Tensor<2> {
        product(hidden, head)
    }

    /// `gradient · headᵀ`: the gradient of hidden states by that of their logits.
    ///
    /// # Shapes
    /// - gradient: `[rows, vocab]`, of the type of the head or of [`Self::logits`]
    /// - head: `[d_model, vocab]`
    /// - output: `[rows, d_model]`
    fn to_hidden(&self, gradient: Tensor<2>, head: Tensor<2>) -> Tensor<2>;

    /// A sum of products of the shape `[d_model, vocab]`, of hidden states that are held as `dtype`.
    fn product_sum(
        &self,
        shape: [usize; 2],
        dtype: burn::tensor::DType,
        device: &Device,
    ) -> Box<dyn ProductSum>;

    /// What judges rows by `judge`; they are judged by no other of its positions than `positions`, which ascend.
    fn row_judge<'a>(
        &self,
        judge: Judge<'a>,
        positions: Vec<usize>,
        statistics: Statistics,
    ) -> Box<dyn RowJudge + 'a>;
}

/// The gradient of a parameter, flat, f32: `values`, times `factor` where there is one. What reads them once multiplies as it goes.
#[derive(Debug, Clone)]
pub(crate) struct Gradient {
    /// `[elements]`
    pub(crate) values: Tensor<1>,
    /// `[1]`
    pub(crate) factor: Option<Tensor<1>>,
}

impl Gradient {
    /// Its elements, multiplied.
    pub(crate) fn whole(self) -> Tensor<1> {
        match self.factor {
            Some(factor) => self.values * factor,
            None => self.values,
        }
    }
}

/// The moments of a parameter, `[elements]`, f32.
#[derive(Debug, Clone)]
pub(crate) struct Moments {
    pub(crate) first: Tensor<1>,
    pub(crate) second: Tensor<1>,
}

/// A step of AdamW at one parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamWStep {
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) epsilon: f64,
    /// `1 - beta1^t`: undoes that the first moment starts at zero.
    pub(crate) correct1: f64,
    /// `1 - beta2^t`: the same for the second.
    pub(crate) correct2: f64,
    /// The learning rate.
    pub(crate) rate: f64,
    /// What is left of the weights: `1 - learning rate · weight decay`.
    pub(crate) shrink: f64,
}

/// `Σ hiddenᵀ · gradient` over chunks of rows.
pub(crate) trait ProductSum {
    /// Adds a chunk, and gives its gradient back.
    ///
    /// # Shapes
    /// - hidden: `[rows, d_model]`
    /// - gradient: `[rows, vocab]`, of the type of `hidden` or of [`Arithmetic::logits`]
    fn add(&mut self, hidden: Tensor<2>, gradient: Tensor<2>) -> Tensor<2>;

    /// The sum, `[d_model, vocab]`, f32.
    fn into_tensor(self: Box<Self>) -> Tensor<2>;
}

/// Judges rows of logits.
pub(crate) trait RowJudge {
    /// Whether it takes logits in a narrower type than f32, and gives their gradient in it.
    fn takes_narrow(&self) -> bool {
        false
    }

    /// The distance at each of `rows` with its gradient, which has the row's weight.
    ///
    /// # Shapes
    /// - logits: `[rows, vocab]`, f32, unless it takes others
    fn judge(&mut self, logits: Tensor<2>, rows: &[JudgedRow]) -> JudgedChunk;
}

/// What a chunk of rows was judged to be.
pub(crate) struct JudgedChunk {
    /// Its gradient has the weights of the rows.
    pub(crate) distance: Distance,
    /// `[rows, 2]`: acceptance rate, and 1 where the most likely tokens agree; where wanted.
    pub(crate) statistics: Option<Tensor<2>>,
}
