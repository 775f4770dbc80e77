//! Two drafters on the same prompts: the difference, by pairs. Prompts differ far more among themselves than two drafters do
//! on one prompt, so pairs tell drafters apart that two intervals side by side do not.
use crate::counts::Counts;
use crate::error::Result;
use crate::paired::difference::{PairedReport, PairedVerdict};
use crate::paired::matched::{Shared, check_prompts, nothing_shared, pairs, shared};
use crate::paired::own::{at_other_lengths, differ_in_length, remark};
use crate::report::{Report, SettingReport};

pub(crate) mod difference;
pub(crate) mod matched;
pub(crate) mod own;
pub(crate) mod parts;
#[cfg(test)]
pub(crate) mod tests;

/// What a verdict on two trainings does not say.
pub(crate) const ONE_TRAINING: &str = "each drafter is one training, and intervals cover the choice of prompts alone: trainings that \
                                       differ only in their seed may differ as much";

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
