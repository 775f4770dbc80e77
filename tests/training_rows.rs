//! What a training step computes is what a decoder drafts with: every position that a loss judges is as far from the target
//! as the decoder's logits say. In a graph, on rows of more than 300 tokens with several documents, for every recipe.
use std::collections::{BTreeMap, BTreeSet};

use burn::module::{ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::DType;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spectrain::families::registry::RECIPES;
use spectrain_checkpoints::DType as Stored;
use spectrain_data::Sample;
use spectrain_data::tokens::{TokenShards, TokenWriter};
use spectrain_models::dflash::DFlash;
use spectrain_models::eagle1::Eagle1;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::hydra::Hydra;
use spectrain_models::language_model::LanguageModel;
use spectrain_models::masked_language_model::MaskedLanguageModel;
use spectrain_models::medusa::Medusa;
use spectrain_models::pard::Pard;
use spectrain_models::weights::{export, held_in, host_f32, import};
use spectrain_models::{
    Capture, Drafter, Features, RandomWeights, Scope, Target as _, Transformer, forced,
};
use spectrain_train::{
    Batch, BatchSource as _, BlockLoss, DeerLoss, Distill, FeatureRegression, HydraLoss,
    LiveFeatures, MedusaLoss, Objective, PardLoss, Row, Samples, StagedBlockLoss, Statistics,
    TrainingTimeTest,
};

use crate::tiny;

const MASK: u32 = 47;
const SEPARATOR: u32 = 46;
/// Of a packed row, which is no multiple of any block of queries.
const ROW: usize = 701;
/// The lengths of documents, two to a row.
const DOCUMENTS: [usize; 4] = [389, 305, 452, 241];

/// Conversations of random tokens in which what is trained on has gaps, as between the turns of an assistant.
fn documents() -> Vec<Sample> {
    let mut rng = StdRng::seed_from_u64(17);
    let document = |length: usize| Sample {
        tokens: (0..length)
            .map(|_| rng.random_range(0..SEPARATOR))
            .collect(),
        loss_mask: (0..length).map(|at| at >= 9 && at % 43 >= 6).collect(),
    };
    DOCUMENTS.map(document).to_vec()
}

fn batch(target: &Transformer, capture: Capture, compute: DType) -> Batch {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = TokenWriter::create(folder.path(), 1 << 20).unwrap();
    for sample in documents() {
        writer.push(&sample).unwrap();
    }
    writer.finish(Default::default()).unwrap();
    let shards = TokenShards::open(folder.path()).unwrap();
    let mut source = LiveFeatures {
        samples: Samples::new(std::sync::Arc::new(shards), ROW, 2, 5),
        device: target.device(),
        target: std::sync::Arc::new(target.clone()),
        capture,
        compute,
    };
    let packed = source.samples.epoch(0).unwrap().remove(0);
    source.batch(packed).unwrap()
}

/// `KL(p ‖ q)` of the target's logits and the drafter's.
fn divergence(target: &[f32], drafter: &[f32]) -> f64 {
    let log_softmax = |logits: &[f32]| -> Vec<f64> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let sum: f64 = logits.iter().map(|&l| (l as f64 - largest).exp()).sum();
        logits
            .iter()
            .map(|&l| l as f64 - largest - sum.ln())
            .collect()
    };
    let (p, q) = (log_softmax(target), log_softmax(drafter));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// What a recipe is tried with.
struct Trial {
    name: &'static str,
    drafter: Value,
    objective: Value,
    /// How many tokens a draft has, where the drafter says something else in drafts of another length.
    block: Option<usize>,
    run: fn(&Trial),
    /// What is tried of the drafter alone, in the type of a target of 16 bits.
    run_in_bf16: fn(&Trial),
}

fn trial<D: Drafter, O: Objective<D>>(
    name: &'static str,
    drafter: Value,
    objective: Value,
) -> Trial {
    Trial {
        name,
        drafter,
        objective,
        block: None,
        run: rows_equal_decoding::<D, O>,
        run_in_bf16: held_in_bf16::<D>,
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// The judged rows of chains that a decoder follows: by the place of the last committed token.
fn chains(batch: &Batch, rows: &[Row]) -> BTreeMap<usize, Vec<usize>> {
    let mut chains: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        chains
            .entry(row.teacher - row.step)
            .or_default()
            .push(index);
    }
    for (&committed, rows_of) in &chains {
        for &index in rows_of {
            let reply = committed..=rows[index].teacher + 1;
            let drafted = reply.clone().all(|at| batch.rows.loss_mask[at]);
            assert!(drafted, "no decoder drafts from {committed} over {reply:?}");
        }
    }
    chains
}

fn rows_equal_decoding<D: Drafter, O: Objective<D>>(trial: &Trial) {
    let device = Device::flex();
    let target = tiny::target(&device);
    let config: D::Config = read(&trial.drafter);
    let drafter: D = tiny::fresh(&config, &target, &device);
    let in_graph: D = tiny::fresh(&config, &target, &device.clone().autodiff());
    let capture = D::capture(&config, target.spec()).unwrap();
    let batch = batch(&target, capture, DType::F32);
    let objective = O::new(&read(&trial.objective)).unwrap();
    let lifted = batch.lift(&device.autodiff());
    let loss = objective.loss(&in_graph, &lifted, Statistics::All);
    let distances = loss.distances();
    let features = batch.features.as_ref().unwrap();
    let last: Tensor<2> = features.last.clone().flatten(0, 1);
    let (mut compared, mut far) = (0, 0);
    let chains = chains(&batch, &loss.rows);
    // Some of each document, those at its end among them.
    let mut committed: Vec<usize> = chains.keys().copied().collect();
    committed.sort_by_key(|&at| (at % 37, at));
    committed.truncate(40);
    committed.extend(chains.keys().copied().rev().take(2));
    for committed in committed {
        let (row, column) = (committed / ROW, committed % ROW);
        let at = batch.rows.layout.positions[committed] as usize;
        let of_document = |x: &Tensor<3>| {
            let row = x.clone().narrow(0, row, 1);
            row.narrow(1, column - at, at)
        };
        let tokens = &batch.rows.tokens[committed - at..];
        let known = Features {
            captured: of_document(&features.captured),
            last: of_document(&features.last),
        };
        let of_chain = &chains[&committed];
        let deepest = of_chain.iter().map(|&index| loss.rows[index].step).max();
        let forced_tokens = trial.block.unwrap_or(1 + deepest.unwrap()) - 1;
        let path: Vec<u32> = (0..forced_tokens)
            .map(|step| tokens.get(at + 1 + step).copied().unwrap_or(0))
            .collect();
        let mut state = drafter.start(ROW, tokens[0]);
        drafter.observe(&mut state, &tokens[1..=at], &known);
        let logits = forced(&drafter, &mut state, &path);
        for &index in of_chain {
            let Row { step, teacher, .. } = loss.rows[index];
            let judge = last.clone().narrow(0, teacher, 1).unsqueeze::<3>();
            let judge = host_f32(target.parts().lm_head.forward(judge));
            let (found, expected) = (distances[index] as f64, divergence(&judge, &logits[step]));
            assert!(
                (found - expected).abs() < 1e-4 * (1.0 + expected),
                "{}: place {at} of its text, step {step}: {found} in training, {expected} decoding",
                trial.name
            );
            compared += 1;
            far += usize::from(at > 300);
        }
    }
    assert!(compared > 30 && far > 2, "{}: {compared} {far}", trial.name);
}

/// The types of a module's parameters.
#[derive(Default)]
struct Types(BTreeSet<String>);

impl ModuleVisitor for Types {
    fn visit_float<const N: usize>(&mut self, param: &Param<Tensor<N>>) {
        self.0.insert(format!("{:?}", param.val().dtype()));
    }
}

fn held_in_bf16<D: Drafter>(trial: &Trial) {
    let device = Device::flex();
    let mut random = RandomWeights::new(7);
    let mut scope = Scope::root(&mut random, &device, Stored::BF16);
    let target = Transformer::new(&mut scope, tiny::config()).unwrap();
    let config: D::Config = read(&trial.drafter);
    let drafter: D = tiny::fresh(&config, &target, &device);
    let held = held_in(drafter, DType::BF16);
    let mut types = Types::default();
    held.visit(&mut types);
    assert_eq!(
        types.0,
        BTreeSet::from(["BF16".to_owned()]),
        "{}",
        trial.name
    );
    // The same numbers, computed with in 32 bits.
    let wide_target = held_in(target.clone(), DType::F32);
    let wide: D = tiny::fresh(&config, &wide_target, &device);
    let wide = import(wide, export(&held), trial.name).unwrap();

    let capture = D::capture(&config, target.spec()).unwrap();
    let batch = batch(&target, capture, DType::BF16);
    // The document that comes first.
    let positions = &batch.rows.layout.positions;
    let length = 1 + (1..ROW).take_while(|&at| positions[at] > 0).count();
    let tokens = &batch.rows.tokens[..length];
    let features = batch.features.as_ref().unwrap();
    let first = |x: &Tensor<3>| x.clone().narrow(0, 0, 1).narrow(1, 0, length - 1);
    let seen = Features {
        captured: first(&features.captured),
        last: first(&features.last),
    };
    let logits = |drafter: &D, features: &Features| {
        let mut state = drafter.start(ROW, tokens[0]);
        drafter.observe(&mut state, &tokens[1..], features);
        forced(drafter, &mut state, &[3, 5])
    };
    let found = logits(&held, &seen);
    let of_f32 = Features {
        captured: seen.captured.clone().cast(DType::F32),
        last: seen.last.clone().cast(DType::F32),
    };
    for (found, expected) in found.iter().zip(logits(&wide, &of_f32)) {
        let spread = expected.iter().map(|l| l * l).sum::<f32>().sqrt();
        let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2));
        let apart = apart.sum::<f32>().sqrt();
        assert!(
            apart > 0.0 && apart < 0.05 * spread,
            "{}: {apart} of {spread}",
            trial.name
        );
    }
}

