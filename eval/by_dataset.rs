//! Acceptance by dataset in few columns, for the card of a model.

use std::fmt::Write as _;

use crate::interval::with_interval;
use crate::report::{DatasetReport, Report, SettingReport};

/// A Markdown table with a row for each way of decoding and dataset: how it was drafted, τ and α with their 95 % intervals over
/// prompts. Ways without a drafter's training are left out; empty where nothing is left.
pub fn by_dataset(report: &Report) -> String {
    let mut rows = String::new();
    let of_drafter = |setting: &&SettingReport| setting.drafter.is_none();
    for setting in report.settings.iter().filter(of_drafter) {
        let mut datasets: Vec<&DatasetReport> = setting.datasets.iter().collect();
        if datasets.len() != 1 {
            datasets.push(&setting.overall);
        }
        for found in datasets {
            let target = setting.target.as_ref();
            let target = target.map_or(String::new(), |target| format!("{target}, "));
            let name = if std::ptr::eq(found, &raw const setting.overall) {
                "all together"
            } else {
                &found.name
            };
            _ = writeln!(
                rows,
                "| {target}{} | {name} | {} | {} | {} |",
                setting.way(),
                found.prompts,
                with_interval(found.tau, found.tau_ci95),
                with_interval(found.alpha, found.alpha_ci95),
            );
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!("| decoding | dataset | prompts | τ | α |\n|---|---|---|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_dataset_has_its_row_and_drafters_without_training_have_none() {
        let dataset = |name: &str| {
            json!({"name": name, "prompts": 9, "tokens": 30, "passes": 10, "tau": 3.0,
            "tau_ci95": [2.5, 3.5], "alpha": 0.8, "conditional": [], "survival": [], "accepted_histogram": [],
            "seconds": {"draft": 0.0, "verify": 0.0, "other": 0.0}})
        };
        let setting = |drafter: serde_json::Value, datasets: &[&str]| {
            let datasets: Vec<_> = datasets.iter().map(|name| dataset(name)).collect();
            json!({"drafter": drafter, "temperature": 0.0, "verifier": "greedy", "draft": {"shape": "chain", "length": 4},
                "datasets": datasets, "overall": dataset("overall")})
        };
        let settings = json!([
            setting(json!(null), &["gsm8k", "mt-bench"]),
            setting(json!(null), &["eval"]),
            setting(json!("lookup"), &["gsm8k"]),
        ]);
        let report = json!({"schema": 1, "spectrain": "0", "recipe": {}, "device": {}, "seeds": {},
            "target": {"model": "t", "sha256": "", "dtype": "f32"},
            "drafter": {"kind": "", "path": "", "parameters": 0, "sha256": ""},
            "lossless": {"greedy_mismatches": 0, "greedy_tokens": 0}, "settings": settings});
        let report = Report::from_json(&report.to_string()).unwrap();
        let table = by_dataset(&report);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows.len(), 4, "{table}");
        assert!(
            rows[0].contains("| gsm8k | 9 | 3.00 [2.50, 3.50] | 0.80 |"),
            "{table}"
        );
        assert!(
            rows[2].contains("| all together |") && rows[3].contains("| eval |"),
            "{table}"
        );
        assert!(!table.contains("lookup"));
    }
}
