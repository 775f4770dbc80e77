//! The layer of multi-token prediction that checkpoints of DeepSeek-V3 and GLM-4.5 have behind their own layers: one of their
//! decoder layers over a token's embedding beside the target's last hidden state, whose output a norm of its own hands to the
//! target's head (DeepSeek-V3, <https://arxiv.org/abs/2412.19437>, section 2.2; GLM-4.5, <https://arxiv.org/abs/2508.06471>; both
//! as vLLM computes them).
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::attention::{AttentionConfig, Projects};
use crate::draft_state::DraftState;
use crate::drafter::Drafter;
use crate::error::Result;
use crate::frozen::Frozen;
use crate::linear::{Bias, Linear};
use crate::mtp_drafter::mtp_drafter_with_experts;
use crate::mtp_layer::{MtpAttention, MtpLayer, MtpLayerConfig};
use crate::norm::RmsNorm;
use crate::of_tokens::OfTokens;
use crate::target::{Features, TargetParts, TargetSpec};
use crate::unrolls::Unrolls;
use crate::weights::{Scope, Weights};

mod config;

pub use config::{DeepseekMtpConfig, SigmoidExpertsTable};

/// The drafter. Its fields carry the names of the checkpoint, which has those of `layer` beside them.
#[derive(Module, Debug)]
pub struct DeepseekMtp {
    enorm: RmsNorm,
    hnorm: RmsNorm,
    eh_proj: Linear,
    layer: MtpLayer,
    final_layernorm: RmsNorm,
    #[module(skip)]
    turned: usize,
    #[module(skip)]
    frozen: Frozen<DeepseekMtpConfig>,
}

/// A decoder layer of the target, in its sizes.
fn layer(config: &DeepseekMtpConfig, target: &TargetSpec) -> MtpLayerConfig {
    MtpLayerConfig {
        d_model: target.d_model,
        attention: match config.latent_attention(target) {
            Some(latent) => MtpAttention::Latent(latent),
            None => MtpAttention::Grouped(grouped(config, target)),
        },
        d_ff: target.d_ff,
        experts: config.mixture(target),
        norm: target.norm_epsilon.into(),
    }
}

/// GLM-4.5's attention in the target's sizes.
fn grouped(config: &DeepseekMtpConfig, target: &TargetSpec) -> AttentionConfig {
    AttentionConfig {
        qkv_bias: config.qkv_bias.into(),
        head_norm: config.qk_norm.then(|| target.norm_epsilon.into()),
        ..AttentionConfig::of(target)
    }
}

impl Drafter for DeepseekMtp {
    type Config = DeepseekMtpConfig;
    type State = DraftState;

    mtp_drafter_with_experts!();

    /// # Panics
    /// The vocabulary is not the target's: the head is.
    fn new(
        config: &DeepseekMtpConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        config.check()?;
        assert!(
            vocabulary.is_full(),
            "a drafter without a head proposes every token"
        );
        let spec = &target.spec;
        let turned = config.turned(spec)?;
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let d = spec.d_model;
        let norm =
            |root: &mut Scope, name| RmsNorm::new(&mut root.child(name), d, spec.norm_epsilon);
        Ok(Self {
            enorm: norm(&mut root, "enorm")?,
            hnorm: norm(&mut root, "hnorm")?,
            eh_proj: Linear::new(&mut root.child("eh_proj"), 2 * d, d, Bias::Without)?,
            layer: MtpLayer::new(&mut root.child("layer"), layer(config, spec))?,
            final_layernorm: norm(&mut root, "final_layernorm")?,
            turned,
            frozen: Frozen::new(config.filled(spec), target, vocabulary),
        })
    }
}

impl Unrolls for DeepseekMtp {
    fn begin(&self, features: &Features) -> Tensor<3> {
        features.last.clone()
    }

    /// Before the norm that the head reads it behind. The embedding stands before the hidden state.
    fn pass(
        &self,
        tokens: OfTokens,
        hidden: Tensor<3>,
        mut attend: impl FnMut(usize, &dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let embedded = self.enorm.forward(tokens.into_embedded());
        let hidden = self.hnorm.forward(hidden);
        let x = Tensor::cat(vec![embedded, hidden], 2); // [batch, seq, 2 * d_model]
        self.layer
            .around(self.eh_proj.forward(x), |own, x| attend(0, own, x))
    }

    /// As vLLM has it: of DeepSeek-V3 what the head reads too, of GLM-4.5 what the norm before the head reads.
    fn next(&self, output: Tensor<3>) -> Tensor<3> {
        match self.frozen.config.latent {
            Some(_) => self.normed(output),
            None => output,
        }
    }

    fn normed(&self, output: Tensor<3>) -> Tensor<3> {
        self.final_layernorm.forward(output)
    }

    /// The target's, frozen.
    fn head(&self) -> Tensor<2> {
        self.frozen.head(None, &self.eh_proj.weight.device())
    }

    fn turned(&self) -> usize {
        self.turned
    }

    /// As engines do.
    fn starts_blank(&self) -> bool {
        true
    }
}
