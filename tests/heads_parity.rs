//! Forward pass, loss and gradients of Medusa's and Hydra's heads, against an independent PyTorch implementation.
use burn::module::Param;
use burn::nn::Embedding;
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::draft_heads::{DraftHeads, OutputHead};
use spectrain_models::hydra::{Hydra, HydraConfig};
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Features, Linear, RandomWeights, RmsNorm, RopeConfig, RopeScaling, Scope, TargetParts,
    TargetSpec, TensorWeights,
};
use spectrain_train::{
    Batch, Divergence, HeadsLoss, HeadsLossConfig, Objective, Statistics, Train, TrainConfig,
    Trainee,
};

use crate::golden::{Golden, assert_close, json, rows, tensors};

type Tensors = std::collections::BTreeMap<String, Golden>;

const VOCAB: usize = 40;
const D_MODEL: usize = 8;

pub fn target(golden: &Tensors, device: &Device) -> TargetParts {
    let mut random = RandomWeights::new(0);
    let mut scope = Scope::root(&mut random, device, spectrain_checkpoints::DType::F32);
    let head: Tensor<2> = golden["target_lm_head.weight"].float(device);
    TargetParts {
        spec: TargetSpec {
            layers: 8,
            d_model: D_MODEL,
            d_ff: 12,
            heads: 4,
            kv_heads: 2,
            d_head: 4,
            vocab: VOCAB,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            max_positions: 64,
        },
        embed_tokens: Embedding {
            weight: Param::from_tensor(golden["embed_tokens.weight"].float(device)),
        },
        norm: RmsNorm::new(&mut scope.child("norm"), D_MODEL, 1e-6).unwrap(),
        lm_head: Linear {
            weight: Param::from_tensor(head.transpose()),
            bias: None,
            lora: None,
        },
        folder: None,
    }
}

fn batch(golden: &Tensors, device: &Device) -> Batch {
    let mut batch = Batch::new(rows(golden), device);
    let last: Tensor<3> = golden["last"].float(device);
    let [rows, seq, _] = last.dims();
    batch.features = Some(Features {
        captured: Tensor::zeros([rows, seq, 0], device),
        last,
    });
    batch
}

/// `x_{t+1+head}` at every index, zero behind the end.
fn following(batch: &Batch, head: usize) -> Tensor<2, Int> {
    let [_, seq] = batch.tokens.dims();
    let shift = |row: &[u32]| -> Vec<i64> {
        let kept = row.iter().skip(1 + head).map(|&token| token as i64);
        kept.chain(std::iter::repeat(0)).take(seq).collect()
    };
    let ids: Vec<i64> = batch.rows.tokens.chunks(seq).flat_map(shift).collect();
    Tensor::<1, Int>::from_ints(ids.as_slice(), &batch.tokens.device()).reshape(batch.tokens.dims())
}

fn parity<D: DraftHeads, O: Objective<D>>(
    family: &str,
    case: &str,
    config: &D::Config,
    objective: &O::Config,
) where
    D::State: 'static,
{
    let device = Device::flex();
    let golden = tensors(&format!("{family}.safetensors"));
    let figures = &json(&format!("{family}.json"))["cases"][case];
    let target = target(&golden, &device);
    let vocabulary = match figures["draft_vocab"].as_bool().unwrap() {
        false => DraftVocabulary::full(VOCAB),
        true => {
            let ids = golden["draft_vocab"].values.iter().zip(0..);
            let offsets: Vec<i64> = ids.map(|(&id, draft)| id as i64 - draft).collect();
            DraftVocabulary::from_d2t(&offsets, VOCAB).unwrap()
        }
    };
    let prefix = format!("{case}.parameters.");
    let named = golden
        .iter()
        .filter_map(|(name, tensor)| Some(tensor.named(name.strip_prefix(&prefix)?)));
    let mut weights = TensorWeights::new(named.collect(), "golden");
    let autodiff = device.clone().autodiff();
    let model = D::new(config, &target, &vocabulary, &mut weights, &autodiff).unwrap();
    assert!(weights.left().is_empty(), "{:?}", weights.left());

    let batch = batch(&golden, &device);
    let plain = model.valid();
    let heads = plain.max_depth().unwrap();
    let shifted: Vec<_> = (0..heads).map(|head| following(&batch, head)).collect();
    let last = batch.features.as_ref().unwrap().last.clone();
    let hidden = plain.hidden(&shifted, &batch.layout, last);
    let width = vocabulary.len();
    for (head, hidden) in hidden.into_iter().enumerate() {
        let got = host_f32(plain.output(head).logits(hidden));
        let expected = golden[&format!("{case}.logits.{head}")].f32();
        let judged = &golden[&format!("{case}.judged.{head}")].values;
        let judged = judged
            .iter()
            .enumerate()
            .filter(|(_, judged)| **judged != 0.0);
        let mut compared = 0;
        for (position, _) in judged {
            let row = position * width..(position + 1) * width;
            let what = format!("{case} logits.{head}[{position}]");
            assert_close(&what, &got[row.clone()], &expected[row], 1e-4);
            compared += 1;
        }
        assert!(compared >= 5, "{case}: {compared} positions of head {head}");
    }

    let objective = O::new(objective).unwrap();
    let mut trainee = Trainee::new(model, objective, TrainConfig::default().optimizer());
    let report = trainee.accumulate(&batch, Statistics::All).report();
    let total = figures["total"].as_f64().unwrap();
    assert!(
        (report.total - total).abs() < 1e-4 * total,
        "{case}: total {total}, found {}",
        report.total
    );
    assert_eq!(report.steps.len(), heads, "{case}");
    for (head, found) in report.steps.iter().enumerate() {
        let counted = figures["counted"][head].as_u64().unwrap();
        assert_eq!(found.count as u64, counted, "{case} head {head}");
        let accuracy = figures["accuracy"][head].as_f64().unwrap();
        let got = found.correct / found.count as f64;
        assert!(
            (got - accuracy).abs() < 1e-6,
            "{case} accuracy {head}: {got}"
        );
    }
    let gradients = trainee.gradients().to_host();
    let prefix = format!("{case}.gradient.");
    let mut compared = 0;
    for (name, expected) in &golden {
        let Some(name) = name.strip_prefix(&prefix) else {
            continue;
        };
        let Some(got) = gradients.get(name) else {
            panic!("{case}: no gradient of `{name}`");
        };
        let what = format!("{case} gradient {name}");
        assert_close(&what, got, &expected.transposed(), 1e-4);
        compared += 1;
    }
    assert_eq!(
        compared,
        gradients.len(),
        "{case}: every parameter is compared"
    );
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
        label_weight: 0.0,
        teacher_weight: 1.0,
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
        label_weight: 0.5,
        teacher_weight: 2.0,
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
        label_weight: 0.0,
        teacher_weight: 1.0,
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
    let objective = HeadsLossConfig {
        decay: Some(0.9),
        label_weight: 0.25,
        teacher_weight: 0.75,
        divergence: Divergence::Kl,
    };
    hydra("hydra-mixed", config, objective);
}
