//! Where and how to look on the hub, and for what.

use std::fmt;
use std::path::PathBuf;

use super::limits::HubLimits;

/// Where and how to look on the hub. What is `None` comes from the environment, as in Hugging Face's own tools.
#[derive(Clone, Default)]
pub struct HubOptions {
    /// The hub's address. Default: `HF_ENDPOINT`, or the public hub.
    pub endpoint: Option<String>,
    /// The folder of downloaded snapshots. Default: `HF_HUB_CACHE`, `HF_HOME/hub`, or `~/.cache/huggingface/hub`.
    pub cache: Option<PathBuf>,
    /// The access token. Default: `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, or the one that logging in left in `HF_TOKEN_PATH`, beside the
    /// cache or in `HF_HOME`.
    pub token: Option<String>,
    /// What a download puts up with.
    pub limits: HubLimits,
    /// Asked during a download, which ends when the answer is yes. The next one goes on from there.
    pub stop: Option<fn() -> bool>,
}

/// The token stays out of logs, and so does what an address has beside its host and path.
impl fmt::Debug for HubOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "…");
        formatter
            .debug_struct("HubOptions")
            .field("endpoint", &hidden(&self.endpoint))
            .field("cache", &self.cache)
            .field("token", &hidden(&self.token))
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Which files of a repository to download.
#[derive(Clone, Copy)]
pub enum Files<'a> {
    /// What a model folder has: the configuration, the safetensors weights, and where present the tokenizer and what
    /// belongs to it.
    Model,
    /// The same, of weights in shards only those shards with a tensor whose name is wanted.
    Parts(&'a dyn Fn(&str) -> bool),
    /// The files of these names, all of which must be there.
    Named(&'a [&'a str]),
}

impl fmt::Debug for Files<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model => formatter.write_str("Model"),
            Self::Parts(_) => formatter.write_str("Parts"),
            Self::Named(names) => formatter.debug_tuple("Named").field(names).finish(),
        }
    }
}
