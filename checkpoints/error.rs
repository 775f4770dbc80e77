//! What can go wrong with files, folders and dialects.

use std::io;
use std::path::{Path, PathBuf};

use crate::mismatch::Mismatch;
use crate::near::{if_missing, near_file};
use crate::printable::printable;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// A checkpoint could not be read, written, fetched or accepted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot {action} `{}`: {cause}{}", .path.display(), if_missing(.path, .cause))]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        cause: io::Error,
    },
    /// A link to a file that is not there.
    #[error("`{}` -> `{}`: the file it points to does not exist", .path.display(), printable(&.leads_to.to_string_lossy()))]
    Link {
        /// The link.
        path: PathBuf,
        /// What it points to.
        leads_to: PathBuf,
    },
    /// A JSON file does not parse.
    #[error("`{}` is not valid JSON: {}", .path.display(), printable(&.cause.to_string()))]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason, with line and column.
        cause: serde_json::Error,
    },
    /// A folder lacks a file it must have, or holds something else under its name.
    #[error("`{}`: {}", .path.display(), printable(.reason))]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A safetensors file is truncated or malformed.
    #[error("`{}` is not a valid safetensors file: {}", .path.display(), printable(.reason))]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The shard index names files or tensors that cannot be used.
    #[error("shard index `{}`: {}", .path.display(), printable(.reason))]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor is stored twice.
    #[error("tensor `{}` is in both `{}` and `{}`", printable(.name), .first.display(), .second.display())]
    Duplicate {
        /// The tensor.
        name: String,
        /// The file that was read first.
        first: PathBuf,
        /// The file that repeats it.
        second: PathBuf,
    },
    /// A tensor was asked for that is not there.
    #[error("tensor `{}` is not in `{}`", printable(.name), .path.display())]
    NoTensor {
        /// The tensor.
        name: String,
        /// The folder or file.
        path: PathBuf,
    },
    /// The names of the tensors are not those expected.
    #[error("`{}`: {}", .path.display(), differences(.missing, .unexpected))]
    Names {
        /// The folder or file.
        path: PathBuf,
        /// Required names that are absent.
        missing: Vec<String>,
        /// Present names that nothing asks for.
        unexpected: Vec<String>,
    },
    /// A tensor has another shape than expected.
    #[error("tensor `{}` in `{}`: {mismatch}", printable(.name), .path.display())]
    Shape {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// A tensor has another element type than expected.
    #[error("tensor `{}` in `{}`: {mismatch}", printable(.name), .path.display())]
    ElementType {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// A tensor's values cannot be what they are meant to be.
    #[error("tensor `{}` in `{}`: {}", printable(.name), .path.display(), printable(.reason))]
    Values {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with the values.
        reason: String,
    },
    /// A tensor in memory is inconsistent or cannot be converted.
    #[error("tensor `{}`: {}", printable(.name), printable(.reason))]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key of a JSON file has a value that cannot be used.
    #[error("`{}`: key `{key}`: {mismatch}", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with dots between levels.
        key: String,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// A layout that this dialect cannot write.
    #[error("cannot write a folder of {dialect}: `{field}`: {mismatch}")]
    Layout {
        /// The dialect.
        dialect: &'static str,
        /// The field of the layout.
        field: &'static str,
        /// What would do, and what is there.
        mismatch: Mismatch,
    },
    /// Neither a folder nor the id of a hub model.
    #[error("no model folder at `{}`, and `{model}` is not a hub id of the form `org/name`{}", .tried.display(), near_file(Path::new(.model)))]
    NoModel {
        /// What was asked for.
        model: String,
        /// The path that was looked at.
        tried: PathBuf,
    },
    /// The hub cannot be reached.
    #[error(
        "no folder `{model}` here, and `{endpoint}` cannot be reached to download it: {reason}; without a network, name a \
         folder that holds config.json and the safetensors weights, and for a target tokenizer.json and tokenizer_config.json{}",
        near_file(Path::new(.model))
    )]
    Unreachable {
        /// What was asked for.
        model: String,
        /// The hub's address.
        endpoint: String,
        /// The transport's reason.
        reason: String,
    },
    /// The hub has no such model, revision or file.
    #[error(
        "no folder `{model}` here, and `{endpoint}` has no `{file}` of `{model}` at revision `{revision}`: {reason}{}",
        near_file(Path::new(.model))
    )]
    NotOnHub {
        /// What was asked for.
        model: String,
        /// The hub's address.
        endpoint: String,
        /// The revision that was asked for.
        revision: String,
        /// The file that was asked for.
        file: String,
        /// What the hub says.
        reason: String,
    },
    /// The hub wants a token, or another one.
    #[error("`{endpoint}` refuses access to `{model}` (http {status}, {token}): {reason}")]
    Refused {
        /// What was asked for.
        model: String,
        /// The hub's address.
        endpoint: String,
        /// 401, 402 or 403.
        status: u16,
        /// Whether a token was sent.
        token: &'static str,
        /// What the hub says, and what to do.
        reason: String,
    },
    /// What is asked of the hub, or how, makes no sense.
    #[error("cannot ask the hub for `{model}`: {reason}")]
    HubRequest {
        /// What was asked for.
        model: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A download was asked to stop.
    #[error(
        "interrupted while downloading `{file}` of `{model}`; the same command goes on from there"
    )]
    Interrupted {
        /// What was asked for.
        model: String,
        /// The file.
        file: String,
    },
    /// A folder could not be pushed.
    #[error("cannot push to `{repository}` of `{endpoint}`: {doing}: {reason}")]
    Push {
        /// Where to.
        repository: String,
        /// The hub's address.
        endpoint: String,
        /// What was done when it failed.
        doing: String,
        /// What went wrong.
        reason: String,
    },
    /// A download failed for another reason.
    #[error("cannot download `{file}` of `{model}`: {reason}")]
    Download {
        /// What was asked for.
        model: String,
        /// The file.
        file: String,
        /// What went wrong.
        reason: String,
    },
}

