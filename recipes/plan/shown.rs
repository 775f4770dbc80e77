//! What `--plan` shows.

use anyhow::Error;
use serde_json::Value;

/// What a recipe would do.
pub struct Plan {
    /// The text of `--plan`.
    pub text: String,
    /// The same for programs: bytes, seconds and counts as plain numbers; `null` for what is not known yet.
    pub json: Value,
    /// What would stop the run first.
    pub refusal: Option<Error>,
}
