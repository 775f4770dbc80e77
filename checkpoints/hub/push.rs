//! A sealed folder to the hub, in one commit: what is there already is not sent again.
//!
//! The requests are those of `huggingface_hub` (`_commit_api.py`, `lfs.py`): the repository is made, the hub says which files go
//! to large-file storage, those that are not there yet are sent to it, and one commit names all of them.

mod client;
mod commit;
mod files;
mod large;

use std::path::Path;

use serde_json::{Value, json};

use super::connection::{self, BEYOND_PLAN, INVALID_TOKEN};
use super::environment::Environment;
use super::failure::{Failure, Outcome, Patience, http};
use super::options::HubOptions;
use super::repository::Repository;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::printable::printable;
use client::{Answer, Sender};
pub use files::{Pushed, pushed_files};

/// Who may see a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// Its owner, and whom they let.
    Private,
    /// Everybody.
    Public,
}

/// What is pushed, and where to.
#[derive(Debug, Clone, Copy)]
pub struct Push<'a> {
    /// The folder of a drafter that this program wrote.
    pub folder: &'a Path,
    /// Where to, with the branch as its revision.
    pub repository: &'a Repository,
    /// Who may see a repository that is made now. One that is there must not be seen by more.
    pub visibility: Visibility,
    /// The first line of the commit's message.
    pub message: &'a str,
}

/// What a push came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushReport {
    /// The commit's page, or its name where the hub gives no page; none where every file was there already.
    pub commit: Option<String>,
    /// Bytes that were sent to large-file storage.
    pub sent: u64,
    /// Large files that were there already.
    pub already_there: usize,
    /// Weights in the repository that are none of this folder's, which engines may load in their place.
    pub strangers: Vec<String>,
}

/// Uploads a sealed folder in one commit. A push that was interrupted goes on behind the large files that it has sent.
///
/// # Errors
/// The folder is not what was sealed, there is no token, the hub refuses or cannot be reached, or the repository can be seen by
/// more than were meant.
pub fn push(push: &Push<'_>, options: &HubOptions) -> Result<PushReport> {
    push_in(push, options, &Environment::of_process())
}

pub(super) fn push_in(
    push: &Push<'_>,
    options: &HubOptions,
    environment: &Environment,
) -> Result<PushReport> {
    let files = pushed_files(&ModelFolder::open(push.folder)?)?;
    let client = connection::client(environment, options, push.repository.id())?;
    let failed = |doing: &str, reason: String| Error::Push {
        repository: push.repository.id().to_string(),
        endpoint: client.endpoint().to_string(),
        doing: doing.to_string(),
        reason: client.hide(&reason),
    };
    if !client.has_token() {
        let reason = "there is none: set `HF_TOKEN` to one that may write".to_string();
        return Err(failed("read the token", reason));
    }
    let sender = Sender {
        client: &client,
        stop: options.stop,
    };
    let run = Run {
        push,
        files: &files,
        sender: &sender,
    };
    let mut doing = "";
    let done = run.all(&mut doing);
    done.map_err(|failure| match failure {
        Failure::Local(error) => error,
        failure => failed(doing, words(failure)),
    })
}

/// What a failure of a push is called.
fn words(failure: Failure) -> String {
    match failure {
        Failure::Refused { status, said } => {
            let advice = match status {
                401 => INVALID_TOKEN,
                402 => BEYOND_PLAN,
                _ => {
                    "the token may not do that; set `HF_TOKEN` to one that may write to this repository"
                }
            };
            let stop = if said.is_some() { ";" } else { ":" };
            format!("{}{stop} {advice}", http(status, said.as_deref()))
        }
        Failure::Interrupted => {
            "interrupted; the same command goes on after what was sent".to_string()
        }
        Failure::Missing(reason) => reason.to_string(),
        Failure::Unreachable(reason) => format!("the hub cannot be reached: {reason}"),
        Failure::Broken(reason) => format!("the connection broke: {reason}"),
        Failure::Passing { reason, .. }
        | Failure::Lasting(reason)
        | Failure::ThrownAway(reason) => reason,
        Failure::Local(error) => error.to_string(),
    }
}

/// A push under way.
struct Run<'a> {
    push: &'a Push<'a>,
    files: &'a [Pushed],
    sender: &'a Sender<'a>,
}

