//! What the estimator says of a setting, beside what decoding counted.
use std::fmt;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::passes::Estimate;
use crate::bootstrap::bootstrap;
use crate::reliability::{CalibrationReport, Reliability};
use crate::speculate::PassRecord;
use crate::statistics::Acceptance;

/// The p-value below which chance is no explanation: less than once in ten thousand settings.
const SURPRISING: f64 = 1e-4;
/// The same in standard errors, in reports of earlier versions, which have no p-value.
const SURPRISING_ERRORS: f64 = 4.0;
/// The share of a conversation's passes up to which a difference comes from arithmetic: the estimator has the target read its text once
/// more, many tokens at a time.
const ROUNDING: f64 = 1e-3;

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
    /// The same in standard errors, where drafts are drawn and conversations differ in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_errors: Option<f64>,
    /// How likely so many or more are, too many or too few, if decoder and estimator agree: Student's t-test of the conversations, where
    /// drafts are drawn, with no smaller standard error than the drawing explains. One conversation is too few to tell; earlier versions
    /// did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
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
    /// See [`Estimate::variance`].
    variance: f64,
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
        self.variance += estimate.variance;
        let [likeliest, head] = &mut self.confidence;
        likeliest.merge(&estimate.likeliest);
        head.merge(&estimate.head);
    }

    /// Passes that decoding took and was not expected to take.
    fn more_passes(&self) -> f64 {
        self.decoded.passes - self.estimated.passes
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
        let overlaps = conversations.iter().filter_map(|one| one.overlap);
        let overlap = overlaps.reduce(|sum, overlap| sum + overlap);
        let judged: f64 = pooled.tested.iter().sum();
        let chance = overlap.map(|_| Chance::of(conversations));
        let chance = chance.unwrap_or_default();
        let differing = conversations.iter().map(|one| one.differing).sum();
        Some(Self {
            tau: pooled.tau()?,
            tau_ci95: bootstrap(&counts, seed, |drawn| {
                Acceptance::pooled(drawn.iter().map(|counts| **counts)).tau()
            }),
            alpha: pooled.alpha(),
            alpha_analytic: overlap.filter(|_| judged > 0.0).map(|sum| sum / judged),
            conditional: pooled.conditional(),
            survival: pooled.survival(),
            more_passes: conversations.iter().map(Compared::more_passes).sum(),
            seconds,
            standard_errors: chance.standard_errors,
            p_value: chance.p_value,
            differing_outputs: overlap.is_none().then_some(differing),
        })
    }

    /// Whether decoding and estimate differ by more than chance explains.
    pub fn is_surprising(&self) -> bool {
        self.is_unlikely() == Some(true)
            || self
                .differing_outputs
                .is_some_and(|differing| differing > 0)
    }

    /// Whether chance is no explanation of the passes that decoding took more, where drafts are drawn; none where that cannot be told.
    fn is_unlikely(&self) -> Option<bool> {
        let by_errors = |errors: f64| errors.abs() > SURPRISING_ERRORS;
        self.p_value
            .map(|p| p < SURPRISING)
            .or(self.standard_errors.map(by_errors))
    }

    /// What chance explains of the passes that decoding took more, where drafts are drawn, in words.
    pub(crate) fn chance(&self) -> &'static str {
        match self.is_unlikely() {
            None => "too few conversations to tell",
            Some(true) => "more than chance explains",
            Some(false) => "within chance",
        }
    }
}

/// How surprising it is that decoding took more or fewer passes than expected.
#[derive(Debug, Default, PartialEq)]
struct Chance {
    /// Passes too many in standard errors; none where all conversations are alike.
    standard_errors: Option<f64>,
    /// The two-sided p-value of Student's t-test; none of fewer than two conversations.
    p_value: Option<f64>,
}

