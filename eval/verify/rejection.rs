//! Rejection sampling. Chains: Leviathan et al., <https://arxiv.org/abs/2211.17192>, algorithm 1. Trees: the recursive scheme
//! of SpecInfer, <https://arxiv.org/abs/2305.09781>, in which every child is judged by its own proposal: all mass on the
//! token of a deterministic tree, and what its earlier siblings have left for one drawn without replacement.
use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_models::{Draft, Sampling};

use super::chance::Chance;
use super::distributions::{DraftDistribution, draft_distributions};
use super::rows::{normalised, probabilities};
use super::verifier::{Verdict, Verifier, check_tree};
use crate::error::Result;

/// Rejection sampling: whatever is drafted, the output is distributed as the target's.
///
/// Judges every kind of draft: deterministic ones, and those whose nodes were drawn from known distributions, be they
/// chains or trees. Which nodes a drawn draft has must not depend on the tokens that were drawn for it.
#[derive(Debug, Clone, Copy)]
pub struct Rejection;

impl Verifier for Rejection {
    fn name(&self) -> &'static str {
        "rejection"
    }

    fn is_lossy(&self) -> bool {
        false
    }

    fn decides_in_order(&self) -> bool {
        true
    }

    fn verify(
        &self,
        draft: &Draft,
        target: Tensor<2>,
        sampling: &Sampling,
        rng: &mut StdRng,
    ) -> Result<Verdict> {
        check_tree(self.name(), draft, &target)?;
        let [_, vocab] = target.dims();
        let distributions = draft_distributions(self.name(), draft, vocab)?;
        let row = |row: usize| probabilities(&target, row, sampling);
        walk(draft, &distributions, row, rng)
    }
}

/// `min(1, p(x) / q(x))`
pub(super) fn acceptance(p: &[f64], distribution: &DraftDistribution, token: usize) -> f64 {
    match distribution {
        DraftDistribution::Certain => p[token],
        DraftDistribution::Drawn { weights, total } => {
            (p[token] * total / weights[token] as f64).min(1.0)
        }
    }
}

/// `norm(max(0, p - q))`, the distribution of what follows when the token is rejected.
pub(super) fn residual(
    mut p: Vec<f64>,
    distribution: &DraftDistribution,
    token: usize,
) -> Vec<f64> {
    match distribution {
        DraftDistribution::Certain => p[token] = 0.0,
        DraftDistribution::Drawn { weights, total } => {
            let left = |(p, q): (&f64, &f32)| (p - *q as f64 / total).max(0.0);
            let left: Vec<f64> = p.iter().zip(*weights).map(left).collect();
            // Without anything left the two are equal but for rounding, and then `p` itself is the distribution.
            if left.iter().any(|&weight| weight > 0.0) {
                p = left;
            }
        }
    }
    normalised(p)
}

/// Walks from the root to the first level at which every child is rejected. `row` gives the target's distribution
/// of a row, which is computed for visited nodes only.
pub(super) fn walk(
    draft: &Draft,
    distributions: &[DraftDistribution],
    row: impl Fn(usize) -> Result<Vec<f64>>,
    chance: &mut impl Chance,
) -> Result<Verdict> {
    let mut accepted = Vec::new();
    let mut p = row(0)?;
    'levels: loop {
        for child in draft.children(accepted.last().copied()) {
            let token = draft.tokens[child] as usize;
            if chance.happens(acceptance(&p, &distributions[child], token)) {
                accepted.push(child);
                p = row(1 + child)?;
                continue 'levels;
            }
            p = residual(p, &distributions[child], token);
        }
        let bonus = chance.draw(&p) as u32;
        return Ok(Verdict { accepted, bonus });
    }
}
