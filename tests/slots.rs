//! Drafters that make all slots of a draft in one pass: their head reads all slots at once, and where no slot depends on a
//! drafted token, one node stands for all of its depth.
use burn::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use spectrain_checkpoints::DType;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::dflash::{DFlash, DFlashConfig};
use spectrain_models::masked_language_model::{MaskedLanguageModel, MaskedLanguageModelConfig};
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::peagle::{PEagle, PEagleConfig};
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Caches, Children, DraftRequest, DraftShape, DraftSource, Drafter, Features, FreshConfig,
    LogitRows, Pass, Proposal, Proposer as _, RandomWeights, Sampling, Scope, Session, StaticTree,
    Target as _, Transformer, Tree, build, chain, forced, sample,
};

use crate::golden::assert_close;
use crate::{dflash, tiny};

const LENGTH: usize = 4;
const MASK: u32 = 47;

fn pard(target_features: bool) -> PardConfig {
    PardConfig {
        fresh: Some(FreshConfig::default()),
        mask_token: Some(MASK),
        target_features,
        ..Default::default()
    }
}

fn deer() -> MaskedLanguageModelConfig {
    MaskedLanguageModelConfig {
        fresh: Some(FreshConfig::default()),
        mask_token: Some(MASK),
        separator_token: Some(46),
        block_size: LENGTH,
        ..Default::default()
    }
}

fn peagle() -> PEagleConfig {
    PEagleConfig {
        captured_layers: vec![1, 2, 4],
        mask_token: Some(MASK),
        layers: 2,
        ..Default::default()
    }
}

/// A drafter for a random target, and what it observes of a text.
struct Case<D: Drafter> {
    drafter: D,
    tokens: Vec<u32>,
    features: Features,
}

impl<D: Drafter> Case<D> {
    /// All weights are drawn from `seed`.
    fn new(config: &D::Config, seed: u64) -> Self {
        let device = test_device();
        let mut random = RandomWeights::new(seed);
        let mut scope = Scope::root(&mut random, &device, DType::F32);
        let target = Transformer::new(&mut scope, tiny::config()).unwrap();
        let vocabulary = DraftVocabulary::full(tiny::VOCAB);
        let drafter = D::fresh(config, &target.parts(), &vocabulary, seed, &device).unwrap();
        let capture = D::capture(config, target.spec()).unwrap();
        let tokens: Vec<u32> = (0..12).map(|at| at * 7 % 40).collect();
        let pass = Pass {
            tokens: &tokens[..11],
            parents: &chain(11),
            logits: LogitRows::Last,
        };
        let mut caches = Caches::new(target.spec().layers, 16);
        let features = target.decode(pass, &mut caches, &capture).features;
        Self {
            drafter,
            tokens,
            features,
        }
    }

    fn observed(&self) -> D::State {
        let mut state = self.drafter.start(32, self.tokens[0]);
        (self.drafter).observe(&mut state, &self.tokens[1..], &self.features);
        state
    }
}

/// Once the first slot was asked for, the later ones are those of the drafter that was asked, whichever is asked for them.
fn the_head_reads_all_slots_at_once<D: Drafter>(config: &D::Config) {
    let [case, other] = [8, 9].map(|seed| Case::<D>::new(config, seed));
    let path = [3, 1, 2];
    let expected = forced(&case.drafter, &mut case.observed(), &path);
    let mut state = case.observed();
    case.drafter.plan(&mut state, LENGTH);
    let mut found = vec![host_f32(case.drafter.root_logits(&mut state))];
    let mut tree = Tree::default();
    for token in path {
        let node = tree.push(token, tree.len().checked_sub(1));
        let logits = other.drafter.node_logits(&mut state, &tree, &[node]);
        found.push(host_f32(logits));
    }
    for (slot, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_close(&format!("slot {slot}"), found, expected, 1e-5);
    }
    assert_ne!(
        forced(&other.drafter, &mut other.observed(), &path),
        expected
    );
}

