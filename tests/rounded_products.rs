//! Every recipe trained on the CPU with the factors of its products rounded to bf16, beside the same in f32, over rows of 320 tokens
//! with several texts each.
use std::sync::{Arc, Mutex};

use burn::prelude::Device;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use spectrain_checkpoints::NamedTensor;
use spectrain_data::Sample;
use spectrain_data::packing::PackedBatch;
use spectrain_models::Target as _;
use spectrain_models::products::Precision;
use spectrain_models::weights::host_f32;
use spectrain_train::{
    Batch, BatchSource, LiveFeatures, Result, Rows, Samples, Statistics, TrainConfig,
};

use crate::devices::cosine;
use crate::samples::{Trial, chosen, trials};
use crate::tiny;

/// Tokens of a row.
const ROW: usize = 320;

/// What a training has of one batch.
struct Learnt {
    features: Vec<f32>,
    loss: f64,
    /// Behind one step: the gradients, but for a factor.
    moments: Vec<NamedTensor>,
}

/// As many texts of odd lengths as fill two rows and more.
fn samples(folder: &std::path::Path) -> Samples {
    let mut random = StdRng::seed_from_u64(5);
    let texts = [151, 101, 60, 223, 80, 139].map(|length| {
        let tokens = (0..length).map(|_| random.random_range(0..tiny::VOCAB as u32));
        Sample {
            tokens: tokens.collect(),
            loss_mask: (0..length).map(|at| at >= 9).collect(),
        }
    });
    tiny::in_rows(folder, &texts, ROW, 2)
}

fn learnt(trial: &Trial, precision: Precision) -> Learnt {
    let device = Device::flex();
    let mut config = tiny::config();
    // Narrower products are not worth laying out.
    (config.spec.d_model, config.spec.d_ff) = (64, 96);
    let target = tiny::of(config, &device);
    let _precision = precision.scope();
    let capture = trial.method().capture(target.spec()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let samples = samples(folder.path());
    let packed = samples.epoch(0).unwrap().remove(0);
    let batch = tiny::live(samples, &target, capture).batch(packed).unwrap();
    let features = batch.features.as_ref();
    let mut trainee = trial.trainee(&target, &device.autodiff());
    let loss = trainee.accumulate_as_measured(&batch, Statistics::Loss);
    let loss = loss.report().total;
    trainee.update(1e-3, 0.0);
    let (_, moments) = trainee.optimizer();
    let first = moments.into_iter().filter(|of| of.name.ends_with(".first"));
    Learnt {
        features: features.map_or(Vec::new(), |found| host_f32(found.last.clone())),
        loss,
        moments: first.collect(),
    }
}

#[test]
fn every_recipe_learns_from_rounded_factors_as_from_whole_ones() {
    for (number, trial) in trials()
        .iter()
        .enumerate()
        .filter(|(_, of)| chosen(of.name))
    {
        let name = format!("{} (trial {number})", trial.name);
        let [whole, rounded] = [Precision::F32, Precision::Bf16].map(|way| learnt(trial, way));
        println!("{name}: loss {} and {}", whole.loss, rounded.loss);
        let apart = (whole.loss - rounded.loss).abs();
        assert!(apart < 1e-2 * whole.loss.abs().max(1.0), "{name}");
        // Rounded they are others, if only by little.
        let is_rounded = Precision::Bf16.is_here();
        assert_eq!(apart > 0.0, is_rounded, "{name}");
        if !whole.features.is_empty() {
            let bits = |of: &Learnt| Vec::from_iter(of.features.iter().map(|x| x.to_bits()));
            assert_eq!(bits(&whole) != bits(&rounded), is_rounded, "{name}");
        }
        for (a, b) in whole.moments.iter().zip(&rounded.moments) {
            assert_eq!(a.name, b.name);
            let cosine = cosine(&a.to_f32().unwrap(), &b.to_f32().unwrap());
            assert!(cosine > 0.99, "{name}: gradient of `{}`: {cosine}", a.name);
        }
    }
}

/// What a training reads, and how products were taken there.
struct Watched {
    source: LiveFeatures,
    seen: Arc<Mutex<Vec<Precision>>>,
}

impl BatchSource for Watched {
    fn rows(&self, packed: PackedBatch) -> Rows {
        self.source.rows(packed)
    }

    fn batch(&mut self, packed: PackedBatch) -> Result<Batch> {
        self.seen.lock().unwrap().push(Precision::of_this_thread());
        self.source.batch(packed)
    }
}

/// Else live features would be others than stored ones.
#[test]
fn features_that_are_made_beside_a_training_are_rounded_as_it_is() {
    let trial = &trials()[0];
    let target = tiny::target(&Device::flex());
    let capture = trial.method().capture(target.spec()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(8), 2);
    let seen = Arc::new(Mutex::new(Vec::new()));
    for precision in [Precision::Bf16, Precision::F32] {
        let mut trainee = trial.trainee(&target, &Device::flex().autodiff());
        let config = TrainConfig {
            steps: 2,
            ..Default::default()
        };
        let source = Watched {
            source: tiny::live(samples.clone(), &target, capture.clone()),
            seen: seen.clone(),
        };
        let _precision = precision.scope();
        let source = Box::new(source);
        tiny::trained_from(source, trainee.as_mut(), &config, samples.clone()).unwrap();
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [precision; 2]);
    }
}
