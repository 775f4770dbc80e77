//! Whether a target wrote the texts that it is said to have written.
use burn::prelude::*;
use burn::tensor::activation::{log_softmax, softmax};
use spectrain_checkpoints::Mismatch;
use spectrain_models::Sampling;

use crate::error::{Error, Result};
use crate::estimate::text::OwnText;
use crate::texts::report::TextsReport;
use crate::verify::rows::{are_most_likely, host_rows, processed};

/// Tokens from which it is told.
pub const ENOUGH: u64 = 2000;
/// The least share of likeliest tokens in texts of temperature 0. Features in 16 bits turn a few close calls.
pub const LEAST_LIKELIEST: f64 = 0.95;
/// The most that a token of texts above temperature 0 may surprise more than it should, in nats, where chance does not
/// explain it. Weights and features in few bits add hundredths.
const MOST_EXCESS: f64 = 0.05;
/// Standard errors that chance explains.
const BY_CHANCE: f64 = 4.0;

/// What texts are the target's own, in the words of errors.
pub(super) fn written_at(temperature: impl std::fmt::Display) -> String {
    format!(
        "texts that the target wrote at temperature {temperature} (`spectrain data regenerate` lets it write them)"
    )
}

/// Counts over the tokens of texts.
pub(super) struct Own {
    sampling: Sampling,
    tokens: u64,
    /// Tokens that are the target's likeliest.
    likeliest: u64,
    /// Tokens that the target cannot have drawn.
    impossible: u64,
    /// Over the others, the sum of how much more surprising than expected each is, `-ln p(y) - H(p)`.
    excess: f64,
    /// Its variance if the target drew them.
    variance: f64,
}

impl Own {
    /// Of texts whose tokens are said to be chosen in this way.
    pub(super) fn new(sampling: Sampling) -> Self {
        Self {
            sampling,
            tokens: 0,
            likeliest: 0,
            impossible: 0,
            excess: 0.0,
            variance: 0.0,
        }
    }

    /// Looks at one more text; its first token, which the prompt's pass gives, is left out.
    pub(super) fn add(&mut self, text: &OwnText) -> Result<()> {
        text.judged(&mut |tokens, logits| self.look(tokens, logits))
    }

    /// Looks at some more tokens, each with its row of the target's logits, `[tokens, vocab]`.
    pub(super) fn look(&mut self, tokens: &[u32], logits: Tensor<2>) -> Result<()> {
        self.tokens += tokens.len() as u64;
        let is_restricted = self.sampling.top_k > 0 || self.sampling.top_p < 1.0;
        if self.sampling.is_greedy() {
            self.add_greedy(logits, tokens)
        } else if is_restricted {
            self.add_restricted(logits, tokens)
        } else {
            self.add_drawn(logits, tokens)
        }
    }

    fn add_greedy(&mut self, logits: Tensor<2>, tokens: &[u32]) -> Result<()> {
        let found = are_most_likely(tokens, logits)?;
        self.likeliest += found.into_iter().filter(|same| *same).count() as u64;
        Ok(())
    }

