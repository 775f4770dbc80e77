//! The `[features]` table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When the target's hidden states are computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FeaturesTable {
    /// Where the hidden states come from. The target stays in memory in either mode: validation decodes with it.
    pub mode: FeatureMode,
    /// Samples of one file of stored features.
    pub samples_per_shard: usize,
}

impl Default for FeaturesTable {
    fn default() -> Self {
        Self {
            mode: FeatureMode::Live,
            samples_per_shard: 256,
        }
    }
}

/// When the target's hidden states are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FeatureMode {
    /// In the training process, again in every epoch.
    #[default]
    Live,
    /// Once, in a stage of its own that writes them to the disk.
    Stored,
}
