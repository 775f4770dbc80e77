//! Forward pass, loss and gradients of the heads of Medusa, Hydra and ReDrafter, against an independent PyTorch implementation.
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::TargetSpec;
use spectrain_models::draft_heads::{DraftHeads, OutputHead};
use spectrain_models::hydra::{Hydra, HydraConfig};
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::redrafter::{Redrafter, RedrafterConfig};
use spectrain_models::weights::host_f32;
use spectrain_train::{Batch, Divergence, HeadsLoss, HeadsLossConfig, Objective};

use crate::parity::Case;

/// Sizes of the target.
pub fn sizes(spec: &mut TargetSpec) {
    (spec.d_ff, spec.d_head) = (12, 4);
}

/// `x_{t+1+head}` at every index, zero behind the end.
pub fn following(batch: &Batch, head: usize) -> Tensor<2, Int> {
    let [_, seq] = batch.tokens.dims();
    let shift = |row: &[u32]| -> Vec<i64> {
        let kept = row.iter().skip(1 + head).map(|&token| token as i64);
        kept.chain(std::iter::repeat(0)).take(seq).collect()
    };
    let ids: Vec<i64> = batch.rows.tokens.chunks(seq).flat_map(shift).collect();
    Tensor::<1, Int>::from_ints(ids.as_slice(), &batch.tokens.device()).reshape(batch.tokens.dims())
}

fn vocabulary(case: &Case) -> DraftVocabulary {
    let vocab = case.target.spec.vocab;
    if !case.figures["draft_vocab"].as_bool().unwrap() {
        return DraftVocabulary::full(vocab);
    }
    let ids = case.golden["draft_vocab"].values.iter().zip(0..);
    let offsets: Vec<i64> = ids.map(|(&id, draft)| id as i64 - draft).collect();
    DraftVocabulary::from_d2t(&offsets, vocab).unwrap()
}

/// Compares the logits of every head, and returns the number of heads.
fn logits_agree<D: DraftHeads>(case: &Case, model: &D) -> usize {
    let batch = &case.batch;
    let heads = model.max_depth().unwrap();
    let shifted: Vec<_> = (0..heads).map(|head| following(batch, head)).collect();
    let last = batch.features.as_ref().unwrap().last.clone();
    let hidden = model.hidden(&shifted, &batch.layout, last);
    for (head, hidden) in hidden.into_iter().enumerate() {
        let got = host_f32(model.output(head).logits(hidden));
        let compared = case.expect_judged("logits", head, &got, 0);
        assert!(
            compared >= 5,
            "{}: {compared} positions of head {head}",
            case.name
        );
    }
    heads
}

fn parity<D: DraftHeads, O: Objective<D>>(
    family: &str,
    name: &str,
    config: &D::Config,
    objective: &O::Config,
) {
    let case = Case::read(family, name, sizes);
    let model: D = case.drafter(config, &vocabulary(&case), &[]);
    let heads = logits_agree(&case, &model.valid());

    let (report, gradients) = case.step(model, O::new(objective).unwrap());
    assert_eq!(report.steps.len(), heads, "{name}");
    case.expect_counts(&report.steps);
    case.expect_accuracy(&report.steps);
    case.expect_every_gradient(&gradients);
}

fn medusa(case: &str, config: MedusaConfig, objective: HeadsLossConfig) {
    let config = MedusaConfig {
        medusa_heads: 3,
        ..config
    };
    parity::<Medusa, HeadsLoss>("medusa", case, &config, &objective);
}

fn hydra(case: &str, config: HydraConfig, objective: HeadsLossConfig) {
    let config = HydraConfig {
        hydra_heads: 3,
        ..config
    };
    parity::<Hydra, HeadsLoss>("hydra", case, &config, &objective);
}

fn redrafter(case: &str, config: RedrafterConfig, objective: HeadsLossConfig) {
    let config = RedrafterConfig {
        draft_tokens: 3,
        ..config
    };
    parity::<Redrafter, HeadsLoss>("redrafter", case, &config, &objective);
}

/// Labels and the target's distributions, over falling weights.
fn both_losses() -> HeadsLossConfig {
    HeadsLossConfig {
        decay: Some(0.9),
        label_weight: 0.25.into(),
        teacher_weight: 0.75.into(),
        divergence: Divergence::Kl,
    }
}

#[test]
fn medusa_with_labels_of_the_text_equals_pytorch() {
    let config = MedusaConfig {
        head_layers: 2,
        ..Default::default()
    };
    medusa("medusa-hard", config, HeadsLossConfig::default());
}

#[test]
fn medusa_with_the_targets_labels_and_a_draft_vocabulary_equals_pytorch() {
    let objective = HeadsLossConfig {
        decay: Some(1.0),
        label_weight: 0.0.into(),
        teacher_weight: 1.0.into(),
        ..Default::default()
    };
    medusa("medusa-soft", MedusaConfig::default(), objective);
}

#[test]
fn medusa_with_a_shared_head_and_both_losses_equals_pytorch() {
    let config = MedusaConfig {
        head: OutputHead::Shared,
        ..Default::default()
    };
    let objective = HeadsLossConfig {
        label_weight: 0.5.into(),
        teacher_weight: 2.0.into(),
        divergence: Divergence::SoftCe,
        ..Default::default()
    };
    medusa("medusa-shared", config, objective);
}

#[test]
fn hydra_equals_pytorch() {
    let config = HydraConfig::default();
    hydra("hydra-hard", config, HeadsLossConfig::default());
}

#[test]
fn hydra_plus_plus_equals_pytorch() {
    let config = HydraConfig {
        head_layers: 2,
        prefix_layer: true,
        ..Default::default()
    };
    let objective = HeadsLossConfig {
        label_weight: 0.0.into(),
        teacher_weight: 1.0.into(),
        divergence: Divergence::SoftCe,
        ..Default::default()
    };
    hydra("hydra-plus-plus", config, objective);
}

#[test]
fn hydra_with_both_losses_and_a_draft_vocabulary_equals_pytorch() {
    let config = HydraConfig {
        head_layers: 2,
        prefix_layer: true,
        ..Default::default()
    };
    hydra("hydra-mixed", config, both_losses());
}

#[test]
fn redrafter_equals_pytorch() {
    redrafter(
        "redrafter",
        RedrafterConfig::default(),
        HeadsLossConfig::default(),
    );
}

#[test]
fn redrafter_over_sums_of_embeddings_with_both_losses_equals_pytorch() {
    let config = RedrafterConfig {
        head_layers: 1,
        recurrent: false,
        ..Default::default()
    };
    redrafter("redrafter-sums", config, both_losses());
}
