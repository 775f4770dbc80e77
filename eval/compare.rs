//! Several reports side by side.
use std::fmt::Write;

use crate::best::best;
use crate::compare::machines::other_machine;
use crate::interval::with_interval;
use crate::paired::own::OwnLengths;
use crate::report::table::{FIGURES, figures};
use crate::report::words::{legend, pace_notes};
use crate::report::{DatasetReport, LosslessReport, Report, TargetReport};

mod machines;

/// Settings that must be the same for the numbers of two runs to be comparable, as places in the recipe.
const SHARED: [&str; 11] = [
    "/data/train",
    "/data/eval",
    "/data/max_length",
    "/train/steps",
    "/train/batch_tokens",
    "/train/gradient_accumulation",
    "/evaluate/prompts",
    "/evaluate/count",
    "/evaluate/max_new_tokens",
    "/evaluate/top_k",
    "/evaluate/seed",
];

/// A table of the results of `reports`, each under its name: one group of rows for each way of decoding, in the order of their
/// first appearance, with all prompts pooled and, if there are several datasets, one for each; and for each target if a report has
/// several. Drafters that have no length in common stand together, with their lengths. Below it stands in what they differ from
/// the first one beside the drafter: targets, prompts, and settings of the recipe that training and evaluation depend on; which
/// speed-ups are not to be trusted; and which has the largest τ.
pub fn compare(reports: &[(String, Report)]) -> String {
    let several = (reports.iter()).any(|(_, report)| !report.targets.is_empty());
    let own = OwnLengths::of(reports);
    let groups = groups(reports, several, &own);
    let (column, rule) = if several {
        ("| target ", "|---")
    } else {
        ("", "")
    };
    let mut text = format!(
        "{column}| decoding | drafter | tokens | drafted per pass | {FIGURES} |\n\
         {rule}|---|---|--:|--:|---|---|---|---|---|---|\n",
    );
    for (Group { target, heading }, rows) in &groups {
        for (name, found) in rows {
            if let Some(target) = target {
                _ = write!(text, "| {target} ");
            }
            _ = writeln!(
                text,
                "| {heading} | {name} | {} | {} | {} |",
                found.tokens,
                with_interval(found.draft_tokens_per_pass, None),
                figures(found),
            );
        }
    }
    // A report may come from anywhere and say any number.
    let sum = |count: fn(&LosslessReport) -> u64| -> u64 {
        let counts = reports.iter().map(|(_, report)| count(&report.lossless));
        counts.fold(0, u64::saturating_add)
    };
    let lossless = LosslessReport {
        greedy_outputs: sum(|found| found.greedy_outputs),
        greedy_mismatches: sum(|found| found.greedy_mismatches),
        greedy_ties: sum(|found| found.greedy_ties),
        greedy_tokens: sum(|found| found.greedy_tokens),
        ..LosslessReport::default()
    };
    text.push_str(&lossless.greedy_lines());
    let settings = reports.iter().flat_map(|(_, report)| &report.settings);
    text.push_str(&legend(settings));
    let notes = pace_notes(reports).into_iter();
    for note in notes.chain(differences(reports)).chain(best(reports)) {
        _ = write!(text, "\n{note}\n");
    }
    text
}

/// What rows that stand together have in common.
#[derive(PartialEq)]
struct Group<'a> {
    /// Named where a report has several.
    target: Option<&'a str>,
    /// The way of decoding, with the dataset unless it is of all prompts.
    heading: String,
}

/// The rows of a group, each with the name of its report.
type Rows<'a> = Vec<(String, &'a DatasetReport)>;

