//! Hydra: Medusa's heads, each of which also reads the tokens drafted before it, and Hydra++, which puts a decoder layer
//! over the target's hidden states before them (<https://arxiv.org/abs/2402.05109>).
use burn::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::along::heads;
use crate::attention::AttentionConfig;
use crate::cache::KvCache;
use crate::decoder::{DecoderLayer, DecoderLayerConfig};
use crate::draft_heads::{
    DraftHeads, OutputHead, OutputLayer, check_numbers, check_vocabulary, fresh_weights,
    head_after, output_layer, own_outputs, residual, residual_blocks,
};
use crate::drafter::Drafter;
use crate::error::Result;
use crate::frozen::Frozen;
use crate::kernels::silu;
use crate::known_text::{KnownText, TakeLogits};
use crate::linear::{Bias, Linear};
use crate::mask::{Layout, token_ids, tree_mask, tree_positions};
use crate::norm::RmsNorm;
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::tree::{Tree, chain};
use crate::units::{InUnits, Sizes, Units};
use crate::weights::{Scope, Weights};

/// The `[drafter]` table of a Hydra recipe. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HydraConfig {
    /// Number of Hydra heads, and so the length of the longest draft.
    pub hydra_heads: usize,
    /// Blocks of each head; the first reads the hidden state and the tokens side by side. Hydra++ uses 4.
    pub head_layers: usize,
    /// Whether a decoder layer of the target's sizes comes before the heads and reads the target's hidden states of the whole
    /// text (Hydra++).
    pub prefix_layer: bool,
    /// Where the output layers come from; own ones have a bias.
    pub head: OutputHead,
    /// Number of tokens that the drafter can propose: the most frequent ones in the training data, and the stop tokens; 0 takes
    /// all of the target's tokens.
    pub draft_vocab: usize,
}

impl Default for HydraConfig {
    fn default() -> Self {
        Self {
            hydra_heads: 4,
            head_layers: 1,
            prefix_layer: false,
            head: OutputHead::Own,
            draft_vocab: 0,
        }
    }
}

/// The Hydra drafter. Its fields carry the names of the checkpoint.
///
/// The reference builds the later blocks of a head as one module applied several times; here they are distinct.
#[derive(Module, Debug)]
pub struct Hydra {
    prefix_layer: Option<DecoderLayer>,
    prefix_norm: Option<RmsNorm>,
    blocks: Vec<Blocks>,
    /// With a bias, as in the reference. None when the target's is shared, which has no bias.
    lm_heads: Vec<Linear>,
    #[module(skip)]
    frozen: Frozen<HydraConfig>,
}

/// `res_connection(x) + SiLU(layers[0](x))`, and `x + SiLU(layer(x))` for each further layer.
#[derive(Module, Debug)]
struct Blocks {
    res_connection: Linear,
    layers: Vec<Linear>,
}

/// Decoding state of one sequence.
#[derive(Debug, Clone)]
pub struct State {
    /// Of the prefix layer, over committed positions.
    cache: KvCache,
    /// `[1, d_model]`: what the heads read of the last position that has a hidden state.
    hidden: Option<Tensor<2>>,
    /// The token after it, which has none.
    bonus: u32,
}

impl Blocks {
    /// # Shapes
    /// - x: `[rows, (1 + tokens) * d_model]`, the hidden state first
    /// - output: `[rows, d_model]`
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let grounded = self.res_connection.forward(x.clone()) + silu(self.layers[0].forward(x));
        residual_blocks(&self.layers[1..], grounded)
    }
}

impl Hydra {
    fn device(&self) -> Device {
        self.blocks[0].res_connection.weight.device()
    }

    /// What the heads read in place of the target's last hidden states, over whole packed rows. `[batch, seq, d_model]`
    /// to the same.
    fn prefix(&self, last: Tensor<3>, layout: &Layout) -> Tensor<3> {
        let (Some(layer), Some(norm)) = (&self.prefix_layer, &self.prefix_norm) else {
            return last;
        };
        let spec = &self.frozen.target.spec;
        let rotation = spec.rotary(&last.device()).at(layout.positions.clone());
        let mask = layout.mask(None);
        norm.forward(layer.forward(last, &rotation, Some(&mask), None))
    }

