//! Medusa's and Hydra's heads in the decoder: they say what they said in training, and once they have overfitted a text
//! they draft nearly all of it, before and after they were written to a folder.
use burn::module::Module as _;
use burn::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::Value;
use spectrain::families::registry::open_drafter;
use spectrain::families::shipped::Shipped;
use spectrain::families::trained::write_usual;
use spectrain_checkpoints::DType;
use spectrain_data::Sample;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::draft_heads::{DraftHeads, OutputHead};
use spectrain_models::hydra::{Hydra, HydraConfig};
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Capture, Children, DraftShape, Features, Proposer, RandomWeights, Sampling, Session,
    StaticTree, Target, Tree,
};
use spectrain_train::{
    BatchSource, HeadsLoss, HeadsLossConfig, Objective, Statistics, Train, TrainConfig, Trainee,
};

use crate::golden::assert_close;
use crate::tiny;

const HEADS: usize = 3;
const NEW_TOKENS: usize = 48;

fn medusa() -> MedusaConfig {
    MedusaConfig {
        medusa_heads: HEADS,
        ..Default::default()
    }
}

fn hydra() -> HydraConfig {
    HydraConfig {
        hydra_heads: HEADS,
        ..Default::default()
    }
}

fn hydra_plus_plus() -> HydraConfig {
    HydraConfig {
        head_layers: 2,
        prefix_layer: true,
        ..hydra()
    }
}

/// Index `t` of head `k` over packed rows is what the decoder gets after `t + 1` true features and `k` draft tokens, in
/// whatever pieces the features came and whatever else is in the tree.
fn training_equals_decoding<D: DraftHeads>(config: &D::Config) {
    let device = Device::flex();
    let target = tiny::target(&device);
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let mut random = RandomWeights::new(11);
    let drafter = D::new(config, &target.parts(), &vocabulary, &mut random, &device).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::random_samples(3);
    let packed = tiny::samples(folder.path(), &samples, 2);
    let batch = tiny::batch(&mut tiny::live(packed, &target, Capture::default()));
    let features = batch.features.as_ref().unwrap();
    let length = batch.rows.layout.row_length;
    let shifted: Vec<_> = (1..=HEADS)
        .map(|by| {
            let rows = batch.rows.tokens.chunks(length).flat_map(|row| {
                let kept = row[by..].iter().map(|&token| token as i64);
                kept.chain(std::iter::repeat_n(0, by))
            });
            let ids: Vec<i64> = rows.collect();
            Tensor::<1, Int>::from_ints(ids.as_slice(), &device).reshape(batch.tokens.dims())
        })
        .collect();
    let trained: Vec<Vec<f32>> = drafter
        .hidden(&shifted, &batch.layout, features.last.clone())
        .into_iter()
        .enumerate()
        .map(|(head, hidden)| host_f32(drafter.output(head).logits(hidden)))
        .collect();

    let mut compared = 0;
    for (row, packed) in batch.rows.packed.rows.iter().enumerate() {
        let mut start = 0;
        for &sample in packed {
            let tokens = &samples[sample].tokens;
            let of_sample = |x: &Tensor<3>| {
                let row = x.clone().narrow(0, row, 1);
                row.narrow(1, start, tokens.len())
            };
            let features = Features {
                captured: of_sample(&features.captured),
                last: of_sample(&features.last),
            };
            for end in [5, 8] {
                let mut state = drafter.start(64, 0);
                for (from, to) in [(0, 3), (3, 4), (4, end)] {
                    let known = features.select(&(from..to).collect::<Vec<_>>());
                    drafter.observe(&mut state, &tokens[from + 1..=to], &known);
                }
                let expected = |head: usize| {
                    let at = (row * length + start + end - 1) * tiny::VOCAB;
                    &trained[head][at..at + tiny::VOCAB]
                };
                let what = format!("sample {sample}, prefix {end}");
                let root = host_f32(drafter.root_logits(&mut state));
                assert_close(&what, &root, expected(0), 1e-5);
                // At each depth the true token comes second, after another one.
                let mut tree = Tree::default();
                let mut parent = None;
                for head in 1..HEADS {
                    let token = tokens[end + head];
                    let other = tree.push((token + 1) % tiny::VOCAB as u32, parent);
                    let node = tree.push(token, parent);
                    let logits = drafter.node_logits(&mut state, &tree, &[other, node]);
                    let rows = host_f32(logits);
                    let what = format!("{what}, head {head}");
                    assert_close(&what, &rows[tiny::VOCAB..], expected(head), 1e-5);
                    parent = Some(node);
                    compared += 1;
                }
                drafter.rewind(&mut state);
                let again = host_f32(drafter.root_logits(&mut state));
                assert_eq!(again, root, "{what}");
            }
            start += tokens.len();
        }
    }
    assert!(compared >= 12, "{compared}");
}

