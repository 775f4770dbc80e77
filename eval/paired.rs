//! Two drafters on the same prompts: the difference, by pairs. Prompts differ far more among themselves than two drafters do
//! on one prompt, so pairs tell drafters apart that two intervals side by side do not.
use std::fmt;

use serde::Serialize;
use spectrain_checkpoints::Mismatch;
use statrs::distribution::{Binomial, DiscreteCDF};

use crate::bootstrap::{bootstrap, bootstrap_among};
use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::interval::{with_digits, with_signs};
use crate::paired::own::{advice, at_other_lengths, counterpart, differ_in_length, remark};
use crate::report::{DatasetReport, Report, SettingReport, TargetReport};

pub(crate) mod own;
pub(crate) mod parts;

/// Seed of the intervals.
const SEED: u64 = 0;
/// Conversations of which fewer are too few to choose among several by: resampled intervals are too narrow then.
pub(crate) const FEWEST: usize = 20;
/// What a verdict on two trainings does not say.
pub(crate) const ONE_TRAINING: &str = "each drafter is one training, and intervals cover the choice of prompts alone: trainings that \
                                       differ only in their seed may differ as much";

/// τ of a report against that of another, in one way of decoding that both have, or with the chain that each has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairedReport {
    /// The way of decoding; with both drafts where they differ.
    pub setting: String,
    /// The dataset, where this is one of several that both have or that one of them has; else all prompts of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Whether it is of chains of different lengths, of which the longer one can reach a larger τ; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub other_lengths: bool,
    /// Conversations that both decoded.
    pub conversations: usize,
    /// Pooled τ of the report that is compared with.
    pub baseline_tau: f64,
    /// Its 95 % interval, by drawing conversations anew; none of one conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_ci95: Option<[f64; 2]>,
    /// Pooled τ of the other.
    pub tau: f64,
    /// Its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// How much larger it is.
    pub difference: f64,
    /// 95 % interval of the difference, by drawing conversations anew, both τ from the same ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<[f64; 2]>,
    /// Differences that are looked at together, this one among them.
    #[serde(skip)]
    pub among: usize,
    /// An interval so wide that those of all these differences hold at once with 95 %; [`Self::ci95`] of one alone.
    #[serde(skip)]
    pub joint: Option<[f64; 2]>,
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
    /// What of the baseline could not be compared: ways of decoding, also those that were compared with a chain of another length
    /// alone, and runs on a server.
    pub uncompared: Vec<String>,
}

impl PairedReports {
    /// With what must be known where two reports have no chain in common.
    fn and_lengths(mut self, baseline: &Report, report: &Report) -> Self {
        let pairs = at_other_lengths(baseline, report);
        self.remarks.extend(remark(pairs.iter().flatten().copied()));
        let only = |[own, other]: &[&SettingReport; 2]| {
            format!("{} (only with {})", own.of_target(), other.draft)
        };
        self.uncompared.extend(pairs.iter().map(only));
        self
    }

    /// With what must be known of a verdict on two trainings.
    fn and_trainings(mut self, baseline: &Report, report: &Report) -> Self {
        let mut verdicts = self.found.iter().map(PairedReport::verdict);
        let is_told = |verdict: PairedVerdict| {
            matches!(verdict, PairedVerdict::Better | PairedVerdict::Worse)
        };
        if verdicts.any(is_told) && are_trainings(baseline, report) {
            self.remarks.push(ONE_TRAINING.to_owned());
        }
        self
    }

    /// With what the baseline alone has, and what the other report alone has.
    fn and_alone(mut self, [baseline, report]: [Vec<String>; 2]) -> Self {
        let of_baseline = baseline.iter();
        let of_baseline = of_baseline.map(|way| format!("only the baseline has {way}"));
        let of_report = report.iter();
        let of_report = of_report.map(|way| format!("the baseline does not have {way}"));
        self.remarks.extend(of_baseline.chain(of_report));
        self.uncompared.extend(baseline);
        self
    }
}

