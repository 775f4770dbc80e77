//! A block-diffusion drafter: in one pass it fills a block of masks behind the last committed token, and reads the target's
//! hidden states of all before it as keys and values of every layer (DFlash, <https://arxiv.org/abs/2602.06036>).
//!
//! Its parts that may be there or not: convolutions within the block and a selector of paths (DFlash 2), heads that read the tokens
//! drafted before (DSpark, Domino, XPress) and guess how far to draft (DSpark), and a lattice of paths (LiLiCorr).
mod config;
mod convolution;
mod drafting;
mod heads;
mod lattice;
mod lattice_table;
mod layer;
mod paths;
mod refiner;
mod refining;
mod selector;
mod slots;

use burn::module::{Module, ParamId};
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;

use self::lattice::LatticeSizes;
use crate::attention::Projects as _;
use crate::blocks::{BlockLayout, attend_blocks};
use crate::decoder::Stream;
use crate::error::Result;
use crate::frozen::Frozen;
use crate::linear::{Bias, Linear};
use crate::norm::RmsNorm;
use crate::target::{Features, TargetParts, TargetSpec};
use crate::weights::{Scope, Weights};

pub use config::{Context, DFlashConfig, MarkovKind};
pub use convolution::LocalConvolution;
pub use heads::{ConfidenceHead, MarkovHead, PrefixGru};
pub use lattice::{
    FeatureNorm, FeedForward, Lattice, LatticeAttention, LatticeLayer, LatticeRead, PathScores,
    candidates,
};
pub use lattice_table::LatticeTable;
pub use layer::BlockLayer;
pub use refiner::Refiner;
pub use selector::{Candidates, PathSelector};
pub use slots::Slots;

/// See the module.
#[derive(Module, Debug)]
pub struct DFlash {
    /// From captured layers side by side to one width.
    fc: Linear,
    hidden_norm: RmsNorm,
    layers: Vec<BlockLayer>,
    norm: RmsNorm,
    candidate_selector: Option<PathSelector>,
    markov_head: Option<MarkovHead>,
    confidence_head: Option<ConfidenceHead>,
    lattice: Option<Lattice>,
    #[module(skip)]
    mask_token: u32,
    #[module(skip)]
    frozen: Frozen<DFlashConfig>,
}

impl DFlash {
    /// The id that stands for tokens still to come.
    pub fn mask_token(&self) -> u32 {
        self.mask_token
    }

    /// The head over what [`widened`](Self::widened) returns: the target's, frozen, and under it that of the Markov head,
    /// where there is one. `[d_model or d_model + rank, vocab]`.
    pub fn head(&self) -> Tensor<2> {
        let head = self.target_head();
        match &self.markov_head {
            None => head,
            Some(markov) => {
                let more = markov.weight().val().cast(head.dtype());
                Tensor::cat(vec![head, more], 0)
            }
        }
    }

    /// The target's head alone, which makes logits of slots without what the tokens before them add. `[d_model, vocab]`.
    pub fn target_head(&self) -> Tensor<2> {
        self.frozen.head(None, &self.fc.weight.device())
    }

    /// The parameter in the lower rows of [`head`](Self::head), where it has any.
    pub fn trained_head(&self) -> Option<ParamId> {
        let markov = self.markov_head.as_ref();
        markov.map(|markov| markov.weight().id)
    }

    /// The selector of paths, where it has one.
    pub fn selector(&self) -> Option<&PathSelector> {
        self.candidate_selector.as_ref()
    }

    /// The slots of blocks whose tokens are not known yet.
    ///
    /// # Shapes
    /// - block: `[blocks, places, d_model]`, of [`hidden`](Self::hidden); XPress' head reads whole blocks
    pub fn slots(&self, block: Tensor<3>) -> Slots {
        let [_, places, _] = block.dims();
        let first = self.frozen.config.first_slot();
        let markov = self.markov_head.as_ref();
        Slots {
            places: markov.and_then(|markov| markov.places(&block)),
            hidden: block.narrow(1, first, places - first),
            earlier: None,
        }
    }

    /// What [`head`](Self::head) reads of slots that follow each other from the first of a block on.
    ///
    /// # Shapes
    /// - previous: `[blocks, slots]`, the token before the one that each slot predicts
    /// - output: `[blocks, slots, d_model or d_model + rank]`
    pub fn widened(&self, slots: &Slots, previous: Tensor<2, Int>) -> Tensor<3> {
        match &self.markov_head {
            None => slots.hidden.clone(),
            Some(markov) => slots.beside(self.markov_states(markov, slots, previous)),
        }
    }

