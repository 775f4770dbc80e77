//! Which files of a repository are downloaded, and in which order.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::address::Endpoint;
use super::announced::{Announced, shown};
use super::blob::Transfer;
use super::client::{Authorization, Client, NO_REPOSITORY, NO_REVISION};
use super::environment::Environment;
use super::failure::{Failure, Outcome, Patience};
use super::layout::Layout;
use super::lock::{self, Wait};
use super::repository::{Repository, is_commit, is_file_name};
use super::{Files, HubOptions};
use crate::folder::{CONFIG, GENERATION_CONFIG, INDEX, WEIGHTS, shard_files};
use crate::{Error, Result};

const TOKENIZER: &str = "tokenizer.json";
/// Fetched where the model has them, before the weights: complete weights then say that these were asked for.
const COMPANIONS: [&str; 4] = [
    GENERATION_CONFIG,
    TOKENIZER,
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// One repository at one revision, and how to reach it.
pub(super) struct Download<'a> {
    repository: &'a Repository,
    layout: Layout,
    client: Client,
    stop: Option<fn() -> bool>,
    is_offline: bool,
}

impl<'a> Download<'a> {
    pub(super) fn new(
        repository: &'a Repository,
        options: &HubOptions,
        environment: &Environment,
    ) -> Result<Self> {
        let refused = |reason: String| Error::HubRequest {
            model: repository.id().to_string(),
            reason,
        };
        let cache = environment.cache(options).ok_or_else(|| {
            refused(
                "no home folder to keep it in: expected one, or `HF_HOME` to be set".to_string(),
            )
        })?;
        let endpoint = Endpoint::parse(&environment.endpoint(options)).map_err(refused)?;
        let token = environment.token(options, &cache);
        let authorization = token.as_deref().map(Authorization::bearer).transpose();
        let authorization = authorization.map_err(refused)?;
        Ok(Download {
            repository,
            layout: Layout::new(&cache, repository),
            client: Client::new(endpoint, authorization, options.limits.clone()),
            stop: options.stop,
            is_offline: environment.is_offline(),
        })
    }

    /// The snapshot's folder, with all of `files`.
    pub(super) fn run(&self, files: Files<'_>) -> Result<PathBuf> {
        let cached = self.layout.cached(self.repository.revision());
        let cached = cached.filter(|folder| suffices(folder, files));
        if let Some(folder) = &cached
            && is_all_there_may_be(folder, files)
        {
            return Ok(folder.clone());
        }
        let downloaded = if self.is_offline {
            Err(self.unreachable("`HF_HUB_OFFLINE` is set".to_string()))
        } else {
            self.download(files)
        };
        match (downloaded, cached) {
            // Not every model has a tokenizer: what is here may well be all there is.
            (Err(Error::Unreachable { .. }), Some(folder)) => Ok(folder),
            (downloaded, _) => downloaded,
        }
    }

    fn download(&self, files: Files<'_>) -> Result<PathBuf> {
        let (first, rest) = match files {
            Files::Model => (CONFIG, &[][..]),
            Files::Named([]) => return Err(self.failed("", "no file of it is asked for")),
            Files::Named([first, rest @ ..]) => (*first, rest),
        };
        let revision = self.repository.revision();
        let commit = self.fetch(revision, first)?;
        self.layout.refer(revision, &commit)?;
        // From here on by commit: files of two commits must not meet when the branch moves during a download.
        let snapshot = Snapshot {
            folder: self.layout.snapshot(&commit),
            commit,
            download: self,
        };
        rest.iter().try_for_each(|file| snapshot.fetch(file))?;
        if let Files::Model = files {
            snapshot.fetch_model()?;
        }
        Ok(snapshot.folder)
    }

    /// Downloads one file, if it is not here, and gives its commit.
    fn fetch(&self, revision: &str, file: &str) -> Result<String> {
        if !is_file_name(file) {
            let reason = "expected a name without `..`, control characters or a leading `/`";
            return Err(self.failed(file, reason));
        }
        let fetched = self.try_fetch(revision, file);
        fetched.map_err(|failure| self.explain(file, failure))
    }

