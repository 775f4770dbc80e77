//! Forward pass, loss and gradients of DFlash, against an independent PyTorch implementation.
use std::collections::BTreeMap;

use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::dflash::{Context, DFlash, DFlashConfig};
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

/// Logits and guesses of every slot of some blocks, on the host.
struct Slots {
    logits: Vec<f32>,
    guesses: Option<Vec<f32>>,
}

fn slots(model: &DFlash, objective: &BlockLoss, batch: &Batch, anchors: &Anchors) -> Slots {
    let (slots, first) = (model.config().slots(), model.config().first_slot());
    let hidden = objective.hidden(model, batch, anchors);
    let hidden = hidden.narrow(1, first, slots);
    let known = anchors.iter().map(|anchor| anchor.map_or(0, |(at, _)| at));
    let before = known.flat_map(|at| (at..at + slots).map(|at| batch.rows.tokens.get(at)));
    let before: Vec<i64> = before
        .map(|token| token.map_or(0, |&token| token as i64))
        .collect();
    let before = Tensor::<1, Int>::from_ints(before.as_slice(), &hidden.device())
        .reshape([anchors.len(), slots]);
    let read: Tensor<2> = model.widened(hidden.clone(), before.clone()).flatten(0, 1);
    Slots {
        logits: host_f32(read.matmul(model.head())),
        guesses: model.confidence_logits(hidden, before).map(host_f32),
    }
}

type Anchors = Vec<Option<(usize, usize)>>;

/// Compares what is known of the blocks that do not only fill up.
fn assert_blocks(what: &str, got: &[f32], expected: &[f32], anchors: &Anchors) {
    let of_block = got.len() / anchors.len();
    let blocks = anchors.iter().zip(got.chunks(of_block));
    let blocks: Vec<_> = blocks.filter(|(anchor, _)| anchor.is_some()).collect();
    assert_eq!(blocks.len() * of_block, expected.len(), "{what}");
    for (index, ((_, got), expected)) in blocks.iter().zip(expected.chunks(of_block)).enumerate() {
        assert_close(&format!("{what} of block {index}"), got, expected, 1e-4);
    }
}

fn parity(file: &str, name: &str) {
    let device = Device::flex();
    let golden = tensors(&format!("{file}.safetensors"));
    let figures = json(&format!("{file}.json"));
    let case = &figures["cases"][name];
    let target = target(&golden, &device);
    let vocabulary = DraftVocabulary::full(target.spec.vocab);
    let config: DFlashConfig = keys(case);
    let config = DFlashConfig {
        captured_layers: match config.context {
            Context::Features => vec![0, 1],
            Context::Tokens => Vec::new(),
        },
        layers: 2,
        mask_token: figures["mask_token"].as_u64().map(|id| id as u32),
        ..config
    };
    // A case's own parameters are beside those that all share, and may be other ones.
    let own = format!("{name}.parameters.");
    let mut named = BTreeMap::new();
    for prefix in ["parameters.", &own] {
        for (name, tensor) in &golden {
            if let Some(name) = name.strip_prefix(prefix) {
                named.insert(name.to_owned(), tensor.named(name));
            }
        }
    }
    let mut weights = TensorWeights::new(named.into_values().collect(), "golden");
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
    let found = slots(&plain, &objective, &batch, &anchors);
    let expected = golden[&format!("{name}.logits")].f32();
    assert_blocks(
        &format!("{name} logits"),
        &found.logits,
        &expected,
        &anchors,
    );
    let expected = golden.get(&format!("{name}.guesses"));
    assert_eq!(found.guesses.is_some(), expected.is_some());
    if let (Some(found), Some(expected)) = (found.guesses, expected) {
        assert_blocks(
            &format!("{name} guesses"),
            &found,
            &expected.f32(),
            &anchors,
        );
    }

    let mut trainee = Trainee::drafter(model, objective, TrainConfig::default().optimizer());
    let report = trainee.accumulate(&batch, Statistics::All).report();
    let total = case["total"].as_f64().unwrap();
    assert!(
        (report.total - total).abs() < 1e-4 * total,
        "{name}: total {total}, found {}",
        report.total
    );
    for (slot, step) in report.steps.iter().enumerate() {
        let figure = |key: &str| case[key][slot].as_u64().unwrap();
        assert_eq!(step.count as u64, figure("counted"), "{name} slot {slot}");
        assert_eq!(step.correct as u64, figure("right"), "{name} slot {slot}");
    }
    let gradients = trainee.gradients().to_host();
    let parameters = spectrain_models::weights::export(&plain).len();
    assert_eq!(gradients.len(), parameters, "{name}: all have gradients");
    let prefix = format!("{name}.gradient.");
    let mut compared = 0;
    for (parameter, expected) in &golden {
        let Some(parameter) = parameter.strip_prefix(&prefix) else {
            continue;
        };
        let what = format!("{name} gradient {parameter}");
        // Of linear layers, the module holds the transpose.
        let codes = parameter.ends_with("codebook") || parameter.ends_with("markov_w1.weight");
        let expected = match codes {
            true => expected.f32(),
            false => expected.transposed(),
        };
        assert_close(&what, &gradients[parameter], &expected, 1e-4);
        compared += 1;
    }
    assert!(
        compared == parameters || (file == "dflash-parts" && compared >= 4),
        "{name}: {compared} of {parameters} compared"
    );
}

#[test]
fn dflash_as_in_the_paper_equals_pytorch() {
    parity("dflash", "paper");
}

#[test]
fn dflash_with_causal_blocks_and_a_window_taught_by_the_target_equals_pytorch() {
    parity("dflash", "sliding");
}

#[test]
fn dflash_with_the_targets_favourite_and_the_text_equals_pytorch() {
    parity("dflash", "favourite");
}

#[test]
fn dflash_weighed_by_reach_equals_pytorch() {
    parity("dflash", "d-pace");
}

#[test]
fn dflash_judged_up_to_its_first_error_equals_pytorch() {
    parity("dflash", "auf");
}

#[test]
fn dflash_2_equals_pytorch() {
    parity("dflash-parts", "dflash-2");
}

#[test]
fn dflash_2_without_slots_whose_token_is_no_candidate_equals_pytorch() {
    parity("dflash-parts", "dflash-2-excluding");
}

#[test]
fn dspark_equals_pytorch() {
    parity("dflash-parts", "dspark");
}

#[test]
fn dspark_with_a_gate_equals_pytorch() {
    parity("dflash-parts", "dspark-gated");
}

#[test]
fn dspark_with_a_recurrent_head_equals_pytorch() {
    parity("dflash-parts", "dspark-rnn");
}

#[test]
fn dflash_over_tokens_with_a_guess_equals_pytorch() {
    parity("dflash-parts", "tokens");
}

#[test]
fn dflash_with_some_tokens_masked_equals_pytorch() {
    parity("dflash-parts", "some");
    parity("dflash-parts", "some-from-anchor");
}

#[test]
fn dflash_with_shorter_blocks_and_rising_weights_equals_pytorch() {
    parity("dflash-parts", "last");
}
