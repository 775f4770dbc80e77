//! The files of a dataset on the hub: which are needed, how large they are, and where they are once they are here.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spectrain_checkpoints::hub::{self, HubLimits, Listing, RepoType, Repository};
use spectrain_checkpoints::{Error as HubError, HubOptions};

use super::address::HubAddress;
use super::formats::endings;
use super::splits::{Split, choose, converted, name, splits};
use crate::error::{Error, Result};

/// The branch to which the hub converts datasets.
const CONVERTED: &str = "refs/convert/parquet";

/// A dataset of the hub that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedData {
    /// As it was asked for.
    pub address: String,
    /// `org/name`.
    pub id: String,
    /// The branch, tag or commit that its files are of.
    pub revision: String,
    /// The commit that this was when it was downloaded.
    pub commit: String,
    /// Its configuration.
    pub config: String,
    /// Its split.
    pub split: String,
    /// The licence that its card names.
    pub licence: Option<String>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Its files, by their paths in the repository.
    pub files: Vec<String>,
    /// The same on this machine.
    #[serde(skip)]
    pub paths: Vec<PathBuf>,
    /// What is to be said of it.
    #[serde(skip)]
    pub remark: Option<String>,
}

impl fmt::Display for FetchedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            config,
            split,
            commit,
            files,
            ..
        } = self;
        let files = files.len();
        write!(
            f,
            "`{address}` is `{config}/{split}` at commit {commit}, files: {files}"
        )
    }
}

/// What would be downloaded of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Downloads {
    /// As it was asked for.
    pub address: String,
    /// The commit that would be read.
    pub commit: String,
    /// Its configuration and split, `config/split`.
    pub rows: String,
    /// How many files it has.
    pub files: usize,
    /// How many of them are not on this machine.
    pub missing: usize,
    /// Bytes of those that are not; `None` where the hub does not say it.
    pub bytes: Option<u64>,
}

/// A split and the list of files that it is of.
struct Found {
    repository: Repository,
    listing: Listing,
    split: Split,
}

impl Found {
    fn files(&self) -> Vec<&str> {
        self.split.files.iter().map(String::as_str).collect()
    }

    /// What is to be said of the rows.
    fn remark(&self) -> Option<String> {
        let id = self.repository.id();
        if self.split.is_cut {
            return Some(format!(
                "the hub has converted only the first rows of `{id}`, so only these are read"
            ));
        }
        let says =
            "the hub cannot be asked, so the files on this machine are taken for all of them";
        self.listing.is_partial.then(|| format!("`{id}`: {says}"))
    }
}

/// Downloads what is missing of a dataset's rows. What is here is not asked for again.
///
/// # Errors
/// The hub cannot be reached or has no such dataset, configuration or split, whose names the error lists.
pub fn fetch(address: &HubAddress, options: &HubOptions) -> Result<FetchedData> {
    if let Some(here) = is_here(address, options) {
        return Ok(here);
    }
    let found = find(address, options)?;
    let files = found.files();
    // A `.json` of a model is a configuration, which is small; that of a dataset is the dataset.
    let options = &HubOptions {
        limits: HubLimits {
            largest_text: options.limits.largest,
            ..options.limits.clone()
        },
        ..options.clone()
    };
    let folder = hub::download_listed(&found.repository, &found.listing, &files, options);
    let folder = folder.map_err(|error| unavailable(address, error))?;
    Ok(fetched(address, &found, &folder))
}

/// A dataset of which everything is here; `None` where the hub would have to be asked.
pub fn is_here(address: &HubAddress, options: &HubOptions) -> Option<FetchedData> {
    let own = repository(address).ok()?;
    let branch = own
        .at(CONVERTED)
        .ok()
        .filter(|_| address.revision.is_none());
    let kinds = [
        (Some(own), splits as fn(&Listing) -> Vec<Split>),
        (branch, converted),
    ];
    kinds.into_iter().find_map(|(repository, read)| {
        let repository = repository?;
        let listing = hub::listed(&repository, options)?;
        let splits = read(&listing);
        let found = chosen(address, repository, listing, &splits).ok()?;
        let files = found.files();
        let folder = hub::snapshot_with(&found.repository, &found.listing, &files, options)?;
        Some(fetched(address, &found, &folder))
    })
}

