//! The files of a repository at a revision, as the hub lists them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Client;
use super::connection;
use super::environment::Environment;
use super::failure::{Failure, Outcome, Patience};
use super::few_values::FewValues;
use super::options::HubOptions;
use super::repository::{Repository, is_commit, is_file_name};
use super::repository_cache::RepositoryCache;
use crate::error::{Error, Result};
use crate::printable::printable;

/// Bytes of the longest list that is read: some hundred thousand files.
const LONGEST: u64 = 64 << 20;
/// What is asked for, in errors.
const WHAT: &str = "list of files";

/// A file of a repository. What leads elsewhere is refused when it is downloaded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListedFile {
    /// Its path in the repository.
    #[serde(rename = "rfilename")]
    pub path: String,
    /// Bytes, where the hub says it.
    #[serde(rename = "size")]
    pub bytes: Option<u64>,
}

/// What the hub says of a repository, as far as it is looked at.
#[derive(Deserialize)]
struct Answer {
    sha: Option<String>,
    siblings: Option<Vec<ListedFile>>,
    #[serde(default, rename = "cardData")]
    card: FewValues,
}

/// The files of a repository at a commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The full name of the commit.
    pub commit: String,
    /// In the order of their paths.
    pub files: Vec<ListedFile>,
    /// What stands at the top of the repository's card, as JSON; null where it has none.
    pub card: Value,
    /// Whether these are only the files that are on this machine: the hub could not be asked.
    pub is_partial: bool,
}

impl Listing {
    /// Reads the hub's answer.
    fn read(text: &str) -> std::result::Result<Self, String> {
        let answer: Answer =
            serde_json::from_str(text).map_err(|error| format!("expected JSON: {error}"))?;
        let commit = answer.sha.unwrap_or_default();
        if !is_commit(&commit) {
            return Err(format!(
                "key `sha`: expected 40 hexadecimal digits, found `{}`",
                printable(&commit)
            ));
        }
        let files = answer.siblings;
        let mut files = files.ok_or("key `siblings`: expected a list of files, found none")?;
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self {
            commit,
            files,
            card: answer.card.0,
            is_partial: false,
        })
    }

    /// As the hub writes it.
    fn text(&self) -> String {
        let file = |file: &ListedFile| json!({"rfilename": file.path, "size": file.bytes});
        let files: Vec<Value> = self.files.iter().map(file).collect();
        json!({"sha": self.commit, "siblings": files, "cardData": self.card}).to_string()
    }
}

/// The list of a repository that an earlier download left. The hub is not asked.
pub(super) fn remembered(cache: &RepositoryCache, revision: &str) -> Option<Listing> {
    let text = fs::read_to_string(cache.listing(&cache.commit(revision)?)).ok()?;
    Listing::read(&text).ok()
}

/// The files of a snapshot that another program downloaded.
fn of_snapshot(cache: &RepositoryCache, revision: &str) -> Option<Listing> {
    let commit = cache.commit(revision)?;
    let folder = cache.cached(revision)?;
    let mut files = Vec::new();
    collect(&folder, &folder, &mut files);
    files.sort_by(|one: &ListedFile, other| one.path.cmp(&other.path));
    (!files.is_empty()).then_some(Listing {
        commit,
        files,
        card: Value::Null,
        is_partial: true,
    })
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<ListedFile>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(root, &path, files);
        } else if let (Ok(data), Some(path)) = (fs::metadata(&path), relative(root, &path)) {
            let bytes = Some(data.len());
            files.push(ListedFile { path, bytes });
        }
    }
}

/// A path from a folder on, with `/` between its parts.
fn relative(root: &Path, path: &Path) -> Option<String> {
    let parts = path.strip_prefix(root).ok()?.components();
    let parts: Option<Vec<&str>> = parts.map(|part| part.as_os_str().to_str()).collect();
    Some(parts?.join("/"))
}

/// Asks the hub, unless an earlier download left the list; where it cannot be reached, what is here of the snapshot.
pub(super) fn list(
    repository: &Repository,
    options: &HubOptions,
    environment: &Environment,
) -> Result<Listing> {
    let cache = connection::cache(environment, options, repository)?;
    if let Some(listing) = remembered(&cache, repository.revision()) {
        return Ok(listing);
    }
    let asked = connection::client(environment, options, repository.id()).and_then(|client| {
        let asked = ask(&client, repository, options);
        asked.map_err(|failure| connection::explain(&client, repository, WHAT, failure))
    });
    match asked {
        Err(error @ Error::Unreachable { .. }) => {
            of_snapshot(&cache, repository.revision()).ok_or(error)
        }
        asked => asked,
    }
}

/// Asks the hub.
pub(super) fn ask(
    client: &Client,
    repository: &Repository,
    options: &HubOptions,
) -> Outcome<Listing> {
    let mut patience = Patience::new(client.limits(), options.stop);
    patience.check()?;
    let revision = repository.revision();
    let mut url = client.endpoint().api(repository, &["revision", revision]);
    // With the size of each file.
    url.set_query(Some("blobs=true"));
    let listing = Listing::read(&client.text(&url, LONGEST, &mut patience)?)?;
    if is_commit(revision) && revision != listing.commit {
        let found = &listing.commit;
        return Err(Failure::Lasting(format!(
            "asked for commit `{revision}`, the hub answers with `{found}`"
        )));
    }
    Ok(listing)
}

/// Keeps a list whose files are here, so that the next time the hub is not asked.
pub(super) fn keep(cache: &RepositoryCache, revision: &str, listing: &Listing) -> Result<()> {
    if listing.is_partial {
        return Ok(());
    }
    cache.keep_listing(&listing.commit, &listing.text())?;
    cache.refer(revision, &listing.commit)
}

/// The snapshot with these files of a list, where all of them are here.
pub(super) fn here(cache: &RepositoryCache, commit: &str, files: &[&str]) -> Option<PathBuf> {
    let folder = cache.snapshot(commit);
    let files: BTreeSet<&str> = files.iter().copied().collect();
    let is_here = |file: &&str| is_file_name(file) && folder.join(file).is_file();
    (!files.is_empty() && files.iter().all(is_here)).then_some(folder)
}
