//! A block-diffusion drafter: in one pass it fills a block of masks behind the last committed token, and reads the target's
//! hidden states of all before it as keys and values of every layer (DFlash, <https://arxiv.org/abs/2602.06036>).
mod config;

use burn::module::Module;
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::blocks::{BlockLayout, attend_blocks};
use crate::language_model::logits;
use crate::mask::token_ids;
use crate::weights::lift;
use crate::{
    AttentionConfig, Bias, Capture, DecoderLayer, DecoderLayerConfig, Drafter, Features, KvCache,
    Linear, RandomWeights, Result, RmsNorm, Scope, TargetParts, TargetSpec, Tree, Weights,
};

pub use config::DFlashConfig;

/// See the module.
#[derive(Module, Debug)]
pub struct DFlash {
    /// From captured layers side by side to one width.
    fc: Linear,
    hidden_norm: RmsNorm,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    #[module(skip)]
    frozen: Frozen,
}

#[derive(Debug, Clone)]
struct Frozen {
    target: TargetParts,
    vocabulary: DraftVocabulary,
    config: DFlashConfig,
    mask_token: u32,
}

impl DFlash {
    /// Its settings, sizes resolved.
    pub fn config(&self) -> &DFlashConfig {
        &self.frozen.config
    }

    /// The id that stands for tokens still to come.
    pub fn mask_token(&self) -> u32 {
        self.frozen.mask_token
    }

    /// The target it drafts for.
    pub fn target(&self) -> &TargetParts {
        &self.frozen.target
    }

    /// The target's head, frozen, `[d_model, vocab]`.
    pub fn head(&self) -> Tensor<2> {
        lift(
            self.frozen.target.lm_head.weight.val(),
            &self.fc.weight.device(),
        )
    }

    /// What every layer reads of the target. `[batch, seq, captured * d_model]` to `[batch, seq, d_model]`.
    pub fn context(&self, captured: Tensor<3>) -> Tensor<3> {
        self.hidden_norm.forward(self.fc.forward(captured))
    }

    /// What the head reads of blocks over packed rows.
    ///
    /// # Shapes
    /// - context: `[batch, seq, d_model]`
    /// - tokens: `[batch * blocks, block_size]`, an anchor and masks
    /// - output: `[batch * blocks, block_size, d_model]`
    pub fn hidden(
        &self,
        context: Tensor<3>,
        tokens: Tensor<2, Int>,
        layout: &BlockLayout,
    ) -> Tensor<3> {
        let device = context.device();
        let rope = self.frozen.target.spec.rotary(&device);
        let (of_context, of_blocks) = (
            rope.at(layout.context_positions()),
            rope.at(layout.block_positions()),
        );
        let embedded = self.frozen.target.embed(tokens, &device);
        let mut x = embedded.cast(context.dtype());
        for layer in &self.layers {
            x = layer.forward_with(x, |attention, x| {
                let (key, value) = attention.keys_and_values(context.clone(), &of_context);
                let blocks = attention.project(x, &of_blocks);
                attention.output(attend_blocks(blocks, key, value, layout))
            });
        }
        self.norm.forward(x)
    }

    fn window(&self) -> Option<usize> {
        Some(self.frozen.config.window).filter(|&window| window > 0)
    }
}

/// The settings of a sequence's decoding.
#[derive(Debug, Clone)]
pub struct DFlashState {
    /// Keys and values of the context, for each layer.
    caches: Vec<KvCache>,
    /// The last committed token, whose place is after the context.
    anchor: u32,
    /// What the head reads for each token of the draft, `[1, slots, d_model]`.
    slots: Option<Tensor<3>>,
    /// Length of the longest path to come.
    planned: usize,
}

impl Drafter for DFlash {
    type Config = DFlashConfig;
    type State = DFlashState;

    fn new(
        config: &Self::Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        let config = config.resolve(&target.spec)?;
        let spec = &target.spec;
        let mut scope = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let d_captured = config.captured_layers.len() * spec.d_model;
        let norm = |scope: &mut Scope, name| {
            RmsNorm::new(&mut scope.child(name), spec.d_model, spec.norm_epsilon)
        };
        let layer = DecoderLayerConfig {
            attention: AttentionConfig {
                d_input: spec.d_model,
                d_model: spec.d_model,
                heads: config.heads,
                kv_heads: config.kv_heads,
                d_head: spec.d_head,
                qkv_bias: Bias::Without,
                output_bias: Bias::Without,
                head_norm: Some(spec.norm_epsilon),
            },
            d_ff: config.d_ff,
            mlp_bias: Bias::Without,
            norm_epsilon: spec.norm_epsilon,
        };
        let mut layers = Vec::with_capacity(config.layers);
        for index in 0..config.layers {
            let scope = &mut scope.child(format!("layers.{index}"));
            layers.push(DecoderLayer::new(scope, &layer)?);
        }
        Ok(Self {
            fc: Linear::new(
                &mut scope.child("fc"),
                d_captured,
                spec.d_model,
                Bias::Without,
            )?,
            hidden_norm: norm(&mut scope, "hidden_norm")?,
            layers,
            norm: norm(&mut scope, "norm")?,
            frozen: Frozen {
                target: target.clone(),
                vocabulary: vocabulary.clone(),
                mask_token: config.known_mask_token(spec)?,
                config,
            },
        })
    }

