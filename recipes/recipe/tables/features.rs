//! The `[features]` table.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::features::StoredType;
use spectrain_models::bounds;

use super::regenerate::{LONGEST_WAIT, WAIT};
use crate::recipe::problem::{Problem, within};

/// When the target's hidden states are computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FeaturesTable {
    /// Where the hidden states come from. The target stays in memory, except with `"served"`, `"streamed"` and `"imported"`.
    pub mode: FeatureMode,
    /// With `mode = "imported"`: the folder that `spectrain features import` wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imported: Option<PathBuf>,
    /// What the hidden states to train on are written in, with `mode = "stored"`, `"served"` or `"imported"`. Those by which drafters are
    /// judged stay in bf16. Left out: bf16.
    #[serde(skip_serializing_if = "StoredType::is_default")]
    pub dtype: StoredType,
    /// Samples in each file of stored features.
    pub samples_per_shard: usize,
    /// Folders of existing features, as `data regenerate --capture` and `features import` write them: samples with the same
    /// tokens are taken from them, and only the others are computed.
    pub from: Vec<PathBuf>,
    /// Concurrent requests to each server, of all processes that train together, but at least one of each process. The tasks of an
    /// array job do not know of each other: each has as many.
    pub under_way: usize,
    /// Seconds that a request to a server may take.
    pub timeout: u64,
    /// Seconds for which servers that are not there yet (that refuse connections, or answer with status 502, 503 or 504) are
    /// waited for: at the start for each of them, and later while none is there. A server that loads a large
    /// target takes minutes. With 0 nobody is waited for.
    pub wait: u64,
}

impl Default for FeaturesTable {
    fn default() -> Self {
        Self {
            mode: FeatureMode::Live,
            imported: None,
            dtype: StoredType::Bf16,
            samples_per_shard: 256,
            from: Vec::new(),
            under_way: 8,
            timeout: 600,
            wait: WAIT,
        }
    }
}

impl FeaturesTable {
    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), Problem> {
        within([
            bounds::up_to("samples_per_shard", self.samples_per_shard, bounds::SAMPLES),
            bounds::up_to("under_way", self.under_way, 1 << 10),
            bounds::up_to("timeout", self.timeout as usize, 1 << 20),
            bounds::or_none("wait", self.wait as usize, LONGEST_WAIT),
        ])
    }
}

/// When the target's hidden states are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FeatureMode {
    /// Computed in the training process, again in every epoch.
    #[default]
    Live,
    /// Computed once, in a separate stage that writes them to disk.
    Stored,
    /// Computed once by servers of the target, in a separate stage that writes them to disk. Only the target's embedding, norm
    /// and head are in memory.
    Served,
    /// Computed by servers of the target while the drafter trains, again in every epoch. Only the hidden states of held-out
    /// texts are written to disk.
    Streamed,
    /// Computed by other programs, and read from a folder that `spectrain features import` wrote. Only the target's embedding,
    /// norm and head are in memory.
    Imported,
}

impl FeatureMode {
    /// Whether this program computes what the target does, and so can decode with it.
    pub fn computes_target(self) -> bool {
        matches!(self, Self::Live | Self::Stored)
    }

    /// Whether those of the samples to train on are written to the disk.
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Stored | Self::Served | Self::Imported)
    }

    /// Whether the stored answers to held-out prompts are data by which a drafter is trained: servers write others where an evaluation
    /// asks for something else, and the weights that validations choose by them stay what they are.
    pub fn answers_are_data(self) -> bool {
        self == Self::Imported
    }

    /// Tokens of an answer to a held-out prompt, at most, with this `evaluate.max_new_tokens`; of imported texts nobody knows it.
    pub fn longest_answer(self, max_new_tokens: usize) -> Option<usize> {
        (self != Self::Imported).then_some(max_new_tokens)
    }
}
