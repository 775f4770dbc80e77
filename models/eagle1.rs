//! EAGLE-1: one decoder layer that continues the target's last hidden states, read by the target's own head
//! (<https://arxiv.org/abs/2401.15077>). HASS (<https://arxiv.org/abs/2408.15766>) trains the same module.
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::attention::Projects;
use crate::bounds;
use crate::draft_state::DraftState;
use crate::drafter::Drafter;
use crate::drafts_unrolled::drafts_unrolled;
use crate::eagle_layer::{EagleLayer, Inside, Reads};
use crate::error::Result;
use crate::frozen::Frozen;
use crate::linear::Linear;
use crate::of_tokens::OfTokens;
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::units::{InUnits, Sizes, Units};
use crate::unrolls::Unrolls;
use crate::weights::{RandomWeights, Scope, Weights};

/// The `[drafter]` table of an EAGLE-1 recipe. Every key may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Eagle1Config {
    /// Whether `fc` adds a bias. vLLM cannot serve such a drafter.
    pub bias: bool,
    /// Whether query, key and value projections add a bias, as those of Qwen2's layers do. Left out: false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub qkv_bias: bool,
    /// Width inside the feed-forward part; 0 takes the target's.
    pub d_ff: usize,
    /// Query heads; 0 takes as many, up to the target's, as divide the width.
    pub heads: usize,
    /// Key and value heads; 0 takes as many of the target's as divide `heads`.
    pub kv_heads: usize,
    /// Width of a head, an even number; left out, or 0, it is the target's. Engines' kernels take multiples of 8 from 32 to 256.
    #[serde(skip_serializing_if = "bounds::is_left_out")]
    pub d_head: usize,
}

/// The EAGLE-1 drafter. Its fields carry the names of the checkpoint.
#[derive(Module, Debug)]
pub struct Eagle1 {
    fc: Linear,
    /// One; a list because checkpoints call it `layers.0`.
    layers: Vec<EagleLayer>,
    #[module(skip)]
    frozen: Frozen<Eagle1Config>,
}

impl Drafter for Eagle1 {
    type Config = Eagle1Config;
    type State = DraftState;

    fn check(config: &Eagle1Config) -> Result<()> {
        bounds::check([
            bounds::or_none("d_ff", config.d_ff, bounds::FEED_FORWARD),
            bounds::or_none("heads", config.heads, bounds::HEADS),
            bounds::or_none("kv_heads", config.kv_heads, bounds::HEADS),
        ])?;
        Ok(bounds::check_heads("d_head", config.d_head)?)
    }

    /// # Panics
    /// The vocabulary is not the target's: the head is.
    fn new(
        config: &Eagle1Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        Self::check(config)?;
        assert!(
            vocabulary.is_full(),
            "a drafter without a head proposes every token"
        );
        let target = &target.with_heads(config.d_head)?;
        let spec = &target.spec;
        let config = config.resolve(spec)?;
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let d = spec.d_model;
        // No norm follows the layer either: it predicts hidden states that are normed already.
        let inside = Inside {
            latent: None,
            sizes: [config.d_ff, config.heads, config.kv_heads],
            head_norm: false,
            qkv_bias: config.qkv_bias.into(),
        };
        let fc = Linear::new(&mut root.child("fc"), 2 * d, d, config.bias.into())?;
        let layer = EagleLayer::new(&mut root.child("layers.0"), Reads::Fused, spec, inside)?;
        Ok(Self {
            fc,
            layers: vec![layer],
            frozen: Frozen::new(config, target, vocabulary),
        })
    }

    fn fresh(
        config: &Eagle1Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = InUnits {
            drawn: RandomWeights::new(seed),
            units: Self::units(config, target),
        };
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    /// No layers: the last hidden state, which is always there, is all it reads.
    fn capture(config: &Eagle1Config, target: &TargetSpec) -> Result<Capture> {
        config.resolve(target)?;
        Ok(Capture::default())
    }

    /// `fc` reads an embedding beside a hidden state.
    fn units(_: &Eagle1Config, target: &TargetParts) -> Vec<Units> {
        let (sizes, d) = (Sizes::of(target), target.spec.d_model);
        let fc = [[sizes.embedding].repeat(d), [sizes.state].repeat(d)];
        vec![("fc.weight".into(), fc.concat())]
    }

    drafts_unrolled!();

    fn parameters_per_pass(&self) -> u64 {
        (self.num_params() + self.frozen.shared_parameters(None)) as u64
    }

    fn frozen(&self) -> &Frozen<Eagle1Config> {
        &self.frozen
    }
}

impl Unrolls for Eagle1 {
    fn begin(&self, features: &Features) -> Tensor<3> {
        features.last.clone()
    }

    /// The features that follow: true ones are read at step 0, predicted ones after.
    fn pass(
        &self,
        tokens: OfTokens,
        features: Tensor<3>,
        mut attend: impl FnMut(usize, &dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let x = Tensor::cat(vec![tokens.into_embedded(), features], 2); // [batch, seq, 2 * d_model]
        let x = self.fc.forward(x); // [batch, seq, d_model]
        self.layers[0].single(x, |own, x| attend(0, own, x))
    }

    /// The target's, frozen.
    fn head(&self) -> Tensor<2> {
        self.frozen.head(None, &self.fc.weight.device())
    }
}

impl Eagle1Config {
    /// With the sizes that were left out taken from the target.
    fn resolve(&self, target: &TargetSpec) -> Result<Self> {
        let [d_ff, heads, kv_heads] = target.layer_sizes(self.d_ff, self.heads, self.kv_heads)?;
        Ok(Self {
            d_ff,
            heads,
            kv_heads,
            ..self.clone()
        })
    }
}
