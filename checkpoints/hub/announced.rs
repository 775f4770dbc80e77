//! What the hub says of a file before it is sent. It becomes parts of paths, so nothing here is taken as it comes.

use ureq::http::HeaderMap;

use super::repository::is_commit;
use crate::hash::sha256_parts;
use crate::printable::printable;

/// Characters of a server's text that an error shows.
const LONGEST_TEXT: usize = 200;

/// The digest that the contents must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Digest {
    /// Of the contents: files in large-file storage.
    Sha256(String),
    /// Of git's blob, as the hub has it for small files, or of the contents, as some mirrors do.
    Sha1(String),
}

/// A file at a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    pub(super) commit: String,
    /// The name under which the cache holds the contents: a digest, or made here.
    pub(super) blob: String,
    /// What the contents are compared with, where the hub announces it.
    pub(super) digest: Option<Digest>,
    /// Bytes, where they are known before the file is asked for.
    pub(super) size: Option<u64>,
}

impl Announced {
    /// Reads the headers of an answer to `HEAD`, which may be a redirect to where large files are.
    pub(super) fn of(headers: &HeaderMap, is_redirect: bool, file: &str) -> Result<Self, String> {
        let commit = match text(headers, "x-repo-commit") {
            Some(commit) if is_commit(commit) => commit.to_string(),
            Some(other) => {
                let other = shown(other);
                return Err(format!(
                    "header `X-Repo-Commit`: expected 40 hexadecimal digits, found `{other}`"
                ));
            }
            None => return Err("the hub names no commit in `X-Repo-Commit`".to_string()),
        };
        let tag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"));
        let digest = tag.and_then(digest);
        let blob = match &digest {
            Some(Digest::Sha256(digest) | Digest::Sha1(digest)) => digest.clone(),
            // Of a tag that is no digest nobody knows whether another file has it too.
            None => {
                let parts = [
                    ("commit", commit.as_bytes()),
                    ("file", file.as_bytes()),
                    ("tag", tag.unwrap_or_default().as_bytes()),
                ];
                format!("etag-{}", sha256_parts(parts.into_iter()))
            }
        };
        let size = match length(headers, "x-linked-size")? {
            // The length of a redirect is that of its own text.
            None if !is_redirect => length(headers, "content-length")?,
            linked => linked,
        };
        Ok(Announced {
            commit,
            blob,
            digest,
            size,
        })
    }
}

/// A tag that is a digest, without the quotes and the mark of a weak one.
fn digest(tag: &str) -> Option<Digest> {
    let tag = tag.trim();
    let tag = tag.strip_prefix("W/").unwrap_or(tag);
    let tag = tag.trim_matches('"');
    if !tag.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    match tag.len() {
        64 => Some(Digest::Sha256(tag.to_ascii_lowercase())),
        40 => Some(Digest::Sha1(tag.to_ascii_lowercase())),
        _ => None,
    }
}

/// A header that is text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A header that is a number of bytes.
pub(super) fn length(headers: &HeaderMap, name: &str) -> Result<Option<u64>, String> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let value = String::from_utf8_lossy(value.as_bytes());
    match value.parse() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(format!(
            "header `{name}`: expected a number of bytes, found `{}`",
            shown(&value)
        )),
    }
}

/// Which bytes of how many an answer with a part of a file holds, from `Content-Range: bytes FIRST-LAST/TOTAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) total: u64,
}

impl Part {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, String> {
        let value = text(headers, "content-range").unwrap_or_default();
        let read = || {
            let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
            let (first, last) = range.split_once('-')?;
            Some(Part {
                first: first.parse().ok()?,
                last: last.parse().ok()?,
                total: total.parse().ok()?,
            })
        };
        read().ok_or_else(|| {
            format!(
                "header `Content-Range`: expected `bytes FIRST-LAST/TOTAL`, found `{}`",
                shown(value)
            )
        })
    }
}

