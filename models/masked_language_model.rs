//! A masked-diffusion language model as a drafter: behind the text and a separator it fills a block of masks in one
//! denoising step and reads nothing of the target (DEER, <https://arxiv.org/abs/2512.15176>).
//!
//! A mask predicts the token of its own place, as masked-diffusion models and the paper's loss have it, and not the one
//! after it, as the model that it starts from did. With the shift, which some converted models keep, the first draft would
//! hang on the separator's place and every token that is not masked would be judged by its successor's mask. A model that
//! wrote from left to right unlearns its shift in the stage `adapt`.
//!
//! No slot sees the tokens drafted in the slots before it, so each is drawn from the distribution that the verifier is told
//! of. In a bidirectional block those distributions change with the number of masks.
mod blocks;
mod places;
mod slots;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::bounds;
use crate::drafter::Drafter;
use crate::error::{Error, Result};
use crate::frozen::Frozen;
use crate::language_model::shared_vocabulary;
use crate::lora;
use crate::start::{StartConfig as _, table_with_start};
use crate::target::{Capture, Features, Target as _, TargetParts, TargetSpec};
use crate::transformer::Transformer;
use crate::tree::Tree;
use crate::weights::{Scope, Weights};

pub use blocks::{Blocks, Context};
pub use places::{Place, Places};
use slots::MaskedState;

table_with_start! {
    /// The `[drafter]` table of a DEER recipe. Every key but the two tokens and one to start from may be left out.
    /// The stage `adapt` turns a model that writes from left to right into one that fills masks.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    pub struct MaskedLanguageModelConfig {
        /// Required. The id of a token that occurs in no text; it stands for tokens still to come.
        pub mask_token: Option<u32>,
        /// Required. The id of another such token; it stands between the text and the tokens still to come.
        pub separator_token: Option<u32>,
        /// The most tokens in a draft.
        pub block_size: usize,
        /// What the text before a block sees.
        pub context: Context,
    }
}

impl Default for MaskedLanguageModelConfig {
    fn default() -> Self {
        Self {
            model: String::new(),
            revision: None,
            keep_layers: Vec::new(),
            fresh: None,
            lora: None,
            mask_token: None,
            separator_token: None,
            block_size: 32,
            context: Context::Bidirectional,
        }
    }
}

impl MaskedLanguageModelConfig {
    /// How blocks are made.
    ///
    /// # Errors
    /// A key is missing, or makes no sense.
    pub fn blocks(&self) -> Result<Blocks> {
        let token = |key, token: Option<u32>| {
            token.ok_or_else(|| Error::Drafter {
                key,
                mismatch: Mismatch::new("the id of a token that no text holds", "none"),
            })
        };
        let blocks = Blocks {
            mask_token: token("mask_token", self.mask_token)?,
            separator_token: token("separator_token", self.separator_token)?,
            size: self.block_size,
            context: self.context,
        };
        if blocks.mask_token == blocks.separator_token {
            return Err(Error::Drafter {
                key: "separator_token",
                mismatch: Mismatch::new("a token other than `mask_token`", blocks.separator_token),
            });
        }
        bounds::check([bounds::up_to("block_size", blocks.size, bounds::DRAFT)])?;
        Ok(blocks)
    }
}

/// See the module.
#[derive(Module, Debug)]
pub struct MaskedLanguageModel {
    model: Transformer,
    #[module(skip)]
    blocks: Blocks,
    #[module(skip)]
    frozen: Frozen<MaskedLanguageModelConfig>,
}

impl MaskedLanguageModel {
    /// `model` as a drafter for `target`.
    ///
    /// # Errors
    /// It knows more tokens than the target, or does not know those of `blocks`.
    pub fn of(model: Transformer, target: &TargetParts, blocks: Blocks) -> Result<Self> {
        let vocab = model.config().spec.vocab;
        for (key, token) in [
            ("mask_token", blocks.mask_token),
            ("separator_token", blocks.separator_token),
        ] {
            if token as usize >= vocab {
                return Err(Error::Drafter {
                    key,
                    mismatch: Mismatch::new(
                        format!("an id below {vocab}, the number of the drafter's tokens"),
                        token,
                    ),
                });
            }
        }
        Ok(Self {
            frozen: Frozen::new(
                MaskedLanguageModelConfig::default(),
                target,
                &shared_vocabulary(model.config(), &target.spec)?,
            ),
            blocks,
            model,
        })
    }

