//! What a run shows and writes while it trains: a progress bar on a terminal, a line per interval elsewhere,
//! TensorBoard events, and the same figures for programs.
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::events::Events;
use crate::metrics_file::Metrics;
use crate::objective::{LossReport, StepReport};
use crate::validation::{Gain, Validation, is_better};
use crate::watch::DeviceMemory;

/// How many α a line shows, at most.
const SHOWN: usize = 5;

/// The steps since the last log line. A saved state holds them, so that the next line says the same as without a stop.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Interval {
    losses: Vec<f64>,
    norms: Vec<f64>,
    /// The steps with statistics, by draft step.
    depths: Vec<StepReport>,
    /// Of each part of the loss, by its name, the sum of what it was in the steps that had it, and how many those are.
    #[serde(default)]
    parts: BTreeMap<String, (f64, usize)>,
    /// Weights that change over the steps, by the names of what they weigh, as they were in the last step.
    #[serde(default)]
    weights: BTreeMap<String, f64>,
    /// Tokens trained on, and the seconds that took.
    tokens: u64,
    seconds: f64,
}

impl Interval {
    pub(crate) fn add(&mut self, loss: f64, norm: f64, reports: Vec<LossReport>) {
        self.losses.push(loss);
        self.norms.push(norm);
        for (name, mean) in part_means(&reports) {
            let (sum, steps) = self.parts.entry(name).or_default();
            *sum += mean;
            *steps += 1;
        }
        for report in &reports {
            self.weights.extend(report.changing.clone());
        }
        for report in reports.into_iter().filter(|report| report.measured) {
            if self.depths.len() < report.steps.len() {
                self.depths
                    .resize(report.steps.len(), StepReport::default());
            }
            for (sum, step) in self.depths.iter_mut().zip(&report.steps) {
                sum.add(step);
            }
        }
    }

    pub(crate) fn add_tokens(&mut self, tokens: u64) {
        self.tokens += tokens;
    }

    pub(crate) fn add_work(&mut self, seconds: f64) {
        self.seconds += seconds;
    }

    /// Mean loss, of the steps in which a position counted.
    pub(crate) fn loss(&self) -> Option<f64> {
        (!self.losses.is_empty()).then(|| mean(&self.losses))
    }

    fn alphas(&self) -> Vec<f64> {
        self.depths.iter().map(StepReport::mean_alpha).collect()
    }

    /// The mean of each part of the loss, without its weight. Of one part, whose weight does not change, it says nothing more than the
    /// loss.
    fn parts(&self) -> Vec<(&str, f64)> {
        if self.parts.len() < 2 && self.weights.is_empty() {
            return Vec::new();
        }
        let parts = self.parts.iter();
        let parts = parts.map(|(name, (sum, steps))| (name.as_str(), sum / *steps as f64));
        parts.collect()
    }

    fn agreements(&self) -> Vec<f64> {
        self.depths.iter().map(StepReport::agreement).collect()
    }

    fn recalls(&self) -> Vec<f64> {
        self.depths.iter().map_while(StepReport::recall).collect()
    }
}

/// The parts of the loss of a step, each the mean over the batches that have it by how much their losses are means over.
fn part_means(reports: &[LossReport]) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
    for report in reports {
        for (name, value) in &report.parts {
            let [sum, counted] = sums.entry(name.as_str()).or_default();
            *sum += value * report.counted;
            *counted += report.counted;
        }
    }
    let counts = sums.into_iter().filter(|(_, [_, counted])| *counted > 0.0);
    counts
        .map(|(name, [sum, counted])| (name.to_owned(), sum / counted))
        .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Where a run's figures go.
pub(crate) struct Log {
    bar: Option<ProgressBar>,
    events: Events,
    metrics: Option<Metrics>,
    steps: usize,
    /// Seconds per step of the last interval, for the time left.
    pace: f64,
}