#[test]
fn medusas_training_logits_equal_decoding_logits() {
    let config = MedusaConfig {
        head_layers: 2,
        ..medusa()
    };
    training_equals_decoding::<Medusa>(&config);
}

#[test]
fn hydras_training_logits_equal_decoding_logits() {
    training_equals_decoding::<Hydra>(&hydra());
}

#[test]
fn hydra_plus_pluss_training_logits_equal_decoding_logits() {
    training_equals_decoding::<Hydra>(&hydra_plus_plus());
}

#[test]
fn a_pass_reads_one_head_after_the_other_or_all_at_once_and_the_targets_where_that_is_used() {
    let device = Device::flex();
    let target = tiny::target(&device);
    let (head, d) = (tiny::VOCAB * 32, 32);
    let read = |drafter: &dyn Proposer| (drafter.passes(9), drafter.parameters_per_pass());
    let own = Session::new(tiny::fresh::<Medusa>(&medusa(), &target, &device));
    let shared = MedusaConfig {
        head: OutputHead::Shared,
        ..medusa()
    };
    let shared = Session::new(tiny::fresh::<Medusa>(&shared, &target, &device));
    let blocks = HEADS * (d * d + d);
    assert_eq!(read(&own), (1, (blocks + HEADS * head) as u64));
    assert_eq!(read(&shared), (1, (blocks + head) as u64));
    let shared = HydraConfig {
        head: OutputHead::Shared,
        ..hydra()
    };
    let drafter: Hydra = tiny::fresh(&shared, &target, &device);
    let per_head = drafter.num_params() / HEADS;
    let read_by_hydra = read(&Session::new(drafter));
    assert_eq!(read_by_hydra, (HEADS, (per_head + head) as u64));
}

#[test]
fn untrained_medusa_heads_say_nearly_what_the_target_says() {
    let device = Device::flex();
    let target = tiny::target(&device);
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let parts = target.parts();
    let drafter =
        <Medusa as spectrain_models::Drafter>::fresh(&medusa(), &parts, &vocabulary, 3, &device);
    let drafter = drafter.unwrap();
    let last = Tensor::<3>::random([1, 4, 32], burn::tensor::Distribution::Default, &device);
    let layout = spectrain_models::Layout {
        documents: Tensor::ones([1, 4], &device),
        positions: Tensor::zeros([1, 4], &device),
    };
    for (head, hidden) in drafter
        .hidden(&[], &layout, last.clone())
        .into_iter()
        .enumerate()
    {
        // A block adds SiLU of its bias, which is small, and nothing that depends on its input.
        let added = hidden - last.clone().reshape([4, 32]);
        let rows = host_f32(added);
        assert_close("rows alike", &rows[..32], &rows[32..64], 1e-6);
        assert!(rows.iter().all(|x| x.abs() < 0.2), "{rows:?}");
        let weight = host_f32(drafter.output(head).weight);
        assert_eq!(weight, host_f32(parts.lm_head.weight.val()));
    }
}

