//! Models and batches of random numbers, in the sizes that are timed.

use anyhow::Result;
use burn::module::{Module as _, ModuleMapper, Param};
use burn::prelude::*;
use burn::tensor::{DType as BurnDType, Distribution};
use clap::ValueEnum;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use spectrain_checkpoints::DType;
use spectrain_data::packing::{PackedBatch, layout};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::listing::Listing;
use spectrain_models::{
    FrozenType, RandomWeights, RopeConfig, RopeScaling, Scope, TargetSpec, Transformer,
    TransformerConfig,
};
use spectrain_train::{Batch, Divergence, Rows};

/// Sizes of drafter and target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Size {
    /// Width 256, vocabulary 4,096.
    Small,
    /// Width 512, vocabulary 32,000.
    Medium,
    /// Width 1,024, vocabulary 32,000.
    Large,
    /// That of Qwen3-8B, in bf16, over 8,192 tokens in 4 rows, with a draft vocabulary of 32,000: for a GPU with 40 GiB or more.
    #[value(name = "qwen3-8b")]
    Qwen3Of8B,
}

/// What a case computes with.
pub(super) struct Sizes {
    pub(super) spec: TargetSpec,
    pub(super) draft_vocab: usize,
    /// Type of the target's weights.
    pub(super) held: FrozenType,
    /// A batch: rows of so many tokens, in so many texts.
    pub(super) rows: usize,
    pub(super) length: usize,
    pub(super) texts: usize,
    /// Share of each text, its beginning, that is not trained on.
    pub(super) prompts: f64,
}

/// What a case runs with.
pub(crate) struct Setup {
    /// Sizes of drafter and target.
    pub(crate) size: Size,
    /// Where it computes.
    pub(crate) device: Device,
    /// Where it computes what takes gradients.
    pub(crate) graph: Device,
    /// Whether the backward pass of the training step computes the unrolled steps again.
    pub(crate) recompute: bool,
    /// Type of the target's weights, where it is not that of the size.
    pub(crate) held: Option<FrozenType>,
    /// Whether the matrices of the layers of the target are held in eight bits.
    pub(crate) int8: bool,
    /// What EAGLE-3 minimises.
    pub(crate) divergence: Divergence,
    /// Whether a row of a batch has several texts.
    pub(crate) packed: bool,
    /// Share of each text, its beginning, that is not trained on.
    pub(crate) prompts: f64,
}

/// Does a task once.
pub(super) type Work = Box<dyn FnMut() -> Result<()>>;

impl Sizes {
    pub(super) fn of(size: Size) -> Self {
        match size {
            Size::Small => Self::square(256, [8, 32], 4096),
            Size::Medium => Self::square(512, [8, 64], 32_000),
            Size::Large => Self::square(1024, [16, 64], 32_000),
            Size::Qwen3Of8B => Self {
                spec: TargetSpec {
                    layers: 36,
                    d_ff: 12_288,
                    kv_heads: 8,
                    max_positions: 4096,
                    ..spec(4096, [32, 128], 151_936)
                },
                draft_vocab: 32_000,
                held: DType::BF16.into(),
                rows: 4,
                length: 2048,
                texts: 1,
                prompts: 0.0,
            },
        }
    }

    fn square(d_model: usize, heads: [usize; 2], vocab: usize) -> Self {
        Self {
            spec: spec(d_model, heads, vocab),
            draft_vocab: vocab,
            held: DType::F32.into(),
            rows: 1,
            length: 512,
            texts: 1,
            prompts: 0.0,
        }
    }

    pub(super) fn vocabulary(&self) -> Result<DraftVocabulary> {
        let vocab = self.spec.vocab;
        if self.draft_vocab == vocab {
            return Ok(DraftVocabulary::full(vocab));
        }
        // Tokens from all of the vocabulary, as often as they come.
        let counts: Vec<u64> = (0..vocab as u64)
            .map(|token| token * 7919 % 104_729)
            .collect();
        Ok(DraftVocabulary::from_counts(
            &counts,
            self.draft_vocab,
            &[],
        )?)
    }
}

