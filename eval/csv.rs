//! Reports as rows of comma-separated values, for spreadsheets and programs.
use crate::report::{DatasetReport, Report, SettingReport, Speedup};
use crate::token_class::TokenClass;

/// The names of the columns.
const COLUMNS: [&str; 56] = [
    "report",
    "target",
    "drafter",
    "temperature",
    "top_k",
    "top_p",
    "verifier",
    "lossy",
    "draft",
    "dataset",
    "prompts",
    "tokens",
    "passes",
    "tau",
    "tau_low",
    "tau_high",
    "alpha",
    "alpha_low",
    "alpha_high",
    "draft_tokens_per_pass",
    "speedup_wall",
    "speedup_wall_low",
    "speedup_wall_high",
    "speedup_full_batches",
    "speedup_full_batches_low",
    "speedup_full_batches_high",
    "speedup_model",
    "speedup_memory_bound",
    "speedup_predicted",
    "speedup_predicted_low",
    "speedup_predicted_high",
    "tau_mean",
    "tau_mean_low",
    "tau_mean_high",
    "tau_worst_tenth",
    "tau_worst_tenth_low",
    "tau_worst_tenth_high",
    "slowed",
    "slowed_low",
    "slowed_high",
    "tau_estimated",
    "tau_estimated_low",
    "tau_estimated_high",
    "ece",
    "ece_low",
    "ece_high",
    "alpha_word_start",
    "alpha_word_continuation",
    "alpha_unspaced_script",
    "alpha_number",
    "alpha_punctuation",
    "alpha_line_break",
    "alpha_space",
    "alpha_part_of_a_character",
    "alpha_special",
    "alpha_other",
];

/// One row for each setting and dataset of each of `reports` under its name, and one for all prompts of a setting, whose dataset
/// is `overall`. What is not known is empty, and so is the drafter where it is that of the report. Lines end as RFC 4180 wants it.
pub fn csv(reports: &[(String, Report)]) -> String {
    let mut text = COLUMNS.join(",") + "\r\n";
    for (name, report) in reports {
        for setting in &report.settings {
            for dataset in setting.shown() {
                let cells = row(name, report, setting, dataset);
                let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
                text += &(cells.join(",") + "\r\n");
            }
        }
    }
    text
}

fn row(
    name: &str,
    report: &Report,
    setting: &SettingReport,
    dataset: &DatasetReport,
) -> Vec<String> {
    let mut cells = vec![
        name.to_owned(),
        report.target_of(setting).to_owned(),
        setting.drafter.clone().unwrap_or_default(),
        setting.temperature.to_string(),
        optional(setting.top_k),
        optional(setting.top_p),
        setting.verifier.clone(),
        setting.lossy.to_string(),
        setting.draft.to_string(),
        dataset.name.clone(),
        dataset.prompts.to_string(),
        dataset.tokens.to_string(),
        dataset.passes.to_string(),
    ];
    cells.extend(measured(dataset.tau, dataset.tau_ci95));
    cells.extend(measured(dataset.alpha, dataset.alpha_ci95));
    cells.push(optional(dataset.draft_tokens_per_pass));
    cells.extend(speedups(dataset.speedup.as_ref()));
    let spread = &dataset.spread;
    cells.extend(measured(spread.tau_mean, spread.tau_mean_ci95));
    cells.extend(measured(
        spread.tau_worst_tenth,
        spread.tau_worst_tenth_ci95,
    ));
    cells.extend(measured(spread.slowed, spread.slowed_ci95));
    // Only all prompts together are estimated; a single dataset is all of them.
    let is_all = setting.datasets.len() == 1 || std::ptr::eq(dataset, &setting.overall);
    let estimate = setting.estimate.as_ref().filter(|_| is_all);
    let (tau, interval) = (
        estimate.map(|found| found.tau),
        estimate.and_then(|found| found.tau_ci95),
    );
    cells.extend(measured(tau, interval));
    let calibration = setting.calibration.as_ref().filter(|_| is_all);
    let likeliest = calibration.map(|found| &found.likeliest);
    let (ece, interval) = (
        likeliest.map(|found| found.ece),
        likeliest.and_then(|found| found.ece_ci95),
    );
    cells.extend(measured(ece, interval));
    cells.extend(TokenClass::ALL.map(|class| {
        let classes = setting.token_classes.iter().filter(|_| is_all);
        let found = classes.into_iter().find(|found| found.name == class.name());
        optional(found.map(|found| found.alpha))
    }));
    cells
}

fn speedups(found: Option<&Speedup>) -> Vec<String> {
    let of = |of: fn(&Speedup) -> Option<f64>| found.and_then(of);
    let interval = |of: fn(&Speedup) -> Option<[f64; 2]>| found.and_then(of);
    let full_batches = measured(
        of(|found| found.full_batches),
        interval(|found| found.full_batches_ci95),
    );
    let models = [of(|found| found.model), of(|found| found.memory_bound)].map(optional);
    let predicted = measured(
        of(|found| found.predicted),
        interval(|found| found.predicted_ci95),
    );
    let wall = measured(
        of(|found| Some(found.wall)),
        interval(|found| found.wall_ci95),
    );
    [&wall[..], &full_batches, &models, &predicted].concat()
}

/// A value and the ends of its interval.
fn measured(value: Option<f64>, interval: Option<[f64; 2]>) -> [String; 3] {
    let [low, high] = interval.map_or([None, None], |ends| ends.map(Some));
    [value, low, high].map(optional)
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

/// A cell, within quotes where it holds what would end it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::examples;

    #[test]
    fn classes_of_tokens_stand_in_the_columns_of_their_names() {
        let names =
            TokenClass::ALL.map(|class| format!("alpha_{}", class.name().replace(' ', "_")));
        assert_eq!(COLUMNS[COLUMNS.len() - names.len()..], names);
    }

    #[test]
    fn every_row_has_every_column_and_names_may_hold_commas() {
        let report = examples::report();
        let text = csv(&[("a, \"b\"".into(), report.clone()), ("c".into(), report)]);
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        // Two datasets and all prompts, of two reports.
        assert_eq!(lines.len(), 1 + 2 * 3);
        let told = "\"a, \"\"b\"\"\",Qwen/Qwen3-0.6B,,0.6,,0.95,rejection,false,chain 2 drawn,gsm8k,2,30,12,2.5,2.25,2.75,0.6875,0.5,\
                    0.75,2,1.5,1.25,1.75,,,,1.625,2,,,,,,,,,,,,,,,,,,,,,,,,,,,,";
        assert_eq!(lines[1], told);
        for line in &lines[4..] {
            assert_eq!(line.split(',').count(), COLUMNS.len(), "{line}");
        }
        assert!(lines[2].contains(",mt-bench,0,0,0,,,,"), "{text}");
    }
}