    /// The same for positions after what `cache` holds, batch 1.
    fn extend(&self, last: Tensor<3>, cache: &mut KvCache) -> Tensor<3> {
        let (Some(layer), Some(norm)) = (&self.prefix_layer, &self.prefix_norm) else {
            return last;
        };
        let device = last.device();
        let parents = chain(last.dims()[1]);
        let positions = tree_positions(&parents, cache.len(), &device);
        let mask = tree_mask(&parents, cache.len(), None, &device);
        let rotation = self.frozen.target.spec.rotary(&device).at(positions);
        norm.forward(layer.forward(last, &rotation, mask.as_ref(), Some(cache)))
    }

    /// Logits of head `paths[0].len() - 1` after each path of tokens, the bonus token first. All are of one length.
    fn logits(&self, state: &State, paths: &[Vec<u32>]) -> Tensor<2> {
        let Some(hidden) = state.hidden.clone() else {
            panic!("drafting before anything was observed");
        };
        let (rows, length) = (paths.len(), paths[0].len());
        let d_model = hidden.dims()[1];
        let tokens = token_ids(&paths.concat(), &hidden.device());
        let embedded = self.frozen.target.embed(tokens, &self.device());
        let embedded = embedded.cast(hidden.dtype());
        let embedded = embedded.reshape([rows, length * d_model]);
        let x = Tensor::cat(vec![hidden.expand([rows, d_model]), embedded], 1);
        let head = length - 1;
        self.output(head).logits(self.blocks[head].forward(x))
    }
}

impl DraftHeads for Hydra {
    const LOSS_DECAY: f64 = 1.0;

    fn hidden(
        &self,
        following: &[Tensor<2, Int>],
        layout: &Layout,
        last: Tensor<3>,
    ) -> Vec<Tensor<2>> {
        let [batch, seq, d_model] = last.dims();
        let dtype = last.dtype();
        // Head k reads the hidden state of x_t and the tokens x_{t+1}..=x_{t+1+k}.
        let mut read = vec![self.prefix(last, layout)];
        let mut hidden = Vec::with_capacity(self.blocks.len());
        for (head, (blocks, tokens)) in self.blocks.iter().zip(following).enumerate() {
            let embedded = self.frozen.target.embed(tokens.clone(), &self.device());
            read.push(embedded.cast(dtype));
            let x = Tensor::cat(read.clone(), 2).reshape([batch * seq, (head + 2) * d_model]);
            hidden.push(blocks.forward(x));
        }
        hidden
    }

    fn output(&self, head: usize) -> OutputLayer {
        output_layer(&self.frozen, &self.lm_heads, head, &self.device())
    }

    fn shares_output(&self) -> bool {
        self.lm_heads.is_empty()
    }
}

impl Drafter for Hydra {
    type Config = HydraConfig;
    type State = State;

    fn check(config: &HydraConfig) -> Result<()> {
        check_numbers(
            ("hydra_heads", config.hydra_heads),
            config.head_layers,
            config.draft_vocab,
        )
    }

    fn new(
        config: &HydraConfig,
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
        let (mut prefix_layer, mut prefix_norm) = (None, None);
        if config.prefix_layer {
            let layer = prefix_config(spec);
            prefix_layer = Some(DecoderLayer::new(&mut root.child("prefix_layer"), &layer)?);
            let mut scope = root.child("prefix_norm");
            prefix_norm = Some(RmsNorm::new(&mut scope, d, spec.norm_epsilon)?);
        }
        let mut blocks = Vec::with_capacity(config.hydra_heads);
        for head in 0..config.hydra_heads {
            let mut scope = root.child(format!("blocks.{head}"));
            blocks.push(Blocks::new(
                &mut scope,
                (head + 2) * d,
                d,
                config.head_layers,
            )?);
        }
        let sizes = [d, vocabulary.len()];
        let lm_heads = own_outputs(
            &mut root,
            config.hydra_heads,
            sizes,
            config.head,
            Bias::With,
        )?;
        let shared = config.head == OutputHead::Shared;
        let settings = HydraConfig {
            draft_vocab: vocabulary.len(),
            ..config.clone()
        };
        Ok(Self {
            prefix_layer,
            prefix_norm,
            blocks,
            lm_heads,
            frozen: Frozen::new(settings, target, vocabulary).sharing_head(shared),
        })
    }

