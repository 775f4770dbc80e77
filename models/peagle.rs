//! P-EAGLE: EAGLE-3's inputs and a few layers, which draft all tokens in one pass (<https://arxiv.org/abs/2602.01469>).
//!
//! Behind the last committed token stand masks: a token of their own, and in place of features a learned state. Slot `k`
//! has seen the text and `k` masks, so it depends on no drafted token.
use burn::module::{Param, ParamId};
use burn::nn::Embedding;
use burn::prelude::*;
use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::along::{Branches, masked};
use crate::attention::{Attends as _, Projects};
use crate::bounds;
use crate::cache::KvCache;
use crate::drafter::Drafter;
use crate::eagle_layer::{EagleLayer, fuse, fuse_norms};
use crate::eagle3::{Eagle3, Eagle3Config, Head};
use crate::error::{Error, Result};
use crate::few_rows::product;
use crate::frozen::Frozen;
use crate::known_text::{KnownText, TakeLogits};
use crate::language_model::slot_logits;
use crate::linear::{Bias, Linear};
use crate::mask::{Mask, token_ids, tree_mask, tree_positions};
use crate::norm::RmsNorm;
use crate::of_tokens::OfTokens;
use crate::rope::Rotation;
use crate::target::{Capture, Features, TargetParts, TargetSpec};
use crate::transformer::embedding;
use crate::tree::{Tree, chain};
use crate::weights::{Init, Scope, Weights, lift};

/// The `[drafter]` table of a P-EAGLE recipe. Every key but `mask_token` may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PEagleConfig {
    /// The layers whose output the drafter reads, 0-based and ascending. Empty takes EAGLE-3's three:
    /// `[1, layers / 2 - 1, layers - 4]`.
    pub captured_layers: Vec<usize>,
    /// Number of tokens that the drafter can propose: the most frequent ones in the training data, and the stop tokens; 0 takes
    /// all of the target's tokens.
    pub draft_vocab: usize,
    /// Where the head comes from.
    pub head: Head,
    /// Whether the drafter uses the target's frozen embeddings instead of training a copy of them.
    pub shared_embeddings: bool,
    /// Required. The id of a token that occurs in no text; it stands for tokens still to come.
    pub mask_token: Option<u32>,
    /// Decoder layers, the first of which reads embeddings as well as hidden states; 0 takes the paper's 4.
    pub layers: usize,
    /// Width inside the feed-forward part; 0 takes the target's.
    pub d_ff: usize,
    /// Query heads; 0 takes as many, up to the target's, as divide the width.
    pub heads: usize,
    /// Key and value heads; 0 takes as many of the target's as divide `heads`.
    pub kv_heads: usize,
    /// Width of a head, an even number; left out, or 0, it is the target's. Engines' kernels take multiples of 8 from 32 to 256.
    #[serde(skip_serializing_if = "bounds::is_left_out")]
    pub d_head: usize,
    /// Whether the layers normalise queries and keys head by head, as Qwen3's layers do, and those of the speculators library unless
    /// it is told otherwise.
    pub head_norm: bool,
    /// Whether the residual branch takes the normalised fused state instead of the plain one.
    pub norm_before_residual: bool,
    /// Whether each captured layer is normalised before the layers are fused.
    pub fc_norm: bool,
    /// Whether the captured layers are normalised together before they are fused.
    pub norm_before_fc: bool,
    /// How many positions back the layers see, including their own, masks counted, as in drafters of the speculators library; 0 sees
    /// all.
    pub window: usize,
}

/// The P-EAGLE drafter. Its fields carry the names of the checkpoint.
#[derive(Module, Debug)]
pub struct PEagle {
    /// A copy of the target's that is trained; absent where those are used.
    embed_tokens: Option<Embedding>,
    /// One for each captured layer, or none.
    fc_norm: Vec<RmsNorm>,
    /// Of all captured layers together, with `norm_before_fc`.
    input_norm: Option<RmsNorm>,
    fc: Linear,
    /// `[1, 1, captured layers * d_model]`: what masks read in place of captured layers.
    mask_hidden: Param<Tensor<3>>,
    layers: Vec<EagleLayer>,
    norm: RmsNorm,
    /// Absent when the target's head is shared.
    lm_head: Option<Linear>,
    #[module(skip)]
    mask_token: u32,
    #[module(skip)]
    frozen: Frozen<PEagleConfig>,
}

