use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_models::device::test_device;
use spectrain_models::{Distribution, Draft, Proposal, Sampling};

use super::distributions::DraftDistribution;
use super::rejection::{acceptance, residual};
use super::*;
use crate::error::Result;

#[test]
fn a_token_is_accepted_at_most_in_the_ratio_of_the_distributions() {
    let p = [0.5, 0.3, 0.2];
    let q = DraftDistribution::drawn(&[0.125, 0.125, 0.75]);
    assert_eq!(acceptance(&p, &q, 0), 1.0);
    assert!((acceptance(&p, &q, 2) - 0.2 / 0.75).abs() < 1e-12);
    assert_eq!(acceptance(&p, &DraftDistribution::Certain, 1), 0.3);
    let left = residual(p.to_vec(), &q, 2);
    for (got, expected) in left.iter().zip([0.375 / 0.55, 0.175 / 0.55, 0.0]) {
        assert!((got - expected).abs() < 1e-12, "{left:?}");
    }
    assert_eq!(
        residual(vec![0.5, 0.25, 0.25], &DraftDistribution::Certain, 0),
        [0.0, 0.5, 0.5]
    );
}

fn tensor(rows: &[[f32; 3]]) -> Tensor<2> {
    let flat: Vec<f32> = rows.concat();
    Tensor::<1>::from_floats(flat.as_slice(), &test_device()).reshape([rows.len(), 3])
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
            draft(&[0, 2], &chain, 2),
            "expected a token its distribution can yield, found probability 0 for node 1, token 2",
        ),
        (
            draft(&[0, 1], &chain, 1),
            "expected one distribution for each drawn token, found 2 tokens with 1 distributions",
        ),
        (
            draft(&[0, 3], &chain, 0),
            "expected tokens below 3, found 3 at node 1",
        ),
        (
            draft(&[0, 1], &[Some(1), None], 0),
            "expected parents before their children, found node 0 with parent 1",
        ),
        (
            draft(&[0, 1], &[None], 0),
            "expected one parent for each token, found 2 tokens with 1 parents",
        ),
        (
            draft(&[0], &[None], 0),
            "expected one row more than tokens, found 3 rows of logits for 1 tokens",
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
fn block_verification_refuses_what_is_no_drawn_chain() {
    let distribution = Distribution {
        probabilities: vec![0.5, 0.5, 0.0],
    };
    let draft = |parents: [Option<usize>; 2], proposal: Proposal| Draft {
        tokens: vec![0, 1],
        parents: parents.to_vec(),
        proposal,
    };
    let drawn = Proposal::Sampled(vec![distribution; 2]);
    let rows = [[0.0; 3]; 3];
    for (draft, got) in [
        (
            draft([None, None], drawn.clone()),
            "a tree, of which node 1 does not follow the one before it",
        ),
        (
            draft([None, Some(0)], Proposal::Deterministic),
            "the most likely tokens; use `rejection`",
        ),
    ] {
        let error = verdict(&Block, &draft, &rows, 1.0).unwrap_err();
        let expected = "verifier `block`: expected a chain of drawn tokens, found";
        assert_eq!(error.to_string(), format!("{expected} {got}"));
    }
    verdict(&Block, &draft([None, Some(0)], drawn), &rows, 1.0).unwrap();
}

#[test]
fn typical_acceptance_takes_the_longest_path_and_of_equals_the_likeliest() {
    // Children of the root 0 and 1; of the first 0 and 1, of the second 2.
    let draft = Draft {
        tokens: vec![0, 1, 0, 1, 2],
        parents: vec![None, None, Some(0), Some(0), Some(1)],
        proposal: Proposal::Deterministic,
    };
    let log = |p: [f32; 3]| p.map(f32::ln);
    let rows = [
        log([0.4, 0.5, 0.1]),
        log([0.3, 0.6, 0.1]),
        log([0.5, 0.49, 0.01]),
        log([0.0, 0.0, 1.0]),
        log([0.0, 0.0, 1.0]),
        log([1.0, 0.0, 0.0]),
    ];
    let expected = Verdict {
        accepted: vec![0, 3],
        bonus: 2,
    };
    assert_eq!(
        verdict(&TypicalLossy, &draft, &rows, 1.0).unwrap(),
        expected
    );
}

#[test]
fn logits_that_are_not_a_number_are_an_error() {
    let rows = [[0.0, f32::NAN, 0.0]];
    let error = verdict(&Rejection, &Draft::default(), &rows, 1.0).unwrap_err();
    assert!(error.to_string().starts_with("logits of row 0"), "{error}");
}
