//! Exactness by enumeration: [`walk`], the code that decides, is run once for every sequence of outcomes of its chances,
//! each weighed by its probability.
use spectrain_models::Distribution;

use super::*;
use crate::toy::logits;

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

/// The law of `sampling` after `context`, over the first `vocab` tokens of the toy's logits.
fn law(context: &[u32], salt: u64, sampling: &Sampling, vocab: usize) -> Distribution {
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
fn target_law(length: usize, sampling: &Sampling, vocab: usize) -> Vec<(Vec<u32>, f64)> {
    let mut texts = vec![(Vec::new(), 1.0)];
    for _ in 0..length {
        let extend = |(text, weight): (Vec<u32>, f64)| {
            let p = wide(&law(&text, TARGET, sampling, vocab));
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

/// One pass with the draft that `make` makes, completed by the target to `length` tokens: the law of the text that comes
/// out must be the target's. Summing over the tokens after it, so must be that of every shorter text.
fn assert_lossless(
    make: impl Fn(&mut Branches) -> Draft,
    length: usize,
    sampling: &Sampling,
    vocab: usize,
) {
    let expected = target_law(length, sampling, vocab);
    let mut got = vec![0.0; expected.len()];
    let mut total = 0.0;
    let mut branch = Some(Branches::default());
    while let Some(mut branches) = branch.take() {
        let draft = make(&mut branches);
        let laws = laws("rejection", &draft, vocab).unwrap();
        let row = |row: usize| {
            let context = row
                .checked_sub(1)
                .map_or(Vec::new(), |node| path(&draft, node));
            Ok(wide(&law(&context, TARGET, sampling, vocab)))
        };
        let verdict = walk(&draft, &laws, row, &mut branches).unwrap();
        let mut text: Vec<u32> = verdict
            .accepted
            .iter()
            .map(|&node| draft.tokens[node])
            .collect();
        text.push(verdict.bonus);
        while text.len() < length {
            let next = branches.draw(&wide(&law(&text, TARGET, sampling, vocab)));
            text.push(next as u32);
        }
        let index = text[..length]
            .iter()
            .fold(0, |index, &token| index * vocab + token as usize);
        got[index] += branches.probability();
        total += branches.probability();
        branch = branches.next();
    }
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    for ((text, expected), got) in expected.iter().zip(got) {
        assert!(
            (expected - got).abs() < 1e-6,
            "{text:?}: {got}, not {expected}, {sampling:?}"
        );
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
fn sampled_chains_leave_the_law_of_the_target() {
    for (length, vocab) in [(1, 4), (2, 4), (3, 3)] {
        for sampling in samplings() {
            let make = |branches: &mut Branches| {
                let (mut tokens, mut drawn) = (Vec::new(), Vec::new());
                for _ in 0..length {
                    let q = law(&tokens, DRAFTER, &sampling, vocab);
                    tokens.push(branches.draw(&wide(&q)) as u32);
                    drawn.push(q);
                }
                Draft::chain(tokens, Proposal::Sampled(drawn))
            };
            assert_lossless(make, length + 1, &sampling, vocab);
        }
    }
}

#[test]
fn deterministic_chains_leave_the_law_of_the_target() {
    for tokens in [vec![0], vec![3], vec![1, 2], vec![2, 0, 1]] {
        for sampling in samplings() {
            let length = tokens.len() + 1;
            let make = |_: &mut Branches| Draft::chain(tokens.clone(), Proposal::Deterministic);
            assert_lossless(make, length, &sampling, 4);
        }
    }
}

#[test]
fn deterministic_trees_leave_the_law_of_the_target() {
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
            assert_lossless(make, 3, &sampling, 4);
        }
    }
}

#[test]
fn a_token_is_accepted_at_most_in_the_ratio_of_the_laws() {
    let p = [0.5, 0.3, 0.2];
    let q = Law::drawn(&[0.125, 0.125, 0.75]);
    assert_eq!(acceptance(&p, &q, 0), 1.0);
    assert!((acceptance(&p, &q, 2) - 0.2 / 0.75).abs() < 1e-12);
    assert_eq!(acceptance(&p, &Law::Certain, 1), 0.3);
    let left = residual(p.to_vec(), &q, 2);
    for (got, expected) in left.iter().zip([0.375 / 0.55, 0.175 / 0.55, 0.0]) {
        assert!((got - expected).abs() < 1e-12, "{left:?}");
    }
    assert_eq!(
        residual(vec![0.5, 0.25, 0.25], &Law::Certain, 0),
        [0.0, 0.5, 0.5]
    );
}

fn tensor(rows: &[[f32; 3]]) -> Tensor<2> {
    let flat: Vec<f32> = rows.concat();
    Tensor::<1>::from_floats(flat.as_slice(), &Device::flex()).reshape([rows.len(), 3])
}

fn verdict(
    verifier: &dyn Verifier,
    draft: &Draft,
    rows: &[[f32; 3]],
    temperature: f64,
) -> Result<Verdict> {
    use rand::SeedableRng;
    let mut rng = StdRng::seed_from_u64(0);
    verifier.verify(draft, tensor(rows), &Sampling::at(temperature), &mut rng)
}

#[test]
fn greedy_follows_the_sibling_that_is_most_likely() {
    // Children of the root 0 and 2; of the second, 1.
    let draft = Draft {
        tokens: vec![0, 2, 1, 1],
        parents: vec![None, None, Some(0), Some(1)],
        proposal: Proposal::Deterministic,
    };
    let rows = [
        [0.0, 0.1, 0.2], // root: 2
        [0.0, 1.0, 0.0],
        [0.0, 1.0, 0.0], // after node 1: token 1
        [0.0, 0.0, 1.0],
        [1.0, 0.0, 1.0], // after node 3: the first of two largest
    ];
    for verifier in [&Greedy as &dyn Verifier, &Rejection] {
        let expected = Verdict {
            accepted: vec![1, 3],
            bonus: 0,
        };
        assert_eq!(verdict(verifier, &draft, &rows, 0.0).unwrap(), expected);
    }
}

#[test]
fn an_empty_draft_yields_the_target_s_own_token() {
    for verifier in [&Greedy as &dyn Verifier, &Rejection] {
        let found = verdict(verifier, &Draft::default(), &[[0.0, 2.0, 1.0]], 0.0).unwrap();
        assert_eq!((found.accepted, found.bonus), (vec![], 1));
    }
}

#[test]
fn drafts_that_cannot_be_judged_are_refused() {
    let half = Distribution {
        probabilities: vec![0.5, 0.5, 0.0],
    };
    let draft = |tokens: &[u32], parents: &[Option<usize>], drawn: usize| Draft {
        tokens: tokens.to_vec(),
        parents: parents.to_vec(),
        proposal: match drawn {
            0 => Proposal::Deterministic,
            drawn => Proposal::Sampled(vec![half.clone(); drawn]),
        },
    };
    let rows = [[0.0; 3]; 3];
    let chain = [None, Some(0)];
    for (draft, message) in [
        (
            draft(&[0, 1], &[None, None], 2),
            "expected a chain or a deterministic tree, got drawn tokens of which node 1 does not follow the one before it",
        ),
        (
            draft(&[0, 2], &chain, 2),
            "expected a token its distribution can yield, got probability 0 for node 1, token 2",
        ),
        (
            draft(&[0, 1], &chain, 1),
            "expected one distribution for each drawn token, got 2 tokens with 1 distributions",
        ),
        (
            draft(&[0, 3], &chain, 0),
            "expected tokens below 3, got 3 at node 1",
        ),
        (
            draft(&[0, 1], &[Some(1), None], 0),
            "expected parents before their children, got node 0 with parent Some(1)",
        ),
        (
            draft(&[0, 1], &[None], 0),
            "expected one parent for each token, got 2 tokens with 1 parents",
        ),
        (
            draft(&[0], &[None], 0),
            "expected one row more than tokens, got 3 rows of logits for 1 tokens",
        ),
    ] {
        let error = verdict(&Rejection, &draft, &rows, 1.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("verifier `rejection`: {message}")
        );
    }
}

#[test]
fn logits_that_are_not_a_number_are_an_error() {
    let rows = [[0.0, f32::NAN, 0.0]];
    let error = verdict(&Rejection, &Draft::default(), &rows, 1.0).unwrap_err();
    assert!(error.to_string().starts_with("logits of row 0"), "{error}");
}
