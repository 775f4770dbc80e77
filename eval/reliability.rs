//! How well a drafter knows itself: its confidence in the steps that were judged, against how often they were right.
//!
//! A reliability curve and the expected calibration error (ECE) over bins of equal width (Guo et al.,
//! <https://arxiv.org/abs/1706.04599>).
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::bootstrap::bootstrap;
use crate::interval::with_digits;

/// Bins between 0 and 1.
const BINS: usize = 10;

/// Steps by the confidence in them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reliability {
    bins: [Bin; BINS],
}

/// The steps in a bin. Where drafts are drawn these are expected numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Bin {
    steps: f64,
    /// Sum of the confidence in them.
    confidence: f64,
    /// Those that were right.
    right: f64,
}

impl Reliability {
    /// Counts `steps` steps of one confidence, of which `right` were right.
    pub fn add(&mut self, confidence: f64, steps: f64, right: f64) {
        let bin = (confidence * BINS as f64) as usize;
        let bin = &mut self.bins[bin.min(BINS - 1)];
        bin.steps += steps;
        bin.confidence += steps * confidence;
        bin.right += right;
    }

    /// Adds the steps of another.
    pub fn merge(&mut self, other: &Self) {
        for (bin, more) in self.bins.iter_mut().zip(&other.bins) {
            bin.steps += more.steps;
            bin.confidence += more.confidence;
            bin.right += more.right;
        }
    }

    fn pooled<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut pooled = Self::default();
        parts.into_iter().for_each(|part| pooled.merge(part));
        pooled
    }

    /// All steps as one bin.
    fn all(&self) -> Bin {
        self.bins.iter().fold(Bin::default(), |sum, bin| Bin {
            steps: sum.steps + bin.steps,
            confidence: sum.confidence + bin.confidence,
            right: sum.right + bin.right,
        })
    }

    /// `Σ n_b / N |right_b - confidence_b|`, with the means of each bin. `None` without steps.
    pub fn ece(&self) -> Option<f64> {
        let steps = self.all().steps;
        let apart = self
            .bins
            .iter()
            .map(|bin| (bin.right - bin.confidence).abs());
        (steps > 0.0).then(|| apart.sum::<f64>() / steps)
    }
}

/// How confidence goes with being right, over some conversations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityReport {
    /// Steps that were judged; where drafts are drawn the expected number.
    pub steps: f64,
    /// Mean confidence in them.
    pub confidence: f64,
    /// Share of them that was right.
    pub right: f64,
    /// Expected calibration error: how far confidence and share are apart in a bin, on average over steps.
    pub ece: f64,
    /// Its 95 % interval over conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ece_ci95: Option<[f64; 2]>,
    /// Bins of confidence that hold a step, in ascending order.
    pub bins: Vec<ReliabilityBin>,
}

/// Steps of about the same confidence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityBin {
    /// The least confidence in it.
    pub from: f64,
    /// Where the next bin begins.
    pub to: f64,
    /// Steps in it.
    pub steps: f64,
    /// Mean confidence in them.
    pub confidence: f64,
    /// Share of them that was right.
    pub right: f64,
}

impl ReliabilityReport {
    /// Of conversations. `None` without a step.
    fn of(conversations: &[&Reliability], seed: u64) -> Option<Self> {
        let pooled = Reliability::pooled(conversations.iter().copied());
        let all = pooled.all();
        let share = |bin: &Bin, part: f64| part / bin.steps;
        let bins = pooled.bins.iter().enumerate();
        let bins = bins.filter(|(_, bin)| bin.steps > 0.0);
        Some(Self {
            ece: pooled.ece()?,
            // Of one conversation nobody knows how others are.
            ece_ci95: (conversations.len() > 1)
                .then(|| {
                    bootstrap(conversations, seed, |drawn| {
                        Reliability::pooled(drawn.iter().map(|one| **one)).ece()
                    })
                })
                .flatten(),
            steps: all.steps,
            confidence: share(&all, all.confidence),
            right: share(&all, all.right),
            bins: bins
                .map(|(at, bin)| ReliabilityBin {
                    from: at as f64 / BINS as f64,
                    to: (at + 1) as f64 / BINS as f64,
                    steps: bin.steps,
                    confidence: share(bin, bin.confidence),
                    right: share(bin, bin.right),
                })
                .collect(),
        })
    }

    /// The figures of a row.
    fn cells(&self) -> String {
        format!(
            "{:.0} | {:.2} | {:.2} | {}",
            self.steps,
            self.confidence,
            self.right,
            with_digits(Some(self.ece), self.ece_ci95, 3)
        )
    }
}

/// The calibration of a drafter's confidence in a setting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibrationReport {
    /// The drafter's probability of its likeliest token at each step that was judged, and whether the target said that token. At
    /// temperature 0 and with the likeliest tokens drafted, that is whether the step was accepted.
    pub likeliest: ReliabilityReport,
    /// What its head guessed of each step, and whether that was accepted; of drafters with such a head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<ReliabilityReport>,
}

