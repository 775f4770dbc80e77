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
use spectrain_models::device::test_device;
use spectrain_models::draft_heads::{DraftHeads, OutputHead};
use spectrain_models::hydra::{Hydra, HydraConfig};
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Capture, Children, DraftShape, Features, Proposer, Sampling, Session, StaticTree, Target,
    Transformer, Tree,
};
use spectrain_train::{
    Batch, HeadsLoss, HeadsLossConfig, Objective, Statistics, Train, TrainConfig, Trainee,
};

use crate::golden::assert_close;
use crate::heads_parity::following;
use crate::tiny;

const HEADS: usize = 3;
const NEW_TOKENS: usize = 48;
const PROMPT: [u32; 4] = [1, 2, 3, 4];
const CHAIN: DraftShape = DraftShape::Chain { length: HEADS };
/// Nine tenths of the tokens that a pass can give.
const ALMOST_ALL: f64 = 0.9 * (HEADS + 1) as f64;

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

/// What the heads say in training of packed rows.
struct Trained {
    batch: Batch,
    logits: Vec<Vec<f32>>,
}

impl Trained {
    fn new<D: DraftHeads>(drafter: &D, batch: Batch) -> Self {
        let shifted: Vec<_> = (0..HEADS).map(|head| following(&batch, head)).collect();
        let last = batch.features.as_ref().unwrap().last.clone();
        let hidden = drafter.hidden(&shifted, &batch.layout, last);
        let logits = |(head, hidden)| host_f32(drafter.output(head).logits(hidden));
        Self {
            logits: hidden.into_iter().enumerate().map(logits).collect(),
            batch,
        }
    }

    /// Logits of a head at an index of all rows one after the other.
    fn at(&self, head: usize, index: usize) -> &[f32] {
        &self.logits[head][index * tiny::VOCAB..][..tiny::VOCAB]
    }

    /// The features of `tokens` tokens from an index of a row on.
    fn features(&self, row: usize, start: usize, tokens: usize) -> Features {
        let features = self.batch.features.as_ref().unwrap();
        let of = |x: &Tensor<3>| x.clone().narrow(0, row, 1).narrow(1, start, tokens);
        Features {
            captured: of(&features.captured),
            last: of(&features.last),
        }
    }
}

/// Fails unless every head says what is expected of it behind `end` tokens and further true ones.
fn decodes_as<'a, D: DraftHeads>(
    what: &str,
    drafter: &D,
    (tokens, features, end): (&[u32], &Features, usize),
    expected: impl Fn(usize) -> &'a [f32],
) {
    let mut state = drafter.start(64, 0);
    for (from, to) in [(0, 3), (3, 4), (4, end)] {
        let known = features.select(&(from..to).collect::<Vec<_>>());
        drafter.observe(&mut state, &tokens[from + 1..=to], &known);
    }
    let root = host_f32(drafter.root_logits(&mut state));
    assert_close(what, &root, expected(0), 1e-5);
    // At each depth the true token comes second, after another one.
    let mut tree = Tree::default();
    let mut parent = None;
    for head in 1..HEADS {
        let token = tokens[end + head];
        let other = tree.push((token + 1) % tiny::VOCAB as u32, parent);
        let node = tree.push(token, parent);
        let rows = host_f32(drafter.node_logits(&mut state, &tree, &[other, node]));
        let what = format!("{what}, head {head}");
        assert_close(&what, &rows[tiny::VOCAB..], expected(head), 1e-5);
        parent = Some(node);
    }
    drafter.rewind(&mut state);
    let again = host_f32(drafter.root_logits(&mut state));
    assert_eq!(again, root, "{what}");
}

/// Index `t` of head `k` over packed rows is what the decoder gets after `t + 1` true features and `k` draft tokens, in
/// whatever pieces the features came and whatever else is in the tree.
fn training_equals_decoding<D: DraftHeads>(config: &D::Config) {
    let device = test_device();
    let target = tiny::target(&device);
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let drafter: D = tiny::drafter(config, &target, &vocabulary, &device);
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::random_samples(3);
    let packed = tiny::samples(folder.path(), &samples, 2);
    let batch = tiny::batch(&mut tiny::live(packed, &target, Capture::default()));
    let trained = Trained::new(&drafter, batch);

    let layout = &trained.batch.rows.layout;
    let mut prefixes = 0;
    for (row, packed) in trained.batch.rows.packed.rows.iter().enumerate() {
        let mut start = 0;
        for &sample in packed {
            let tokens = &samples[sample].tokens;
            let features = trained.features(row, start, tokens.len());
            for end in [5, 8] {
                let what = format!("sample {sample}, prefix {end}");
                let index = row * layout.row_length + start + end - 1;
                let expected = |head: usize| trained.at(head, index);
                decodes_as(&what, &drafter, (tokens, &features, end), expected);
                prefixes += 1;
            }
            start += tokens.len();
        }
    }
    assert!(prefixes * (HEADS - 1) >= 12, "{prefixes}");
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
    let device = test_device();
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
    let device = test_device();
    let target = tiny::target(&device);
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let parts = target.parts();
    let drafter =
        <Medusa as spectrain_models::Drafter>::fresh(&medusa(), &parts, &vocabulary, 3, &device);
    let drafter = drafter.unwrap();
    let last = Tensor::<3>::random([1, 4, 32], burn::tensor::Distribution::Default, &device);
    let layout = spectrain_models::Layout::whole([1, 4], &device);
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

fn settings(draft: DraftShape) -> DecodeSettings {
    DecodeSettings {
        max_new_tokens: NEW_TOKENS,
        draft,
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    }
}

/// The target's greedy text behind [`PROMPT`].
fn greedy_text(decoder: &Decoder) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(0);
    let plain = decoder.plain(&PROMPT, &settings(CHAIN), &mut rng);
    plain.unwrap().tokens
}

