//! The figures that a training logs, read as they come.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

/// Lines that the pace is taken from, and validations that the time of one is.
const LATEST: usize = 12;

/// What a training has logged so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    /// The last step that a line is about.
    pub(super) step: u64,
    /// Steps and losses.
    pub(super) loss: Vec<(f64, f64)>,
    /// Steps and losses on held-out conversations.
    pub(super) held_out: Vec<(f64, f64)>,
    /// What validations found of τ.
    pub(super) taus: Vec<Tau>,
    /// α of each draft step in training, as last logged.
    pub(super) alphas: Vec<f64>,
    /// As last logged.
    pub(super) tokens_per_second: Option<f64>,
    /// The last lines.
    latest: Vec<Logged>,
    /// Steps of the validations, and the seconds that they took, where the lines say that.
    validations: Vec<(u64, Option<f64>)>,
}

/// When a line was logged.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Logged {
    step: u64,
    /// Seconds since 1970.
    time: f64,
    /// Whether a validation logged it, which logs last.
    by_validation: bool,
}

/// What a validation found of τ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tau {
    /// After how many steps.
    pub(super) step: u64,
    /// Mean acceptance length.
    pub(super) tau: f64,
    /// Its 95 % interval over prompts, where prompts were decoded.
    pub(super) interval: Option<(f64, f64)>,
    /// Whether it was decoded, not simulated.
    pub(super) decoded: bool,
}

impl Figures {
    /// Adds a line; one that is no JSON object is left out.
    fn add(&mut self, line: &str) {
        let Ok(line) = serde_json::from_str::<Map<String, Value>>(line) else {
            return;
        };
        let number = |key: &str| line.get(key).and_then(Value::as_f64);
        let Some(step) = line.get("step").and_then(Value::as_u64) else {
            return;
        };
        self.step = step;
        if let Some(time) = number("time") {
            let by_validation = line.keys().any(|key| key.starts_with("validation/"));
            self.note(Logged {
                step,
                time,
                by_validation,
            });
        }
        let at = |value: f64| (step as f64, value);
        self.loss.extend(number("train/loss").map(at));
        self.held_out.extend(number("validation/loss").map(at));
        self.tokens_per_second = number("train/tokens_per_second").or(self.tokens_per_second);
        let depths = (1..).map_while(|depth| number(&format!("train/alpha_{depth}")));
        let alphas: Vec<f64> = depths.collect();
        if !alphas.is_empty() {
            self.alphas = alphas;
        }
        let decoded = number("validation/tau");
        if let Some(tau) = decoded.or(number("validation/simulated_tau")) {
            let ends = number("validation/tau_low").zip(number("validation/tau_high"));
            self.taus.push(Tau {
                step,
                tau,
                interval: ends,
                decoded: decoded.is_some(),
            });
        }
    }

    /// Remembers when a line was logged.
    fn note(&mut self, line: Logged) {
        if line.by_validation {
            let seconds = self.seconds_of_validation(line);
            self.validations.push((line.step, seconds));
        }
        self.latest.push(line);
        let over = self.latest.len().saturating_sub(LATEST);
        self.latest.drain(..over);
    }

    /// Seconds between a validation's line and the one before it, but for those of the steps between them.
    fn seconds_of_validation(&self, line: Logged) -> Option<f64> {
        let before = self.latest.last()?;
        let steps = match line.step.checked_sub(before.step)? {
            0 => 0.0,
            steps => steps as f64 * self.pace()?,
        };
        Some((line.time - before.time - steps).max(0.0))
    }

    /// Seconds that a step takes: the median between neighbouring lines, so that the time for which a training was stopped does not
    /// count. Nothing of lines of fewer than two steps.
    fn pace(&self) -> Option<f64> {
        let between = |lines: &[Logged], with_validations: bool| {
            let [from, to] = lines else {
                return None;
            };
            let steps = to.step.checked_sub(from.step).filter(|&steps| steps > 0)?;
            let counts = with_validations || !to.by_validation;
            counts.then(|| (to.time - from.time).max(0.0) / steps as f64)
        };
        let paces = |with_validations: bool| {
            let lines = self.latest.windows(2);
            median(lines.filter_map(|lines| between(lines, with_validations)))
        };
        // Where all lines are those of validations, these are part of the pace.
        paces(false).or_else(|| paces(true))
    }

    /// Seconds of the validations to come until so many steps are done. The last one comes after the last step.
    fn validating(&self, steps: u64) -> f64 {
        let latest = self.validations.iter().rev();
        let known = latest.clone().take(LATEST);
        let Some(seconds) = median(known.filter_map(|(_, seconds)| *seconds)) else {
            return 0.0;
        };
        let mut latest = latest.map(|(step, _)| *step).chain([0, 0]);
        let [last, before] = [latest.next(), latest.next()].map(Option::unwrap_or_default);
        let since = self.step.saturating_sub(last);
        let every = last.saturating_sub(before).max(since).max(1);
        let left = steps.saturating_sub(last).div_ceil(every);
        left as f64 * seconds
    }