impl Log {
    /// Of a training of `steps`, of which `done` are behind it; its figures go to `folder/events`.
    pub(crate) fn new(steps: usize, done: usize, folder: &Path) -> Self {
        let wanted = tracing::enabled!(tracing::Level::INFO);
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| {
            let style = "{bar:30} step {pos}/{len} {msg} {eta} left";
            let bar = ProgressBar::new(steps as u64);
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            bar
        });
        let folder = folder.join("events");
        let mut events = Events::start(&folder, done);
        let metrics = Metrics::resume(&folder, done);
        let metrics = metrics.inspect_err(|error| events.warn(error, &folder));
        Self {
            bar,
            events,
            metrics: metrics.ok(),
            steps,
            pace: 0.0,
        }
    }

    /// Drops what the metrics say of a validation of the step that training goes on from: it is made again.
    pub(crate) fn forget_validation(&mut self, step: usize) {
        if let Some(metrics) = &mut self.metrics
            && let Err(error) = metrics.forget_validation(step)
        {
            self.events.warn(&error, metrics.path());
        }
    }

    pub(crate) fn tick(&self, step: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(step as u64);
        }
    }

    pub(crate) fn interval(
        &mut self,
        step: usize,
        interval: &Interval,
        learning_rate: f64,
        memory: Option<DeviceMemory>,
    ) {
        let seconds = interval.seconds;
        let rate = interval.tokens as f64 / seconds.max(1e-9);
        let Some(loss) = interval.loss() else {
            return self.say(format!(
                "step {step}/{}: by chance no position of these batches counts",
                self.steps
            ));
        };
        let norm = mean(&interval.norms);
        let alphas = interval.alphas();
        self.pace = seconds / interval.losses.len().max(1) as f64;
        let left = self.pace * (self.steps - step) as f64;
        let shown = shown(&alphas);
        match &self.bar {
            Some(bar) => bar.set_message(format!("{rate:.0} tokens/s loss {loss:.3}{shown}")),
            None => tracing::info!(
                "step {step}/{} loss {loss:.4}{shown} norm {norm:.3} lr {learning_rate:.2e} {rate:.0} tokens/s {left:.0} s left",
                self.steps
            ),
        }
        self.scalar("train/loss", loss, step);
        self.scalar("train/gradient_norm", norm, step);
        self.scalar("train/learning_rate", learning_rate, step);
        self.scalar("train/tokens_per_second", rate, step);
        self.by_depth("train/alpha", &alphas, step);
        self.by_depth("train/agreement", &interval.agreements(), step);
        self.by_depth("train/recall", &interval.recalls(), step);
        for (name, part) in interval.parts() {
            self.scalar(&format!("loss/{name}"), part, step);
        }
        for (name, weight) in &interval.weights {
            self.scalar(&format!("weight/{name}"), *weight, step);
        }
        if let Some(DeviceMemory { in_use, reserved }) = memory {
            self.scalar("device/memory_bytes", in_use as f64, step);
            self.scalar("device/reserved_bytes", reserved as f64, step);
        }
        self.flush(step);
    }

    /// A validation, with how many in a row found no better weights where that is counted; `best` is what was best before.
    pub(crate) fn validation(
        &mut self,
        step: usize,
        (found, without_better): (&Validation, Option<usize>),
        best: Option<&(usize, Validation)>,
    ) {
        self.say(format!("step {step} validation:{}", measured(found, best)));
        if found.has_loss() {
            self.scalar("validation/loss", found.loss, step);
        }
        if let Some(tau) = found.simulated_tau {
            self.scalar("validation/simulated_tau", tau, step);
        }
        if let Some(tau) = found.tau {
            self.scalar("validation/tau", tau, step);
        }
        if let Some([low, high]) = found.tau_ci95 {
            self.scalar("validation/tau_low", low, step);
            self.scalar("validation/tau_high", high, step);
        }
        self.by_depth("validation/conditional", &found.conditional, step);
        self.by_depth("validation/alpha", &found.alpha, step);
        self.by_depth("validation/agreement", &found.agreement, step);
        self.by_depth("validation/recall", &found.recall, step);
        if let Some(text) = found.text {
            self.scalar("text/likeliest", text.likeliest, step);
            self.scalar("text/excess_surprise", text.excess_surprise, step);
        }
        if let Some(without_better) = without_better {
            self.scalar("validation/without_better", without_better as f64, step);
        }
        self.flush(step);
    }

    /// Shows a line.
    pub(crate) fn say(&self, line: String) {
        match &self.bar {
            Some(bar) => bar.println(&line),
            None => tracing::info!("{line}"),
        }
    }

    pub(crate) fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.events.flush();
    }

    /// A figure of each draft step, the first of which is 1.
    fn by_depth(&mut self, tag: &str, values: &[f64], step: usize) {
        for (depth, value) in values.iter().enumerate() {
            self.scalar(&format!("{tag}_{}", depth + 1), *value, step);
        }
    }

    fn scalar(&mut self, tag: &str, value: f64, step: usize) {
        self.events.scalar(tag, value, step);
        if let Some(metrics) = &mut self.metrics {
            metrics.scalar(tag, value);
        }
    }

    fn flush(&mut self, step: usize) {
        self.events.flush();
        if let Some(metrics) = &mut self.metrics
            && let Err(error) = metrics.flush(step)
        {
            self.events.warn(&error, metrics.path());
        }
    }
}