#[test]
fn the_head_of_a_drafter_of_slots_reads_all_of_them_at_once() {
    the_head_reads_all_slots_at_once::<Pard>(&pard(false));
    the_head_reads_all_slots_at_once::<Pard>(&pard(true));
    the_head_reads_all_slots_at_once::<MaskedLanguageModel>(&deer());
    the_head_reads_all_slots_at_once::<PEagle>(&peagle());
    the_head_reads_all_slots_at_once::<DFlash>(&dflash::config());
}

/// Asks a drafter for every node, whether or not one stands for all.
struct NodeByNode<'a, D: Drafter> {
    drafter: &'a D,
    state: D::State,
    rng: StdRng,
}

impl<D: Drafter> DraftSource for NodeByNode<'_, D> {
    fn logits(&mut self, tree: &Tree, nodes: &[usize]) -> Tensor<2> {
        match nodes {
            [] => self.drafter.root_logits(&mut self.state),
            nodes => self.drafter.node_logits(&mut self.state, tree, nodes),
        }
    }

    fn draw(&mut self, weights: &[f32]) -> u32 {
        sample(weights, &mut self.rng)
    }
}

/// Drafts of every shape are those of a drafter that is asked for every node.
fn one_node_stands_for_all<D: Drafter>(config: &D::Config) {
    let case = Case::<D>::new(config, 8);
    assert!(case.drafter.depends_on_depth_alone());
    let mut session = Session::new(case.drafter.clone());
    session.start(32, case.tokens[0]);
    session.observe(&case.tokens[1..], &case.features);
    let named = |children| DraftShape::Static {
        tree: StaticTree::named("eagle-25").unwrap(),
        children,
    };
    let dynamic = DraftShape::Dynamic {
        depth: LENGTH,
        top_k: 5,
        nodes: 20,
    };
    let best_first = DraftShape::BestFirst {
        depth: LENGTH,
        nodes: 20,
    };
    let drawn = Sampling::at(0.7);
    for (shape, sampling) in [
        (dynamic, Sampling::GREEDY),
        (best_first, Sampling::GREEDY),
        (named(Children::Top), drawn),
        (named(Children::WithoutReplacement), drawn),
        (named(Children::WithReplacement), drawn),
        (DraftShape::Chain { length: LENGTH }, drawn),
    ] {
        let request = DraftRequest {
            shape,
            length: LENGTH,
            sampling,
        };
        let found = session.propose(&request, &mut StdRng::seed_from_u64(5));
        let mut source = NodeByNode {
            drafter: &case.drafter,
            state: case.observed(),
            rng: StdRng::seed_from_u64(5),
        };
        case.drafter.plan(&mut source.state, LENGTH);
        let expected = build(&request, case.drafter.vocabulary(), &mut source);
        assert!(found.len() >= LENGTH, "{:?}", request.shape);
        assert_eq!(found.tokens, expected.tokens, "{:?}", request.shape);
        assert_eq!(found.parents, expected.parents, "{:?}", request.shape);
        match (found.proposal, expected.proposal) {
            (Proposal::Deterministic, Proposal::Deterministic) => {}
            (Proposal::Sampled(found), Proposal::Sampled(expected)) => {
                assert_eq!(found, expected, "{:?}", request.shape);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn where_no_slot_depends_on_a_drafted_token_one_node_stands_for_all_of_its_depth() {
    one_node_stands_for_all::<Pard>(&pard(false));
    one_node_stands_for_all::<MaskedLanguageModel>(&deer());
    one_node_stands_for_all::<PEagle>(&peagle());
    one_node_stands_for_all::<DFlash>(&dflash::config());
    one_node_stands_for_all::<Medusa>(&MedusaConfig::default());
    for config in [
        DFlashConfig {
            markov_rank: 3,
            ..dflash::config()
        },
        DFlashConfig {
            selector_rank: 3,
            selector_top_k: 7,
            ..dflash::config()
        },
    ] {
        let case = Case::<DFlash>::new(&config, 8);
        assert!(!case.drafter.depends_on_depth_alone());
    }
}