impl Error {
    /// Turns an I/O error into one that says what was attempted, and where.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |cause| Error::Io {
            action,
            path,
            cause,
        }
    }
}

const LISTED: usize = 10;

fn differences(missing: &[String], unexpected: &[String]) -> String {
    [("missing", missing), ("unexpected", unexpected)]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{what} tensors: {}", listed(names)))
        .collect::<Vec<_>>()
        .join("; ")
}

/// The first names, quoted, and how many more there are.
fn listed(names: &[String]) -> String {
    let quoted: Vec<_> = names
        .iter()
        .take(LISTED)
        .map(|name| format!("`{}`", printable(name)))
        .collect();
    let list = quoted.join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_error_reads_as_the_conventions_say() {
        let error = Error::Shape {
            name: "fc.weight".into(),
            path: "a/model.safetensors".into(),
            mismatch: Mismatch::new("[4096, 12288]", "[4096, 8192]"),
        };
        assert_eq!(
            error.to_string(),
            "tensor `fc.weight` in `a/model.safetensors`: expected [4096, 12288], found [4096, 8192]"
        );
    }

    #[test]
    fn names_out_of_files_do_not_steer_the_terminal() {
        let name = || "a\u{1b}[2J\r".to_string();
        let path = || PathBuf::from("f");
        let errors = [
            Error::NoTensor {
                name: name(),
                path: path(),
            },
            Error::Names {
                path: path(),
                missing: Vec::new(),
                unexpected: vec![name()],
            },
            Error::Safetensors {
                path: path(),
                reason: format!("tensor `{}`", name()),
            },
            Error::Key {
                path: path(),
                key: "model_type".into(),
                mismatch: Mismatch::new("`\"llama\"`", name()),
            },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(r"a\u{1b}[2J\r"), "{text:?}");
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }

    #[test]
    fn long_lists_of_names_end_in_a_count() {
        let names: Vec<_> = (0..13).map(|i| format!("t{i}")).collect();
        let error = Error::Names {
            path: "a".into(),
            missing: names,
            unexpected: vec!["x".into()],
        };
        let text = error.to_string();
        assert!(text.starts_with("`a`: missing tensors: `t0`, `t1`, "));
        assert!(
            text.ends_with("`t9` and 3 more; unexpected tensors: `x`"),
            "{text}"
        );
    }
}
