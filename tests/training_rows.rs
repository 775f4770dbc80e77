//! What a training step computes is what a decoder drafts with: every position that a loss judges is as far from the target
//! as the decoder's logits say. In a graph, on rows of more than 300 tokens with several documents, for every recipe.
use std::collections::BTreeMap;

use burn::prelude::*;
use burn::tensor::DType;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use spectrain::families::registry::find;
use spectrain_checkpoints::DType as Stored;
use spectrain_data::Sample;
use spectrain_data::tokens::{TokenShards, TokenWriter};
use spectrain_models::device::test_device;
use spectrain_models::weights::{held_in, host_f32};
use spectrain_models::{
    Capture, Features, Proposer, RandomWeights, Scope, Target as _, Transformer,
};
use spectrain_train::{Batch, BatchSource as _, JudgedRow, LiveFeatures, Samples, Statistics};

use crate::samples::{Trial, changed, trials};
use crate::tiny;

/// Of a packed row, which is no multiple of any block of queries.
const ROW: usize = 701;
/// The lengths of documents, two to a row.
const DOCUMENTS: [usize; 4] = [389, 305, 452, 241];
/// Tokens that texts hold; those above are masks and separators.
const SPOKEN: u32 = 46;

/// Conversations of random tokens in which what is trained on has gaps, as between the turns of an assistant.
fn documents() -> Vec<Sample> {
    let mut rng = StdRng::seed_from_u64(17);
    let document = |length: usize| Sample {
        tokens: (0..length).map(|_| rng.random_range(0..SPOKEN)).collect(),
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
        let shifted = logits.iter().map(|&l| l as f64 - largest - sum.ln());
        shifted.collect()
    };
    let (p, q) = (log_softmax(target), log_softmax(drafter));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// The judged rows of chains that a decoder follows: by the place of the last committed token.
fn chains(batch: &Batch, rows: &[JudgedRow]) -> BTreeMap<usize, Vec<usize>> {
    let mut chains: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        let committed = row.teacher - row.step;
        chains.entry(committed).or_default().push(index);
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

/// Some committed tokens of each document, those at its end among them.
fn some(chains: &BTreeMap<usize, Vec<usize>>) -> Vec<usize> {
    let mut committed: Vec<usize> = chains.keys().copied().collect();
    committed.sort_by_key(|&at| (at % 37, at));
    committed.truncate(40);
    committed.extend(chains.keys().copied().rev().take(2));
    committed
}

/// Shows a proposer a document up to the token at `committed`, and returns the tokens behind it.
fn shown<'a>(session: &mut dyn Proposer, batch: &'a Batch, committed: usize) -> &'a [u32] {
    let (row, column) = (committed / ROW, committed % ROW);
    let at = batch.rows.layout.positions[committed] as usize;
    let of_document = |x: &Tensor<3>| {
        let row = x.clone().narrow(0, row, 1);
        row.narrow(1, column - at, at)
    };
    let features = batch.features.as_ref().unwrap();
    let known = Features {
        captured: of_document(&features.captured),
        last: of_document(&features.last),
    };
    let tokens = &batch.rows.tokens[committed - at..];
    session.start(ROW, tokens[0]);
    session.observe(&tokens[1..=at], &known);
    &tokens[at + 1..]
}

fn rows_equal_decoding(trial: &Trial) {
    let device = test_device();
    let target = tiny::target(&device);
    let mut trainee = trial.trainee(&target, &device.clone().autodiff());
    let capture = trial.method().capture(target.spec()).unwrap();
    let batch = batch(&target, capture, DType::F32);
    let loss = trainee.accumulate_as_measured(&batch, Statistics::All);
    let distances = loss.distances();
    let last: Tensor<2> = batch.features.as_ref().unwrap().last.clone().flatten(0, 1);
    let mut session = trainee.proposer(DType::F32).unwrap();
    let (mut compared, mut far) = (0, 0);
    let chains = chains(&batch, &loss.rows);
    for committed in some(&chains) {
        let of_chain = &chains[&committed];
        let deepest = of_chain.iter().map(|&index| loss.rows[index].step).max();
        let following = shown(session.as_mut(), &batch, committed);
        // A block is as long as it is trained.
        let drafted = session.draft_length().max(1 + deepest.unwrap());
        let path = (0..drafted - 1).map(|step| following.get(step).copied().unwrap_or(0));
        let logits = session.forced(&path.collect::<Vec<u32>>());
        for &index in of_chain {
            let JudgedRow { step, teacher, .. } = loss.rows[index];
            let judge = last.clone().narrow(0, teacher, 1).unsqueeze::<3>();
            let judge = host_f32(target.parts().lm_head.forward(judge));
            let (found, expected) = (distances[index] as f64, divergence(&judge, &logits[step]));
            assert!(
                (found - expected).abs() < 1e-4 * (1.0 + expected),
                "{}: {committed}, step {step}: {found} in training, {expected} decoding",
                trial.name
            );
            compared += 1;
            far += usize::from(batch.rows.layout.positions[committed] > 300);
        }
    }
    assert!(compared > 30 && far > 2, "{}: {compared} {far}", trial.name);
}

#[test]
fn every_recipe_trains_on_the_logits_that_it_drafts_with() {
    for trial in &trials() {
        rows_equal_decoding(trial);
    }
}

#[test]
fn peagle_with_heads_of_its_own_width_trains_on_the_logits_that_it_drafts_with() {
    let peagle = find("peagle").unwrap();
    for (tables, d_head) in peagle.trials.iter().zip([6, 12]) {
        let own = changed(peagle, tables, &[format!("drafter.d_head={d_head}")]);
        rows_equal_decoding(&own);
    }
}

fn drafts_in_bf16(trial: &Trial) {
    let device = test_device();
    let mut random = RandomWeights::new(7);
    let mut scope = Scope::root(&mut random, &device, Stored::BF16);
    let target = Transformer::new(&mut scope, tiny::config()).unwrap();
    let drafter = trial.drafter(&target.parts());
    let held = drafter.held_in(DType::BF16);
    // The same numbers, computed with in 32 bits.
    let wide = trial.drafter(&held_in(target.clone(), DType::F32).parts());
    let wide = wide.rounded(Stored::BF16).unwrap();
    let capture = trial.method().capture(target.spec()).unwrap();
    let found = batch(&target, capture.clone(), DType::BF16);
    let features = found.features.as_ref().unwrap();
    let mut of_f32 = found.clone();
    of_f32.features = Some(Features {
        captured: features.captured.clone().cast(DType::F32),
        last: features.last.clone().cast(DType::F32),
    });
    let logits = |session: &mut dyn Proposer, batch: &Batch| {
        shown(session, batch, DOCUMENTS[0] - 2);
        session.forced(&[3, 5])
    };
    let expected = logits(wide.session().as_mut(), &of_f32);
    for (found, expected) in logits(held.session().as_mut(), &found).iter().zip(expected) {
        let spread = expected.iter().map(|l| l * l).sum::<f32>().sqrt();
        let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2));
        let apart = apart.sum::<f32>().sqrt();
        let near = apart > 0.0 && apart < 0.05 * spread;
        assert!(near, "{}: {apart} of {spread}", trial.name);
    }
}

#[test]
fn every_recipe_drafts_in_the_type_of_a_target_of_16_bits() {
    for trial in &trials() {
        drafts_in_bf16(trial);
    }
}
