//! Which files of a repository are downloaded, and in which order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::client::{NO_REPOSITORY, NO_REVISION};
use super::connection;
use super::environment::Environment;
use super::fetch::Fetch;
use super::options::{Files, HubOptions};
use super::repository::{Repository, is_file_name};
use super::repository_cache::RepositoryCache;
use crate::error::{Error, Result};
use crate::folder::{CONFIG, GENERATION_CONFIG, INDEX, WEIGHTS, shard_files};

const TOKENIZER: &str = "tokenizer.json";
/// Fetched where the model has them, before the weights: complete weights then say that these were asked for.
const COMPANIONS: [&str; 4] = [
    GENERATION_CONFIG,
    TOKENIZER,
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// One repository at one revision, and where its files are or come from.
pub(super) struct Download<'a> {
    repository: &'a Repository,
    options: &'a HubOptions,
    environment: &'a Environment,
    cache: RepositoryCache,
}

impl<'a> Download<'a> {
    pub(super) fn new(
        repository: &'a Repository,
        options: &'a HubOptions,
        environment: &'a Environment,
    ) -> Result<Self> {
        let cache = connection::cache(environment, options, repository)?;
        Ok(Download {
            repository,
            options,
            environment,
            cache,
        })
    }

    /// The snapshot's folder, with all of `files`.
    pub(super) fn run(&self, files: Files<'_>) -> Result<PathBuf> {
        let cached = self.cache.cached(self.repository.revision());
        let cached = cached.filter(|folder| suffices(folder, files));
        if let Some(folder) = &cached
            && is_all_there_may_be(folder, files)
        {
            return Ok(folder.clone());
        }
        match (self.download(files), cached) {
            // Not every model has a tokenizer: what is here may well be all there is.
            (Err(Error::Unreachable { .. }), Some(folder)) => Ok(folder),
            (downloaded, _) => downloaded,
        }
    }

    fn download(&self, files: Files<'_>) -> Result<PathBuf> {
        let (first, rest) = match files {
            Files::Model | Files::Parts(_) => (CONFIG, &[][..]),
            Files::Named([]) => return Err(self.refused("no file of it is named".to_string())),
            Files::Named([first, rest @ ..]) => (*first, rest),
        };
        let source = self.source()?;
        let revision = self.repository.revision();
        let commit = source.fetch(revision, first)?;
        self.cache.refer(revision, &commit)?;
        // From here on by commit: files of two commits must not meet when the branch moves during a download.
        let snapshot = Snapshot {
            folder: self.cache.snapshot(&commit),
            commit,
            source: &source,
        };
        rest.iter().try_for_each(|file| snapshot.fetch(file))?;
        if let Some(wanted) = wanted_of(files) {
            snapshot.fetch_model(wanted)?;
        }
        Ok(snapshot.folder)
    }

    /// The hub, unless nothing may be asked of it.
    fn source(&self) -> Result<Fetch<'_>> {
        let id = self.repository.id();
        let client = connection::client(self.environment, self.options, id)?;
        let Download {
            repository, cache, ..
        } = self;
        Ok(Fetch::new(repository, cache, client, self.options.stop))
    }

    fn refused(&self, reason: String) -> Error {
        Error::HubRequest {
            model: self.repository.id().to_string(),
            reason,
        }
    }
}

/// The folder of one commit, being filled.
struct Snapshot<'a> {
    source: &'a Fetch<'a>,
    commit: String,
    folder: PathBuf,
}

impl Snapshot<'_> {
    fn fetch(&self, file: &str) -> Result<()> {
        if is_file_name(file) && self.folder.join(file).exists() {
            return Ok(());
        }
        self.source.fetch(&self.commit, file).map(|_| ())
    }

    /// Whether the repository has the file.
    fn fetch_if_present(&self, file: &str) -> Result<bool> {
        match self.fetch(file) {
            Err(Error::NotOnHub { reason, .. })
                if reason != NO_REPOSITORY && reason != NO_REVISION =>
            {
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// What a model has beside its configuration; of shards those with a tensor that is `wanted`.
    fn fetch_model(&self, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        for file in COMPANIONS {
            self.fetch_if_present(file)?;
        }
        if self.fetch_if_present(WEIGHTS)? {
            return Ok(());
        }
        if !self.fetch_if_present(INDEX)? {
            let reason = format!(
                "the hub has neither this file nor `{INDEX}`; only safetensors weights are read"
            );
            return Err(self.source.failed(WEIGHTS, &reason));
        }
        // The index is checked here as well: a shard named `../x` would be written outside the cache.
        let shards = shard_files(&self.folder.join(INDEX), wanted)?;
        shards.iter().try_for_each(|shard| self.fetch(shard))
    }
}

/// Which tensors of a model are wanted, where it is a model that is.
fn wanted_of(files: Files<'_>) -> Option<&dyn Fn(&str) -> bool> {
    match files {
        Files::Model => Some(&|_| true),
        Files::Parts(wanted) => Some(wanted),
        Files::Named(_) => None,
    }
}

/// Whether a folder has what cannot be done without.
fn suffices(folder: &Path, files: Files<'_>) -> bool {
    if let Files::Named(names) = files {
        let is_here = |name: &&str| is_file_name(name) && folder.join(name).exists();
        return !names.is_empty() && names.iter().all(is_here);
    }
    let has_weights = |wanted| has_weights(folder, wanted);
    folder.join(CONFIG).exists() && wanted_of(files).is_some_and(has_weights)
}

/// Whether the hub could have nothing to add to a folder that suffices.
fn is_all_there_may_be(folder: &Path, files: Files<'_>) -> bool {
    match files {
        Files::Model | Files::Parts(_) => folder.join(TOKENIZER).exists(),
        Files::Named(_) => true,
    }
}

fn has_weights(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> bool {
    let all_shards = |files: BTreeSet<String>| files.iter().all(|file| folder.join(file).exists());
    folder.join(WEIGHTS).exists() || shard_files(&folder.join(INDEX), wanted).is_ok_and(all_shards)
}