/// Keys, values and slots of one sequence.
#[derive(Debug, Clone)]
pub struct PEagleState {
    caches: Vec<KvCache>,
    /// `[1, 1, d_model]`: what the head reads behind the last committed token.
    root: Option<Tensor<3>>,
    /// `[slots, draft_vocab]`: of each token of the draft, that behind the last committed one first. The head reads all slots at once.
    logits: Option<Tensor<2>>,
    /// Length of the longest path to come.
    planned: usize,
}

impl PEagle {
    /// The token that stands for tokens still to come.
    pub fn mask_token(&self) -> u32 {
        self.mask_token
    }

    /// The head's weight, `[d_model, draft_vocab]`; it takes gradients unless it is the target's.
    pub fn head(&self) -> Tensor<2> {
        self.frozen
            .head(self.lm_head.as_ref(), &self.fc.weight.device())
    }

    /// How many positions back a row sees, itself included, where it does not see all.
    pub fn sees_back(&self) -> Option<usize> {
        let window = self.frozen.config.window;
        (window > 0).then_some(window)
    }

    /// The parameter that holds the head, unless the target's is shared.
    pub fn head_parameter(&self) -> Option<ParamId> {
        self.lm_head.as_ref().map(|head| head.weight.id)
    }

    /// What rows read beside their tokens: the captured layers of the features that `of` gives, or where it gives none what
    /// masks read.
    ///
    /// # Shapes
    /// - captured: `[batch, seq, captured layers * d_model]`; `of` counts its positions through the batch
    /// - output: `[1, of.len(), d_model]`
    pub fn fused(&self, captured: Tensor<3>, of: &[Option<usize>]) -> Tensor<3> {
        let [batch, seq, width] = captured.dims();
        let mask = self
            .mask_hidden
            .val()
            .cast(captured.dtype())
            .reshape([1, width]);
        let all = Tensor::cat(vec![captured.reshape([batch * seq, width]), mask], 0);
        let rows: Vec<i64> = of
            .iter()
            .map(|at| at.unwrap_or(batch * seq) as i64)
            .collect();
        let rows = Tensor::<1, Int>::from_ints(rows.as_slice(), &all.device());
        self.fuse(all.select(0, rows).unsqueeze_dim(0))
    }

    fn fuse(&self, captured: Tensor<3>) -> Tensor<3> {
        fuse(&self.fc, self.input_norm.as_ref(), &self.fc_norm, captured)
    }

    /// What the head reads at every row.
    ///
    /// # Shapes
    /// - tokens: `[batch, rows]`
    /// - hidden, output: `[batch, rows, d_model]`
    /// - mask: `[batch, 1, rows, rows]`
    pub fn rows(
        &self,
        tokens: Tensor<2, Int>,
        hidden: Tensor<3>,
        rotation: &Rotation,
        mask: &Mask,
    ) -> Tensor<3> {
        self.layers(tokens, hidden, &mut |_, attention, x| {
            attention.forward(x, rotation, Some(mask), None)
        })
    }

