use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conversation::Sample;
use crate::mask::Masking;
use crate::unusable::Unusable;

/// How many samples a conversation with several answers becomes, where its answers are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Turns {
    /// One for each answer that is trained on if the template rewrites earlier answers (for example, drops their reasoning), else
    /// one.
    #[default]
    Auto,
    /// One.
    Joined,
    /// One for each answer that is trained on, as the template renders the conversation up to it.
    Expand,
}

/// What happens to a sample that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlong {
    /// They are left out.
    Drop,
    /// Their end is cut off.
    #[default]
    Truncate,
}

/// What a sample must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareSettings {
    /// Tokens a sample may have.
    pub max_length: usize,
    /// What happens to longer ones.
    pub overlong: Overlong,
    /// Which tokens are trained on.
    pub masking: Masking,
    /// Whether a conversation is one sample, or one for each answer that is trained on.
    pub turns: Turns,
    /// Samples with fewer trained tokens are left out.
    pub min_trained_tokens: usize,
    /// What happens to rows that cannot be used.
    #[serde(default)]
    pub unusable: Unusable,
    /// Vocabulary size of the target; a token id beyond it is an error.
    pub vocab: usize,
}

impl PrepareSettings {
    /// How many tokens of a sample are kept; none where it is left out, being too long.
    pub(crate) fn kept(&self, sample: &Sample) -> Option<usize> {
        let length = sample.tokens.len();
        let is_kept = length <= self.max_length || self.overlong == Overlong::Truncate;
        is_kept.then(|| length.min(self.max_length))
    }
}
