//! The decoder layer of the EAGLE family: what it reads differs, what it does with it does not.
use burn::prelude::*;

use crate::attention::halves::SecondHalf;
use crate::attention::{Attention, AttentionConfig, Projects};
use crate::error::Result;
use crate::latent::{LatentAttention, LatentConfig, one_of};
use crate::linear::{Bias, Linear};
use crate::mlp::Mlp;
use crate::norm::RmsNorm;
use crate::of_tokens::OfTokens;
use crate::target::TargetSpec;
use crate::weights::Scope;

/// What an [`EagleLayer`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// A state that is fused already, as it is (EAGLE-1).
    Fused,
    /// A token's embedding beside a hidden state, each behind a norm of its own (EAGLE-3).
    Pair,
    /// The output of such a layer, behind a norm.
    Output,
}

/// What an [`EagleLayer`] has inside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inside {
    /// Width of the feed-forward part, query heads, key and value heads.
    pub(crate) sizes: [usize; 3],
    /// Whether queries and keys are normed head by head.
    pub(crate) head_norm: bool,
    /// Whether query, key and value projections add a bias.
    pub(crate) qkv_bias: Bias,
    /// Latent attention in place of grouped heads, as of a layer that reads one state.
    pub(crate) latent: Option<LatentConfig>,
}

/// A decoder layer, without biases but for those that are asked for. Its fields carry the names of the checkpoint.
#[derive(Module, Debug)]
pub(crate) struct EagleLayer {
    input_layernorm: Option<RmsNorm>,
    hidden_norm: Option<RmsNorm>,
    self_attn: Option<Attention>,
    /// In the place of the other one, or nothing, which takes less room in a vector; in files `self_attn`.
    latent_attn: Vec<LatentAttention>,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl EagleLayer {
    /// The layer `scope` names, with this inside, else of the target's sizes.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(crate) fn new(
        scope: &mut Scope,
        reads: Reads,
        target: &TargetSpec,
        inside: Inside,
    ) -> Result<Self> {
        let [d_ff, heads, kv_heads] = inside.sizes;
        let (d, epsilon) = (target.d_model, target.norm_epsilon);
        let norm = |scope: &mut Scope, name| RmsNorm::new(&mut scope.child(name), d, epsilon);
        let d_input = if reads == Reads::Pair { 2 * d } else { d };
        let grouped = AttentionConfig {
            d_input,
            heads,
            kv_heads,
            head_norm: inside.head_norm.then(|| epsilon.into()),
            qkv_bias: inside.qkv_bias,
            ..AttentionConfig::of(target)
        };
        let has_input_norm = reads != Reads::Fused;
        let has_hidden_norm = reads == Reads::Pair;
        Ok(Self {
            input_layernorm: if has_input_norm {
                Some(norm(scope, "input_layernorm")?)
            } else {
                None
            },
            hidden_norm: if has_hidden_norm {
                Some(norm(scope, "hidden_norm")?)
            } else {
                None
            },
            self_attn: match inside.latent {
                None => Some(Attention::new(&mut scope.child("self_attn"), &grouped)?),
                Some(_) => None,
            },
            latent_attn: match inside.latent {
                Some(latent) => {
                    let latent = LatentConfig { d_input, ..latent };
                    let scope = &mut scope.child("self_attn");
                    vec![LatentAttention::new(scope, latent)?]
                }
                None => Vec::new(),
            },
            post_attention_layernorm: norm(scope, "post_attention_layernorm")?,
            mlp: Mlp::new(&mut scope.child("mlp"), d, d_ff, Bias::Without)?,
        })
    }

