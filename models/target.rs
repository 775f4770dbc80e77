use std::path::PathBuf;

use burn::nn::Embedding;
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_checkpoints::Mismatch;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::bounds;
use crate::cache::{Kept, KvCache};
use crate::error::{Error, Result};
use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::rope::{Rope, RopeConfig};
use crate::routing::{ExpertsConfig, Routing};
use crate::weights::lift;

/// Sizes of the target a drafter is trained for.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetSpec {
    /// Decoder layers.
    pub layers: usize,
    /// Residual width.
    pub d_model: usize,
    /// Feed-forward width, where a layer has no experts.
    pub d_ff: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub d_head: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Epsilon of the norms.
    pub norm_epsilon: f64,
    /// Rotary positions.
    pub rope: RopeConfig,
    /// Longest context, in tokens.
    pub max_positions: usize,
    /// Which layers have experts, where any has.
    pub routing: Option<Routing>,
}

impl TargetSpec {
    /// The rotary positions of its attention.
    pub fn rotary(&self, device: &Device) -> Rope {
        Rope::new(&self.rope, self.d_head, device)
    }

    /// What a drafter with heads of its own width is built by: the same with that width. 0 takes the target's.
    ///
    /// # Errors
    /// The width is odd.
    pub fn with_heads(&self, d_head: usize) -> Result<Self> {
        bounds::check_heads("d_head", d_head)?;
        Ok(Self {
            d_head: if d_head == 0 { self.d_head } else { d_head },
            ..self.clone()
        })
    }

    /// The experts of a layer, if it has any.
    pub fn experts_of(&self, layer: usize) -> Option<ExpertsConfig> {
        self.routing.as_ref()?.of(layer)
    }

    /// Feed-forward width, query heads and key and value heads of a drafter's layer: each as given, or the target's
    /// where that is 0; of the target's query heads as many as divide its width, which a Llama's have to in transformers and the
    /// engines that read its configurations; of its key and value heads as many as the query heads can be shared out among.
    ///
    /// # Errors
    /// The query heads cannot be shared out among the others.
    pub fn layer_sizes(&self, d_ff: usize, heads: usize, kv_heads: usize) -> Result<[usize; 3]> {
        let or = |given: usize, default: usize| if given == 0 { default } else { given };
        let heads = or(heads, most_that_divide(self.d_model, self.heads));
        let kv_heads = or(kv_heads, greatest_common_divisor(heads, self.kv_heads));
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::Drafter {
                key: "kv_heads",
                mismatch: Mismatch::new(format!("a divisor of {heads} query heads"), kv_heads),
            });
        }
        Ok([or(d_ff, self.d_ff), heads, kv_heads])
    }
}

/// The largest divisor of `width` up to `most`.
fn most_that_divide(width: usize, most: usize) -> usize {
    let mut divisors = (1..=most).rev();
    divisors
        .find(|&heads| width.is_multiple_of(heads))
        .unwrap_or(most)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 {
        return a;
    }
    greatest_common_divisor(b, a % b)
}

/// The bound that some targets put on their logits: `cap · tanh(logits / cap)` (Gemma 2, <https://arxiv.org/abs/2408.00118>, §2).
/// Their order stays; their distribution does not.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SoftCap(pub Option<f64>);

impl SoftCap {
    /// The logits of the head, bounded if they are.
    pub fn of<const D: usize>(self, logits: Tensor<D>) -> Tensor<D> {
        match self.0 {
            Some(cap) => logits.div_scalar(cap).tanh().mul_scalar(cap),
            None => logits,
        }
    }
}

/// The frozen pieces of a target that a drafter may share; never saved with the drafter.
#[derive(Debug, Clone)]
pub struct TargetParts {
    /// Sizes.
    pub spec: TargetSpec,
    /// `[vocab, d_model]`
    pub embed_tokens: Embedding,
    /// The norm before the head.
    pub norm: RmsNorm,
    /// `[d_model, vocab]` in memory.
    pub lm_head: Linear,
    /// What becomes of the target's logits; a drafter's own have no bound, in engines as here.
    pub soft_cap: SoftCap,
    /// The folder it was loaded from, if it was.
    pub folder: Option<PathBuf>,
}

impl TargetParts {
    /// The type that the target computes in.
    pub fn dtype(&self) -> DType {
        self.embed_tokens.weight.val().dtype()
    }

    /// See [`TargetSpec::with_heads`].
    pub(crate) fn with_heads(&self, d_head: usize) -> Result<Self> {
        Ok(Self {
            spec: self.spec.with_heads(d_head)?,
            ..self.clone()
        })
    }

    /// The embedding of tokens, frozen, in the graph that parameters on `device` are in.
    ///
    /// # Shapes
    /// - tokens: `[batch, seq]`
    /// - output: `[batch, seq, d_model]`
    pub fn embed(&self, tokens: Tensor<2, Int>, device: &Device) -> Tensor<3> {
        lift(self.embed_tokens.forward(tokens.without_autodiff()), device)
    }

    /// The target's logits at last hidden states, f32.
    ///
    /// # Shapes
    /// - states: `[.., d_model]`, after the final norm
    /// - output: `[.., vocab]`
    pub fn logits<const D: usize>(&self, states: Tensor<D>) -> Tensor<D> {
        let logits = self.lm_head.forward(states);
        self.soft_cap.of(logits.cast(burn::tensor::DType::F32))
    }

