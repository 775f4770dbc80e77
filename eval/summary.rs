//! Reports on a terminal: what matters most, in lines of at most 80 columns.
use std::fmt::Write;

use spectrain_checkpoints::columns::wrapped;
use spectrain_checkpoints::printable;

use crate::best::best;
use crate::compare::differences;
use crate::deploy::report::{Recommendation, TIMES_ALL, not_timed};
use crate::interval::with_interval;
use crate::paired::own::OwnLengths;
use crate::report::words::legend;
use crate::report::{DatasetReport, Report, SettingReport};
use crate::served::report::ServedReport;

/// Columns of the names of settings that stand before their figures.
const NAMES: usize = 34;
/// What stands above the figures.
const FIGURES: [&str; 3] = ["τ [95 % CI]", "α", "speed-up [95 % CI]"];

/// The figures of `reports`, each under its name, with what must be known of them.
pub fn summary(reports: &[(String, Report)]) -> String {
    let compared = reports.len() > 1;
    let mut text = String::new();
    for (name, report) in reports {
        let title = if compared {
            format!("{name}: {}", what(report))
        } else {
            what(report)
        };
        text += &wrapped(&title, "");
        text += &prompts(report);
    }
    if reports
        .iter()
        .any(|(_, report)| !report.settings.is_empty())
    {
        _ = write!(text, "\n{}", line("", FIGURES));
    }
    text += &settings(reports);
    let mut notes = notes(reports);
    let mut recommended = reports
        .iter()
        .map(|(_, report)| &report.settings_recommended);
    if recommended.any(|all| not_timed(all).is_some()) {
        notes.push(TIMES_ALL.to_owned());
    }
    let below = legend(reports.iter().flat_map(|(_, report)| &report.settings));
    notes.extend(
        below
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned),
    );
    notes.extend(differences(reports));
    notes.extend(best(reports));
    if !notes.is_empty() {
        text.push('\n');
    }
    text.extend(notes.iter().map(|note| wrapped(note, "  ")));
    text
}

/// What a report is of.
fn what(report: &Report) -> String {
    let drafter = &report.drafter;
    let targets: Vec<&str> = report
        .all_targets()
        .iter()
        .map(|target| &*target.model)
        .collect();
    let targets = targets.join(", ");
    match &*drafter.kind {
        "" if report.has_no_drafter() => format!("drafters without training for {targets}"),
        "" => format!("drafter at {} for {targets}", drafter.path),
        kind => format!(
            "{kind} drafter {} ({} parameters) for {targets}",
            drafter.path, drafter.parameters
        ),
    }
}

/// What was asked.
fn prompts(report: &Report) -> String {
    let datasets = report.settings.first().map(|setting| &setting.datasets);
    let datasets = datasets.into_iter().flatten();
    let told: Vec<String> = datasets
        .map(|dataset| format!("{} of {}", dataset.prompts, dataset.name))
        .collect();
    if told.is_empty() {
        return String::new();
    }
    wrapped(&format!("prompts: {}", told.join(", ")), "  ")
}

/// The figures of every setting; of several reports those of one way of decoding stand together, and then those on each dataset.
fn settings(reports: &[(String, Report)]) -> String {
    let compared = reports.len() > 1;
    let targets = reports.iter().any(|(_, report)| report.targets.len() > 1);
    let own = OwnLengths::of(reports);
    let mut groups: Vec<(String, String)> = Vec::new();
    let mut add = |way: String, rows: String| {
        let known = groups.iter().position(|(known, _)| *known == way);
        match known {
            Some(at) => groups[at].1 += &rows,
            None => groups.push((way, rows)),
        }
    };
    for (name, report) in reports {
        for setting in &report.settings {
            let mut way = own.heading(setting);
            if targets {
                way = format!("{}: {way}", report.target_of(setting));
            }
            if !compared {
                let rows = parts(&way, setting);
                add(way, rows);
                continue;
            }
            let name = format!("  {}", printable(&own.row(name, setting)));
            for (behind, found) in setting.pooled_and_each() {
                add(format!("{way}{behind}"), row(&name, found));
            }
        }
    }
    let shown = |(way, rows): (String, String)| {
        if compared {
            wrapped(&way, "") + &rows
        } else {
            rows
        }
    };
    groups.into_iter().map(shown).collect()
}

/// A setting, and its datasets where it has several.
fn parts(way: &str, setting: &SettingReport) -> String {
    let mut text = row(way, &setting.overall);
    if setting.datasets.len() > 1 {
        let datasets = setting.datasets.iter();
        text.extend(
            datasets.map(|dataset| row(&format!("  {}", printable(&dataset.name)), dataset)),
        );
    }
    text
}

/// Figures behind a name; a name that is too long has lines of its own.
fn row(name: &str, dataset: &DatasetReport) -> String {
    let before = if name.chars().count() < NAMES {
        String::new()
    } else {
        wrapped(name, "  ")
    };
    let name = if before.is_empty() { name } else { "" };
    let speedup = dataset.speedup.unwrap_or_default();
    let speedup = with_interval(
        dataset.speedup.map(|speedup| speedup.wall),
        speedup.wall_ci95,
    );
    let tau = with_interval(dataset.tau, dataset.tau_ci95);
    let alpha = with_interval(dataset.alpha, None);
    before + &line(name, [&tau, &alpha, &speedup])
}