    /// The decoder.
    pub fn model(&self) -> &Transformer {
        &self.model
    }

    /// How its blocks are made.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// Whether its head is trained: not beside low-rank matrices.
    pub fn trains_head(&self) -> bool {
        self.frozen.config.lora.is_none()
    }

    /// The decoder as it is written: low-rank matrices are added to the weights.
    ///
    /// # Errors
    /// None.
    pub fn merged(&self) -> Result<Transformer> {
        lora::merge(self.model.clone())
    }

    /// What the head reads at every place of packed rows.
    ///
    /// # Shapes
    /// - output: `[batch, width, d_model]`, computed in `dtype`
    pub fn hidden(&self, places: &Places, dtype: DType) -> Tensor<3> {
        let context = self.blocks.context;
        let inputs = self.model.embed_known(places.tokens.clone()).cast(dtype);
        let mask = |window| Some(places.mask(context, window));
        let positions = places.layout.positions.clone();
        let states = self
            .model
            .states(inputs, positions, &mask, None, &Capture::default());
        states.last
    }
}

impl Drafter for MaskedLanguageModel {
    type Config = MaskedLanguageModelConfig;
    type State = MaskedState;

    fn check(config: &Self::Config) -> Result<()> {
        bounds::check([bounds::up_to(
            "block_size",
            config.block_size,
            bounds::DRAFT,
        )])?;
        config.start().check_numbers()
    }

    fn new(
        config: &Self::Config,
        target: &TargetParts,
        _: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        Self::check(config)?;
        let (structure, blocks) = (config.structure(target)?, config.blocks()?);
        let mut scope = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let model = Transformer::new(&mut scope, structure)?;
        let mut drafter = Self::of(model, target, blocks)?;
        drafter.frozen.config = config.clone();
        Ok(drafter)
    }

    fn fresh(
        config: &Self::Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let start = config.start();
        start.compare_mask(target, config.blocks()?.mask_token)?;
        let mut drafter = start.with_weights(target, seed, |weights| {
            Self::new(config, target, vocabulary, weights, device)
        })?;
        drafter.model = start.adapted(drafter.model, target, seed)?;
        Ok(drafter)
    }

    fn capture(config: &Self::Config, target: &TargetSpec) -> Result<Capture> {
        config.start().check_fit(target)?;
        let blocks = config.blocks()?;
        for (key, token) in [
            ("mask_token", blocks.mask_token),
            ("separator_token", blocks.separator_token),
        ] {
            config.start().check_token(key, token, target)?;
        }
        Ok(Capture::default())
    }

    fn start(&self, capacity: usize, first: u32) -> MaskedState {
        MaskedState::new(&self.model, self.blocks, capacity, first)
    }

    fn observe(&self, state: &mut MaskedState, tokens: &[u32], _: &Features) {
        state.observe(tokens);
    }

    fn frozen(&self) -> &Frozen<MaskedLanguageModelConfig> {
        &self.frozen
    }

    fn plan(&self, state: &mut MaskedState, depth: usize) {
        state.plan(depth);
    }

    fn max_depth(&self) -> Option<usize> {
        Some(self.blocks.size)
    }

    fn passes(&self, depth: usize) -> usize {
        depth.min(1)
    }

    fn depends_on_depth_alone(&self) -> bool {
        true
    }

    fn parameters_per_pass(&self) -> u64 {
        self.model.parameters_per_pass()
    }

    fn root_logits(&self, state: &mut MaskedState) -> Tensor<2> {
        state.slot_logits(&self.model, self.blocks, 0, 1)
    }

    fn node_logits(&self, state: &mut MaskedState, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let depth = nodes.first().map_or(0, |&node| 1 + tree.depth(node));
        state.slot_logits(&self.model, self.blocks, depth, nodes.len())
    }

    fn rewind(&self, _: &mut MaskedState) {}
}
