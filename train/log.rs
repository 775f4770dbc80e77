//! What a run shows and writes while it trains: a progress bar on a terminal, a line per interval elsewhere,
//! TensorBoard events, and the same figures for programs.
use std::io::IsTerminal;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::events::Events;
use crate::metrics::Metrics;
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
    /// Tokens trained on, and the seconds that took.
    tokens: u64,
    seconds: f64,
}

impl Interval {
    pub(crate) fn add(&mut self, loss: f64, norm: f64, reports: Vec<LossReport>) {
        self.losses.push(loss);
        self.norms.push(norm);
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
        let alpha = |step: &StepReport| step.alpha / step.count.max(1) as f64;
        self.depths.iter().map(alpha).collect()
    }
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
        let mut events = Events::start(&folder);
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
        for (depth, alpha) in alphas.into_iter().enumerate() {
            self.scalar(&format!("train/alpha_{}", depth + 1), alpha, step);
        }
        if let Some(DeviceMemory { in_use, reserved }) = memory {
            self.scalar("device/memory_bytes", in_use as f64, step);
            self.scalar("device/reserved_bytes", reserved as f64, step);
        }
        self.flush(step);
    }

    pub(crate) fn validation(
        &mut self,
        step: usize,
        found: &Validation,
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
        for (depth, alpha) in found.conditional.iter().enumerate() {
            self.scalar(
                &format!("validation/conditional_{}", depth + 1),
                *alpha,
                step,
            );
        }
        for (depth, alpha) in found.alpha.iter().enumerate() {
            self.scalar(&format!("validation/alpha_{}", depth + 1), *alpha, step);
        }
        self.flush(step);
    }

    fn say(&self, line: String) {
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
