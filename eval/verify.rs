//! Which nodes of a draft the target accepts, and its own token after them.
//!
//! Chains: Leviathan et al., <https://arxiv.org/abs/2211.17192>, algorithm 1. Trees: the recursive scheme of SpecInfer,
//! <https://arxiv.org/abs/2305.09781>, in which every child is judged by its own proposal: all mass on the token of a
//! deterministic tree, and what its earlier siblings have left for one drawn without replacement.
use burn::prelude::*;
use rand::{Rng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use spectrain_models::{Draft, Proposal, Sampling};

use crate::{Error, Result};

mod block;
mod typical;

pub use block::Block;
pub use typical::TypicalLossy;

#[cfg(test)]
mod exact;
#[cfg(test)]
mod tests;

/// What verification decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Accepted nodes, from the root down.
    pub accepted: Vec<usize>,
    /// The target's own token after them.
    pub bonus: u32,
}

/// Decides which nodes of a draft are accepted.
pub trait Verifier {
    /// Its name in recipes and reports.
    fn name(&self) -> &'static str;

    /// Whether the output may stray from the target's distribution.
    fn is_lossy(&self) -> bool;

    /// Whether what it decides of a node hangs on nothing behind that node.
    fn decides_in_order(&self) -> bool;

    /// Walks `draft` from the root down. `target` holds logits, `sampling` makes distributions of them.
    ///
    /// # Shapes
    /// - target: `[1 + nodes, vocab]`; row 0 judges the children of the last committed token, row `1 + i` those of node `i`
    ///
    /// # Errors
    /// The draft is no tree, or of a kind this verifier cannot judge exactly; the device failed.
    fn verify(
        &self,
        draft: &Draft,
        target: Tensor<2>,
        sampling: &Sampling,
        rng: &mut StdRng,
    ) -> Result<Verdict>;
}

/// Which verifier decides, as recipes name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifierChoice {
    /// `greedy` at temperature 0, `rejection` above.
    #[default]
    Exact,
    /// [`Greedy`] at every temperature.
    Greedy,
    /// [`Rejection`] at every temperature.
    Rejection,
    /// [`Greedy`] at temperature 0, [`Block`] above.
    Block,
    /// [`Greedy`] at temperature 0, [`TypicalLossy`] above.
    TypicalLossy,
}

impl VerifierChoice {
    /// The verifier for `sampling`.
    pub fn at(self, sampling: &Sampling) -> &'static dyn Verifier {
        match self {
            Self::Greedy => &Greedy,
            Self::Rejection => &Rejection,
            _ if sampling.is_greedy() => &Greedy,
            Self::Exact => &Rejection,
            Self::Block => &Block,
            Self::TypicalLossy => &TypicalLossy,
        }
    }
}

/// Accepts a node when it is the target's most likely token. Temperature 0 only.
#[derive(Debug, Clone, Copy)]
pub struct Greedy;

impl Verifier for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
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
        _: &mut StdRng,
    ) -> Result<Verdict> {
        check_tree(self.name(), draft, &target)?;
        if !sampling.is_greedy() {
            return Err(Error::Setting {
                key: "verifier",
                expected: "`exact` or `rejection` above temperature 0".into(),
                got: format!("`greedy` at temperature {}", sampling.temperature),
            });
        }
        let best = most_likely(target)?;
        let mut accepted = Vec::new();
        let mut bonus = best[0];
        while let Some(child) = draft
            .children(accepted.last().copied())
            .find(|&node| draft.tokens[node] == bonus)
        {
            accepted.push(child);
            bonus = best[1 + child];
        }
        Ok(Verdict { accepted, bonus })
    }
}

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
        let laws = laws(self.name(), draft, vocab)?;
        let row = |row: usize| probabilities(&target, row, sampling);
        walk(draft, &laws, row, rng)
    }
}

/// What chance decides in a walk: the generator while decoding, every branch in turn in the tests that enumerate.
trait Chance {
    /// Whether an event of this probability happens.
    fn happens(&mut self, probability: f64) -> bool;
    /// An index, with probability proportional to its weight. Some weight is positive.
    fn draw(&mut self, weights: &[f64]) -> usize;
}

