//! Draft trees with a real target and drafter: the output of greedy decoding is the target's own, caches change nothing,
//! and a node's logits depend on its path alone.
use burn::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use spectrain_checkpoints::DType;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::{DecodeSettings, Decoder, Generation, VerifierChoice};
use spectrain_models::device::test_device;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Caches, Capture, Children, Draft, DraftRequest, DraftShape, Drafter, Features, KnownText,
    LogitRows, Pass, Proposer, RandomWeights, Sampling, Scope, Session, StaticTree, TakeLogits,
    Target, TargetOutput, TargetParts, TargetSpec, Transformer, Tree, chain, forced,
};

use crate::golden::assert_close;
use crate::tiny;

struct Pair {
    target: Transformer,
    drafter: Eagle3,
    capture: Capture,
}

/// A random target, one of whose layers sees eleven positions back, and a drafter of half of its vocabulary.
fn pair() -> Pair {
    let device = test_device();
    let mut config = tiny::config();
    config.spec.layers = 3;
    config.windows = vec![None, Some(11), None];
    let mut random = RandomWeights::new(7);
    let scope = &mut Scope::root(&mut random, &device, DType::F32);
    let target = Transformer::new(scope, config).unwrap();
    let config = Eagle3Config::default();
    let offsets: Vec<i64> = (0..tiny::VOCAB as i64 / 2).collect();
    let vocabulary = DraftVocabulary::from_d2t(&offsets, tiny::VOCAB).unwrap();
    let drafter: Eagle3 = tiny::drafter(&config, &target, &vocabulary, &device);
    let capture = tiny::eagle3_capture(&config, &target);
    Pair {
        target,
        drafter,
        capture,
    }
}

fn named(tree: &str, children: Children) -> DraftShape {
    DraftShape::Static {
        tree: StaticTree::named(tree).unwrap(),
        children,
    }
}

const DYNAMIC: DraftShape = DraftShape::Dynamic {
    depth: 4,
    top_k: 4,
    nodes: 20,
};

fn settings(draft: DraftShape, sampling: Sampling, max_new_tokens: usize) -> DecodeSettings {
    DecodeSettings {
        max_new_tokens,
        draft,
        sampling,
        stop: Vec::new(),
        shadow: None,
    }
}

/// Greedy decoding of random prompts, with drafts of this shape and without, over ten thousand tokens.
fn ten_thousand_tokens(draft: DraftShape) {
    let pair = pair();
    let decoder = Decoder::new(&pair.target, &pair.capture);
    let settings = settings(draft, Sampling::GREEDY, 250);
    let verifier = VerifierChoice::Exact.at(&settings.sampling);
    let mut session = Session::new(pair.drafter);
    let mut rng = StdRng::seed_from_u64(1);
    let mut tokens = 0;
    let mut accepted = Vec::new();
    while tokens < 10_000 {
        let length = rng.random_range(1..9);
        let prompt: Vec<u32> = (0..length)
            .map(|_| rng.random_range(0..tiny::VOCAB as u32))
            .collect();
        let drafted = decoder.generate(&mut session, verifier, &prompt, &settings, &mut rng);
        let drafted = drafted.unwrap();
        let plain = decoder.plain(&prompt, &settings, &mut rng).unwrap();
        assert_eq!(drafted.tokens, plain.tokens);
        tokens += plain.tokens.len();
        accepted.extend(drafted.passes.iter().map(|pass| pass.accepted));
    }
    let deep = accepted.iter().filter(|&&accepted| accepted > 1).count();
    assert!(deep > 20, "{deep} of {} passes", accepted.len());
}

#[test]
fn greedy_decoding_with_a_static_tree_gives_the_targets_own_tokens() {
    ten_thousand_tokens(named("eagle-25", Children::Top));
}

#[test]
fn greedy_decoding_with_a_dynamic_tree_gives_the_targets_own_tokens() {
    ten_thousand_tokens(DYNAMIC);
}

/// A target that computes everything anew at every pass: its caches hold the tokens only.
struct Uncached<'a>(&'a Transformer);

