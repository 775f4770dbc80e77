//! A report as a table in Markdown.
use std::fmt::Write as _;

use super::words::legend;
use super::{DatasetReport, DrafterReport, Report, SettingReport};
use crate::deploy::report::to_markdown as deploy_to_markdown;
use crate::groups::{self, Groups};
use crate::interval::with_interval;
use crate::opinions;
use crate::reliability;
use crate::served::report::to_markdown as served_to_markdown;
use crate::spread;
use crate::token_class::{self, ClassReport};

impl Report {
    /// One row for each setting and dataset, what is known of losslessness, and what servers did.
    pub fn to_markdown(&self) -> String {
        let several = self.targets.len() > 1;
        let targets = self.all_targets().iter();
        let targets: Vec<String> = targets
            .map(|target| format!("`{}`", target.model))
            .collect();
        if self.settings.is_empty() && !self.served.is_empty() {
            let targets = targets.join(", ");
            let served = served_to_markdown(&self.served);
            let deploy = deploy_to_markdown(&self.settings_recommended);
            return format!(
                "drafter at `{}` for {targets}\n{served}{deploy}",
                self.drafter.path
            );
        }
        let drafter = if self.has_no_drafter() {
            "drafters without training".to_owned()
        } else {
            let DrafterReport {
                kind,
                path,
                parameters,
                ..
            } = &self.drafter;
            format!("{kind} drafter `{path}` ({parameters} parameters)")
        };
        let mut text = format!("{drafter} for {}\n\n", targets.join(", "));
        if several {
            text.push_str("| target ");
        }
        _ = writeln!(text, "| setting | dataset | prompts | tokens | {FIGURES} |");
        if several {
            text.push_str("|---");
        }
        text.push_str("|---|---|--:|--:|---|---|---|---|--:|--:|\n");
        for setting in &self.settings {
            for dataset in setting.shown() {
                if several {
                    _ = write!(text, "| {} ", self.target_of(setting));
                }
                text.push_str(&row(setting, dataset));
            }
        }
        text.push_str(&legend(self.settings.iter()));
        text.push_str(&self.notes());
        text.push_str(&self.estimates());
        text.push_str(&self.calibration());
        text.push_str(&self.breakdown());
        text.push_str(&deploy_to_markdown(&self.settings_recommended));
        text.push_str(&self.predictions());
        if let Some(verdict) = self.verdict() {
            _ = write!(text, "\n{}.\n", verdict.words());
        }
        text.push_str(&self.lossless.greedy_lines());
        if let Some(sampling) = &self.lossless.sampling {
            _ = write!(text, "\n{sampling}\n");
        }
        text.push_str(&served_to_markdown(&self.served));
        text
    }

    /// What is to be known of the table above.
    fn notes(&self) -> String {
        let texts = self.texts.iter();
        let texts = texts.map(|texts| format!("Acceptance was {texts}."));
        let known = self.known_prompts.iter().map(|known| format!("{known}."));
        let choosing = self.choosing_prompts.iter();
        let choosing = choosing.map(|choosing| format!("{choosing}."));
        let all = texts.chain(known).chain(choosing);
        let all = all.chain(self.pace_notes()).chain(self.batch_note());
        let all = all.chain(self.shorter_chains_note());
        let all = all.chain(self.baseline_note());
        let all = all.chain(self.nothing_gained_notes());
        all.map(|note| format!("\n{note}\n")).collect()
    }

    /// What the estimator says of each setting, and τ by all who counted it.
    fn estimates(&self) -> String {
        let line = |(heading, setting): (String, &SettingReport)| {
            let estimate = setting.estimate.as_ref()?;
            Some(format!("- {heading}: {estimate}\n"))
        };
        let lines: String = self.headed().filter_map(line).collect();
        let by_all = opinions::to_markdown(&self.counted());
        if lines.is_empty() {
            return by_all;
        }
        format!("\nWithout decoding, from the same outputs:\n\n{lines}{by_all}")
    }

    /// The predicted speed-up of each setting beside the measured one.
    fn predictions(&self) -> String {
        let line = |(heading, setting): (String, &SettingReport)| {
            let found = setting.overall.speedup?;
            let predicted = with_interval(Some(found.predicted?), found.predicted_ci95);
            let measured = with_interval(Some(found.wall), found.wall_ci95);
            let full = found.full_batches.map_or(String::new(), |full| {
                format!(
                    ", in full batches {}",
                    with_interval(Some(full), found.full_batches_ci95)
                )
            });
            Some(format!(
                "- {heading}: {predicted}, measured {measured}{full}\n"
            ))
        };
        let lines: String = self.headed().filter_map(line).collect();
        if lines.is_empty() {
            return lines;
        }
        format!("\nPredicted speed-up of what was decoded:\n\n{lines}")
    }

    /// Each setting under its heading, with its target where there are several.
    fn headed(&self) -> impl Iterator<Item = (String, &SettingReport)> {
        let settings = self.settings.iter();
        settings.map(|setting| (setting.of_target(), setting))
    }

    /// How well the drafter knows itself.
    fn calibration(&self) -> String {
        let known = self
            .headed()
            .filter_map(|(heading, setting)| Some((heading, setting.calibration.as_ref()?)));
        reliability::table(&known.collect::<Vec<_>>())
    }

    /// How acceptance is spread over prompts, and by what it differs.
    fn breakdown(&self) -> String {
        let headings: Vec<(String, &SettingReport)> = self.headed().collect();
        let rows = headings.iter().flat_map(|(heading, setting)| {
            let row = |dataset: &'_ DatasetReport| {
                (
                    heading.clone(),
                    dataset.name.clone(),
                    dataset.spread.clone(),
                )
            };
            setting.shown().map(row).collect::<Vec<_>>()
        });
        let groups = headings.iter();
        let groups: Vec<(String, &Groups)> = groups
            .map(|(heading, setting)| (heading.clone(), &setting.groups))
            .collect();
        let classes = headings.iter();
        let classes: Vec<(String, &[ClassReport])> = classes
            .map(|(heading, setting)| (heading.clone(), &setting.token_classes[..]))
            .collect();
        spread::table(&rows.collect::<Vec<_>>())
            + &groups::tables(&groups)
            + &token_class::table(&classes)
    }
}

fn row(setting: &SettingReport, dataset: &DatasetReport) -> String {
    format!(
        "| {} | {} | {} | {} | {} |\n",
        setting.heading(),
        dataset.name,
        dataset.prompts,
        dataset.tokens,
        figures(dataset),
    )
}

/// Heads of the columns of [`figures`].
pub(crate) const FIGURES: &str =
    "τ [95 % CI] | α [95 % CI] | α₁, α₂, … | speed-up [95 % CI] | by the formula | memory-bound";

/// What a table says of the drafts of a dataset.
pub(crate) fn figures(dataset: &DatasetReport) -> String {
    let steps: Vec<String> = dataset
        .conditional
        .iter()
        .map(|rate| format!("{rate:.2}"))
        .collect();
    let speedup = dataset.speedup.unwrap_or_default();
    let cells = [
        with_interval(dataset.tau, dataset.tau_ci95),
        with_interval(dataset.alpha, dataset.alpha_ci95),
        steps.join(" "),
        with_interval(
            dataset.speedup.map(|speedup| speedup.wall),
            speedup.wall_ci95,
        ),
        with_interval(speedup.model, None),
        with_interval(speedup.memory_bound, None),
    ];
    cells.join(" | ")
}