    fn try_fetch(&self, revision: &str, file: &str) -> Outcome<String> {
        let mut patience = Patience::new(self.client.limits(), self.stop);
        patience.check()?;
        let endpoint = self.client.endpoint();
        let url = endpoint.file(self.repository, revision, file);
        let response = self.client.head(&url, &mut patience)?;
        let is_redirect = response.status().is_redirection();
        let announced = Announced::of(response.headers(), is_redirect, file)?;
        let Announced { commit, blob, .. } = &announced;
        if is_commit(revision) && revision != commit {
            return Err(Failure::Lasting(format!(
                "asked for commit `{revision}`, the hub answers with `{commit}`"
            )));
        }
        let transfer = Transfer {
            client: &self.client,
            url: &endpoint.file(self.repository, commit, file),
            file,
            announced: &announced,
            incomplete: self.layout.incomplete(blob),
            blob: self.layout.blob(blob),
        };
        self.obtain(&transfer, &mut patience)?;
        self.layout.point(commit, file, blob)?;
        Ok(commit.clone())
    }

    /// Downloads contents that are not here, or whose length says that they are not whole.
    fn obtain(&self, transfer: &Transfer<'_>, patience: &mut Patience<'_>) -> Outcome<()> {
        let size = transfer.announced.size;
        let is_whole = || {
            let here = fs::metadata(&transfer.blob).ok().map(|here| here.len());
            here.is_some() && (size.is_none() || here == size)
        };
        if is_whole() {
            return Ok(());
        }
        let wait = Wait {
            lock: &self.layout.lock(&transfer.announced.blob),
            incomplete: &transfer.incomplete,
            file: transfer.file,
            stall: self.client.limits().stall,
        };
        let _lock = lock::acquire(&wait, patience)?;
        // Whoever held the lock may have brought it.
        if is_whole() {
            return Ok(());
        }
        let folder = self.layout.blob("");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        transfer.run(patience)
    }

    fn explain(&self, file: &str, failure: Failure) -> Error {
        let model = self.repository.id().to_string();
        let endpoint = self.client.endpoint().to_string();
        match failure {
            Failure::Local(error) => error,
            Failure::Unreachable(reason) | Failure::Broken(reason) => self.unreachable(reason),
            Failure::Lasting(reason)
            | Failure::ThrownAway(reason)
            | Failure::Passing { reason, .. } => self.failed(file, &reason),
            Failure::Interrupted => Error::Interrupted {
                model,
                file: file.to_string(),
            },
            Failure::Missing(reason) => Error::NotOnHub {
                model,
                endpoint,
                revision: self.repository.revision().to_string(),
                file: file.to_string(),
                reason: reason.to_string(),
            },
            Failure::Refused(status) => Error::Refused {
                model,
                endpoint,
                status,
                token: if self.client.has_token() {
                    "with a token"
                } else {
                    "without a token"
                },
            },
        }
    }

    fn failed(&self, file: &str, reason: &str) -> Error {
        Error::Download {
            model: self.repository.id().to_string(),
            file: shown(file),
            reason: reason.to_string(),
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable {
            model: self.repository.id().to_string(),
            endpoint: self.client.endpoint().to_string(),
            reason,
        }
    }
}

/// The folder of one commit, being filled.
struct Snapshot<'a> {
    download: &'a Download<'a>,
    commit: String,
    folder: PathBuf,
}

impl Snapshot<'_> {
    fn fetch(&self, file: &str) -> Result<()> {
        if is_file_name(file) && self.folder.join(file).exists() {
            return Ok(());
        }
        self.download.fetch(&self.commit, file).map(|_| ())
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

    /// What a model has beside its configuration.
    fn fetch_model(&self) -> Result<()> {
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
            return Err(self.download.failed(WEIGHTS, &reason));
        }
        // The index is checked here as well: a shard named `../x` would be written outside the cache.
        let shards = shard_files(&self.folder.join(INDEX))?;
        shards.iter().try_for_each(|shard| self.fetch(shard))
    }
}

/// Whether a folder has what cannot be done without.
fn suffices(folder: &Path, files: Files<'_>) -> bool {
    match files {
        Files::Model => folder.join(CONFIG).exists() && has_weights(folder),
        Files::Named(names) => {
            let is_here = |name: &&str| is_file_name(name) && folder.join(name).exists();
            !names.is_empty() && names.iter().all(is_here)
        }
    }
}

/// Whether the hub could have nothing to add to a folder that suffices.
fn is_all_there_may_be(folder: &Path, files: Files<'_>) -> bool {
    match files {
        Files::Model => folder.join(TOKENIZER).exists(),
        Files::Named(_) => true,
    }
}

fn has_weights(folder: &Path) -> bool {
    let all_shards = |files: BTreeSet<String>| files.iter().all(|file| folder.join(file).exists());
    folder.join(WEIGHTS).exists() || shard_files(&folder.join(INDEX)).is_ok_and(all_shards)
}
