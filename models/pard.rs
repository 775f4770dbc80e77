//! A language model that drafts all tokens of a chain in one pass: the places of tokens still to come hold a mask token
//! (PARD, <https://arxiv.org/abs/2504.18583>). With `target_features` it also reads the target's hidden states, where there
//! are any (PARD-2, <https://arxiv.org/abs/2605.08632>).
mod slots;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::language_model::TARGET_PROJ;
use spectrain_checkpoints::{Mismatch, NamedTensor};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::along::{Branches, masked};
use crate::drafter::Drafter;
use crate::error::{Error, Result};
use crate::frozen::Frozen;
use crate::known_text::{KnownText, TakeLogits};
use crate::language_model::{logits, shared_vocabulary};
use crate::linear::{Bias, Linear};
use crate::lora;
use crate::mask::{Mask, tree_mask, tree_positions};
use crate::start::{StartConfig as _, table_with_start};
use crate::target::{Caches, Capture, Features, Target as _, TargetParts, TargetSpec};
use crate::transformer::Transformer;
use crate::tree::Tree;
use crate::weights::{Init, RandomWeights, Scope, Weights, lift};

pub use slots::PardState;

/// Factor on projected features before they are added to embeddings, as in PARD-2's code.
const FEATURE_SCALE: f64 = 0.02;

table_with_start! {
    /// The `[drafter]` table of a PARD recipe. Every key but `mask_token` and one to start from may be left out.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    pub struct PardConfig {
        /// Required. The id of a token that occurs in no text; it stands for tokens still to come. The authors use 128020 for
        /// Llama 3, 151665 for Qwen2.5 and 151670 for Qwen3.
        pub mask_token: Option<u32>,
        /// Whether the target's projected hidden states are added to the embeddings (PARD-2). For a target of another width the
        /// drafter drafts without them.
        pub target_features: bool,
    }
}

impl PardConfig {
    fn mask_token(&self) -> Result<u32> {
        self.mask_token.ok_or_else(|| Error::Drafter {
            key: "mask_token",
            mismatch: Mismatch::new("the id of a token that no text holds", "none"),
        })
    }
}

/// See the module.
#[derive(Module, Debug)]
pub struct Pard {
    model: Transformer,
    /// From `[target_proj]` hidden states of the target, side by side, to the width of the drafter.
    target_proj: Option<Linear>,
    #[module(skip)]
    mask_token: u32,
    /// Whether features are read: not those of a target that `target_proj` does not fit.
    #[module(skip)]
    reads_features: bool,
    #[module(skip)]
    frozen: Frozen<PardConfig>,
}

impl Pard {
    /// `model` as a drafter for `target` that puts `mask_token` in the places of tokens to come. Without features, or where
    /// those of the target have another width, it reads none.
    ///
    /// # Errors
    /// It knows more tokens than the target, or does not know the mask token.
    pub fn of(
        model: Transformer,
        target_proj: Option<Linear>,
        target: &TargetParts,
        mask_token: u32,
    ) -> Result<Self> {
        let vocab = model.config().spec.vocab;
        if mask_token as usize >= vocab {
            return Err(Error::Drafter {
                key: "mask_token",
                mismatch: Mismatch::new(
                    format!("an id below {vocab}, the number of the drafter's tokens"),
                    mask_token,
                ),
            });
        }
        let width = feature_width(&target.spec);
        Ok(Self {
            frozen: Frozen::new(
                PardConfig {
                    mask_token: Some(mask_token),
                    target_features: target_proj.is_some(),
                    ..PardConfig::default()
                },
                target,
                &shared_vocabulary(model.config(), &target.spec)?,
            ),
            mask_token,
            reads_features: target_proj
                .as_ref()
                .is_some_and(|projection| projection.weight.val().dims()[0] == width),
            target_proj,
            model,
        })
    }

    /// The decoder.
    pub fn model(&self) -> &Transformer {
        &self.model
    }

    /// The projection of the target's features, if it has one.
    pub fn target_proj(&self) -> Option<&Linear> {
        self.target_proj.as_ref()
    }

    /// The hidden states of its target that it reads.
    pub fn capture_of_target(&self) -> Capture {
        Capture {
            layers: if self.reads_features() {
                captured(&self.frozen.target.spec)
            } else {
                Vec::new()
            },
        }
    }

