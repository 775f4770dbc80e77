//! What `spectrain bench` times: feature capture, a training step and decoding, of models without any training.

use anyhow::Result;
use burn::module::{Module as _, ModuleMapper, Param};
use burn::prelude::*;
use burn::tensor::{DType as BurnDType, Distribution};
use clap::ValueEnum;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use spectrain_checkpoints::DType;
use spectrain_data::packing::{PackedBatch, layout};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::few_rows::Decoding;
use spectrain_models::listing::Listing;
use spectrain_models::weights::held_in;
use spectrain_models::{
    Bias, Caches, Capture, DraftShape, Drafter, LogitRows, Pass, RandomWeights, RopeConfig,
    RopeScaling, Sampling, Scope, Session, Target as _, TargetSpec, Transformer, TransformerConfig,
    chain,
};
use spectrain_train::{
    Batch, MaskAlign, Objective, Reduction, Rows, Statistics, Train, TrainConfig, Trainee,
    TrainingTimeTest, TrainingTimeTestConfig,
};

/// Draft steps unrolled in the training step.
const UNROLLED: usize = 7;
/// Tokens decoded, after a prompt of [`PROMPT`], with chains of [`DRAFT`].
const DECODED: usize = 64;
const PROMPT: usize = 128;
const DRAFT: usize = 5;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Task {
    /// The target's hidden states over a batch.
    Capture,
    /// A training step of EAGLE-3: seven unrolled steps, loss, gradients, clipping, AdamW.
    Train,
    /// Plain greedy decoding.
    Plain,
    /// As many passes of the target, each over a draft of five tokens: the cost of verifying, by what it is more than plain decoding.
    Verify,
    /// Speculative greedy decoding with an untrained drafter: the cost of drafting and verifying, without its gain.
    Speculative,
}

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
struct Sizes {
    spec: TargetSpec,
    draft_vocab: usize,
    /// Type of the target's weights.
    dtype: DType,
    /// A batch.
    rows: usize,
    length: usize,
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
}

/// Does a task once.
type Work = Box<dyn FnMut() -> Result<()>>;

impl Task {
    /// Tokens of one time.
    pub(crate) fn tokens(self, size: Size) -> usize {
        let sizes = Sizes::of(size);
        match self {
            Self::Capture | Self::Train => sizes.rows * sizes.length,
            Self::Plain | Self::Verify | Self::Speculative => DECODED,
        }
    }
}

impl Setup {
    /// Makes everything that a task needs.
    pub(crate) fn work(&self, task: Task) -> Result<Work> {
        let (sizes, device) = (Sizes::of(self.size), &self.device);
        match task {
            Task::Capture => capture(&sizes, device),
            Task::Train => train(self, &sizes),
            Task::Plain => decode(&sizes, device, Drafting::Off),
            Task::Verify => verify(&sizes, device),
            Task::Speculative => decode(&sizes, device, Drafting::On),
        }
    }
}

impl Sizes {
    fn of(size: Size) -> Self {
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
                dtype: DType::BF16,
                rows: 4,
                length: 2048,
            },
        }
    }

    fn square(d_model: usize, heads: [usize; 2], vocab: usize) -> Self {
        Self {
            spec: spec(d_model, heads, vocab),
            draft_vocab: vocab,
            dtype: DType::F32,
            rows: 1,
            length: 512,
        }
    }

    fn vocabulary(&self) -> Result<DraftVocabulary> {
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

fn spec(d_model: usize, [heads, d_head]: [usize; 2], vocab: usize) -> TargetSpec {
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

fn target(spec: &TargetSpec, dtype: DType, device: &Device) -> Result<Transformer> {
    let config = TransformerConfig {
        windows: vec![None; spec.layers],
        spec: spec.clone(),
        qkv_bias: Bias::Without,
        output_bias: Bias::Without,
        mlp_bias: Bias::Without,
        head_norm: true,
        tied_head: false,
    };
    if dtype == DType::F32 {
        let mut random = RandomWeights::new(1);
        return Ok(Transformer::new(
            &mut Scope::root(&mut random, device, dtype),
            config,
        )?);
    }
    // What is that large is drawn where it is computed with, and never stands on the host.
    let mut listing = Listing::default();
    let hollow = Transformer::new(&mut Scope::root(&mut listing, device, DType::F32), config)?;
    Ok(hollow.map(&mut Drawn(device.clone())))
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

fn text(vocab: usize, length: usize) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(2);
    (0..length)
        .map(|_| rng.random_range(0..vocab as u32))
        .collect()
}

/// Rows of one text each.
fn batch(sizes: &Sizes, device: &Device) -> Batch {
    let (rows, length) = (sizes.rows, sizes.length);
    let packed = PackedBatch {
        rows: (0..rows).map(|row| vec![row]).collect(),
    };
    let rows = Rows {
        layout: layout(&packed, &vec![length; rows], length),
        packed,
        tokens: text(sizes.spec.vocab, rows * length),
        loss_mask: vec![true; rows * length],
    };
    Batch::new(rows, device)
}

fn capture(sizes: &Sizes, device: &Device) -> Result<Work> {
    let target = target(&sizes.spec, sizes.dtype, device)?;
    let batch = batch(sizes, device);
    let capture = Eagle3::capture(&Eagle3Config::default(), &sizes.spec)?;
    let device = device.clone();
    Ok(Box::new(move || {
        let features = target.features(batch.tokens.clone(), &batch.layout, &capture);
        // Written out, as the stage `features` does.
        let _ = features.captured.into_data();
        device
            .sync()
            .map_err(|error| anyhow::anyhow!("reading from the device: {error}"))
    }))
}

fn train(setup: &Setup, sizes: &Sizes) -> Result<Work> {
    let (spec, device) = (&sizes.spec, &setup.device);
    let config = Eagle3Config::default();
    // The target's layers take no part in the step: only its frozen pieces are here.
    let small = TargetSpec {
        layers: 0,
        ..spec.clone()
    };
    let mut parts = target(&small, sizes.dtype, device)?.parts();
    parts.spec = spec.clone();
    let drafter = Eagle3::fresh(&config, &parts, &sizes.vocabulary()?, 3, &setup.graph)?;
    let objective = TrainingTimeTestConfig {
        draft_steps: UNROLLED,
        recompute: setup.recompute,
        mask_align: MaskAlign::Feature,
        reduction: Reduction::All,
        ..Default::default()
    };
    let settings = TrainConfig::default();
    let mut trainee = Trainee::drafter(
        drafter,
        <TrainingTimeTest as Objective<Eagle3>>::new(&objective)?,
        settings.optimizer(),
    );
    let mut batch = batch(sizes, device);
    let compute = match sizes.dtype {
        DType::BF16 => BurnDType::BF16,
        _ => BurnDType::F32,
    };
    let random = |width: usize| {
        let shape = [sizes.rows, sizes.length, width];
        Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), (device, compute))
    };
    batch.features = Some(spectrain_models::Features {
        captured: random(3 * spec.d_model),
        last: random(spec.d_model),
    });
    Ok(Box::new(move || {
        let loss = trainee.accumulate(&batch, Statistics::Loss);
        trainee.update(settings.learning_rate, settings.max_grad_norm);
        let loss = loss.report().total;
        anyhow::ensure!(loss.is_finite(), "the loss is {loss}");
        Ok(())
    }))
}