impl Target for Uncached<'_> {
    fn dtype(&self) -> burn::tensor::DType {
        self.0.dtype()
    }

    fn parts(&self) -> TargetParts {
        self.0.parts()
    }

    fn spec(&self) -> &TargetSpec {
        self.0.spec()
    }

    fn device(&self) -> Device {
        self.0.device()
    }

    fn parameters(&self) -> u64 {
        self.0.parameters()
    }

    fn parameters_per_pass(&self) -> u64 {
        self.0.parameters_per_pass()
    }

    fn decode(&self, pass: Pass, caches: &mut Caches, capture: &Capture) -> TargetOutput {
        let (held, count) = (caches.len, pass.tokens.len());
        let rows: Vec<f32> = pass.tokens.iter().map(|&token| token as f32).collect();
        let rows = Tensor::<1>::from_floats(rows.as_slice(), &self.device());
        let rows = rows.reshape([1, 1, count, 1]);
        let held_rows = &mut caches.layers[0];
        held_rows.append(rows.clone(), rows);
        let (tokens, _) = held_rows.first(held + count);
        caches.len += count;
        let tokens: Vec<u32> = host_f32(tokens).iter().map(|&token| token as u32).collect();
        let mut parents = chain(held);
        let below =
            |parent: &Option<usize>| parent.map_or(held.checked_sub(1), |at| Some(held + at));
        parents.extend(pass.parents.iter().map(below));
        let whole = Pass {
            tokens: &tokens,
            parents: &parents,
            logits: LogitRows::All,
        };
        let mut fresh = Caches::new(self.spec().layers, 1);
        let output = self.0.decode(whole, &mut fresh, capture);
        let wanted = match pass.logits {
            LogitRows::All => count,
            LogitRows::Last => 1,
        };
        let positions: Vec<usize> = (held..held + count).collect();
        TargetOutput {
            logits: output.logits.narrow(0, held + count - wanted, wanted),
            features: output.features.select(&positions),
        }
    }
}

/// A drafter that takes in everything anew before every draft.
struct Forgetful {
    session: Session<Eagle3>,
    tokens: Vec<u32>,
    features: Vec<Features>,
}

impl Proposer for Forgetful {
    fn forced(&mut self, _: &[u32]) -> Vec<Vec<f32>> {
        unreachable!("nothing is forced here")
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        self.session.along(text, take);
    }

    fn follows_text(&self) -> bool {
        self.session.follows_text()
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        self.session.vocabulary()
    }

    fn max_depth(&self) -> Option<usize> {
        self.session.max_depth()
    }

    fn draft_length(&self) -> usize {
        self.session.draft_length()
    }

    fn has_confidence(&self) -> bool {
        false
    }

    fn start(&mut self, _: usize, _: u32) {
        self.tokens.clear();
        self.features.clear();
    }

    fn observe(&mut self, tokens: &[u32], features: &Features) {
        self.tokens.extend(tokens);
        self.features.push(features.clone());
    }

    fn judged(&mut self, tokens: &[u32], logits: &Tensor<2>) {
        self.session.judged(tokens, logits);
    }

    fn propose(&mut self, request: &DraftRequest, rng: &mut StdRng) -> Draft {
        let all = |part: fn(&Features) -> &Tensor<3>| {
            Tensor::cat(
                self.features
                    .iter()
                    .map(|held| part(held).clone())
                    .collect(),
                1,
            )
        };
        let features = Features {
            captured: all(|features| &features.captured),
            last: all(|features| &features.last),
        };
        self.session.start(1, 0);
        self.session.observe(&self.tokens, &features);
        self.session.propose(request, rng)
    }

    fn ranks(&mut self, _: &[u32]) -> Vec<Option<usize>> {
        unreachable!("nothing is calibrated here")
    }

    fn passes(&self, depth: usize) -> usize {
        self.session.passes(depth)
    }

    fn parameters_per_pass(&self) -> u64 {
        self.session.parameters_per_pass()
    }
}

