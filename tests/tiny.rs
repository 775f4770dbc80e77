//! A small random target, samples for it, and drafters, shared by the tests.
use std::path::Path;
use std::sync::Arc;

use burn::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use spectrain_checkpoints::DType;
use spectrain_data::Sample;
use spectrain_data::tokens::{TokenShards, TokenWriter};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::{
    Capture, Drafter, ExpertsConfig, RandomWeights, RopeConfig, RopeScaling, Routing, Scope,
    Target, TargetSpec, Transformer, TransformerConfig,
};
use spectrain_train::{
    Batch, BatchSource, Defaults, Error, Fit, FitSummary, LiveFeatures, Samples, Train,
    TrainConfig, Validation, fit,
};

pub const VOCAB: usize = 48;

pub fn config() -> TransformerConfig {
    TransformerConfig::qwen3(TargetSpec {
        layers: 6,
        d_model: 32,
        d_ff: 48,
        heads: 4,
        kv_heads: 2,
        d_head: 8,
        vocab: VOCAB,
        norm_epsilon: 1e-6,
        rope: RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        },
        max_positions: 512,
        routing: None,
    })
}

pub fn target(device: &Device) -> Transformer {
    of(config(), device)
}

/// Eight experts in all layers but one.
pub fn routing() -> Routing {
    Routing {
        experts: ExpertsConfig {
            count: 8,
            per_token: 2,
            d_ff: 20,
            normalised: true,
        },
        layers: vec![true, true, false, true, true, true],
    }
}

/// The same target with experts.
pub fn mixture(device: &Device) -> Transformer {
    let mut config = config();
    config.spec.routing = Some(routing());
    of(config, device)
}

/// A target of this structure with drawn weights.
pub fn of(config: TransformerConfig, device: &Device) -> Transformer {
    let mut random = RandomWeights::new(7);
    Transformer::new(&mut Scope::root(&mut random, device, DType::F32), config).unwrap()
}

/// A drafter of any kind with drawn weights.
pub fn drafter<D: Drafter>(
    config: &D::Config,
    target: &Transformer,
    vocabulary: &DraftVocabulary,
    device: &Device,
) -> D {
    let mut random = RandomWeights::new(11);
    D::new(config, &target.parts(), vocabulary, &mut random, device).unwrap()
}

/// An untrained drafter of any kind, that can propose every token.
pub fn fresh<D: Drafter>(config: &D::Config, target: &Transformer, device: &Device) -> D {
    let vocabulary = DraftVocabulary::full(VOCAB);
    D::fresh(config, &target.parts(), &vocabulary, 11, device).unwrap()
}

/// Samples of random tokens, the first four of each being the prompt.
pub fn random_samples(count: usize) -> Vec<Sample> {
    let mut rng = StdRng::seed_from_u64(3);
    let sample = |_| {
        let len = rng.random_range(12..40);
        Sample {
            tokens: (0..len)
                .map(|_| rng.random_range(0..VOCAB as u32))
                .collect(),
            loss_mask: (0..len).map(|position| position >= 4).collect(),
        }
    };
    (0..count).map(sample).collect()
}

pub fn samples(folder: &Path, samples: &[Sample], rows: usize) -> Samples {
    in_rows(folder, samples, 64, rows)
}

/// The same in rows of any length.
pub fn in_rows(folder: &Path, samples: &[Sample], length: usize, rows: usize) -> Samples {
    let mut writer = TokenWriter::create(folder, 1 << 20).unwrap();
    samples
        .iter()
        .for_each(|sample| writer.push(sample).unwrap());
    writer.finish(Default::default()).unwrap();
    Samples::new(
        Arc::new(TokenShards::open(folder).unwrap()),
        length,
        rows,
        5,
    )
}

pub fn live(samples: Samples, target: &Transformer, capture: Capture) -> LiveFeatures {
    LiveFeatures {
        samples,
        device: target.device(),
        target: Arc::new(target.clone()),
        capture,
        compute: burn::tensor::DType::F32,
    }
}

/// A whole training on what the target has to say of the samples, in a folder that goes when it ends.
pub fn trained(
    trainee: &mut dyn Train,
    config: &TrainConfig,
    samples: Samples,
    (target, capture): (&Transformer, Capture),
) -> Result<FitSummary, Error> {
    let source = live(samples.clone(), target, capture);
    trained_from(Box::new(source), trainee, config, samples)
}

/// The same on whatever `source` makes of the samples.
pub fn trained_from(
    source: Box<dyn BatchSource>,
    trainee: &mut dyn Train,
    config: &TrainConfig,
    samples: Samples,
) -> Result<FitSummary, Error> {
    let folder = tempfile::tempdir().unwrap();
    let training = Fit {
        config,
        source,
        samples,
        folder: folder.path().to_owned(),
        identity: "tiny".into(),
        defaults: Defaults::default(),
        interrupted: &|| false,
        on_policy: None,
        begins_trained: false,
        validate: &mut |_, _, _, _| Ok(Validation::default()),
        memory: &|| None,
        ranks: None,
    };
    fit(trainee, training)
}

pub fn batch(source: &mut LiveFeatures) -> Batch {
    let packed = source.samples.epoch(0).unwrap().remove(0);
    source.batch(packed).unwrap()
}

pub fn eagle3_capture(config: &Eagle3Config, target: &Transformer) -> Capture {
    Eagle3::capture(config, target.spec()).unwrap()
}
