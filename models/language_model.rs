//! A drafter that is a language model of its own: a smaller decoder over the target's tokens that reads nothing of the
//! target (DistillSpec, <https://arxiv.org/abs/2310.08461>).
use burn::module::Module;
use burn::prelude::*;
use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::along::by_text;
use crate::drafter::Drafter;
use crate::error::Result;
use crate::frozen::Frozen;
use crate::known_text::{KnownText, TakeLogits};
use crate::linear::Linear;
use crate::lora;
use crate::mask::{Layout, draft_mask, draft_positions, token_ids, tree_mask, tree_positions};
use crate::start::{StartConfig as _, table_with_start};
use crate::target::{Caches, Capture, Features, Target as _, TargetParts, TargetSpec};
use crate::transformer::{Transformer, TransformerConfig};
use crate::tree::{Tree, chain};
use crate::weights::{Scope, Weights};

table_with_start! {
    /// The `[drafter]` table of a recipe whose drafter is a language model.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    pub struct LanguageModelConfig {}
}

/// See the module.
#[derive(Module, Debug)]
pub struct LanguageModel {
    model: Transformer,
    #[module(skip)]
    frozen: Frozen<LanguageModelConfig>,
}

impl LanguageModel {
    /// `model` as a drafter for `target`.
    ///
    /// # Errors
    /// It knows more tokens than the target.
    pub fn of(model: Transformer, target: &TargetParts) -> Result<Self> {
        Ok(Self {
            frozen: Frozen::new(
                LanguageModelConfig::default(),
                target,
                &shared_vocabulary(model.config(), &target.spec)?,
            ),
            model,
        })
    }

    /// The decoder.
    pub fn model(&self) -> &Transformer {
        &self.model
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

    /// What the head reads over whole packed rows; index `t` predicts `x_{t+1}`.
    ///
    /// # Shapes
    /// - tokens: `[batch, seq]`
    /// - output: `[batch, seq, d_model]`, computed in `dtype`
    pub fn hidden(&self, tokens: Tensor<2, Int>, layout: &Layout, dtype: DType) -> Tensor<3> {
        let inputs = self.model.embed_known(tokens).cast(dtype);
        let mask = |window| Some(layout.mask(window));
        let positions = layout.positions.clone();
        let states = self
            .model
            .states(inputs, positions, &mask, None, &Capture::default());
        states.last
    }
}

/// The tokens that a model of this structure shares with the target: the target's first ones.
pub(crate) fn shared_vocabulary(
    model: &TransformerConfig,
    target: &TargetSpec,
) -> Result<DraftVocabulary> {
    let (own, vocab) = (model.spec.vocab, target.vocab);
    if own > vocab {
        return Err(crate::error::Error::Drafter {
            key: "model",
            mismatch: Mismatch::new(
                format!("a model of at most the target's {vocab} tokens"),
                own,
            ),
        });
    }
    Ok(if own == vocab {
        DraftVocabulary::full(vocab)
    } else {
        DraftVocabulary::from_d2t(&vec![0; own], vocab)?
    })
}

/// The sequence of a drafter that decodes with caches of its own, and draft nodes after it.
#[derive(Debug, Clone)]
pub struct LanguageModelState {
    caches: Caches,
    /// `x_0`, until it was run: no feature comes before it.
    first: Option<u32>,
    /// What the head reads at the last observed token, `[1, 1, d_model]`.
    root: Option<Tensor<3>>,
    /// Nodes that were run, in the order of their rows.
    drafted: Vec<usize>,
}

impl Drafter for LanguageModel {
    type Config = LanguageModelConfig;
    type State = LanguageModelState;

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
        let mut scope = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let model = Transformer::new(&mut scope, structure)?;
        let mut drafter = Self::of(model, target)?;
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
        let mut drafter = start.with_weights(target, seed, |weights| {
            Self::new(config, target, vocabulary, weights, device)
        })?;
        drafter.model = start.adapted(drafter.model, target, seed)?;
        Ok(drafter)
    }

    fn capture(config: &Self::Config, target: &TargetSpec) -> Result<Capture> {
        config.start().check_fit(target)?;
        Ok(Capture::default())
    }

    fn start(&self, capacity: usize, first: u32) -> LanguageModelState {
        LanguageModelState {
            caches: Caches::new(self.model.config().spec.layers, capacity),
            first: Some(first),
            root: None,
            drafted: Vec::new(),
        }
    }

    fn observe(&self, state: &mut LanguageModelState, tokens: &[u32], _: &Features) {
        let tokens: Vec<u32> = state
            .first
            .take()
            .into_iter()
            .chain(tokens.iter().copied())
            .collect();
        let device = self.model.device();
        let (parents, cached) = (chain(tokens.len()), state.caches.len);
        let states = self.model.states(
            self.model.embed_known(token_ids(&tokens, &device)),
            tree_positions(&parents, cached, &device),
            &|window| tree_mask(&parents, cached, window, &device),
            Some(&mut state.caches),
            &Capture::default(),
        );
        state.root = Some(states.last.narrow(1, tokens.len() - 1, 1));
    }

    fn frozen(&self) -> &Frozen<LanguageModelConfig> {
        &self.frozen
    }

    fn parameters_per_pass(&self) -> u64 {
        self.model.parameters_per_pass()
    }

    fn root_logits(&self, state: &mut LanguageModelState) -> Tensor<2> {
        match &state.root {
            Some(root) => logits(&self.model.head(), root.clone()),
            None => panic!("drafting before anything was observed"),
        }
    }

    fn node_logits(
        &self,
        state: &mut LanguageModelState,
        tree: &Tree,
        nodes: &[usize],
    ) -> Tensor<2> {
        let device = self.model.device();
        let committed = state.caches.len - state.drafted.len();
        let tokens: Vec<u32> = nodes.iter().map(|&node| tree.tokens[node]).collect();
        let drafted = &state.drafted;
        let states = self.model.states(
            self.model.embed_known(token_ids(&tokens, &device)),
            draft_positions(tree, nodes, committed, &device),
            &|window| draft_mask(tree, drafted, nodes, committed, window, &device),
            Some(&mut state.caches),
            &Capture::default(),
        );
        state.drafted.extend(nodes);
        logits(&self.model.head(), states.last)
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        by_text(text, &self.model.head(), take, |tokens, layout| {
            let inputs = self.model.embed_known(tokens);
            let positions = layout.positions.clone();
            let mask = |window| Some(layout.mask(window));
            let capture = Capture::default();
            self.model
                .states(inputs, positions, &mask, None, &capture)
                .last
        });
    }

    fn rewind(&self, state: &mut LanguageModelState) {
        let committed = state.caches.len - state.drafted.len();
        state.caches.truncate(committed);
        state.drafted.clear();
    }
}

/// The logits of one of some slots, which do not depend on the tokens in the slots before it, once for each of `copies`.
///
/// # Shapes
/// - logits: `[slots, vocab]`
/// - output: `[copies, vocab]`
pub(crate) fn slot_logits(logits: &Tensor<2>, slot: usize, copies: usize) -> Tensor<2> {
    let [_, vocab] = logits.dims();
    logits.clone().narrow(0, slot, 1).expand([copies, vocab])
}

/// `[1, rows, d_model]` to `[rows, vocab]`, f32.
pub(crate) fn logits(head: &Linear, hidden: Tensor<3>) -> Tensor<2> {
    head.forward(hidden).cast(DType::F32).squeeze_dim(0)
}