/// What [`fetch`] would download; asks the hub for the list of files alone.
///
/// # Errors
/// Those of [`fetch`].
pub fn downloads(address: &HubAddress, options: &HubOptions) -> Result<Downloads> {
    if let Some(here) = is_here(address, options) {
        return Ok(Downloads {
            address: here.address,
            commit: here.commit,
            rows: format!("{}/{}", here.config, here.split),
            files: here.files.len(),
            missing: 0,
            bytes: Some(0),
        });
    }
    let found = find(address, options)?;
    let is_here = |file: &&str| {
        hub::snapshot_with(&found.repository, &found.listing, &[file], options).is_some()
    };
    let files = found.files();
    let missing: Vec<&str> = files
        .iter()
        .copied()
        .filter(|file| !is_here(file))
        .collect();
    Ok(Downloads {
        address: address.to_string(),
        commit: found.listing.commit.clone(),
        rows: name(&found.split),
        files: files.len(),
        missing: missing.len(),
        bytes: bytes_of(&found.listing, &missing),
    })
}

fn bytes_of(listing: &Listing, files: &[&str]) -> Option<u64> {
    let of = |name: &&str| listing.files.iter().find(|file| file.path == **name)?.bytes;
    files.iter().map(of).sum()
}

fn fetched(address: &HubAddress, found: &Found, folder: &Path) -> FetchedData {
    let paths: Vec<PathBuf> = found
        .split
        .files
        .iter()
        .map(|file| folder.join(file))
        .collect();
    let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |data| data.len());
    FetchedData {
        address: address.to_string(),
        id: address.id.clone(),
        revision: found.repository.revision().to_string(),
        commit: found.listing.commit.clone(),
        config: found.split.config.clone(),
        split: found.split.name.clone(),
        licence: found.listing.card["license"].as_str().map(str::to_owned),
        bytes: paths.iter().map(length).sum(),
        files: found.split.files.clone(),
        remark: found.remark(),
        paths,
    }
}

fn repository(address: &HubAddress) -> Result<Repository> {
    let own = Repository::new(RepoType::Dataset, &address.id, address.revision.as_deref());
    own.map_err(|error| unavailable(address, error))
}

/// The rows that an address means: those of the repository's own files, else of the branch that the hub converts to.
fn find(address: &HubAddress, options: &HubOptions) -> Result<Found> {
    let failed = |error| unavailable(address, error);
    let own = repository(address)?;
    let listing = hub::list(&own, options).map_err(failed)?;
    let found = splits(&listing);
    if !found.is_empty() {
        return chosen(address, own, listing, &found);
    }
    let readable = "files in `.parquet`, `.jsonl` or `.json`";
    let there = endings(listing.files.iter().map(|file| file.path.as_str()));
    let there = if there.is_empty() {
        "none".to_string()
    } else {
        there
    };
    let refused = |reason: String| Error::HubData {
        address: address.to_string(),
        reason,
    };
    if let Some(revision) = &address.revision {
        return Err(refused(format!(
            "expected {readable} at the revision `{revision}`, found {there}; the hub converts only the main branch"
        )));
    }
    let branch = own.at(CONVERTED).map_err(failed)?;
    let converted_listing = hub::list(&branch, options).map_err(|error| match error {
        HubError::NotOnHub { .. } => refused(format!(
            "expected {readable}, found {there} and no branch `{CONVERTED}` either"
        )),
        error => failed(error),
    })?;
    let found = converted(&converted_listing);
    if found.is_empty() {
        return Err(refused(format!(
            "expected {readable}, found {there}, and no `config/split/0000.parquet` on the branch `{CONVERTED}`"
        )));
    }
    chosen(address, branch, converted_listing, &found)
}

fn chosen(
    address: &HubAddress,
    repository: Repository,
    listing: Listing,
    splits: &[Split],
) -> Result<Found> {
    let split = choose(splits, address).map_err(|reason| Error::HubData {
        address: address.to_string(),
        reason,
    })?;
    Ok(Found {
        split: split.clone(),
        repository,
        listing,
    })
}

/// What the hub or the way to it says about a dataset: the messages of the errors themselves are about models.
fn unavailable(address: &HubAddress, error: HubError) -> Error {
    let reason = match error {
        HubError::Unreachable {
            endpoint, reason, ..
        } => format!("`{endpoint}` cannot be reached: {reason}"),
        HubError::NotOnHub {
            endpoint,
            revision,
            file,
            reason,
            ..
        } => {
            let reason = reason.replace("model", "dataset");
            format!("`{endpoint}` has no {file} for it at the revision `{revision}`: {reason}")
        }
        error => error.to_string(),
    };
    Error::HubData {
        address: address.to_string(),
        reason,
    }
}
