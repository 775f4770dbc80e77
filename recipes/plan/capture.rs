//! How fast servers hand out hidden states, measured by asking for some.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::data::TrainingData;
use super::estimate::Estimate;
use super::words::{count, duration};
use crate::errors::with_causes;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::FeatureMode;
use crate::runtime::capture::server::{Asked, CaptureServer, CaptureSettings};
use crate::runtime::capture::servers::settings;
use crate::runtime::server::client::reason;
use crate::runtime::sizes::Sizes;

/// Tokens of a text by which a server is measured, at most.
const LONGEST: usize = 4096;
/// Seconds that one of these requests may take.
const TIMEOUT: u64 = 60;

/// What the servers of a recipe take to hand out what is trained on.
pub(super) struct CapturePlan {
    servers: Vec<Measured>,
    /// Tokens of a text by which they were measured.
    length: usize,
    /// Tokens whose states are asked for, where the data is known.
    tokens: Option<u64>,
}

/// A server, and how many tokens a second it hands out, or why it hands out none.
struct Measured {
    url: String,
    speed: Result<f64>,
}

impl CapturePlan {
    /// Asks the servers of a recipe, all at once, each as many requests at a time as a run would; none where it has no servers.
    ///
    /// # Errors
    /// The recipe does not say how they are asked.
    pub(super) fn measure(
        recipe: &ResolvedRecipe,
        data: &TrainingData,
        sizes: &Sizes,
        estimate: Option<&Estimate>,
    ) -> Result<Option<Self>> {
        let mode = recipe.features.mode;
        if !matches!(mode, FeatureMode::Served | FeatureMode::Streamed)
            || recipe.target.server.is_empty()
        {
            return Ok(None);
        }
        let layers = recipe.method.capture(&sizes.spec)?;
        let mut settings = settings(&recipe.target, &recipe.features, &layers, &sizes.spec)?;
        settings.timeout = settings.timeout.min(Duration::from_secs(TIMEOUT));
        let length = data.counted_sample().map(|tokens| tokens as usize);
        let length = length.unwrap_or(recipe.data.max_length).clamp(1, LONGEST);
        let text = Text {
            length,
            vocab: sizes.spec.vocab as u32,
        };
        let (under_way, text) = (recipe.features.under_way, &text);
        let servers = thread::scope(|scope| {
            let servers = recipe.target.server.iter();
            let asked: Vec<_> = servers
                .map(|url| {
                    let settings = settings.clone();
                    scope.spawn(move || Measured {
                        speed: speed(url, settings, text, under_way),
                        url: url.clone(),
                    })
                })
                .collect();
            asked.into_iter().map(joined).collect()
        });
        let tokens = match mode {
            FeatureMode::Streamed => estimate.and_then(|estimate| estimate.train_tokens),
            _ => estimate.and_then(|estimate| estimate.data_tokens),
        };
        Ok(Some(Self {
            servers,
            length,
            tokens,
        }))
    }

    /// Tokens a second of all servers that answer.
    fn speed(&self) -> Option<f64> {
        let speeds = self.servers.iter().filter_map(|of| of.speed.as_ref().ok());
        let speed: f64 = speeds.sum();
        (speed > 0.0).then_some(speed)
    }

    /// How long they take for all that is trained on, where both are known.
    pub(super) fn seconds(&self) -> Option<f64> {
        Some(self.tokens? as f64 / self.speed()?)
    }

    /// For people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut texts: Vec<String> = Vec::new();
        for Measured { url, speed } in &self.servers {
            texts.push(match speed {
                Ok(speed) => format!(
                    "`{url}`: {} tokens/s, measured with texts of {} tokens",
                    count(*speed as u64),
                    self.length
                ),
                Err(error) => format!("`{url}`: not measured: {}", with_causes(error)),
            });
        }
        let mut lines = said_once(&texts);
        lines.push(match (self.tokens, self.seconds()) {
            (Some(tokens), Some(seconds)) => {
                format!("{} for {} tokens", duration(seconds), count(tokens))
            }
            (None, _) => "the time is known once `data.train` is there".into(),
            (_, None) => "the time is known once a server answers".into(),
        });
        lines
    }

    /// The same for programs.
    pub(super) fn json(&self) -> Value {
        let server = |Measured { url, speed }: &Measured| match speed {
            Ok(speed) => json!({"url": url, "tokens_per_second": speed}),
            Err(error) => json!({"url": url, "error": with_causes(error)}),
        };
        json!({
            "servers": self.servers.iter().map(server).collect::<Vec<_>>(),
            "tokens_per_text": self.length,
            "tokens": self.tokens,
            "seconds": self.seconds(),
        })
    }
}

/// The lines of texts, without further lines of a text that one before it has too, such as the command that starts a server.
fn said_once(texts: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        for (place, line) in text.lines().enumerate() {
            if place == 0 || !lines.iter().any(|said| said == line) {
                lines.push(line.to_owned());
            }
        }
    }
    lines
}

/// What is asked for: tokens drawn anew for each request, so that no server has them already.
struct Text {
    length: usize,
    vocab: u32,
}

impl Text {
    fn draw(&self, longest: Option<usize>) -> Asked {
        let mut rng = rand::rng();
        // A server adds a token of its own.
        let length = longest.map_or(self.length, |longest| {
            self.length.min(longest.saturating_sub(1).max(1))
        });
        let tokens = (0..length).map(|_| rng.random_range(0..self.vocab));
        Asked {
            tokens: tokens.collect(),
            ..Asked::default()
        }
    }
}

/// Tokens a second of a server that has so many requests at a time, after one that warms it up.
fn speed(url: &str, settings: CaptureSettings, text: &Text, under_way: usize) -> Result<f64> {
    let server = CaptureServer::connect(url, settings)?;
    let ask = || -> Result<usize> {
        let asked = text.draw(server.longest);
        let captured = server.capture(&asked);
        captured.map_err(|failure| Error::msg(reason(failure)))?;
        Ok(asked.tokens.len())
    };
    ask()?;
    let started = Instant::now();
    let tokens = thread::scope(|scope| {
        let asked: Vec<_> = (0..under_way).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(joined).sum::<Result<usize>>()
    });
    Ok(tokens? as f64 / started.elapsed().as_secs_f64())
}

/// What a thread returns.
pub(super) fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_starts_a_server_is_shown_whole_and_once() {
        let silent = |url: &str| Measured {
            url: url.to_owned(),
            speed: Err(Error::msg(
                "refused; this command starts a server:\n  vllm serve m --x\nwithout --x it has no states",
            )),
        };
        let plan = CapturePlan {
            servers: vec![silent("http://a"), silent("http://b")],
            length: 4,
            tokens: None,
        };
        let expected = [
            "`http://a`: not measured: refused; this command starts a server:",
            "  vllm serve m --x",
            "without --x it has no states",
            "`http://b`: not measured: refused; this command starts a server:",
        ];
        assert_eq!(plan.lines()[..4], expected);
        assert_eq!(plan.lines().len(), 5);
    }
}
