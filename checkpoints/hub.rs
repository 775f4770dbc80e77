//! From a model's name to a folder: one that exists, or a snapshot from the Hugging Face hub.
//!
//! The cache is that of Hugging Face's own tools, in place and layout, so each finds what the other downloaded. What a hub
//! says is not trusted: its headers become no paths before they are checked, the token stays with the host it is for, and
//! contents get their name only when length and digest are those announced.

mod address;
mod announced;
mod blob;
mod client;
mod download;
mod environment;
mod failure;
mod fetch;
mod layout;
mod limits;
mod lock;
mod progress;
mod repository;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

pub use hf_hub::RepoType;

use crate::{Error, Result};
use download::Download;
use environment::Environment;
use layout::Layout;
pub use limits::HubLimits;
pub use repository::Repository;

// The HTTP client writes what it sends, keys included, to the log at trace level: no build may have that level.
const _: () = assert!(log::STATIC_MAX_LEVEL as usize <= log::LevelFilter::Debug as usize);

/// Where and how to look on the hub. What is `None` comes from the environment, as in Hugging Face's own tools.
#[derive(Clone, Default)]
pub struct HubOptions {
    /// The hub's address. Default: `HF_ENDPOINT`, or the public hub.
    pub endpoint: Option<String>,
    /// The folder of downloaded snapshots. Default: `HF_HUB_CACHE`, `HF_HOME/hub`, or `~/.cache/huggingface/hub`.
    pub cache: Option<PathBuf>,
    /// The access token. Default: `HF_TOKEN`, or the one that logging in left in `HF_TOKEN_PATH`, beside the cache or in
    /// `HF_HOME`.
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
#[derive(Clone, Copy, Debug)]
pub enum Files<'a> {
    /// What a model folder has: the configuration, the safetensors weights, and where present the tokenizer and what
    /// belongs to it.
    Model,
    /// The files of these names, all of which must be there.
    Named(&'a [&'a str]),
}

/// The folder of a model: `model` itself if it is one, else the snapshot of the hub model with this id at a branch, tag
/// or commit, by default `main`.
///
/// A snapshot that is already complete is used without asking the hub; otherwise what is missing is downloaded:
/// configuration and tokenizer where present, then the safetensors weights.
pub fn resolve(model: &str, revision: Option<&str>, options: &HubOptions) -> Result<PathBuf> {
    if let Some(folder) = existing(model)? {
        return Ok(folder);
    }
    download(
        &Repository::new(RepoType::Model, model, revision)?,
        Files::Model,
        options,
    )
}

/// The folder that a name means on this machine; `None` for what can be the id of a model.
fn existing(model: &str) -> Result<Option<PathBuf>> {
    let path = Path::new(model);
    if path.is_dir() {
        return Ok(Some(path.to_path_buf()));
    }
    if path.exists() {
        let reason = "is a file; expected a model folder".to_string();
        return Err(Error::Folder {
            path: path.to_path_buf(),
            reason,
        });
    }
    if repository::is_id(RepoType::Model, model) {
        return Ok(None);
    }
    let tried = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    Err(Error::NoModel {
        model: model.to_string(),
        tried,
    })
}

/// The snapshot of a repository with these files. Those that are here are not asked for again.
pub fn download(
    repository: &Repository,
    files: Files<'_>,
    options: &HubOptions,
) -> Result<PathBuf> {
    Download::new(repository, options, &Environment::of_process())?.run(files)
}

/// The snapshot of a model that an earlier download left, complete or not. The hub is not asked.
pub fn cached(model: &str, revision: Option<&str>, options: &HubOptions) -> Option<PathBuf> {
    let repository = Repository::new(RepoType::Model, model, revision).ok()?;
    let cache = Environment::of_process().cache(options)?;
    Layout::new(&cache, &repository).cached(repository.revision())
}