/// The tokens of each pass with a drafter, which must come to the target's own text.
fn emitted(
    decoder: &Decoder,
    text: &[u32],
    session: &mut dyn Proposer,
    draft: DraftShape,
) -> Vec<usize> {
    let mut rng = StdRng::seed_from_u64(0);
    let drafted = decoder.generate(session, &Greedy, &PROMPT, &settings(draft), &mut rng);
    let drafted = drafted.unwrap();
    assert_eq!(
        drafted.tokens, text,
        "speculation must not change greedy output"
    );
    drafted.passes.iter().map(|pass| pass.emitted).collect()
}

/// A drafter that was trained on nothing but one text.
fn overfitted<D: DraftHeads + Shipped, O: Objective<D>>(
    config: &D::Config,
    objective: &O::Config,
    target: &Transformer,
    text: &[u32],
) -> D {
    let tokens: Vec<u32> = PROMPT.iter().chain(text).copied().collect();
    let sample = Sample {
        loss_mask: (0..tokens.len()).map(|at| at >= PROMPT.len()).collect(),
        tokens,
    };
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &[sample], 1);
    let capture = D::capture(config, target.spec()).unwrap();
    let batch = tiny::batch(&mut tiny::live(samples, target, capture));

    let graph = target.device().autodiff();
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let drafter = D::fresh(config, &target.parts(), &vocabulary, 5, &graph).unwrap();
    let objective = O::new(objective).unwrap();
    let mut trainee = Trainee::drafter(drafter, objective, TrainConfig::default().optimizer());
    let before = trainee.measure(&batch).total;
    for _ in 0..200 {
        trainee.accumulate_as_measured(&batch, Statistics::Loss);
        trainee.update(5e-3, 1.0);
    }
    let last = trainee.measure(&batch);
    let after = last.total;
    assert!(after < 0.3 * before, "loss {before} -> {after}");
    assert!(last.simulated_tau > ALMOST_ALL, "{last:?}");
    trainee.model()
}

/// Trains on the target's own greedy text, decodes it, writes the drafter and decodes with what is read back.
fn learns<D: DraftHeads + Shipped, O: Objective<D>>(config: &D::Config, objective: &O::Config) {
    let device = test_device();
    let target = tiny::target(&device);
    let capture = D::capture(config, target.spec()).unwrap();
    let decoder = Decoder::new(&target, &capture);
    let text = greedy_text(&decoder);
    let decode = |session: &mut dyn Proposer, draft| emitted(&decoder, &text, session, draft);

    let trained: D = overfitted::<D, O>(config, objective, &target, &text);
    let by_trained = decode(&mut Session::new(trained.clone()), CHAIN);
    let tau = by_trained.iter().sum::<usize>() as f64 / by_trained.len() as f64;
    assert!(tau > ALMOST_ALL, "τ {tau} of at most {}", HEADS + 1);

    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("written");
    write_usual(&trained, &written, DType::F32, &Value::Null).unwrap();
    let read = open_drafter(&written, &target.parts(), &device).unwrap();
    assert_eq!(decode(read.session().as_mut(), CHAIN), by_trained);

    // A tree holds the chain, whoever drafts; it is cut to the depth that there are heads for.
    let tree = || DraftShape::Static {
        tree: StaticTree::named("medusa-63").unwrap(),
        children: Children::Top,
    };
    assert!(decode(read.session().as_mut(), tree()).len() <= by_trained.len());
    let untrained: D = tiny::fresh(config, &target, &device);
    let by_chain = decode(&mut Session::new(untrained.clone()), CHAIN).len();
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
        label_weight: 0.0.into(),
        teacher_weight: 1.0.into(),
        divergence: spectrain_train::Divergence::Kl,
        ..Default::default()
    };
    learns::<Hydra, HeadsLoss>(&hydra_plus_plus(), &objective);
}
