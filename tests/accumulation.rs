//! What counts how much: gradients of batches that count differently much average to those of one batch that holds them all, a
//! training in which nothing counts ends, and validations weigh draft steps alike whatever a training does.
use spectrain_data::Sample;
use spectrain_data::packing::PackedBatch;
use spectrain_models::device::test_device;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::{Capture, FreshConfig};
use spectrain_train::{
    BatchSource as _, Distill, DistillConfig, Error, FitSummary, Objective, Reduction, Statistics,
    Step, StepWeights, Train as _, TrainConfig, Trainee, TrainingTimeTest, TrainingTimeTestConfig,
};

use crate::golden::assert_close;
use crate::tiny;

/// Two rows of one text each, of which one has a long reply and the other a short one.
fn texts() -> Vec<Sample> {
    let mut texts = tiny::random_samples(2);
    for (text, replied) in texts.iter_mut().zip([9, 2]) {
        let from = text.tokens.len() - replied;
        text.loss_mask = (0..text.tokens.len()).map(|at| at >= from).collect();
    }
    texts
}

#[test]
fn batches_count_by_the_positions_that_count_in_them() {
    let device = test_device();
    let target = tiny::target(&device);
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &texts(), 2);
    let mut source = tiny::live(samples, &target, Capture::default());
    let config = LanguageModelConfig {
        fresh: Some(FreshConfig::default()),
        ..Default::default()
    };
    let mut gradients = |batches: &[&[usize]]| {
        let drafter: LanguageModel = tiny::fresh(&config, &target, &device.clone().autodiff());
        let objective = Distill::new(&DistillConfig::default()).unwrap();
        let mut trainee = Trainee::drafter(drafter, objective, TrainConfig::default().optimizer());
        for rows in batches {
            let rows = rows.iter().map(|&sample| vec![sample]).collect();
            let batch = source.batch(PackedBatch { rows }).unwrap();
            trainee.accumulate_as_measured(&batch, Statistics::Loss);
        }
        trainee.gradients().to_host()
    };
    let together = gradients(&[&[0, 1]]);
    let apart = gradients(&[&[0], &[1]]);
    assert_eq!(
        together.keys().collect::<Vec<_>>(),
        apart.keys().collect::<Vec<_>>()
    );
    for (name, expected) in &together {
        assert_close(name, &apart[name], expected, 1e-5);
    }
    // The mean of the two means is something else.
    let (long, short) = (gradients(&[&[0]]), gradients(&[&[1]]));
    let name = "model.norm.weight";
    let halves: Vec<f32> = (long[name].iter().zip(&short[name]))
        .map(|(a, b)| (a + b) / 2.0)
        .collect();
    let far = halves
        .iter()
        .zip(&together[name])
        .any(|(a, b)| (a - b).abs() > 1e-4);
    assert!(far, "{halves:?} {:?}", together[name]);
}

/// EAGLE-3 in training with this objective.
fn eagle3(config: &TrainingTimeTestConfig) -> Trainee<Eagle3, TrainingTimeTest> {
    let target = tiny::target(&test_device());
    let graph = test_device().autodiff();
    let drafter: Eagle3 = tiny::fresh(&Eagle3Config::default(), &target, &graph);
    let objective = <TrainingTimeTest as Objective<Eagle3>>::new(config).unwrap();
    Trainee::drafter(drafter, objective, TrainConfig::default().optimizer())
}

/// Trains EAGLE-3 for 12 steps on replies of so many tokens.
fn trained_on_replies_of(replied: usize, reduction: Reduction) -> Result<FitSummary, Error> {
    let target = tiny::target(&test_device());
    let mut texts = tiny::random_samples(9);
    for text in &mut texts {
        text.loss_mask = (0..text.tokens.len())
            .map(|at| (5..5 + replied).contains(&at))
            .collect();
    }
    let tokens = tempfile::tempdir().unwrap();
    let samples = tiny::samples(tokens.path(), &texts, 2);
    let capture = tiny::eagle3_capture(&Eagle3Config::default(), &target);
    let mut trainee = eagle3(&TrainingTimeTestConfig {
        draft_steps: 2,
        reduction,
        ..Default::default()
    });
    let settings = TrainConfig {
        steps: 12,
        batch_tokens: 128,
        warmup_steps: 2,
        log_every: 2,
        ..TrainConfig::default()
    };
    tiny::trained(&mut trainee, &settings, samples, (&target, capture))
}

#[test]
fn a_training_in_which_nothing_counts_ends_whatever_losses_are_divided_by() {
    for reduction in [Reduction::Counted, Reduction::All] {
        // Of one token there is nothing to draft after it.
        match trained_on_replies_of(1, reduction) {
            Err(Error::NothingCounted { step, steps, .. }) => assert_eq!((step, steps), (10, 10)),
            other => panic!("{reduction:?}: {other:?}"),
        }
        let summary = trained_on_replies_of(4, reduction).unwrap();
        assert_eq!(summary.steps, 12, "{reduction:?}");
    }
}

#[test]
fn validations_weigh_draft_steps_by_the_decay_whatever_training_does() {
    let target = tiny::target(&test_device());
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(3), 2);
    let capture = tiny::eagle3_capture(&Eagle3Config::default(), &target);
    let batch = tiny::batch(&mut tiny::live(samples, &target, capture));
    let losses = |step_weights| {
        let mut trainee = eagle3(&TrainingTimeTestConfig {
            draft_steps: 3,
            step_weights,
            ..Default::default()
        });
        let measured = trainee.measure(&batch).total;
        let batch = batch.clone().in_training(1, Step { number: 0, of: 1 });
        let trained = trainee.accumulate(&batch, Statistics::All).report().total;
        [measured, trained]
    };
    let [measured, trained] = losses(StepWeights::Decay);
    for step_weights in [StepWeights::Reach, StepWeights::Passes] {
        let found = losses(step_weights);
        assert_eq!(found[0], measured, "{step_weights:?}");
        assert!((found[1] - trained).abs() > 1e-3, "{step_weights:?}");
    }
}
