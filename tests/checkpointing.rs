//! Gradient checkpointing computes activations again; it must not change what is learnt.
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_train::{
    Objective, Statistics, Train, TrainConfig, Trainee, TrainingTimeTest, TrainingTimeTestConfig,
};

use crate::golden::assert_close;
use crate::tiny;

#[test]
fn gradients_are_the_same_with_and_without_checkpointing() {
    let device = test_device();
    let target = tiny::target(&device);
    let config = Eagle3Config::default();
    let capture = tiny::eagle3_capture(&config, &target);
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(3), 2);
    let batch = tiny::batch(&mut tiny::live(samples, &target, capture));
    let gradients = |graph: Device| {
        let objective = TrainingTimeTestConfig::default();
        let objective = <TrainingTimeTest as Objective<Eagle3>>::new(&objective).unwrap();
        let vocabulary = DraftVocabulary::full(tiny::VOCAB);
        let drafter: Eagle3 = tiny::drafter(&config, &target, &vocabulary, &graph);
        let mut trainee = Trainee::drafter(drafter, objective, TrainConfig::default().optimizer());
        trainee.accumulate_as_measured(&batch, Statistics::Loss);
        let gradients = trainee.gradients().to_host();
        // The strategy must outlive an update.
        trainee.update(1e-3, 0.5);
        trainee.accumulate_as_measured(&batch, Statistics::Loss);
        (gradients, trainee.gradients().to_host())
    };
    let plain = gradients(device.clone().autodiff());
    let recomputed = gradients(device.autodiff().gradient_checkpointing());
    for (plain, recomputed) in [(plain.0, recomputed.0), (plain.1, recomputed.1)] {
        assert_eq!(plain.len(), recomputed.len());
        for (name, expected) in plain {
            assert_close(&name, &recomputed[&name], &expected, 1e-5);
        }
    }
}
