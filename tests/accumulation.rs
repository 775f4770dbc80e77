//! Gradients of batches that count differently much average to those of one batch that holds them all.
use spectrain_data::Sample;
use spectrain_data::packing::PackedBatch;
use spectrain_models::device::test_device;
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::{Capture, FreshConfig};
use spectrain_train::{
    BatchSource as _, Distill, DistillConfig, Objective as _, Statistics, Train as _, TrainConfig,
    Trainee,
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
            trainee.accumulate(&batch, Statistics::Loss);
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
