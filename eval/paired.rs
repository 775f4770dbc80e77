//! Two drafters on the same prompts: the difference, by pairs. Prompts differ far more among themselves than two drafters do
//! on one prompt, so pairs tell drafters apart that two intervals side by side do not.
use std::fmt;

use serde::Serialize;
use spectrain_checkpoints::Mismatch;
use statrs::distribution::{Binomial, DiscreteCDF};

use crate::bootstrap::{bootstrap, bootstrap_among};
use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::interval::with_digits;
use crate::report::{DatasetReport, Report, SettingReport};

pub(crate) mod parts;

/// Seed of the intervals.
const SEED: u64 = 0;
/// Conversations of which fewer are too few to choose among several by: resampled intervals are too narrow then.
pub(crate) const FEWEST: usize = 20;

/// τ of a report against that of another, in one way of decoding that both have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairedReport {
    /// The way of decoding.
    pub setting: String,
    /// Conversations that both decoded.
    pub conversations: usize,
    /// Pooled τ of the report that is compared with.
    pub baseline_tau: f64,
    /// Its 95 % interval, by drawing conversations anew.
    pub baseline_ci95: [f64; 2],
    /// Pooled τ of the other.
    pub tau: f64,
    /// Its 95 % interval.
    pub tau_ci95: [f64; 2],
    /// How much larger it is.
    pub difference: f64,
    /// 95 % interval of the difference, by drawing conversations anew, both τ from the same ones.
    pub ci95: [f64; 2],
    /// Differences that are looked at together, this one among them.
    pub among: usize,
    /// An interval so wide that those of all these differences hold at once with 95 %; [`Self::ci95`] of one alone.
    pub joint: [f64; 2],
    /// Conversations in which it is larger.
    pub better: usize,
    /// Conversations in which it is smaller.
    pub worse: usize,
    /// How likely so uneven a count is where each is as likely as the other: the sign test, two-sided.
    pub sign_test: f64,
}

/// The differences between two reports, and what must be known to read them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairedReports {
    /// One for each way of decoding and each run on a server.
    pub found: Vec<PairedReport>,
    /// In what they differ beside the drafter, and what could not be compared.
    pub remarks: Vec<String>,
}

impl From<Vec<PairedReport>> for PairedReports {
    fn from(found: Vec<PairedReport>) -> Self {
        Self {
            found,
            remarks: Vec::new(),
        }
    }
}

/// What a difference says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PairedVerdict {
    /// The interval lies above 0.
    Better,
    /// The interval lies below 0.
    Worse,
    /// The interval holds 0.
    NotToldApart,
    /// There are too few conversations to choose by.
    TooFew,
}

impl PairedReport {
    /// What the difference says among those that are looked at together.
    pub fn verdict(&self) -> PairedVerdict {
        match self.joint {
            [low, _] if low > 0.0 => PairedVerdict::Better,
            [_, high] if high < 0.0 => PairedVerdict::Worse,
            _ => PairedVerdict::NotToldApart,
        }
    }

    /// The same where one is chosen by it: of few conversations nothing is said.
    pub fn choice(&self) -> PairedVerdict {
        if self.conversations < FEWEST {
            return PairedVerdict::TooFew;
        }
        self.verdict()
    }

    /// Whether τ surely fell, and by more than `-least`: the interval lies below 0 and the difference below `least`.
    pub fn falls_below(&self, least: f64) -> bool {
        self.verdict() == PairedVerdict::Worse && self.difference < least
    }

    /// The p-value of the sign test, however small.
    pub(crate) fn p_value(&self) -> String {
        shown(self.sign_test)
    }

    /// Of pairs of tokens and passes, the compared report's first, as one among so many differences. `None` where either has no
    /// passes.
    pub(crate) fn of(setting: String, pairs: &[[Counts; 2]], among: usize) -> Option<Self> {
        let tau = |drawn: &[&[Counts; 2]], report: usize| {
            drawn.iter().map(|pair| pair[report]).sum::<Counts>().tau()
        };
        let difference = |drawn: &[&[Counts; 2]]| Some(tau(drawn, 1)? - tau(drawn, 0)?);
        let all: Vec<_> = pairs.iter().collect();
        let better = pairs.iter().filter(|[a, b]| b.exceeds(*a)).count();
        let worse = pairs.iter().filter(|[a, b]| a.exceeds(*b)).count();
        let ci95 = bootstrap(pairs, SEED, difference)?;
        let joint = match among {
            0 | 1 => ci95,
            _ => bootstrap_among(pairs, (SEED, among), difference)?,
        };
        Some(Self {
            setting,
            conversations: pairs.len(),
            baseline_tau: tau(&all, 0)?,
            baseline_ci95: bootstrap(pairs, SEED, |drawn| tau(drawn, 0))?,
            tau: tau(&all, 1)?,
            tau_ci95: bootstrap(pairs, SEED, |drawn| tau(drawn, 1))?,
            difference: difference(&all)?,
            ci95,
            among,
            joint,
            better,
            worse,
            sign_test: sign_test(better, worse),
        })
    }
}