    fn add_drawn(&mut self, logits: Tensor<2>, tokens: &[u32]) -> Result<()> {
        let ids: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
        let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &logits.device());
        let scaled = logits / self.sampling.temperature;
        let log_p = log_softmax(scaled.clone(), 1);
        let p = softmax(scaled, 1);
        let own = log_p.clone().gather(1, ids.reshape([tokens.len(), 1]));
        // What cannot be drawn adds nothing to what is expected.
        let log_p = log_p.clamp_min(-100.0);
        let first = (p.clone() * log_p.clone()).sum_dim(1);
        let second = (p * log_p.square()).sum_dim(1);
        let host = host_rows(Tensor::cat(vec![own, first, second], 1))?;
        for &[own, first, second] in host.as_chunks::<3>().0 {
            self.add_token([own, first, second].map(f64::from))?;
        }
        Ok(())
    }

    fn add_restricted(&mut self, logits: Tensor<2>, tokens: &[u32]) -> Result<()> {
        let width = logits.dims()[1];
        let host = host_rows(logits)?;
        for (row, (logits, &token)) in host.chunks(width).zip(tokens).enumerate() {
            let p = processed(logits, row, &self.sampling)?;
            let possible = || p.iter().filter(|&&p| p > 0.0);
            let first = possible().map(|p| p * p.ln()).sum();
            let second = possible().map(|p| p * p.ln() * p.ln()).sum();
            self.add_token([p[token as usize].ln(), first, second])?;
        }
        Ok(())
    }

    /// One more token, with `ln p` of it and the mean and the mean square of `ln p` over what could have been drawn.
    fn add_token(&mut self, [own, first, second]: [f64; 3]) -> Result<()> {
        if own.is_nan() || !first.is_finite() || !second.is_finite() {
            return Err(Error::Logits { row: 0 });
        }
        if own == f64::NEG_INFINITY {
            self.impossible += 1;
        } else {
            self.excess += first - own;
            self.variance += (second - first * first).max(0.0);
        }
        Ok(())
    }

    /// Whether that are tokens enough for a verdict before all were looked at.
    pub(super) fn is_enough(&self) -> bool {
        self.tokens >= ENOUGH
    }

    /// Fails where the target did not write them.
    pub(super) fn check(&self) -> Result<()> {
        match self.amiss() {
            None => Ok(()),
            Some(found) => Err(Error::Setting {
                key: "features",
                mismatch: Mismatch::new(written_at(self.sampling.temperature), found),
            }),
        }
    }

    /// What texts are these that the target surely did not write; nothing where it may have.
    pub(super) fn amiss(&self) -> Option<String> {
        if self.sampling.is_greedy() {
            let found = || {
                format!(
                    "texts in which {:.1} % of {} tokens are its likeliest",
                    100.0 * self.likeliest(),
                    self.tokens
                )
            };
            return self.is_too_few(self.likeliest).then(found);
        }
        if self.is_too_few(self.tokens - self.impossible) {
            return Some(format!(
                "texts in which {:.1} % of the tokens cannot be drawn",
                100.0 * self.share(self.impossible)
            ));
        }
        let (excess, errors) = (self.excess_surprise(), self.standard_errors());
        let is_beyond_chance = excess.abs() > MOST_EXCESS && errors.abs() > BY_CHANCE;
        is_beyond_chance.then(|| {
            let how = if excess > 0.0 { "more" } else { "less" };
            format!(
                "texts in which a token surprises it {:.2} nats {how} than what it draws ({:.0} standard errors)",
                excess.abs(),
                errors.abs()
            )
        })
    }

    /// Whether nothing is amiss but that they are less surprising than what is drawn at this temperature, as what was written at a
    /// lower one is.
    pub(super) fn is_colder(&self) -> bool {
        self.impossible == 0 && self.excess_surprise() < 0.0
    }

    /// Whether surely less than [`LEAST_LIKELIEST`] of the tokens are as they should be: of few tokens a single one says little.
    fn is_too_few(&self, good: u64) -> bool {
        let (tokens, bad) = (self.tokens as f64, 1.0 - LEAST_LIKELIEST);
        let by_chance = BY_CHANCE * (tokens * bad * LEAST_LIKELIEST).sqrt();
        self.tokens as f64 - good as f64 > tokens * bad + by_chance
    }

    fn share(&self, count: u64) -> f64 {
        count as f64 / (self.tokens as f64).max(1.0)
    }

    /// Tokens that were looked at.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Of greedy texts, the share of tokens that are the target's likeliest.
    pub(super) fn likeliest(&self) -> f64 {
        self.share(self.likeliest)
    }

    /// Of drawn texts, how much more surprising a token is than what the target draws, in nats.
    pub(super) fn excess_surprise(&self) -> f64 {
        self.excess / ((self.tokens - self.impossible) as f64).max(1.0)
    }

    /// The same in standard errors.
    pub(super) fn standard_errors(&self) -> f64 {
        if self.variance > 0.0 {
            self.excess / self.variance.sqrt()
        } else {
            0.0
        }
    }

    /// Says in a report what was found.
    pub(super) fn tell(&self, report: &mut TextsReport) {
        if self.sampling.is_greedy() {
            report.likeliest = Some(self.likeliest());
        } else {
            report.excess_surprise = Some(self.excess_surprise());
            report.standard_errors = Some(self.standard_errors());
        }
    }
}
