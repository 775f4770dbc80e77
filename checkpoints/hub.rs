//! From a model's name to a folder: one that exists, or a snapshot from the Hugging Face hub.

mod download;
#[cfg(test)]
mod tests;

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use hf_hub::Cache;

use crate::{Error, Result};
use download::Download;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Where and how to look on the hub. What is `None` comes from the environment, as in Hugging Face's own tools.
#[derive(Clone, Default)]
pub struct HubOptions {
    /// A branch, tag or commit. Default: `main`.
    pub revision: Option<String>,
    /// The hub's address. Default: `HF_ENDPOINT`, or the public hub.
    pub endpoint: Option<String>,
    /// The folder of downloaded snapshots. Default: `HF_HUB_CACHE`, `HF_HOME/hub`, or `~/.cache/huggingface/hub`.
    pub cache: Option<PathBuf>,
    /// The access token. Default: `HF_TOKEN`, or the one that logging in left beside the cache.
    pub token: Option<String>,
}

/// The token stays out of logs.
impl fmt::Debug for HubOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HubOptions")
            .field("revision", &self.revision)
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .finish()
    }
}

impl HubOptions {
    fn endpoint(&self) -> String {
        let endpoint = self.endpoint.clone().or_else(|| variable("HF_ENDPOINT"));
        let endpoint = endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.to_string());
        endpoint.trim_end_matches('/').to_string()
    }

    fn cache(&self) -> Cache {
        match self
            .cache
            .clone()
            .or_else(|| variable("HF_HUB_CACHE").map(PathBuf::from))
        {
            Some(path) => Cache::new(path),
            None => Cache::from_env(),
        }
    }

    fn token(&self, cache: &Cache) -> Option<String> {
        self.token
            .clone()
            .or_else(|| variable("HF_TOKEN"))
            .or_else(|| cache.token())
            .map(|token| token.trim().to_string())
            .filter(|token| !token.is_empty())
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The folder of a model: `model` itself if it is one, else the snapshot of the hub model with this id.
///
/// A snapshot that is already complete is used without asking the hub; otherwise what is missing is downloaded:
/// configuration and tokenizer where present, then the safetensors weights.
pub fn resolve(model: &str, options: &HubOptions) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if path.exists() {
        let reason = "is a file; expected a model folder".to_string();
        return Err(Error::Folder {
            path: path.to_path_buf(),
            reason,
        });
    }
    if !is_hub_id(model) {
        let tried = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        return Err(Error::NoModel {
            model: model.to_string(),
            tried,
        });
    }
    Download::new(model, options)?.run()
}

/// `org/name`, as the hub allows them.
fn is_hub_id(model: &str) -> bool {
    let word = |word: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        word.bytes().all(allowed)
            && !word.starts_with(['.', '-'])
            && !word.is_empty()
            && !word.contains("..")
    };
    matches!(model.split_once('/'), Some((org, name)) if word(org) && word(name))
}
