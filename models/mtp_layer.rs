//! The decoder layer of drafters that are a checkpoint's own layer of multi-token prediction: attention and feed-forward part are
//! of the kinds that such checkpoints have.
use burn::prelude::*;

use crate::attention::{Attention, AttentionConfig, Projects};
use crate::error::Result;
use crate::latent::{LatentAttention, LatentConfig, one_of};
use crate::linear::Bias;
use crate::mixture::{MixtureConfig, MixtureMlp};
use crate::mlp::Mlp;
use crate::norm::{NormConfig, RmsNorm};
use crate::weights::Scope;

/// Sizes of an [`MtpLayer`].
#[derive(Debug, Clone, PartialEq)]
pub struct MtpLayerConfig {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Its attention.
    pub attention: MtpAttention,
    /// Width of a dense feed-forward part.
    pub d_ff: usize,
    /// The experts in its place, if there are any.
    pub experts: Option<MixtureConfig>,
    /// Its norms.
    pub norm: NormConfig,
}

/// Attention of one of two kinds.
#[derive(Debug, Clone, PartialEq)]
pub enum MtpAttention {
    /// Each key head is shared by a group of query heads.
    Grouped(AttentionConfig),
    /// Keys and values come out of one state.
    Latent(LatentConfig),
}

/// A pre-norm decoder layer with one of two kinds of attention, in files `self_attn`, and one of two feed-forward parts, in files
/// `mlp`. A decoder has many layers, and a [`DecoderLayer`](crate::decoder::DecoderLayer) needs less memory.
#[derive(Module, Debug)]
pub struct MtpLayer {
    input_layernorm: RmsNorm,
    self_attn: Option<Attention>,
    latent_attn: Option<LatentAttention>,
    post_attention_layernorm: RmsNorm,
    mlp: Option<Mlp>,
    mixture_mlp: Option<MixtureMlp>,
}

impl MtpLayer {
    /// The layer `scope` names.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub fn new(scope: &mut Scope, config: MtpLayerConfig) -> Result<Self> {
        let d = config.d_model;
        let norm = |scope: &mut Scope, name| RmsNorm::new(&mut scope.child(name), d, config.norm);
        let mut layer = Self {
            input_layernorm: norm(scope, "input_layernorm")?,
            self_attn: None,
            latent_attn: None,
            post_attention_layernorm: norm(scope, "post_attention_layernorm")?,
            mlp: None,
            mixture_mlp: None,
        };
        let attention = &mut scope.child("self_attn");
        match config.attention {
            MtpAttention::Grouped(sizes) => {
                layer.self_attn = Some(Attention::new(attention, &sizes)?);
            }
            MtpAttention::Latent(sizes) => {
                layer.latent_attn = Some(LatentAttention::new(attention, sizes)?);
            }
        }
        let mlp = &mut scope.child("mlp");
        match config.experts {
            Some(experts) => layer.mixture_mlp = Some(MixtureMlp::new(mlp, d, experts)?),
            None => layer.mlp = Some(Mlp::new(mlp, d, config.d_ff, Bias::Without)?),
        }
        Ok(layer)
    }

    /// `[batch, seq, d_model]` to the same.
    pub(crate) fn around(
        &self,
        x: Tensor<3>,
        attend: impl FnOnce(&dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let normed = self.input_layernorm.forward(x.clone());
        let (grouped, latent) = (self.self_attn.as_ref(), self.latent_attn.as_ref());
        let attended = attend(one_of(grouped, latent), normed);
        let x = x + attended;
        let normed = self.post_attention_layernorm.forward(x.clone());
        x + match (&self.mlp, &self.mixture_mlp) {
            (Some(mlp), _) => mlp.forward(normed),
            (None, Some(mixture)) => mixture.forward(normed),
            (None, None) => unreachable!("a layer is made with one of them"),
        }
    }
}
