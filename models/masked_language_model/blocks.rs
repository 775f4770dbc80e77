//! How blocks of masks are made.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the places of the text before a block see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Context {
    /// Everything, including the block, as in the paper: each draft recomputes the whole text.
    #[default]
    Bidirectional,
    /// Only what comes before each token, so that keys and values are kept from draft to draft.
    Causal,
}

/// How the blocks of a drafter are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// The id that stands for tokens still to come.
    pub mask_token: u32,
    /// The id between the text and what is to come.
    pub separator_token: u32,
    /// The most tokens of a draft.
    pub size: usize,
    /// What the text before a block sees.
    pub context: Context,
}
