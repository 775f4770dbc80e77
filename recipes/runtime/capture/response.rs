//! What a server answers to a request for hidden states, of which only what is needed is taken in.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Response {
    pub(super) choices: Vec<Choice>,
    pub(super) kv_transfer_params: Option<Handed>,
}

/// Where the hidden states are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Handed {
    /// The file's path on the server.
    pub(super) hidden_states_path: Option<String>,
    /// The path of the address at which a relay hands out the file's contents.
    pub(super) relayed: Option<String>,
}

/// What was generated, and how likely the prompt was.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Choice {
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) prompt_logprobs: Option<Vec<Option<BTreeMap<String, Likely>>>>,
}

/// A token that a place of the prompt might have had.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Likely {
    pub(super) logprob: f64,
    #[serde(default)]
    pub(super) rank: Option<u64>,
}
