//! Reports as rows of comma-separated values, for spreadsheets and programs.
use crate::csv::cells::{ends, line, listed, measured, optional, said};
use crate::csv::costs::{measured_on, took};
use crate::csv::recipe_keys::Differing;
use crate::paired::PairedReports;
use crate::paired::difference::PairedReport;
use crate::report::{DatasetReport, Report, SettingReport, Speedup};
use crate::token_class::TokenClass;

pub(crate) mod cells;
mod costs;
mod recipe_keys;

/// The names of the columns that are always there.
const COLUMNS: [&str; 82] = [
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
    "pace_changed",
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
    "survival",
    "conditional",
    "accepted_histogram",
    "family",
    "parameters",
    "seed",
    "divergence",
    "learning_rate",
    "steps",
    "conversations",
    "drafter_path",
    "drafter_sha256",
    "target_sha256",
    "prompts_sha256",
    "max_new_tokens",
    "batch_size",
    "device",
    "device_model",
    "seconds_draft",
    "seconds_verify",
    "seconds_other",
    "seconds_autoregressive",
    "pass_seconds",
    "pass_seconds_draft",
    "pass_seconds_plain",
];

/// The names of the columns of differences.
const PAIRED: [&str; 22] = [
    "report",
    "setting",
    "dataset",
    "conversations",
    "baseline_tau",
    "baseline_tau_low",
    "baseline_tau_high",
    "tau",
    "tau_low",
    "tau_high",
    "difference",
    "difference_low",
    "difference_high",
    "verdict",
    "other_lengths",
    "larger_in",
    "smaller_in",
    "sign_test",
    "among",
    "joint_low",
    "joint_high",
    "choice",
];

/// Places in the recipe of what tells trainings apart.
const OF_RECIPE: [&str; 4] = [
    "/seed",
    "/objective/divergence",
    "/train/learning_rate",
    STEPS,
];
/// The steps that were asked for.
const STEPS: &str = "/train/steps";

/// One row for each setting and dataset of each of `reports` under its name, and one for all prompts of a setting, whose dataset
/// is `overall`. What is not known is empty, and so is the drafter where it is that of the report. Behind the columns that are
/// always there is one for each further key of the recipes in which the reports differ. Lines end as RFC 4180 wants it.
pub fn csv(reports: &[(String, Report)]) -> String {
    let differing = Differing::of(reports, &OF_RECIPE);
    let columns = COLUMNS.map(str::to_owned).into_iter();
    let columns: Vec<String> = columns.chain(differing.columns()).collect();
    let mut text = line(&columns);
    for (name, report) in reports {
        for setting in &report.settings {
            for dataset in setting.shown() {
                let mut cells = row(name, report, setting, dataset);
                // What drafts without training was made by no recipe.
                let own = setting.drafter.is_none().then_some(&report.recipe);
                cells.extend(differing.cells(own));
                text += &line(&cells);
            }
        }
    }
    text
}

/// One row for each difference of each of `reports` under its name from the report that they are compared with. The dataset of all
/// prompts together is `overall`.
pub fn paired_csv(reports: &[(String, PairedReports)]) -> String {
    let mut text = PAIRED.join(",") + "\r\n";
    for (name, pairs) in reports {
        for pair in &pairs.found {
            text += &line(&paired_row(name, pair));
        }
    }
    text
}

fn paired_row(name: &str, pair: &PairedReport) -> Vec<String> {
    let dataset = pair.dataset.as_deref().unwrap_or("overall");
    let words = [name, pair.setting.as_str(), dataset];
    let mut cells = words.map(str::to_owned).to_vec();
    cells.push(pair.conversations.to_string());
    cells.extend(measured(Some(pair.baseline_tau), pair.baseline_ci95));
    cells.extend(measured(Some(pair.tau), pair.tau_ci95));
    cells.extend(measured(Some(pair.difference), pair.ci95));
    cells.extend([
        pair.verdict().to_string(),
        pair.other_lengths.to_string(),
        pair.better.to_string(),
        pair.worse.to_string(),
        pair.sign_test.to_string(),
        pair.among.to_string(),
    ]);
    cells.extend(ends(pair.joint));
    cells.push(pair.choice().to_string());
    cells
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
    // Only all prompts together have some figures; a single dataset is all of them.
    let is_all = setting.datasets.len() == 1 || std::ptr::eq(dataset, &setting.overall);
    let overall = setting.overall.speedup.filter(|_| is_all);
    cells.extend(speedups(dataset.speedup.as_ref(), overall));
    // It is so for every dataset.
    let of_setting = setting.overall.speedup;
    cells.push(optional(of_setting.and_then(|found| found.pace_changed)));
    let spread = &dataset.spread;
    cells.extend(measured(spread.tau_mean, spread.tau_mean_ci95));
    cells.extend(measured(
        spread.tau_worst_tenth,
        spread.tau_worst_tenth_ci95,
    ));
    cells.extend(measured(spread.slowed, spread.slowed_ci95));
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
    cells.push(listed(&dataset.survival));
    cells.push(listed(&dataset.conditional));
    cells.push(listed(&dataset.accepted_histogram));
    cells.extend(drafted_by(report, setting));
    cells.extend(measured_on(report, setting, dataset));
    cells.extend(took(report, setting, (dataset, is_all)));
    cells
}

