//! The figures that a training logs, read as they come.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

/// Lines that the pace is taken from.
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
    /// Steps and times, in seconds since 1970, of the last lines.
    latest: Vec<(u64, f64)>,
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
            self.latest.push((step, time));
            let over = self.latest.len().saturating_sub(LATEST);
            self.latest.drain(..over);
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

    /// Seconds that a step takes: the median between neighbouring lines, so that the time for which a training was stopped does not
    /// count. Nothing of lines of fewer than two steps.
    fn pace(&self) -> Option<f64> {
        let between = |lines: &[(u64, f64)]| {
            let [(from, start), (to, end)] = lines else {
                return None;
            };
            let steps = to.checked_sub(*from).filter(|&steps| steps > 0)?;
            Some((end - start).max(0.0) / steps as f64)
        };
        let mut paces: Vec<f64> = self.latest.windows(2).filter_map(between).collect();
        paces.sort_by(f64::total_cmp);
        // Of two the smaller one: between a stopped training's last line and the next there is more than steps.
        paces.get(paces.len().checked_sub(1)? / 2).copied()
    }

    /// Seconds until so many steps are done, seen at a time in seconds since 1970.
    pub(super) fn seconds_left(&self, steps: u64, now: f64) -> Option<f64> {
        let left = steps.saturating_sub(self.step) as f64 * self.pace()?;
        Some((left - self.age(now)?).max(0.0))
    }

    /// Seconds since the last line.
    pub(super) fn age(&self, now: f64) -> Option<f64> {
        self.latest.last().map(|(_, time)| (now - time).max(0.0))
    }
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

    #[test]
    fn the_time_for_which_a_training_was_stopped_says_nothing_of_its_pace() {
        let mut figures = Figures::default();
        let mut log = |step: u64, time: f64| {
            figures.add(&format!("{{\"step\":{step},\"time\":{time:?}}}"));
            figures.seconds_left(100, time)
        };
        assert_eq!(log(10, 1000.0), None);
        // A validation's own line is of the same step.
        assert_eq!(log(10, 1003.0), None);
        assert_eq!(log(20, 1023.0), Some(160.0));
        // Stopped for two hours.
        assert_eq!(log(30, 8223.0), Some(140.0));
        assert_eq!(log(40, 8243.0), Some(120.0));
        // Logged more often from then on.
        assert_eq!(log(42, 8247.0), Some(116.0));
    }
}
