//! Muon's steps against PyTorch's; which parameters of the families it moves.
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use serde_json::Value;
use spectrain_models::device::test_device;
use spectrain_models::weights::{export, host_f32, import};
use spectrain_train::{Gradients, Kind, Mover, Optimizer, OptimizerConfig, TrainConfig};

use crate::golden::{assert_close, json};
use crate::samples::trials;
use crate::tiny;

fn numbers(value: &Value) -> Vec<f32> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap() as f32).collect()
}

/// What PyTorch holds as `[d_out, d_in]`, as `[d_in, d_out]`.
fn matrix(values: &[f32], [d_out, d_in]: [usize; 2]) -> Tensor<2> {
    let flat = Tensor::<1>::from_floats(values, &test_device());
    flat.reshape([d_out, d_in]).transpose()
}

/// The sides of a case's matrix, `[d_out, d_in]`.
fn sides(case: &Value) -> [usize; 2] {
    [0, 1].map(|side| case["shape"][side].as_u64().unwrap() as usize)
}

/// A case's matrix behind its steps, as PyTorch holds it.
fn moved(case: &Value, config: OptimizerConfig, learning_rate: f64) -> Vec<f32> {
    let [d_out, d_in] = sides(case);
    let mut optimizer = Optimizer::new(config);
    let graph = test_device().autodiff();
    let mut linear: Linear = LinearConfig::new(d_in, d_out).with_bias(false).init(&graph);
    linear.weight = linear.weight.map(|_| {
        let weight = matrix(&numbers(&case["weight"]), [d_out, d_in]);
        Tensor::from_data(weight.into_data(), &graph).require_grad()
    });
    for (step, gradient) in case["gradients"].as_array().unwrap().iter().enumerate() {
        // The gradient of Σ gradient ⊙ weight.
        let gradient = matrix(&numbers(gradient), [d_out, d_in]);
        let gradient = Tensor::from_data(gradient.into_data(), &graph);
        let backward = (linear.weight.val() * gradient).sum().backward();
        let mut gradients = Gradients::default();
        gradients.add(&linear, Some(backward), Vec::new());
        if step == 2 {
            // A run that goes on from a saved state goes on alike.
            let (updates, state) = optimizer.state();
            optimizer = Optimizer::new(config);
            optimizer.restore(updates, state, &test_device()).unwrap();
            let weights = export(&linear);
            linear = import(linear, weights, "test").unwrap();
        }
        linear = optimizer.update(linear, gradients, learning_rate);
    }
    host_f32(linear.weight.val().inner().transpose())
}

/// Muon with the golden settings, at a rate that is a multiple of theirs and with a decay that is one over it.
fn muon(golden: &Value, multiple: f64) -> OptimizerConfig {
    let setting = |key: &str| golden["settings"][key].as_f64().unwrap();
    OptimizerConfig {
        matrices: Mover::Muon(setting("momentum")),
        weight_decay: setting("weight_decay") / multiple,
        matrix_rate: multiple,
        ..TrainConfig::default().optimizer()
    }
}

#[test]
fn steps_of_muon_equal_pytorchs() {
    let golden = json("muon.json");
    let rate = golden["settings"]["lr"].as_f64().unwrap();
    for (name, case) in golden["cases"].as_object().unwrap() {
        let moved = moved(case, muon(&golden, 1.0), rate);
        assert_close(name, &moved, &numbers(&case["f32"]), 2e-5);
        assert_close(name, &moved, &numbers(&case["bf16"]), 2e-3);
    }
}

#[test]
fn rates_of_match_rms_adamw_are_multiplied_and_decays_divided_by_0_2_times_the_root_of_the_width() {
    let golden = json("muon.json");
    let rate = golden["settings"]["lr"].as_f64().unwrap();
    for (name, case) in golden["cases"].as_object().unwrap() {
        let [_, width] = sides(case);
        let multiple = 0.2 * (width as f64).sqrt();
        let moved = moved(case, muon(&golden, multiple), rate);
        assert_close(name, &moved, &numbers(&case["matched"]), 2e-5);
    }
}

#[test]
fn tables_of_tokens_are_known_as_such_in_every_recipe() {
    // No other side is as long as the vocabulary.
    let mut config = tiny::config();
    config.spec.d_ff = 44;
    let target = tiny::of(config, &test_device());
    for trial in trials() {
        let trainee = trial.trainee(&target, &test_device().autodiff());
        let mut matrices = 0;
        for tensor in trainee.weights() {
            let kind = Kind::of(&tensor.name, &tensor.shape);
            let of_tokens = tensor.shape.contains(&tiny::VOCAB);
            assert_eq!(
                kind == Kind::Table,
                of_tokens,
                "{}: `{}` {:?}",
                trial.name,
                tensor.name,
                tensor.shape
            );
            matrices += usize::from(kind == Kind::Matrix);
        }
        assert!(matrices > 0, "{}", trial.name);
    }
}
