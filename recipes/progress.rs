//! Progress of a stage: a bar on a terminal, lines elsewhere.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use spectrain_checkpoints::printable_lines;
pub use spectrain_data::words::counted;

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Where progress goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Bars on standard error.
    Bars,
    /// Lines on standard error.
    Lines,
    /// Nowhere.
    Quiet,
}

impl Output {
    /// Bars if standard error is a terminal, lines if not.
    pub fn detect() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars
        } else {
            Self::Lines
        }
    }

    /// Starts to show the progress of `what`, which takes `total` units; 0 if that is not known.
    pub fn start(self, what: &str, total: u64) -> Progress {
        let bar = (self == Self::Bars).then(|| bar(what, total));
        Progress {
            what: what.to_owned(),
            output: self,
            bar,
            total,
            position: 0,
            started: Instant::now(),
            shown: Instant::now(),
        }
    }

    /// Says something between two bars.
    pub fn say(self, message: impl Display) {
        if self != Self::Quiet {
            tell(message);
        }
    }

    /// Says what the user should know in any case.
    pub fn warn(self, message: impl Display) {
        tell(format!("warning: {message}"));
    }
}

/// Whether what goes to a terminal, or to something else, has colours: not where `NO_COLOR` is set (<https://no-color.org>).
pub fn has_colours(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

/// Writes a line to standard error. Where that cannot be written to there is nobody to tell, and no reason to stop.
pub fn tell(message: impl Display) {
    let message = message.to_string();
    let _ = writeln!(std::io::stderr(), "{}", printable_lines(&message));
}

/// Writes a question to standard error, behind which the answer is typed.
pub fn ask(question: &str) {
    let mut out = std::io::stderr();
    let _ = write!(out, "{}", printable_lines(question)).and_then(|()| out.flush());
}

/// Writes results to standard output. A reader who has seen enough is no error.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a result for programs.
pub fn print_json(value: &Value) -> Result<()> {
    print(format!("{value:#}\n"))
}

fn bar(what: &str, total: u64) -> ProgressBar {
    let (bar, template) = match total {
        0 => (
            ProgressBar::new_spinner(),
            "{spinner} {prefix} {pos} {elapsed} {wide_msg}",
        ),
        _ => (
            ProgressBar::new(total),
            "{prefix:>9} {bar:30} {pos}/{len} {elapsed}<{eta} {wide_msg}",
        ),
    };
    // A template that does not parse would only cost the look of the bar.
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_prefix(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// The progress of one stage.
#[derive(Debug)]
pub struct Progress {
    what: String,
    output: Output,
    bar: Option<ProgressBar>,
    total: u64,
    position: u64,
    started: Instant,
    shown: Instant,
}

impl Progress {
    /// Sets how many units it takes, where more have come to light.
    pub fn extend_to(&mut self, total: u64) {
        if total == self.total {
            return;
        }
        self.total = total;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
        }
    }

    /// Sets how many units are done, and a short text: loss, rate.
    pub fn set(&mut self, position: u64, message: impl Display) {
        self.position = position;
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            bar.set_message(printable_lines(&message.to_string()));
        }
        if self.output == Output::Lines && self.shown.elapsed() >= LINE_EVERY {
            self.shown = Instant::now();
            tell(self.line(&message.to_string()));
        }
    }

    /// How far it is, with a short text where there is one.
    fn line(&self, message: &str) -> String {
        let of = match self.total {
            0 => String::new(),
            total => format!("/{total}"),
        };
        let comma = if message.is_empty() { "" } else { ", " };
        let seconds = self.started.elapsed().as_secs();
        let (what, position) = (&self.what, self.position);
        format!("{what}: {position}{of}, {seconds} s{comma}{message}")
    }

    /// One unit more.
    pub fn step(&mut self, message: impl Display) {
        self.set(self.position + 1, message);
    }

    /// Ends it with what was done.
    pub fn finish(self, message: impl Display) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.started.elapsed().as_secs_f64();
        self.output
            .say(format!("{}: {message} ({seconds:.1} s)", self.what));
    }
}

impl Drop for Progress {
    /// An error ends a stage without [`Self::finish`]; the bar must not stay in the way of its message.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_ends_with_its_last_word() {
        let mut progress = Output::Quiet.start("regenerate", 300);
        progress.set(113, "");
        assert_eq!(progress.line(""), "regenerate: 113/300, 0 s");
        let told = progress.line("2 failed");
        assert_eq!(told, "regenerate: 113/300, 0 s, 2 failed");
        progress.extend_to(0);
        assert_eq!(progress.line(""), "regenerate: 113, 0 s");
    }
}
