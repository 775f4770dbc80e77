//! Whether a target wrote texts of which nobody says at which temperature.
use std::fmt;

use spectrain_checkpoints::Mismatch;
use spectrain_models::Sampling;

use crate::error::Result;
use crate::estimate::text::Judges;
use crate::texts::own::{ENOUGH, Own, written_at};
use crate::texts::report::{likeliest_words, surprise_words};

/// Tokens of texts, looked at as if the target had written them greedily, and as if it had drawn them.
pub struct OwnCheck {
    hottest: f64,
    greedy: Own,
    drawn: Own,
}

/// What was found of the tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnFigures {
    /// How many there are.
    pub tokens: u64,
    /// The share that are the target's likeliest.
    pub likeliest: f64,
    /// The temperature at which the target is taken to draw.
    pub temperature: f64,
    /// How much more surprising a token is than what the target draws then, in nats: 0, but for chance, where it drew them so, and
    /// less where it drew them at a lower temperature.
    pub excess_surprise: f64,
    /// The same in standard errors.
    pub standard_errors: f64,
}

impl OwnCheck {
    /// Of no tokens yet, written at a temperature of at most `hottest`, which is above 0.
    pub fn new(hottest: f64) -> Self {
        Self {
            hottest,
            greedy: Own::new(Sampling::GREEDY),
            drawn: Own::new(Sampling::at(hottest)),
        }
    }

    /// Looks at some more tokens, of which there is one for each row of `judges`.
    ///
    /// # Errors
    /// The target's logits are no numbers, or the device failed.
    pub fn add(&mut self, tokens: &[u32], judges: &Judges) -> Result<()> {
        judges.over(tokens, &mut |tokens, logits| {
            self.greedy.look(tokens, logits.clone())?;
            self.drawn.look(tokens, logits)
        })
    }

    /// Tokens that are missing for a verdict.
    pub fn missing(&self) -> usize {
        ENOUGH.saturating_sub(self.greedy.tokens()) as usize
    }

    /// What was found; nothing of no tokens.
    pub fn figures(&self) -> Option<OwnFigures> {
        let tokens = self.greedy.tokens();
        (tokens > 0).then(|| OwnFigures {
            tokens,
            likeliest: self.greedy.likeliest(),
            temperature: self.hottest,
            excess_surprise: self.drawn.excess_surprise(),
            standard_errors: self.drawn.standard_errors(),
        })
    }

    /// What texts were expected, and what texts these are, where the target surely did not write them, at whatever temperature;
    /// nothing as long as tokens are missing for a verdict.
    pub fn problem(&self) -> Option<Mismatch> {
        if self.missing() > 0 || self.greedy.amiss().is_none() {
            return None;
        }
        let found = self.drawn.amiss().filter(|_| !self.drawn.is_colder())?;
        let expected = written_at(format_args!("{} or below", self.hottest));
        Some(Mismatch::new(expected, found))
    }
}

impl fmt::Display for OwnFigures {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let likeliest = likeliest_words(self.likeliest);
        let surprise = surprise_words(self.excess_surprise, self.standard_errors);
        write!(f, "{likeliest}; at T={} {surprise}", self.temperature)
    }
}