/// The groups of rows; with their targets where there are `several`.
fn groups<'a>(
    reports: &'a [(String, Report)],
    several: bool,
    own: &OwnLengths,
) -> Vec<(Group<'a>, Rows<'a>)> {
    let mut groups: Vec<(Group, Rows)> = Vec::new();
    for (name, report) in reports {
        for setting in &report.settings {
            for (behind, found) in setting.pooled_and_each() {
                let group = Group {
                    target: several.then(|| report.target_of(setting)),
                    heading: own.heading(setting) + &behind,
                };
                let row = (own.row(name, setting), found);
                match groups.iter_mut().find(|(known, _)| *known == group) {
                    Some((_, rows)) => rows.push(row),
                    None => groups.push((group, vec![row])),
                }
            }
        }
    }
    groups
}

/// Why the targets of two reports cannot be compared. Of reports with several targets, rows of one name stand together and
/// must be of one model.
fn other_targets(
    (name, report): (&str, &Report),
    (first_name, first): (&str, &Report),
) -> Vec<String> {
    let differ = |theirs: &TargetReport, ours: &TargetReport| {
        // What is not known of one of them may be the same.
        let differ = |a: &str, b: &str| !a.is_empty() && !b.is_empty() && a != b;
        differ(&theirs.sha256, &ours.sha256) || differ(&theirs.dtype, &ours.dtype)
    };
    let named = |target: &TargetReport| match &*target.dtype {
        "" => format!("`{}`", target.model),
        dtype => format!("`{}` ({dtype})", target.model),
    };
    let told = |theirs: &TargetReport, ours: &TargetReport| {
        let (theirs, ours) = (named(theirs), named(ours));
        format!(
            "Not comparable: the target of {name}, {theirs}, is not that of {first_name}, {ours}."
        )
    };
    let (theirs, ours) = (report.all_targets(), first.all_targets());
    if let ([theirs], [ours]) = (theirs, ours) {
        return Vec::from_iter(differ(theirs, ours).then(|| told(theirs, ours)));
    }
    let of_one_name = |target: &&TargetReport| ours.iter().find(|own| own.model == target.model);
    let shared: Vec<_> = (theirs.iter())
        .filter_map(|target| of_one_name(&target).map(|own| (target, own)))
        .collect();
    if shared.is_empty() {
        return vec![format!(
            "Not comparable: {name} and {first_name} have no target in common."
        )];
    }
    let others = shared.iter().filter(|(a, b)| differ(a, b));
    let mut found: Vec<String> = others.map(|(a, b)| told(a, b)).collect();
    let without = |all: &[TargetReport]| -> Vec<String> {
        let alone = |target: &&TargetReport| !shared.iter().any(|(a, _)| a.model == target.model);
        let alone = all.iter().filter(alone);
        alone.map(|target| format!("`{}`", target.model)).collect()
    };
    for (holder, alone) in [(name, without(theirs)), (first_name, without(ours))] {
        if !alone.is_empty() {
            found.push(format!(
                "Of {name} and {first_name} only {holder} was judged with {}.",
                alone.join(", ")
            ));
        }
    }
    found
}

/// What makes reports incomparable with the first one.
pub(crate) fn differences(reports: &[(String, Report)]) -> Vec<String> {
    let Some(((first_name, first), others)) = reports.split_first() else {
        return Vec::new();
    };
    let prompts = |report: &Report| -> String {
        let datasets = report.settings.first().map(|setting| &setting.datasets);
        let datasets = datasets.into_iter().flatten();
        let told: Vec<String> = datasets
            .map(|dataset| format!("`{}` ({} prompts)", dataset.name, dataset.prompts))
            .collect();
        told.join(", ")
    };
    let mut found = Vec::new();
    for (name, report) in others {
        found.extend(other_targets((name, report), (first_name, first)));
        let is_decoded = |report: &Report| !report.settings.is_empty();
        if is_decoded(report) != is_decoded(first) {
            let (decoded, served) = match is_decoded(first) {
                true => (first_name, name),
                false => (name, first_name),
            };
            found.push(format!(
                "Not comparable: {decoded} was decoded by spectrain itself, {served} was not."
            ));
        } else if prompts(report) != prompts(first) {
            found.push(format!(
                "Not comparable: {name} was judged on {}, {first_name} on {}.",
                prompts(report),
                prompts(first)
            ));
        }
        if report.batch_size != first.batch_size {
            found.push(format!(
                "Not comparable in speed: {name} decoded {} sequences at a time, {first_name} {}.",
                report.batch_size, first.batch_size
            ));
        }
        found.extend(other_machine((name, report), (first_name, first)));
        let settings = SHARED.iter();
        found.extend(
            settings.filter_map(|key| other_setting(key, (name, report), (first_name, first))),
        );
    }
    found
}

