//! Forward pass, loss and gradients of DFlash, against an independent PyTorch implementation.
use burn::prelude::*;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::Drafter as _;
use spectrain_models::dflash::{Context, DFlash, DFlashConfig, MarkovKind};
use spectrain_models::weights::{export, host_f32};
use spectrain_train::{Batch, BlockLoss, BlockLossConfig, Objective as _, Step};

use crate::golden::assert_close;
use crate::heads_parity::sizes;
use crate::parity::Case;

/// The keys of `T` among those of a case.
fn keys<T: DeserializeOwned + JsonSchema>(case: &Value) -> T {
    let schema = SchemaGenerator::default().into_root_schema_for::<T>();
    let known = schema.get("properties").unwrap().as_object().unwrap();
    let given = |key: &String| Some((key.clone(), case.get(key)?.clone()));
    serde_json::from_value(known.keys().filter_map(given).collect()).unwrap()
}

/// Logits and guesses of every slot of some blocks, on the host.
struct Slots {
    logits: Vec<f32>,
    guesses: Option<Vec<f32>>,
}

fn slots(model: &DFlash, objective: &BlockLoss, batch: &Batch, anchors: &Anchors) -> Slots {
    let slots = model.config().slots();
    let filled = model.slots(objective.hidden(model, batch, anchors));
    let hidden = filled.hidden.clone();
    let known = anchors.iter().map(|anchor| anchor.map_or(0, |(at, _)| at));
    let before = known.flat_map(|at| (at..at + slots).map(|at| batch.rows.tokens.get(at)));
    let before: Vec<i64> = before
        .map(|token| token.map_or(0, |&token| token as i64))
        .collect();
    let before = Tensor::<1, Int>::from_ints(before.as_slice(), &hidden.device())
        .reshape([anchors.len(), slots]);
    let read: Tensor<2> = model.widened(&filled, before.clone()).flatten(0, 1);
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

fn drafter(case: &Case) -> DFlash {
    let config: DFlashConfig = keys(&case.figures);
    let config = DFlashConfig {
        // A case has the width of a unit that its bias may be without.
        markov_state: match config.markov {
            MarkovKind::Domino => config.markov_state,
            _ => DFlashConfig::default().markov_state,
        },
        captured_layers: match config.context {
            Context::Features => vec![0, 1],
            Context::Tokens => Vec::new(),
        },
        layers: 2,
        mask_token: case.all["mask_token"].as_u64().map(|id| id as u32),
        ..config
    };
    let vocabulary = DraftVocabulary::full(case.target.spec.vocab);
    case.drafter(&config, &vocabulary, &[])
}

/// Compares where the blocks start.
fn anchors_agree(case: &Case, objective: &BlockLoss, block_size: usize) -> Anchors {
    let anchors = objective.anchors(&case.batch.rows, block_size, case.batch.seed.unwrap());
    let expected: Vec<usize> = serde_json::from_value(case.figures["blocks"].clone()).unwrap();
    let found = anchors.iter().flatten().map(|(anchor, _)| *anchor);
    assert_eq!(
        found.collect::<Vec<_>>(),
        expected,
        "{}: anchors",
        case.name
    );
    anchors
}

/// Compares logits and, where the case has them, guesses.
fn slots_agree(case: &Case, found: &Slots, anchors: &Anchors) {
    let name = &case.name;
    let expected = case.tensor("logits").f32();
    assert_blocks(&format!("{name} logits"), &found.logits, &expected, anchors);
    let expected = case.golden.get(&format!("{name}.guesses"));
    assert_eq!(found.guesses.is_some(), expected.is_some());
    if let (Some(found), Some(expected)) = (&found.guesses, expected) {
        assert_blocks(&format!("{name} guesses"), found, &expected.f32(), anchors);
    }
}

fn parity(file: &str, name: &str) {
    let mut case = Case::read(file, name, sizes);
    case.batch.seed = case.all["seed"].as_u64();
    let step = case.figures["step"].as_array().cloned();
    if let [number, of] = step.unwrap_or_default().as_slice() {
        let [number, of] = [number, of].map(|count| count.as_u64().unwrap() as usize);
        case.batch.step = Some(Step { number, of });
    }
    let model = drafter(&case);
    let objective = BlockLoss::new(&keys::<BlockLossConfig>(&case.figures)).unwrap();
    let anchors = anchors_agree(&case, &objective, model.config().block_size);
    let plain = burn::module::Module::valid(&model);
    slots_agree(
        &case,
        &slots(&plain, &objective, &case.batch, &anchors),
        &anchors,
    );

    let (report, gradients) = case.step(model, objective);
    case.expect_counts(&report.steps);
    let right: Vec<u64> = report
        .steps
        .iter()
        .map(|step| step.correct as u64)
        .collect();
    assert_eq!(serde_json::json!(right), case.figures["right"], "{name}");
    let parameters = export(&plain).len();
    assert_eq!(gradients.len(), parameters, "{name}: all have gradients");
    let compared = case.expect_gradients(&gradients);
    assert!(
        compared == parameters || (file != "dflash" && compared >= 4),
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
fn dflash_with_windows_in_some_layers_equals_pytorch() {
    parity("dflash", "mixed");
    parity("dflash", "mixed-causal");
}

#[test]
fn domino_in_the_midst_of_its_curriculum_equals_pytorch() {
    parity("dflash-parts", "domino");
    parity("dflash-parts", "domino-target");
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
fn dflash_2_weighed_by_reach_and_with_a_guess_of_what_it_chooses_equals_pytorch() {
    parity("dflash-parts", "dflash-2-pace");
    parity("dflash-parts", "dflash-2-sure");
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
fn dflash_with_sinks_and_a_window_equals_pytorch() {
    parity("dflash-parts", "sinks");
}

#[test]
fn dflash_with_some_tokens_masked_equals_pytorch() {
    parity("dflash-parts", "some");
    parity("dflash-parts", "some-from-anchor");
}

#[test]
fn dflash_with_shorter_blocks_and_rising_weights_equals_pytorch() {
    parity("dflash-parts", "last");
    parity("dflash-parts", "last-from-anchor");
}

/// Losses and gradients against the library's own classes; what is right is what is so in the draft of a decoder, whose passes leave
/// some tokens unsettled.
#[test]
fn xpress_equals_the_speculators_library() {
    parity("xpress", "xpress");
    parity("xpress", "xpress-kl");
}

/// Losses and gradients by PyTorch, whose scores of paths are those of vLLM's class.
#[test]
fn lilicorr_equals_pytorch_and_vllm() {
    parity("lilicorr", "lilicorr");
    parity("lilicorr", "lilicorr-margin");
}
