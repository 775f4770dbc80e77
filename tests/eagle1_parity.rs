//! EAGLE-1's and HASS's forward passes, losses and gradients, against an independent PyTorch implementation in the
//! papers' coordinates: row `r` of its pass `m` is index `r - m` of step `m` here.
use burn::module::Module as _;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::weights::host_f32;
use spectrain_train::{FeatureRegression, FeatureRegressionConfig, Objective};

use crate::parity::Case;

/// The settings of a case, from the keys that its script wrote.
fn settings(case: &serde_json::Value) -> FeatureRegressionConfig {
    let keys = [
        "passes",
        "detach",
        "mask_align",
        "divergence",
        "class_weight",
        "top_k",
        "top_k_weight",
    ];
    let mut table = serde_json::Map::new();
    for key in keys {
        table.insert(key.into(), case[key].clone());
    }
    table.insert(
        "noise".into(),
        serde_json::json!({ "std": case["noise_std"], "length_ref": case["noise_length_ref"] }),
    );
    serde_json::from_value(table.into()).unwrap()
}

fn parity(name: &str) {
    let mut case = Case::read("eagle1", name, |spec| spec.layers = 4);
    case.batch.seed = case.all["sizes"]["seed"].as_u64();
    assert!(case.batch.seed.is_some());
    let bias = case.figures["bias"].as_bool().unwrap();
    let config = Eagle1Config {
        bias,
        ..Default::default()
    };
    let not: &[&str] = if bias {
        &["embed_tokens."]
    } else {
        &["embed_tokens.", "fc.bias"]
    };
    let vocabulary = DraftVocabulary::full(case.target.spec.vocab);
    let model: Eagle1 = case.drafter(&config, &vocabulary, not);
    let objective = FeatureRegression::new(&settings(&case.figures)).unwrap();

    let predicted = objective.unroll(&model.valid(), &case.batch);
    // A judged row lies at least as far into its document as the pass is late.
    let compare = |(pass, found)| case.expect_judged("predicted", pass, &host_f32(found), pass);
    let compared: usize = predicted.into_iter().enumerate().map(compare).sum();
    assert!(compared >= 16, "{compared}");

    let (report, gradients) = case.step(model, objective);
    assert_eq!(
        Some(report.steps.len() as u64),
        case.figures["passes"].as_u64()
    );
    case.expect_counts(&report.steps);
    for (pass, found) in report.steps.iter().enumerate() {
        let class = found.loss / found.count as f64;
        case.expect(
            &format!("class of pass {pass}"),
            class,
            &case.figures["class"][pass],
        );
    }
    case.expect_every_gradient(&gradients);
}

#[test]
fn eagle1_with_noise_by_sample_length_equals_pytorch() {
    parity("eagle1");
}

#[test]
fn the_reference_codes_eagle1_with_a_bias_equals_pytorch() {
    parity("bias");
}

#[test]
fn hass_equals_pytorch_in_its_own_coordinates() {
    parity("hass");
}

#[test]
fn passes_that_are_not_detached_equal_pytorch() {
    parity("attached");
}