impl Chance {
    fn of(conversations: &[Compared]) -> Self {
        let decoded = conversations.iter().filter(|one| one.decoded.passes > 0.0);
        let beyond_rounding = |one: &Compared| {
            let more = one.more_passes();
            let is_told = more.abs() > ROUNDING * one.decoded.passes;
            if is_told { more } else { 0.0 }
        };
        let more: Vec<f64> = decoded.map(beyond_rounding).collect();
        let n = more.len() as f64;
        let Ok(law) = StudentsT::new(0.0, 1.0, n - 1.0) else {
            return Self::default();
        };
        let sum: f64 = more.iter().sum();
        let squares = more.iter().map(|more| (more - sum / n).powi(2));
        let centred = n / (n - 1.0) * squares.sum::<f64>();
        // Of a good drafter most conversations take the fewest passes, and so nearly all differ alike, until in one a step is rejected.
        let drawn: f64 = conversations.iter().map(|one| one.variance).sum();
        let error = centred.max(drawn).sqrt();
        if error > 0.0 {
            let errors = sum / error;
            return Self {
                standard_errors: Some(errors),
                p_value: Some(2.0 * law.sf(errors.abs())),
            };
        }
        // All are alike: none, or so many as chance does not give to each.
        Self {
            standard_errors: None,
            p_value: Some(if sum == 0.0 { 1.0 } else { 0.0 }),
        }
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
            (None, errors) => {
                write!(f, "; decoding took {:+.1} passes", self.more_passes)?;
                if let Some(errors) = errors {
                    write!(f, ", {:.1} standard errors", errors.abs())?;
                }
                write!(f, ": {}", self.chance())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::PassRecord;

    /// A report of conversations with drawn drafts that took so many passes more than expected.
    fn with_more(more: &[f64]) -> EstimateReport {
        with_variance(more, 0.0)
    }

    /// The same, where drawing explains a variance of so much in each.
    fn with_variance(more: &[f64], variance: f64) -> EstimateReport {
        let of = |&more: &f64| Compared {
            decoded: Acceptance {
                passes: 20.0 + more,
                ..Acceptance::default()
            },
            estimated: Acceptance {
                passes: 20.0,
                emitted: 40.0,
                ..Acceptance::default()
            },
            overlap: Some(10.0),
            variance,
            ..Compared::default()
        };
        let conversations: Vec<Compared> = more.iter().map(of).collect();
        EstimateReport::of(&conversations, 1.0, 0).unwrap()
    }

    #[test]
    fn few_conversations_that_all_take_more_passes_are_surprising() {
        let more = [5.0, 6.0, 7.0, 5.0, 6.0, 7.0, 5.0, 7.0];
        let found = with_more(&more);
        // The mean of 6 over the error √(6 / 7 / 8).
        let errors = found.standard_errors.unwrap();
        let expected = 6.0 / (6.0f64 / 56.0).sqrt();
        assert!((errors - expected).abs() < 1e-9, "{errors} {expected}");
        assert!(found.p_value.unwrap() < 1e-6 && found.is_surprising());
        assert!(found.to_string().ends_with(": more than chance explains"));
        // As many that go both ways are not, and three are too few unless they are all alike.
        let both = with_more(&more.map(|more| if more < 6.0 { -more } else { more }));
        assert!(!both.is_surprising(), "{both}");
        assert!(both.to_string().ends_with(": within chance"), "{both}");
        let three = with_more(&more[..3]);
        assert!(!three.is_surprising(), "{three}");
    }

    #[test]
    fn conversations_that_all_differ_alike_are_surprising_and_one_is_too_few_to_tell() {
        let alike = with_more(&[2.0; 4]);
        assert_eq!((alike.standard_errors, alike.p_value), (None, Some(0.0)));
        assert!(alike.is_surprising());
        let same = with_more(&[0.0; 4]);
        assert_eq!(same.p_value, Some(1.0));
        assert!(!same.is_surprising());
        // Probabilities are of 32 bits.
        assert_eq!(with_more(&[1e-6; 4]).p_value, Some(1.0));
        let one = with_more(&[9.0]);
        assert_eq!((one.standard_errors, one.p_value), (None, None));
        let told = one.to_string();
        assert!(
            told.ends_with("; decoding took +9.0 passes: too few conversations to tell"),
            "{told}"
        );
    }

    #[test]
    fn conversations_of_a_good_drafter_that_all_take_a_little_less_are_no_surprise() {
        // A twentieth of a pass is expected for rejections, of which there were none.
        let found = with_variance(&[-0.05, -0.051, -0.049, -0.05, -0.052, -0.048], 0.05);
        let errors = found.standard_errors.unwrap();
        let expected = -0.3 / 0.3f64.sqrt();
        assert!((errors - expected).abs() < 1e-9, "{errors} {expected}");
        assert!(!found.is_surprising(), "{found}");
        // So many are, whatever drawing explains.
        assert!(with_variance(&[-5.0, -5.1, -4.9, -5.0, -5.2, -4.8], 0.05).is_surprising());
    }

    #[test]
    fn reports_of_earlier_versions_are_judged_by_their_standard_errors() {
        let old = |errors: Option<f64>| -> EstimateReport {
            let mut found = serde_json::json!({
                "tau": 2.5, "conditional": [0.8], "survival": [0.8], "more_passes": 12.0, "seconds": 1.0,
            });
            if let Some(errors) = errors {
                found["standard_errors"] = errors.into();
            }
            serde_json::from_value(found).unwrap()
        };
        for (errors, is_surprising, chance) in [
            (Some(6.2), true, "more than chance explains"),
            (Some(-6.2), true, "more than chance explains"),
            (Some(0.5), false, "within chance"),
            (None, false, "too few conversations to tell"),
        ] {
            let found = old(errors);
            assert_eq!(found.is_surprising(), is_surprising, "{errors:?}");
            assert_eq!(found.chance(), chance);
        }
    }

    #[test]
    fn where_drafts_are_not_drawn_there_is_no_chance() {
        let mut fixed = Compared::default();
        let pass = PassRecord {
            emitted: 1,
            ..PassRecord::default()
        };
        let estimate = Estimate {
            acceptance: Acceptance::of(&[pass]),
            ..Estimate::default()
        };
        fixed.add(&[pass; 2], &estimate);
        let found = EstimateReport::of(&[fixed], 1.0, 0).unwrap();
        assert_eq!((found.standard_errors, found.p_value), (None, None));
        assert_eq!(found.differing_outputs, Some(1));
        assert!(found.is_surprising());
    }
}
