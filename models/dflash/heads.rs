//! The heads of DSpark (<https://arxiv.org/abs/2607.05147>): one that lets a slot depend on the token drafted before it, and
//! one that guesses how likely the target keeps what the slot drafts.
use burn::nn::Embedding;
use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::activation::sigmoid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::linear::{Bias, Linear};
use crate::weights::{Init, Scope, lift};

/// What a slot's logits take from the token before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MarkovKind {
    /// The token before the slot.
    #[default]
    Vanilla,
    /// The token before the slot, and the slot's hidden state.
    Gated,
    /// All tokens of the block before the slot.
    Rnn,
}

/// A low-rank bias on the logits of a slot, by the tokens before it in the block.
#[derive(Module, Debug)]
pub struct MarkovHead {
    /// `E`, `[vocab, rank]`
    markov_w1: Embedding,
    /// `W₂`
    markov_w2: Linear,
    /// Of the gated kind.
    gate_proj: Option<Linear>,
    /// Of the recurrent kind: gate, candidate and output of `[state; E[a]; h]`.
    joint_proj: Option<Linear>,
}

impl MarkovHead {
    /// The head `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(super) fn new(
        scope: &mut Scope,
        kind: MarkovKind,
        [vocab, d_model, rank]: [usize; 3],
    ) -> Result<Self> {
        let mut optional = |name, wanted: bool, d_in, d_out| {
            let new = || Linear::new(&mut scope.child(name), d_in, d_out, Bias::With);
            wanted.then(new).transpose()
        };
        let gate = optional("gate_proj", kind == MarkovKind::Gated, d_model + rank, rank)?;
        let joint = optional(
            "joint_proj",
            kind == MarkovKind::Rnn,
            2 * rank + d_model,
            3 * rank,
        )?;
        let codes = scope
            .child("markov_w1")
            .matrix("weight", [vocab, rank], Init::Normal(0.01))?;
        Ok(Self {
            markov_w1: Embedding { weight: codes },
            markov_w2: Linear::new(&mut scope.child("markov_w2"), rank, vocab, Bias::Without)?,
            gate_proj: gate,
            joint_proj: joint,
        })
    }

    /// `W₂`, `[rank, vocab]`.
    pub(super) fn weight(&self) -> &burn::module::Param<Tensor<2>> {
        &self.markov_w2.weight
    }

    /// What is added to logits. `[rows, rank]` to `[rows, vocab]`, f32.
    pub(super) fn bias(&self, states: Tensor<2>) -> Tensor<2> {
        self.markov_w2.forward(states).cast(DType::F32)
    }

    /// `E[a]`, in the type of the parameters.
    ///
    /// # Shapes
    /// - previous: `[blocks, slots]`
    /// - output: `[blocks, slots, rank]`
    pub(super) fn codes(&self, previous: Tensor<2, Int>) -> Tensor<3> {
        let device = self.markov_w1.weight.device();
        self.markov_w1
            .forward(lift(previous.without_autodiff(), &device))
    }

    /// What `W₂` is applied to.
    ///
    /// # Shapes
    /// - hidden: `[blocks, slots, d_model]`, from the first slot on
    /// - previous: `[blocks, slots]`
    /// - output: `[blocks, slots, rank]`
    pub(super) fn states(&self, hidden: Tensor<3>, previous: Tensor<2, Int>) -> Tensor<3> {
        let codes = self.codes(previous).cast(hidden.dtype());
        if let Some(gate) = &self.gate_proj {
            let read = Tensor::cat(vec![hidden, codes.clone()], 2);
            return sigmoid(gate.forward(read)) * codes;
        }
        match &self.joint_proj {
            None => codes,
            Some(joint) => recur(joint, hidden, codes),
        }
    }
}

/// `z = J [state; E[a]; h]` in three parts: `state = σ(z₁) state + (1 - σ(z₁)) tanh(z₂)`, and the output is `tanh(z₃)`.
fn recur(joint: &Linear, hidden: Tensor<3>, codes: Tensor<3>) -> Tensor<3> {
    let [blocks, slots, rank] = codes.dims();
    let mut state = Tensor::zeros([blocks, 1, rank], (&codes.device(), codes.dtype()));
    let mut outputs = Vec::with_capacity(slots);
    for slot in 0..slots {
        let of_slot = |x: &Tensor<3>| x.clone().narrow(1, slot, 1);
        let read = vec![state.clone(), of_slot(&codes), of_slot(&hidden)];
        let z = joint.forward(Tensor::cat(read, 2));
        let part = |at: usize| z.clone().narrow(2, at * rank, rank);
        let gate = sigmoid(part(0));
        state = gate.clone() * state + (-gate + 1.0) * part(1).tanh();
        outputs.push(part(2).tanh());
    }
    Tensor::cat(outputs, 1)
}

/// The logit of the probability that the target keeps what a slot drafts: of the slot's hidden state and of the token before
/// it, never of what the slot drafts, so that a decoder may stop by it and stays exact.
#[derive(Module, Debug)]
pub struct ConfidenceHead {
    proj: Linear,
}

impl ConfidenceHead {
    /// The head `scope` names, over inputs of this width.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(super) fn new(scope: &mut Scope, d_input: usize) -> Result<Self> {
        Ok(Self {
            proj: Linear::new(&mut scope.child("proj"), d_input, 1, Bias::With)?,
        })
    }

    /// # Shapes
    /// - x: `[blocks, slots, d_input]`
    /// - output: `[blocks, slots]`, f32
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        self.proj.forward(x).cast(DType::F32).squeeze_dim(2)
    }
}