    /// The head over the draft vocabulary, `[d_model, draft_vocab]`; of a hollow target, rows without values.
    pub fn head_rows(&self, vocabulary: &DraftVocabulary) -> Tensor<2> {
        if !self.lm_head.weight.is_initialized() {
            let rows = [self.spec.d_model, vocabulary.len()];
            return Tensor::empty(rows, &Device::flex());
        }
        let weight = self.lm_head.weight.val();
        if vocabulary.is_full() {
            return weight;
        }
        let ids = vocabulary.target_ids().into_iter();
        let ids: Vec<i64> = ids.map(i64::from).collect();
        let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &weight.device());
        // Rows of it as files have them, one after the other in memory.
        weight.transpose().select(0, ids).transpose()
    }
}

/// Hidden states of the target that a drafter reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capture {
    /// Captured layers, ascending: 0-based index of the decoder layer whose output, before any final norm, is kept.
    /// The last hidden state, after the final norm, is always kept.
    pub layers: Vec<usize>,
}

/// Hidden states of the target over some positions.
#[derive(Debug, Clone)]
pub struct Features {
    /// `[batch, seq, captured layers * d_model]`: the captured layers side by side, lowest first.
    pub captured: Tensor<3>,
    /// `[batch, seq, d_model]`: the last hidden state after the final norm; the head turns it into logits.
    pub last: Tensor<3>,
}

impl Features {
    /// The features of some positions, in that order.
    pub fn select(&self, positions: &[usize]) -> Self {
        let contiguous = positions.iter().enumerate().all(|(i, &p)| i == p);
        let pick = |x: &Tensor<3>| {
            if contiguous {
                return x.clone().narrow(1, 0, positions.len());
            }
            let indices: Vec<i64> = positions.iter().map(|&p| p as i64).collect();
            x.clone()
                .select(1, Tensor::from_ints(indices.as_slice(), &x.device()))
        };
        Self {
            captured: pick(&self.captured),
            last: pick(&self.last),
        }
    }
}

/// Tokens that one pass of the target reads after what its cache holds: a prompt, or the last committed token followed
/// by a draft. Batch 1.
#[derive(Debug, Clone, Copy)]
pub struct Pass<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// Index in `tokens` of each token's parent, `None` for a child of the last cached token; parents come before
    /// children. A token sees the cache, its ancestors and itself, and its position is the cached length plus its depth.
    pub parents: &'a [Option<usize>],
    /// Rows of logits wanted.
    pub logits: LogitRows,
}

/// Which rows of logits a pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// Only that of the last token.
    Last,
    /// Every one.
    All,
}

/// What one pass returns.
#[derive(Debug, Clone)]
pub struct TargetOutput {
    /// `[1 or tokens, vocab]`, f32
    pub logits: Tensor<2>,
    /// Over every token of the pass, batch 1.
    pub features: Features,
}

/// The pass of one sequence among several.
#[derive(Debug)]
pub struct SequencePass<'a> {
    /// What the sequence runs.
    pub pass: Pass<'a>,
    /// What it holds.
    pub caches: &'a mut Caches,
}

/// A frozen language model that verifies drafts.
pub trait Target {
    /// Its sizes.
    fn spec(&self) -> &TargetSpec;

    /// The device it runs on.
    fn device(&self) -> Device;

    /// Parameters that it holds, read in a pass or not.
    fn parameters(&self) -> u64;

    /// Parameters that the pass of one token reads: of experts those that a token goes through.
    fn parameters_per_pass(&self) -> u64;

    /// The type of its weights and activations.
    fn dtype(&self) -> DType;

    /// The pieces that a drafter may share; their head makes logits of last hidden states, as a pass does.
    fn parts(&self) -> TargetParts;

    /// Runs `pass` after what `caches` holds, adds its keys and values to it, and keeps what `capture` asks for.
    fn decode(&self, pass: Pass, caches: &mut Caches, capture: &Capture) -> TargetOutput;

    /// Runs passes of several sequences of any lengths, and returns what [`decode`](Self::decode) does for each.
    fn decode_batch(&self, passes: Vec<SequencePass>, capture: &Capture) -> Vec<TargetOutput> {
        let one = |of: SequencePass| self.decode(of.pass, of.caches, capture);
        passes.into_iter().map(one).collect()
    }
}

/// Keys and values of every layer for one sequence.
#[derive(Debug, Clone)]
pub struct Caches {
    /// One for each layer; a target without attention may leave it empty.
    pub layers: Vec<KvCache>,
    /// Positions held.
    pub len: usize,
}

impl Caches {
    /// Empty caches of `layers` layers, for about `capacity` positions: see [`KvCache::new`].
    pub fn new(layers: usize, capacity: usize) -> Self {
        Self {
            layers: (0..layers).map(|_| KvCache::new(capacity)).collect(),
            len: 0,
        }
    }

    /// Drops every position from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.layers.iter_mut().for_each(|layer| layer.truncate(len));
        self.len = self.len.min(len);
    }

    /// Keeps the first `prefix` positions and, after them, the ones `prefix + rows[i]`.
    pub fn keep(&mut self, prefix: usize, rows: &[usize]) {
        let kept = Kept::new(prefix, rows);
        self.layers.iter_mut().for_each(|layer| layer.keep(&kept));
        self.len = prefix + rows.len();
    }
}
