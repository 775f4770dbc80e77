//! What a validation found, and whether weights are better than others by it.
use serde::{Deserialize, Deserializer, Serialize};

/// What a validation found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Loss on held-out conversations; NaN where none was measured.
    #[serde(deserialize_with = "or_nan")]
    pub loss: f64,
    /// Mean acceptance rate `Σ min(p, q)` of each draft step, over all counted positions; where only the text's tokens judge, the mean
    /// of their `q`.
    pub alpha: Vec<f64>,
    /// Share of positions where the most likely tokens agree at each step, over all counted positions; states of earlier versions
    /// do not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agreement: Vec<f64>,
    /// Share of positions whose right token is among what a selector chooses from at each step; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recall: Vec<f64>,
    /// Share of positions kept at each step among those that a greedy decoder would reach, without the last steps if it reaches them
    /// nowhere; empty where there is no [`Self::simulated_tau`].
    pub conditional: Vec<f64>,
    /// Mean acceptance length of a greedy chain simulated on the held-out text; absent where none was followed, as of what does not
    /// draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_tau: Option<f64>,
    /// Mean acceptance length of held-out prompts really decoded, pooled over them; absent for what does not draft.
    pub tau: Option<f64>,
    /// Its 95 % interval, by resampling prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// Tokens in the chains that it is of; states of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_length: Option<usize>,
    /// τ beyond that of the best validation before it; absent where that was of other prompts or answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
    /// Of each of these prompts the tokens emitted and the passes they took, for the next comparison.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decoded: Vec<[u64; 2]>,
    /// Digest of these prompts and of the target's answers to them: those of two validations are pairs where it is the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoded_sha256: Option<String>,
    /// Of the first one of a training, where it was looked at: how far the text that is trained on is the target's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextFound>,
}

/// How far a text is the target's own, by the distributions of the target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TextFound {
    /// Tokens that were looked at.
    pub tokens: u64,
    /// The share of them that are the target's likeliest.
    pub likeliest: f64,
    /// How much more surprising one is than what the target draws, in nats: at temperature 1, or at the one at which it was asked
    /// for these texts where that is higher.
    pub excess_surprise: f64,
}

impl Validation {
    /// Whether a loss was measured: what is not a number may be one that was.
    pub(crate) fn has_loss(&self) -> bool {
        !self.loss.is_nan() || !self.alpha.is_empty()
    }
}

/// A number as JSON has it, which has no NaN and says null.
pub(crate) fn or_nan<'de, D: Deserializer<'de>>(reader: D) -> Result<f64, D::Error> {
    let number = Option::<f64>::deserialize(reader)?;
    Ok(number.unwrap_or(f64::NAN))
}

/// By how much one set of weights drafts better than another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Difference of the two τ.
    pub tau: f64,
    /// Its 95 % interval, by resampling prompts and taking both τ from the same ones.
    pub ci95: [f64; 2],
}

/// Whether weights take the place of the best before them. True τ decides where the interval of the difference lies on one side
/// of 0: of many states that draft about as well, the one of highest τ would be the luckiest. Elsewhere, and where nothing
/// drafts or two τ are of other prompts, the loss does, which thousands of positions have a say in.
pub(crate) fn is_better(found: &Validation, best: Option<&Validation>) -> bool {
    let Some(best) = best else {
        return true;
    };
    let [unknown, unknown_best] = [found, best].map(|validation| validation.loss.is_nan());
    let has_less_loss = found.loss < best.loss || (unknown_best && !unknown);
    match (found.tau, best.tau, found.gain) {
        (Some(_), Some(_), Some(gain)) => {
            let [low, high] = gain.ci95;
            low > 0.0 || (high >= 0.0 && has_less_loss)
        }
        // Of weights that nothing compares the later ones have learnt more.
        _ => has_less_loss || (unknown && unknown_best),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tau: Option<f64>, gain: Option<[f64; 2]>, loss: f64) -> Validation {
        Validation {
            loss,
            tau,
            gain: gain.map(|ci95| Gain { tau: 0.1, ci95 }),
            ..Validation::default()
        }
    }

    #[test]
    fn true_acceptance_decides_where_it_can_and_the_loss_elsewhere() {
        let best = of(Some(3.0), None, 1.0);
        assert!(is_better(&best, None));
        let better = |gain, loss| is_better(&of(Some(3.1), gain, loss), Some(&best));
        assert!(better(Some([0.01, 0.2]), 2.0));
        assert!(!better(Some([-0.2, -0.01]), 0.5));
        // So might it be of the same weights on other prompts.
        for same in [[-0.01, 0.2], [-0.2, 0.01], [0.0, 0.0]] {
            assert!(better(Some(same), 0.5));
            assert!(!better(Some(same), 1.0));
            assert!(!better(Some(same), 2.0));
        }
        // Two τ of other prompts are no pairs.
        assert!(better(None, 0.5) && !better(None, 2.0));
    }

    #[test]
    fn where_nothing_drafts_the_loss_decides() {
        let best = of(None, None, 1.0);
        assert!(is_better(&of(None, None, 0.9), Some(&best)));
        assert!(!is_better(&of(None, None, 1.1), Some(&best)));
        assert!(!is_better(&of(None, None, f64::NAN), Some(&best)));
    }

    #[test]
    fn without_a_loss_only_true_acceptance_takes_the_place_of_the_best() {
        let none = f64::NAN;
        let best = of(Some(3.0), None, none);
        let better = |gain| is_better(&of(Some(3.1), gain, none), Some(&best));
        assert!(better(Some([0.01, 0.2])));
        assert!(!better(Some([-0.01, 0.2])) && !better(Some([-0.2, -0.01])));
        // Nothing was measured at all.
        let best = of(None, None, none);
        assert!(is_better(&best, Some(&best)));
        assert!(is_better(&of(None, None, 2.0), Some(&best)));
    }
}