    fn layers(
        &self,
        tokens: Tensor<2, Int>,
        hidden: Tensor<3>,
        attend: &mut dyn FnMut(usize, &dyn Projects, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let device = self.fc.weight.device();
        let embedded = match &self.embed_tokens {
            Some(own) => own.forward(lift(tokens, &device)),
            None => self.frozen.target.embed(tokens, &device),
        };
        let tokens = OfTokens::embedded(embedded.cast(hidden.dtype()));
        let first = self.frozen.config.norm_before_residual;
        let state = EagleLayer::through(&self.layers, (tokens, hidden), first, attend);
        self.norm.forward(state)
    }

    /// One pass behind what the caches hold, batch 1.
    fn pass(&self, state: &mut PEagleState, tokens: &[u32], hidden: Tensor<3>) -> Tensor<3> {
        let device = hidden.device();
        let (parents, cached) = (chain(tokens.len()), state.caches[0].len());
        let positions = tree_positions(&parents, cached, &device);
        let rotation = self.frozen.target.spec.rotary(&device).at(positions);
        let mask = tree_mask(&parents, cached, self.sees_back(), &device);
        let caches = &mut state.caches;
        self.layers(
            token_ids(tokens, &device),
            hidden,
            &mut |layer, attention, x| {
                attention.forward(x, &rotation, mask.as_ref(), Some(&mut caches[layer]))
            },
        )
    }

    /// The logits of one slot, which does not depend on the tokens in the slots before it, once for each of `copies`.
    fn slot_logits(&self, state: &mut PEagleState, slot: usize, copies: usize) -> Tensor<2> {
        let logits = match state.logits.take() {
            Some(logits) if slot < logits.dims()[0] => logits,
            _ => {
                let slots = state.planned.max(slot + 1);
                self.slots(state, slots)
            }
        };
        let of_slot = slot_logits(&logits, slot, copies);
        state.logits = Some(logits);
        of_slot
    }

    /// The logits of so many slots, `[slots, draft_vocab]`.
    fn slots(&self, state: &mut PEagleState, slots: usize) -> Tensor<2> {
        let Some(root) = state.root.clone() else {
            panic!("drafting before anything was observed");
        };
        let masks = slots - 1;
        let hidden = match masks {
            0 => root,
            _ => Tensor::cat(vec![root.clone(), self.masks(state, &root, masks)], 1),
        };
        product(hidden.squeeze_dim(0), self.head()).cast(DType::F32)
    }

    /// What the head reads of masks behind the text, `[1, masks, d_model]`, as what it reads of the last token, `like`, is.
    fn masks(&self, state: &mut PEagleState, like: &Tensor<3>, masks: usize) -> Tensor<3> {
        let committed = state.caches[0].len();
        let captured = Tensor::zeros(
            [1, 1, self.mask_hidden.dims()[2]],
            (&like.device(), like.dtype()),
        );
        let hidden = self.fused(captured, &vec![None; masks]);
        let drafted = self.pass(state, &vec![self.mask_token; masks], hidden);
        let caches = &mut state.caches;
        caches
            .iter_mut()
            .for_each(|cache| cache.truncate(committed));
        drafted
    }
}

impl Drafter for PEagle {
    type Config = PEagleConfig;
    type State = PEagleState;

    fn check(config: &PEagleConfig) -> Result<()> {
        bounds::check([bounds::or_none("layers", config.layers, bounds::LAYERS)])?;
        Eagle3::check(&config.as_eagle3())
    }

    fn new(
        config: &PEagleConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        Self::check(config)?;
        let target = &target.with_heads(config.d_head)?;
        let spec = &target.spec;
        let mask_token = config.mask(spec)?;
        let resolved = config.as_eagle3().resolve(spec)?;
        let (captured, d) = (resolved.captured_layers.len(), spec.d_model);
        // Master weights are f32 whatever the target is.
        let mut root = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let mut embed = || embedding(&mut root.child("embed_tokens"), spec.vocab, d);
        let embed_tokens = if config.shared_embeddings {
            None
        } else {
            Some(embed()?)
        };
        let norms = [resolved.norm_before_fc, resolved.fc_norm];
        let (input_norm, fc_norm) = fuse_norms(&mut root, norms, captured, spec)?;
        let fc = Linear::new(&mut root.child("fc"), captured * d, d, Bias::Without)?;
        let mask_hidden = root.tensor("mask_hidden", [1, 1, captured * d], Init::Normal(0.02))?;
        let layers = EagleLayer::stack(&mut root, spec, resolved.inside(spec), config.depth())?;
        let shared = config.head == Head::Shared;
        let settings = PEagleConfig {
            captured_layers: resolved.captured_layers,
            layers: config.depth(),
            draft_vocab: resolved.draft_vocab,
            d_ff: resolved.d_ff,
            heads: resolved.heads,
            kv_heads: resolved.kv_heads,
            ..config.clone()
        };
        Ok(Self {
            embed_tokens,
            fc_norm,
            input_norm,
            fc,
            mask_hidden,
            layers,
            norm: RmsNorm::new(&mut root.child("norm"), d, spec.norm_epsilon)?,
            lm_head: if shared {
                None
            } else {
                let mut scope = root.child("lm_head");
                Some(Linear::new(&mut scope, d, vocabulary.len(), Bias::Without)?)
            },
            mask_token,
            frozen: Frozen::new(settings, target, vocabulary).sharing_head(shared),
        })
    }

    fn fresh(
        config: &PEagleConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = config.head.untrained(seed, target, vocabulary);
        Self::new(config, target, vocabulary, &mut weights, device)
    }

    fn capture(config: &PEagleConfig, target: &TargetSpec) -> Result<Capture> {
        config.mask(target)?;
        Eagle3::capture(&config.as_eagle3(), target)
    }

