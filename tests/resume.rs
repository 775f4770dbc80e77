//! A run that is cut in half and taken up again ends bitwise where an uncut one does.
use std::path::Path;

use burn::prelude::*;
use spectrain_checkpoints::{NamedTensor, state};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle3::Eagle3Config;
use spectrain_train::{
    Fit, FitSummary, Objective, Train, TrainConfig, Trainee, TrainingTimeTest,
    TrainingTimeTestConfig, Validation, fit,
};

use crate::tiny;

fn train(folder: &Path, stop_after: usize) -> (FitSummary, Vec<NamedTensor>) {
    let device = Device::flex();
    let target = tiny::target(&device);
    let config = Eagle3Config::default();
    let capture = tiny::eagle3_capture(&config, &target);
    let objective = TrainingTimeTestConfig {
        steps: 2,
        ..Default::default()
    };
    let objective = TrainingTimeTest::new(&objective).unwrap();
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let drafter = tiny::drafter(&config, &target, &vocabulary, &device.clone().autodiff());
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

#[test]
fn half_a_run_and_its_other_half_equal_a_whole_one_bitwise() {
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
fn the_state_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), 3);
    let saved = state::latest(folder.path()).unwrap().unwrap();
    let file = saved.path.join("state.json");
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("\"identity\":\"test\"", "\"identity\":\"other\"");
    let text = text.replace("\"identity\": \"test\"", "\"identity\": \"other\"");
    std::fs::write(&file, text).unwrap();
    let outcome = std::panic::catch_unwind(|| train(folder.path(), usize::MAX));
    assert!(
        outcome.is_err(),
        "a state with another identity must not be taken up"
    );
}