impl Chance for StdRng {
    fn happens(&mut self, probability: f64) -> bool {
        self.random::<f64>() < probability
    }

    fn draw(&mut self, weights: &[f64]) -> usize {
        let mut left = self.random::<f64>() * weights.iter().sum::<f64>();
        let mut last = 0;
        for (index, &weight) in weights.iter().enumerate() {
            if weight > 0.0 {
                left -= weight;
                last = index;
                if left < 0.0 {
                    break;
                }
            }
        }
        last
    }
}

/// The distribution `q` that a drafted token came from.
#[derive(Debug, Clone, Copy)]
enum Law<'a> {
    /// All mass on the token.
    Certain,
    /// Drawn with these weights, whose sum is `total`: 1 but for the rounding of f32.
    Drawn { weights: &'a [f32], total: f64 },
}

impl<'a> Law<'a> {
    fn drawn(weights: &'a [f32]) -> Self {
        let total = weights.iter().map(|&weight| weight as f64).sum();
        Self::Drawn { weights, total }
    }
}

/// `min(1, p(x) / q(x))`
fn acceptance(p: &[f64], law: &Law, token: usize) -> f64 {
    match law {
        Law::Certain => p[token],
        Law::Drawn { weights, total } => (p[token] * total / weights[token] as f64).min(1.0),
    }
}

/// `norm(max(0, p - q))`, the law of what follows when the token is rejected.
fn residual(mut p: Vec<f64>, law: &Law, token: usize) -> Vec<f64> {
    match law {
        Law::Certain => p[token] = 0.0,
        Law::Drawn { weights, total } => {
            let left = |(p, q): (&f64, &f32)| (p - *q as f64 / total).max(0.0);
            let left: Vec<f64> = p.iter().zip(*weights).map(left).collect();
            // Without anything left the two are equal but for rounding, and then `p` itself is the law.
            if left.iter().any(|&weight| weight > 0.0) {
                p = left;
            }
        }
    }
    normalised(p)
}

/// Walks from the root to the first level at which every child is rejected. `row` gives the target's distribution
/// of a row, which is computed for visited nodes only.
fn walk(
    draft: &Draft,
    laws: &[Law],
    row: impl Fn(usize) -> Result<Vec<f64>>,
    chance: &mut impl Chance,
) -> Result<Verdict> {
    let mut accepted = Vec::new();
    let mut p = row(0)?;
    'levels: loop {
        for child in draft.children(accepted.last().copied()) {
            let token = draft.tokens[child] as usize;
            if chance.happens(acceptance(&p, &laws[child], token)) {
                accepted.push(child);
                p = row(1 + child)?;
                continue 'levels;
            }
            p = residual(p, &laws[child], token);
        }
        let bonus = chance.draw(&p) as u32;
        return Ok(Verdict { accepted, bonus });
    }
}

fn laws<'a>(verifier: &'static str, draft: &'a Draft, vocab: usize) -> Result<Vec<Law<'a>>> {
    let Proposal::Sampled(drawn) = &draft.proposal else {
        return Ok(vec![Law::Certain; draft.len()]);
    };
    let refuse = |expected: &str, got: String| {
        Err(Error::Draft {
            verifier,
            expected: expected.into(),
            got,
        })
    };
    if drawn.len() != draft.len() {
        let got = format!("{} tokens with {} distributions", draft.len(), drawn.len());
        return refuse("one distribution for each drawn token", got);
    }
    let mut laws = Vec::with_capacity(drawn.len());
    for (node, distribution) in drawn.iter().enumerate() {
        let q = &distribution.probabilities;
        if q.len() != vocab {
            let got = format!("{} for node {node}", q.len());
            return refuse(&format!("{vocab} probabilities"), got);
        }
        let token = draft.tokens[node];
        // A token that could not be drawn shows that the distribution is not the one it was drawn from.
        if q[token as usize] <= 0.0 {
            let got = format!("probability 0 for node {node}, token {token}");
            return refuse("a token its distribution can yield", got);
        }
        let bad = |p: &&f32| !(p.is_finite() && **p >= 0.0);
        if let Some(p) = q.iter().find(bad) {
            let got = format!("{p} for node {node}");
            return refuse("probabilities", got);
        }
        laws.push(Law::drawn(q));
    }
    Ok(laws)
}

