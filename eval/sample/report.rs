//! A sample of decoding as text.
use serde::{Deserialize, Serialize};

/// The beginning of an output in `report.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleReport {
    /// The way of decoding.
    pub setting: String,
    /// The dataset.
    pub dataset: String,
    /// Number of the prompt in it.
    pub prompt: u64,
    /// The end of the prompt.
    pub before: String,
    /// The passes of the target; the first is that over the prompt, which judges no draft.
    pub passes: Vec<SamplePass>,
}

/// What one pass of the target made of a draft.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplePass {
    /// Drafted and kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub accepted: String,
    /// Drafted and rejected; of a tree the likeliest path behind what was kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rejected: String,
    /// The target's own token.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bonus: String,
    /// Tokens of each of the three.
    pub tokens: [usize; 3],
}
