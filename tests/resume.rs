//! A run that is cut in half and taken up again ends bitwise where an uncut one does.
use std::path::Path;

use burn::prelude::*;
use spectrain_checkpoints::{NamedTensor, state};
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::{Drafter, FreshConfig, Target as _};
use spectrain_train::{
    Distill, DistillConfig, FeatureRegression, FeatureRegressionConfig, Fit, FitSummary, Noise,
    Objective, OnPolicy, OnPolicyConfig, PardLoss, PardLossConfig, Train, TrainConfig, Trainee,
    TrainingTimeTest, TrainingTimeTestConfig, Validation, fit,
};

use crate::tiny;

type Trained = (FitSummary, Vec<NamedTensor>);

fn eagle3(folder: &Path, stop_after: usize) -> Trained {
    let objective = TrainingTimeTestConfig {
        steps: 2,
        ..Default::default()
    };
    let config = Eagle3Config::default();
    train::<Eagle3, TrainingTimeTest>(&config, &objective, folder, stop_after)
}

fn noisy(noise: Noise, folder: &Path, stop_after: usize) -> Trained {
    let objective = FeatureRegressionConfig {
        noise,
        ..Default::default()
    };
    let config = Eagle1Config::default();
    train::<Eagle1, FeatureRegression>(&config, &objective, folder, stop_after)
}

fn on_policy(fraction: f64, folder: &Path, stop_after: usize) -> Trained {
    let config = LanguageModelConfig {
        fresh: Some(FreshConfig::default()),
        ..Default::default()
    };
    let objective = DistillConfig {
        on_policy: OnPolicyConfig {
            fraction,
            ..Default::default()
        },
        ..Default::default()
    };
    train::<LanguageModel, Distill>(&config, &objective, folder, stop_after)
}

fn dropped(folder: &Path, stop_after: usize) -> Trained {
    let config = PardConfig {
        fresh: Some(FreshConfig::default()),
        mask_token: Some(47),
        target_features: true,
        ..Default::default()
    };
    let objective = PardLossConfig {
        feature_dropout: 0.5,
        ..Default::default()
    };
    train::<Pard, PardLoss>(&config, &objective, folder, stop_after)
}

fn train<D, O>(
    config: &D::Config,
    objective: &O::Config,
    folder: &Path,
    stop_after: usize,
) -> Trained
where
    D: Drafter + 'static,
    O: Objective<D>,
{
    let device = Device::flex();
    let target = tiny::target(&device);
    let capture = D::capture(config, target.spec()).unwrap();
    let objective = O::new(objective).unwrap();
    let drafter: D = tiny::fresh(config, &target, &device.clone().autodiff());
    let settings = TrainConfig {
        steps: 10,
        batch_tokens: 128,
        accumulate: 2,
        warmup: 2,
        log_every: 2,
        validate_every: 4,
        save_every: 3,
        ..TrainConfig::default()
    };
    let tokens = tempfile::tempdir().unwrap();
    let samples = tiny::samples(tokens.path(), &tiny::random_samples(9), 2);
    let mut trainee = Trainee::drafter(drafter, objective, settings.optimizer());
    let judge = tiny::live(samples.clone(), &target, capture.clone());
    let done = std::cell::Cell::new(0);
    let summary = fit(
        &mut trainee,
        Fit {
            config: &settings,
            source: Box::new(tiny::live(samples.clone(), &target, capture)),
            samples,
            folder: folder.to_owned(),
            identity: "test".into(),
            interrupted: &|| {
                done.set(done.get() + 1);
                done.get() >= stop_after
            },
            on_policy: Some(OnPolicy {
                stop: &[5],
                judge: &|rows| judge.judge(rows),
            }),
            validate: &mut |_, step| {
                Ok(Validation {
                    loss: 1.0 / step as f64,
                    ..Validation::default()
                })
            },
            memory: &|| None,
        },
    )
    .unwrap();
    (summary, trainee.weights())
}

fn halves_equal_the_whole(train: impl Fn(&Path, usize) -> Trained) {
    let whole = tempfile::tempdir().unwrap();
    let halves = tempfile::tempdir().unwrap();
    let (summary, expected) = train(whole.path(), usize::MAX);
    assert_eq!((summary.steps, summary.interrupted), (10, false));
    let (summary, _) = train(halves.path(), 5);
    assert_eq!((summary.steps, summary.interrupted), (5, true));
    let (summary, got) = train(halves.path(), usize::MAX);
    assert_eq!((summary.steps, summary.interrupted), (10, false));
    assert_eq!(got, expected);
    let saved: Vec<u64> = state::list(halves.path())
        .unwrap()
        .iter()
        .map(|saved| saved.step)
        .collect();
    assert!(saved.contains(&10) && saved.len() <= 3, "{saved:?}");
}

#[test]
fn half_a_run_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(eagle3);
}

#[test]
fn half_a_run_with_noise_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(|folder, stop_after| noisy(Noise::default(), folder, stop_after));
}

#[test]
fn half_a_run_on_texts_of_its_own_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(|folder, stop_after| on_policy(0.5, folder, stop_after));
}

#[test]
fn half_a_run_with_dropped_rows_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(dropped);
}

#[test]
fn texts_of_its_own_change_what_is_learnt() {
    let weights = |fraction| on_policy(fraction, tempfile::tempdir().unwrap().path(), usize::MAX).1;
    let (none, half, all) = (weights(0.0), weights(0.5), weights(1.0));
    assert!(none != half && half != all);
}

#[test]
fn noise_changes_what_is_learnt() {
    let weights = |noise| noisy(noise, tempfile::tempdir().unwrap().path(), usize::MAX).1;
    let silent = Noise {
        std: 0.0,
        ..Noise::default()
    };
    assert_ne!(weights(silent), weights(Noise::default()));
}

#[test]
fn the_state_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    eagle3(folder.path(), 3);
    let saved = state::latest(folder.path()).unwrap().unwrap();
    let file = saved.path.join("state.json");
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("\"identity\":\"test\"", "\"identity\":\"other\"");
    let text = text.replace("\"identity\": \"test\"", "\"identity\": \"other\"");
    std::fs::write(&file, text).unwrap();
    let outcome = std::panic::catch_unwind(|| eagle3(folder.path(), usize::MAX));
    assert!(
        outcome.is_err(),
        "a state with another identity must not be taken up"
    );
}