const BY_TARGET: [(&str, f64); 2] = [("label_weight", 0.0), ("teacher_weight", 1.0)];

fn by_target(more: Value) -> Value {
    let mut table = more;
    for (key, weight) in BY_TARGET {
        table[key] = json!(weight);
    }
    table
}

fn fresh(more: Value) -> Value {
    let mut table = more;
    table["fresh"] = json!({ "layers": 2 });
    table
}

/// What is tried of each recipe, by the name in the registry.
fn trials() -> Vec<Trial> {
    let block = |size: usize, more: Value| {
        let mut drafter = more;
        drafter["layers"] = json!(2);
        drafter["block_size"] = json!(size);
        drafter["mask_token"] = json!(MASK);
        drafter
    };
    let in_block = |drafter, block| Trial {
        block: Some(block),
        ..trial::<DFlash, BlockLoss>(
            "dflash",
            drafter,
            by_target(json!({ "slot_weights": "uniform" })),
        )
    };
    let eagle3_1 = json!({ "fc_norm": true, "norm_output": true, "norm_before_residual": true });
    let steps = json!({ "draft_steps": 4, "out_of_vocab": "keep" });
    let kept = json!({ "draft_steps": 4, "recompute": false });
    let hydra = json!({ "hydra_heads": 3, "head_layers": 2, "prefix_layer": true });
    let dspark = json!({
        "conv_taps": 2, "conv_group": 4, "markov_rank": 8, "sample_from_anchor": true,
    });
    let pard = |features: bool| fresh(json!({ "mask_token": MASK, "target_features": features }));
    let masked = |context: &str| {
        fresh(json!({
            "mask_token": MASK, "separator_token": SEPARATOR, "context": context,
        }))
    };
    // A single mask, as how many stand behind the end of a reply is not in the rows.
    let one_mask = || by_target(json!({ "span": 1, "cuts": 9 }));
    let four = by_target(json!({ "draft_tokens": 4 }));
    let heads = by_target(json!({}));
    vec![
        trial::<Eagle3, TrainingTimeTest>("eagle3", json!({}), steps),
        trial::<Eagle3, TrainingTimeTest>("eagle3", eagle3_1, kept),
        trial::<Eagle1, FeatureRegression>("eagle1", json!({}), json!({ "passes": 3 })),
        trial::<Medusa, MedusaLoss>("medusa", json!({ "medusa_heads": 3 }), heads.clone()),
        trial::<Hydra, HydraLoss>("hydra", hydra, heads.clone()),
        in_block(block(6, json!({})), 5),
        in_block(block(5, json!({ "causal": true, "window": 200 })), 4),
        in_block(block(4, dspark), 4),
        Trial {
            block: Some(5),
            ..trial::<DFlash, StagedBlockLoss>("dflash-deer", block(6, json!({})), heads.clone())
        },
        trial::<Pard, PardLoss>("pard", pard(false), four.clone()),
        trial::<Pard, PardLoss>("pard", pard(true), four),
        trial::<MaskedLanguageModel, DeerLoss>("deer", masked("bidirectional"), one_mask()),
        trial::<MaskedLanguageModel, DeerLoss>("deer", masked("causal"), one_mask()),
        trial::<LanguageModel, Distill>("distillspec", fresh(json!({})), heads),
    ]
}

#[test]
fn every_recipe_trains_on_the_logits_that_it_drafts_with() {
    let trials = trials();
    let tried: BTreeSet<&str> = trials.iter().map(|trial| trial.name).collect();
    let registered: BTreeSet<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    assert_eq!(tried, registered);
    for trial in &trials {
        (trial.run)(trial);
    }
}

#[test]
fn every_recipe_drafts_in_the_type_of_a_target_of_16_bits() {
    for trial in &trials() {
        (trial.run_in_bf16)(trial);
    }
}
