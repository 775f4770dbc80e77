//! A block-diffusion drafter: in one pass it fills a block of masks behind the last committed token, and reads the target's
//! hidden states of all before it as keys and values of every layer (DFlash, <https://arxiv.org/abs/2602.06036>).
use burn::module::Module;
use burn::prelude::*;
use serde::{Deserialize, Serialize};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::blocks::{BlockLayout, attend_blocks};
use crate::language_model::logits;
use crate::mask::token_ids;
use crate::weights::lift;
use crate::{
    AttentionConfig, Bias, Capture, DecoderLayer, DecoderLayerConfig, Drafter, Error, Features,
    KvCache, Linear, RandomWeights, Result, RmsNorm, Scope, TargetParts, TargetSpec, Tree, Weights,
};

/// The `[drafter]` table of a DFlash recipe. Every key but `mask_token` may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DFlashConfig {
    /// Captured layers, ascending, as 0-based indices of the layers whose output is read. Left out or empty: five of them,
    /// evenly from the second layer to the third before the last.
    pub captured_layers: Vec<usize>,
    /// Decoder layers. 5.
    pub layers: usize,
    /// Tokens of a block, the last committed one counted. 16.
    pub block_size: usize,
    /// The id of a token that no text holds; it stands for tokens still to come.
    pub mask_token: Option<u32>,
    /// How many positions back a layer sees, the own one counted. Left out or 0: all.
    pub window: usize,
    /// Whether a place of a block sees only those before it in the block (JetSpec). `false`.
    pub causal: bool,
    /// Feed-forward width. Left out or 0: the target's.
    pub d_ff: usize,
    /// Query heads. Left out or 0: the target's.
    pub heads: usize,
    /// Key and value heads. Left out or 0: the target's.
    pub kv_heads: usize,
}

impl Default for DFlashConfig {
    fn default() -> Self {
        Self {
            captured_layers: Vec::new(),
            layers: 5,
            block_size: 16,
            mask_token: None,
            window: 0,
            causal: false,
            d_ff: 0,
            heads: 0,
            kv_heads: 0,
        }
    }
}

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

impl DFlashConfig {
    /// With the sizes that were left out taken from the target.
    fn resolve(&self, target: &TargetSpec) -> Result<Self> {
        let [d_ff, heads, kv_heads] = target.layer_sizes(self.d_ff, self.heads, self.kv_heads)?;
        let problem = |key, expected: String, got: String| Error::Drafter { key, expected, got };
        if self.layers == 0 {
            return Err(problem("layers", "at least 1".into(), "0".into()));
        }
        if self.block_size < 2 {
            let got = self.block_size.to_string();
            return Err(problem("block_size", "at least 2".into(), got));
        }
        let captured_layers = match self.captured_layers.is_empty() {
            true => spread(target.layers),
            false => self.captured_layers.clone(),
        };
        let known = captured_layers.iter().all(|&layer| layer < target.layers);
        if !known || !captured_layers.is_sorted_by(|a, b| a < b) {
            let expected = format!("ascending layers below {}", target.layers);
            return Err(problem(
                "captured_layers",
                expected,
                format!("{captured_layers:?}"),
            ));
        }
        self.known_mask_token(target)?;
        Ok(Self {
            captured_layers,
            d_ff,
            heads,
            kv_heads,
            ..self.clone()
        })
    }

    fn known_mask_token(&self, target: &TargetSpec) -> Result<u32> {
        let known = self
            .mask_token
            .filter(|&token| (token as usize) < target.vocab);
        known.ok_or_else(|| Error::Drafter {
            key: "mask_token",
            expected: format!(
                "the id, below {}, of a token that no text holds",
                target.vocab
            ),
            got: self
                .mask_token
                .map_or("none".into(), |token| token.to_string()),
        })
    }
}

/// Five layers, evenly from the second to the third before the last, as in the authors' code; all of a target that has no
/// more than those.
fn spread(layers: usize) -> Vec<usize> {
    const COUNT: usize = 5;
    if layers < COUNT + 3 {
        return (0..layers).collect();
    }
    let last = layers - 3;
    // Rounded half to even, as Python does; no half falls on an odd quotient for the models in use.
    let place = |index: usize| 1.0 + (index * (last - 1)) as f64 / (COUNT - 1) as f64;
    (0..COUNT)
        .map(|index| place(index).round_ties_even() as usize)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_layers_are_those_of_the_authors() {
        assert_eq!(spread(36), [1, 9, 17, 25, 33]);
        assert_eq!(spread(24), [1, 6, 11, 16, 21]);
        assert_eq!(spread(8), [1, 2, 3, 4, 5]);
        assert_eq!(spread(4), [0, 1, 2, 3]);
    }
}