impl fmt::Display for PairedReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [low, high] = self.ci95;
        write!(
            f,
            "{}: τ {} against {}, {:+.3} [{low:+.3}, {high:+.3}], {}; larger in {}, smaller in {} of {} conversations \
             (sign test: p = {})",
            self.setting,
            with_digits(Some(self.tau), Some(self.tau_ci95), 3),
            with_digits(Some(self.baseline_tau), Some(self.baseline_ci95), 3),
            self.difference,
            self.verdict(),
            self.better,
            self.worse,
            self.conversations,
            shown(self.sign_test)
        )
    }
}

impl fmt::Display for PairedVerdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NotToldApart => "not told apart",
            Self::TooFew => "too few prompts",
        })
    }
}

/// Every way of decoding that `report` shares with `baseline`, on the same prompts; `among` so many reports that are compared
/// with it.
///
/// # Errors
/// They share none, were judged by different targets, or decoded other prompts.
pub fn paired(baseline: &Report, report: &Report, among: usize) -> Result<Vec<PairedReport>> {
    let mut found = Vec::new();
    for setting in &report.settings {
        if let Some(other) = baseline.like(setting) {
            let pairs = pairs(baseline, (other, setting))?;
            found.extend(PairedReport::of(setting.heading(), &pairs, among));
        }
    }
    if found.is_empty() {
        let headings = |report: &Report| {
            let all = report.settings.iter().map(SettingReport::heading);
            all.collect::<Vec<_>>().join("; ")
        };
        let (expected, given) = (headings(baseline), headings(report));
        return Err(Error::unpaired(
            format!("one of the settings {expected}"),
            given,
        ));
    }
    if baseline.target.sha256 != report.target.sha256 {
        return Err(other_target(baseline, report));
    }
    Ok(found)
}

/// Each setting of the report's own drafter against each of those without training that decoded in the same way but for the
/// draft. Every one has decoded the same prompts.
pub(crate) fn against_free(report: &Report) -> Vec<PairedReport> {
    let own = (report.settings.iter()).filter(|setting| setting.drafter.is_none());
    let pair = |own: &SettingReport, free: &SettingReport| {
        let pairs = pairs(report, (free, own)).ok()?;
        let names = format!("{} against {}", own.heading(), free.heading());
        PairedReport::of(names, &pairs, 1)
    };
    let of = |own: &SettingReport| {
        let free = report.settings.iter().filter(|free| {
            free.drafter.is_some()
                && free.target == own.target
                && free.sampling() == own.sampling()
                && free.lossy == own.lossy
        });
        free.filter_map(|free| pair(own, free)).collect::<Vec<_>>()
    };
    own.flat_map(of).collect()
}

/// Tokens and passes of each conversation in both settings.
pub(crate) fn pairs(
    baseline: &Report,
    (one, other): (&SettingReport, &SettingReport),
) -> Result<Vec<[Counts; 2]>> {
    let mut pairs = Vec::new();
    for dataset in &other.datasets {
        let name = &dataset.name;
        let is_same = |known: &&DatasetReport| {
            known.prompts_sha256.is_some()
                && known.prompts_sha256 == dataset.prompts_sha256
                && known.counts.len() == dataset.counts.len()
        };
        let Some(same) = one.datasets.iter().find(is_same) else {
            let names = one.datasets.iter().map(|known| format!("`{}`", known.name));
            let names: Vec<_> = names.collect();
            let expected = format!(
                "the prompts of {} as spectrain {} decoded them",
                names.join(" or "),
                baseline.spectrain
            );
            return Err(Error::OtherPrompts {
                mismatch: Mismatch::new(expected, format!("`{name}` with other prompts")),
            });
        };
        let counts = same.counts.iter().zip(&dataset.counts);
        pairs.extend(counts.map(|(&one, &other)| [one, other]));
    }
    Ok(pairs)
}

/// That two reports are of different targets.
pub(crate) fn other_target(baseline: &Report, report: &Report) -> Error {
    let [expected, found] = [baseline, report].map(|report| &report.target.model);
    Error::unpaired(
        format!("the weights of the target `{expected}`"),
        format!("other weights, of `{found}`"),
    )
}

/// A probability, however small.
fn shown(p: f64) -> String {
    if p < 0.001 {
        format!("{p:.0e}")
    } else {
        format!("{p:.3}")
    }
}

