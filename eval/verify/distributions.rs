use spectrain_checkpoints::Mismatch;
use spectrain_models::{Draft, Proposal};

use crate::error::{Error, Result};

/// The distribution `q` that a drafted token came from.
#[derive(Debug, Clone, Copy)]
pub(super) enum DraftDistribution<'a> {
    /// All mass on the token.
    Certain,
    /// Drawn with these weights, whose sum is `total`: 1 but for the rounding of f32.
    Drawn { weights: &'a [f32], total: f64 },
}

impl<'a> DraftDistribution<'a> {
    /// Drawn with these weights.
    pub(super) fn drawn(weights: &'a [f32]) -> Self {
        let total = weights.iter().map(|&weight| weight as f64).sum();
        Self::Drawn { weights, total }
    }
}

/// What each node of `draft` came from.
///
/// # Errors
/// A node did not come from what is said.
pub(super) fn draft_distributions<'a>(
    verifier: &'static str,
    draft: &'a Draft,
    vocab: usize,
) -> Result<Vec<DraftDistribution<'a>>> {
    let Proposal::Sampled(drawn) = &draft.proposal else {
        return Ok(vec![DraftDistribution::Certain; draft.len()]);
    };
    let refuse = |expected: &str, got: String| {
        Err(Error::Draft {
            verifier,
            mismatch: Mismatch::new(expected, got),
        })
    };
    if drawn.len() != draft.len() {
        let got = format!("{} tokens with {} distributions", draft.len(), drawn.len());
        return refuse("one distribution for each drawn token", got);
    }
    let mut distributions = Vec::with_capacity(drawn.len());
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
        distributions.push(DraftDistribution::drawn(q));
    }
    Ok(distributions)
}
