//! Which files of a repository are downloaded, and in which order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::client::{NO_FILE, NO_REPOSITORY, NO_REVISION};
use super::connection;
use super::environment::Environment;
use super::fetch::Fetch;
use super::listing;
use super::options::{Files, HubOptions};
use super::repository::{Repository, is_file_name};
use super::repository_cache::RepositoryCache;
use crate::error::{Error, Result};
use crate::folder::{
    CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, INDEX, PROCESSOR_TEMPLATE, TEXT_FILES,
    TOKENIZER_CONFIG, TOOLS_TEMPLATE, WEIGHTS, conversion, pickle_among, shard_files,
    template_file,
};

/// Snapshots whose companions this process has asked for: without a network each time would take a while.
static ASKED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

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
        let commit = self.cache.commit(self.repository.revision());
        let here = commit.filter(|commit| suffices(&self.cache.snapshot(commit), files));
        let Some(commit) = here else {
            return self.download(files);
        };
        let folder = self.cache.snapshot(&commit);
        if wanted_of(files).is_some() {
            self.complete(&commit, &folder)?;
        }
        Ok(folder)
    }

    /// Asks for what the snapshot of a commit lacks beside its weights: another tool may have left it out. What cannot be had
    /// soon is done without, as the snapshot suffices.
    fn complete(&self, commit: &str, folder: &Path) -> Result<()> {
        let is_known = |file: &str| {
            folder.join(file).exists()
                || !may_be_read(folder, file)
                || self.cache.is_absent(commit, file)
        };
        if self.environment.is_offline() || companions().all(is_known) {
            return Ok(());
        }
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        if !asked.insert(folder.to_path_buf()) {
            return Ok(());
        }
        drop(asked);
        let options = HubOptions {
            limits: self.options.limits.in_passing(),
            ..self.options.clone()
        };
        let fetched = self.source_with(&options).and_then(|source| {
            let snapshot = Snapshot {
                folder: folder.to_path_buf(),
                commit: commit.to_string(),
                source: &source,
                download: self,
            };
            snapshot.fetch_companions()
        });
        let place = folder.display();
        match fetched {
            Err(interrupted @ Error::Interrupted { .. }) => return Err(interrupted),
            Ok(()) => {}
            Err(Error::Unreachable {
                endpoint, reason, ..
            }) => tracing::info!(
                "`{place}` is taken as it is, as `{endpoint}` cannot be reached: {reason}; with `HF_HUB_OFFLINE=1` it is not asked"
            ),
            Err(error @ Error::Refused { .. }) => {
                tracing::info!("`{place}` is taken as it is: {error}");
            }
            Err(error) => {
                tracing::warn!("`{place}` is taken as it is, and may lack a file: {error}");
            }
        }
        Ok(())
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
            download: self,
        };
        rest.iter().try_for_each(|file| snapshot.fetch(file))?;
        if let Some(wanted) = wanted_of(files) {
            snapshot.fetch_model(wanted)?;
        }
        Ok(snapshot.folder)
    }

    /// The hub, unless nothing may be asked of it.
    fn source(&self) -> Result<Fetch<'_>> {
        self.source_with(self.options)
    }

    /// The same with these options in place of the download's own.
    fn source_with(&self, options: &HubOptions) -> Result<Fetch<'_>> {
        let id = self.repository.id();
        let client = connection::client(self.environment, options, id)?;
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
    download: &'a Download<'a>,
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

    /// What a model may have beside its weights, but for what it is known not to have.
    fn fetch_companions(&self) -> Result<()> {
        let cache = &self.download.cache;
        for file in companions() {
            if !may_be_read(&self.folder, file) || cache.is_absent(&self.commit, file) {
                continue;
            }
            match self.fetch(file) {
                Err(Error::NotOnHub { reason, .. }) if reason == NO_FILE => {
                    // A cache that is shared may be read-only: then the next process asks again.
                    if let Err(error) = cache.note_absence(&self.commit, file) {
                        tracing::debug!("that the hub has no `{file}` is not noted: {error}");
                    }
                }
                // A hub that gives no reason may mean anything.
                Err(Error::NotOnHub { reason, .. })
                    if reason != NO_REPOSITORY && reason != NO_REVISION => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// What a model has beside its configuration; of shards those with a tensor that is `wanted`.
    fn fetch_model(&self, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        self.fetch_companions()?;
        if self.fetch_if_present(WEIGHTS)? {
            return Ok(());
        }
        if !self.fetch_if_present(INDEX)? {
            return Err(self.source.failed(WEIGHTS, &self.no_weights()));
        }
        // The index is checked here as well: a shard named `../x` would be written outside the cache.
        let shards = shard_files(&self.folder.join(INDEX), wanted)?;
        shards.iter().try_for_each(|shard| self.fetch(shard))
    }

    /// What to do about a model without weights that can be read.
    fn no_weights(&self) -> String {
        let reason = format!("the hub has neither this file nor `{INDEX}`");
        let repository = self.download.repository;
        let listed = repository.at(&self.commit).ok().and_then(|at_commit| {
            let listed = listing::ask(self.source.client(), &at_commit, self.download.options);
            listed.ok()
        });
        let files = listed.map_or_else(Vec::new, |listed| listed.files);
        let names: Vec<String> = files.into_iter().map(|file| file.path).collect();
        let Some(pickle) = pickle_among(&names) else {
            return format!("{reason}; only safetensors weights are read");
        };
        let (id, revision) = (repository.id(), repository.revision());
        let at = match repository.is_at_main() {
            true => String::new(),
            false => format!(" --revision {revision}"),
        };
        format!(
            "{reason}, but `{pickle}`, a pickle, which can run any program and is not read; if you trust it, get it with \
             `hf download {id}{at} --local-dir DIR`, convert it in that folder with `{}`, and name the folder; a pull request \
             on its page may hold safetensors weights already: `{id}@refs/pr/N` names the one of number N",
            conversion(pickle)
        )
    }
}

/// Fetched in this order where the model has them and they [may be read](may_be_read), before the weights. What it does not have is
/// noted.
fn companions() -> impl Iterator<Item = &'static str> {
    std::iter::once(GENERATION_CONFIG).chain(TEXT_FILES)
}

/// Whether a companion may be read, beside those before it that a folder has: no other tool fetches all chat templates and notes
/// which there are not, and its cache is to need no request.
fn may_be_read(folder: &Path, file: &str) -> bool {
    match file {
        PROCESSOR_TEMPLATE => {
            let config = std::fs::read(folder.join(TOKENIZER_CONFIG)).ok();
            let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            let config: serde_json::Value = config.unwrap_or_default();
            template_file(folder, &config) == file
        }
        // It is written beside this one.
        TOOLS_TEMPLATE => folder.join(CHAT_TEMPLATE).exists(),
        _ => true,
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

fn has_weights(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> bool {
    let all_shards = |files: BTreeSet<String>| files.iter().all(|file| folder.join(file).exists());
    folder.join(WEIGHTS).exists() || shard_files(&folder.join(INDEX), wanted).is_ok_and(all_shards)
}