/// ` loss 2.0134 simulated τ 2.912 τ 3.120 … conditional α .61 .52 .47`, or as much of it as was measured.
fn measured(found: &Validation, best: Option<&(usize, Validation)>) -> String {
    let mut text = String::new();
    if found.has_loss() {
        text += &format!(" loss {:.4}", found.loss);
    }
    if let Some(tau) = found.simulated_tau {
        text += &format!(" simulated τ {tau:.3}");
    }
    text += &decoded(found, best);
    if !found.conditional.is_empty() {
        text += &format!(" conditional{}", shown(&found.conditional));
    }
    if text.is_empty() {
        text += " nothing was measured";
    }
    text
}

/// ` τ 3.120 [3.01, 3.23] (+0.140 [+0.08, +0.20] on step 200: taken)`, or as much of it as is known.
fn decoded(found: &Validation, best: Option<&(usize, Validation)>) -> String {
    let Some(tau) = found.tau else {
        return String::new();
    };
    let mut text = format!(" τ {tau:.3}");
    if let Some([low, high]) = found.tau_ci95 {
        text += &format!(" [{low:.2}, {high:.2}]");
    }
    if let (Some(Gain { tau, ci95 }), Some((step, best))) = (found.gain, best) {
        let [low, high] = ci95;
        let verdict = match is_better(found, Some(best)) {
            true if low > 0.0 => "taken",
            true => "as good, with less loss: taken",
            false if high < 0.0 => "worse",
            false => "not surely better",
        };
        text += &format!(" ({tau:+.3} [{low:+.2}, {high:+.2}] on step {step}: {verdict})");
    }
    text
}

