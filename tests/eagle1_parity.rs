//! EAGLE-1's and HASS's forward passes, losses and gradients, against an independent PyTorch implementation in the
//! papers' coordinates: row `r` of its pass `m` is index `r - m` of step `m` here.
use burn::module::Param;
use burn::nn::Embedding;
use burn::prelude::*;
use spectrain_data::packing::{PackedBatch, RowLayout};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Drafter, Features, Linear, RandomWeights, RmsNorm, RopeConfig, RopeScaling, Scope, TargetParts,
    TargetSpec, TensorWeights,
};
use spectrain_train::{
    Batch, FeatureRegression, FeatureRegressionConfig, Objective, Rows, Statistics, Train,
    TrainConfig, Trainee,
};

use crate::golden::{Golden, assert_close, json, tensors};

type Tensors = std::collections::BTreeMap<String, Golden>;

const SEQ: usize = 10;
const D_MODEL: usize = 16;

fn target(golden: &Tensors, device: &Device) -> TargetParts {
    let head = &golden["target_lm_head.weight"];
    let head = Tensor::<1>::from_floats(head.transposed().as_slice(), device);
    let mut random = RandomWeights::new(0);
    let mut scope = Scope::root(&mut random, device, spectrain_checkpoints::DType::F32);
    TargetParts {
        spec: TargetSpec {
            layers: 4,
            d_model: D_MODEL,
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
        norm: RmsNorm::new(&mut scope.child("norm"), D_MODEL, 1e-6).unwrap(),
        lm_head: Linear {
            weight: Param::from_tensor(head.reshape([D_MODEL, 40])),
            bias: None,
            lora: None,
        },
        folder: None,
    }
}

fn batch(golden: &Tensors, seed: u64, device: &Device) -> Batch {
    let integers = |name: &str, add: f64| -> Vec<u32> {
        let values = golden[name].values.iter();
        values.map(|&value| (value + add) as u32).collect()
    };
    let rows = Rows {
        packed: PackedBatch {
            rows: vec![vec![0], vec![1, 2]],
        },
        layout: RowLayout {
            rows: 2,
            row_length: SEQ,
            documents: integers("documents", 1.0),
            positions: integers("positions", 0.0),
        },
        tokens: integers("input_ids", 0.0),
        loss_mask: integers("loss_mask", 0.0)
            .iter()
            .map(|&bit| bit != 0)
            .collect(),
    };
    let mut batch = Batch::new(rows, device);
    let last: Tensor<3> = golden["last"].float(device);
    batch.features = Some(Features {
        captured: Tensor::zeros([2, SEQ, 0], device),
        last,
    });
    batch.seed = Some(seed);
    batch
}

/// The settings of a case, from the keys that its script wrote.
fn objective(case: &serde_json::Value) -> FeatureRegressionConfig {
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
    let device = Device::flex();
    let golden = tensors("eagle1.safetensors");
    let figures = json("eagle1.json");
    let case = &figures["cases"][name];
    let bias = case["bias"].as_bool().unwrap();
    let weights = golden
        .iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("parameters.")?, tensor)))
        .filter(|(name, _)| *name != "embed_tokens.weight" && (bias || *name != "fc.bias"))
        .map(|(name, tensor)| tensor.named(name));
    let mut weights = TensorWeights::new(weights.collect(), "golden");
    let target = target(&golden, &device);
    let drafter = Eagle1Config {
        bias,
        ..Default::default()
    };
    let vocabulary = DraftVocabulary::full(40);
    let autodiff = device.clone().autodiff();
    let model = Eagle1::new(&drafter, &target, &vocabulary, &mut weights, &autodiff).unwrap();
    assert!(weights.left().is_empty(), "{:?}", weights.left());

    let batch = batch(&golden, figures["sizes"]["seed"].as_u64().unwrap(), &device);
    let objective = FeatureRegression::new(&objective(case)).unwrap();
    let mut compared = 0;
    for (pass, found) in objective.unroll(&model.valid(), &batch).iter().enumerate() {
        let got = host_f32(found.clone());
        let expected = golden[&format!("{name}.predicted.{pass}")].f32();
        let judged = &golden[&format!("{name}.judged.{pass}")].values;
        for row in (0..judged.len()).filter(|&row| judged[row] != 0.0) {
            // A judged row lies at least as far into its document as the pass is late.
            let index = row - pass;
            assert_close(
                &format!("{name} predicted.{pass}[{row}]"),
                &got[index * D_MODEL..(index + 1) * D_MODEL],
                &expected[row * D_MODEL..(row + 1) * D_MODEL],
                1e-4,
            );
            compared += 1;
        }
    }
    assert!(compared >= 16, "{compared}");

    let mut trainee = Trainee::new(model, objective, TrainConfig::default().optimizer());
    let report = trainee.accumulate(&batch, Statistics::All).report();
    let total = case["total"].as_f64().unwrap();
    assert!(
        (report.total - total).abs() < 1e-5 * total,
        "{name}: total {total}, found {}",
        report.total
    );
    let passes = report.steps.iter().enumerate();
    for (pass, found) in passes {
        let counted = case["counted"][pass].as_u64().unwrap();
        assert_eq!(found.count as u64, counted, "{name} pass {pass}");
        let class = case["class"][pass].as_f64().unwrap();
        let got = found.loss / found.count as f64;
        assert!(
            (got - class).abs() < 1e-5 * class,
            "{name} pass {pass}: {class}, found {got}"
        );
    }
    assert_eq!(report.steps.len() as u64, case["passes"].as_u64().unwrap());

    let gradients = trainee.gradients().to_host();
    let prefix = format!("{name}.gradient.");
    let mut compared = 0;
    for (parameter, expected) in &golden {
        let Some(parameter) = parameter.strip_prefix(&prefix) else {
            continue;
        };
        let got = gradients
            .get(parameter)
            .unwrap_or_else(|| panic!("{name}: no gradient of `{parameter}`"));
        let what = format!("{name} gradient {parameter}");
        assert_close(&what, got, &expected.transposed(), 1e-4);
        compared += 1;
    }
    assert_eq!(
        compared,
        gradients.len(),
        "{name}: every parameter is compared"
    );
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
