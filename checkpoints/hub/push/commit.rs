//! What the hub wants of each file, and the commit that names all of them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::client::Sender;
use super::files::Pushed;
use crate::error::Result;
use crate::hub::failure::{Failure, Outcome};
use crate::hub::repository::Repository;

/// How a file goes to the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    /// To large-file storage, and its name into the commit; others go into the commit whole.
    pub(super) is_large: bool,
    /// Whether the repository has it already.
    pub(super) is_there: bool,
}

/// How each of the files goes to the hub.
pub(super) fn modes(
    sender: &Sender<'_>,
    repository: &Repository,
    files: &[Pushed],
) -> Outcome<Vec<Mode>> {
    let asked: Result<Vec<Value>> = files
        .iter()
        .map(|file| {
            let sample = STANDARD.encode(file.sample()?);
            Ok(json!({"path": file.name, "size": file.bytes, "sample": sample}))
        })
        .collect();
    let url = sender
        .client
        .endpoint()
        .api(repository, &["preupload", repository.revision()]);
    let answer = sender.post(&url, &json!({"files": asked?}))?;
    let listed = answer.value["files"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    files.iter().map(|file| mode(file, &listed)).collect()
}

fn mode(file: &Pushed, listed: &[Value]) -> Outcome<Mode> {
    let name = &file.name;
    let found = listed.iter().find(|found| found["path"] == name.as_str());
    let said = found.and_then(|found| found["uploadMode"].as_str());
    let is_large = match said {
        Some("lfs") => file.bytes > 0,
        Some("regular") => false,
        other => {
            let other = other.unwrap_or("nothing");
            return Err(Failure::Lasting(format!(
                "`uploadMode` of `{name}`: expected `lfs` or `regular`, found `{other}`"
            )));
        }
    };
    if found.is_some_and(|found| found["shouldIgnore"] == true) {
        return Err(Failure::Lasting(format!(
            "the repository's `.gitignore` leaves out `{name}`: remove the line that matches it"
        )));
    }
    let there = found.and_then(|found| found["oid"].as_str());
    let own = if is_large {
        file.sha256.clone()
    } else {
        file.git_name()?
    };
    Ok(Mode {
        is_large,
        is_there: there == Some(own.as_str()),
    })
}

/// The commit, a JSON object a line.
pub(super) fn lines(message: &str, files: &[Pushed], modes: &[Mode]) -> Result<Vec<u8>> {
    let mut lines = Vec::new();
    let mut line = |value: &Value| {
        lines.extend_from_slice(value.to_string().as_bytes());
        lines.push(b'\n');
    };
    line(&json!({"key": "header", "value": {"summary": message, "description": ""}}));
    for (file, mode) in files.iter().zip(modes) {
        let value = if mode.is_large {
            json!({"key": "lfsFile", "value": {
                "path": file.name, "algo": "sha256", "oid": file.sha256, "size": file.bytes,
            }})
        } else {
            let content = STANDARD.encode(file.contents()?);
            json!({"key": "file", "value": {
                "path": file.name, "encoding": "base64", "content": content,
            }})
        };
        line(&value);
    }
    Ok(lines)
}