/// What drafted, and how it was trained, as far as the report says.
fn drafted_by(report: &Report, setting: &SettingReport) -> Vec<String> {
    // Of a drafter without training its name says all.
    let own = Some(report).filter(|_| setting.drafter.is_none());
    let drafter = own.map(|report| &report.drafter);
    let known = drafter.filter(|drafter| !drafter.kind.is_empty());
    let mut cells = vec![
        optional(known.map(|drafter| &drafter.kind)),
        optional(known.map(|drafter| drafter.parameters)),
    ];
    let trained = own.and_then(|report| report.trained.as_ref());
    let ended = trained.and_then(|trained| trained.ended);
    cells.extend(OF_RECIPE.map(|place| {
        match ended {
            // Those that were done, where validations have ended it before.
            Some(_) if place == STEPS => optional(ended),
            _ => said(own.and_then(|report| report.recipe.pointer(place))),
        }
    }));
    cells
}

/// Those of a dataset, and what is predicted `overall`.
fn speedups(found: Option<&Speedup>, overall: Option<Speedup>) -> Vec<String> {
    let of = |of: fn(&Speedup) -> Option<f64>| found.and_then(of);
    let interval = |of: fn(&Speedup) -> Option<[f64; 2]>| found.and_then(of);
    let full_batches = measured(
        of(|found| found.full_batches),
        interval(|found| found.full_batches_ci95),
    );
    let models = [of(|found| found.model), of(|found| found.memory_bound)].map(optional);
    let predicted = measured(
        overall.and_then(|found| found.predicted),
        overall.and_then(|found| found.predicted_ci95),
    );
    let wall = measured(
        of(|found| Some(found.wall)),
        interval(|found| found.wall_ci95),
    );
    [&wall[..], &full_batches, &models, &predicted].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DraftReport;
    use crate::opinions::TrainedReport;
    use crate::report::ends::EndsReport;
    use crate::report::examples;

    #[test]
    fn classes_of_tokens_stand_in_the_columns_of_their_names() {
        let names =
            TokenClass::ALL.map(|class| format!("alpha_{}", class.name().replace(' ', "_")));
        let place = COLUMNS.iter().position(|column| *column == names[0]);
        assert_eq!(COLUMNS[place.unwrap()..][..names.len()], names);
    }

    #[test]
    fn every_row_has_every_column_and_names_may_hold_commas() {
        let report = examples::report();
        let text = csv(&[("a, \"b\"".into(), report.clone()), ("c".into(), report)]);
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        // Two datasets and all prompts, of two reports.
        assert_eq!(lines.len(), 1 + 2 * 3);
        let told = "\"a, \"\"b\"\"\",Qwen/Qwen3-0.6B,,0.6,,0.95,rejection,false,chain 2 drawn,gsm8k,2,30,12,2.5,2.25,2.75,0.6875,0.5,\
                    0.75,2,1.5,1.25,1.75,,,,1.625,2,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,1 0.5,0.75 0.5,0 6 6,eagle3,1234,,,,,2,\
                    runs/a/train,,,ab,,1,,,0.5,1,0.25,2.625,,,";
        assert_eq!(lines[1], told);
        for line in &lines[4..] {
            assert_eq!(line.split(',').count(), COLUMNS.len(), "{line}");
        }
        assert!(lines[2].contains(",mt-bench,0,0,0,,,,"), "{text}");
    }

    /// The cell of a column in the first row.
    fn cell<'a>(text: &'a str, column: &str) -> &'a str {
        let mut lines = text.split_terminator("\r\n");
        let mut names = lines.next().unwrap().split(',');
        let place = names.position(|name| name == column).unwrap();
        lines.next().unwrap().split(',').nth(place).unwrap()
    }

    #[test]
    fn what_is_plotted_is_there_of_one_dataset_too() {
        let mut report = examples::report();
        report.recipe = serde_json::json!({
            "seed": 3,
            "objective": {"divergence": "kl"},
            "train": {"learning_rate": 0.008, "steps": 40},
        });
        let setting = &mut report.settings[0];
        setting.datasets.truncate(1);
        let speedup = setting.overall.speedup.as_mut().unwrap();
        speedup.predict(1.75, Some([1.5, 2.0]));
        let text = csv(&[("a".into(), report.clone())]);
        for (column, told) in [
            ("survival", "1 0.5"),
            ("accepted_histogram", "0 6 6"),
            ("speedup_wall", "1.5"),
            ("speedup_predicted", "1.75"),
            ("speedup_predicted_high", "2"),
            ("pace_changed", "false"),
            ("family", "eagle3"),
            ("seed", "3"),
            ("divergence", "kl"),
            ("learning_rate", "0.008"),
            ("steps", "40"),
        ] {
            assert_eq!(cell(&text, column), told, "{column}");
        }
        // Its validations have ended it before.
        report.trained = Some(TrainedReport {
            step: 10,
            ended: Some(25),
            simulated_tau: None,
            simulated_length: None,
            tau: None,
            tau_ci95: None,
            draft_length: None,
        });
        let text = csv(&[("a".into(), report.clone())]);
        assert_eq!(cell(&text, "steps"), "25");
        let speedup = report.settings[0].overall.speedup.as_mut().unwrap();
        speedup.predict(0.75, Some([0.5, 1.0]));
        let text = csv(&[("a".into(), report.clone())]);
        assert_eq!(cell(&text, "pace_changed"), "true");
        // A drafter without training was not trained by this recipe.
        report.settings[0].drafter = Some("prompt-lookup".into());
        let text = csv(&[("a".into(), report)]);
        for column in ["family", "parameters", "seed", "steps"] {
            assert_eq!(cell(&text, column), "", "{column}");
        }
    }

    #[test]
    fn a_table_of_costs_has_what_it_needs() {
        let mut report = examples::report();
        let device = serde_json::json!({"name": "cuda:0", "model": "H200", "threads": 16});
        report.device = device.as_object().unwrap().clone();
        report.drafter.sha256 = "d".into();
        report.target.sha256 = "t".into();
        report.batch_size = 16;
        report.settings_recommended = examples::recommended();
        let setting = &mut report.settings[0];
        setting.datasets.truncate(1);
        setting.datasets[0].prompts = 24;
        setting.datasets[0].spread.conversations = Some(12);
        (setting.temperature, setting.top_p) = (0.0, None);
        setting.draft = DraftReport::Chain {
            length: 2,
            tokens: None,
        };
        setting.ends = Some(EndsReport {
            max_new_tokens: 64,
            stop: Vec::new(),
        });
        let text = csv(&[("a".into(), report.clone())]);
        for (column, told) in [
            ("prompts", "24"),
            ("conversations", "12"),
            ("drafter_path", "runs/a/train"),
            ("drafter_sha256", "d"),
            ("target_sha256", "t"),
            ("prompts_sha256", "ab"),
            ("max_new_tokens", "64"),
            ("batch_size", "16"),
            ("device", "cuda:0"),
            ("device_model", "H200"),
            ("seconds_draft", "0.5"),
            ("seconds_verify", "1"),
            ("seconds_other", "0.25"),
            ("seconds_autoregressive", "2.625"),
            ("pass_seconds", "0.5"),
            ("pass_seconds_draft", "0.125"),
            ("pass_seconds_plain", "0.5"),
        ] {
            assert_eq!(cell(&text, column), told, "{column}");
        }
        // Nothing was timed of a batch of this size, nor of what drafts without training.
        report.batch_size = 4;
        let other_batch = csv(&[("a".into(), report.clone())]);
        report.batch_size = 16;
        report.settings[0].drafter = Some("prompt-lookup".into());
        let free = csv(&[("a".into(), report)]);
        for text in [&other_batch, &free] {
            for column in ["pass_seconds", "pass_seconds_draft", "pass_seconds_plain"] {
                assert_eq!(cell(text, column), "", "{column}");
            }
        }
        for column in ["drafter_path", "drafter_sha256"] {
            assert_eq!(cell(&free, column), "", "{column}");
        }
    }

    #[test]
    fn what_was_swept_has_a_column_behind_the_others() {
        let with = |layers: u64| {
            let mut report = examples::report();
            report.settings[0].datasets.truncate(1);
            report.recipe = serde_json::json!({"seed": layers, "drafter": {"layers": layers}});
            (format!("of {layers}"), report)
        };
        let reports = [with(2), with(1)];
        let text = csv(&reports);
        let columns = text.split("\r\n").next().unwrap();
        assert_eq!(
            columns,
            COLUMNS.join(",") + ",recipe.drafter.layers",
            "and none for the seed, which has one"
        );
        assert_eq!(cell(&text, "recipe.drafter.layers"), "2");
        assert!(!csv(&reports[..1]).contains("recipe."));
    }

    #[test]
    fn differences_have_a_row_for_all_prompts_and_for_each_dataset() {
        let pair = |dataset: Option<&str>| PairedReport {
            setting: "T=0, greedy, chain 5".into(),
            dataset: dataset.map(str::to_owned),
            other_lengths: false,
            conversations: 40,
            baseline_tau: 2.0,
            baseline_ci95: Some([1.5, 2.5]),
            tau: 2.25,
            tau_ci95: None,
            difference: 0.25,
            ci95: Some([0.125, 0.5]),
            among: 1,
            joint: Some([0.125, 0.5]),
            better: 30,
            worse: 9,
            sign_test: 0.25,
        };
        let pairs = PairedReports {
            found: vec![pair(None), pair(Some("code"))],
            ..PairedReports::default()
        };
        let text = paired_csv(&[("a".into(), pairs)]);
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        let told = |dataset: &str| {
            format!(
                "a,\"T=0, greedy, chain 5\",{dataset},40,2,1.5,2.5,2.25,,,0.25,0.125,0.5,better,false,30,9,0.25,1,0.125,0.5,better"
            )
        };
        assert_eq!(lines, [PAIRED.join(","), told("overall"), told("code")]);
    }
}
