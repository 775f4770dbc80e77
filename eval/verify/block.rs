//! Block verification: a drawn chain is judged as a whole (<https://arxiv.org/abs/2403.10444>), and in the mean never
//! accepted shorter than token by token.
use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_checkpoints::Mismatch;
use spectrain_models::{Draft, Proposal, Sampling};

use super::chance::Chance;
use super::distributions::{DraftDistribution, draft_distributions};
use super::rows::{normalised, probabilities};
use super::verifier::{Verdict, Verifier, check_tree};
use crate::error::{Error, Result};

/// Block verification: exact, as [`Rejection`](super::Rejection), for chains drawn from known distributions only.
#[derive(Debug, Clone, Copy)]
pub struct Block;

impl Verifier for Block {
    fn name(&self) -> &'static str {
        "block"
    }

    fn is_lossy(&self) -> bool {
        false
    }

    fn decides_in_order(&self) -> bool {
        false
    }

    fn verify(
        &self,
        draft: &Draft,
        target: Tensor<2>,
        sampling: &Sampling,
        rng: &mut StdRng,
    ) -> Result<Verdict> {
        check_tree(self.name(), draft, &target)?;
        check_drawn_chain(self.name(), draft)?;
        let [_, vocab] = target.dims();
        let distributions = draft_distributions(self.name(), draft, vocab)?;
        let row = |row: usize| probabilities(&target, row, sampling);
        judge(draft, &distributions, row, rng)
    }
}

fn check_drawn_chain(verifier: &'static str, draft: &Draft) -> Result<()> {
    let refuse = |got: String| {
        Err(Error::Draft {
            verifier,
            mismatch: Mismatch::new("a chain of drawn tokens", got),
        })
    };
    let branch = (0..draft.len()).find(|&node| draft.parents[node] != node.checked_sub(1));
    if let Some(node) = branch {
        return refuse(format!(
            "a tree, of which node {node} does not follow the one before it"
        ));
    }
    match draft.proposal {
        Proposal::Deterministic if !draft.is_empty() => {
            refuse("the most likely tokens; use `rejection`".into())
        }
        _ => Ok(()),
    }
}

/// `p_0 = 1`, `p_i = min(1, p_{i-1} P_i(d_i) / Q_i(d_i))`. With `R_i = Σ max(0, p_i P_{i+1} - Q_{i+1})`, the first `i`
/// tokens may be taken with probability `R_i / (R_i + 1 - p_i)`, the whole chain with `p_γ`; the longest that may is.
pub(super) fn judge(
    draft: &Draft,
    distributions: &[DraftDistribution],
    row: impl Fn(usize) -> Result<Vec<f64>>,
    chance: &mut impl Chance,
) -> Result<Verdict> {
    let mut kept = vec![1.0];
    let mut left = Vec::with_capacity(draft.len());
    for (node, distribution) in distributions.iter().enumerate() {
        let p = row(node)?;
        let DraftDistribution::Drawn { weights, total } = distribution else {
            unreachable!("a chain of drawn tokens");
        };
        let scale = kept[node];
        let over = |(p, q): (&f64, &f32)| (scale * p - *q as f64 / total).max(0.0);
        left.push(p.iter().zip(*weights).map(over).collect::<Vec<f64>>());
        let token = draft.tokens[node] as usize;
        kept.push((scale * p[token] * total / weights[token] as f64).min(1.0));
    }
    let length = draft.len();
    let accepted = (1..=length).rev().find(|&taken| {
        let probability = if taken == length {
            kept[length]
        } else {
            let over: f64 = left[taken].iter().sum();
            // Both are 0 where target and drafter agree from here on, and then the longer chain has been taken.
            match over + 1.0 - kept[taken] {
                0.0 => 1.0,
                whole => over / whole,
            }
        };
        chance.happens(probability)
    });
    let accepted = accepted.unwrap_or(0);
    let distribution = match left.get(accepted) {
        Some(over) if over.iter().any(|&weight| weight > 0.0) => normalised(over.clone()),
        _ => row(accepted)?,
    };
    Ok(Verdict {
        accepted: (0..accepted).collect(),
        bonus: chance.draw(&distribution) as u32,
    })
}
