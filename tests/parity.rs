//! What tests against PyTorch share: a case that a script of `tests/golden` wrote, a drafter with its parameters, and the
//! comparison of its logits, its loss and its gradients.
use std::collections::BTreeMap;

use burn::module::Param;
use burn::nn::Embedding;
use burn::prelude::*;
use serde_json::Value;
use spectrain_checkpoints::DType;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::{
    Drafter, Features, Linear, RandomWeights, RmsNorm, RopeConfig, RopeScaling, Scope, SoftCap,
    TargetParts, TargetSpec, TensorWeights,
};
use spectrain_train::{
    Batch, LossReport, Objective, Statistics, StepReport, Train as _, TrainConfig, Trainee,
};

use crate::golden::{Golden, Tensors, assert_close, json, rows, tensors};

pub struct Case {
    pub name: String,
    pub golden: Tensors,
    /// What the script says of all of its cases.
    pub all: Value,
    /// What it says of this one.
    pub figures: Value,
    pub target: TargetParts,
    pub batch: Batch,
}

/// Gradients by the names of their parameters.
type Gradients = BTreeMap<String, Vec<f32>>;

impl Case {
    /// `sizes` changes what the script's target has otherwise than [`spec`].
    pub fn read(file: &str, name: &str, sizes: impl FnOnce(&mut TargetSpec)) -> Self {
        let golden = tensors(&format!("{file}.safetensors"));
        let all = json(&format!("{file}.json"));
        let mut spec = spec(&golden);
        sizes(&mut spec);
        Self {
            name: name.into(),
            figures: all["cases"][name].clone(),
            all,
            target: target(&golden, spec),
            batch: batch(&golden),
            golden,
        }
    }

    /// A tensor of this case.
    pub fn tensor(&self, name: &str) -> &Golden {
        &self.golden[&format!("{}.{name}", self.name)]
    }

    /// The parameters that all cases share, but for those whose names start with one of `not`, and the case's own, which may
    /// stand in their place.
    fn weights(&self, not: &[&str]) -> TensorWeights {
        let own = format!("{}.parameters.", self.name);
        let mut named = BTreeMap::new();
        for prefix in ["parameters.", &own] {
            for (name, tensor) in &self.golden {
                if let Some(name) = name.strip_prefix(prefix) {
                    named.insert(name, tensor.named(name));
                }
            }
        }
        named.retain(|name, _| !not.iter().any(|not| name.starts_with(not)));
        TensorWeights::new(named.into_values().collect(), "golden")
    }

    /// A drafter in training with the case's parameters without `not`, each of which it must have.
    pub fn drafter<D: Drafter>(
        &self,
        config: &D::Config,
        vocabulary: &DraftVocabulary,
        not: &[&str],
    ) -> D {
        let mut weights = self.weights(not);
        let graph = test_device().autodiff();
        let drafter = D::new(config, &self.target, vocabulary, &mut weights, &graph).unwrap();
        assert!(weights.left().is_empty(), "{:?}", weights.left());
        drafter
    }

    /// Fails unless a figure is the expected one, as nearly as 32 bits allow.
    pub fn expect(&self, what: &str, found: f64, expected: &Value) {
        let expected = expected.as_f64().unwrap();
        assert!(
            (found - expected).abs() <= 1e-5 * expected.abs(),
            "{} {what}: expected {expected}, found {found}",
            self.name
        );
    }

    /// Compares the judged rows of the tensor `what` of a step, of which row `r` is row `r - late` of `got`. Returns their
    /// number.
    pub fn expect_judged(&self, what: &str, step: usize, got: &[f32], late: usize) -> usize {
        let expected = self.tensor(&format!("{what}.{step}")).f32();
        let judged = &self.tensor(&format!("judged.{step}")).values;
        let width = expected.len() / judged.len();
        let row = |row: usize| row * width..(row + 1) * width;
        let judged = (0..judged.len()).filter(|&at| judged[at] != 0.0);
        let compare = |at: usize| {
            let what = format!("{} {what}.{step}[{at}]", self.name);
            assert_close(&what, &got[row(at - late)], &expected[row(at)], 1e-4);
        };
        judged.map(compare).count()
    }

    /// Takes a step of training, whose loss must be the case's.
    pub fn step<M: Module, O: Objective<M>>(
        &self,
        model: M,
        objective: O,
    ) -> (LossReport, Gradients) {
        let mut trainee = Trainee::new(model, objective, TrainConfig::default().optimizer());
        let report = trainee
            .accumulate_as_measured(&self.batch, Statistics::All)
            .report();
        self.expect("total", report.total, &self.figures["total"]);
        (report, trainee.gradients().to_host())
    }

