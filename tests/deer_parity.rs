//! Forward pass, loss and gradients of a masked-diffusion drafter in its three stages, against PyTorch run on one text at a
//! time.
use burn::module::Module as _;
use spectrain_models::masked_language_model::{
    Context, MaskedLanguageModel, MaskedLanguageModelConfig,
};
use spectrain_models::weights::host_f32;
use spectrain_train::{DeerLoss, Objective as _};

use crate::parity::Case;

fn equals_pytorch(name: &str) {
    let case = Case::of_language_model("deer", name);
    let context = match case.figures["context"].as_str() {
        Some("causal") => Context::Causal,
        _ => Context::Bidirectional,
    };
    let separator = case.all["sizes"]["separator_token"].as_u64();
    let drafter: MaskedLanguageModel = case.of_folder(&MaskedLanguageModelConfig {
        model: case.model(),
        mask_token: Some(case.mask_token()),
        separator_token: separator.map(|token| token as u32),
        context,
        ..Default::default()
    });
    let config = serde_json::from_value(case.figures["objective"].clone()).unwrap();
    let stage = case.figures["stage"].as_str().unwrap();
    let objective = DeerLoss::of_stage(&config, stage).unwrap();

    let plain = drafter.valid();
    let (masks, hidden) = objective.masks(&plain, &case.batch);
    let predicted: Vec<usize> = masks.into_iter().map(|(_, predicts)| predicts).collect();
    let expected: Vec<usize> = serde_json::from_value(case.figures["predicted"].clone()).unwrap();
    assert_eq!(predicted, expected, "{name}: what is masked");
    let logits = host_f32(plain.model().head().forward(hidden));
    case.expect_logits(&logits, 0..predicted.len());
    case.expect_step(drafter, objective);
}

#[test]
fn masked_diffusion_over_replies_equals_pytorch() {
    equals_pytorch("adapt");
}

#[test]
fn masked_diffusion_over_replies_behind_a_causal_prompt_equals_pytorch() {
    equals_pytorch("adapt-causal");
}

#[test]
fn masked_diffusion_behind_a_cut_equals_pytorch() {
    equals_pytorch("align");
}

#[test]
fn masked_diffusion_behind_a_cut_of_a_causal_text_judged_by_the_target_equals_pytorch() {
    equals_pytorch("align-causal");
}

#[test]
fn weighted_masks_behind_a_cut_equal_pytorch() {
    equals_pytorch("refine");
}

#[test]
fn weighted_masks_behind_a_cut_of_a_causal_text_judged_by_both_equal_pytorch() {
    equals_pytorch("refine-causal");
}