#[test]
fn decoding_with_caches_is_decoding_without_them() {
    let pair = pair();
    let mut cached = Session::new(pair.drafter.clone());
    let mut uncached = Forgetful {
        session: Session::new(pair.drafter),
        tokens: Vec::new(),
        features: Vec::new(),
    };
    let mut deep = 0;
    for (draft, sampling) in [
        (named("medusa-63", Children::Top), Sampling::GREEDY),
        (DYNAMIC, Sampling::GREEDY),
        (DYNAMIC, Sampling::at(0.7)),
        (
            named("eagle-25", Children::WithoutReplacement),
            Sampling::at(0.7),
        ),
        (DraftShape::Chain { length: 4 }, Sampling::at(0.7)),
    ] {
        let settings = settings(draft, sampling, 60);
        let decode = |target: &dyn Target, proposer: &mut dyn Proposer| -> Generation {
            let decoder = Decoder::new(target, &pair.capture);
            let verifier = VerifierChoice::Exact.at(&sampling);
            let mut rng = StdRng::seed_from_u64(9);
            let prompt = [5, 40, 3];
            decoder
                .generate(proposer, verifier, &prompt, &settings, &mut rng)
                .unwrap()
        };
        let with = decode(&pair.target, &mut cached);
        let without = decode(&Uncached(&pair.target), &mut uncached);
        assert_eq!(with.tokens, without.tokens, "{:?}", settings.draft);
        let accepted = |generation: &Generation| -> Vec<usize> {
            generation.passes.iter().map(|pass| pass.accepted).collect()
        };
        assert_eq!(accepted(&with), accepted(&without));
        deep += accepted(&with)
            .iter()
            .filter(|&&accepted| accepted > 1)
            .count();
    }
    assert!(deep > 0, "no path of two tokens was ever accepted");
}

/// Siblings, their subtrees and the order of the calls make no difference.
fn nodes_follow_their_path<D: Drafter>(config: &D::Config) {
    let device = test_device();
    let target = tiny::target(&device);
    let drafter: D = tiny::fresh(config, &target, &device);
    let capture = D::capture(config, target.spec()).unwrap();
    let tokens: Vec<u32> = (0..12).map(|at| at * 7 % tiny::VOCAB as u32).collect();
    let pass = Pass {
        tokens: &tokens[..11],
        parents: &chain(11),
        logits: LogitRows::Last,
    };
    let mut caches = Caches::new(target.spec().layers, 16);
    let features = target.decode(pass, &mut caches, &capture).features;
    let mut state = drafter.start(16, 0);
    drafter.observe(&mut state, &tokens[1..], &features);

    // Three children of the root, four of them, and two of these, out of order.
    let tree = Tree {
        tokens: vec![1, 9, 30, 8, 9, 2, 8, 40, 3],
        parents: [None, None, None]
            .into_iter()
            .chain([1, 0, 1, 2, 4, 3].map(Some))
            .collect(),
    };
    for _ in 0..2 {
        let mut found: Vec<(usize, Vec<f32>)> = Vec::new();
        let root = host_f32(drafter.root_logits(&mut state));
        for nodes in [&[2, 0][..], &[1], &[5, 4, 3, 6], &[8, 7]] {
            let logits = drafter.node_logits(&mut state, &tree, nodes);
            let rows = host_f32(logits);
            let rows = rows.chunks(root.len()).map(<[f32]>::to_vec);
            found.extend(nodes.iter().copied().zip(rows));
        }
        drafter.rewind(&mut state);
        assert_eq!(found.len(), tree.len());
        for (node, logits) in found {
            let path = tree.path(node);
            let alone = forced(&drafter, &mut state, &path);
            assert_close("root", &alone[0], &root, 1e-6);
            assert_close(&format!("node {node}"), &logits, &alone[path.len()], 1e-5);
        }
    }
}

#[test]
fn the_logits_of_a_node_are_those_of_its_path_alone() {
    nodes_follow_their_path::<Eagle3>(&Eagle3Config::default());
    nodes_follow_their_path::<Eagle1>(&Eagle1Config::default());
}
