//! Downloading the files of one model.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::{ProgressBar, ProgressStyle};

use super::{HubOptions, variable};
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
/// A connection that breaks during a download is taken up again where it broke.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// One model at one revision, and how to reach it.
pub(super) struct Download {
    model: String,
    revision: String,
    endpoint: String,
    cache: Cache,
    api: Api,
    has_token: bool,
}

impl Download {
    pub(super) fn new(model: &str, options: &HubOptions) -> Result<Self> {
        let revision = options
            .revision
            .clone()
            .unwrap_or_else(|| "main".to_string());
        let endpoint = options.endpoint();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        if revision.is_empty()
            || revision.contains("..")
            || revision.starts_with('/')
            || !revision.bytes().all(allowed)
        {
            let reason =
                format!("expected a branch, tag or commit as the revision, got `{revision}`");
            return Err(Error::Download {
                model: model.to_string(),
                file: CONFIG.to_string(),
                reason,
            });
        }
        let cache = options.cache();
        let token = options.token(&cache);
        let has_token = token.is_some();
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(endpoint.clone())
            .with_token(token)
            .build()
            .map_err(|error| Error::Download {
                model: model.to_string(),
                file: CONFIG.to_string(),
                reason: error.to_string(),
            })?;
        Ok(Download {
            model: model.to_string(),
            revision,
            endpoint,
            cache,
            api,
            has_token,
        })
    }

    /// The snapshot's folder, complete.
    pub(super) fn run(&self) -> Result<PathBuf> {
        let cached = self.cached().filter(|folder| has_weights(folder));
        if let Some(folder) = &cached
            && folder.join(TOKENIZER).exists()
        {
            return Ok(folder.clone());
        }
        let downloaded = if variable("HF_HUB_OFFLINE").is_some_and(|value| value != "0") {
            Err(self.unreachable("`HF_HUB_OFFLINE` is set".to_string()))
        } else {
            self.download()
        };
        match (downloaded, cached) {
            // Not every model has a tokenizer: what is here may well be all there is.
            (Err(Error::Unreachable { .. }), Some(folder)) => Ok(folder),
            (downloaded, _) => downloaded,
        }
    }

    /// The snapshot that an earlier download left, which may be incomplete.
    fn cached(&self) -> Option<PathBuf> {
        let repo = self.repo(&self.revision);
        let by_commit = self
            .cache
            .path()
            .join(repo.folder_name())
            .join("snapshots")
            .join(&self.revision);
        if by_commit.join(CONFIG).exists() {
            return Some(by_commit);
        }
        let config = self.cache.repo(repo).get(CONFIG)?;
        config.parent().map(Path::to_path_buf)
    }

    fn download(&self) -> Result<PathBuf> {
        let config = self.fetch(&self.api.repo(self.repo(&self.revision)), CONFIG)?;
        let folder = config.parent().unwrap_or(Path::new(".")).to_path_buf();
        let commit = folder
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or(&self.revision);
        // From here on by commit: files of two commits must not meet when the branch moves during a download.
        let snapshot = Snapshot {
            download: self,
            repo: self.api.repo(self.repo(commit)),
            folder,
        };
        for file in COMPANIONS {
            snapshot.fetch_if_present(file)?;
        }
        if !snapshot.fetch_if_present(WEIGHTS)? {
            snapshot.fetch_shards()?;
        }
        Ok(snapshot.folder)
    }

    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.model.clone(), RepoType::Model, revision.to_string())
    }

    fn fetch(&self, repo: &ApiRepo, file: &str) -> Result<PathBuf> {
        let mut attempt = 1;
        loop {
            match repo.download_with_progress(file, Bar::default()) {
                Ok(path) => return Ok(path),
                Err(error) if attempt < ATTEMPTS && is_broken_connection(&error) => {
                    thread::sleep(PAUSE);
                    attempt += 1;
                }
                Err(error) => return Err(self.explain(file, error)),
            }
        }
    }

    fn explain(&self, file: &str, error: ApiError) -> Error {
        let (model, file) = (self.model.clone(), file.to_string());
        let text = error.to_string();
        let ApiError::RequestError(error) = error else {
            return Error::Download {
                model,
                file,
                reason: text,
            };
        };
        let Some(response) = error.into_response() else {
            return self.unreachable(text);
        };
        let endpoint = self.endpoint.clone();
        match response.status() {
            status @ (401 | 403) => {
                let token = if self.has_token {
                    "with a token"
                } else {
                    "without a token"
                };
                Error::Refused {
                    model,
                    endpoint,
                    status,
                    token,
                }
            }
            404 => {
                let reason = match response.header("x-error-code") {
                    Some("RepoNotFound") => "no such model",
                    Some("RevisionNotFound") => "no such revision",
                    _ => "not found (http 404)",
                };
                let (revision, reason) = (self.revision.clone(), reason.to_string());
                Error::NotOnHub {
                    model,
                    endpoint,
                    revision,
                    file,
                    reason,
                }
            }
            _ => Error::Download {
                model,
                file,
                reason: text,
            },
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable {
            model: self.model.clone(),
            endpoint: self.endpoint.clone(),
            reason,
        }
    }
}

/// The folder of one commit, being filled.
struct Snapshot<'a> {
    download: &'a Download,
    repo: ApiRepo,
    folder: PathBuf,
}

impl Snapshot<'_> {
    fn fetch(&self, file: &str) -> Result<()> {
        if self.folder.join(file).exists() {
            return Ok(());
        }
        self.download.fetch(&self.repo, file).map(|_| ())
    }

    /// Whether the model has the file.
    fn fetch_if_present(&self, file: &str) -> Result<bool> {
        match self.fetch(file) {
            Err(Error::NotOnHub { .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn fetch_shards(&self) -> Result<()> {
        if !self.fetch_if_present(INDEX)? {
            return Err(Error::Download {
                model: self.download.model.clone(),
                file: WEIGHTS.to_string(),
                reason: format!(
                    "the hub has neither this file nor `{INDEX}`; only safetensors weights are read"
                ),
            });
        }
        // The index is checked here as well: a shard named `../x` would be written outside the cache.
        shard_files(&self.folder.join(INDEX))?
            .iter()
            .try_for_each(|shard| self.fetch(shard))
    }
}

fn has_weights(folder: &Path) -> bool {
    let all_shards = |files: std::collections::BTreeSet<String>| {
        files.iter().all(|file| folder.join(file).exists())
    };
    folder.join(WEIGHTS).exists() || shard_files(&folder.join(INDEX)).is_ok_and(all_shards)
}

fn is_broken_connection(error: &ApiError) -> bool {
    use std::io::ErrorKind::{
        ConnectionAborted, ConnectionReset, Interrupted, TimedOut, UnexpectedEof,
    };
    let kinds = [
        ConnectionAborted,
        ConnectionReset,
        Interrupted,
        TimedOut,
        UnexpectedEof,
    ];
    matches!(error, ApiError::IoError(error) if kinds.contains(&error.kind()))
}

/// A progress bar on standard error, for as long as the file takes.
#[derive(Default)]
struct Bar(Option<ProgressBar>);

impl Progress for Bar {
    fn init(&mut self, size: usize, filename: &str) {
        let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let bar = self.0.get_or_insert_with(|| ProgressBar::new(0));
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(filename.to_string());
        bar.set_length(size as u64);
        bar.set_position(0);
    }

    fn update(&mut self, size: usize) {
        if let Some(bar) = &self.0 {
            bar.inc(size as u64);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
