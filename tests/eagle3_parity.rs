//! EAGLE-3's unrolled forward pass, loss and gradients, against an independent PyTorch implementation.
use burn::module::Param;
use burn::nn::Embedding;
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Drafter, Features, Linear, RandomWeights, RmsNorm, RopeConfig, RopeScaling, Scope, TargetParts,
    TargetSpec, TensorWeights,
};
use spectrain_train::{
    Batch, Divergence, MaskAlign, Objective, OutOfVocab, Reduction, Statistics, Train, Trainee,
    TrainingTimeTest, TrainingTimeTestConfig,
};

use crate::golden::{Golden, assert_close, json, rows, tensors};

type Tensors = std::collections::BTreeMap<String, Golden>;

fn target(golden: &Tensors, device: &Device) -> TargetParts {
    let head = &golden["target_lm_head.weight"];
    let head = Golden {
        shape: vec![head.shape[1], head.shape[0]],
        values: head
            .transposed()
            .iter()
            .map(|&value| value as f64)
            .collect(),
    };
    let mut random = RandomWeights::new(0);
    let mut scope = Scope::root(&mut random, device, spectrain_checkpoints::DType::F32);
    TargetParts {
        spec: TargetSpec {
            layers: 8,
            d_model: 16,
            d_ff: 24,
            heads: 4,
            kv_heads: 2,
            d_head: 8,
            vocab: 40,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            max_positions: 64,
        },
        embed_tokens: Embedding {
            weight: Param::from_tensor(golden["parameters.embed_tokens.weight"].float(device)),
        },
        norm: RmsNorm::new(&mut scope.child("norm"), 16, 1e-6).unwrap(),
        lm_head: Linear {
            weight: Param::from_tensor(head.float(device)),
            bias: None,
            lora: None,
        },
        folder: None,
    }
}

fn batch(golden: &Tensors, device: &Device) -> Batch {
    let mut batch = Batch::new(rows(golden), device);
    batch.features = Some(Features {
        captured: golden["features"].float(device),
        last: golden["last"].float(device),
    });
    batch
}

fn parity(case: &str, drafter: Eagle3Config, objective: TrainingTimeTestConfig) {
    for recompute in [true, false] {
        let objective = TrainingTimeTestConfig {
            recompute,
            ..objective.clone()
        };
        parity_of_one(case, drafter.clone(), objective);
    }
}

fn parity_of_one(case: &str, drafter: Eagle3Config, objective: TrainingTimeTestConfig) {
    let device = Device::flex();
    let golden = tensors("eagle3.safetensors");
    let figures = &json("eagle3.json")["cases"][case];
    let target = target(&golden, &device);
    let d2t: Vec<i64> = golden["d2t"]
        .values
        .iter()
        .map(|&offset| offset as i64)
        .collect();
    let vocabulary = DraftVocabulary::from_d2t(&d2t, 40).unwrap();
    let weights = golden
        .iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("parameters.")?, tensor)))
        .filter(|(name, _)| {
            *name != "embed_tokens.weight" && (drafter.fc_norm || !name.starts_with("fc_norm"))
        })
        .map(|(name, tensor)| tensor.named(name));
    let mut weights = TensorWeights::new(weights.collect(), "golden");
    let autodiff = device.clone().autodiff();
    let model = Eagle3::new(&drafter, &target, &vocabulary, &mut weights, &autodiff).unwrap();
    assert!(weights.left().is_empty(), "{:?}", weights.left());

    let batch = batch(&golden, &device);
    let ttt = TrainingTimeTest::new(&objective).unwrap();
    let plain = model.valid();
    for (step, normed) in ttt.unroll(&plain, &batch).into_iter().enumerate() {
        let got = host_f32(normed.matmul(plain.head()));
        let expected = golden[&format!("{case}.logits.{step}")].f32();
        let judged = &golden[&format!("{case}.judged.{step}")].values;
        for (position, _) in judged
            .iter()
            .enumerate()
            .filter(|(_, judged)| **judged != 0.0)
        {
            let row = position * 24..(position + 1) * 24;
            assert_close(
                &format!("{case} logits.{step}[{position}]"),
                &got[row.clone()],
                &expected[row],
                1e-4,
            );
        }
    }

    let mut trainee = Trainee::new(
        model,
        ttt,
        spectrain_train::TrainConfig::default().optimizer(),
    );
    let report = trainee.accumulate(&batch, Statistics::All).report();
    let total = figures["total"].as_f64().unwrap();
    assert!(
        (report.total - total).abs() < 1e-4,
        "{case}: total {total}, found {}",
        report.total
    );
    for (step, found) in report.steps.iter().enumerate() {
        assert_eq!(
            found.count as u64,
            figures["counted"][step].as_u64().unwrap(),
            "{case} step {step}"
        );
        let accuracy = found.correct / found.count as f64;
        assert!(
            (accuracy - figures["accuracy"][step].as_f64().unwrap()).abs() < 1e-6,
            "{case} accuracy {step}"
        );
    }
    let gradients = trainee.gradients().to_host();
    let prefix = format!("{case}.gradient.");
    let mut compared = 0;
    for (name, expected) in &golden {
        let Some(name) = name.strip_prefix(&prefix) else {
            continue;
        };
        let got = gradients
            .get(name)
            .unwrap_or_else(|| panic!("{case}: no gradient of `{name}`"));
        assert_close(
            &format!("{case} gradient {name}"),
            got,
            &expected.transposed(),
            1e-4,
        );
        compared += 1;
    }
    assert_eq!(
        compared,
        gradients.len(),
        "{case}: every parameter is compared"
    );
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
fn a_golden_batch_has_the_documents_it_says() {
    let golden = tensors("eagle3.safetensors");
    let batch = batch(&golden, &Device::flex());
    assert!(batch.rows.reaches(0, 9) && !batch.rows.reaches(0, 10));
    assert!(
        !batch.rows.reaches(15, 1),
        "the second row's first document ends at 5"
    );
    assert_eq!(batch.rows.real_tokens(), 19);
}
