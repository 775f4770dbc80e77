//! The heads of DSpark (<https://arxiv.org/abs/2607.05147>): one that lets a slot depend on the token drafted before it, and
//! one that guesses how likely the target keeps what the slot drafts. Domino (<https://arxiv.org/abs/2605.29707>) and XPress have
//! the first in forms of their own.
use burn::nn::Embedding;
use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::activation::sigmoid;

use super::config::{DFlashConfig, MarkovKind};
use super::refiner::{DRAWN, Refiner, RefinerSizes};
use super::slots::Slots;
use crate::error::Result;
use crate::kernels::silu;
use crate::linear::{Bias, Linear};
use crate::target::TargetSpec;
use crate::weights::{Init, Scope, lift};

/// A low-rank bias on the logits of a slot, by the tokens before it in the block.
#[derive(Module, Debug)]
pub struct MarkovHead {
    /// `E`, `[vocab, rank]`, but for Domino.
    markov_w1: Option<Embedding>,
    /// `W₂`
    markov_w2: Linear,
    /// Of the gated kind.
    gate_proj: Option<Linear>,
    /// Of the recurrent kind: gate, candidate and output of `[state; E[a]; h]`. Of Domino's: of `[h; state]` behind
    /// `prefix_gru`.
    joint_proj: Option<Linear>,
    prefix_gru: Option<PrefixGru>,
    /// Of XPress' kind.
    refiner: Option<Refiner>,
    /// Slots before the first that has a bias.
    #[module(skip)]
    first: usize,
}

/// A gated recurrent unit over embeddings of tokens, without biases, as PyTorch has it: of a token `x` and the state `s`
/// before it, `r = σ(x₁ + s₁)`, `z = σ(x₂ + s₂)` and `n = tanh(x₃ + r s₃)` make the state `(1 - z) n + z s`. Before the first
/// token it is 0.
#[derive(Module, Debug)]
pub struct PrefixGru {
    /// `x₁`, `x₂` and `x₃`.
    input: Linear,
    /// `s₁`, `s₂` and `s₃`.
    hidden: Linear,
}

impl PrefixGru {
    fn new(scope: &mut Scope, d_input: usize, d_state: usize) -> Result<Self> {
        let init = Init::Linear { fan_in: d_state };
        let mut linear = |name, d_in| -> Result<Linear> {
            let scope = &mut scope.child(name);
            Ok(Linear {
                weight: scope.transposed("weight", [d_in, 3 * d_state], init)?,
                bias: None,
                lora: None,
            })
        };
        Ok(Self {
            input: linear("input", d_input)?,
            hidden: linear("hidden", d_state)?,
        })
    }

    /// The state behind each token.
    ///
    /// # Shapes
    /// - tokens: `[blocks, slots, d_model]`
    /// - output: `[blocks, slots, d_state]`
    fn forward(&self, tokens: Tensor<3>) -> Tensor<3> {
        let [blocks, slots, _] = tokens.dims();
        let [d_state, _] = self.hidden.weight.dims();
        let inputs = self.input.forward(tokens);
        let part = |of: &Tensor<3>, at: usize| of.clone().narrow(2, at * d_state, d_state);
        let mut state = Tensor::zeros([blocks, 1, d_state], (&inputs.device(), inputs.dtype()));
        let mut states = Vec::with_capacity(slots);
        for slot in 0..slots {
            let x = inputs.clone().narrow(1, slot, 1);
            let s = self.hidden.forward(state.clone());
            let reset = sigmoid(part(&x, 0) + part(&s, 0));
            let update = sigmoid(part(&x, 1) + part(&s, 1));
            let candidate = (part(&x, 2) + reset * part(&s, 2)).tanh();
            state = (-update.clone() + 1.0) * candidate + update * state;
            states.push(state.clone());
        }
        Tensor::cat(states, 1)
    }
}

