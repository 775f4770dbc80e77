//! Every recipe on the device of tests as on the CPU, with the target in f32 and in bf16: features, loss, gradients, a step and
//! decoding. Where the device of tests is the CPU, what is left to see is that the target may be in bf16.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use burn::prelude::Device;
use burn::tensor::DType;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_checkpoints::NamedTensor;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::device::{test_device, tests_multiply_in_tf32};
use spectrain_models::weights::{held_in, host_f32};
use spectrain_models::{DraftShape, Sampling, Target as _};
use spectrain_train::{Batch, BatchSource as _, LiveFeatures, Statistics};

use crate::samples::{Trial, chosen, trials};
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
    let report = trainee
        .accumulate_as_measured(&batch, Statistics::All)
        .report();
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

/// The size of the largest value.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, x| most.max(x.abs()))
}

/// By which values may differ however small they are.
const NOISE: f32 = 1e-7;

/// Fails where elements differ by more than this share of the largest one.
fn close(what: &str, found: &[f32], expected: &[f32], share: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = largest(expected);
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        let most = share * largest + NOISE;
        assert!(
            (a - b).abs() <= most,
            "{what}, element {at}: {a} and {b}, of at most {largest}"
        );
    }
}

/// The same of features, which are rounded to bf16: where a value lies in the middle between two, another device may take the other one.
/// That is seldom so.
fn close_features(name: &str, found: &[f32], expected: &[f32], share: f32) {
    const ROUNDING: f32 = 1.0 / 128.0;
    let largest = largest(expected);
    assert_eq!(found.len(), expected.len(), "{name}: features");
    let mut others = 0;
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        let apart = (a - b).abs();
        let most = share * largest + ROUNDING * a.abs().max(b.abs());
        assert!(
            apart <= most,
            "{name}: features, element {at}: {a} and {b}, of at most {largest}"
        );
        others += usize::from(apart > share * largest);
    }
    assert!(
        others * 100 <= found.len(),
        "{name}: {others} of {} features are rounded to another value",
        found.len()
    );
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

/// Share of the largest gradient of a tensor by which gradients may differ.
const GRADIENT: f32 = 2e-3;

/// Weights behind one step. AdamW's first step goes as far for a small gradient as for a large one, so where a gradient is no larger than
/// what gradients may differ by, all that is known is how far a weight can have gone.
fn close_weights(name: &str, found: &Worked, expected: &Worked) {
    const STEP: f32 = 1e-3;
    for (a, b) in found.weights.iter().zip(&expected.weights) {
        assert_eq!(a.name, b.name, "{name}: weights");
        let gradient = format!("{}.first", a.name);
        let gradient = expected.moments.iter().find(|of| of.name == gradient);
        let gradient = gradient.map(|of| of.to_f32().unwrap()).unwrap_or_default();
        let least = GRADIENT * largest(&gradient) + NOISE;
        let (shape, what) = (&a.shape, &a.name);
        let (a, b) = (a.to_f32().unwrap(), b.to_f32().unwrap());
        let largest = largest(&b);
        assert_eq!(a.len(), b.len(), "{name}: {what}");
        for (at, (a, b)) in a.iter().zip(&b).enumerate() {
            // A matrix may be written with its outputs first and have its moments with its inputs first.
            let across = match shape[..] {
                [rows, columns] => at % columns * rows + at / columns,
                _ => at,
            };
            let places = [at, across].into_iter();
            let mut gradients = places.filter_map(|at| gradient.get(at));
            let is_small = gradients.any(|gradient| gradient.abs() <= least);
            let most = if is_small {
                2.1 * STEP
            } else {
                5e-2 * largest + NOISE
            };
            assert!(
                (a - b).abs() <= most,
                "{name}: weights, `{what}`, element {at}: {a} and {b}, of at most {largest}"
            );
        }
    }
}

/// Every recipe with the target in `dtype` on the device of tests, and in f32 on the CPU, beside which its features and its loss may be off
/// by these shares. `more` compares the rest. What fails is told behind the last recipe; none keeps another from being compared.
fn compared(dtype: DType, shares: [f32; 2], more: impl Fn(&str, &Worked, &Worked)) {
    let mut failed = Vec::new();
    for (number, trial) in trials()
        .iter()
        .enumerate()
        .filter(|(_, of)| chosen(of.name))
    {
        let begin = Instant::now();
        let one = AssertUnwindSafe(|| compared_one(trial, dtype, shares, &more));
        let name = format!("{} (trial {number})", trial.name);
        let is_close = catch_unwind(one).is_ok();
        let ended = if is_close { "as on the CPU" } else { "FAILED" };
        println!("{name}: {ended}, {:.0} s", begin.elapsed().as_secs_f64());
        if !is_close {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}; said above");
}

fn compared_one(
    trial: &Trial,
    dtype: DType,
    [features, loss]: [f32; 2],
    more: impl Fn(&str, &Worked, &Worked),
) {
    let expected = worked(trial, &Device::flex(), DType::F32);
    let found = worked(trial, &test_device(), dtype);
    let name = trial.name;
    println!("{name}: loss {} and {}", found.loss, expected.loss);
    close_features(name, &found.features, &expected.features, features);
    assert!(
        (found.loss - expected.loss).abs() < f64::from(loss) * expected.loss.abs().max(1.0),
        "{name}: {} {}",
        found.loss,
        expected.loss
    );
    more(name, &found, &expected);
}

#[test]
fn every_recipe_trains_and_decodes_on_a_device_as_on_the_cpu() {
    if tests_multiply_in_tf32() {
        return compared(DType::F32, [5e-3, 2e-3], |name, found, expected| {
            turned_alike(name, found, expected, 0.99);
        });
    }
    compared(DType::F32, [1e-4, 1e-4], |name, found, expected| {
        close_tensors(
            &format!("{name}: gradients"),
            &found.moments,
            &expected.moments,
            GRADIENT,
        );
        close_weights(name, found, expected);
        assert_eq!(found.tokens, expected.tokens, "{name}");
    });
}

#[test]
fn every_recipe_trains_and_decodes_with_a_target_in_bf16() {
    compared(DType::BF16, [5e-2, 2e-2], |name, found, expected| {
        turned_alike(name, found, expected, 0.98);
    });
}

/// Fails where a gradient points elsewhere than the CPU's: their cosine is to be more than this.
fn turned_alike(name: &str, found: &Worked, expected: &Worked, least: f64) {
    assert_eq!(found.tokens.len(), NEW, "{name}");
    for (a, b) in found.moments.iter().zip(&expected.moments) {
        let cosine = cosine(&a.to_f32().unwrap(), &b.to_f32().unwrap());
        assert!(cosine > least, "{name}: gradient of `{}`: {cosine}", a.name);
    }
}

pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
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