/// ` α .61 .52 .47`, or nothing. Of many only the first: the events and the metrics have all.
fn shown(alphas: &[f64]) -> String {
    if alphas.is_empty() {
        return String::new();
    }
    let first = alphas.iter().take(SHOWN);
    let parts: Vec<String> = first.map(|alpha| format!("{alpha:.3}")).collect();
    let more = match alphas.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" … {more} more"),
    };
    format!(" α {}{more}", parts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_first_of_many_acceptance_rates() {
        assert_eq!(shown(&[]), "");
        let all = " α 0.500 0.500 0.500 0.500 0.500";
        assert_eq!(shown(&[0.5; SHOWN]), all);
        assert_eq!(shown(&[0.5; 15]), format!("{all} … 10 more"));
    }

    #[test]
    fn what_is_measured_of_each_draft_step_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::new(8, 0, folder.path());
        let step = StepReport {
            count: 4,
            alpha: 2.0,
            correct: 1.0,
            recalled: Some(3),
            ..StepReport::default()
        };
        let interval = Interval {
            losses: vec![1.0],
            norms: vec![1.0],
            depths: vec![step, step],
            ..Interval::default()
        };
        log.interval(4, &interval, 1e-3, None);
        let found = Validation {
            alpha: vec![0.5],
            agreement: vec![0.25],
            recall: vec![0.75],
            ..Validation::default()
        };
        log.validation(4, (&found, None), None);
        let text = std::fs::read_to_string(folder.path().join("events/metrics.jsonl")).unwrap();
        let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        let lines: Vec<_> = text.lines().map(read).collect();
        for (line, of) in lines.iter().zip(["train", "validation"]) {
            let found = ["alpha", "agreement", "recall"].map(|figure| {
                let tag = format!("{of}/{figure}_1");
                line[tag.as_str()].as_f64()
            });
            assert_eq!(found, [0.5, 0.25, 0.75].map(Some), "{of}");
        }
        assert_eq!(lines[0]["train/recall_2"], 0.75);
    }

    /// What a batch is told of that `counted` so much.
    fn report(counted: f64, parts: &[(&str, f64)], changing: &[(&str, f64)]) -> LossReport {
        let owned = |named: &[(&str, f64)]| -> BTreeMap<String, f64> {
            let named = named.iter().copied();
            named
                .map(|(name, value)| (name.to_owned(), value))
                .collect()
        };
        LossReport {
            total: 1.0,
            terms: 0.0,
            parts: owned(parts),
            changing: owned(changing),
            counted,
            steps: Vec::new(),
            measured: false,
            simulated_tau: 1.0,
            chains: 0,
        }
    }

    #[test]
    fn parts_of_the_loss_are_means_over_the_steps_that_have_them() {
        let mut interval = Interval::default();
        let labels = ("labels", 2.0);
        // Of 1 and 3 positions, and a batch without any.
        let first = vec![
            report(1.0, &[labels, ("base", 8.0)], &[("base", 0.5)]),
            report(3.0, &[("labels", 6.0)], &[("base", 0.5)]),
            report(0.0, &[("labels", 70.0), ("selector", 1.0)], &[]),
        ];
        interval.add(1.0, 1.0, first);
        interval.add(1.0, 1.0, vec![report(2.0, &[labels], &[("base", 0.0)])]);
        // A state holds them, so that the next line says the same as without a stop.
        let saved = serde_json::to_string(&interval).unwrap();
        let interval: Interval = serde_json::from_str(&saved).unwrap();
        assert_eq!(interval.parts(), [("base", 8.0), ("labels", 3.5)]);
        let folder = tempfile::tempdir().unwrap();
        Log::new(8, 0, folder.path()).interval(2, &interval, 1e-3, None);
        let line = std::fs::read_to_string(folder.path().join("events/metrics.jsonl")).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let found = ["loss/base", "loss/labels", "weight/base"].map(|tag| line[tag].as_f64());
        assert_eq!(found, [8.0, 3.5, 0.0].map(Some));
        assert!(line.get("loss/selector").is_none(), "{line}");
    }

    #[test]
    fn the_only_part_of_a_loss_is_told_where_its_weight_changes() {
        let told = |changing: &[(&str, f64)]| {
            let mut interval = Interval::default();
            interval.add(1.0, 1.0, vec![report(1.0, &[("teacher", 2.0)], changing)]);
            let parts = interval.parts().into_iter();
            let owned = parts.map(|(name, part)| (name.to_owned(), part));
            owned.collect::<Vec<_>>()
        };
        assert_eq!(told(&[]), []);
        assert_eq!(told(&[("teacher", 0.5)]), [("teacher".to_owned(), 2.0)]);
        // A state of an earlier version has none.
        let earlier = r#"{"losses":[1.0],"norms":[1.0],"depths":[],"tokens":3,"seconds":1.0}"#;
        let earlier: Interval = serde_json::from_str(earlier).unwrap();
        assert_eq!((earlier.loss(), earlier.parts()), (Some(1.0), vec![]));
    }

    #[test]
    fn a_validation_tells_what_it_has_measured() {
        let best = Validation {
            loss: f64::NAN,
            tau: Some(2.0),
            ..Validation::default()
        };
        let found = Validation {
            loss: f64::NAN,
            tau: Some(2.5),
            tau_ci95: Some([2.25, 2.75]),
            gain: Some(Gain {
                tau: 0.5,
                ci95: [0.25, 0.75],
            }),
            ..Validation::default()
        };
        let expected = " τ 2.500 [2.25, 2.75] (+0.500 [+0.25, +0.75] on step 3: taken)";
        assert_eq!(measured(&found, Some(&(3, best))), expected);
        let whole = Validation {
            loss: 1.5,
            alpha: vec![0.5],
            conditional: vec![0.25],
            simulated_tau: Some(1.25),
            ..found.clone()
        };
        let expected = " loss 1.5000 simulated τ 1.250 τ 2.500 [2.25, 2.75] conditional α 0.250";
        assert_eq!(measured(&whole, None), expected);
        let nothing = Validation { tau: None, ..found };
        assert_eq!(measured(&nothing, None), " nothing was measured");
    }
}
