//! Exactness by enumeration: the builder of drafts and the code that decides are run once for every sequence of outcomes
//! of their chances, each weighed by its probability.
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{
    Children, Distribution, Draft, DraftRequest, DraftShape, Proposal, Sampling, StaticTree, Stop,
    StopBy, build,
};

use super::chance::Chance;
use super::distributions::{DraftDistribution, draft_distributions};
use super::rejection::walk;
use super::rows::normalised;
use super::verifier::{Verdict, Verifier as _};
use super::{Block, Greedy, Rejection, TypicalLossy, block, typical};
use crate::error::Result;
use crate::toy::{TextSource, logits};

/// Follows a script of outcomes, takes the first possible one after its end, and knows the next script.
#[derive(Default)]
struct Branches {
    /// Outcome taken and the probabilities of all, for each chance so far.
    taken: Vec<(usize, Vec<f64>)>,
    at: usize,
}

impl Branches {
    fn choose(&mut self, probabilities: Vec<f64>) -> usize {
        if self.at == self.taken.len() {
            let first = probabilities.iter().position(|&p| p > 0.0).unwrap();
            self.taken.push((first, probabilities));
        }
        self.at += 1;
        self.taken[self.at - 1].0
    }

    fn probability(&self) -> f64 {
        self.taken
            .iter()
            .map(|(outcome, all)| all[*outcome])
            .product()
    }

    /// The next branch, or nothing after the last.
    fn next(mut self) -> Option<Self> {
        self.at = 0;
        while let Some((outcome, all)) = self.taken.pop() {
            if let Some(next) = (outcome + 1..all.len()).find(|&next| all[next] > 0.0) {
                self.taken.push((next, all));
                return Some(self);
            }
        }
        None
    }
}

impl Chance for Branches {
    fn happens(&mut self, probability: f64) -> bool {
        assert!((0.0..=1.0 + 1e-12).contains(&probability), "{probability}");
        self.choose(vec![probability, 1.0 - probability]) == 0
    }

    fn draw(&mut self, weights: &[f64]) -> usize {
        let total: f64 = weights.iter().sum();
        self.choose(weights.iter().map(|weight| weight / total).collect())
    }
}

/// The distribution of `sampling` after `context`, over the first `vocab` tokens of the toy's logits.
fn distribution(context: &[u32], salt: u64, sampling: &Sampling, vocab: usize) -> Distribution {
    sampling.distribution(&logits(context, salt)[..vocab])
}

fn wide(distribution: &Distribution) -> Vec<f64> {
    normalised(
        distribution
            .probabilities
            .iter()
            .map(|&p| p as f64)
            .collect(),
    )
}

const TARGET: u64 = 1;
const DRAFTER: u64 = 2;

/// Every text of `length` tokens with its probability under the target.
fn target_distribution(length: usize, sampling: &Sampling, vocab: usize) -> Vec<(Vec<u32>, f64)> {
    let mut texts = vec![(Vec::new(), 1.0)];
    for _ in 0..length {
        let extend = |(text, weight): (Vec<u32>, f64)| {
            let p = wide(&distribution(&text, TARGET, sampling, vocab));
            let next =
                move |(token, p): (usize, f64)| ([&text[..], &[token as u32]].concat(), weight * p);
            p.into_iter().enumerate().map(next).collect::<Vec<_>>()
        };
        texts = texts.into_iter().flat_map(extend).collect();
    }
    texts
}

fn path(draft: &Draft, node: usize) -> Vec<u32> {
    let mut path = vec![draft.tokens[node]];
    let mut at = draft.parents[node];
    while let Some(ancestor) = at {
        path.push(draft.tokens[ancestor]);
        at = draft.parents[ancestor];
    }
    path.reverse();
    path
}

/// What decides over a draft.
type Judge = fn(
    &Draft,
    &[DraftDistribution],
    &dyn Fn(usize) -> Result<Vec<f64>>,
    &mut Branches,
) -> Result<Verdict>;

const REJECTION: Judge =
    |draft, distributions, row, branches| walk(draft, distributions, row, branches);
const BLOCK: Judge =
    |draft, distributions, row, branches| block::judge(draft, distributions, row, branches);
const TYPICAL: Judge = |draft, _, row, branches| typical::judge(draft, row, branches);

/// What one pass does over all branches.
struct Enumerated {
    /// The greatest difference between the distribution of a text that comes out and the target's.
    error: f64,
    /// Expected number of accepted tokens.
    accepted: f64,
    branches: usize,
}

