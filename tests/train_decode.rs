//! The drafter in training and the drafter in the decoder give the same logits for the same prefix: step `j` at index
//! `t` of the unrolled drafter is the decoder's after `t` true features and `j` forced tokens.
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle3::Eagle3Config;
use spectrain_models::weights::host_f32;
use spectrain_models::{Drafter, Features, forced};
use spectrain_train::{Objective, TrainingTimeTest, TrainingTimeTestConfig};

use crate::golden::assert_close;
use crate::tiny;

fn unrolled_equals_decoding(config: Eagle3Config) {
    let device = Device::flex();
    let target = tiny::target(&device);
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let drafter = tiny::drafter(&config, &target, &vocabulary, &device);
    let capture = tiny::eagle3_capture(&config, &target);
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::random_samples(3);
    let mut source = tiny::live(tiny::samples(folder.path(), &samples, 2), &target, capture);
    let batch = tiny::batch(&mut source);

    let steps = 4;
    let objective = TrainingTimeTest::new(&TrainingTimeTestConfig {
        steps,
        ..Default::default()
    })
    .unwrap();
    let unrolled: Vec<Vec<f32>> = objective
        .unroll(&drafter, &batch)
        .into_iter()
        .map(|normed| host_f32(normed.matmul(drafter.head())))
        .collect();

    let length = batch.rows.layout.row_length;
    let mut compared = 0;
    for (row, packed) in batch.rows.packed.rows.iter().enumerate() {
        let mut start = row * length;
        for &sample in packed {
            let tokens = &samples[sample].tokens;
            let features = batch.features.as_ref().unwrap();
            let of_row = |x: &Tensor<3>| {
                x.clone()
                    .narrow(0, row, 1)
                    .narrow(1, start % length, tokens.len())
            };
            let features = Features {
                captured: of_row(&features.captured),
                last: of_row(&features.last),
            };
            for end in [5, 9] {
                // Features of x_0..x_{end-1}; the drafter also knows x_1..=x_end.
                let mut state = drafter.start(64);
                let known = features.select(&(0..end).collect::<Vec<_>>());
                drafter.observe(&mut state, &tokens[1..=end], &known);
                let following = &tokens[end + 1..(end + steps).min(tokens.len())];
                for (step, logits) in forced(&drafter, &mut state, following).iter().enumerate() {
                    let at = (start + end - 1) * tiny::VOCAB;
                    let expected = &unrolled[step][at..at + tiny::VOCAB];
                    let what = format!("sample {sample}, prefix {end}, step {step}");
                    assert_close(&what, logits, expected, 1e-5);
                    compared += 1;
                }
            }
            start += tokens.len();
        }
    }
    assert!(compared >= 16, "{compared}");
}

#[test]
fn eagle3_training_logits_equal_decoding_logits() {
    unrolled_equals_decoding(Eagle3Config::default());
}

#[test]
fn eagle3_1_training_logits_equal_decoding_logits() {
    unrolled_equals_decoding(Eagle3Config {
        fc_norm: true,
        norm_output: true,
        norm_before_residual: true,
        ..Default::default()
    });
}
