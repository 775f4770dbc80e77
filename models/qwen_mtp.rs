//! The layer of multi-token prediction that Qwen3.5 checkpoints have beside their own layers: a decoder layer with gated
//! attention over a token's embedding beside the target's last hidden state, whose normed output the target's head and the
//! next step read (DeepSeek-V3, <https://arxiv.org/abs/2412.19437>, section 2.2; the layer of Qwen3-Next and Qwen3.5 as vLLM
//! and SGLang compute it).
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::attention::{AttentionConfig, Projects};
use crate::draft_state::DraftState;
use crate::drafter::Drafter;
use crate::error::{Error, Result};
use crate::frozen::Frozen;
use crate::linear::{Bias, Linear};
use crate::mixture::{ExpertsTable, MixtureConfig};
use crate::mtp_drafter::mtp_drafter_with_experts;
use crate::mtp_layer::{MtpAttention, MtpLayer, MtpLayerConfig};
use crate::norm::{NormConfig, RmsNorm};
use crate::of_tokens::OfTokens;
use crate::target::{Features, TargetParts, TargetSpec};
use crate::unrolls::Unrolls;
use crate::weights::{Scope, Weights};

/// The `[drafter]` table of a recipe for Qwen3.5's layer; engines give the layer the target's sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QwenMtpConfig {
    /// Share of a head's dimensions, counted from the first, that are rotated by position: `partial_rotary_factor` of the
    /// target.
    pub rotary_share: f64,
    /// Experts in place of a dense feed-forward part, as targets have them that are mixtures of experts.
    pub experts: Option<ExpertsTable>,
}

impl Default for QwenMtpConfig {
    fn default() -> Self {
        Self {
            rotary_share: 0.25,
            experts: None,
        }
    }
}

impl QwenMtpConfig {
    /// Dimensions of a head that turn.
    fn turned(&self, target: &TargetSpec) -> Result<usize> {
        self.check()?;
        let d_head = target.d_head;
        let turned = (self.rotary_share * d_head as f64) as usize;
        if turned >= 2 && turned.is_multiple_of(2) {
            return Ok(turned);
        }
        let expected =
            format!("a share that is an even number of the {d_head} dimensions of a head");
        Err(self.refused(expected))
    }

    /// Fails on what makes no sense for any target.
    fn check(&self) -> Result<()> {
        self.experts.as_ref().map_or(Ok(()), ExpertsTable::check)?;
        let share = self.rotary_share;
        if share > 0.0 && share <= 1.0 {
            return Ok(());
        }
        Err(self.refused("more than 0 and at most 1".to_owned()))
    }

    /// With all sizes of experts, those that were left out in proportion to the target's.
    fn filled(&self, target: &TargetSpec) -> Self {
        let experts = self.experts.as_ref();
        Self {
            experts: experts.map(|experts| experts.filled(target.d_ff)),
            ..self.clone()
        }
    }

    /// The experts, if there are any.
    pub fn mixture(&self, target: &TargetSpec) -> Option<MixtureConfig> {
        let experts = self.experts.as_ref();
        experts.map(|experts| experts.filled(target.d_ff).sizes())
    }

    fn refused(&self, expected: String) -> Error {
        Error::Drafter {
            key: "rotary_share",
            mismatch: Mismatch::new(expected, self.rotary_share),
        }
    }
}

/// The drafter. Its fields carry the names of the checkpoint, but for `layer`, its only one, and `final_layernorm`, its `norm`.
/// Every norm's parameter is its weight less 1.
#[derive(Module, Debug)]
pub struct QwenMtp {
    pre_fc_norm_embedding: RmsNorm,
    pre_fc_norm_hidden: RmsNorm,
    fc: Linear,
    layer: MtpLayer,
    final_layernorm: RmsNorm,
    #[module(skip)]
    turned: usize,
    #[module(skip)]
    frozen: Frozen<QwenMtpConfig>,
}

impl Drafter for QwenMtp {
    type Config = QwenMtpConfig;
    type State = DraftState;

    mtp_drafter_with_experts!();

    /// # Panics
    /// The vocabulary is not the target's: the head is.
    fn new(
        config: &QwenMtpConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        assert!(
            vocabulary.is_full(),
            "a drafter without a head proposes every token"
        );
        let spec = &target.spec;
        let turned = config.turned(spec)?;
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let d = spec.d_model;
        let norm = |root: &mut Scope, name| RmsNorm::new(&mut root.child(name), d, norm(spec));
        Ok(Self {
            pre_fc_norm_embedding: norm(&mut root, "pre_fc_norm_embedding")?,
            pre_fc_norm_hidden: norm(&mut root, "pre_fc_norm_hidden")?,
            fc: Linear::new(&mut root.child("fc"), 2 * d, d, Bias::Without)?,
            layer: MtpLayer::new(&mut root.child("layer"), layer(config, spec))?,
            final_layernorm: norm(&mut root, "final_layernorm")?,
            turned,
            frozen: Frozen::new(config.filled(spec), target, vocabulary),
        })
    }
}

impl Unrolls for QwenMtp {
    fn begin(&self, features: &Features) -> Tensor<3> {
        features.last.clone()
    }

    /// After the final norm. The embedding stands before the hidden state.
    fn pass(
        &self,
        tokens: OfTokens,
        hidden: Tensor<3>,
        mut attend: impl FnMut(usize, &dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let embedded = self.pre_fc_norm_embedding.forward(tokens.into_embedded());
        let hidden = self.pre_fc_norm_hidden.forward(hidden);
        let x = Tensor::cat(vec![embedded, hidden], 2); // [batch, seq, 2 * d_model]
        let x = self.fc.forward(x); // [batch, seq, d_model]
        self.final_layernorm
            .forward(self.layer.around(x, |own, x| attend(0, own, x)))
    }

    /// The target's, frozen.
    fn head(&self) -> Tensor<2> {
        self.frozen.head(None, &self.fc.weight.device())
    }

    fn turned(&self) -> usize {
        self.turned
    }
}

/// The norms of the checkpoint.
fn norm(target: &TargetSpec) -> NormConfig {
    NormConfig {
        epsilon: target.norm_epsilon,
        less_one: true,
    }
}

/// The target's own layers that see everything, in its sizes.
fn layer(config: &QwenMtpConfig, target: &TargetSpec) -> MtpLayerConfig {
    MtpLayerConfig {
        d_model: target.d_model,
        attention: MtpAttention::Grouped(AttentionConfig {
            head_norm: Some(norm(target)),
            gated: true,
            ..AttentionConfig::of(target)
        }),
        d_ff: target.d_ff,
        experts: config.mixture(target),
        norm: norm(target),
    }
}