impl CalibrationReport {
    /// Of conversations, each with what the likeliest token and what the head says. `None` without a step.
    pub(crate) fn of(conversations: &[[&Reliability; 2]], seed: u64) -> Option<Self> {
        let all = |which: usize| {
            let parts: Vec<&Reliability> = conversations.iter().map(|one| one[which]).collect();
            ReliabilityReport::of(&parts, seed)
        };
        Some(Self {
            likeliest: all(0)?,
            head: all(1),
        })
    }

    /// Each curve with what it is of.
    pub(crate) fn curves(&self) -> impl Iterator<Item = (&'static str, &ReliabilityReport)> {
        let head = self.head.as_ref().map(|head| ("guess of the head", head));
        std::iter::once(("likeliest token", &self.likeliest)).chain(head)
    }
}

/// A table of the calibration of settings under their headings; nothing where nothing is known.
pub(crate) fn table(settings: &[(String, &CalibrationReport)]) -> String {
    if settings.is_empty() {
        return String::new();
    }
    let mut text =
        "\n| setting | confidence in | steps judged | mean confidence | right | ECE [95 % CI] |\n\
                    |---|---|--:|--:|--:|---|\n"
            .to_owned();
    for (heading, calibration) in settings {
        for (what, curve) in calibration.curves() {
            _ = writeln!(text, "| {heading} | {what} | {} |", curve.cells());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    fn of(steps: &[(f64, bool)]) -> Reliability {
        let mut found = Reliability::default();
        for &(confidence, right) in steps {
            found.add(confidence, 1.0, f64::from(u8::from(right)));
        }
        found
    }

    #[test]
    fn the_error_is_that_computed_by_hand() {
        // Two bins: 0.5 and 0.58 with one of two right, and 0.9 and 1 with both right.
        let found = of(&[(0.5, true), (0.58, false), (0.9, true), (1.0, true)]);
        assert!((found.ece().unwrap() - (0.08 + 0.1) / 4.0).abs() < 1e-12);
        let report = ReliabilityReport::of(&[&found], 1).unwrap();
        assert_eq!(report.ece_ci95, None);
        assert_eq!((report.steps, report.right), (4.0, 0.75));
        let bins = report.bins.iter();
        let bins: Vec<_> = bins
            .map(|bin| (bin.from, bin.to, bin.steps, bin.right))
            .collect();
        assert_eq!(bins, [(0.5, 0.6, 2.0, 0.5), (0.9, 1.0, 2.0, 1.0)]);
        assert_eq!(Reliability::default().ece(), None);
    }

    #[test]
    fn a_drafter_that_knows_itself_has_almost_no_error_and_a_boaster_has() {
        let mut rng = StdRng::seed_from_u64(5);
        let (mut honest, mut boaster) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let mut steps = [Vec::new(), Vec::new()];
            for _ in 0..1000 {
                let chance: f64 = rng.random();
                let right = rng.random_bool(chance);
                steps[0].push((chance, right));
                steps[1].push((chance.sqrt(), right));
            }
            honest.push(of(&steps[0]));
            boaster.push(of(&steps[1]));
        }
        let of = |all: &[Reliability]| {
            ReliabilityReport::of(&all.iter().collect::<Vec<_>>(), 1).unwrap()
        };
        let (honest, boaster) = (of(&honest), of(&boaster));
        assert!(honest.ece < 0.015, "{honest:?}");
        // ∫ √x - x dx = 1/6.
        assert!((boaster.ece - 1.0 / 6.0).abs() < 0.01, "{boaster:?}");
        let [low, high] = boaster.ece_ci95.unwrap();
        assert!(low < boaster.ece && boaster.ece < high && high - low < 0.03);
    }

    #[test]
    fn the_table_has_a_row_for_each_curve() {
        let found = of(&[(0.5, true), (0.75, false)]);
        let none = Reliability::default();
        let with_head = CalibrationReport::of(&[[&found, &found]], 1).unwrap();
        let without = CalibrationReport::of(&[[&found, &none]], 1).unwrap();
        assert_eq!(without.head, None);
        assert_eq!(CalibrationReport::of(&[[&none, &none]], 1), None);
        let text = table(&[("T=0".into(), &with_head), ("T=1".into(), &without)]);
        let rows: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(
            rows,
            [
                "| T=0 | likeliest token | 2 | 0.62 | 0.50 | 0.625 |",
                "| T=0 | guess of the head | 2 | 0.62 | 0.50 | 0.625 |",
                "| T=1 | likeliest token | 2 | 0.62 | 0.50 | 0.625 |",
            ]
        );
        assert_eq!(table(&[]), "");
    }
}