    /// Whether features are read.
    pub fn reads_features(&self) -> bool {
        self.reads_features
    }

    /// The id that stands for tokens still to come.
    pub fn mask_token(&self) -> u32 {
        self.mask_token
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

    /// What is added to embeddings for the target's features. `[batch, seq, ..]` to `[batch, seq, d_model]`; `None` where
    /// none are read.
    pub fn project(&self, features: &Features) -> Option<Tensor<3>> {
        let projection = self
            .target_proj
            .as_ref()
            .filter(|_| self.reads_features())?;
        let device = projection.weight.device();
        let joined = lift(join(features), &device);
        Some(projection.forward(joined) * FEATURE_SCALE)
    }

    /// What the head reads of inputs of any layout, behind what the caches hold, if there are any.
    ///
    /// # Shapes
    /// - tokens, positions: `[batch, rows]`
    /// - added: `[batch, rows, d_model]`, added to the embeddings
    /// - output of `mask`: `[batch, 1, rows, cached + rows]`
    /// - output: `[batch, rows, d_model]`, computed in `dtype`
    pub fn hidden(
        &self,
        tokens: Tensor<2, Int>,
        positions: Tensor<2, Int>,
        added: Option<Tensor<3>>,
        (mask, caches): (&dyn Fn(Option<usize>) -> Option<Mask>, Option<&mut Caches>),
        dtype: DType,
    ) -> Tensor<3> {
        let mut inputs = self.model.embed_known(tokens).cast(dtype);
        if let Some(added) = added {
            inputs = inputs + added.cast(dtype);
        }
        let states = self
            .model
            .states(inputs, positions, mask, caches, &Capture::default());
        states.last
    }
}

/// The feature before the last token that each node has seen; none comes before the first of all.
///
/// # Shapes
/// - all: `[1, seq, d_model]`
/// - output: `[1, seen.len(), d_model]`
fn before(all: Tensor<3>, seen: &[usize]) -> Tensor<3> {
    let [_, _, width] = all.dims();
    let none = Tensor::zeros([1, 1, width], (&all.device(), all.dtype()));
    let rows: Vec<i64> = seen.iter().map(|&at| at as i64).collect();
    let rows = Tensor::<1, Int>::from_ints(rows.as_slice(), &all.device());
    Tensor::cat(vec![none, all], 1).select(1, rows)
}

/// Hidden states of the target side by side, as PARD-2 reads them: the last, then captured ones from the last to the first.
fn join(features: &Features) -> Tensor<3> {
    let [_, _, d_model] = features.last.dims();
    let layers = features.captured.dims()[2] / d_model;
    let layer = |index: usize| {
        features
            .captured
            .clone()
            .narrow(2, index * d_model, d_model)
    };
    let mut parts = vec![features.last.clone()];
    parts.extend((0..layers).rev().map(layer));
    Tensor::cat(parts, 2)
}

/// The captured layers beside the last hidden state: the 8th, 16th and 24th from the end, as in PARD-2's code, or the
/// quarters of a target that has no more than 24.
fn captured(target: &TargetSpec) -> Vec<usize> {
    let layers = target.layers;
    let mut captured = if layers > 24 {
        vec![layers - 24, layers - 16, layers - 8]
    } else {
        vec![layers / 4, layers / 2, layers * 3 / 4]
    };
    captured.dedup();
    captured
}

/// Width of the hidden states of a target that a drafter with `target_features` reads, side by side.
pub fn feature_width(target: &TargetSpec) -> usize {
    (1 + captured(target).len()) * target.d_model
}

impl Drafter for Pard {
    type Config = PardConfig;
    type State = PardState;