impl Run<'_> {
    /// Does all of it; `doing` is what was done last.
    fn all(&self, doing: &mut &'static str) -> Outcome<PushReport> {
        *doing = "make the repository";
        self.make()?;
        *doing = "look at the repository";
        self.check_visibility()?;
        let strangers = self.strangers()?;
        *doing = "ask which files are large";
        let modes = commit::modes(self.sender, self.push.repository, self.files)?;
        let mut report = PushReport {
            commit: None,
            sent: 0,
            already_there: 0,
            strangers,
        };
        if modes.iter().all(|mode| mode.is_there) {
            report.already_there = modes.iter().filter(|mode| mode.is_large).count();
            return Ok(report);
        }
        *doing = "send large files";
        let wanted: Vec<&Pushed> = self
            .files
            .iter()
            .zip(&modes)
            .filter(|(_, mode)| mode.is_large)
            .map(|(file, _)| file)
            .collect();
        let sent = large::send(self.sender, self.push.repository, &wanted)?;
        report.sent = sent.bytes;
        report.already_there = sent.already_there;
        *doing = "commit";
        report.commit = Some(self.commit(&modes)?);
        Ok(report)
    }

    fn api(&self, parts: &[&str]) -> url::Url {
        self.sender
            .client
            .endpoint()
            .api(self.push.repository, parts)
    }

    /// Makes the repository and the branch, unless they are there.
    fn make(&self) -> Outcome<()> {
        let id = self.push.repository.id();
        let (owner, name) = id.split_once('/').unwrap_or(("", id));
        let (visibility, private) = match self.push.visibility {
            Visibility::Private => ("private", true),
            Visibility::Public => ("public", false),
        };
        let wanted = json!({
            "type": "model",
            "organization": owner,
            "name": name,
            "private": private,
            "visibility": visibility,
        });
        let url = self.sender.client.endpoint().at(["api", "repos", "create"]);
        match self.sender.post(&url, &wanted) {
            // 409: it is there.
            Ok(_) => {}
            // A token that may write to a repository need not be one that may make it.
            Err(refused @ Failure::Refused { .. }) => {
                if !self.is_there()? {
                    return Err(refused);
                }
            }
            Err(failure) => return Err(failure),
        }
        if self.push.repository.is_at_main() {
            return Ok(());
        }
        let branch = self.api(&["branch", self.push.repository.revision()]);
        self.sender.post(&branch, &json!({})).map(drop)
    }

    /// Whether the repository is there, and may be seen with this token.
    fn is_there(&self) -> Outcome<bool> {
        match self.sender.get(&self.api(&[])) {
            Ok(_) => Ok(true),
            Err(Failure::Missing(_) | Failure::Refused { .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Fails where the repository can be seen by more than were meant.
    fn check_visibility(&self) -> Outcome<()> {
        let found = self.sender.get(&self.api(&[]))?;
        match (self.push.visibility, &found["private"]) {
            (Visibility::Public, _) | (Visibility::Private, Value::Bool(true)) => Ok(()),
            (Visibility::Private, Value::Bool(false)) => Err(Failure::Lasting(
                "the repository is public: give `--public` to push there, or make it private on its page".to_string(),
            )),
            (Visibility::Private, _) => Err(Failure::Lasting(
                "the hub does not say whether the repository is private: give `--public` to push there all the same".to_string(),
            )),
        }
    }

    /// Weights in the repository that are none of the folder's.
    fn strangers(&self) -> Outcome<Vec<String>> {
        let revision = self.push.repository.revision();
        let found = match self.sender.get(&self.api(&["revision", revision])) {
            // Nothing was committed yet.
            Err(Failure::Missing(_)) => return Ok(Vec::new()),
            found => found?,
        };
        let names = found["siblings"].as_array().into_iter().flatten();
        let names = names.filter_map(|file| file["rfilename"].as_str());
        let is_stranger = |name: &&str| {
            crate::seal::may_be_weights(name) && !self.files.iter().any(|file| file.name == **name)
        };
        Ok(names.filter(is_stranger).map(printable).collect())
    }

    fn commit(&self, modes: &[commit::Mode]) -> Outcome<String> {
        let lines = commit::lines(self.push.message, self.files, modes)?;
        let url = self.api(&["commit", self.push.repository.revision()]);
        let mut patience = Patience::new(self.sender.client.limits(), self.sender.stop);
        loop {
            let answer = self.sender.once(&url, client::NDJSON, &lines);
            let failure = match answer.and_then(|answer| named(&answer)) {
                Ok(commit) => return Ok(commit),
                // It may have come through: a second commit of the same files would be an empty one.
                Err(Failure::Broken(reason)) => {
                    let now = commit::modes(self.sender, self.push.repository, self.files)?;
                    if now.iter().all(|mode| mode.is_there) {
                        return Ok(self.push.repository.revision().to_string());
                    }
                    Failure::Broken(reason)
                }
                Err(failure) => failure,
            };
            patience.after(failure)?;
        }
    }
}

/// The commit's page or its name. Whatever answers without either may be no hub.
fn named(answer: &Answer) -> Outcome<String> {
    let text = |key: &str| {
        let said = answer.value[key].as_str();
        said.filter(|said| !said.is_empty()).map(printable)
    };
    text("commitUrl")
        .or_else(|| text("commitOid"))
        .ok_or_else(|| Failure::Broken("the hub's answer names no commit".to_string()))
}
