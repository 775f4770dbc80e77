//! Multi-token prediction: one decoder layer over a token's embedding beside a hidden state, whose normed output the target's
//! head and the next step read (DeepSeek-V3, <https://arxiv.org/abs/2412.19437>, section 2.2; the layer of MiMo,
//! <https://arxiv.org/abs/2505.07608>; one layer for all steps as in FastMTP, <https://arxiv.org/abs/2509.18362>).
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::attention::{AttentionConfig, Projects};
use crate::decoder::{DecoderLayer, DecoderLayerConfig};
use crate::draft_state::DraftState;
use crate::drafter::Drafter;
use crate::error::Result;
use crate::frozen::Frozen;
use crate::linear::{Bias, Linear};
use crate::mtp_drafter::mtp_drafter;
use crate::norm::RmsNorm;
use crate::of_tokens::OfTokens;
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::unrolls::Unrolls;
use crate::weights::{Scope, Weights};

/// The `[drafter]` table of an MTP recipe. It has no sizes: engines give the layer those of the target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MtpConfig {
    /// Whether the layer reads the target's last hidden state after the target's final norm, as SGLang hands it over,
    /// instead of before it, as vLLM does and as MiMo's own layer was trained.
    pub after_final_norm: bool,
}

/// The MTP drafter. Its fields carry the names of the checkpoint, which has those of `layer` beside them.
#[derive(Module, Debug)]
pub struct Mtp {
    token_layernorm: RmsNorm,
    hidden_layernorm: RmsNorm,
    input_proj: Linear,
    layer: DecoderLayer,
    final_layernorm: RmsNorm,
    #[module(skip)]
    frozen: Frozen<MtpConfig>,
}

impl Drafter for Mtp {
    type Config = MtpConfig;
    type State = DraftState;

    fn check(_: &MtpConfig) -> Result<()> {
        Ok(())
    }

    mtp_drafter!();

    /// # Panics
    /// The vocabulary is not the target's: the head is.
    fn new(
        config: &MtpConfig,
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
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let d = spec.d_model;
        let norm =
            |root: &mut Scope, name| RmsNorm::new(&mut root.child(name), d, spec.norm_epsilon);
        Ok(Self {
            token_layernorm: norm(&mut root, "token_layernorm")?,
            hidden_layernorm: norm(&mut root, "hidden_layernorm")?,
            input_proj: Linear::new(&mut root.child("input_proj"), 2 * d, d, Bias::Without)?,
            layer: DecoderLayer::new(&mut root.child("layer"), &layer(spec))?,
            final_layernorm: norm(&mut root, "final_layernorm")?,
            frozen: Frozen::new(config.clone(), target, vocabulary),
        })
    }

    /// The output of the last layer, which is the last hidden state before the target's final norm; no layer where it is read after it.
    fn capture(config: &MtpConfig, target: &TargetSpec) -> Result<Capture> {
        if config.after_final_norm {
            return Ok(Capture::default());
        }
        Ok(Capture {
            layers: vec![target.layers - 1],
        })
    }
}

impl Unrolls for Mtp {
    fn begin(&self, features: &Features) -> Tensor<3> {
        if self.frozen.config.after_final_norm {
            features.last.clone()
        } else {
            features.captured.clone()
        }
    }

    /// After the final norm. The hidden state stands before the embedding.
    fn pass(
        &self,
        tokens: OfTokens,
        hidden: Tensor<3>,
        mut attend: impl FnMut(usize, &dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let hidden = self.hidden_layernorm.forward(hidden);
        let embedded = self.token_layernorm.forward(tokens.into_embedded());
        let x = Tensor::cat(vec![hidden, embedded], 2); // [batch, seq, 2 * d_model]
        let x = self.input_proj.forward(x); // [batch, seq, d_model]
        self.final_layernorm
            .forward(self.layer.around(x, |own, x| attend(0, own, x)))
    }

    /// The target's, frozen.
    fn head(&self) -> Tensor<2> {
        self.frozen.head(None, &self.input_proj.weight.device())
    }

    /// As MiMo's layer does.
    fn starts_blank(&self) -> bool {
        true
    }
}

/// The layer of Qwen2 in the target's sizes: MiMo's.
fn layer(target: &TargetSpec) -> DecoderLayerConfig {
    DecoderLayerConfig {
        attention: AttentionConfig {
            qkv_bias: Bias::With,
            ..AttentionConfig::of(target)
        },
        d_ff: target.d_ff,
        mlp_bias: Bias::Without,
        experts: None,
        norm: target.norm_epsilon.into(),
    }
}