    fn fresh(
        config: &Self::Config,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = RandomWeights::new(seed);
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    fn capture(config: &Self::Config, target: &TargetSpec) -> Result<Capture> {
        Ok(Capture {
            layers: config.resolve(target)?.captured_layers,
        })
    }

    fn start(&self, capacity: usize, first: u32) -> DFlashState {
        DFlashState {
            caches: self.layers.iter().map(|_| KvCache::new(capacity)).collect(),
            anchor: first,
            slots: None,
            planned: 1,
        }
    }

    fn observe(&self, state: &mut DFlashState, tokens: &[u32], features: &Features) {
        let context = self.context(features.captured.clone());
        let cached = state.caches.first().map_or(0, KvCache::len);
        let rotation = self.rotation(cached, tokens.len(), &context.device());
        for (layer, cache) in self.layers.iter().zip(&mut state.caches) {
            let (key, value) = layer
                .attention()
                .keys_and_values(context.clone(), &rotation);
            cache.append(key, value);
        }
        if let Some(&last) = tokens.last() {
            state.anchor = last;
        }
        state.slots = None;
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        &self.frozen.vocabulary
    }

    fn plan(&self, state: &mut DFlashState, depth: usize) {
        state.planned = depth.clamp(1, self.frozen.config.block_size - 1);
    }

    fn root_logits(&self, state: &mut DFlashState) -> Tensor<2> {
        self.slot_logits(state, 0, 1)
    }

    fn node_logits(&self, state: &mut DFlashState, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let depth = nodes.first().map_or(0, |&node| 1 + tree.depth(node));
        self.slot_logits(state, depth, nodes.len())
    }

    fn rewind(&self, _: &mut DFlashState) {}

    fn passes(&self, _: usize) -> usize {
        1
    }

    fn parameters_per_pass(&self) -> u64 {
        let head = self.frozen.target.lm_head.weight.val().dims();
        self.num_params() as u64 + head.iter().product::<usize>() as u64
    }

    fn max_depth(&self) -> Option<usize> {
        Some(self.frozen.config.block_size - 1)
    }
}

impl DFlash {
    /// The logits of one slot, which does not depend on the tokens in the slots before it, once for each of `copies`. What
    /// a slot holds depends on the size of the block, so a block is never longer than what was planned.
    fn slot_logits(&self, state: &mut DFlashState, slot: usize, copies: usize) -> Tensor<2> {
        let known = state.slots.as_ref().map_or(0, |slots| slots.dims()[1]);
        if known <= slot {
            state.slots = Some(self.fill(state, state.planned.max(slot + 1)));
        }
        let Some(slots) = &state.slots else {
            unreachable!("they were just made");
        };
        let logits = logits(
            &self.frozen.target.lm_head,
            slots.clone().narrow(1, slot, 1),
        );
        let width = logits.dims()[1];
        logits.expand([copies, width])
    }

    /// What the head reads at the first `slots` masks after the anchor.
    fn fill(&self, state: &mut DFlashState, slots: usize) -> Tensor<3> {
        let device = self.fc.weight.device();
        let mut tokens = vec![state.anchor];
        tokens.resize(1 + slots, self.frozen.mask_token);
        let cached = state.caches.first().map_or(0, KvCache::len);
        let rotation = self.rotation(cached, tokens.len(), &device);
        let layout = BlockLayout::decoding(
            cached,
            tokens.len(),
            self.frozen.config.causal,
            self.window(),
            &device,
        );
        let mut x = self
            .frozen
            .target
            .embed(token_ids(&tokens, &device), &device);
        for (layer, cache) in self.layers.iter().zip(&mut state.caches) {
            x = layer.forward_with(x, |attention, x| {
                let out = attention.forward(x, &rotation, layout.as_ref(), Some(cache));
                // The context stays, the block is filled anew next time.
                cache.truncate(cached);
                out
            });
        }
        self.norm.forward(x).narrow(1, 1, slots)
    }

    fn rotation(&self, start: usize, count: usize, device: &Device) -> crate::Rotation {
        let positions = Tensor::<1, Int>::arange(start as i64..(start + count) as i64, device);
        self.frozen
            .target
            .spec
            .rotary(device)
            .at(positions.reshape([1, count]))
    }
}