/// A server's text in an error.
pub(super) fn shown(text: &str) -> String {
    let mut characters = text.chars();
    let start: String = characters.by_ref().take(LONGEST_TEXT).collect();
    let rest = if characters.next().is_some() {
        "…"
    } else {
        ""
    };
    printable(&start) + rest
}

#[cfg(test)]
mod tests {
    use ureq::http::{HeaderName, HeaderValue};

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn with_tag(tag: &str) -> Announced {
        let headers = headers(&[("x-repo-commit", COMMIT), ("etag", tag)]);
        Announced::of(&headers, false, "config.json").unwrap()
    }

    #[test]
    fn a_tag_that_is_a_digest_names_the_blob_and_is_compared() {
        let (sha1, sha256) = ("a".repeat(40), "b".repeat(64));
        for tag in [
            format!("\"{sha256}\""),
            format!("W/\"{sha256}\""),
            sha256.clone(),
        ] {
            let announced = with_tag(&tag);
            assert_eq!(announced.blob, sha256);
            assert_eq!(announced.digest, Some(Digest::Sha256(sha256.clone())));
        }
        assert_eq!(with_tag(&sha1).digest, Some(Digest::Sha1(sha1)));
    }

    #[test]
    fn any_other_tag_gives_a_name_that_stays_in_the_folder() {
        let long = "/x".repeat(1000);
        let tags = [
            "",
            "/etc/passwd",
            "../../../x",
            "\"../x\"",
            "W/",
            "d41d8cd98f00b204e9800998ecf8427e",
            "d41d8cd98f00b204e9800998ecf8427e-5",
            &long,
        ];
        let names: std::collections::BTreeSet<_> = tags
            .iter()
            .map(|tag| {
                let announced = with_tag(tag);
                assert_eq!(announced.digest, None);
                assert_eq!(announced.blob.len(), "etag-".len() + 64);
                assert!(!announced.blob.contains(['/', '.']), "{}", announced.blob);
                announced.blob
            })
            .collect();
        assert_eq!(names.len(), tags.len());
    }

    #[test]
    fn a_tag_that_two_files_share_does_not_make_them_one() {
        let headers = headers(&[("x-repo-commit", COMMIT), ("etag", "\"0\"")]);
        let of = |file| Announced::of(&headers, false, file).unwrap().blob;
        assert_ne!(of("a"), of("b"));
    }

    #[test]
    fn a_commit_that_is_none_is_refused_and_shown_escaped() {
        for commit in ["", "main", "../../x", "/etc", "\u{9b}2J", &"a".repeat(999)] {
            let headers = headers(&[("x-repo-commit", commit), ("etag", "x")]);
            let text = Announced::of(&headers, false, "a").unwrap_err();
            assert!(text.contains("Commit") && text.len() < 999, "{text}");
            assert!(!text.contains('\u{9b}'), "{text}");
        }
        assert!(Announced::of(&headers(&[]), false, "a").is_err());
    }

    #[test]
    fn the_length_of_a_redirect_is_not_that_of_the_file() {
        let own = ("content-length", "7");
        let commit = ("x-repo-commit", COMMIT);
        let size = |pairs: &[(&str, &str)], redirect| {
            Announced::of(&headers(pairs), redirect, "a").unwrap().size
        };
        assert_eq!(size(&[commit, own], false), Some(7));
        assert_eq!(size(&[commit, own], true), None);
        let linked = ("x-linked-size", "9");
        assert_eq!(size(&[commit, own, linked], true), Some(9));
        assert!(Announced::of(&headers(&[commit, ("x-linked-size", "-1")]), true, "a").is_err());
    }

    #[test]
    fn a_range_is_read_whole_or_not_at_all() {
        let part = |value| Part::of(&headers(&[("content-range", value)]));
        let expected = Part {
            first: 5,
            last: 9,
            total: 10,
        };
        assert_eq!(part("bytes 5-9/10"), Ok(expected));
        for value in [
            "",
            "5-9/10",
            "bytes 5-9",
            "bytes 5-9/*",
            "bytes */10",
            "bytes -9/10",
        ] {
            assert!(part(value).is_err(), "{value}");
        }
    }
}