    fn start(&self, capacity: usize, _: u32) -> PEagleState {
        PEagleState {
            caches: vec![KvCache::new(capacity); self.layers.len()],
            root: None,
            logits: None,
            planned: 1,
        }
    }

    fn observe(&self, state: &mut PEagleState, tokens: &[u32], features: &Features) {
        let hidden = self.fuse(features.captured.clone());
        let outputs = self.pass(state, tokens, hidden);
        state.root = Some(outputs.narrow(1, tokens.len() - 1, 1));
        state.logits = None;
    }

    fn frozen(&self) -> &Frozen<PEagleConfig> {
        &self.frozen
    }

    fn plan(&self, state: &mut PEagleState, depth: usize) {
        state.planned = depth.max(1);
    }

    /// What the paper trains with.
    fn draft_length(&self) -> usize {
        8
    }

    fn passes(&self, depth: usize) -> usize {
        depth.min(1)
    }

    fn depends_on_depth_alone(&self) -> bool {
        true
    }

    fn parameters_per_pass(&self) -> u64 {
        let embedded = self.embed_tokens.as_ref();
        let embedded = embedded.map_or(0, |own| own.weight.dims().iter().product());
        let shared = self.frozen.shared_parameters(self.lm_head.as_ref());
        (self.num_params() + shared - embedded) as u64
    }

    fn root_logits(&self, state: &mut PEagleState) -> Tensor<2> {
        self.slot_logits(state, 0, 1)
    }

    fn node_logits(&self, state: &mut PEagleState, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        let depth = nodes.first().map_or(0, |&node| 1 + tree.depth(node));
        self.slot_logits(state, depth, nodes.len())
    }

    fn rewind(&self, _: &mut PEagleState) {}

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        let captured = text.features(0, text.rows()).captured;
        let device = captured.device();
        let mut caches = vec![KvCache::new(text.tokens.len()); self.layers.len()];
        let nodes = |branches: &Branches| {
            let (parents, cached) = (&branches.parents, branches.cached);
            // A token reads the features of the one before it.
            let behind = branches.tokens.iter().zip(&branches.seen);
            let of: Vec<_> = behind.map(|(token, &at)| token.map(|_| at - 1)).collect();
            let positions = tree_positions(parents, cached, &device);
            let rotation = self.frozen.target.spec.rotary(&device).at(positions);
            let mask = tree_mask(parents, cached, self.sees_back(), &device);
            let hidden = self.layers(
                branches.ids(self.mask_token, &device),
                self.fused(captured.clone(), &of),
                &mut |layer, attention, x| {
                    attention.forward(x, &rotation, mask.as_ref(), Some(&mut caches[layer]))
                },
            );
            let kept = cached + branches.trunk;
            caches.iter_mut().for_each(|cache| cache.truncate(kept));
            hidden
        };
        let head = self.head();
        let [_, width] = head.dims();
        let logits = |hidden: Tensor<2>| product(hidden, head.clone()).cast(DType::F32);
        masked(text, (1, width), take, nodes, logits);
    }
}

impl PEagleConfig {
    /// The keys that are EAGLE-3's.
    fn as_eagle3(&self) -> Eagle3Config {
        Eagle3Config {
            latent: None,
            captured_layers: self.captured_layers.clone(),
            draft_vocab: self.draft_vocab,
            head: self.head,
            layers: self.depth(),
            d_ff: self.d_ff,
            heads: self.heads,
            kv_heads: self.kv_heads,
            d_head: self.d_head,
            head_norm: self.head_norm,
            norm_before_residual: self.norm_before_residual,
            fc_norm: self.fc_norm,
            norm_before_fc: self.norm_before_fc,
            // No draft reads another one's output.
            norm_output: false,
            window: self.window,
        }
    }

    /// Decoder layers.
    pub fn depth(&self) -> usize {
        if self.layers == 0 { 4 } else { self.layers }
    }

    fn mask(&self, target: &TargetSpec) -> Result<u32> {
        let known = |&token: &u32| (token as usize) < target.vocab;
        self.mask_token.filter(known).ok_or_else(|| Error::Drafter {
            key: "mask_token",
            mismatch: Mismatch::new(
                format!("the id of a token below {}", target.vocab),
                self.mask_token
                    .map_or("none".into(), |token| token.to_string()),
            ),
        })
    }
}