    /// Seconds until so many steps are done and validated, seen at a time in seconds since 1970.
    pub(super) fn seconds_left(&self, steps: u64, now: f64) -> Option<f64> {
        let left = steps.saturating_sub(self.step) as f64 * self.pace()? + self.validating(steps);
        Some((left - self.age(now)?).max(0.0))
    }

    /// Seconds since the last line.
    pub(super) fn age(&self, now: f64) -> Option<f64> {
        self.latest.last().map(|line| (now - line.time).max(0.0))
    }
}

/// The middle one of some numbers; of two the smaller one: between a stopped training's last line and the next there is more than
/// work.
fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len().checked_sub(1)? / 2).copied()
}

/// A file of figures that grows.
#[derive(Debug)]
pub(super) struct Followed {
    path: PathBuf,
    /// Bytes that were read.
    read: u64,
    pub(super) figures: Figures,
}

impl Followed {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            read: 0,
            figures: Figures::default(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what has come since the last time. A line that is not whole yet is left for the next time.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub(super) fn update(&mut self) -> Result<()> {
        let Ok(mut file) = File::open(&self.path) else {
            return Ok(());
        };
        let shown = || format!("cannot read `{}`", self.path.display());
        let length = file.metadata().with_context(shown)?.len();
        // A training that goes on from a saved state drops the lines behind it.
        if length < self.read {
            (self.read, self.figures) = (0, Figures::default());
        }
        file.seek(SeekFrom::Start(self.read)).with_context(shown)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(shown)?;
        let whole = bytes
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
            self.figures.add(line);
        }
        self.read += whole as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn lines_are_read_as_they_come_and_anew_where_the_file_was_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut followed = Followed::new(path.clone());
        followed.update().unwrap();
        assert_eq!(followed.figures, Figures::default());
        let mut file = File::create(&path).unwrap();
        let line = |step: u64, loss: f64| {
            format!(
                "{{\"step\":{step},\"time\":{step}.0,\"train/loss\":{loss},\"train/alpha_1\":0.5}}\n"
            )
        };
        let half = line(20, 2.0);
        let (first, second) = half.split_at(9);
        write!(file, "{}{first}", line(10, 3.0)).unwrap();
        followed.update().unwrap();
        assert_eq!(followed.figures.loss, [(10.0, 3.0)]);
        write!(file, "{second}").unwrap();
        followed.update().unwrap();
        assert_eq!(followed.figures.loss, [(10.0, 3.0), (20.0, 2.0)]);
        assert_eq!(followed.figures.alphas, [0.5]);
        assert_eq!(followed.figures.seconds_left(30, 22.0), Some(8.0));
        std::fs::write(&path, line(10, 4.0)).unwrap();
        followed.update().unwrap();
        assert_eq!(followed.figures.loss, [(10.0, 4.0)]);
        assert_eq!(followed.figures.seconds_left(30, 22.0), None);
    }

    /// Seconds left of a training of 100 steps, after each of these lines: who logged it, the step and the time.
    fn left(lines: &[(&str, u64, f64)]) -> Vec<Option<f64>> {
        let mut figures = Figures::default();
        let after = lines.iter().map(|(who, step, time)| {
            figures.add(&format!(
                "{{\"step\":{step},\"time\":{time:?},\"{who}/loss\":1.0}}"
            ));
            figures.seconds_left(100, *time)
        });
        after.collect()
    }

    #[test]
    fn the_time_for_which_a_training_was_stopped_says_nothing_of_its_pace() {
        let left = left(&[
            ("train", 10, 1000.0),
            ("train", 20, 1020.0),
            // Stopped for two hours.
            ("train", 30, 8220.0),
            ("train", 40, 8240.0),
            // Logged more often from then on.
            ("train", 42, 8244.0),
        ]);
        let expected = [None, Some(160.0), Some(140.0), Some(120.0), Some(116.0)];
        assert_eq!(left, expected);
    }

    #[test]
    fn validations_to_come_are_part_of_the_time_that_is_left() {
        // A step takes 2 s, a validation 30 s: there are two after twenty steps each, and one after the last step.
        let left = left(&[
            ("train", 10, 1000.0),
            ("train", 20, 1020.0),
            ("validation", 20, 1050.0),
            ("train", 30, 1070.0),
            ("train", 40, 1090.0),
            ("validation", 40, 1120.0),
            ("train", 100, 1240.0),
            ("validation", 100, 1270.0),
        ]);
        let expected = [280.0, 260.0, 240.0, 210.0, 30.0, 0.0];
        assert_eq!(left[2..], expected.map(Some));
    }

    #[test]
    fn a_validation_between_two_lines_of_the_training_is_none_of_its_steps() {
        let lines = [
            ("train", 10, 1000.0),
            ("train", 20, 1020.0),
            ("validation", 25, 1060.0),
            ("train", 30, 1070.0),
        ];
        assert_eq!(left(&lines)[2..], [240.0, 230.0].map(Some));
        // Where nothing else is logged they are.
        let lines = [("validation", 20, 1000.0), ("validation", 40, 1070.0)];
        assert_eq!(left(&lines), [None, Some(210.0)]);
    }
}
