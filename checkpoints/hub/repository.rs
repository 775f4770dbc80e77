//! What is downloaded: a repository at a revision, and the names in it.

use hf_hub::{Repo, RepoType};

use crate::error::{Error, Result};
use crate::printable::printable;

const MAIN: &str = "main";

/// A repository of the hub at one revision.
#[derive(Clone, Debug)]
pub struct Repository {
    kind: RepoType,
    id: String,
    revision: String,
}

impl Repository {
    /// Checks that neither the id nor the revision, by default `main`, can mean a path elsewhere.
    pub fn new(kind: RepoType, id: &str, revision: Option<&str>) -> Result<Self> {
        let revision = revision.unwrap_or(MAIN);
        let refused = |what: &str, found: &str| Error::HubRequest {
            model: printable(id),
            reason: format!("expected {what}, found `{}`", printable(found)),
        };
        if !is_id(kind, id) {
            return Err(refused("an id of the form `org/name`", id));
        }
        if !is_revision(revision) {
            return Err(refused("a branch, tag or commit as the revision", revision));
        }
        Ok(Repository {
            kind,
            id: id.to_string(),
            revision: revision.to_string(),
        })
    }

    /// Reads `org/name` or `org/name@revision`, which may begin with `hf://`.
    pub fn read(kind: RepoType, text: &str) -> Result<Self> {
        let text = text.strip_prefix("hf://").unwrap_or(text);
        match text.split_once('@') {
            Some((id, revision)) => Self::new(kind, id, Some(revision)),
            None => Self::new(kind, text, None),
        }
    }

    /// `org/name`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A branch, tag or commit.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The name of its folder in the cache.
    pub(super) fn folder_name(&self) -> String {
        Repo::new(self.id.clone(), self.kind).folder_name()
    }

    /// What the hub's interface calls repositories of its kind.
    pub(super) fn api_segment(&self) -> &'static str {
        match self.kind {
            RepoType::Model => "models",
            RepoType::Dataset => "datasets",
            RepoType::Space => "spaces",
        }
    }

    /// Whether the revision is the branch that every repository has.
    pub(super) fn is_at_main(&self) -> bool {
        self.revision == MAIN
    }

    /// The same repository at a commit, branch or tag.
    pub fn at(&self, revision: &str) -> Result<Self> {
        Self::new(self.kind, &self.id, Some(revision))
    }

    /// Its place on the hub, as segments of a path.
    pub(super) fn segments(&self) -> impl Iterator<Item = &str> {
        let kind = match self.kind {
            RepoType::Model => None,
            RepoType::Dataset => Some("datasets"),
            RepoType::Space => Some("spaces"),
        };
        kind.into_iter().chain(self.id.split('/'))
    }
}

/// `org/name`, as the hub allows them; old datasets have a name alone.
pub(super) fn is_id(kind: RepoType, id: &str) -> bool {
    match id.split_once('/') {
        Some((org, name)) => is_word(org) && is_word(name),
        None => matches!(kind, RepoType::Dataset) && is_word(id),
    }
}

fn is_word(word: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    word.bytes().all(allowed)
        && !word.starts_with(['.', '-'])
        && !word.is_empty()
        && !word.contains("..")
}

fn is_revision(revision: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    revision.bytes().all(allowed) && !revision.contains("..") && is_file_name(revision)
}

/// Whether a text is the full name of a commit, of which no other spelling exists.
pub(super) fn is_commit(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 40 && text.bytes().all(digit)
}

/// Whether a name stays in the folder that it is joined to, on every system, and can be printed as it is.
pub(super) fn is_file_name(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    name.split('/').all(part) && !name.contains(['\\', ':']) && printable(name) == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_or_move_the_cursor_are_none() {
        for name in [
            "config.json",
            "data/train-0.parquet",
            "a b",
            ".gitattributes",
            "模型.bin",
        ] {
            assert!(is_file_name(name), "{name:?}");
        }
        let long = "x".repeat(256);
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../x",
            "a//b",
            "a/",
            "./a",
            "a\\b",
            "c:x",
            "a\0",
            "a\u{1b}[2J",
            "a\nb",
            "x\u{202e}",
            &long,
        ] {
            assert!(!is_file_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_commit_has_forty_lower_case_digits() {
        assert!(is_commit("0123456789abcdef0123456789abcdef01234567"));
        for text in [
            "",
            "main",
            "0123456789abcdef",
            "0123456789ABCDEF0123456789ABCDEF01234567",
            "../3456789abcdef0123456789abcdef01234567",
        ] {
            assert!(!is_commit(text), "{text:?}");
        }
    }

    #[test]
    fn models_and_datasets_have_their_own_folders_and_addresses() {
        let place = |kind, id| {
            let repository = Repository::new(kind, id, None).unwrap();
            let segments: Vec<_> = repository.segments().map(str::to_owned).collect();
            (repository.folder_name(), segments.join("/"))
        };
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(place(RepoType::Model, "o/n"), pair("models--o--n", "o/n"));
        assert_eq!(
            place(RepoType::Dataset, "o/n"),
            pair("datasets--o--n", "datasets/o/n")
        );
        assert_eq!(
            place(RepoType::Dataset, "n"),
            pair("datasets--n", "datasets/n")
        );
        assert!(Repository::new(RepoType::Model, "n", None).is_err());
    }

    #[test]
    fn a_repository_is_read_with_its_revision() {
        let read = |text| {
            let repository = Repository::read(RepoType::Model, text).ok()?;
            Some((
                repository.id().to_string(),
                repository.revision().to_string(),
            ))
        };
        let pair = |id: &str, revision: &str| Some((id.to_string(), revision.to_string()));
        assert_eq!(read("o/n"), pair("o/n", "main"));
        assert_eq!(read("hf://o/n@v1"), pair("o/n", "v1"));
        assert_eq!(read("hf://o"), None);
        assert_eq!(read("o/n@"), None);
    }

    #[test]
    fn revisions_that_lead_elsewhere_are_refused_and_shown_escaped() {
        for revision in [
            "",
            "../x",
            "a b",
            "a?b",
            "/a",
            "a/",
            "a//b",
            "./a",
            "\u{1b}[2J",
        ] {
            let error = Repository::new(RepoType::Model, "o/n", Some(revision)).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("revision") && !text.contains('\u{1b}'),
                "{text}"
            );
        }
        for revision in ["main", "v1.0", "refs/pr/1", "feature/x_y-z"] {
            assert!(Repository::new(RepoType::Model, "o/n", Some(revision)).is_ok());
        }
    }
}