/// One pass with the draft that `make` makes, completed by the target to `length` tokens.
fn enumerated(
    make: impl Fn(&mut Branches) -> Draft,
    judge: Judge,
    length: usize,
    sampling: &Sampling,
    vocab: usize,
) -> Enumerated {
    let expected = target_distribution(length, sampling, vocab);
    let mut got = vec![0.0; expected.len()];
    let (mut total, mut mean, mut count) = (0.0, 0.0, 0);
    let mut branch = Some(Branches::default());
    while let Some(mut branches) = branch.take() {
        let draft = make(&mut branches);
        let distributions = draft_distributions("rejection", &draft, vocab).unwrap();
        let row = |row: usize| {
            let context = row
                .checked_sub(1)
                .map_or(Vec::new(), |node| path(&draft, node));
            Ok(wide(&distribution(&context, TARGET, sampling, vocab)))
        };
        let verdict = judge(&draft, &distributions, &row, &mut branches).unwrap();
        let mut text: Vec<u32> = verdict
            .accepted
            .iter()
            .map(|&node| draft.tokens[node])
            .collect();
        let accepted = text.len() as f64;
        text.push(verdict.bonus);
        while text.len() < length {
            let next = branches.draw(&wide(&distribution(&text, TARGET, sampling, vocab)));
            text.push(next as u32);
        }
        let index = text[..length]
            .iter()
            .fold(0, |index, &token| index * vocab + token as usize);
        got[index] += branches.probability();
        mean += accepted * branches.probability();
        total += branches.probability();
        count += 1;
        branch = branches.next();
    }
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    let errors = expected
        .iter()
        .zip(&got)
        .map(|((_, p), got)| (p - got).abs());
    Enumerated {
        error: errors.fold(0.0, f64::max),
        accepted: mean,
        branches: count,
    }
}

/// The distribution of the text that comes out must be the target's. Summing over the tokens after it, so must be that of every
/// shorter text.
fn assert_lossless(
    make: impl Fn(&mut Branches) -> Draft,
    judge: Judge,
    length: usize,
    sampling: &Sampling,
    vocab: usize,
) -> Enumerated {
    let found = enumerated(make, judge, length, sampling, vocab);
    assert!(found.error < 1e-6, "off by {}, {sampling:?}", found.error);
    found
}

/// Makes drafts of a shape with the builder that decodes.
fn shaped(
    shape: DraftShape,
    length: usize,
    sampling: Sampling,
    vocab: usize,
) -> impl Fn(&mut Branches) -> Draft {
    move |branches| {
        let request = DraftRequest {
            shape: shape.clone(),
            length,
            sampling,
        };
        let mut source = TextSource {
            text: &[],
            salt: DRAFTER,
            scale: 1.0,
            vocab,
            draw: |weights: &[f32]| {
                let wide: Vec<f64> = weights.iter().map(|&weight| weight as f64).collect();
                branches.draw(&wide) as u32
            },
        };
        build(&request, &DraftVocabulary::full(vocab), &mut source)
    }
}

fn samplings() -> [Sampling; 6] {
    let sampling = |temperature, top_k, top_p| Sampling {
        temperature,
        top_k,
        top_p,
    };
    [
        Sampling::GREEDY,
        Sampling::at(1.0),
        Sampling::at(0.4),
        sampling(1.5, 2, 1.0),
        sampling(1.0, 0, 0.7),
        sampling(0.8, 3, 0.8),
    ]
}

#[test]
fn sampled_chains_leave_the_distribution_of_the_target() {
    for (length, vocab) in [(1, 4), (2, 4), (3, 3)] {
        for sampling in samplings() {
            let make = shaped(DraftShape::Chain { length }, length, sampling, vocab);
            assert_lossless(make, REJECTION, length + 1, &sampling, vocab);
        }
    }
}

#[test]
fn block_verification_leaves_the_distribution_of_the_target_and_accepts_no_less() {
    let mut more = 0;
    for (length, vocab) in [(1, 4), (2, 4), (3, 3)] {
        for sampling in samplings() {
            if sampling.is_greedy() {
                continue;
            }
            let make = || shaped(DraftShape::Chain { length }, length, sampling, vocab);
            let block = assert_lossless(make(), BLOCK, length + 1, &sampling, vocab);
            let token = assert_lossless(make(), REJECTION, length + 1, &sampling, vocab);
            assert!(
                block.accepted > token.accepted - 1e-9,
                "{length} {sampling:?}: {} {}",
                block.accepted,
                token.accepted
            );
            more += usize::from(block.accepted > token.accepted + 1e-3);
            if length == 1 {
                assert!((block.accepted - token.accepted).abs() < 1e-9);
            }
        }
    }
    assert!(more > 2, "longer chains are accepted further: {more}");
}

fn drawn_trees() -> [StaticTree; 3] {
    let tree = |paths: &[&[usize]]| {
        StaticTree::new(paths.iter().map(|path| path.to_vec()).collect()).unwrap()
    };
    [
        tree(&[&[0], &[1], &[2]]),
        tree(&[&[0], &[1], &[0, 0], &[0, 1]]),
        tree(&[&[0], &[1], &[1, 0], &[1, 1]]),
    ]
}

#[test]
fn trees_drawn_without_replacement_leave_the_distribution_of_the_target() {
    drawn_trees_are_lossless(Children::WithoutReplacement);
}

#[test]
fn trees_drawn_with_replacement_leave_the_distribution_of_the_target() {
    drawn_trees_are_lossless(Children::WithReplacement);
}

