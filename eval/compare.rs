//! Several reports side by side.
use std::fmt::Write;

use crate::report::with_interval;
use crate::{Report, SettingReport};

/// Settings that must be the same for the numbers of two runs to be comparable, as places in the recipe.
const SHARED: [&str; 10] = [
    "/data/train",
    "/data/eval",
    "/data/max_length",
    "/train/steps",
    "/train/batch_tokens",
    "/train/accumulate",
    "/evaluate/prompts",
    "/evaluate/max_new_tokens",
    "/evaluate/top_k",
    "/evaluate/seed",
];

/// A table of the pooled results of `reports`, each under its name: one group of rows for each way of decoding, in the
/// order of their first appearance. Below it stands in what they differ from the first one beside the drafter: target,
/// prompts, and settings of the recipe that training and evaluation depend on.
pub fn compare(reports: &[(String, Report)]) -> String {
    let mut groups: Vec<(String, Vec<(&str, &SettingReport)>)> = Vec::new();
    for (name, report) in reports {
        for setting in &report.settings {
            let heading = setting.heading();
            let row = (name.as_str(), setting);
            match groups.iter_mut().find(|(known, _)| *known == heading) {
                Some((_, rows)) => rows.push(row),
                None => groups.push((heading, vec![row])),
            }
        }
    }
    let mut text = String::from(
        "| decoding | drafter | tokens | drafted per pass | τ [95 % CI] | α [95 % CI] | α₁, α₂, … |\n\
         |---|---|--:|--:|---|---|---|\n",
    );
    for (heading, rows) in &groups {
        for (name, setting) in rows {
            let overall = &setting.overall;
            let steps: Vec<String> = (overall.conditional.iter())
                .map(|rate| format!("{rate:.2}"))
                .collect();
            _ = writeln!(
                text,
                "| {heading} | {name} | {} | {} | {} | {} | {} |",
                overall.tokens,
                with_interval(overall.draft_tokens_per_pass, None),
                with_interval(overall.tau, overall.tau_ci95),
                with_interval(overall.alpha, overall.alpha_ci95),
                steps.join(" "),
            );
        }
    }
    let mismatches: u64 = (reports.iter())
        .map(|(_, report)| report.lossless.greedy_mismatches)
        .sum();
    let compared: u64 = (reports.iter())
        .map(|(_, report)| report.lossless.greedy_tokens)
        .sum();
    if compared > 0 {
        _ = write!(
            text,
            "\nGreedy output: {mismatches} mismatches in {compared} tokens.\n"
        );
    }
    let lossy = |(_, report): &(String, Report)| report.settings.iter().any(|s| s.lossy);
    if reports.iter().any(lossy) {
        _ = write!(text, "\n{}\n", crate::report::LOSSY);
    }
    for difference in differences(reports) {
        _ = write!(text, "\n{difference}\n");
    }
    text
}

/// What makes reports incomparable with the first one.
fn differences(reports: &[(String, Report)]) -> Vec<String> {
    let Some(((first_name, first), others)) = reports.split_first() else {
        return Vec::new();
    };
    let prompts = |report: &Report| -> Vec<(String, u64)> {
        let datasets = report.settings.first().map(|setting| &setting.datasets);
        let datasets = datasets.into_iter().flatten();
        datasets.map(|d| (d.name.clone(), d.prompts)).collect()
    };
    let mut found = Vec::new();
    for (name, report) in others {
        let target = |report: &Report| (report.target.sha256.clone(), report.target.dtype.clone());
        if target(report) != target(first) {
            found.push(format!(
                "Not comparable: the target of {name}, `{}` ({}), is not that of {first_name}, `{}` ({}).",
                report.target.model, report.target.dtype, first.target.model, first.target.dtype
            ));
        }
        if prompts(report) != prompts(first) {
            found.push(format!(
                "Not comparable: {name} was judged on {:?}, {first_name} on {:?} (dataset, prompts).",
                prompts(report),
                prompts(first)
            ));
        }
        for key in SHARED {
            let of = |report: &Report| report.recipe.pointer(key).cloned();
            if let (Some(theirs), Some(ours)) = (of(report), of(first))
                && theirs != ours
            {
                let key = key.trim_start_matches('/').replace('/', ".");
                found.push(format!(
                    "Differs: `{key}` is {theirs} in {name} and {ours} in {first_name}."
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatasetReport, DraftReport, DrafterReport, TargetReport};

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
            temperature,
            top_k: None,
            top_p: None,
            verifier: "exact".into(),
            lossy: false,
            draft: DraftReport::Chain { length: 2 },
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
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| T=0, exact, chain 2 | a | 90 | 2.00 | 2.00 [1.75, 2.25] | – | 0.50 0.25 |",
                "| T=0, exact, chain 2 | b | 90 | 2.00 | 3.00 [2.75, 3.25] | – | 0.50 0.25 |",
                "| T=1, exact, chain 2 | a | 90 | 2.00 | 2.00 [1.75, 2.25] | – | 0.50 0.25 |",
                "| T=1, exact, chain 2 | b | 90 | 2.00 | 3.00 [2.75, 3.25] | – | 0.50 0.25 |",
            ]
        );
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
            text.contains("c was judged on [(\"overall\", 5)], a on [(\"overall\", 4)]"),
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
}