    /// Layers of which the first reads a pair and each further one the output of that before it, named `layers.N`.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(crate) fn stack(
        root: &mut Scope,
        target: &TargetSpec,
        inside: Inside,
        depth: usize,
    ) -> Result<Vec<Self>> {
        let layer = |number: usize| {
            let reads = if number == 0 {
                Reads::Pair
            } else {
                Reads::Output
            };
            let scope = &mut root.child(format!("layers.{number}"));
            Self::new(scope, reads, target, inside)
        };
        (0..depth).map(layer).collect()
    }

    /// What comes of embeddings before hidden states stand beside them: what the norm and attention make of them alone. Latent
    /// attention makes nothing of them: what its states are multiplied with next is behind a norm of both halves.
    ///
    /// # Shapes
    /// - embedded: `[batch, seq, d_model]`
    pub(crate) fn of_tokens(&self, embedded: Tensor<3>) -> OfTokens {
        match &self.self_attn {
            Some(grouped) => grouped.of_first_half(by(&self.input_layernorm, embedded)),
            None => OfTokens::embedded(embedded),
        }
    }

    fn attention(&self) -> &dyn Projects {
        one_of(self.self_attn.as_ref(), self.latent_attn.first())
    }

    /// The layer over a token's embedding, or [what comes of it](Self::of_tokens), beside a hidden state. The residual is the hidden
    /// state, or its norm if that comes first. `attend` is given an attention and what it reads.
    ///
    /// # Shapes
    /// - hidden, output: `[batch, seq, d_model]`
    pub(crate) fn pair(
        &self,
        tokens: OfTokens,
        hidden: Tensor<3>,
        norm_before_residual: bool,
        attend: impl FnOnce(&dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let normed = by(&self.hidden_norm, hidden.clone());
        let residual = if norm_before_residual {
            normed.clone()
        } else {
            hidden
        };
        let attended = match &self.self_attn {
            Some(attention) if !tokens.weights.is_empty() => {
                let first = tokens;
                attend(&SecondHalf { attention, first }, normed)
            }
            _ => {
                let embedded = by(&self.input_layernorm, tokens.into_embedded());
                let x = Tensor::cat(vec![embedded, normed], 2); // [batch, seq, 2 * d_model]
                attend(self.attention(), x)
            }
        };
        self.finish(residual, attended)
    }

    /// The layer over one state, behind a norm if it has one. `[batch, seq, d_model]` to the same.
    pub(crate) fn single(
        &self,
        state: Tensor<3>,
        attend: impl FnOnce(&dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let x = by(&self.input_layernorm, state.clone());
        self.finish(state, attend(self.attention(), x))
    }

    /// The output of such a [`stack`](Self::stack). `attend` is given the number of a layer, its attention and what that reads.
    ///
    /// # Shapes
    /// - tokens, hidden, output: as of a [`pair`](Self::pair)
    pub(crate) fn through(
        layers: &[Self],
        (tokens, hidden): (OfTokens, Tensor<3>),
        norm_before_residual: bool,
        attend: &mut dyn FnMut(usize, &dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let mut state = layers[0].pair(tokens, hidden, norm_before_residual, |own, x| {
            attend(0, own, x)
        });
        for (number, layer) in layers.iter().enumerate().skip(1) {
            state = layer.single(state, |own, x| attend(number, own, x));
        }
        state
    }

    fn finish(&self, residual: Tensor<3>, attended: Tensor<3>) -> Tensor<3> {
        let (x, normed) = self
            .post_attention_layernorm
            .forward_sum(residual, attended);
        x + self.mlp.forward(normed)
    }
}

fn by(norm: &Option<RmsNorm>, x: Tensor<3>) -> Tensor<3> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}

/// The norms before [`fuse`]: one of all captured layers together, and one of each, where they are wanted.
pub(crate) fn fuse_norms(
    root: &mut Scope,
    [of_all, of_each]: [bool; 2],
    captured: usize,
    spec: &TargetSpec,
) -> Result<(Option<RmsNorm>, Vec<RmsNorm>)> {
    let mut norm =
        |name: String, width| RmsNorm::new(&mut root.child(name), width, spec.norm_epsilon);
    let all = of_all.then(|| norm("input_norm".into(), captured * spec.d_model));
    let each = (0..if of_each { captured } else { 0 })
        .map(|layer| norm(format!("fc_norm.{layer}"), spec.d_model));
    let each = each.collect::<Result<_>>()?;
    Ok((all.transpose()?, each))
}

/// Fuses captured layers, side by side, into one hidden state per position. They are normed first: all together, or each by
/// itself, or not at all.
///
/// # Shapes
/// - captured: `[batch, seq, captured layers * d_model]`
/// - output: `[batch, seq, d_model]`
pub(crate) fn fuse(
    fc: &Linear,
    norm_of_all: Option<&RmsNorm>,
    norm_of_each: &[RmsNorm],
    captured: Tensor<3>,
) -> Tensor<3> {
    if let Some(norm) = norm_of_all {
        return fc.forward(norm.forward(captured));
    }
    if norm_of_each.is_empty() {
        return fc.forward(captured);
    }
    let width = captured.dims()[2] / norm_of_each.len();
    let normed = norm_of_each.iter().enumerate();
    let normed = normed.map(|(i, norm)| norm.forward(captured.clone().narrow(2, i * width, width)));
    fc.forward(Tensor::cat(normed.collect(), 2))
}
