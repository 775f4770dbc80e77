//! What the estimator says of a setting, beside what decoding counted.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Estimate;
use crate::bootstrap::bootstrap;
use crate::statistics::Acceptance;

/// Standard errors beyond which chance is no explanation: less than once in ten thousand settings.
const SURPRISING: f64 = 4.0;

/// Acceptance over the same outputs, computed without decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimateReport {
    /// τ of texts of the target's own: where drafts are not drawn the decoder's, else what it is expected to be.
    pub tau: f64,
    /// Its 95 % interval over prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// Acceptance rate α of the draft steps judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// The analytic α: mean of `Σ min(p, q)` over the draft steps judged, where drafts are drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha_analytic: Option<f64>,
    /// `α_k` from `k = 1`.
    pub conditional: Vec<f64>,
    /// `s_k` from `k = 1`.
    pub survival: Vec<f64>,
    /// Passes that decoding took and was not expected to take.
    pub more_passes: f64,
    /// The same in standard errors, where drafts are drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_errors: Option<f64>,
    /// Outputs whose passes decoding and the estimator count differently, where drafts are not drawn: expect none in f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differing_outputs: Option<u64>,
}

/// An output as it was decoded, and as it was estimated.
pub(crate) struct Compared<'a> {
    /// What decoding counted.
    pub(crate) decoded: &'a Acceptance,
    /// What the estimator says.
    pub(crate) estimate: &'a Estimate,
}

impl EstimateReport {
    /// Of some outputs, each of at least one pass. `None` without any.
    pub(crate) fn of(outputs: &[Compared], seed: u64) -> Option<Self> {
        let counts: Vec<&Acceptance> = (outputs.iter())
            .map(|output| &output.estimate.acceptance)
            .collect();
        let pooled = Acceptance::pooled(counts.iter().copied());
        let is_drawn = outputs.first()?.estimate.overlap.is_some();
        let more: Vec<f64> = (outputs.iter())
            .map(|output| output.decoded.passes - output.estimate.acceptance.passes)
            .collect();
        let overlap: f64 = (outputs.iter())
            .filter_map(|output| output.estimate.overlap)
            .sum();
        let judged: f64 = pooled.tested.iter().sum();
        let spread = more.iter().map(|more| more * more).sum::<f64>().sqrt();
        let differ = |output: &&Compared| *output.decoded != output.estimate.acceptance;
        let differing = outputs.iter().filter(differ).count();
        Some(Self {
            tau: pooled.tau()?,
            tau_ci95: bootstrap(&counts, seed, |drawn| {
                Acceptance::pooled(drawn.iter().map(|counts| **counts)).tau()
            }),
            alpha: pooled.alpha(),
            alpha_analytic: (is_drawn && judged > 0.0).then(|| overlap / judged),
            conditional: pooled.conditional(),
            survival: pooled.survival(),
            more_passes: more.iter().sum(),
            standard_errors: (is_drawn && spread > 0.0).then(|| more.iter().sum::<f64>() / spread),
            differing_outputs: (!is_drawn).then_some(differing as u64),
        })
    }

    /// Whether decoding and estimate differ by more than chance explains.
    pub fn is_surprising(&self) -> bool {
        let by_chance = self.standard_errors.is_some_and(|z| z.abs() > SURPRISING);
        by_chance
            || self
                .differing_outputs
                .is_some_and(|differing| differing > 0)
    }
}

impl fmt::Display for EstimateReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "τ {:.3}", self.tau)?;
        if let Some([low, high]) = self.tau_ci95 {
            write!(f, " [{low:.2}, {high:.2}]")?;
        }
        match (self.differing_outputs, self.standard_errors) {
            (Some(0), _) => f.write_str(", pass by pass as decoded"),
            (Some(differing), _) => write!(f, "; {differing} outputs were decoded in other passes"),
            (None, Some(z)) => write!(
                f,
                "; decoding took {:+.1} passes, {:.1} standard errors{}",
                self.more_passes,
                z.abs(),
                if self.is_surprising() {
                    ": more than chance explains"
                } else {
                    ""
                }
            ),
            (None, None) => Ok(()),
        }
    }
}