/// The two-sided p-value of so many successes and failures at equal odds; ties count for nothing.
fn sign_test(better: usize, worse: usize) -> f64 {
    let (all, fewer) = (better + worse, better.min(worse));
    match Binomial::new(0.5, all as u64) {
        Ok(law) if all > 0 => (2.0 * law.cdf(fewer as u64)).min(1.0),
        _ => 1.0,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::draft::DraftReport;
    use crate::report::{DrafterReport, TargetReport};

    pub(crate) fn report(counts: Vec<Counts>, prompts: &str, target: &str) -> Report {
        let dataset = DatasetReport {
            name: "eval".into(),
            counts,
            prompts_sha256: Some(prompts.into()),
            ..DatasetReport::default()
        };
        let setting = SettingReport {
            target: None,
            drafter: None,
            temperature: 0.0,
            top_k: None,
            top_p: None,
            verifier: "greedy".into(),
            lossy: false,
            draft: DraftReport::Chain {
                length: 5,
                tokens: None,
            },
            datasets: vec![dataset],
            overall: DatasetReport::default(),
            sampling: None,
            estimate: None,
            calibration: None,
            groups: Default::default(),
            token_classes: Vec::new(),
        };
        let target = TargetReport {
            sha256: target.into(),
            ..TargetReport::default()
        };
        Report::new(target, DrafterReport::default(), vec![setting])
    }

    /// Conversations of 120 tokens that differ much among themselves.
    fn counts(more: u64) -> Vec<Counts> {
        (0..40).map(|at| of(30 + at % 37 + more)).collect()
    }

    pub(crate) fn of(passes: u64) -> Counts {
        Counts::from([120.0, passes as f64])
    }

    fn of_two(baseline: Vec<Counts>, other: Vec<Counts>) -> Vec<PairedReport> {
        let [baseline, other] = [baseline, other].map(|counts| report(counts, "p", "t"));
        paired(&baseline, &other, 1).unwrap()
    }

    #[test]
    fn a_difference_among_many_or_of_few_prompts_must_be_surer_to_count() {
        // Of three conversations one loses more than the others gain; the sum is a gain.
        let pair = |at: u64| [of(60), of([56, 57, 63][at as usize % 3])];
        let pairs: Vec<[Counts; 2]> = (0..42).map(pair).collect();
        let found = |among| PairedReport::of("a".into(), &pairs, among).unwrap();
        let (alone, many) = (found(1), found(50));
        assert_eq!(alone.joint, alone.ci95);
        assert_eq!(many.ci95, alone.ci95);
        assert_eq!(alone.choice(), PairedVerdict::Better, "{alone}");
        assert_eq!(many.choice(), PairedVerdict::NotToldApart, "{many}");
        let few = PairedReport::of("a".into(), &[[of(60), of(40)]; FEWEST - 1], 1).unwrap();
        assert_eq!(few.verdict(), PairedVerdict::Better);
        assert_eq!(few.choice(), PairedVerdict::TooFew);
    }

    #[test]
    fn a_small_difference_on_every_prompt_is_told_where_intervals_overlap() {
        let pairs = of_two(counts(1), counts(0));
        let found = &pairs[0];
        assert_eq!(found.verdict(), PairedVerdict::Better);
        assert_eq!((found.better, found.worse), (40, 0));
        assert!(found.sign_test < 1e-11, "{}", found.sign_test);
        assert!(found.difference > 0.0 && found.difference < 0.1, "{found}");
        assert!(!found.falls_below(-0.01));
        let back = of_two(counts(0), counts(1));
        assert!(back[0].falls_below(-0.01) && !back[0].falls_below(-0.1));
    }

    #[test]
    fn a_drafter_is_not_told_apart_from_itself() {
        let same = report(counts(0), "p", "t");
        let found = &paired(&same, &same, 1).unwrap()[0];
        assert_eq!((found.difference, found.ci95), (0.0, [0.0; 2]));
        assert_eq!(found.verdict(), PairedVerdict::NotToldApart);
        assert_eq!(found.sign_test, 1.0);
    }

    #[test]
    fn ups_and_downs_are_not_told_apart() {
        let mixed = (0..40).map(|at| of(30 + at % 37 + at % 3)).collect();
        let found = &of_two(counts(1), mixed)[0];
        assert_eq!(found.verdict(), PairedVerdict::NotToldApart, "{found}");
        assert!(found.sign_test > 0.3, "{found}");
    }

    #[test]
    fn other_prompts_targets_and_settings_are_refused() {
        let one = report(counts(0), "p", "t");
        let refused = |other: &Report| paired(&one, other, 1).unwrap_err().to_string();
        assert!(refused(&report(counts(0), "q", "t")).contains("prompts"));
        assert!(refused(&report(counts(0), "p", "u")).contains("weights of the target"));
        let mut warm = report(counts(0), "p", "t");
        warm.settings[0].temperature = 1.0;
        assert!(refused(&warm).contains("T=1"), "{}", refused(&warm));
    }

    #[test]
    fn the_sign_test_is_that_of_the_binomial_law() {
        assert!((sign_test(9, 1) - 22.0 / 1024.0).abs() < 1e-12);
        assert_eq!(sign_test(3, 3), 1.0);
        assert_eq!(sign_test(0, 0), 1.0);
    }
}