pub(super) fn spec(d_model: usize, [heads, d_head]: [usize; 2], vocab: usize) -> TargetSpec {
    TargetSpec {
        layers: 8,
        d_model,
        d_ff: 3 * d_model,
        heads,
        kv_heads: heads / 2,
        d_head,
        vocab,
        norm_epsilon: 1e-6,
        rope: RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        },
        max_positions: 1024,
        routing: None,
    }
}

pub(super) fn target(spec: &TargetSpec, held: FrozenType, device: &Device) -> Result<Transformer> {
    let config = TransformerConfig::qwen3(spec.clone());
    if held.dtype == DType::F32 {
        let mut random = RandomWeights::new(1);
        let scope = Scope::root(&mut random, device, held.dtype);
        return Ok(Transformer::new(&mut scope.frozen(held.int8), config)?);
    }
    // What is that large is drawn where it is computed with, and never stands on the host.
    let mut listing = Listing::default();
    let hollow = Transformer::new(&mut Scope::root(&mut listing, device, DType::F32), config)?;
    Ok(hollow.map(&mut Drawn(device.clone())).fused())
}

/// Draws each parameter on a device, in bf16: of about the size of a trained model's, and norms of 1.
struct Drawn(Device);

impl ModuleMapper for Drawn {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, options) = (param.lazy_shape(), (&self.0, BurnDType::BF16));
        let drawn = match D {
            1 => Tensor::ones(shape, options),
            _ => Tensor::random(shape, Distribution::Normal(0.0, 0.02), options),
        };
        Param::initialized(param.id, drawn)
    }
}

pub(super) fn text(vocab: usize, length: usize) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(2);
    (0..length)
        .map(|_| rng.random_range(0..vocab as u32))
        .collect()
}

/// Rows of `sizes.texts` texts each.
pub(super) fn batch(sizes: &Sizes, device: &Device) -> Batch {
    let (rows, length, texts) = (sizes.rows, sizes.length, sizes.texts);
    let packed = PackedBatch {
        rows: (0..rows)
            .map(|row| (row * texts..(row + 1) * texts).collect())
            .collect(),
    };
    let lengths = lengths(length, texts);
    let of_text = |&length: &usize| {
        let prompt = (sizes.prompts * length as f64) as usize;
        (0..length).map(move |at| at >= prompt)
    };
    let of_row: Vec<bool> = lengths.iter().flat_map(of_text).collect();
    let rows = Rows {
        layout: layout(&packed, &lengths.repeat(rows), length),
        packed,
        tokens: text(sizes.spec.vocab, rows * length),
        loss_mask: of_row.repeat(rows),
    };
    Batch::new(rows, device)
}

/// Lengths of the texts of a row, which fill it. All but the first begin at places that are no multiples of large powers of two, as those
/// of real texts.
fn lengths(row: usize, texts: usize) -> Vec<usize> {
    let others = vec![(row / texts) | 1; texts - 1];
    let last = row - others.iter().sum::<usize>();
    [others, vec![last]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_texts_fill_a_row_and_begin_at_no_round_places() {
        assert_eq!(lengths(2048, 1), [2048]);
        assert_eq!(lengths(2048, 3), [683, 683, 682]);
        assert_eq!(lengths(512, 3), [171, 171, 170]);
    }

    #[test]
    fn what_is_a_prompt_is_not_trained_on() {
        let sizes = Sizes {
            rows: 2,
            texts: 3,
            prompts: 0.25,
            ..Sizes::of(Size::Small)
        };
        let rows = batch(&sizes, &Device::flex()).rows;
        let untrained = (0..1024).filter(|&at| !rows.loss_mask[at]);
        let expected = [0, 171, 342, 512, 683, 854].map(|first| first..first + 42);
        assert!(untrained.eq(expected.into_iter().flatten()));
    }
}
