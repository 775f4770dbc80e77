//! What `spectrain bench` times: feature capture, a training step and decoding, of models without any training.

use anyhow::Result;
use burn::prelude::*;
use burn::tensor::DType as BurnDType;
use clap::ValueEnum;
use rand::{Rng, SeedableRng, rngs::StdRng};
use spectrain_checkpoints::DType;
use spectrain_data::packing::{PackedBatch, layout};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::{
    Bias, Capture, DraftShape, Drafter, RandomWeights, RopeConfig, RopeScaling, Sampling, Scope,
    Session, TargetSpec, Transformer, TransformerConfig,
};
use spectrain_train::{
    Batch, MaskAlign, Objective, Reduction, Rows, Statistics, Train, TrainConfig, Trainee,
    TrainingTimeTest, TrainingTimeTestConfig,
};

/// Positions of a batch.
const LENGTH: usize = 512;
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
    pub(crate) fn tokens(self) -> usize {
        match self {
            Self::Capture | Self::Train => LENGTH,
            Self::Plain | Self::Speculative => DECODED,
        }
    }
}

impl Setup {
    /// Makes everything that a task needs.
    pub(crate) fn work(&self, task: Task) -> Result<Work> {
        match task {
            Task::Capture => capture(self.size, &self.device),
            Task::Train => train(self),
            Task::Plain => decode(self.size, &self.device, Drafting::Off),
            Task::Speculative => decode(self.size, &self.device, Drafting::On),
        }
    }
}

fn spec(size: Size) -> TargetSpec {
    let (d_model, heads, d_head, vocab) = match size {
        Size::Small => (256, 8, 32, 4096),
        Size::Medium => (512, 8, 64, 32_000),
        Size::Large => (1024, 16, 64, 32_000),
    };
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
        max_positions: 2 * LENGTH,
        routing: None,
    }
}

fn target(size: Size, device: &Device) -> Result<Transformer> {
    let spec = spec(size);
    let config = TransformerConfig {
        windows: vec![None; spec.layers],
        spec,
        qkv_bias: Bias::Without,
        output_bias: Bias::Without,
        mlp_bias: Bias::Without,
        head_norm: true,
        tied_head: false,
    };
    let mut random = RandomWeights::new(1);
    Ok(Transformer::new(
        &mut Scope::root(&mut random, device, DType::F32),
        config,
    )?)
}

fn text(vocab: usize, length: usize) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(2);
    (0..length)
        .map(|_| rng.random_range(0..vocab as u32))
        .collect()
}

fn batch(vocab: usize, device: &Device) -> Batch {
    let packed = PackedBatch {
        rows: vec![vec![0]],
    };
    let rows = Rows {
        layout: layout(&packed, &[LENGTH], LENGTH),
        packed,
        tokens: text(vocab, LENGTH),
        loss_mask: vec![true; LENGTH],
    };
    Batch::new(rows, device)
}

fn capture(size: Size, device: &Device) -> Result<Work> {
    let target = target(size, device)?;
    let batch = batch(spec(size).vocab, device);
    let capture = Eagle3::capture(&Eagle3Config::default(), &spec(size))?;
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

fn train(setup: &Setup) -> Result<Work> {
    let (spec, device) = (spec(setup.size), &setup.device);
    let config = Eagle3Config::default();
    // The target's layers take no part in the step: only its frozen pieces are here.
    let small = target_without_layers(&spec);
    let mut random = RandomWeights::new(1);
    let frozen = Transformer::new(&mut Scope::root(&mut random, device, DType::F32), small)?;
    let mut parts = frozen.parts();
    parts.spec = spec.clone();
    let vocabulary = DraftVocabulary::full(spec.vocab);
    let drafter = Eagle3::fresh(&config, &parts, &vocabulary, 3, &setup.graph)?;
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
    let mut batch = batch(spec.vocab, device);
    let random = |width: usize| {
        let shape = [1, LENGTH, width];
        Tensor::<3>::random(
            shape,
            burn::tensor::Distribution::Normal(0.0, 1.0),
            (device, BurnDType::F32),
        )
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

fn target_without_layers(spec: &TargetSpec) -> TransformerConfig {
    TransformerConfig {
        spec: TargetSpec {
            layers: 0,
            ..spec.clone()
        },
        qkv_bias: Bias::Without,
        output_bias: Bias::Without,
        mlp_bias: Bias::Without,
        head_norm: true,
        tied_head: false,
        windows: Vec::new(),
    }
}

#[derive(Clone, Copy)]
enum Drafting {
    On,
    Off,
}

fn decode(size: Size, device: &Device, drafting: Drafting) -> Result<Work> {
    let target = target(size, device)?;
    let capture = Eagle3::capture(&Eagle3Config::default(), &spec(size))?;
    let vocabulary = DraftVocabulary::full(spec(size).vocab);
    let drafter = Eagle3::fresh(
        &Eagle3Config::default(),
        &target.parts(),
        &vocabulary,
        3,
        device,
    )?;
    let mut session = Session::new(drafter);
    let prompt = text(spec(size).vocab, PROMPT);
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
