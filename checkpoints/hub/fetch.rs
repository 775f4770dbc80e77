//! One file of a repository: what the hub says of it, its contents, its place in the cache.

use std::fs;

use super::announced::Announced;
use super::blob::Transfer;
use super::client::Client;
use super::connection;
use super::failure::{Failure, Outcome, Patience};
use super::lock::{self, Wait};
use super::repository::{Repository, is_commit, is_file_name};
use super::repository_cache::RepositoryCache;
use crate::error::{Error, Result};

/// Where files of one repository come from and where they go.
pub(super) struct Fetch<'a> {
    repository: &'a Repository,
    cache: &'a RepositoryCache,
    client: Client,
    stop: Option<fn() -> bool>,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(
        repository: &'a Repository,
        cache: &'a RepositoryCache,
        client: Client,
        stop: Option<fn() -> bool>,
    ) -> Self {
        Fetch {
            repository,
            cache,
            client,
            stop,
        }
    }

    /// How the hub is asked.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Downloads one file, if it is not here, and gives its commit.
    pub(super) fn fetch(&self, revision: &str, file: &str) -> Result<String> {
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
            incomplete: self.cache.incomplete(blob),
            blob: self.cache.blob(blob),
        };
        self.obtain(&transfer, &mut patience)?;
        self.cache.point(commit, file, blob)?;
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
            lock: &self.cache.lock(&transfer.announced.blob),
            incomplete: &transfer.incomplete,
            file: transfer.file,
            stall: self.client.limits().stall,
        };
        let _lock = lock::acquire(&wait, patience)?;
        // Whoever held the lock may have brought it.
        if is_whole() {
            return Ok(());
        }
        let folder = self.cache.blob("");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        transfer.run(patience)
    }

    fn explain(&self, file: &str, failure: Failure) -> Error {
        connection::explain(&self.client, self.repository, file, failure)
    }

    pub(super) fn failed(&self, file: &str, reason: &str) -> Error {
        connection::failed(&self.client, self.repository, file, reason)
    }
}
