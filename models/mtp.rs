//! Multi-token prediction: one decoder layer over a token's embedding beside a hidden state, whose normed output the target's
//! head and the next step read (DeepSeek-V3, <https://arxiv.org/abs/2412.19437>, section 2.2; the layer of MiMo,
//! <https://arxiv.org/abs/2505.07608>; one layer for all steps as in FastMTP, <https://arxiv.org/abs/2509.18362>).
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::{Mismatch, ModelFolder, NamedTensor};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::along::unrolled;
use crate::attention::{Attention, AttentionConfig};
use crate::decoder::{DecoderLayer, DecoderLayerConfig};
use crate::draft_state::{DraftPass, DraftState};
use crate::drafter::Drafter;
use crate::error::{Error, Result};
use crate::frozen::Frozen;
use crate::known_text::{KnownText, TakeLogits};
use crate::linear::{Bias, Linear};
use crate::mask::{Mask, token_ids};
use crate::norm::RmsNorm;
use crate::rope::Rotation;
use crate::steps::blank_at_start;
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::tree::Tree;
use crate::unrolled::UnrolledCache;
use crate::unrolls::Unrolls;
use crate::untrained::Untrained;
use crate::weights::{FolderWeights, Init, RandomWeights, Scope, Weights};

/// The `[drafter]` table of an MTP recipe. Every key may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MtpConfig {
    /// What the decoder layer starts as, unless training starts from a folder.
    pub layer: LayerStart,
}

/// What a decoder layer starts as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LayerStart {
    /// Drawn at random.
    #[default]
    Random,
    /// The target's last layer.
    Last,
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

impl Mtp {
    /// What the head and the next step read. The hidden state stands before the embedding.
    ///
    /// # Shapes
    /// - embedded, hidden, output: `[batch, seq, d_model]`
    fn pass(
        &self,
        embedded: Tensor<3>,
        hidden: Tensor<3>,
        attend: impl FnOnce(&Attention, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let hidden = self.hidden_layernorm.forward(hidden);
        let embedded = self.token_layernorm.forward(embedded);
        let x = Tensor::cat(vec![hidden, embedded], 2); // [batch, seq, 2 * d_model]
        let x = self.input_proj.forward(x); // [batch, seq, d_model]
        self.final_layernorm.forward(self.layer.around(x, attend))
    }

    /// The outputs behind some tokens, batch 1.
    fn decode(&self, tokens: &[u32], hidden: Tensor<3>, pass: DraftPass) -> Tensor<3> {
        let device = hidden.device();
        let target = &self.frozen.target;
        let rotation = target.spec.rotary(&device).at(pass.positions.clone());
        let embedded = target.embed(token_ids(tokens, &device), &device);
        let embedded = blank_at_start(embedded.cast(hidden.dtype()), pass.positions);
        self.pass(embedded, hidden, |attention, x| {
            attention.forward(x, &rotation, pass.mask.as_ref(), Some(pass.cache))
        })
    }
}

impl Drafter for Mtp {
    type Config = MtpConfig;
    type State = DraftState;

    fn check(_: &MtpConfig) -> Result<()> {
        Ok(())
    }

