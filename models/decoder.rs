use burn::prelude::*;

use crate::attention::{Attends as _, Attention, AttentionConfig};
use crate::cache::KvCache;
use crate::error::Result;
use crate::experts::SparseMlp;
use crate::linear::{Bias, Linear};
use crate::mask::Mask;
use crate::mlp::Mlp;
use crate::norm::{NormConfig, RmsNorm};
use crate::rope::Rotation;
use crate::routing::ExpertsConfig;
use crate::weights::Scope;

/// Sizes of a [`DecoderLayer`].
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderLayerConfig {
    /// Its attention.
    pub attention: AttentionConfig,
    /// Feed-forward width.
    pub d_ff: usize,
    /// Whether the feed-forward projections add a bias.
    pub mlp_bias: Bias,
    /// What stands in place of the feed-forward projections, if anything does.
    pub experts: Option<ExpertsConfig>,
    /// Its norms.
    pub norm: NormConfig,
}

/// A pre-norm decoder layer of the Llama family.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    /// Absent where there are experts.
    mlp: Option<Mlp>,
    /// In files it is `mlp` too.
    sparse_mlp: Option<SparseMlp>,
}

impl DecoderLayer {
    /// The layer `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub fn new(scope: &mut Scope, config: &DecoderLayerConfig) -> Result<Self> {
        let d_model = config.attention.d_model;
        let norm =
            |scope: &mut Scope, name| RmsNorm::new(&mut scope.child(name), d_model, config.norm);
        Ok(Self {
            input_layernorm: norm(scope, "input_layernorm")?,
            self_attn: Attention::new(&mut scope.child("self_attn"), &config.attention)?,
            post_attention_layernorm: norm(scope, "post_attention_layernorm")?,
            mlp: match config.experts {
                Some(_) => None,
                None => {
                    let scope = &mut scope.child("mlp");
                    Some(Mlp::new(scope, d_model, config.d_ff, config.mlp_bias)?)
                }
            },
            sparse_mlp: match config.experts {
                Some(experts) => Some(SparseMlp::new(&mut scope.child("mlp"), d_model, experts)?),
                None => None,
            },
        })
    }

    /// The same layer with each linear layer in it changed, but those of experts.
    pub(crate) fn map_linear(
        self,
        change: &mut dyn FnMut(Linear) -> Result<Linear>,
    ) -> Result<Self> {
        Ok(Self {
            self_attn: self.self_attn.map_linear(change)?,
            mlp: match self.mlp {
                None => None,
                Some(mlp) => Some(mlp.map_linear(change)?),
            },
            ..self
        })
    }

    /// The same with what reads the same as one product.
    pub(crate) fn fused(self) -> Self {
        Self {
            self_attn: self.self_attn.fused(),
            mlp: self.mlp.map(Mlp::fused),
            ..self
        }
    }

    /// # Shapes
    /// - x: `[batch, seq, d_model]`
    /// - mask: see [`attend`](crate::attend::attend)
    /// - output: `[batch, seq, d_model]`
    pub fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        mask: Option<&Mask>,
        cache: Option<&mut KvCache>,
    ) -> Tensor<3> {
        self.around(x, |attention, x| {
            attention.forward(x, rotation, mask, cache)
        })
    }

    /// The layer with attention by `attend`, which is given what attention reads. `[batch, seq, d_model]` to the same.
    pub(crate) fn around(
        &self,
        x: Tensor<3>,
        attend: impl FnOnce(&Attention, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        self.carry(Stream::from(x), attend).sum()
    }

    /// The same of a layer behind others.
    pub(crate) fn carry(
        &self,
        stream: Stream,
        attend: impl FnOnce(&Attention, Tensor<3>) -> Tensor<3>,
    ) -> Stream {
        let (x, normed) = stream.normed(&self.input_layernorm);
        let attended = attend(&self.self_attn, normed);
        let (x, normed) = self.post_attention_layernorm.forward_sum(x, attended);
        let added = match (&self.mlp, &self.sparse_mlp) {
            (Some(mlp), _) => mlp.forward(normed),
            (None, Some(experts)) => experts.forward(normed),
            (None, None) => unreachable!("a layer is made with one of them"),
        };
        Stream::new(x, added)
    }
}

/// The residual stream between the parts of layers: what the last of them adds to it is added where the next one norms it, in one pass.
#[derive(Debug)]
pub(crate) struct Stream {
    /// `[batch, seq, d_model]`
    x: Tensor<3>,
    /// The same.
    added: Option<Tensor<3>>,
}

impl From<Tensor<3>> for Stream {
    fn from(x: Tensor<3>) -> Self {
        Self { x, added: None }
    }
}

impl Stream {
    /// `x`, and what a part adds to it: `[batch, seq, d_model]` each.
    pub(crate) fn new(x: Tensor<3>, added: Tensor<3>) -> Self {
        Self {
            x,
            added: Some(added),
        }
    }

    /// `[batch, seq, d_model]`
    pub(crate) fn sum(self) -> Tensor<3> {
        match self.added {
            Some(added) => self.x + added,
            None => self.x,
        }
    }

    /// It, and what a norm makes of it: `[batch, seq, d_model]` each.
    pub(crate) fn normed(self, norm: &RmsNorm) -> (Tensor<3>, Tensor<3>) {
        match self.added {
            Some(added) => norm.forward_sum(self.x, added),
            None => (self.x.clone(), norm.forward(self.x)),
        }
    }
}