impl From<Vec<PairedReport>> for PairedReports {
    fn from(found: Vec<PairedReport>) -> Self {
        Self {
            found,
            ..Self::default()
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
    /// There are too few conversations to choose by, or to know an interval.
    TooFew,
}

impl PairedReport {
    /// What the difference says among those that are looked at together.
    pub fn verdict(&self) -> PairedVerdict {
        match self.joint {
            None => PairedVerdict::TooFew,
            Some([low, _]) if low > 0.0 => PairedVerdict::Better,
            Some([_, high]) if high < 0.0 => PairedVerdict::Worse,
            Some(_) => PairedVerdict::NotToldApart,
        }
    }

    /// The same where one is chosen by it: of few conversations nothing is said.
    pub fn choice(&self) -> PairedVerdict {
        if self.conversations < FEWEST {
            return PairedVerdict::TooFew;
        }
        self.verdict()
    }

    /// Whether τ surely fell, and by more than `-least`: the interval lies below 0 and the difference below `least`. Chains of
    /// different lengths do not tell.
    pub fn falls_below(&self, least: f64) -> bool {
        !self.other_lengths && self.verdict() == PairedVerdict::Worse && self.difference < least
    }

    /// The way of decoding, with the dataset where this is one of several.
    pub fn heading(&self) -> String {
        match &self.dataset {
            Some(dataset) => format!("{} on `{dataset}`", self.setting),
            None => self.setting.clone(),
        }
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
        let ci95 = bootstrap(pairs, SEED, difference);
        let joint = match among {
            0 | 1 => ci95,
            _ => bootstrap_among(pairs, (SEED, among), difference),
        };
        Some(Self {
            setting,
            dataset: None,
            other_lengths: false,
            conversations: pairs.len(),
            baseline_tau: tau(&all, 0)?,
            baseline_ci95: bootstrap(pairs, SEED, |drawn| tau(drawn, 0)),
            tau: tau(&all, 1)?,
            tau_ci95: bootstrap(pairs, SEED, |drawn| tau(drawn, 1)),
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
        write!(
            f,
            "{}: τ {} against {}, {}, {}; larger in {}, smaller in {} of {} conversations \
             (sign test: p = {})",
            self.heading(),
            with_digits(Some(self.tau), self.tau_ci95, 3),
            with_digits(Some(self.baseline_tau), self.baseline_ci95, 3),
            with_signs(self.difference, self.ci95, 3),
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

/// Every way of decoding that `report` shares with `baseline`, on the datasets that both have, and where their drafters share none
/// the chain that each has; `among` so many reports that are compared with it. Behind that of all prompts is each dataset, where
/// both have several; where both have one alone, and one of them more, it is that of this one.
///
/// # Errors
/// They share none and have no such chains, were judged by different targets, share no prompts, or their outputs end elsewhere.
pub fn paired(baseline: &Report, report: &Report, among: usize) -> Result<Vec<PairedReport>> {
    let shared = shared(baseline, report)?;
    let found: Vec<PairedReport> = (shared.iter())
        .flat_map(|shared| of_shared(shared, among))
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    for &([other, setting], _) in &shared {
        check_prompts(baseline, (other, setting))?;
    }
    Err(nothing_shared(baseline, report))
}

/// The difference over all prompts, and where there are several datasets that over each; of one that both have among several that
/// over this one.
fn of_shared(([other, setting], datasets): &Shared, among: usize) -> Vec<PairedReport> {
    let other_lengths = differ_in_length(other, setting);
    let way = setting.of_target();
    let heading = match other_lengths {
        true => format!("{way} against {}", other.draft),
        false => way,
    };
    let of = |dataset: Option<&str>, pairs: &[[Counts; 2]]| {
        let found = PairedReport::of(heading.clone(), pairs, among)?;
        Some(PairedReport {
            dataset: dataset.map(str::to_owned),
            other_lengths,
            ..found
        })
    };
    let is_of_several = [other, setting].iter().any(|one| one.datasets.len() > 1);
    if let ([(name, pairs)], true) = (&datasets[..], is_of_several) {
        // The one that both have is not all prompts of one of them.
        return Vec::from_iter(of(Some(name), pairs));
    }
    let all = datasets.iter().flat_map(|(_, pairs)| pairs);
    let all: Vec<[Counts; 2]> = all.copied().collect();
    let mut found = Vec::from_iter(of(None, &all));
    if datasets.len() > 1 {
        let each = datasets.iter();
        found.extend(each.filter_map(|(name, pairs)| of(Some(name), pairs)));
    }
    found
}

/// Whether two reports are of drafters with different weights.
pub(crate) fn are_trainings(one: &Report, other: &Report) -> bool {
    let [one, other] = [one, other].map(|report| &report.drafter.sha256);
    !one.is_empty() && !other.is_empty() && one != other
}

/// Fails unless two reports share ways of decoding, and both decoded the same prompts in these, for the same targets and to the
/// same end.
pub(crate) fn check_same(one: &Report, other: &Report) -> Result<()> {
    let mut settings = other.settings.iter();
    match settings.any(|setting| one.like(setting).is_some()) {
        true => check_comparable(one, other),
        false => Err(nothing_shared(one, other)),
    }
}

/// The same, where chains that differ in length may be compared for want of a way of decoding that two drafters share.
pub(crate) fn check_comparable(one: &Report, other: &Report) -> Result<()> {
    if shared(one, other)?.is_empty() {
        return Err(nothing_shared(one, other));
    }
    // Each has the datasets of the other.
    for [one, other] in [[one, other], [other, one]] {
        for ([theirs, ours], _) in shared(one, other)? {
            check_prompts(one, (theirs, ours))?;
        }
    }
    Ok(())
}

/// A dataset, with tokens and passes of each of its conversations in two settings.
type OfDataset<'a> = (&'a str, Vec<[Counts; 2]>);

/// A setting of each of two reports, with the datasets that both decoded.
type Shared<'a> = ([&'a SettingReport; 2], Vec<OfDataset<'a>>);

/// The settings of `report` that `baseline` has too, or has a counterpart of.
fn shared<'a>(baseline: &'a Report, report: &'a Report) -> Result<Vec<Shared<'a>>> {
    let mut shared = Vec::new();
    for setting in &report.settings {
        let Some(other) = counterpart(baseline, report, setting) else {
            continue;
        };
        check_target(baseline.target_report(other), report.target_report(setting))?;
        // Reports of earlier versions do not say where outputs end.
        if let (Some(expected), Some(ends)) = (&other.ends, &setting.ends) {
            expected.check_same(ends)?;
        }
        shared.push(([other, setting], pairs_by_dataset((other, setting))));
    }
    Ok(shared)
}

/// That two reports share no way of decoding.
fn nothing_shared(baseline: &Report, report: &Report) -> Error {
    let headings = |report: &Report| {
        let all = report.settings.iter().map(SettingReport::of_target);
        all.collect::<Vec<_>>().join("; ")
    };
    let expected = format!("one of the settings {}", headings(baseline));
    let advice = advice(baseline, report);
    Error::unpaired(expected, format!("{}; {advice}", headings(report)))
}

/// What was decoded for `one` and not for `other`: ways of decoding, and datasets in those that both have.
pub(crate) fn alone(one: &Report, other: &Report) -> Vec<String> {
    let mut alone = Vec::new();
    for setting in &one.settings {
        let way = setting.of_target();
        let Some(like) = counterpart(other, one, setting) else {
            alone.push(way);
            continue;
        };
        let datasets = setting.datasets.iter().enumerate();
        let datasets = datasets.filter(|&(place, of)| same_prompts(like, place, of).is_none());
        alone.extend(datasets.map(|(_, of)| format!("{way} on `{}`", of.name)));
    }
    alone
}

/// Each setting of the report's own drafter against each of those without training that decoded in the same way but for the
/// draft. Every one has decoded the same prompts.
pub(crate) fn against_free(report: &Report) -> Vec<PairedReport> {
    let own = (report.settings.iter()).filter(|setting| setting.drafter.is_none());
    let pair = |own: &SettingReport, free: &SettingReport| {
        let pairs = pairs(report, (free, own)).ok()?;
        let names = format!("{} against {}", own.of_target(), free.heading());
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

/// Tokens and passes of each conversation in both settings, of which the second has no prompts that the first has not.
pub(crate) fn pairs(
    baseline: &Report,
    settings: (&SettingReport, &SettingReport),
) -> Result<Vec<[Counts; 2]>> {
    check_prompts(baseline, settings)?;
    let datasets = pairs_by_dataset(settings).into_iter();
    Ok(datasets.flat_map(|(_, pairs)| pairs).collect())
}

/// The same for each dataset that both have.
fn pairs_by_dataset<'a>((one, other): (&SettingReport, &'a SettingReport)) -> Vec<OfDataset<'a>> {
    let of_dataset = |(place, dataset): (usize, &'a DatasetReport)| {
        let same = same_prompts(one, place, dataset)?;
        let counts = same.counts.iter().zip(&dataset.counts);
        let pairs = counts.map(|(&one, &other)| [one, other]).collect();
        Some((dataset.name.as_str(), pairs))
    };
    let datasets = other.datasets.iter().enumerate();
    datasets.filter_map(of_dataset).collect()
}

/// Fails where a dataset of a setting has prompts that `one`, a setting of the baseline, has not.
fn check_prompts(baseline: &Report, (one, other): (&SettingReport, &SettingReport)) -> Result<()> {
    let mut datasets = other.datasets.iter().enumerate();
    let foreign = datasets.find(|&(place, of)| same_prompts(one, place, of).is_none());
    let Some((_, DatasetReport { name, .. })) = foreign else {
        return Ok(());
    };
    let names = one.datasets.iter().map(|known| format!("`{}`", known.name));
    let names = names.collect::<Vec<_>>().join(" or ");
    if !baseline.texts.is_empty() && (one.ends.is_none() || other.ends.is_none()) {
        let expected = format!("the texts of {names}, to the ends of their answers");
        let found = format!(
            "`{name}` with other prompts or other answers: where it is not known how long answers may be, as of a folder of features \
             or in a report of an earlier version, they must be the same too; for such a run remove its folder `evaluate` and give \
             its command again"
        );
        return Err(Error::unpaired(expected, found));
    }
    let version = &baseline.spectrain;
    let expected = format!("the prompts of {names} as spectrain {version} decoded them");
    let found = format!("`{name}` with other prompts");
    Err(Error::OtherPrompts {
        mismatch: Mismatch::new(expected, found),
    })
}

/// The dataset of `setting` that has the prompts of one at this place of another setting. Names need not be unique, nor need
/// prompts: where several have them, it is the one at the same place.
pub(crate) fn same_prompts<'a>(
    setting: &'a SettingReport,
    place: usize,
    dataset: &DatasetReport,
) -> Option<&'a DatasetReport> {
    let is_same = |known: &&DatasetReport| {
        known.prompts_sha256.is_some()
            && known.prompts_sha256 == dataset.prompts_sha256
            && known.counts.len() == dataset.counts.len()
    };
    let at_place = setting.datasets.get(place).filter(is_same);
    at_place.or_else(|| setting.datasets.iter().find(is_same))
}

/// Fails where a target is not the expected one, or computed in another type.
fn check_target(expected: &TargetReport, found: &TargetReport) -> Result<()> {
    if expected.sha256 != found.sha256 {
        return Err(other_target(expected, found));
    }
    let is_known = !expected.dtype.is_empty() && !found.dtype.is_empty();
    if is_known && expected.dtype != found.dtype {
        let in_type = |target: &TargetReport| format!("`{}` in {}", target.model, target.dtype);
        let expected = format!("the target {}", in_type(expected));
        return Err(Error::unpaired(expected, in_type(found)));
    }
    Ok(())
}

/// That two reports are of different targets.
pub(crate) fn other_target(expected: &TargetReport, found: &TargetReport) -> Error {
    Error::unpaired(
        format!("the weights of the target `{}`", expected.model),
        format!("other weights, of `{}`", found.model),
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
    use crate::report::DrafterReport;
    use crate::report::ends::EndsReport;
    use crate::texts::report::TextsReport;

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
            ends: None,
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
    fn a_fall_on_one_of_several_datasets_is_told_where_all_prompts_hide_it() {
        let with = |general: u64, support: u64| {
            let mut report = report(vec![of(general); 24], "general", "t");
            let datasets = &mut report.settings[0].datasets;
            datasets[0].name = "general".into();
            datasets.push(DatasetReport {
                name: "support".into(),
                counts: vec![of(support); 24],
                prompts_sha256: Some("support".into()),
                ..DatasetReport::default()
            });
            report
        };
        let (old, new) = (with(60, 60), with(70, 50));
        let found = paired(&old, &new, 1).unwrap();
        let told: Vec<(String, bool)> = (found.iter())
            .map(|pair| (pair.heading(), pair.falls_below(-0.05)))
            .collect();
        let way = "T=0, greedy, chain 5";
        let expected = [
            (way.to_owned(), false),
            (format!("{way} on `general`"), true),
            (format!("{way} on `support`"), false),
        ];
        assert_eq!(told, expected);
        let sizes: Vec<usize> = found.iter().map(|pair| pair.conversations).collect();
        assert_eq!(sizes, [48, 24, 24]);
        assert!(found[1].to_string().starts_with(&expected[1].0));
        let json = serde_json::to_value(&found[1]).unwrap();
        assert_eq!(json["dataset"], "general");
        // One that both have is named where another has none like it.
        let mut one = with(60, 60);
        one.settings[0].datasets.pop();
        for (old, new) in [(&one, &new), (&new, &one)] {
            let found = paired(old, new, 1).unwrap();
            let datasets: Vec<_> = found.iter().map(|pair| pair.dataset.as_deref()).collect();
            assert_eq!(datasets, [Some("general")]);
        }
        // One dataset is all prompts.
        let of_two = of_two(counts(0), counts(1));
        assert_eq!((of_two.len(), &of_two[0].dataset), (1, &None));
    }

    #[test]
    fn a_drafter_is_not_told_apart_from_itself() {
        let same = report(counts(0), "p", "t");
        let found = &paired(&same, &same, 1).unwrap()[0];
        assert_eq!((found.difference, found.ci95), (0.0, Some([0.0; 2])));
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
    fn outputs_that_end_elsewhere_and_targets_in_another_type_are_refused() {
        let ends = |max_new_tokens, stop: &[u32]| {
            let stop = stop.to_vec();
            let mut report = report(counts(0), "p", "t");
            report.settings[0].ends = Some(EndsReport {
                max_new_tokens,
                stop,
            });
            report
        };
        let one = ends(8, &[5]);
        let refused = |one: &Report, other: &Report| paired(one, other, 1).unwrap_err().to_string();
        assert!(refused(&one, &ends(16, &[5])).ends_with("found answers of at most 16 tokens"));
        assert!(refused(&one, &ends(8, &[])).ends_with("at their length alone (`--ignore-stop`)"));
        assert_eq!(paired(&one, &ends(8, &[5]), 1).unwrap().len(), 1);
        // Reports of earlier versions do not say.
        assert_eq!(
            paired(&one, &report(counts(0), "p", "t"), 1).unwrap().len(),
            1
        );

        let typed = |dtype: &str| {
            let mut report = report(counts(0), "p", "t");
            report.target.model = "target".into();
            report.target.dtype = dtype.into();
            report
        };
        assert_eq!(
            refused(&typed("f32"), &typed("bf16")),
            "`baseline`: expected the target `target` in f32, found `target` in bf16"
        );
        assert_eq!(paired(&typed("f32"), &typed(""), 1).unwrap().len(), 1);
    }

    #[test]
    fn of_several_targets_each_must_be_the_same() {
        let with = |sha256: &str| {
            let mut report = report(counts(0), "p", "t");
            let further = TargetReport {
                model: "large".into(),
                sha256: sha256.into(),
                ..TargetReport::default()
            };
            report.targets = vec![report.target.clone(), further];
            let mut setting = report.settings[0].clone();
            setting.target = Some("large".into());
            report.settings[0].target = Some(report.target.model.clone());
            report.settings.push(setting);
            report
        };
        assert_eq!(paired(&with("u"), &with("u"), 1).unwrap().len(), 2);
        let refused = paired(&with("u"), &with("v"), 1).unwrap_err().to_string();
        assert!(
            refused.contains("weights of the target `large`"),
            "{refused}"
        );
    }

    #[test]
    fn differences_of_several_targets_name_the_target_that_each_is_of() {
        let with = |small: u64, large: u64| {
            let mut report = report(vec![of(small); 24], "p", "t");
            report.target.model = "small".into();
            let further = TargetReport {
                model: "large".into(),
                sha256: "u".into(),
                ..TargetReport::default()
            };
            report.targets = vec![report.target.clone(), further];
            let mut setting = report.settings[0].clone();
            setting.datasets[0].counts = vec![of(large); 24];
            report.settings.push(setting);
            for (setting, target) in report.settings.iter_mut().zip(&report.targets) {
                setting.target = Some(target.model.clone());
            }
            report
        };
        let found = paired(&with(60, 60), &with(40, 90), 1).unwrap();
        let told: Vec<(String, bool)> = (found.iter())
            .map(|pair| (pair.heading(), pair.falls_below(-0.05)))
            .collect();
        let expected = ["small", "large"].map(|target| format!("{target}, T=0, greedy, chain 5"));
        assert_eq!(
            told,
            [(expected[0].clone(), false), (expected[1].clone(), true)]
        );
        // Of drafters without training, too.
        let mut report = with(60, 90);
        for at in [0, 1] {
            let mut free = report.settings[at].clone();
            free.drafter = Some("prompt-lookup".into());
            report.settings.push(free);
        }
        let told = against_free(&report).into_iter().map(|pair| pair.setting);
        let behind = " against prompt-lookup, T=0, greedy, chain 5";
        let expected = expected.map(|own| own + behind);
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn datasets_that_both_have_are_compared_where_one_has_more() {
        let less = report(vec![of(60); 24], "p", "t");
        let mut more = report(vec![of(40); 24], "p", "t");
        let mut code = more.settings[0].datasets[0].clone();
        code.name = "code".into();
        code.prompts_sha256 = Some("q".into());
        code.counts = vec![of(10); 24];
        more.settings[0].datasets.push(code);
        for [one, other] in [[&less, &more], [&more, &less]] {
            let found = paired(one, other, 1).unwrap();
            let [pair] = &found[..] else {
                panic!("{found:?}")
            };
            assert_eq!((pair.conversations, pair.difference.abs()), (24, 1.0));
        }
        assert!(check_comparable(&less, &more).is_err());
        assert!(check_comparable(&more, &less).is_err());
        // What only one of them has is no difference.
        more.settings[0].datasets.remove(0);
        let refused = paired(&less, &more, 1).unwrap_err();
        assert!(matches!(refused, Error::OtherPrompts { .. }), "{refused}");
    }

    #[test]
    fn stored_answers_of_an_earlier_version_are_not_said_to_be_of_other_prompts() {
        let with = |prompts: &str, ends: Option<EndsReport>| {
            let mut report = report(counts(0), prompts, "t");
            report.texts.push(TextsReport::default());
            report.settings[0].ends = ends;
            report
        };
        let known = || with("p", Some(EndsReport::default()));
        assert_eq!(paired(&known(), &known(), 1).unwrap().len(), 1);
        let refused = |one: &Report, other: &Report| paired(one, other, 1).unwrap_err();
        let earlier = with("q", None);
        for [one, other] in [[&known(), &earlier], [&earlier, &known()]] {
            let told = refused(one, other).to_string();
            assert!(told.contains("or other answers"), "{told}");
            assert!(told.contains("remove its folder `evaluate`"), "{told}");
            assert!(!told.contains("  "), "{told}");
        }
        let others = with("q", Some(EndsReport::default()));
        let refused = refused(&known(), &others);
        assert!(matches!(refused, Error::OtherPrompts { .. }), "{refused}");
    }

    /// Two trees of three nodes, in which conversations take so many passes each.
    fn of_trees(passes: [u64; 2]) -> Report {
        let trees = ["[[0], [1], [2]]", "[[0], [0, 0], [0, 0, 0]]"];
        let mut report = report(counts(0), "p", "t");
        let settings = trees.iter().zip(passes).map(|(tree, passes)| {
            let mut setting = report.settings[0].clone();
            setting.draft = DraftReport::Static {
                tree: serde_json::from_str(tree).unwrap(),
                nodes: 3,
                children: Default::default(),
            };
            setting.datasets[0].counts = vec![of(passes); 40];
            setting
        });
        report.settings = settings.collect();
        report
    }

    #[test]
    fn trees_of_one_size_are_not_taken_for_each_other() {
        let report = of_trees([40, 60]);
        let [one, other] = &report.settings[..] else {
            panic!("two settings");
        };
        assert_eq!(one.heading(), other.heading());
        let found = paired(&report, &report, 1).unwrap();
        let taus: Vec<[f64; 2]> = (found.iter())
            .map(|pair| [pair.baseline_tau, pair.tau])
            .collect();
        assert_eq!(taus, [[3.0; 2], [2.0; 2]]);
        assert!(found.iter().all(|pair| !pair.falls_below(-0.05)));
    }

    #[test]
    fn one_conversation_has_no_interval_and_says_nothing() {
        let found = &of_two(vec![of(40)], vec![of(60)])[0];
        assert_eq!((found.ci95, found.joint), (None, None));
        assert_eq!((found.tau_ci95, found.baseline_ci95), (None, None));
        assert_eq!(found.verdict(), PairedVerdict::TooFew);
        assert!(!found.falls_below(-0.05));
        let told = "T=0, greedy, chain 5: τ 2.000 against 3.000, -1.000, too few prompts; larger in 0, smaller in 1 of 1";
        assert!(found.to_string().starts_with(told), "{found}");
    }

    #[test]
    fn datasets_are_matched_by_their_prompts_and_then_by_their_places() {
        let mut setting = report(counts(0), "p", "t").settings.remove(0);
        let of = |prompts: &str, tau| DatasetReport {
            name: "test".into(),
            prompts_sha256: Some(prompts.into()),
            tau: Some(tau),
            ..DatasetReport::default()
        };
        setting.datasets = vec![of("p", 1.0), of("q", 2.0), of("q", 3.0)];
        let tau = |place, prompts| same_prompts(&setting, place, &of(prompts, 0.0))?.tau;
        assert_eq!(tau(0, "p"), Some(1.0));
        assert_eq!(tau(1, "q"), Some(2.0));
        assert_eq!(tau(2, "q"), Some(3.0));
        assert_eq!(tau(2, "p"), Some(1.0));
        assert_eq!(tau(0, "r"), None);
    }

    #[test]
    fn the_sign_test_is_that_of_the_binomial_law() {
        assert!((sign_test(9, 1) - 22.0 / 1024.0).abs() < 1e-12);
        assert_eq!(sign_test(3, 3), 1.0);
        assert_eq!(sign_test(0, 0), 1.0);
    }
}
