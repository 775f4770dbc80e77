//! Forward pass, loss and gradients of DFlash, against an independent PyTorch implementation.
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::dflash::{DFlash, DFlashConfig};
use spectrain_models::weights::host_f32;
use spectrain_models::{Drafter as _, Features, TensorWeights};
use spectrain_train::{
    Batch, BlockLoss, BlockLossConfig, Objective as _, Statistics, Train as _, TrainConfig, Trainee,
};

use crate::golden::{assert_close, json, rows, tensors};
use crate::heads_parity::target;

/// The keys of `T` among those of a case.
fn keys<T: serde::de::DeserializeOwned + serde::Serialize + Default>(
    case: &serde_json::Value,
) -> T {
    let mut table = serde_json::to_value(T::default()).unwrap();
    for (key, value) in table.as_object_mut().unwrap() {
        if let Some(given) = case.get(key) {
            *value = given.clone();
        }
    }
    serde_json::from_value(table).unwrap()
}

fn parity(name: &str) {
    let device = Device::flex();
    let golden = tensors("dflash.safetensors");
    let figures = json("dflash.json");
    let case = &figures["cases"][name];
    let target = target(&golden, &device);
    let vocabulary = DraftVocabulary::full(target.spec.vocab);
    let config = DFlashConfig {
        captured_layers: vec![0, 1],
        layers: 2,
        mask_token: figures["mask_token"].as_u64().map(|id| id as u32),
        ..keys(case)
    };
    let named = golden
        .iter()
        .filter_map(|(name, tensor)| Some(tensor.named(name.strip_prefix("parameters.")?)));
    let mut weights = TensorWeights::new(named.collect(), "golden");
    let autodiff = device.clone().autodiff();
    let model = DFlash::new(&config, &target, &vocabulary, &mut weights, &autodiff).unwrap();
    assert!(weights.left().is_empty(), "{:?}", weights.left());

    let seed = figures["seed"].as_u64().unwrap();
    let mut batch = Batch::new(rows(&golden), &device);
    batch.seed = Some(seed);
    batch.features = Some(Features {
        captured: golden["captured"].float(&device),
        last: golden["last"].float(&device),
    });
    let objective = BlockLoss::new(&keys::<BlockLossConfig>(case)).unwrap();
    let anchors = objective.anchors(&batch.rows, config.block_size, seed);
    let expected: Vec<usize> = serde_json::from_value(case["blocks"].clone()).unwrap();
    let found: Vec<usize> = anchors
        .iter()
        .flatten()
        .map(|(anchor, _)| *anchor)
        .collect();
    assert_eq!(found, expected, "{name}: anchors");

    let plain = burn::module::Module::valid(&model);
    let hidden: Tensor<2> = objective.hidden(&plain, &batch, &anchors).flatten(0, 1);
    let logits = host_f32(hidden.matmul(plain.head()));
    let of_block = config.block_size * target.spec.vocab;
    let blocks = anchors.iter().zip(logits.chunks(of_block));
    let logits = blocks.filter(|(anchor, _)| anchor.is_some());
    let expected = golden[&format!("{name}.logits")].f32();
    for (index, ((_, got), expected)) in logits.zip(expected.chunks(of_block)).enumerate() {
        assert_close(
            &format!("{name} logits of block {index}"),
            got,
            expected,
            1e-4,
        );
    }

    let mut trainee = Trainee::drafter(model, objective, TrainConfig::default().optimizer());
    let report = trainee.accumulate(&batch, 1.0, Statistics::All).report();
    let total = case["total"].as_f64().unwrap();
    assert!(
        (report.total - total).abs() < 1e-4 * total,
        "{name}: total {total}, got {}",
        report.total
    );
    for (slot, step) in report.steps.iter().enumerate() {
        let figure = |key: &str| case[key][slot].as_u64().unwrap();
        assert_eq!(step.count as u64, figure("counted"), "{name} slot {slot}");
        assert_eq!(step.correct as u64, figure("right"), "{name} slot {slot}");
    }
    let gradients = trainee.gradients().to_host();
    let prefix = format!("{name}.gradient.");
    let mut compared = 0;
    for (parameter, expected) in &golden {
        let Some(parameter) = parameter.strip_prefix(&prefix) else {
            continue;
        };
        let what = format!("{name} gradient {parameter}");
        assert_close(&what, &gradients[parameter], &expected.transposed(), 1e-4);
        compared += 1;
    }
    assert_eq!(
        compared,
        gradients.len(),
        "{name}: every parameter is compared"
    );
}

#[test]
fn dflash_as_in_the_paper_equals_pytorch() {
    parity("paper");
}

#[test]
fn dflash_with_causal_blocks_and_a_window_taught_by_the_target_equals_pytorch() {
    parity("sliding");
}

#[test]
fn dflash_with_the_targets_favourite_and_the_text_equals_pytorch() {
    parity("favourite");
}

#[test]
fn dflash_weighed_by_reach_equals_pytorch() {
    parity("d-pace");
}

#[test]
fn dflash_judged_up_to_its_first_error_equals_pytorch() {
    parity("auf");
}