fn line(name: &str, [tau, alpha, speedup]: [&str; 3]) -> String {
    let line = format!("{name:NAMES$}{tau:17}  {alpha:5}  {speedup}");
    format!("{}\n", line.trim_end())
}

/// What else is notable of reports, each note once; of several behind the names of those that it is of.
fn notes(reports: &[(String, Report)]) -> Vec<String> {
    let compared = reports.len() > 1;
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, report) in reports {
        for note in notes_of(report, compared) {
            match all.iter_mut().find(|(known, _)| *known == note) {
                Some((_, names)) if names.contains(&&**name) => {}
                Some((_, names)) => names.push(name),
                None => all.push((note, vec![name.as_str()])),
            }
        }
    }
    let named = |(note, names): (String, Vec<&str>)| match compared {
        true => format!("{}: {note}", names.join(", ")),
        false => note,
    };
    all.into_iter().map(named).collect()
}

/// What else is notable of a report.
fn notes_of(report: &Report, compared: bool) -> Vec<String> {
    let mut notes: Vec<String> = Vec::from_iter(report.batch_note());
    notes.extend(report.shorter_chains_note());
    notes.extend(report.baseline_note());
    notes.extend(report.nothing_gained_notes());
    notes.extend(report.known_prompts.iter().map(|known| format!("{known}.")));
    let choosing = report.choosing_prompts.iter();
    notes.extend(choosing.map(|choosing| format!("{choosing}.")));
    // Where several are compared there would be too many.
    let settings = report.settings.iter().filter(|_| !compared);
    notes.extend(settings.filter_map(|setting| notes_of_setting(report, setting)));
    notes.extend(report.pace_notes());
    let texts = report.texts.iter();
    notes.extend(texts.map(|texts| format!("Acceptance was {texts}.")));
    notes.extend(lossless(report));
    let recommended = report.settings_recommended.iter();
    notes.extend(recommended.map(Recommendation::told));
    notes.extend(not_timed(&report.settings_recommended));
    notes.extend(report.served.iter().flat_map(served));
    notes
}

fn notes_of_setting(report: &Report, setting: &SettingReport) -> Option<String> {
    let mut parts = Vec::new();
    let spread = &setting.overall.spread;
    if let Some(worst) = spread.tau_worst_tenth {
        parts.push(format!("τ of the worst tenth {worst:.2}"));
    }
    if let Some(slowed) = spread.slowed.filter(|&share| share > 0.0) {
        parts.push(format!("{:.0} % slowed", 100.0 * slowed));
    }
    let category = setting.groups.get("category").into_iter().flatten();
    let known = category.filter_map(|group| Some((&group.name, group.tau?)));
    if let Some((name, tau)) = known.min_by(|one, other| one.1.total_cmp(&other.1)) {
        parts.push(format!("lowest in category {name}, τ {tau:.2}"));
    }
    if let Some(calibration) = &setting.calibration {
        parts.push(format!("ECE {:.3}", calibration.likeliest.ece));
        let head = calibration.head.as_ref();
        parts.extend(head.map(|head| format!("ECE of its head {:.3}", head.ece)));
    }
    if let Some(estimate) = setting
        .estimate
        .as_ref()
        .filter(|estimate| estimate.is_surprising())
    {
        parts.push(format!("the estimator disagrees: {estimate}"));
    }
    let target = setting.target.as_ref().map_or(String::new(), |_| {
        format!("{}: ", report.target_of(setting))
    });
    (!parts.is_empty()).then(|| format!("{target}{}: {}.", setting.heading(), parts.join("; ")))
}

/// Whether the output is the target's own, where something was decoded.
fn lossless(report: &Report) -> Vec<String> {
    let Some(verdict) = report.verdict() else {
        return Vec::new();
    };
    let mut notes = vec![format!("{}.", verdict.words())];
    let greedy = report.lossless.greedy_lines();
    let lines = greedy.lines().filter(|line| !line.is_empty());
    notes.extend(lines.map(str::to_owned));
    notes.extend(report.lossless.sampling.as_ref().map(ToString::to_string));
    notes
}

/// What a server did, and what must be said of it.
fn served(served: &ServedReport) -> Vec<String> {
    let mut notes = Vec::from_iter(served_figures(served));
    let lines = served.lines();
    let lines = lines
        .lines()
        .map(|line| line.trim_start().trim_start_matches("- "));
    notes.extend(lines.map(|line| format!("served, {line}")));
    notes
}

fn served_figures(served: &ServedReport) -> Option<String> {
    let found = served.figures.as_ref()?;
    let here = served.in_tree.as_ref().and_then(|found| found.tau);
    let parts = [
        found
            .tau
            .map(|_| format!("τ {}", with_interval(found.tau, found.tau_ci95))),
        here.map(|tau| format!("τ here {tau:.2}")),
        Some(format!("{:.1} tokens/s", found.tokens_per_second)),
        found.speedup.map(|_| {
            format!(
                "speed-up {}",
                with_interval(found.speedup, found.speedup_ci95)
            )
        }),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    Some(format!(
        "served, {}: {}",
        served.heading(),
        parts.join("; ")
    ))
}

#[cfg(test)]
mod tests;
