//! How much of what a drafter drafts is accepted on some prompts.

use anyhow::Result;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_eval::{DecodeSettings, VerifierChoice};
use spectrain_models::{DraftShape, Proposer, Sampling};

use crate::runtime::pair::Pair;

/// Tokens of a prompt that are decoded to count what is accepted.
const COMPARED_TOKENS: usize = 64;

/// Tokens of each where drafts are compared number by number.
const DRAWN_TOKENS: usize = 16;

/// What greedy decoding made of some prompts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decoded {
    /// Tokens drafted and accepted, pass by pass.
    pub(crate) accepted: Vec<usize>,
}

impl Decoded {
    /// All of them.
    pub(crate) fn total(&self) -> usize {
        self.accepted.iter().sum()
    }

    /// The mean acceptance length.
    pub(crate) fn tau(&self) -> f64 {
        1.0 + self.total() as f64 / self.accepted.len().max(1) as f64
    }

    /// Whether two standard deviations of the counts explain that one is larger.
    pub(crate) fn may_be_chance(&self, other: &Self) -> bool {
        let (a, b) = (self.total() as f64, other.total() as f64);
        (a - b).abs() <= 2.0 * (a + b).sqrt()
    }
}

/// The place of the first of several ways that chance alone may put behind the best one.
pub(crate) fn first_near_best(ways: &[&Decoded]) -> Option<usize> {
    let best = ways.iter().max_by(|a, b| a.tau().total_cmp(&b.tau()))?;
    ways.iter().position(|way| best.may_be_chance(way))
}

/// What greedy decoding accepts of the drafts for some prompts.
pub(crate) fn accepted(pair: &Pair, prompts: &[Vec<u32>]) -> Result<Decoded> {
    let mut session = pair.drafter.session();
    let accepted = decode(pair, session.as_mut(), prompts, (Sampling::GREEDY, 0))?;
    Ok(Decoded { accepted })
}

/// Tokens accepted, pass by pass. What is drawn of each prompt is drawn from the seed.
pub(crate) fn decode(
    pair: &Pair,
    proposer: &mut dyn Proposer,
    prompts: &[Vec<u32>],
    (sampling, seed): (Sampling, u64),
) -> Result<Vec<usize>> {
    let settings = DecodeSettings {
        max_new_tokens: if sampling.is_greedy() {
            COMPARED_TOKENS
        } else {
            DRAWN_TOKENS
        },
        draft: DraftShape::Chain {
            length: proposer.draft_length(),
        },
        sampling,
        stop: pair.stop.clone(),
        shadow: None,
    };
    let verifier = VerifierChoice::Exact.at(&settings.sampling);
    let mut accepted = Vec::new();
    for prompt in prompts {
        let mut rng = StdRng::seed_from_u64(seed);
        let generation = pair
            .decoder()
            .generate(proposer, verifier, prompt, &settings, &mut rng)?;
        accepted.extend(generation.passes.iter().map(|pass| pass.accepted));
    }
    Ok(accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many tokens accepted in so many passes.
    fn decoded(total: usize, passes: usize) -> Decoded {
        let mut accepted = vec![0; passes];
        accepted[0] = total;
        Decoded { accepted }
    }

    #[test]
    fn a_way_that_chance_may_put_in_front_is_not_taken_for_the_best() {
        for (first, second, taken) in [
            ((111, 744), (133, 722), 0),
            ((122, 733), (127, 728), 0),
            ((50, 800), (133, 722), 1),
            ((133, 722), (50, 800), 0),
            ((0, 800), (0, 800), 0),
        ] {
            let ways = [first, second].map(|(total, passes)| decoded(total, passes));
            let found = first_near_best(&[&ways[0], &ways[1]]);
            assert_eq!(found, Some(taken), "{first:?} {second:?}");
        }
        assert_eq!(first_near_best(&[]), None);
    }
}
