//! Typical acceptance, of Medusa (<https://arxiv.org/abs/2401.10774>): a drafted token passes when the target finds it
//! likely enough. The output does not follow the target's distribution.
use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_models::{Draft, Sampling};

use super::chance::Chance;
use super::rows::probabilities;
use super::verifier::{Verdict, Verifier, check_tree};
use crate::error::Result;

/// The least probability that always passes.
const THRESHOLD: f64 = 0.09;
/// Probability that passes where the target has no doubt; it falls with the exponential of the entropy.
const SCALE: f64 = 0.3;
/// Added inside of the entropy's logarithm.
const EPSILON: f64 = 1e-5;

/// Accepts a token whose probability is above `min(0.09, 0.3 exp(-H))`, with `H` the entropy of the target's
/// distribution there, after temperature, top-k and top-p. Lossy: it changes what is said, and no number made with it
/// belongs beside exact ones.
///
/// Of the paths that pass the longest is taken, of equals the one of the greatest likelihood. The target's own token
/// after it is drawn, where the reference code takes the most likely one or a typical one.
#[derive(Debug, Clone, Copy)]
pub struct TypicalLossy;

impl Verifier for TypicalLossy {
    fn name(&self) -> &'static str {
        "typical-lossy"
    }

    fn is_lossy(&self) -> bool {
        true
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
        let row = |row: usize| probabilities(&target, row, sampling);
        judge(draft, row, rng)
    }
}

pub(super) fn judge(
    draft: &Draft,
    row: impl Fn(usize) -> Result<Vec<f64>>,
    chance: &mut impl Chance,
) -> Result<Verdict> {
    // Length and log-likelihood of the path down to each node, if all of it passes.
    let mut passing: Vec<Option<(usize, f64)>> = Vec::with_capacity(draft.len());
    let mut distributions: Vec<Option<Vec<f64>>> = vec![None; 1 + draft.len()];
    let mut best: Option<(usize, (usize, f64))> = None;
    for node in 0..draft.len() {
        let parent = draft.parents[node];
        let so_far = parent.map_or(Some((0, 0.0)), |parent| passing[parent]);
        let mut path = None;
        if let Some((length, likelihood)) = so_far {
            let at = parent.map_or(0, |parent| 1 + parent);
            let p = match distributions[at].take() {
                Some(p) => p,
                None => row(at)?,
            };
            let token = p[draft.tokens[node] as usize];
            if token > threshold(&p) {
                path = Some((length + 1, likelihood + token.ln()));
            }
            distributions[at] = Some(p);
        }
        passing.push(path);
        if let Some(path) = path
            && best.is_none_or(|(_, best)| path.0 > best.0 || (path.0 == best.0 && path.1 > best.1))
        {
            best = Some((node, path));
        }
    }
    let mut accepted = Vec::new();
    let mut at = best.map(|(node, _)| node);
    while let Some(node) = at {
        accepted.push(node);
        at = draft.parents[node];
    }
    accepted.reverse();
    let bonus = row(accepted.last().map_or(0, |node| 1 + node))?;
    Ok(Verdict {
        accepted,
        bonus: chance.draw(&bonus) as u32,
    })
}

fn threshold(p: &[f64]) -> f64 {
    let entropy: f64 = -p.iter().map(|p| p * (p + EPSILON).ln()).sum::<f64>();
    THRESHOLD.min(SCALE * (-entropy).exp())
}
