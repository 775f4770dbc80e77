//! From a model's name to a folder: one that exists, or a snapshot from the Hugging Face hub.
//!
//! The cache is that of Hugging Face's own tools, in place and layout, so each finds what the other downloaded. What a hub
//! says is not trusted: its headers become no paths before they are checked, the token stays with the host it is for, and
//! contents get their name only when length and digest are those announced.

mod address;
mod announced;
mod blob;
mod client;
mod connection;
mod download;
mod environment;
mod failure;
mod fetch;
mod few_values;
mod limits;
mod listing;
mod lock;
mod options;
mod progress;
mod push;
mod repository;
mod repository_cache;
mod surroundings;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use hf_hub::RepoType;

use crate::error::{Error, Result};
use download::Download;
use environment::Environment;
pub use limits::HubLimits;
pub use listing::{ListedFile, Listing};
pub use options::{Files, HubOptions};
pub use push::{Push, PushReport, Pushed, Visibility, push, pushed_files};
pub use repository::Repository;
use repository_cache::RepositoryCache;
pub use surroundings::{Surroundings, answers};

// The HTTP client writes what it sends, keys included, to the log at trace level: no build may have that level.
const _: () = assert!(log::STATIC_MAX_LEVEL as usize <= log::LevelFilter::Debug as usize);

/// The folder of a model: `model` itself if it is one, else the snapshot of the hub model with this id at a branch, tag
/// or commit, by default `main`.
///
/// A snapshot with configuration and weights is used; what another tool may have left out beside them is asked for once. Otherwise
/// what is missing is downloaded: configuration and tokenizer where present, then the safetensors weights.
pub fn resolve(model: &str, revision: Option<&str>, options: &HubOptions) -> Result<PathBuf> {
    resolve_files(model, revision, Files::Model, options)
}

/// The same with only the shards of its weights that have a tensor whose name is `wanted`.
pub fn resolve_parts(
    model: &str,
    revision: Option<&str>,
    wanted: &dyn Fn(&str) -> bool,
    options: &HubOptions,
) -> Result<PathBuf> {
    resolve_files(model, revision, Files::Parts(wanted), options)
}

/// Fails for what neither is a model folder's path nor can be the id of a model on the hub, which is not asked.
pub fn check_model(model: &str) -> Result<()> {
    existing(model).map(drop)
}

fn resolve_files(
    model: &str,
    revision: Option<&str>,
    files: Files<'_>,
    options: &HubOptions,
) -> Result<PathBuf> {
    match existing(model)? {
        Some(folder) => Ok(folder),
        None => {
            let repository = Repository::new(RepoType::Model, model, revision)?;
            download(&repository, files, options)
        }
    }
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

/// A file of a repository that an earlier download left. The hub is not asked.
pub fn cached_file(repository: &Repository, file: &str, options: &HubOptions) -> Option<PathBuf> {
    let cache = Environment::of_process().cache(options)?;
    let snapshot = RepositoryCache::new(&cache, repository).cached(repository.revision())?;
    let path = snapshot.join(file);
    path.is_file().then_some(path)
}

/// The snapshot of a model that an earlier download left, complete or not. The hub is not asked.
pub fn cached(model: &str, revision: Option<&str>, options: &HubOptions) -> Option<PathBuf> {
    let repository = Repository::new(RepoType::Model, model, revision).ok()?;
    let cache = Environment::of_process().cache(options)?;
    RepositoryCache::new(&cache, &repository).cached(repository.revision())
}

/// The files of a repository at its revision: as an earlier [`download_listed`] left the list, else as the hub says now.
///
/// # Errors
/// The hub cannot be reached and no file of the repository is here, or it has no such repository or revision.
pub fn list(repository: &Repository, options: &HubOptions) -> Result<Listing> {
    listing::list(repository, options, &Environment::of_process())
}

/// The list of a repository's files that an earlier [`download_listed`] left. The hub is not asked.
pub fn listed(repository: &Repository, options: &HubOptions) -> Option<Listing> {
    let cache = Environment::of_process().cache(options)?;
    listing::remembered(
        &RepositoryCache::new(&cache, repository),
        repository.revision(),
    )
}

/// The snapshot of a list's commit, where it has all of these files. The hub is not asked.
pub fn snapshot_with(
    repository: &Repository,
    listing: &Listing,
    files: &[&str],
    options: &HubOptions,
) -> Option<PathBuf> {
    let cache = Environment::of_process().cache(options)?;
    let cache = RepositoryCache::new(&cache, repository);
    listing::here(&cache, &listing.commit, files)
}

/// The snapshot of a list's commit with these of its files. Downloads what is missing, and keeps the list.
pub fn download_listed(
    repository: &Repository,
    listing: &Listing,
    files: &[&str],
    options: &HubOptions,
) -> Result<PathBuf> {
    let environment = Environment::of_process();
    let at_commit = repository.at(&listing.commit)?;
    let folder = Download::new(&at_commit, options, &environment)?.run(Files::Named(files))?;
    let cache = connection::cache(&environment, options, repository)?;
    listing::keep(&cache, repository.revision(), listing)?;
    Ok(folder)
}
