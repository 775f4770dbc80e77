//! What the estimator says of a setting, beside what decoding counted.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::passes::Estimate;
use crate::bootstrap::bootstrap;
use crate::reliability::{CalibrationReport, Reliability};
use crate::speculate::PassRecord;
use crate::statistics::Acceptance;

/// Standard errors beyond which chance is no explanation: less than once in ten thousand settings.
const SURPRISING: f64 = 4.0;

/// Acceptance over the same outputs, computed without decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimateReport {
    /// τ of texts of the target's own: where drafts are not drawn the decoder's, else what it is expected to be.
    pub tau: f64,
    /// Its 95 % interval over conversations.
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
    /// Seconds that it took, the target's pass over the outputs included.
    #[serde(default)]
    pub seconds: f64,
    /// Outputs whose passes decoding and the estimator count differently, where drafts are not drawn: expect none in f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differing_outputs: Option<u64>,
}

/// The outputs of one conversation as they were decoded, and as they were estimated.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    decoded: Acceptance,
    estimated: Acceptance,
    /// See [`Estimate::overlap`].
    overlap: Option<f64>,
    /// Outputs that are counted differently.
    differing: u64,
    /// See [`Estimate::likeliest`] and [`Estimate::head`].
    confidence: [Reliability; 2],
}

impl Compared {
    /// One more output.
    pub(crate) fn add(&mut self, passes: &[PassRecord], estimate: &Estimate) {
        let decoded = Acceptance::of(passes);
        self.differing += u64::from(!estimate.is_as_decoded(&decoded));
        self.decoded.merge(&decoded);
        self.estimated.merge(&estimate.acceptance);
        if let Some(overlap) = estimate.overlap {
            *self.overlap.get_or_insert_default() += overlap;
        }
        let [likeliest, head] = &mut self.confidence;
        likeliest.merge(&estimate.likeliest);
        head.merge(&estimate.head);
    }

    /// How the drafter's confidence went with what was right in these conversations.
    pub(crate) fn calibration(conversations: &[Self], seed: u64) -> Option<CalibrationReport> {
        let each = conversations.iter().map(|one| one.confidence.each_ref());
        CalibrationReport::of(&each.collect::<Vec<_>>(), seed)
    }
}

impl EstimateReport {
    /// Of some conversations. `None` where no decoding pass was needed.
    pub(crate) fn of(conversations: &[Compared], seconds: f64, seed: u64) -> Option<Self> {
        let counts: Vec<&Acceptance> = conversations.iter().map(|one| &one.estimated).collect();
        let pooled = Acceptance::pooled(counts.iter().copied());
        let more: Vec<f64> = (conversations.iter())
            .map(|one| one.decoded.passes - one.estimated.passes)
            .collect();
        let overlaps = conversations.iter().filter_map(|one| one.overlap);
        let overlap = overlaps.reduce(|sum, overlap| sum + overlap);
        let judged: f64 = pooled.tested.iter().sum();
        let spread = more.iter().map(|more| more * more).sum::<f64>().sqrt();
        let differing = conversations.iter().map(|one| one.differing).sum();
        let more_passes: f64 = more.iter().sum();
        Some(Self {
            tau: pooled.tau()?,
            tau_ci95: bootstrap(&counts, seed, |drawn| {
                Acceptance::pooled(drawn.iter().map(|counts| **counts)).tau()
            }),
            alpha: pooled.alpha(),
            alpha_analytic: overlap.filter(|_| judged > 0.0).map(|sum| sum / judged),
            conditional: pooled.conditional(),
            survival: pooled.survival(),
            more_passes,
            seconds,
            standard_errors: (overlap.is_some() && spread > 0.0).then(|| more_passes / spread),
            differing_outputs: overlap.is_none().then_some(differing),
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
        write!(f, " in {:.1} s", self.seconds)?;
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
