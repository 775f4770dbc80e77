//! Forward pass, loss and gradients of drafters that are language models, against transformers run on one document, and
//! for PARD on one row, at a time.
use burn::module::{Module as _, Param};
use burn::nn::Embedding;
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::weights::{export, host_f32, import};
use spectrain_models::{
    Drafter, Features, Linear, LoraConfig, RandomWeights, RmsNorm, RopeConfig, RopeScaling, Scope,
    TargetParts, TargetSpec,
};
use spectrain_train::{
    Batch, Distill, Objective, PardLoss, Statistics, Train, TrainConfig, Trainee,
};

use crate::golden::{Golden, assert_close, json, path, rows, tensors};

type Tensors = std::collections::BTreeMap<String, Golden>;

/// What the script wrote of one case.
pub struct Case {
    name: &'static str,
    golden: Tensors,
    pub figures: serde_json::Value,
    pub mask_token: u32,
    target: TargetParts,
    pub batch: Batch,
}

impl Case {
    pub fn read(file: &str, name: &'static str) -> Self {
        let device = Device::flex();
        let golden = tensors(&format!("{file}.safetensors"));
        let all = json(&format!("{file}.json"));
        let figures = all["cases"][name].clone();
        let mut batch = Batch::new(rows(&golden), &device);
        batch.features = Some(Features {
            captured: golden["captured"].float(&device),
            last: golden["last"].float(&device),
        });
        batch.seed = figures["seed"].as_u64();
        Self {
            name,
            target: target(&golden, &all["sizes"], &device),
            mask_token: all["sizes"]["mask_token"].as_u64().unwrap() as u32,
            golden,
            figures,
            batch,
        }
    }

    /// The folder that transformers wrote.
    pub fn model(&self) -> String {
        let name = self.figures["model"].as_str().unwrap();
        let folder = path("language_models").join(name);
        folder.to_str().unwrap().to_owned()
    }

    fn lora(&self) -> Option<LoraConfig> {
        serde_json::from_value(self.figures["lora"].clone()).unwrap()
    }

    pub fn objective<D: Drafter, O: Objective<D>>(&self) -> O {
        O::new(&serde_json::from_value(self.figures["objective"].clone()).unwrap()).unwrap()
    }

    /// A drafter of the folder, with the parameters beside it that the script drew.
    pub fn drafter<D: Drafter>(&self, config: &D::Config) -> D {
        let device = Device::flex().autodiff();
        let vocabulary = DraftVocabulary::full(self.target.spec.vocab);
        let drafter = D::fresh(config, &self.target, &vocabulary, 1, &device).unwrap();
        let mut drawn = 0;
        let of = |tensor: spectrain_checkpoints::NamedTensor| {
            let name = format!("{}.parameters.{}", self.name, tensor.name);
            let golden = self.golden.get(&name);
            drawn += usize::from(golden.is_some());
            golden.map_or_else(|| tensor.clone(), |golden| golden.named(&tensor.name))
        };
        let parameters = export(&drafter).into_iter().map(of).collect();
        let drafter = import(drafter, parameters, "golden").unwrap();
        let prefix = format!("{}.parameters.", self.name);
        let given = self.golden.keys().filter(|key| key.starts_with(&prefix));
        assert_eq!(drawn, given.count(), "{}", self.name);
        drafter
    }

    pub fn expect_logits(&self, got: &[f32], rows: impl Iterator<Item = usize>) {
        let logits = &self.golden[&format!("{}.logits", self.name)];
        let width = logits.shape[1];
        let expected = logits.f32();
        for row in rows {
            let of = row * width..(row + 1) * width;
            let what = format!("{} logits[{row}]", self.name);
            assert_close(&what, &got[of.clone()], &expected[of], 1e-4);
        }
    }

    /// Compares the loss, what is reported beside it, and the gradients of all that is trained.
    pub fn expect_step<D: Drafter, O: Objective<D>>(&self, drafter: D, objective: O) {
        let name = self.name;
        let mut trainee = Trainee::new(drafter, objective, TrainConfig::default().optimizer());
        let report = trainee.accumulate(&self.batch, Statistics::All).report();
        let close = |what: &str, got: f64, expected: &serde_json::Value| {
            let expected = expected.as_f64().unwrap();
            assert!(
                (got - expected).abs() <= 2e-5 * expected.abs(),
                "{name} {what}: expected {expected}, found {got}"
            );
        };
        close("total", report.total, &self.figures["total"]);
        let steps = self.figures["steps"].as_array().unwrap();
        assert_eq!(report.steps.len(), steps.len(), "{name}");
        for (number, (found, expected)) in report.steps.iter().zip(steps).enumerate() {
            let counted = expected["counted"].as_u64().unwrap();
            assert_eq!(found.count as u64, counted, "{name} step {number}");
            close("loss", found.loss, &expected["loss"]);
            close("acceptance", found.alpha, &expected["acceptance"]);
            close("agreement", found.correct, &expected["agreement"]);
        }

        let gradients = trainee.gradients().to_host();
        let prefix = format!("{name}.gradient.");
        let mut compared = 0;
        for (parameter, golden) in &self.golden {
            let Some(parameter) = parameter.strip_prefix(&prefix) else {
                continue;
            };
            let Some(got) = gradients.get(parameter) else {
                panic!("{name}: no gradient of `{parameter}`");
            };
            // Linear layers alone are held transposed.
            let linear = parameter.ends_with("proj.weight") || parameter.ends_with("head.weight");
            let expected = match linear {
                true => golden.transposed(),
                false => golden.f32(),
            };
            let largest = expected
                .iter()
                .fold(0f32, |largest, x| largest.max(x.abs()));
            let share =
                |values: &[f32]| -> Vec<f32> { values.iter().map(|x| x / largest).collect() };
            let what = format!("{name} gradient {parameter}");
            assert_close(&what, &share(got), &share(&expected), 1e-4);
            compared += 1;
        }
        let trained = gradients.len();
        assert_eq!(compared, trained, "{name}: every parameter is compared");
    }
}

