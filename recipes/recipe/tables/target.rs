//! The `[target]` table.

use std::path::PathBuf;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The frozen model that a drafter is trained for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TargetTable {
    /// A folder in the Hugging Face layout, or a hub id; matrices in FP8 are read as bf16. Required unless `[synthetic]` makes the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Branch, tag or commit of a hub id. Left out: the hub's main branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Number type in which the target computes. On the CPU, matrices stored in bf16 in its files stay in bf16 in memory, and
    /// the result is the same.
    pub dtype: TargetType,
    /// With `features.mode = "served"` or `"streamed"`: addresses of servers that return the target's hidden states, such as
    /// `["http://localhost:8000"]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server: Vec<String>,
    /// The target's name on the servers. Left out: the only model that each server has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_model: Option<String>,
    /// The folder into which the servers write hidden states, by its path on the servers. Left out: the addresses are those of
    /// `spectrain relay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_folder: Option<PathBuf>,
    /// The path of the same folder on this machine. Left out: the same path as on the servers.
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
    /// 16-bit brain floats. On the CPU only the factors of large matrix products and the logits of the loss are rounded to them, where
    /// hidden states are computed and a drafter is trained; decoding, evaluation and all else are in f32. A processor with AMX (Intel's Xeons since 2023)
    /// trains 1.4 to 3.0 times as fast so; one of AMD's with AVX512-BF16 (Zen 4 and later) multiplies so, too; on others nothing is
    /// rounded, and the program says so.
    Bf16,
    /// On the CPU: the layers' matrices in eight bits, with one scale for each 32 elements of a row of the file, and products
    /// in 32-bit floats; matrices whose rows are not a multiple of 32 long, experts, embedding and head stay as they are. The
    /// rounded model is a different target: the drafter is trained on its outputs and evaluated with it.
    Int8,
}
