//! When a chain is drafted no further: before a step that the drafter itself has little hope for.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The factor of the entropy in [`acceptance_bound`].
const ENTROPY_FACTOR: f64 = 0.2;

/// A rule by which chains end early. Whether a step is drafted hangs on the tokens before it and never on its own, so the
/// target's distribution stays as it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    /// What is asked.
    pub by: StopBy,
    /// A step that scores less is not drafted; 0 to 1. At 0 nothing ends early.
    pub threshold: f64,
}

/// What a drafter's hope for a step is read from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopBy {
    /// The probability, guessed by the drafter's confidence head, that the target keeps the step and all before it (DSpark,
    /// <https://arxiv.org/abs/2607.05147>); only for drafters with such a head.
    #[default]
    Head,
    /// The bound `1 - √(0.2 H)` on the probability that the step is kept, where `H` is the entropy, in nats, of the
    /// distribution that the step's token is drawn from (SVIP, <https://arxiv.org/abs/2411.18462>). It needs the drafter's pass
    /// for the step.
    Entropy,
}

impl StopBy {
    /// What is compared with the threshold, of the score of the step before, 1 before the first, and what is said of this one:
    /// the head's guess, or [`acceptance_bound`].
    pub fn score(self, before: f64, step: f64) -> f64 {
        match self {
            Self::Head => before * step,
            Self::Entropy => step,
        }
    }
}

impl Stop {
    /// Whether a step of this score is not drafted.
    pub fn ends(&self, score: f64) -> bool {
        score < self.threshold
    }
}

/// About how likely at least a step is kept whose token is drawn from a distribution of this entropy, in nats:
/// `max(0, 1 - √(c H(q)))`.
///
/// It is kept with probability `1 - TV(p, q)`, by Pinsker's inequality at least `1 - √((H(q, p) - H(q)) / 2)`. SVIP takes the
/// cross-entropy `H(q, p)` to be a multiple of the entropy `H(q)`, which leaves a constant `c` that it puts into the threshold.
/// Here `c = 0.2`, a cross-entropy 1.4 times the entropy, so that thresholds from 0 to 1 reach entropies up to 5 nats.
pub fn acceptance_bound(entropy: f64) -> f64 {
    (1.0 - (ENTROPY_FACTOR * entropy.max(0.0)).sqrt()).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Sampling;

    #[test]
    fn the_bound_is_that_of_the_formula() {
        // Of four equally likely tokens: 1 - √(0.2 ln 4).
        let even = Sampling::at(1.0).distribution(&[0.0; 4]);
        assert!((even.entropy() - 4f64.ln()).abs() < 1e-6);
        assert!((acceptance_bound(4f64.ln()) - 0.473_446_2).abs() < 1e-6);
        let sure = Sampling::GREEDY.distribution(&[0.0, 2.0]);
        assert_eq!(acceptance_bound(sure.entropy()), 1.0);
        assert_eq!(acceptance_bound(7.0), 0.0);
    }

    #[test]
    fn a_threshold_of_0_ends_nothing() {
        let stop = Stop {
            by: StopBy::Entropy,
            threshold: 0.0,
        };
        assert!(!stop.ends(acceptance_bound(100.0)));
    }

    #[test]
    fn a_head_is_asked_for_all_steps_so_far_and_the_entropy_for_each() {
        assert_eq!(StopBy::Head.score(0.5, 0.5), 0.25);
        assert_eq!(StopBy::Entropy.score(0.5, 0.75), 0.75);
    }
}
