//! What a report says of the texts that it is computed from.
use std::fmt;

use serde::{Deserialize, Serialize};

/// The texts that a report is computed from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TextsReport {
    /// Where they are.
    pub source: String,
    /// Temperature at which the target wrote them.
    pub temperature: f64,
    /// Conversations.
    pub conversations: u64,
    /// Answers of the target in them.
    pub answers: u64,
    /// Tokens of the answers.
    pub tokens: u64,
    /// At temperature 0, the share of these that are the target's likeliest: 1, but for rounding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likeliest: Option<f64>,
    /// Above temperature 0, how much more surprising a token is than what the target draws, in nats: 0, but for chance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess_surprise: Option<f64>,
    /// The same in standard errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_errors: Option<f64>,
}

/// How many of the tokens are the target's likeliest.
pub(super) fn likeliest_words(share: f64) -> String {
    format!("{:.2} % of the tokens are its likeliest", 100.0 * share)
}

/// How surprising a token is to the target.
pub(super) fn surprise_words(excess: f64, errors: f64) -> String {
    format!(
        "a token surprises it {excess:+.4} nats more than what it draws ({errors:+.1} standard errors)"
    )
}

impl fmt::Display for TextsReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "computed without decoding from {} answers of the target at T={} ({} tokens) in `{}`: ",
            self.answers, self.temperature, self.tokens, self.source
        )?;
        match (self.likeliest, self.excess_surprise, self.standard_errors) {
            (Some(share), ..) => f.write_str(&likeliest_words(share)),
            (_, Some(excess), Some(errors)) => f.write_str(&surprise_words(excess, errors)),
            _ => Ok(()),
        }
    }
}