    /// Compares over how many positions each step's loss is taken.
    pub fn expect_counts(&self, steps: &[StepReport]) {
        let found: Vec<u64> = steps.iter().map(|step| step.count as u64).collect();
        assert_eq!(Value::from(found), self.figures["counted"], "{}", self.name);
    }

    /// Compares at what share of those positions the target's token, or the text's, is the likeliest.
    pub fn expect_accuracy(&self, steps: &[StepReport]) {
        for (number, step) in steps.iter().enumerate() {
            let expected = self.figures["accuracy"][number].as_f64().unwrap();
            let found = step.correct / step.count as f64;
            assert!(
                (found - expected).abs() < 1e-6,
                "{} accuracy {number}: expected {expected}, found {found}",
                self.name
            );
        }
    }

    /// Compares the gradients of the parameters that the case has them of, and returns the number of those.
    pub fn expect_gradients(&self, gradients: &Gradients) -> usize {
        let prefix = format!("{}.gradient.", self.name);
        let mut compared = 0;
        for (name, golden) in &self.golden {
            let Some(name) = name.strip_prefix(&prefix) else {
                continue;
            };
            let what = format!("{} gradient {name}", self.name);
            let got = gradients.get(name);
            let got = got.unwrap_or_else(|| panic!("{what}: there is none"));
            // Of linear layers, the module holds the transpose.
            let embeds = ["embed_tokens.weight", "markov_w1.weight"];
            let linear = name.ends_with(".weight") && !embeds.iter().any(|of| name.ends_with(of));
            let expected = if linear {
                golden.transposed()
            } else {
                golden.f32()
            };
            // Where all are small, what they may be off by is too.
            let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scaled = |values: &[f32]| -> Vec<f32> {
                values.iter().map(|x| x / largest.min(1.0)).collect()
            };
            assert_close(&what, &scaled(got), &scaled(&expected), 1e-4);
            compared += 1;
        }
        compared
    }

    /// Fails unless the case has the gradients of all that is trained, and they are these.
    pub fn expect_every_gradient(&self, gradients: &Gradients) {
        let compared = self.expect_gradients(gradients);
        assert_eq!(compared, gradients.len(), "{}: all are compared", self.name);
    }
}

/// Sizes of most scripts' targets.
fn spec(golden: &Tensors) -> TargetSpec {
    let [vocab, d_model] = golden["target_lm_head.weight"].shape[..] else {
        panic!("the head is no matrix");
    };
    TargetSpec {
        layers: 8,
        d_model,
        d_ff: 24,
        heads: 4,
        kv_heads: 2,
        d_head: 8,
        vocab,
        norm_epsilon: 1e-6,
        rope: RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        },
        max_positions: 64,
        routing: None,
    }
}

/// A target of which nothing is there but its sizes, its head, and its embedding where the script has one.
fn target(golden: &Tensors, spec: TargetSpec) -> TargetParts {
    let device = &test_device();
    let mut random = RandomWeights::new(0);
    let mut scope = Scope::root(&mut random, device, DType::F32);
    let head: Tensor<2> = golden["target_lm_head.weight"].float(device);
    let embedding = ["embed_tokens.weight", "parameters.embed_tokens.weight"];
    let embedding = embedding.iter().find_map(|name| golden.get(*name));
    let embedding = embedding.map_or_else(
        || Tensor::zeros([spec.vocab, spec.d_model], device),
        |golden| golden.float(device),
    );
    TargetParts {
        embed_tokens: Embedding {
            weight: Param::from_tensor(embedding),
        },
        norm: RmsNorm::new(&mut scope.child("norm"), spec.d_model, spec.norm_epsilon).unwrap(),
        lm_head: Linear {
            weight: Param::from_tensor(head.transpose()),
            bias: None,
            lora: None,
        },
        soft_cap: SoftCap::default(),
        folder: None,
        spec,
    }
}

/// The scripts' rows with the features of the target, of which some scripts capture none but the last.
fn batch(golden: &Tensors) -> Batch {
    let device = &test_device();
    let last: Tensor<3> = golden["last"].float(device);
    let [count, seq, _] = last.dims();
    let captured = golden.get("captured").or_else(|| golden.get("features"));
    let captured = captured.map_or_else(
        || Tensor::zeros([count, seq, 0], device),
        |golden| golden.float(device),
    );
    let mut batch = Batch::new(rows(golden), device);
    batch.features = Some(Features { captured, last });
    batch
}
