//! What a run has to say to a tracking server: its settings, the figures of its training in the order in which they were found,
//! and those of its report. All of it is read from the run's own files.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use spectrain_eval::Report;

use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::stage_names;

/// The longest text of a setting that is sent.
const LONGEST: usize = 500;

/// A figure at a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// Its name.
    pub(super) key: String,
    /// What it is.
    pub(super) value: f64,
    /// The optimiser's step.
    pub(super) step: u64,
    /// Milliseconds since 1970 at which it was found: the same whenever it is sent.
    pub(super) time: i64,
}

/// When a training began, or a line was logged: no two trainings of a stage begin alike, or log their first line alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Logged {
    /// The optimiser's step.
    pub(super) step: u64,
    /// Milliseconds since 1970.
    pub(super) time: i64,
}

/// A line that a training has logged.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    /// When that was.
    pub(super) logged: Logged,
    /// What it says.
    pub(super) figures: Vec<Figure>,
}

/// When a training stage began, as its folder says.
pub(super) fn begun(run: &Path, stage: &str) -> Option<Logged> {
    let path = run.join(stage).join("events").join("begun.json");
    // Earlier versions wrote none.
    let text = std::fs::read_to_string(path).ok()?;
    let begun: Map<String, Value> = serde_json::from_str(&text).ok()?;
    Some(logged(&begun))
}

/// The lines of a training stage, whose figures are called by `prefix` and their own names. What is not a whole line yet is left out.
pub(super) fn lines(run: &Path, stage: &str, prefix: &str) -> Vec<Line> {
    let path = run.join(stage).join("events").join("metrics.jsonl");
    // A stage that has not begun has none.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole.filter_map(|text| line(text, prefix)).collect()
}

fn line(text: &str, prefix: &str) -> Option<Line> {
    let Ok(Value::Object(line)) = serde_json::from_str(text) else {
        return None;
    };
    let logged = logged(&line);
    let Logged { step, time } = logged;
    let of = |(key, value): (&String, &Value)| {
        let is_value = key != "step" && key != "time";
        Some(Figure {
            key: format!("{prefix}{key}"),
            value: value.as_f64().filter(|_| is_value)?,
            step,
            time,
        })
    };
    Some(Line {
        logged,
        figures: line.iter().filter_map(of).collect(),
    })
}

/// When that was, by the step and the seconds that a line says.
fn logged(line: &Map<String, Value>) -> Logged {
    let (step, time) = (line.get("step"), line.get("time"));
    let time = time.and_then(Value::as_f64).unwrap_or(0.0);
    Logged {
        step: step.and_then(Value::as_u64).unwrap_or(0),
        time: (time * 1000.0) as i64,
    }
}

/// The figures of a report: τ and α of each way of decoding and dataset, with the ends of their intervals.
pub(super) fn of_report(report: &Report, time: i64) -> Vec<Figure> {
    let mut figures = Vec::new();
    for setting in &report.settings {
        let way = plain(&setting.of_target());
        let datasets = setting
            .datasets
            .iter()
            .map(|found| (plain(&found.name), found));
        for (name, found) in datasets.chain([("all".to_owned(), &setting.overall)]) {
            let [low, high] = found.tau_ci95.map_or([None; 2], |ends| ends.map(Some));
            for (what, value) in [
                ("tau", found.tau),
                ("tau_low", low),
                ("tau_high", high),
                ("alpha", found.alpha),
            ] {
                figures.extend(value.map(|value| Figure {
                    key: format!("evaluate/{way}/{name}/{what}"),
                    value,
                    step: 0,
                    time,
                }));
            }
        }
    }
    figures
}

/// A text as servers take names: letters, digits, and a few signs.
fn plain(text: &str) -> String {
    let plain = |letter: char| {
        let allowed = letter.is_ascii_alphanumeric() || "-_. ".contains(letter);
        if allowed { letter } else { '_' }
    };
    text.chars().map(plain).collect()
}

/// The settings of a recipe by their keys, such as `train.steps`.
pub(super) fn settings(recipe: &ResolvedRecipe) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    collect(&recipe.json, "", &mut settings);
    settings
}

fn collect(value: &Value, key: &str, settings: &mut Vec<(String, String)>) {
    match value {
        Value::Object(table) => {
            for (name, value) in table {
                let dot = if key.is_empty() { "" } else { "." };
                collect(value, &format!("{key}{dot}{name}"), settings);
            }
        }
        Value::Null => {}
        Value::String(text) => settings.push((key.to_owned(), cut(text))),
        other => settings.push((key.to_owned(), cut(&other.to_string()))),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// The report of a run and when it was written, where there is one.
pub(super) fn report(run: &Path) -> Result<Option<(Report, i64)>> {
    let path = run.join(stage_names::EVALUATE).join("report.json");
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    let report = Report::from_json(&text)
        .with_context(|| format!("`{}` is not a report", path.display()))?;
    let data = std::fs::metadata(&path)
        .ok()
        .and_then(|data| data.modified().ok());
    let time = data.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    Ok(Some((
        report,
        time.map_or(0, |time| time.as_millis() as i64),
    )))
}