impl MarkovHead {
    /// The head `scope` names, of a drafter for `target` with the settings `config`.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(super) fn new(
        scope: &mut Scope,
        config: &DFlashConfig,
        target: &TargetSpec,
    ) -> Result<Self> {
        let (kind, rank, d_state) = (config.markov, config.markov_rank, config.markov_state);
        let (vocab, d_model) = (target.vocab, target.d_model);
        let mut linear = |name, d_in, d_out, bias| {
            Linear::new(&mut scope.child(name), d_in, d_out, bias).map(Some)
        };
        let (gate, joint) = match kind {
            MarkovKind::Vanilla | MarkovKind::Xpress => (None, None),
            MarkovKind::Gated => (linear("gate_proj", d_model + rank, rank, Bias::With)?, None),
            MarkovKind::Rnn => (
                None,
                linear("joint_proj", 2 * rank + d_model, 3 * rank, Bias::With)?,
            ),
            MarkovKind::Domino => (
                None,
                linear("joint_proj", d_model + d_state, rank, Bias::Without)?,
            ),
        };
        let [of_codes, of_bias] = beginnings(config);
        let (codes, gru) = match kind {
            MarkovKind::Domino => {
                let scope = &mut scope.child("prefix_gru");
                (None, Some(PrefixGru::new(scope, d_model, d_state)?))
            }
            _ => {
                let scope = &mut scope.child("markov_w1");
                let weight = scope.matrix("weight", [vocab, rank], of_codes)?;
                (Some(Embedding { weight }), None)
            }
        };
        let refiner = refiner(scope, config, target)?;
        let mut w2 = scope.child("markov_w2");
        Ok(Self {
            markov_w1: codes,
            markov_w2: Linear {
                weight: w2.transposed("weight", [rank, vocab], of_bias)?,
                bias: None,
                lora: None,
            },
            gate_proj: gate,
            joint_proj: joint,
            prefix_gru: gru,
            refiner,
            first: match kind {
                MarkovKind::Domino => config.markov_from,
                _ => 0,
            },
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

    /// `E[a]`, in the type of the parameters, where there is an `E`.
    ///
    /// # Shapes
    /// - previous: `[blocks, slots]`
    /// - output: `[blocks, slots, rank]`
    pub(super) fn codes(&self, previous: Tensor<2, Int>) -> Option<Tensor<3>> {
        let codes = self.markov_w1.as_ref()?;
        let device = codes.weight.device();
        Some(codes.forward(lift(previous.without_autodiff(), &device)))
    }

    /// What is made of whole blocks before any token is known, where it is XPress': see [`Refiner::places`].
    pub(super) fn places(&self, block: &Tensor<3>) -> Option<Tensor<3>> {
        let refiner = self.refiner.as_ref()?;
        Some(refiner.places(block.clone()))
    }

    /// What `W₂` is applied to.
    ///
    /// # Shapes
    /// - slots: from the first on
    /// - previous: `[blocks, slots]`
    /// - output of `embed`, given `previous`: `[blocks, slots, d_model]`, the target's embeddings
    /// - output: `[blocks, slots, rank]`
    pub(super) fn states(
        &self,
        slots: &Slots,
        previous: Tensor<2, Int>,
        embed: impl FnOnce(Tensor<2, Int>) -> Tensor<3>,
    ) -> Tensor<3> {
        if let (Some(refiner), Some(places)) = (&self.refiner, &slots.places) {
            return self.refined(refiner, (slots, places), previous);
        }
        let hidden = slots.hidden.clone();
        if let (Some(gru), Some(joint)) = (&self.prefix_gru, &self.joint_proj) {
            let prefixes = gru.forward(embed(previous).cast(hidden.dtype()));
            let states = silu(joint.forward(Tensor::cat(vec![hidden, prefixes], 2)));
            return without_first(states, self.first);
        }
        let Some(codes) = self.codes(previous) else {
            unreachable!("only Domino's has no codes");
        };
        let codes = codes.cast(hidden.dtype());
        if let Some(gate) = &self.gate_proj {
            let read = Tensor::cat(vec![hidden, codes.clone()], 2);
            return sigmoid(gate.forward(read)) * codes;
        }
        match &self.joint_proj {
            None => codes,
            Some(joint) => recur(joint, hidden, codes),
        }
    }

    /// [`Self::states`] of XPress, whose first place is the anchor's.
    fn refined(
        &self,
        refiner: &Refiner,
        (slots, places): (&Slots, &Tensor<3>),
        previous: Tensor<2, Int>,
    ) -> Tensor<3> {
        let [_, count] = previous.dims();
        let previous = previous.without_autodiff();
        let earlier = match &slots.earlier {
            None => previous.clone().narrow(1, 0, 1),
            Some(earlier) => earlier.clone().without_autodiff(),
        };
        let Some(codes) = self.codes(Tensor::cat(vec![earlier, previous], 1)) else {
            unreachable!("only Domino's has no codes");
        };
        let states = refiner.forward(places.clone(), codes.cast(places.dtype()));
        states.narrow(1, 1, count)
    }
}

/// How `E` and `W₂` begin.
fn beginnings(config: &DFlashConfig) -> [Init; 2] {
    match config.markov {
        MarkovKind::Xpress => [DRAWN, DRAWN],
        _ => {
            let fan_in = config.markov_rank;
            [Init::Normal(0.01), Init::Linear { fan_in }]
        }
    }
}

/// What reads whole blocks in the head `scope` names, where it is XPress'.
fn refiner(
    scope: &mut Scope,
    config: &DFlashConfig,
    target: &TargetSpec,
) -> Result<Option<Refiner>> {
    if !config.refines() {
        return Ok(None);
    }
    let sizes = RefinerSizes {
        d_model: target.d_model,
        rank: config.markov_rank,
        d_ff: config.refiner_width(),
        block: config.block_size,
    };
    Refiner::new(&mut scope.child("refiner"), sizes).map(Some)
}

/// `[blocks, slots, rank]` with zeros in the first slots, which so have no bias.
fn without_first(states: Tensor<3>, first: usize) -> Tensor<3> {
    let [blocks, slots, rank] = states.dims();
    let first = first.min(slots);
    if first == 0 {
        return states;
    }
    let zeros = Tensor::zeros([blocks, first, rank], (&states.device(), states.dtype()));
    if first == slots {
        return zeros;
    }
    Tensor::cat(vec![zeros, states.narrow(1, first, slots - first)], 1)
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
