//! Where outputs end: reports are compared only where that was the same.
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where outputs end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndsReport {
    /// Tokens of an output, at most.
    pub max_new_tokens: usize,
    /// Tokens at which an output ends; left out where it ends at its length alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<u32>,
}

impl EndsReport {
    /// Fails where the outputs of `other` end elsewhere.
    pub(crate) fn check_same(&self, other: &Self) -> Result<()> {
        if self.max_new_tokens != other.max_new_tokens {
            let longest =
                |ends: &Self| format!("answers of at most {} tokens", ends.max_new_tokens);
            let expected = format!(
                "{} (`--max-new-tokens {}`)",
                longest(self),
                self.max_new_tokens
            );
            return Err(Error::unpaired(expected, longest(other)));
        }
        if self.stop != other.stop {
            return Err(Error::unpaired(self.in_words(), other.in_words()));
        }
        Ok(())
    }

    /// The tokens that end outputs, in words.
    fn in_words(&self) -> String {
        match &self.stop[..] {
            [] => "answers that end at their length alone (`--ignore-stop`)".to_owned(),
            stop => format!("answers that end at the tokens {stop:?}"),
        }
    }
}