fn drawn_trees_are_lossless(children: Children) {
    let mut branches = 0;
    for tree in drawn_trees() {
        for vocab in [3, 4] {
            for sampling in samplings() {
                let shape = DraftShape::Static {
                    tree: tree.clone(),
                    children,
                };
                let make = shaped(shape, 2, sampling, vocab);
                let found = assert_lossless(make, REJECTION, 2, &sampling, vocab);
                branches = found.branches.max(branches);
            }
        }
    }
    assert!(branches > 1000, "{branches}");
}

/// Were a sibling drawn without replacement judged as if nothing had been removed, the distribution would change.
#[test]
fn siblings_judged_by_the_wrong_distribution_are_found_out() {
    let sampling = Sampling::at(1.0);
    let shape = DraftShape::Static {
        tree: drawn_trees()[0].clone(),
        children: Children::WithoutReplacement,
    };
    let make = shaped(shape, 1, sampling, 4);
    let wrong = |branches: &mut Branches| {
        let mut draft = make(branches);
        if let Proposal::Sampled(distributions) = &mut draft.proposal {
            let first = distributions[0].clone();
            distributions.fill(first);
        }
        draft
    };
    let found = enumerated(wrong, REJECTION, 1, &sampling, 4);
    assert!(found.error > 1e-3, "{}", found.error);
}

#[test]
fn the_trees_of_every_deterministic_shape_leave_the_distribution_of_the_target() {
    let shapes = [
        DraftShape::Static {
            tree: StaticTree::named("eagle-25").unwrap(),
            children: Children::Top,
        },
        DraftShape::Dynamic {
            depth: 3,
            top_k: 2,
            nodes: 7,
        },
        DraftShape::Dynamic {
            depth: 2,
            top_k: 4,
            nodes: 20,
        },
        DraftShape::BestFirst { depth: 3, nodes: 6 },
    ];
    for shape in shapes {
        for sampling in samplings() {
            let make = shaped(shape.clone(), 3, sampling, 4);
            assert_lossless(make, REJECTION, 3, &sampling, 4);
        }
    }
}

#[test]
fn chains_that_end_by_what_was_drafted_before_leave_the_distribution_of_the_target() {
    // The entropies of the toy are such that each of these ends some chains and not all.
    let by_head = [0.2, 0.5, 0.8].map(|threshold| (StopBy::Head, threshold));
    let by_entropy = [0.48, 0.5, 0.52, 0.6].map(|threshold| (StopBy::Entropy, threshold));
    for (by, threshold) in by_head.into_iter().chain(by_entropy) {
        let stop = Stop { by, threshold };
        let shape = DraftShape::Confident { length: 3, stop };
        for sampling in samplings() {
            let make = shaped(shape.clone(), 3, sampling, 4);
            assert_lossless(make, REJECTION, 3, &sampling, 4);
            if !sampling.is_greedy() {
                let make = shaped(shape.clone(), 3, sampling, 4);
                assert_lossless(make, BLOCK, 3, &sampling, 4);
            }
        }
    }
}

#[test]
fn typical_acceptance_changes_the_distribution_and_says_so() {
    let sampling = Sampling::at(0.7);
    let make = shaped(DraftShape::Chain { length: 2 }, 2, sampling, 4);
    let found = enumerated(make, TYPICAL, 2, &sampling, 4);
    assert!(found.error > 0.02, "{}", found.error);
    assert!(TypicalLossy.is_lossy() && TypicalLossy.name().contains("lossy"));
    assert!(!Rejection.is_lossy() && !Block.is_lossy() && !Greedy.is_lossy());
}

#[test]
fn deterministic_chains_leave_the_distribution_of_the_target() {
    for tokens in [vec![0], vec![3], vec![1, 2], vec![2, 0, 1]] {
        for sampling in samplings() {
            let length = tokens.len() + 1;
            let make = |_: &mut Branches| Draft::chain(tokens.clone(), Proposal::Deterministic);
            assert_lossless(make, REJECTION, length, &sampling, 4);
        }
    }
}

#[test]
fn deterministic_trees_leave_the_distribution_of_the_target() {
    let trees: [(&[u32], &[Option<usize>]); 4] = [
        (&[0, 1, 2], &[None; 3]),
        (
            &[2, 0, 1, 0, 3, 1],
            &[None, None, Some(0), Some(0), Some(1), Some(2)],
        ),
        // Every token a candidate: one of them is always accepted.
        (&[3, 2, 1, 0, 1], &[None, None, None, None, Some(3)]),
        // A repeated sibling is merely useless.
        (&[1, 1, 2], &[None, None, Some(1)]),
    ];
    for (tokens, parents) in trees {
        for sampling in samplings() {
            let make = |_: &mut Branches| Draft {
                tokens: tokens.to_vec(),
                parents: parents.to_vec(),
                proposal: Proposal::Deterministic,
            };
            assert_lossless(make, REJECTION, 3, &sampling, 4);
        }
    }
}
