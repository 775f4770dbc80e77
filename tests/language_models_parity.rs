//! Forward pass, loss and gradients of drafters that are language models, against transformers run on one document, and
//! for PARD on one row, at a time.
use burn::module::Module as _;
use burn::tensor::DType;
use spectrain_checkpoints::NamedTensor;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::weights::{export, host_f32, import};
use spectrain_models::{Drafter, LoraConfig};
use spectrain_train::{Distill, Objective, PardLoss};

use crate::golden::{assert_close, json, path};
use crate::parity::Case;

/// Cases of drafters that start from a folder.
impl Case {
    pub fn of_language_model(file: &str, name: &str) -> Self {
        let layers = json(&format!("{file}.json"))["sizes"]["target_layers"].as_u64();
        let mut case = Self::read(file, name, |spec| {
            (spec.layers, spec.d_ff, spec.d_head) = (layers.unwrap() as usize, 12, 4);
            (spec.heads, spec.kv_heads) = (2, 2);
        });
        case.batch.seed = case.figures["seed"].as_u64();
        case
    }

    pub fn mask_token(&self) -> u32 {
        self.all["sizes"]["mask_token"].as_u64().unwrap() as u32
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
    pub fn of_folder<D: Drafter>(&self, config: &D::Config) -> D {
        let device = test_device().autodiff();
        let vocabulary = DraftVocabulary::full(self.target.spec.vocab);
        let drafter = D::fresh(config, &self.target, &vocabulary, 1, &device).unwrap();
        let mut drawn = 0;
        let of = |tensor: NamedTensor| {
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
        let logits = self.tensor("logits");
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
        let (report, gradients) = self.step(drafter, objective);
        let steps = self.figures["steps"].as_array().unwrap();
        assert_eq!(report.steps.len(), steps.len(), "{}", self.name);
        for (number, (found, expected)) in report.steps.iter().zip(steps).enumerate() {
            let counted = expected["counted"].as_u64().unwrap();
            assert_eq!(found.count as u64, counted, "{} step {number}", self.name);
            self.expect("loss", found.loss, &expected["loss"]);
            self.expect("acceptance", found.alpha, &expected["acceptance"]);
            self.expect("agreement", found.correct, &expected["agreement"]);
        }
        self.expect_every_gradient(&gradients);
    }
}

fn distill(name: &str) {
    let case = Case::of_language_model("distill", name);
    let drafter: LanguageModel = case.of_folder(&LanguageModelConfig {
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

fn pard(name: &str) {
    let case = Case::of_language_model("pard", name);
    let drafter: Pard = case.of_folder(&PardConfig {
        model: case.model(),
        mask_token: Some(case.mask_token()),
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
