//! The `[target]` table.

use std::path::PathBuf;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The frozen model that a drafter is trained for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TargetTable {
    /// A folder in the Hugging Face layout, or a hub id. Required without `[synthetic]`, which makes the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Branch, tag or commit of a hub id. Without it: the hub's main branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Type in which the target computes; on the CPU, matrices that its files hold in bf16 stay so in memory, with the same result.
    pub dtype: TargetType,
    /// Addresses of servers that hand out the target's hidden states, such as `["http://localhost:8000"]`; with `features.mode = "served"`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server: Vec<String>,
    /// The target's name on the servers; without it, the only one that each has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_model: Option<String>,
    /// The folder into which servers write hidden states, as they call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_folder: Option<PathBuf>,
    /// The same folder as this machine calls it. Without it: as the servers do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_folder: Option<PathBuf>,
    /// The environment variable that holds the servers' API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
}

/// Type in which the target computes; on the CPU, matrices that its files hold in bf16 stay so in memory, with the same result.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum TargetType {
    /// `"f32"` on the CPU, `"bf16"` on a GPU.
    #[default]
    Auto,
    /// 32-bit floats.
    F32,
    /// 16-bit brain floats.
    Bf16,
    /// On the CPU: matrices of the layers in eight bits, each 32 elements of a row of the file with a scale, and products in 32-bit
    /// floats; rows of other lengths than multiples of 32, experts, embedding and head stay as they are. What is rounded is
    /// another target: its drafter learns from what it says, and is judged by it.
    Int8,
}