    fn check(config: &Self::Config) -> Result<()> {
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
        let structure = config.structure(target)?;
        let (mask_token, d_model) = (config.mask_token()?, structure.spec.d_model);
        let mut scope = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let projection = if config.target_features {
            let width = feature_width(&target.spec);
            let scope = &mut scope.child("target_proj");
            Some(Linear::new(scope, width, d_model, Bias::Without)?)
        } else {
            None
        };
        let model = Transformer::new(&mut scope, structure)?;
        let mut drafter = Self::of(model, projection, target, mask_token)?;
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
        start.compare_mask(target, config.mask_token()?)?;
        let mut drafter = start.with_weights(target, seed, |weights| {
            let stored = |name: &str, shape: &[usize]| start.beside(target, name, shape);
            let mut weights = WithProjection {
                weights,
                stored: &stored,
                random: RandomWeights::new(seed ^ 1),
            };
            Self::new(config, target, vocabulary, &mut weights, device)
        })?;
        drafter.model = start.adapted(drafter.model, target, seed)?;
        Ok(drafter)
    }

    fn capture(config: &Self::Config, target: &TargetSpec) -> Result<Capture> {
        config.start().check_fit(target)?;
        config
            .start()
            .check_token("mask_token", config.mask_token()?, target)?;
        Ok(Capture {
            layers: if config.target_features {
                captured(target)
            } else {
                Vec::new()
            },
        })
    }

    fn start(&self, capacity: usize, first: u32) -> PardState {
        PardState {
            caches: Caches::new(self.model.config().spec.layers, capacity),
            pending: vec![first],
            features: Vec::new(),
            feature: None,
            logits: None,
            planned: 1,
        }
    }

    fn observe(&self, state: &mut PardState, tokens: &[u32], features: &Features) {
        state.pending.extend(tokens);
        state.features.extend(self.project(features));
    }

    fn frozen(&self) -> &Frozen<PardConfig> {
        &self.frozen
    }

    fn plan(&self, state: &mut PardState, depth: usize) {
        state.planned = depth.max(1);
    }

    /// What the two papers train with.
    fn draft_length(&self) -> usize {
        if self.target_proj.is_some() { 16 } else { 8 }
    }

    fn passes(&self, depth: usize) -> usize {
        depth.min(1)
    }

    fn depends_on_depth_alone(&self) -> bool {
        true
    }

    fn parameters_per_pass(&self) -> u64 {
        self.model.parameters_per_pass() + self.target_proj.num_params() as u64
    }

    fn root_logits(&self, state: &mut PardState) -> Tensor<2> {
        state.slot_logits(&self.model, self.mask_token, 0, 1)
    }

    fn node_logits(&self, state: &mut PardState, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let depth = nodes.first().map_or(0, |&node| 1 + tree.depth(node));
        state.slot_logits(&self.model, self.mask_token, depth, nodes.len())
    }

    fn rewind(&self, _: &mut PardState) {}

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        let features = text.features(0, text.rows());
        let dtype = features.last.dtype();
        let projected = self.project(&features);
        let head = self.model.head();
        let mut caches = Caches::new(self.model.config().spec.layers, text.tokens.len());
        let nodes = |branches: &Branches| {
            let device = self.model.device();
            let (parents, cached) = (&branches.parents, branches.cached);
            let hidden = self.hidden(
                branches.ids(self.mask_token, &device),
                tree_positions(parents, cached, &device),
                projected.clone().map(|all| before(all, &branches.seen)),
                (
                    &|window| tree_mask(parents, cached, window, &device),
                    Some(&mut caches),
                ),
                dtype,
            );
            caches.truncate(cached + branches.trunk);
            hidden
        };
        let [_, width] = head.weight.dims();
        masked(text, (0, width), take, nodes, |hidden| {
            logits(&head, hidden.unsqueeze())
        });
    }
}

/// What reads a tensor beside a model of a name and a shape, if there is one.
type Stored<'a> = dyn Fn(&str, &[usize]) -> Result<Option<NamedTensor>> + 'a;

/// The parameters of a model to start from, and a projection of features: that beside the model, as in a drafter's folder, or one
/// that is drawn.
struct WithProjection<'a> {
    weights: &'a mut dyn Weights,
    stored: &'a Stored<'a>,
    random: RandomWeights,
}

impl Weights for WithProjection<'_> {
    fn tensor(&mut self, name: &str, shape: &[usize], init: Init) -> Result<NamedTensor> {
        if name != TARGET_PROJ {
            return self.weights.tensor(name, shape, init);
        }
        match (self.stored)(name, shape)? {
            Some(stored) => Ok(stored),
            None => self.random.tensor(name, shape, init),
        }
    }
}
