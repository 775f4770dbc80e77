use burn::prelude::*;

use super::config::DFlashConfig;
use super::convolution::LocalConvolution;
use crate::attention::{Attention, AttentionConfig};
use crate::decoder::Stream;
use crate::error::Result;
use crate::linear::Bias;
use crate::mlp::Mlp;
use crate::norm::RmsNorm;
use crate::target::TargetSpec;
use crate::weights::Scope;

/// A pre-norm decoder layer whose parts may each stand between two convolutions (DFlash 2).
#[derive(Module, Debug)]
pub struct BlockLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
    attention_conv: Option<LocalConvolution>,
    mlp_conv: Option<LocalConvolution>,
}

impl BlockLayer {
    /// The layer `scope` names, of a drafter for `target` with the settings `config`, whose sizes are resolved.
    ///
    /// # Errors
    /// The source lacks a parameter, or holds it in another shape.
    pub(super) fn new(
        scope: &mut Scope,
        config: &DFlashConfig,
        target: &TargetSpec,
    ) -> Result<Self> {
        let (d_model, epsilon) = (target.d_model, target.norm_epsilon);
        let attention = AttentionConfig {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_norm: Some(epsilon.into()),
            sinks: config.sinks,
            ..AttentionConfig::of(target)
        };
        let norm = |scope: &mut Scope, name| RmsNorm::new(&mut scope.child(name), d_model, epsilon);
        let convolution = |scope: &mut Scope, name| match config.conv_taps {
            0 => Ok(None),
            taps => {
                let scope = &mut scope.child(name);
                LocalConvolution::new(scope, d_model, taps, config.conv_group).map(Some)
            }
        };
        Ok(Self {
            input_layernorm: norm(scope, "input_layernorm")?,
            self_attn: Attention::new(&mut scope.child("self_attn"), &attention)?,
            post_attention_layernorm: norm(scope, "post_attention_layernorm")?,
            mlp: Mlp::new(&mut scope.child("mlp"), d_model, config.d_ff, Bias::Without)?,
            attention_conv: convolution(scope, "attention_conv")?,
            mlp_conv: convolution(scope, "mlp_conv")?,
        })
    }

    /// The layer with a way to attend, given its attention and what that reads.
    ///
    /// # Shapes
    /// - input and output of `attend`: `[batch, seq, d_model]`
    pub(super) fn carry(
        &self,
        stream: Stream,
        attend: impl FnOnce(&Attention, Tensor<3>) -> Tensor<3>,
    ) -> Stream {
        let (x, normed) = stream.normed(&self.input_layernorm);
        let attended = around(&self.attention_conv, normed, |x| attend(&self.self_attn, x));
        let (x, normed) = self.post_attention_layernorm.forward_sum(x, attended);
        Stream::new(x, around(&self.mlp_conv, normed, |x| self.mlp.forward(x)))
    }

    /// Its attention.
    pub(super) fn attention(&self) -> &Attention {
        &self.self_attn
    }
}

/// `part`, between its convolutions if it has any.
fn around(
    convolution: &Option<LocalConvolution>,
    x: Tensor<3>,
    part: impl FnOnce(Tensor<3>) -> Tensor<3>,
) -> Tensor<3> {
    match convolution {
        None => part(x),
        Some(convolution) => convolution.around(x, part),
    }
}