    /// # Panics
    /// The vocabulary is not the target's: the head is.
    fn new(
        _: &MtpConfig,
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
            // What the layer started as is in no folder.
            frozen: Frozen::new(MtpConfig::default(), target, vocabulary),
        })
    }

    fn fresh(
        config: &MtpConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut rest = Untrained {
            random: RandomWeights::new(seed),
            heads: None,
            norm: true,
            target,
            vocabulary,
        };
        if config.layer == LayerStart::Random {
            return Self::new(config, target, vocabulary, &mut rest, device);
        }
        let folder = ModelFolder::open(of_target(target)?)?;
        let mut weights = LastLayer {
            layer: target.spec.layers - 1,
            stored: FolderWeights::new(&folder, "model."),
            folder: &folder,
            rest,
        };
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    /// The output of the last layer: the last hidden state as it is before the target's final norm.
    fn capture(_: &MtpConfig, target: &TargetSpec) -> Result<Capture> {
        Ok(Capture {
            layers: vec![target.layers - 1],
        })
    }

    fn start(&self, capacity: usize, _: u32) -> DraftState {
        DraftState::new(capacity)
    }

    fn observe(&self, state: &mut DraftState, tokens: &[u32], features: &Features) {
        let hidden = features.captured.clone();
        state.observe(tokens.len(), &hidden.device(), |pass| {
            self.decode(tokens, hidden, pass)
        });
    }

    fn parameters_per_pass(&self) -> u64 {
        (self.num_params() + self.frozen.shared_parameters(None)) as u64
    }

    fn frozen(&self) -> &Frozen<MtpConfig> {
        &self.frozen
    }

    /// What FastMTP trains and drafts with.
    fn draft_length(&self) -> usize {
        3
    }

    fn root_logits(&self, state: &mut DraftState) -> Tensor<2> {
        self.read(state.root())
    }

    fn node_logits(&self, state: &mut DraftState, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let tokens: Vec<u32> = nodes.iter().map(|&node| tree.tokens[node]).collect();
        let outputs = state.draft(tree, nodes, |hidden, pass| {
            self.decode(&tokens, hidden, pass)
        });
        self.read(outputs)
    }

    fn rewind(&self, state: &mut DraftState) {
        state.rewind();
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        unrolled(self, text, take);
    }
}

impl Unrolls for Mtp {
    fn begin(&self, features: &Features) -> Tensor<3> {
        features.captured.clone()
    }

    /// After the final norm.
    fn output(
        &self,
        embedded: Tensor<3>,
        hidden: Tensor<3>,
        rotation: &Rotation,
        mask: &Mask,
        cache: &mut UnrolledCache,
    ) -> Tensor<3> {
        self.pass(embedded, hidden, |attention, x| {
            attention.output(cache.attend(attention.project(x, rotation), mask))
        })
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
            d_input: target.d_model,
            d_model: target.d_model,
            heads: target.heads,
            kv_heads: target.kv_heads,
            d_head: target.d_head,
            qkv_bias: Bias::With,
            output_bias: Bias::Without,
            head_norm: None,
        },
        d_ff: target.d_ff,
        mlp_bias: Bias::Without,
        experts: None,
        norm_epsilon: target.norm_epsilon,
    }
}

/// The folder of a target that has a last layer to start from.
fn of_target(target: &TargetParts) -> Result<&std::path::Path> {
    let refused = |expected, found| Error::Drafter {
        key: "layer",
        mismatch: Mismatch::new(expected, found),
    };
    if target.spec.experts_of(target.spec.layers - 1).is_some() {
        let expected = "`random` where the target's last layer has experts";
        return Err(refused(expected, "`last`"));
    }
    let folder = target.folder.as_deref();
    folder.ok_or_else(|| refused("a target that was loaded from a folder", "one that was not"))
}

/// The target's last layer, with biases of 0 where it has none, and what is not of the layer from elsewhere.
struct LastLayer<'a> {
    layer: usize,
    folder: &'a ModelFolder,
    stored: FolderWeights<'a>,
    rest: Untrained<'a>,
}

impl Weights for LastLayer<'_> {
    fn tensor(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor> {
        let Some(rest) = name.strip_prefix("layer.") else {
            return self.rest.tensor(name, shape, init);
        };
        let stored = format!("layers.{}.{rest}", self.layer);
        let is_there = self.folder.info(&format!("model.{stored}")).is_ok();
        if rest.ends_with(".bias") && !is_there {
            let zeros = vec![0.0; shape.iter().product()];
            return Ok(NamedTensor::from_f32(name, shape, zeros));
        }
        let tensor = self.stored.tensor(&stored, shape, init)?;
        Ok(NamedTensor {
            name: name.to_owned(),
            ..tensor
        })
    }
}