fn check_tree(verifier: &'static str, draft: &Draft, target: &Tensor<2>) -> Result<()> {
    let [rows, vocab] = target.dims();
    let refuse = |expected: String, got: String| {
        Err(Error::Draft {
            verifier,
            expected,
            got,
        })
    };
    if draft.parents.len() != draft.len() {
        let got = format!(
            "{} tokens with {} parents",
            draft.len(),
            draft.parents.len()
        );
        return refuse("one parent for each token".into(), got);
    }
    if rows != 1 + draft.len() {
        let got = format!("{rows} rows of logits for {} tokens", draft.len());
        return refuse("one row more than tokens".into(), got);
    }
    for (node, (&token, &parent)) in draft.tokens.iter().zip(&draft.parents).enumerate() {
        if let Some(parent) = parent.filter(|&parent| parent >= node) {
            let got = format!("node {node} with parent {parent}");
            return refuse("parents before their children".into(), got);
        }
        if token as usize >= vocab {
            return refuse(
                format!("tokens below {vocab}"),
                format!("{token} at node {node}"),
            );
        }
    }
    Ok(())
}

/// The first largest entry of each row; of a row only its index, largest entry and sum leave the device.
///
/// # Errors
/// A row is not finite. A broken target would otherwise be judged by whatever comes first.
pub(crate) fn most_likely(logits: Tensor<2>) -> Result<Vec<u32>> {
    let best = logits.clone().argmax(1);
    // A sum is no number where an entry is none, and infinity where one is.
    let sums = logits.clone().sum_dim(1);
    let largest = logits.gather(1, best.clone());
    let checked = host_rows(Tensor::cat(vec![largest, sums], 1))?;
    for (row, &[largest, sum]) in checked.as_chunks::<2>().0.iter().enumerate() {
        if !largest.is_finite() || sum.is_nan() || sum == f32::INFINITY {
            return Err(Error::Logits { row });
        }
    }
    let indices = best.try_into_data();
    let indices = indices.map_err(|error| Error::Device(error.to_string()))?;
    Ok(indices.iter::<i64>().map(|index| index as u32).collect())
}

/// The entries of `logits` on the host, row by row.
pub(crate) fn host_rows(logits: Tensor<2>) -> Result<Vec<f32>> {
    let host = logits.try_into_data();
    let host = host.map_err(|error| Error::Device(error.to_string()))?;
    Ok(host.iter::<f32>().collect())
}

/// The processed distribution of one row of logits, summing to 1 in f64.
fn probabilities(logits: &Tensor<2>, row: usize, sampling: &Sampling) -> Result<Vec<f64>> {
    processed(&host_rows(logits.clone().narrow(0, row, 1))?, row, sampling)
}

/// The processed distribution of the logits of `row`, summing to 1 in f64.
///
/// # Errors
/// They are none: see [`Error::Logits`].
pub(crate) fn processed(logits: &[f32], row: usize, sampling: &Sampling) -> Result<Vec<f64>> {
    // Minus infinity marks a token as impossible, and is meant.
    let bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if logits.iter().any(bad) || logits.iter().all(|logit| !logit.is_finite()) {
        return Err(Error::Logits { row });
    }
    let kept = sampling.distribution(logits).probabilities;
    Ok(normalised(kept.into_iter().map(f64::from).collect()))
}

/// The target's own token after one row of logits.
pub(crate) fn choose(logits: Tensor<2>, sampling: &Sampling, rng: &mut StdRng) -> Result<u32> {
    if sampling.is_greedy() {
        return Ok(most_likely(logits)?[0]);
    }
    Ok(rng.draw(&probabilities(&logits, 0, sampling)?) as u32)
}

fn normalised(mut weights: Vec<f64>) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    if total > 0.0 {
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
    weights
}
