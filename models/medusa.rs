//! Medusa: heads beside the target's own, each predicting one token further ahead (<https://arxiv.org/abs/2401.10774>).
//! The target stays frozen (Medusa-1).
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::along::heads;
use crate::draft_heads::{
    DraftHeads, OutputHead, OutputLayer, check_numbers, check_vocabulary, fresh_weights,
    head_after, output_layer, own_outputs, residual, residual_blocks,
};
use crate::drafter::Drafter;
use crate::error::Result;
use crate::frozen::Frozen;
use crate::known_text::{KnownText, TakeLogits};
use crate::linear::{Bias, Linear};
use crate::mask::Layout;
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::tree::Tree;
use crate::weights::{Scope, Weights};

/// The `[drafter]` table of a Medusa recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MedusaConfig {
    /// Number of Medusa heads, and so the length of the longest draft.
    pub medusa_heads: usize,
    /// Residual blocks of each head.
    pub head_layers: usize,
    /// Where the output layers come from.
    pub head: OutputHead,
    /// Number of tokens that the drafter can propose: the most frequent ones in the training data, and the stop tokens; 0 takes
    /// all of the target's tokens.
    pub draft_vocab: usize,
}

impl Default for MedusaConfig {
    fn default() -> Self {
        Self {
            medusa_heads: 4,
            head_layers: 1,
            head: OutputHead::Own,
            draft_vocab: 0,
        }
    }
}

/// The Medusa drafter. Its fields carry the names of the checkpoint.
///
/// The reference builds the blocks of a head as one module applied several times; here they are distinct.
#[derive(Module, Debug)]
pub struct Medusa {
    blocks: Vec<Blocks>,
    /// None when the target's is shared.
    lm_heads: Vec<Linear>,
    #[module(skip)]
    frozen: Frozen<MedusaConfig>,
}

/// `x + SiLU(linear(x))` for each layer in turn.
#[derive(Module, Debug)]
struct Blocks {
    layers: Vec<Linear>,
}

/// Decoding state of one sequence.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// `[1, d_model]`: the target's last hidden state at the last position that has one.
    hidden: Option<Tensor<2>>,
}

impl Medusa {
    /// Logits of one head, `[1, draft_vocab]`. They depend on no drafted token.
    fn logits(&self, state: &State, head: usize) -> Tensor<2> {
        let Some(hidden) = state.hidden.clone() else {
            panic!("drafting before anything was observed");
        };
        let hidden = residual_blocks(&self.blocks[head].layers, hidden);
        self.output(head).logits(hidden)
    }
}

impl DraftHeads for Medusa {
    const LOSS_DECAY: f64 = 0.8;

    fn hidden(&self, _: &[Tensor<2, Int>], _: &Layout, last: Tensor<3>) -> Vec<Tensor<2>> {
        let [batch, seq, d_model] = last.dims();
        let last = last.reshape([batch * seq, d_model]);
        let each = |blocks: &Blocks| residual_blocks(&blocks.layers, last.clone());
        self.blocks.iter().map(each).collect()
    }

    fn output(&self, head: usize) -> OutputLayer {
        let device = self.blocks[0].layers[0].weight.device();
        output_layer(&self.frozen, &self.lm_heads, head, &device)
    }

    fn shares_output(&self) -> bool {
        self.lm_heads.is_empty()
    }
}

impl Drafter for Medusa {
    type Config = MedusaConfig;
    type State = State;

    fn check(config: &MedusaConfig) -> Result<()> {
        check_numbers(
            ("medusa_heads", config.medusa_heads),
            config.head_layers,
            config.draft_vocab,
        )
    }

    fn new(
        config: &MedusaConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        let spec = &target.spec;
        Self::capture(config, spec)?;
        let d = spec.d_model;
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let mut blocks = Vec::with_capacity(config.medusa_heads);
        for head in 0..config.medusa_heads {
            let mut layers = Vec::with_capacity(config.head_layers);
            for layer in 0..config.head_layers {
                let mut scope = root.child(format!("blocks.{head}.layers.{layer}"));
                layers.push(residual(&mut scope, d, d)?);
            }
            blocks.push(Blocks { layers });
        }
        let sizes = [d, vocabulary.len()];
        let lm_heads = own_outputs(
            &mut root,
            config.medusa_heads,
            sizes,
            config.head,
            Bias::Without,
        )?;
        let shared = config.head == OutputHead::Shared;
        let settings = MedusaConfig {
            draft_vocab: vocabulary.len(),
            ..config.clone()
        };
        Ok(Self {
            blocks,
            lm_heads,
            frozen: Frozen::new(settings, target, vocabulary).sharing_head(shared),
        })
    }

    fn fresh(
        config: &MedusaConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = fresh_weights(seed, target, vocabulary);
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    fn capture(config: &MedusaConfig, target: &TargetSpec) -> Result<Capture> {
        Self::check(config)?;
        check_vocabulary(config.draft_vocab, target)?;
        Ok(Capture::default())
    }

    fn frozen(&self) -> &Frozen<MedusaConfig> {
        &self.frozen
    }

    fn max_depth(&self) -> Option<usize> {
        Some(self.frozen.config.medusa_heads)
    }

    /// No head waits for another.
    fn passes(&self, depth: usize) -> usize {
        depth.min(1)
    }

    fn depends_on_depth_alone(&self) -> bool {
        true
    }

    fn parameters_per_pass(&self) -> u64 {
        let shared = self.frozen.shared_parameters(self.lm_heads.first());
        (self.num_params() + shared) as u64
    }

    fn start(&self, _: usize, _: u32) -> State {
        State::default()
    }

    fn observe(&self, state: &mut State, tokens: &[u32], features: &Features) {
        let last = features.last.clone().narrow(1, tokens.len() - 1, 1);
        state.hidden = Some(last.squeeze_dim(0));
    }

    fn root_logits(&self, state: &mut State) -> Tensor<2> {
        self.logits(state, 0)
    }

    fn node_logits(&self, state: &mut State, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let head = head_after(&tree.parents, nodes[0], self.frozen.config.medusa_heads);
        let logits = self.logits(state, head);
        let vocab = logits.dims()[1];
        logits.expand([nodes.len(), vocab])
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        heads(self, text, take);
    }

    fn rewind(&self, _: &mut State) {}
}
