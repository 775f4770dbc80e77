//! The `[features]` table.

use serde::{Deserialize, Serialize};

/// The `[features]` table: when the target's hidden states are computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FeaturesTable {
    /// `live`: in the training process, again for every epoch. `stored`: once, in a stage of its own that writes them
    /// to the disk. The target stays in memory in either mode: validation decodes with it. Default: `live`.
    pub mode: FeatureMode,
    /// Samples of one file of stored features. Default: 256.
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureMode {
    /// During training.
    #[default]
    Live,
    /// Before it, to the disk.
    Stored,
}
