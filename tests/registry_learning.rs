//! A drafter of every recipe that has overfitted the target's own text drafts nearly all of it: an off-by-one between training
//! and decoding leaves the output right and shows only here. And half a training and its other half are a whole one.
use burn::tensor::DType;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_data::Sample;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::device::test_device;
use spectrain_models::{DraftShape, Sampling, Target as _, Transformer};
use spectrain_train::{Batch, BatchSource as _, Statistics, Train};

use crate::samples::{Trial, trials};
use crate::tiny;

const LENGTH: usize = 3;

fn settings(length: usize) -> DecodeSettings {
    DecodeSettings {
        max_new_tokens: 48,
        draft: DraftShape::Chain { length },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    }
}

/// What the target writes behind a prompt, as one batch.
fn own_text(target: &Transformer, trial: &Trial) -> (Vec<u32>, Batch) {
    let capture = trial.method().capture(target.spec()).unwrap();
    let decoder = Decoder::new(target, &capture);
    let prompt = [1, 2, 3, 4];
    let mut rng = StdRng::seed_from_u64(0);
    let plain = decoder.plain(&prompt, &settings(LENGTH), &mut rng).unwrap();
    let tokens: Vec<u32> = prompt.iter().chain(&plain.tokens).copied().collect();
    let sample = Sample {
        loss_mask: (0..tokens.len()).map(|at| at >= prompt.len()).collect(),
        tokens,
    };
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &[sample], 1);
    let mut source = tiny::live(samples.clone(), target, capture);
    let batch = source.batch(samples.epoch(0).unwrap().remove(0));
    (plain.tokens, batch.unwrap())
}

fn train(trainee: &mut dyn Train, batch: &Batch, updates: usize) {
    for _ in 0..updates {
        trainee.accumulate(batch, Statistics::Loss);
        trainee.update(5e-3, 1.0);
    }
}

#[test]
fn an_overfitted_drafter_of_every_recipe_drafts_almost_everything() {
    let device = test_device();
    let target = tiny::target(&device);
    for trial in trials() {
        let (text, batch) = own_text(&target, &trial);
        let mut trainee = trial.trainee(&target, &device.clone().autodiff());
        train(trainee.as_mut(), &batch, 250);
        let capture = trial.method().capture(target.spec()).unwrap();
        let mut session = trainee.proposer(DType::F32).unwrap();
        let length = session.draft_length().min(LENGTH);
        let mut rng = StdRng::seed_from_u64(0);
        let drafted = Decoder::new(&target, &capture)
            .generate(
                session.as_mut(),
                &Greedy,
                &[1, 2, 3, 4],
                &settings(length),
                &mut rng,
            )
            .unwrap();
        assert_eq!(
            drafted.tokens, text,
            "{}: greedy output is the target's",
            trial.name
        );
        let emitted: usize = drafted.passes.iter().map(|pass| pass.emitted).sum();
        let tau = emitted as f64 / drafted.passes.len() as f64;
        let most = (length + 1) as f64;
        assert!(
            tau > 0.75 * most,
            "{}: τ {tau} of at most {most}",
            trial.name
        );
    }
}

#[test]
fn half_a_training_and_its_other_half_equal_a_whole_one_bitwise_for_every_recipe() {
    let device = test_device();
    let target = tiny::target(&device);
    for trial in trials() {
        let (_, batch) = own_text(&target, &trial);
        let autodiff = device.clone().autodiff();
        let mut whole = trial.trainee(&target, &autodiff);
        train(whole.as_mut(), &batch, 6);
        let mut first = trial.trainee(&target, &autodiff);
        train(first.as_mut(), &batch, 3);
        let mut second = trial.trainee(&target, &autodiff);
        second
            .restore(first.weights(), first.optimizer(), trial.name)
            .unwrap();
        train(second.as_mut(), &batch, 3);
        let [whole, second] = [whole, second].map(|trained| trained.weights());
        let pairs = whole.iter().zip(&second);
        let differing: Vec<&str> = pairs
            .filter(|(one, other)| one != other)
            .map(|(one, _)| one.name.as_str())
            .collect();
        assert!(differing.is_empty(), "{}: {differing:?}", trial.name);
        assert_eq!(whole.len(), second.len());
    }
}