/// A target of which nothing is there but its sizes and its head.
fn target(golden: &Tensors, sizes: &serde_json::Value, device: &Device) -> TargetParts {
    let size = |key: &str| sizes[key].as_u64().unwrap() as usize;
    let (d_model, vocab) = (size("target_d_model"), size("vocab"));
    let mut random = RandomWeights::new(0);
    let mut scope = Scope::root(&mut random, device, spectrain_checkpoints::DType::F32);
    let head: Tensor<2> = golden["target_lm_head.weight"].float(device);
    TargetParts {
        spec: TargetSpec {
            layers: size("target_layers"),
            d_model,
            d_ff: 12,
            heads: 2,
            kv_heads: 2,
            d_head: 4,
            vocab,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            max_positions: 64,
        },
        embed_tokens: Embedding {
            weight: Param::from_tensor(Tensor::zeros([vocab, d_model], device)),
        },
        norm: RmsNorm::new(&mut scope.child("norm"), d_model, 1e-6).unwrap(),
        lm_head: Linear {
            weight: Param::from_tensor(head.transpose()),
            bias: None,
            lora: None,
        },
        folder: None,
    }
}

fn distill(name: &'static str) {
    let case = Case::read("distill", name);
    let drafter: LanguageModel = case.drafter(&LanguageModelConfig {
        model: case.model(),
        lora: case.lora(),
        ..Default::default()
    });
    let plain = drafter.valid();
    let batch = &case.batch;
    let hidden = plain.hidden(batch.tokens.clone(), &batch.layout, DType::F32);
    let logits = host_f32(plain.model().head().forward(hidden));
    let documents = &batch.rows.layout.documents;
    let text = (0..batch.rows.len()).filter(|&at| documents[at] != 0);
    case.expect_logits(&logits, text);
    case.expect_step(drafter, case.objective::<LanguageModel, Distill>());
}

fn pard(name: &'static str) {
    let case = Case::read("pard", name);
    let drafter: Pard = case.drafter(&PardConfig {
        model: case.model(),
        mask_token: Some(case.mask_token),
        target_features: case.figures["target_features"].as_bool().unwrap(),
        ..Default::default()
    });
    let objective: PardLoss = case.objective::<Pard, _>();
    let subset = objective.subset(&case.batch);
    let documents = &case.batch.rows.layout.documents;
    let mut kept: Vec<((usize, usize), usize)> = (0..)
        .zip(subset.places())
        .filter_map(|(row, place)| Some(((*place)?, row)))
        .filter(|((_, at), _)| documents[*at] != 0)
        .collect();
    kept.sort_unstable();
    let drawn: Vec<(usize, usize)> = serde_json::from_value(case.figures["rows"].clone()).unwrap();
    let places: Vec<_> = kept.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, drawn, "{name}: the rows that are kept");

    let plain = drafter.valid();
    let hidden = objective.hidden(&plain, &case.batch, &subset);
    let all = host_f32(plain.model().head().forward(hidden));
    let width = all.len() / subset.places().len();
    let logits: Vec<f32> = kept
        .iter()
        .flat_map(|(_, row)| &all[row * width..(row + 1) * width])
        .copied()
        .collect();
    case.expect_logits(&logits, 0..kept.len());
    case.expect_step(drafter, objective);
}

#[test]
fn distillation_of_a_llama_equals_pytorch() {
    distill("kl");
}

#[test]
fn distillation_with_labels_and_a_tied_qwen3_equals_pytorch() {
    distill("mixed");
}

#[test]
fn distillation_by_reverse_kl_with_a_temperature_and_averaged_by_conversation_equals_pytorch() {
    distill("softened");
}

#[test]
fn distillation_by_the_policy_gradient_of_total_variation_equals_pytorch() {
    distill("tv-plus-plus");
}

#[test]
fn distillation_of_a_model_that_knows_fewer_tokens_equals_pytorch() {
    distill("fewer-tokens");
}

#[test]
fn distillation_of_low_rank_matrices_equals_pytorch() {
    distill("lora");
}

#[test]
fn pard_equals_a_run_of_pytorch_for_every_row() {
    pard("pard");
}

#[test]
fn pard_2_with_features_and_confidence_weights_equals_a_run_of_pytorch_for_every_row() {
    pard("pard-2");
}
