//! EAGLE-3's unrolled forward pass, loss and gradients, against an independent PyTorch implementation.
use burn::module::Module as _;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::unrolls::Unrolls as _;
use spectrain_models::weights::host_f32;
use spectrain_train::{
    Divergence, MaskAlign, Objective, OutOfVocab, Reduction, TrainingTimeTest,
    TrainingTimeTestConfig,
};

use crate::parity::Case;

fn parity(name: &str, drafter: Eagle3Config, objective: TrainingTimeTestConfig) {
    for recompute in [true, false] {
        let objective = TrainingTimeTestConfig {
            recompute,
            ..objective.clone()
        };
        parity_of_one(name, &drafter, &objective);
    }
}

fn parity_of_one(name: &str, drafter: &Eagle3Config, objective: &TrainingTimeTestConfig) {
    let case = Case::read("eagle3", name, |_| ());
    let offsets = case.golden["d2t"].values.iter();
    let offsets: Vec<i64> = offsets.map(|&offset| offset as i64).collect();
    let vocabulary = DraftVocabulary::from_d2t(&offsets, case.target.spec.vocab).unwrap();
    // What the file has for other cases.
    let mut not = vec!["embed_tokens."];
    if !drafter.fc_norm {
        not.push("fc_norm");
    }
    if drafter.layers == 1 {
        not.extend(["layers.1.", "layers.2."]);
    }
    let model: Eagle3 = case.drafter(drafter, &vocabulary, &not);
    let objective = <TrainingTimeTest as Objective<Eagle3>>::new(objective).unwrap();

    let plain = model.valid();
    for (step, normed) in objective
        .unroll(&plain, &case.batch)
        .into_iter()
        .enumerate()
    {
        case.expect_judged("logits", step, &host_f32(normed.matmul(plain.head())), 0);
    }

    let (report, gradients) = case.step(model, objective);
    case.expect_counts(&report.steps);
    case.expect_accuracy(&report.steps);
    case.expect_every_gradient(&gradients);
}

#[test]
fn the_default_objective_equals_pytorch() {
    let objective = TrainingTimeTestConfig {
        draft_steps: 4,
        ..Default::default()
    };
    parity("label", Eagle3Config::default(), objective);
}

#[test]
fn the_reference_codes_objective_equals_pytorch() {
    let objective = TrainingTimeTestConfig {
        draft_steps: 4,
        divergence: Divergence::SoftCe,
        mask_align: MaskAlign::Feature,
        reduction: Reduction::All,
        out_of_vocab: OutOfVocab::Drop,
        decay: 0.8,
        ..Default::default()
    };
    parity("feature", Eagle3Config::default(), objective);
}

#[test]
fn the_speculators_variant_equals_pytorch() {
    let objective = TrainingTimeTestConfig {
        draft_steps: 3,
        decay: 1.0,
        ..Default::default()
    };
    let drafter = Eagle3Config {
        norm_before_residual: true,
        norm_output: true,
        fc_norm: true,
        ..Default::default()
    };
    parity("speculators", drafter, objective);
}

#[test]
fn several_layers_equal_pytorch() {
    let objective = TrainingTimeTestConfig {
        draft_steps: 4,
        ..Default::default()
    };
    let drafter = Eagle3Config {
        layers: 3,
        ..Default::default()
    };
    parity("deep", drafter, objective);
}

#[test]
fn a_golden_batch_has_the_documents_it_says() {
    let rows = Case::read("eagle3", "label", |_| ()).batch.rows;
    assert!(rows.reaches(0, 9) && !rows.reaches(0, 10));
    assert!(
        !rows.reaches(15, 1),
        "the second row's first document ends at 5"
    );
    assert_eq!(rows.real_tokens(), 19);
}