    fn fresh(
        config: &HydraConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = InUnits {
            drawn: fresh_weights(seed, target, vocabulary),
            units: Self::units(config, target),
        };
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    /// The first block of each head reads a hidden state beside embeddings. A prefix layer's norm begins with gains of 1.
    fn units(config: &HydraConfig, target: &TargetParts) -> Vec<Units> {
        let (sizes, d) = (Sizes::of(target), target.spec.d_model);
        let state = if config.prefix_layer {
            1.0
        } else {
            sizes.state
        };
        let of_head = |head: usize| {
            let mut read = vec![state; d];
            read.resize((head + 2) * d, sizes.embedding);
            ["res_connection", "layers.0"]
                .map(|matrix| (format!("blocks.{head}.{matrix}.weight"), read.clone()))
        };
        (0..config.hydra_heads).flat_map(of_head).collect()
    }

    fn capture(config: &HydraConfig, target: &TargetSpec) -> Result<Capture> {
        Self::check(config)?;
        check_vocabulary(config.draft_vocab, target)?;
        Ok(Capture::default())
    }

    fn frozen(&self) -> &Frozen<HydraConfig> {
        &self.frozen
    }

    fn max_depth(&self) -> Option<usize> {
        Some(self.frozen.config.hydra_heads)
    }

    /// Its own parameters are shared out evenly: each pass is that of another head.
    fn parameters_per_pass(&self) -> u64 {
        let shared = self.frozen.shared_parameters(self.lm_heads.first());
        (self.num_params() / self.frozen.config.hydra_heads + shared) as u64
    }

    fn start(&self, capacity: usize, _: u32) -> State {
        State {
            cache: KvCache::new(capacity),
            hidden: None,
            bonus: 0,
        }
    }

    fn observe(&self, state: &mut State, tokens: &[u32], features: &Features) {
        let hidden = self.extend(features.last.clone(), &mut state.cache);
        let last = hidden.narrow(1, tokens.len() - 1, 1);
        state.hidden = Some(last.squeeze_dim(0));
        state.bonus = tokens[tokens.len() - 1];
    }

    fn root_logits(&self, state: &mut State) -> Tensor<2> {
        self.logits(state, &[vec![state.bonus]])
    }

    fn node_logits(&self, state: &mut State, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        head_after(&tree.parents, nodes[0], self.frozen.config.hydra_heads);
        self.logits(state, &tree.paths_behind(state.bonus, nodes))
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        heads(self, text, take);
    }

    fn rewind(&self, _: &mut State) {}
}

impl Blocks {
    fn new(scope: &mut Scope, d_read: usize, d_model: usize, layers: usize) -> Result<Self> {
        let res_connection = Linear::new(
            &mut scope.child("res_connection"),
            d_read,
            d_model,
            Bias::With,
        )?;
        let layer = |layer| {
            let d_in = if layer == 0 { d_read } else { d_model };
            residual(&mut scope.child(format!("layers.{layer}")), d_in, d_model)
        };
        Ok(Self {
            res_connection,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
        })
    }
}

/// A plain Llama layer of the target's sizes.
fn prefix_config(spec: &TargetSpec) -> DecoderLayerConfig {
    DecoderLayerConfig {
        attention: AttentionConfig::of(spec),
        d_ff: spec.d_ff,
        mlp_bias: Bias::Without,
        experts: None,
        norm: spec.norm_epsilon.into(),
    }
}
