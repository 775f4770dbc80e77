//! Every recipe on the device of tests as on the CPU, with the target in f32 and in bf16: features, loss, gradients, a step and
//! decoding. Where the device of tests is the CPU, what is left to see is that the target may be in bf16.
use burn::prelude::Device;
use burn::tensor::DType;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_checkpoints::NamedTensor;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::device::test_device;
use spectrain_models::weights::{held_in, host_f32};
use spectrain_models::{DraftShape, Sampling, Target as _};
use spectrain_train::{Batch, BatchSource as _, LiveFeatures, Statistics};

use crate::samples::{Trial, trials};
use crate::tiny;

/// Tokens to decode.
const NEW: usize = 5;

/// What a device makes of a recipe.
struct Worked {
    features: Vec<f32>,
    loss: f64,
    /// The first moments behind one step: the gradients, but for a factor.
    moments: Vec<NamedTensor>,
    weights: Vec<NamedTensor>,
    tokens: Vec<u32>,
}

fn worked(trial: &Trial, device: &Device, dtype: DType) -> Worked {
    let target = held_in(tiny::target(device), dtype);
    let capture = trial.method().capture(target.spec()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(5), 2);
    let packed = samples.epoch(0).unwrap().remove(0);
    let live = tiny::live(samples, &target, capture.clone());
    let mut source = LiveFeatures {
        compute: dtype,
        ..live
    };
    let batch: Batch = source.batch(packed).unwrap();
    let features = batch.features.as_ref();
    let features = features.map_or(Vec::new(), |found| host_f32(found.last.clone()));
    let mut trainee = trial.trainee(&target, &device.clone().autodiff());
    let report = trainee.accumulate(&batch, Statistics::All).report();
    trainee.update(1e-3, 0.0);
    let mut session = trainee.proposer(dtype).unwrap();
    let settings = DecodeSettings {
        max_new_tokens: NEW,
        draft: DraftShape::Chain {
            length: session.draft_length().min(2),
        },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    };
    let mut rng = StdRng::seed_from_u64(0);
    let decoded = Decoder::new(&target, &capture)
        .generate(
            session.as_mut(),
            &Greedy,
            &[1, 2, 3, 4],
            &settings,
            &mut rng,
        )
        .unwrap();
    let (_, moments) = trainee.optimizer();
    Worked {
        features,
        loss: report.total,
        moments: moments
            .into_iter()
            .filter(|of| of.name.ends_with(".first"))
            .collect(),
        weights: trainee.weights(),
        tokens: decoded.tokens,
    }
}

/// Fails where elements differ by more than this share of the largest one.
fn close(what: &str, found: &[f32], expected: &[f32], share: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        let most = share * largest + 1e-7;
        assert!(
            (a - b).abs() <= most,
            "{what}, element {at}: {a} and {b}, of at most {largest}"
        );
    }
}

fn close_tensors(what: &str, found: &[NamedTensor], expected: &[NamedTensor], share: f32) {
    let names = |of: &[NamedTensor]| of.iter().map(|of| of.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for (a, b) in found.iter().zip(expected) {
        let (a, b, what) = (
            a.to_f32().unwrap(),
            b.to_f32().unwrap(),
            format!("{what}, `{}`", a.name),
        );
        close(&what, &a, &b, share);
    }
}

/// Every recipe with the target in `dtype` on the device of tests, and in f32 on the CPU, beside which its features and its loss may be off
/// by these shares. `more` compares the rest.
fn compared(dtype: DType, [features, loss]: [f32; 2], more: impl Fn(&str, &Worked, &Worked)) {
    for trial in trials() {
        let expected = worked(&trial, &Device::flex(), DType::F32);
        let found = worked(&trial, &test_device(), dtype);
        let name = trial.name;
        println!("{name}: loss {} and {}", found.loss, expected.loss);
        close(
            &format!("{name}: features"),
            &found.features,
            &expected.features,
            features,
        );
        assert!(
            (found.loss - expected.loss).abs() < f64::from(loss) * expected.loss.abs().max(1.0),
            "{name}: {} {}",
            found.loss,
            expected.loss
        );
        more(name, &found, &expected);
    }
}

#[test]
fn every_recipe_trains_and_decodes_on_a_device_as_on_the_cpu() {
    compared(DType::F32, [1e-4, 1e-4], |name, found, expected| {
        close_tensors(
            &format!("{name}: gradients"),
            &found.moments,
            &expected.moments,
            2e-3,
        );
        // AdamW's first step goes as far for a small gradient as for a large one, whatever its sign.
        close_tensors(
            &format!("{name}: weights"),
            &found.weights,
            &expected.weights,
            5e-2,
        );
        assert_eq!(found.tokens, expected.tokens, "{name}");
    });
}

#[test]
fn every_recipe_trains_and_decodes_with_a_target_in_bf16() {
    compared(DType::BF16, [5e-2, 2e-2], |name, found, expected| {
        assert_eq!(found.tokens.len(), NEW, "{name}");
        for (a, b) in found.moments.iter().zip(&expected.moments) {
            let cosine = cosine(&a.to_f32().unwrap(), &b.to_f32().unwrap());
            assert!(cosine > 0.98, "{name}: gradient of `{}`: {cosine}", a.name);
        }
    });
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    let size = (dot(a, a) * dot(b, b)).sqrt();
    // Nothing is turned where there is no gradient.
    if size < 1e-20 { 1.0 } else { dot(a, b) / size }
}
