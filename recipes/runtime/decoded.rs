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
}

/// What greedy decoding accepts of the drafts for some prompts.
pub(crate) fn accepted(pair: &Pair, prompts: &[Vec<u32>]) -> Result<Decoded> {
    let mut session = pair.drafter.session();
    let accepted = decode(pair, session.as_mut(), prompts, Sampling::GREEDY)?;
    Ok(Decoded { accepted })
}

/// Tokens accepted, pass by pass.
pub(crate) fn decode(
    pair: &Pair,
    proposer: &mut dyn Proposer,
    prompts: &[Vec<u32>],
    sampling: Sampling,
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
        let mut rng = StdRng::seed_from_u64(0);
        let generation = pair
            .decoder()
            .generate(proposer, verifier, prompt, &settings, &mut rng)?;
        accepted.extend(generation.passes.iter().map(|pass| pass.accepted));
    }
    Ok(accepted)
}
