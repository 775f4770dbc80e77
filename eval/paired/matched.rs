//! What two reports share: ways of decoding, datasets with the same prompts, and targets.
use spectrain_checkpoints::Mismatch;

use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::paired::own::{advice, counterpart};
use crate::report::{DatasetReport, Report, SettingReport, TargetReport};

/// A dataset, with tokens and passes of each of its conversations in two settings.
pub(crate) type OfDataset<'a> = (&'a str, Vec<[Counts; 2]>);

/// A setting of each of two reports, with the datasets that both decoded.
pub(crate) type Shared<'a> = ([&'a SettingReport; 2], Vec<OfDataset<'a>>);

/// The settings of `report` that `baseline` has too, or has a counterpart of.
pub(crate) fn shared<'a>(baseline: &'a Report, report: &'a Report) -> Result<Vec<Shared<'a>>> {
    let mut shared = Vec::new();
    for setting in &report.settings {
        let Some(other) = counterpart(baseline, report, setting) else {
            continue;
        };
        check_judged_alike((baseline, other), (report, setting))?;
        shared.push(([other, setting], pairs_by_dataset((other, setting))));
    }
    Ok(shared)
}

/// That two reports share no way of decoding.
pub(crate) fn nothing_shared(baseline: &Report, report: &Report) -> Error {
    let headings = |report: &Report| {
        let all = report.settings.iter().map(SettingReport::of_target);
        all.collect::<Vec<_>>().join("; ")
    };
    let expected = format!("one of the settings {}", headings(baseline));
    let advice = advice(baseline, report);
    Error::unpaired(expected, format!("{}; {advice}", headings(report)))
}

/// Fails unless two reports share ways of decoding, or have chains that differ in length alone for want of such, and both decoded
/// the same prompts in these, for the same targets and to the same end.
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

/// A report with one of its settings.
pub(crate) type OfReport<'a> = (&'a Report, &'a SettingReport);

/// Fails unless two settings were judged by the same target, to the same end and on the same prompts.
pub(crate) fn check_same(one: OfReport, other: OfReport) -> Result<()> {
    if std::ptr::eq(one.1, other.1) {
        return Ok(());
    }
    check_judged_alike(one, other)?;
    // Each has the datasets of the other.
    check_prompts(one.0, (one.1, other.1))?;
    check_prompts(other.0, (other.1, one.1))
}

/// Fails unless two settings were judged by the same target and to the same end.
fn check_judged_alike((baseline, other): OfReport, (report, setting): OfReport) -> Result<()> {
    check_target(baseline.target_report(other), report.target_report(setting))?;
    match (&other.ends, &setting.ends) {
        (Some(expected), Some(ends)) => expected.check_same(ends),
        // Reports of earlier versions do not say where outputs end.
        _ => Ok(()),
    }
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
pub(crate) fn check_prompts(
    baseline: &Report,
    (one, other): (&SettingReport, &SettingReport),
) -> Result<()> {
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
pub(crate) fn check_target(expected: &TargetReport, found: &TargetReport) -> Result<()> {
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