/// Trains on the target's own greedy text, decodes it, writes the drafter and decodes with what is read back.
fn learns<D: DraftHeads + Shipped, O: Objective<D>>(config: &D::Config, objective: &O::Config) {
    let device = Device::flex();
    let target = tiny::target(&device);
    let capture = D::capture(config, target.spec()).unwrap();
    let decoder = Decoder::new(&target, &capture);
    let settings = DecodeSettings {
        max_new_tokens: NEW_TOKENS,
        draft: DraftShape::Chain { length: HEADS },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    };
    let prompt = [1, 2, 3, 4];
    let mut rng = StdRng::seed_from_u64(0);
    let plain = decoder.plain(&prompt, &settings, &mut rng).unwrap();
    let tokens: Vec<u32> = prompt.iter().chain(&plain.tokens).copied().collect();
    let sample = Sample {
        loss_mask: (0..tokens.len()).map(|at| at >= prompt.len()).collect(),
        tokens,
    };
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &[sample], 1);
    let mut source = tiny::live(samples.clone(), &target, capture.clone());
    let batch = source.batch(samples.epoch(0).unwrap().remove(0)).unwrap();

    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let (parts, graph) = (target.parts(), device.clone().autodiff());
    let drafter = D::fresh(config, &parts, &vocabulary, 5, &graph).unwrap();
    let objective = O::new(objective).unwrap();
    let mut trainee = Trainee::drafter(drafter, objective, TrainConfig::default().optimizer());
    let first = trainee.measure(&batch);
    for _ in 0..200 {
        trainee.accumulate(&batch, Statistics::Loss);
        trainee.update(5e-3, 1.0);
    }
    let last = trainee.measure(&batch);
    let (before, after) = (first.total, last.total);
    assert!(after < 0.3 * before, "loss {before} -> {after}");
    assert!(last.simulated_tau > 0.9 * (HEADS + 1) as f64, "{last:?}");

    let mut decode = |session: &mut dyn Proposer, draft: DraftShape| {
        let settings = DecodeSettings {
            draft,
            ..settings.clone()
        };
        let drafted = decoder
            .generate(session, &Greedy, &prompt, &settings, &mut rng)
            .unwrap();
        assert_eq!(
            drafted.tokens, plain.tokens,
            "speculation must not change greedy output"
        );
        drafted
            .passes
            .iter()
            .map(|pass| pass.emitted)
            .collect::<Vec<_>>()
    };
    let chain = || settings.draft.clone();
    let trained = trainee.model();
    let emitted = decode(&mut Session::new(trained.clone()), chain());
    let tau = emitted.iter().sum::<usize>() as f64 / emitted.len() as f64;
    assert!(
        tau > 0.9 * (HEADS + 1) as f64,
        "τ {tau} of at most {}",
        HEADS + 1
    );

    let written = folder.path().join("written");
    write_usual(&trained, &written, DType::F32, &Value::Null).unwrap();
    let read = open_drafter(&written, &parts, &device).unwrap();
    assert_eq!(decode(read.session().as_mut(), chain()), emitted);

    // A tree holds the chain, whoever drafts; it is cut to the depth that there are heads for.
    let tree = || DraftShape::Static {
        tree: StaticTree::named("medusa-63").unwrap(),
        children: Children::Top,
    };
    assert!(decode(read.session().as_mut(), tree()).len() <= emitted.len());
    let untrained = D::fresh(config, &parts, &vocabulary, 6, &device).unwrap();
    let by_chain = decode(&mut Session::new(untrained.clone()), chain()).len();
    let by_tree = decode(&mut Session::new(untrained), tree()).len();
    assert!(
        by_tree <= by_chain,
        "{by_tree} passes, {by_chain} by chains"
    );
}

#[test]
fn overfitted_medusa_heads_draft_almost_everything() {
    learns::<Medusa, HeadsLoss>(&medusa(), &HeadsLossConfig::default());
}

#[test]
fn overfitted_medusa_heads_on_the_targets_head_draft_almost_everything() {
    let config = MedusaConfig {
        head: OutputHead::Shared,
        head_layers: 2,
        ..medusa()
    };
    learns::<Medusa, HeadsLoss>(&config, &HeadsLossConfig::default());
}

#[test]
fn overfitted_hydra_heads_draft_almost_everything() {
    learns::<Hydra, HeadsLoss>(&hydra(), &HeadsLossConfig::default());
}

#[test]
fn overfitted_hydra_plus_plus_heads_draft_almost_everything() {
    let objective = HeadsLossConfig {
        label_weight: 0.0,
        teacher_weight: 1.0,
        divergence: spectrain_train::Divergence::Kl,
        ..Default::default()
    };
    learns::<Hydra, HeadsLoss>(&hydra_plus_plus(), &objective);
}