/// That a setting is not the same in two reports. Data are the same where what was prepared of them is, whatever the file is called.
fn other_setting(
    key: &str,
    (name, report): (&str, &Report),
    (first_name, first): (&str, &Report),
) -> Option<String> {
    let [theirs, ours] = [report, first].map(|of| of.recipe.pointer(key));
    let (theirs, ours) = (theirs?, ours?);
    let prepared = |of: &Report| of.prepared.get(key.strip_prefix("/data/")?).cloned();
    let is_same = prepared(report)
        .zip(prepared(first))
        .map(|(theirs, ours)| theirs == ours);
    let key = key.trim_start_matches('/').replace('/', ".");
    match is_same {
        Some(true) => None,
        Some(false) if theirs == ours => Some(format!(
            "Differs: what {name} has prepared of `{key}` is not what {first_name} has."
        )),
        // Sets of prompts are told apart by their names above.
        _ if theirs != ours && theirs.is_number() == ours.is_number() => Some(format!(
            "Differs: `{key}` is {theirs} in {name} and {ours} in {first_name}."
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DraftReport;
    use crate::report::{DrafterReport, SettingReport, Speedup};

    fn report(sha256: &str, prompts: u64, tau: f64) -> Report {
        let overall = DatasetReport {
            name: "overall".into(),
            prompts,
            tokens: 90,
            tau: Some(tau),
            tau_ci95: Some([tau - 0.25, tau + 0.25]),
            conditional: vec![0.5, 0.25],
            draft_tokens_per_pass: Some(2.0),
            ..DatasetReport::default()
        };
        let setting = |temperature| SettingReport {
            target: None,
            drafter: None,
            temperature,
            top_k: None,
            top_p: None,
            verifier: "exact".into(),
            lossy: false,
            draft: DraftReport::Chain {
                length: 2,
                tokens: None,
            },
            ends: None,
            sampling: None,
            estimate: None,
            calibration: None,
            groups: Default::default(),
            token_classes: Vec::new(),
            datasets: vec![overall.clone()],
            overall: overall.clone(),
        };
        let target = TargetReport {
            model: "target".into(),
            sha256: sha256.into(),
            dtype: "f32".into(),
            ..TargetReport::default()
        };
        let settings = vec![setting(0.0), setting(1.0)];
        Report::new(target, DrafterReport::default(), settings)
    }

    #[test]
    fn rows_of_one_way_of_decoding_stand_together() {
        let reports =
            [("a", 2.0), ("b", 3.0)].map(|(name, tau)| (name.into(), report("x", 4, tau)));
        let text = compare(&reports);
        let rows = text.lines().filter(|line| line.starts_with('|'));
        let rows: Vec<&str> = rows.skip(2).collect();
        assert_eq!(
            rows,
            [
                "| T=0, exact, chain 2 | a | 90 | 2.00 | 2.00 [1.75, 2.25] | – | 0.50 0.25 | – | – | – |",
                "| T=0, exact, chain 2 | b | 90 | 2.00 | 3.00 [2.75, 3.25] | – | 0.50 0.25 | – | – | – |",
                "| T=1, exact, chain 2 | a | 90 | 2.00 | 2.00 [1.75, 2.25] | – | 0.50 0.25 | – | – | – |",
                "| T=1, exact, chain 2 | b | 90 | 2.00 | 3.00 [2.75, 3.25] | – | 0.50 0.25 | – | – | – |",
            ]
        );
    }

    /// With a target of each name and hash.
    fn report_with(targets: &[(&str, &str)]) -> Report {
        let mut report = report(targets[0].1, 4, 2.0);
        let one = report.settings.remove(0);
        report.settings.clear();
        for (model, sha256) in targets {
            report.targets.push(TargetReport {
                model: (*model).into(),
                sha256: (*sha256).into(),
                dtype: "f32".into(),
                ..TargetReport::default()
            });
            report.settings.push(SettingReport {
                target: Some((*model).into()),
                ..one.clone()
            });
        }
        report.target = report.targets[0].clone();
        report
    }

    #[test]
    fn of_several_datasets_each_has_its_rows() {
        let reports = [("a", 2.0), ("b", 3.0)].map(|(name, tau)| {
            let mut report = report("x", 4, tau);
            report.settings.truncate(1);
            let of = |name: &str| DatasetReport {
                name: name.into(),
                ..report.settings[0].overall.clone()
            };
            report.settings[0].datasets = vec![of("code"), of("math")];
            (name.into(), report)
        });
        let text = compare(&reports);
        let rows = text.lines().filter(|line| line.starts_with('|')).skip(2);
        let starts: Vec<String> = rows
            .map(|line| line.split('|').take(3).collect::<Vec<_>>().join("|"))
            .collect();
        assert_eq!(
            starts,
            [
                "| T=0, exact, chain 2 | a ",
                "| T=0, exact, chain 2 | b ",
                "| T=0, exact, chain 2 on `code` | a ",
                "| T=0, exact, chain 2 on `code` | b ",
                "| T=0, exact, chain 2 on `math` | a ",
                "| T=0, exact, chain 2 on `math` | b ",
            ]
        );
    }

    #[test]
    fn rows_of_one_target_stand_together() {
        let mut alone = report("y", 4, 3.0);
        alone.target.model = "large".into();
        let text = compare(&[
            ("a".into(), report_with(&[("small", "x"), ("large", "y")])),
            ("b".into(), report_with(&[("small", "x"), ("large", "y")])),
            ("c".into(), alone),
        ]);
        let starts: Vec<String> = (text.lines().filter(|line| line.starts_with('|')))
            .map(|line| line.split('|').take(4).collect::<Vec<_>>().join("|"))
            .collect();
        assert_eq!(
            starts,
            [
                "| target | decoding | drafter ",
                "|---|---|---",
                "| small | T=0, exact, chain 2 | a ",
                "| small | T=0, exact, chain 2 | b ",
                "| large | T=0, exact, chain 2 | a ",
                "| large | T=0, exact, chain 2 | b ",
                "| large | T=0, exact, chain 2 | c ",
                "| large | T=1, exact, chain 2 | c ",
            ]
        );
        assert!(!text.contains("Not comparable"), "{text}");
        let told = "Of c and a only a was judged with `small`.";
        assert!(text.contains(told), "{text}");
        assert_eq!(text.matches("only").count(), 1, "{text}");
    }

    #[test]
    fn targets_of_one_name_and_other_weights_are_told() {
        let several = report_with(&[("small", "x"), ("large", "y")]);
        let text = compare(&[
            ("a".into(), several.clone()),
            ("b".into(), report_with(&[("small", "x"), ("large", "z")])),
        ]);
        let told =
            "Not comparable: the target of b, `large` (f32), is not that of a, `large` (f32).";
        assert!(text.contains(told), "{text}");
        assert_eq!(text.matches("Not comparable").count(), 1, "{text}");
        let text = compare(&[("a".into(), several), ("c".into(), report("x", 4, 2.0))]);
        let told = "Not comparable: c and a have no target in common.";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn a_report_of_a_server_is_told_from_one_that_was_decoded() {
        let mut served = Report::new(
            TargetReport::default(),
            DrafterReport::default(),
            Vec::new(),
        );
        served.target.model = "target".into();
        let text = compare(&[("a".into(), report("x", 4, 2.0)), ("b".into(), served)]);
        let told = "Not comparable: a was decoded by spectrain itself, b was not.";
        assert!(text.contains(told), "{text}");
        assert_eq!(text.matches("Not comparable").count(), 1, "{text}");
    }

    #[test]
    fn other_targets_and_other_prompts_are_told() {
        let reports = [
            report("x", 4, 2.0),
            report("y", 4, 2.0),
            report("x", 5, 2.0),
        ];
        let names = ["a", "b", "c"].map(String::from);
        let text = compare(&names.into_iter().zip(reports).collect::<Vec<_>>());
        assert!(
            text.contains("the target of b, `target` (f32), is not that of a, `target` (f32)"),
            "{text}"
        );
        assert!(
            text.contains("c was judged on `overall` (5 prompts), a on `overall` (4 prompts)."),
            "{text}"
        );
        assert_eq!(text.matches("Not comparable").count(), 2);

        let trained = |steps: u64| {
            let mut report = report("x", 4, 2.0);
            report.recipe = serde_json::json!({ "train": { "steps": steps } });
            (format!("{steps} steps"), report)
        };
        let text = compare(&[trained(10), trained(20)]);
        let told = "Differs: `train.steps` is 20 in 20 steps and 10 in 10 steps.";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn speeds_that_were_measured_elsewhere_are_told() {
        let reports = [("a", "cpu"), ("b", "cuda:0")].map(|(name, device)| {
            let mut report = report("x", 4, 2.0);
            report.settings[0].overall.speedup = Some(Speedup::default());
            report.device.insert("name".into(), device.into());
            (name.to_owned(), report)
        });
        let told =
            "Not comparable in speed: b was measured on another machine (cuda:0) than a (cpu).";
        assert_eq!(differences(&reports), [told]);
    }

    #[test]
    fn data_differ_where_what_was_prepared_of_them_does_and_not_by_their_files_names() {
        let told = |[one, other]: [(&str, &str); 2]| {
            let reports = [("a", one), ("b", other)].map(|(name, (path, digest))| {
                let mut report = report("x", 4, 2.0);
                report.recipe = serde_json::json!({ "data": { "train": path } });
                if !digest.is_empty() {
                    report.prepared.insert("train".into(), digest.into());
                }
                (name.to_owned(), report)
            });
            differences(&reports)
        };
        assert!(told([("x.jsonl", "1"), ("runs/y/x.jsonl", "1")]).is_empty());
        let by_path = "Differs: `data.train` is \"y.jsonl\" in b and \"x.jsonl\" in a.";
        assert_eq!(told([("x.jsonl", "1"), ("y.jsonl", "2")]), [by_path]);
        // Reports of earlier versions do not say what was prepared.
        assert_eq!(told([("x.jsonl", ""), ("y.jsonl", "2")]), [by_path]);
        assert!(told([("x.jsonl", ""), ("x.jsonl", "2")]).is_empty());
        assert_eq!(
            told([("x.jsonl", "1"), ("x.jsonl", "2")]),
            ["Differs: what b has prepared of `data.train` is not what a has."]
        );
    }

    #[test]
    fn drafters_without_a_length_in_common_stand_together_with_their_lengths() {
        let of = |length, tau| {
            let mut report = report("x", 4, tau);
            report.settings.truncate(1);
            report.settings[0].draft = DraftReport::Chain {
                length,
                tokens: None,
            };
            report
        };
        let text = compare(&[("a".into(), of(5, 2.0)), ("b".into(), of(15, 3.0))]);
        let rows = text.lines().filter(|line| line.starts_with('|'));
        let starts: Vec<String> = rows
            .skip(2)
            .map(|line| line.split('|').take(3).collect::<Vec<_>>().join("|"))
            .collect();
        assert_eq!(
            starts,
            [
                "| T=0, exact, each at its own length | a (chain 5) ",
                "| T=0, exact, each at its own length | b (chain 15) ",
            ]
        );
    }
}