#[derive(Clone, Copy)]
enum Drafting {
    On,
    Off,
}

fn decode(sizes: &Sizes, device: &Device, drafting: Drafting) -> Result<Work> {
    let target = target(&sizes.spec, sizes.dtype, device)?;
    let capture = Eagle3::capture(&Eagle3Config::default(), &sizes.spec)?;
    let drafter = Eagle3::fresh(
        &Eagle3Config::default(),
        &target.parts(),
        &sizes.vocabulary()?,
        3,
        device,
    )?;
    let compute = target.parts().embed_tokens.weight.val().dtype();
    let mut session = Session::new(held_in(drafter, compute));
    let prompt = text(sizes.spec.vocab, PROMPT);
    let settings = DecodeSettings {
        max_new_tokens: DECODED,
        draft: DraftShape::Chain { length: DRAFT },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    };
    Ok(Box::new(move || {
        let none = Capture::default();
        let mut rng = StdRng::seed_from_u64(0);
        match drafting {
            Drafting::Off => {
                Decoder::new(&target, &none).plain(&prompt, &settings, &mut rng)?;
            }
            Drafting::On => {
                let decoder = Decoder::new(&target, &capture);
                decoder.generate(&mut session, &Greedy, &prompt, &settings, &mut rng)?;
            }
        }
        Ok(())
    }))
}

/// Passes over the prompt and then over [`DRAFT`] tokens behind the one before, of which that one is kept.
fn verify(sizes: &Sizes, device: &Device) -> Result<Work> {
    let target = target(&sizes.spec, sizes.dtype, device)?;
    let prompt = text(sizes.spec.vocab, PROMPT);
    let drafted = text(sizes.spec.vocab, 1 + DRAFT);
    let none = Capture::default();
    Ok(Box::new(move || {
        let _decoding = Decoding::begin();
        let mut caches = Caches::new(target.spec().layers, PROMPT + DECODED + DRAFT);
        let mut pass = |tokens: &[u32], logits, kept: usize| {
            let pass = Pass {
                tokens,
                parents: &chain(tokens.len()),
                logits,
            };
            let output = target.decode(pass, &mut caches, &none);
            caches.truncate(kept);
            // The likeliest tokens come to the host, as in a decoder.
            let _ = output.logits.argmax(1).into_data();
        };
        pass(&prompt, LogitRows::Last, PROMPT);
        for done in 1..=DECODED {
            pass(&drafted, LogitRows::All, PROMPT + done);
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use spectrain_models::device::test_device;

    use super::*;

    #[test]
    fn every_task_runs_with_a_drawn_target_in_bf16() {
        let device = test_device();
        let setup = Setup {
            size: Size::Qwen3Of8B,
            graph: device.clone().autodiff(),
            device: device.clone(),
            recompute: true,
        };
        let sizes = Sizes {
            spec: spec(32, [4, 8], 300),
            draft_vocab: 100,
            dtype: DType::BF16,
            rows: 2,
            length: 16,
        };
        capture(&sizes, &device).unwrap()().unwrap();
        train(&setup, &sizes).unwrap()().unwrap();
        verify(&sizes, &device).unwrap()().unwrap();
        for drafting in [Drafting::On, Drafting::Off] {
            decode(&sizes, &device, drafting).unwrap()().unwrap();
        }
    }

    #[test]
    fn what_is_drawn_is_neither_zero_nor_the_same_twice() {
        let made = target(&spec(32, [4, 8], 300), DType::BF16, &test_device()).unwrap();
        let tensors = spectrain_models::weights::export(&made);
        let first = |name: &str| {
            let found = tensors.iter().find(|tensor| tensor.name.ends_with(name));
            found.unwrap().to_f32().unwrap()[..4].to_vec()
        };
        let [query, key] = ["0.self_attn.q_proj.weight", "0.self_attn.k_proj.weight"].map(first);
        assert!(query != key && query.iter().all(|value| *value != 0.0));
        assert_eq!(first("0.input_layernorm.weight"), [1.0; 4]);
    }
}