    /// What the bias on the logits of slots is made of. `[blocks, slots, rank]`; the rest as for [`widened`](Self::widened).
    fn markov_states(
        &self,
        markov: &MarkovHead,
        slots: &Slots,
        previous: Tensor<2, Int>,
    ) -> Tensor<3> {
        let target = &self.frozen.target;
        markov.states(slots, previous, |tokens| {
            target.embed(tokens, &self.fc.weight.device())
        })
    }

    /// The logit of the probability that the target keeps what each slot drafts, where there is a head for it. `[blocks,
    /// slots]`, f32; `hidden` is that of slots, `[blocks, slots, d_model]`, and `previous` as for [`widened`](Self::widened).
    pub fn confidence_logits(
        &self,
        hidden: Tensor<3>,
        previous: Tensor<2, Int>,
    ) -> Option<Tensor<2>> {
        let head = self.confidence_head.as_ref()?;
        let markov = self.markov_head.as_ref();
        let codes = markov.and_then(|markov| markov.codes(previous));
        Some(head.forward(match codes {
            None => hidden,
            Some(codes) => {
                let codes = codes.cast(hidden.dtype());
                Tensor::cat(vec![hidden, codes], 2)
            }
        }))
    }

    /// What every layer reads of what was before: of the target's hidden states, or of the tokens.
    ///
    /// # Shapes
    /// - tokens: `[batch, seq]`
    /// - output: `[batch, seq, d_model]`
    pub fn context(&self, features: &Features, tokens: Tensor<2, Int>) -> Tensor<3> {
        let read = match self.frozen.config.context {
            Context::Features => features.captured.clone(),
            Context::Tokens => {
                let embedded = self.frozen.target.embed(tokens, &self.fc.weight.device());
                embedded.cast(features.last.dtype())
            }
        };
        self.hidden_norm.forward(self.fc.forward(read))
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
        let mut stream = Stream::from(embedded.cast(context.dtype()));
        for (index, layer) in self.layers.iter().enumerate() {
            let masks = layout.masks(index);
            stream = layer.carry(stream, |attention, x| {
                let (key, value) = attention.keys_and_values(context.clone(), &of_context);
                let blocks = attention.project(x.clone(), &of_blocks);
                let attended = attend_blocks(blocks, (key, value), attention.sinks(), masks);
                attention.joined(x, attended)
            });
        }
        let (_, last) = stream.normed(&self.norm);
        last
    }

    fn build(
        config: &DFlashConfig,
        target: &TargetParts,
        vocabulary: &DraftVocabulary,
        weights: &mut dyn Weights,
        device: &Device,
    ) -> Result<Self> {
        let target = &target.with_heads(config.d_head)?;
        let config = config.resolve(&target.spec)?;
        let spec = &target.spec;
        let mut scope = Scope::root(weights, device, spectrain_checkpoints::DType::F32);
        let d_captured = config.context_width(spec);
        let norm = |scope: &mut Scope, name| {
            RmsNorm::new(&mut scope.child(name), spec.d_model, spec.norm_epsilon)
        };
        // Grown by what was found: what a file claims must not decide how much memory is asked for.
        let mut layers = Vec::new();
        for index in 0..config.layers {
            let scope = &mut scope.child(format!("layers.{index}"));
            layers.push(BlockLayer::new(scope, &config, spec)?);
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
            candidate_selector: match config.selector_rank {
                0 => None,
                rank => {
                    let scope = &mut scope.child("candidate_selector");
                    let top_k = config.selector_top_k;
                    Some(PathSelector::new(
                        scope,
                        spec.vocab,
                        spec.d_model,
                        rank,
                        top_k,
                    )?)
                }
            },
            markov_head: match config.markov_rank {
                0 => None,
                _ => {
                    let scope = &mut scope.child("markov_head");
                    Some(MarkovHead::new(scope, &config, spec)?)
                }
            },
            confidence_head: if config.confidence {
                let width = spec.d_model + config.code_width();
                let scope = &mut scope.child("confidence_head");
                Some(ConfidenceHead::new(scope, width)?)
            } else {
                None
            },
            lattice: lattice(&mut scope, &config, spec)?,
            mask_token: config.known_mask_token(spec)?,
            frozen: Frozen::new(config, target, vocabulary),
        })
    }
}

/// The lattice of a drafter with these settings, resolved, where it has one.
fn lattice(
    scope: &mut Scope,
    config: &DFlashConfig,
    target: &TargetSpec,
) -> Result<Option<Lattice>> {
    let Some(table) = &config.lattice else {
        return Ok(None);
    };
    let sizes = LatticeSizes {
        table,
        d_model: target.d_model,
        block: config.block_size,
        epsilon: target.norm_epsilon,
    };
    Lattice::new(&mut scope.child("lattice"), sizes).map(Some)
}
