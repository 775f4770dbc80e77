//! The drafter in training and the drafter in the decoder give the same logits for the same prefix: step `j` at index
//! `t` of the unrolled drafter is the decoder's after `t` true features and `j` forced tokens.
use burn::prelude::*;
use spectrain_models::device::test_device;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::unrolls::Unrolls as _;
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Capture, Drafter, Features, RopeScaling, Target as _, TransformerConfig, Tree, forced,
};
use spectrain_train::{
    Batch, FeatureRegression, FeatureRegressionConfig, Objective, TrainingTimeTest,
    TrainingTimeTestConfig,
};

use crate::golden::assert_close;
use crate::tiny;

const STEPS: usize = 4;

/// `unroll` gives the logits of each step over a batch.
fn unrolled_equals_decoding<D: Drafter>(
    config: &D::Config,
    unroll: impl FnOnce(&D, &Batch) -> Vec<Vec<f32>>,
) {
    unrolled_equals_decoding_beside(tiny::config(), config, unroll);
}

/// The same for another target than the usual one.
fn unrolled_equals_decoding_beside<D: Drafter>(
    target: TransformerConfig,
    config: &D::Config,
    unroll: impl FnOnce(&D, &Batch) -> Vec<Vec<f32>>,
) {
    let device = test_device();
    let target = tiny::of(target, &device);
    let drafter: D = tiny::fresh(config, &target, &device);
    let capture = D::capture(config, target.spec()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::random_samples(3);
    let mut source = tiny::live(tiny::samples(folder.path(), &samples, 2), &target, capture);
    let batch = tiny::batch(&mut source);

    let unrolled = unroll(&drafter, &batch);
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
                let mut state = drafter.start(64, tokens[0]);
                let known = features.select(&(0..end).collect::<Vec<_>>());
                drafter.observe(&mut state, &tokens[1..=end], &known);
                let following = &tokens[end + 1..(end + STEPS).min(tokens.len())];
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

/// The logits of a head over hidden states.
fn read_by(head: &Tensor<2>, hidden: Vec<Tensor<2>>) -> Vec<Vec<f32>> {
    let logits = |hidden: Tensor<2>| host_f32(hidden.matmul(head.clone()));
    hidden.into_iter().map(logits).collect()
}

fn eagle3(config: Eagle3Config) {
    eagle3_beside(tiny::config(), config);
}

fn eagle3_beside(target: TransformerConfig, config: Eagle3Config) {
    unrolled_equals_decoding_beside(target, &config, |drafter: &Eagle3, batch| {
        let objective = TrainingTimeTestConfig {
            draft_steps: STEPS,
            ..Default::default()
        };
        let objective = <TrainingTimeTest as Objective<Eagle3>>::new(&objective).unwrap();
        read_by(&drafter.head(), objective.unroll(drafter, batch))
    });
}

#[test]
fn eagle3_training_logits_equal_decoding_logits() {
    eagle3(Eagle3Config::default());
}

#[test]
fn eagle3_1_training_logits_equal_decoding_logits() {
    eagle3(Eagle3Config {
        fc_norm: true,
        norm_output: true,
        norm_before_residual: true,
        ..Default::default()
    });
}

#[test]
fn training_logits_of_heads_of_another_width_than_the_targets_equal_decoding_logits() {
    for d_head in [6, 12] {
        eagle3(Eagle3Config {
            d_head,
            layers: 2,
            head_norm: true,
            ..Default::default()
        });
    }
}

/// Which frequencies a scaling divides depends on the width of a head: on the drafter's.
#[test]
fn training_logits_of_such_heads_equal_decoding_logits_where_positions_are_scaled() {
    let original_max_position_embeddings = 64.0;
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_max_position_embeddings,
        attention_factor: None,
        truncate: true,
    };
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings,
    };
    for scaling in [yarn, llama3] {
        let mut target = tiny::config();
        target.spec.rope.scaling = scaling;
        let config = Eagle3Config {
            d_head: 12,
            ..Default::default()
        };
        eagle3_beside(target, config);
    }
}

/// Windows that reach behind the draft, to its first step, and not even there.
#[test]
fn sliding_eagle3_training_logits_equal_decoding_logits() {
    for window in [6, 4, 2, 1] {
        eagle3(Eagle3Config {
            window,
            ..Default::default()
        });
    }
}

/// HASS's passes too: the first of them is EAGLE-1's.
#[test]
fn eagle1_training_logits_equal_decoding_logits() {
    for (bias, qkv_bias, d_head) in [
        (false, false, 0),
        (true, false, 0),
        (false, false, 6),
        (false, true, 0),
    ] {
        let config = Eagle1Config {
            bias,
            qkv_bias,
            d_head,
            ..Default::default()
        };
        unrolled_equals_decoding(&config, |drafter: &Eagle1, batch| {
            let objective = FeatureRegressionConfig {
                passes: STEPS,
                ..Default::default()
            };
            let objective = FeatureRegression::new(&objective).unwrap();
            read_by(&drafter.head(), objective.unroll(drafter, batch))
        });
    }
}

#[test]
fn eagle1_gives_a_node_of_a_tree_the_logits_of_its_path() {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: Eagle1 = tiny::fresh(&Eagle1Config::default(), &target, &device);
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(1), 1);
    let batch = tiny::batch(&mut tiny::live(samples, &target, Capture::default()));
    let features = batch.features.unwrap();
    let mut state = drafter.start(4, 0);
    drafter.observe(
        &mut state,
        &batch.rows.tokens[1..7],
        &features.select(&(0..6).collect::<Vec<_>>()),
    );
    // Two children of the root, three of theirs, one of the last.
    let tree = Tree {
        tokens: vec![5, 6, 7, 8, 9, 10],
        parents: vec![None, None, Some(1), Some(0), Some(1), Some(4)],
    };
    for _ in 0..2 {
        let levels: [&[usize]; 3] = [&[0, 1], &[2, 3, 4], &[5]];
        let mut logits = vec![host_f32(drafter.root_logits(&mut state))];
        for nodes in levels {
            let of_level = host_f32(drafter.node_logits(&mut state, &tree, nodes));
            logits.extend(of_level.chunks(tiny::VOCAB).map(<[f32]>::to_vec));
        }
        drafter.rewind(&mut state);
        let paths: [&[u32]; 4] = [&[5, 8], &[6, 7], &[6, 9, 10], &[]];
        let nodes: [&[usize]; 4] = [&[0, 3], &[1, 2], &[1, 4, 5], &[]];
        for (path, nodes) in paths.into_iter().zip(nodes) {
            let along = forced(&drafter, &mut state, path);
            assert_close("root", &logits[0], &along[0], 1e-6);
            for (&node, expected) in nodes.iter().zip(&along[1..]) {
                assert_close(&format!("node {node}"), &logits[1 + node], expected, 1e-5);
            }
        }
    }
}
