//! Which files a path leads to, and which of them hold no rows.

use std::fs;
use std::path::{Path, PathBuf};

use glob::MatchOptions;
use spectrain_checkpoints::Mismatch;

use super::format::{FILES, Format};
use crate::error::{Error, Result};

/// Names of files without rows that a message has, at most.
const NAMED: usize = 5;

/// What a file, folder or pattern leads to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The files of rows, in the order of their names.
    pub files: Vec<PathBuf>,
    /// Files and folders that no rows are read from, in the order of their names. Hidden ones are not among them.
    pub ignored: Vec<PathBuf>,
}

/// The files that rows are read from: the file itself, those of a folder or those that match a pattern such
/// as `data/*.jsonl`, in the order of their names.
pub fn files(path: &Path) -> Result<Vec<PathBuf>> {
    Ok(found(path)?.files)
}

/// The same, with what else stands there.
///
/// # Errors
/// The path leads to no file with rows.
pub fn found(path: &Path) -> Result<Found> {
    if path.is_dir() {
        let mut found = Found::default();
        for entry in fs::read_dir(path).map_err(Error::io(path))? {
            found.add(entry.map_err(Error::io(path))?.path());
        }
        return found.sorted(path);
    }
    match fs::metadata(path) {
        Err(error) => match matching(path)? {
            Some(found) => found.sorted(path),
            None => Err(Error::io(path)(error)),
        },
        Ok(_) if Format::of(path).is_none() => Err(Error::File {
            path: path.to_path_buf(),
            mismatch: Mismatch::new(FILES, "a file of another kind"),
        }),
        Ok(_) => Ok(Found {
            files: vec![path.to_path_buf()],
            ignored: Vec::new(),
        }),
    }
}

/// What matches a path with `*`, `?` or `[…]`; none where it has none of these.
fn matching(path: &Path) -> Result<Option<Found>> {
    let Some(pattern) = path.to_str().filter(|text| text.contains(['*', '?', '['])) else {
        return Ok(None);
    };
    let paths = glob::glob(pattern).map_err(|error| Error::File {
        path: path.to_path_buf(),
        mismatch: Mismatch::new("a pattern such as `data/*.jsonl`", error),
    })?;
    let mut found = Found::default();
    for place in paths {
        found.add(place.map_err(|error| Error::io(path)(error.into()))?);
    }
    Ok(Some(found))
}

impl Found {
    fn add(&mut self, place: PathBuf) {
        let name = place.file_name().unwrap_or_default();
        if place.is_file() && Format::of(&place).is_some() {
            self.files.push(place);
        } else if !name.as_encoded_bytes().starts_with(b".") {
            self.ignored.push(place);
        }
    }

    /// The same in the order of names. Fails where there is no file of rows.
    fn sorted(mut self, path: &Path) -> Result<Self> {
        self.files.sort();
        self.ignored.sort();
        match (&self.files[..], &self.ignored[..]) {
            ([_, ..], _) => Ok(self),
            ([], []) => Err(Error::EmptyDataset {
                path: path.to_path_buf(),
                expected: FILES,
            }),
            ([], _) => Err(Error::File {
                path: path.to_path_buf(),
                mismatch: Mismatch::new(FILES, format!("none, but {}", self.named())),
            }),
        }
    }

    /// What no rows are read from by its names; no more than a few.
    fn named(&self) -> String {
        let name = |place: &PathBuf| {
            let name = place.file_name().unwrap_or_default().to_string_lossy();
            let folder = if place.is_dir() { "/" } else { "" };
            format!("`{name}{folder}`")
        };
        let mut names: Vec<String> = self.ignored.iter().take(NAMED).map(name).collect();
        if let Some(more @ 1..) = self.ignored.len().checked_sub(NAMED) {
            names.push(format!("{more} more"));
        }
        names.join(", ")
    }

    /// What to say of files and folders at `path` that no rows are read from; nothing where there are none.
    pub(crate) fn remark(&self, path: &Path) -> Option<String> {
        (!self.ignored.is_empty()).then(|| {
            format!(
                "`{}`: not read: {}; only {FILES} are",
                path.display(),
                self.named()
            )
        })
    }
}

/// Whether a file, which need not be there yet, is one of [`files`] under this or another name.
pub fn would_read(path: &Path, file: &Path) -> bool {
    files(path).is_ok_and(|files| files.iter().any(|read| is_same(read, file)))
        || would_find(path, file)
}

/// Whether two paths lead to one file that is there.
#[cfg(unix)]
pub fn is_same(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// Whether two paths lead to one file that is there, hard links aside.
#[cfg(not(unix))]
pub fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Whether a file is found at `path` by its name.
fn would_find(path: &Path, file: &Path) -> bool {
    let whole = |path: &Path| match path.canonicalize() {
        Ok(path) => Some(path),
        // What is not there stands in a folder that is.
        Err(_) => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(folder.join(path.file_name()?))
        }
    };
    let (Some(file), true) = (whole(file), Format::of(file).is_some()) else {
        return false;
    };
    if path.is_dir() {
        return path
            .canonicalize()
            .is_ok_and(|folder| file.parent() == Some(&folder));
    }
    if path.exists() {
        return whole(path).is_some_and(|path| path == file);
    }
    let pattern = std::path::absolute(path).ok();
    let pattern = pattern
        .as_deref()
        .and_then(Path::to_str)
        .and_then(|text| glob::Pattern::new(text).ok());
    // As files are found: a star leads into no folder.
    let options = MatchOptions {
        require_literal_separator: true,
        ..MatchOptions::new()
    };
    pattern.is_some_and(|pattern| pattern.matches_path_with(&file, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        folder
    }

    #[test]
    fn what_is_not_read_is_named() {
        let names = ["a.jsonl", "B.JSONL", "x.txt", "f.arrow", "x.jsonl.bz2"];
        let folder = folder(&names);
        fs::write(folder.path().join(".hidden"), "").unwrap();
        fs::create_dir(folder.path().join("sub.jsonl")).unwrap();
        for path in [folder.path().to_owned(), folder.path().join("*")] {
            let found = found(&path).unwrap();
            let read = ["B.JSONL", "a.jsonl"].map(|name| folder.path().join(name));
            assert_eq!(found.files, read);
            let remark = found.remark(&path).unwrap();
            let expected = "not read: `f.arrow`, `sub.jsonl/`, `x.jsonl.bz2`, `x.txt`; only";
            assert!(remark.contains(expected), "{remark}");
        }
        let one = folder.path().join("a.jsonl");
        assert_eq!(found(&one).unwrap().remark(&one), None);
        let none = found(&folder.path().join("x*")).unwrap_err().to_string();
        assert!(
            none.ends_with("found none, but `x.jsonl.bz2`, `x.txt`"),
            "{none}"
        );
    }

    #[test]
    fn of_many_files_that_are_not_read_a_few_are_named() {
        let names: Vec<String> = (0..9).map(|n| format!("{n}.txt")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.push("a.json");
        let folder = folder(&names);
        let remark = found(folder.path()).unwrap().remark(folder.path());
        assert!(remark.unwrap().contains("`4.txt`, 4 more; only"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_name_that_is_no_text_is_read_too() {
        use std::os::unix::ffi::OsStrExt as _;
        let folder = folder(&[]);
        let name = std::ffi::OsStr::from_bytes(b"r\xff.jsonl");
        fs::write(folder.path().join(name), "{}").unwrap();
        assert_eq!(files(folder.path()).unwrap(), [folder.path().join(name)]);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_known_under_another_name() {
        let folder = folder(&["own.jsonl", "other.jsonl"]);
        let path = |name: &str| folder.path().join(name);
        fs::hard_link(path("own.jsonl"), path("hard.out")).unwrap();
        std::os::unix::fs::symlink(path("own.jsonl"), path("soft.out")).unwrap();
        for name in ["own.jsonl", "./own.jsonl", "hard.out", "soft.out"] {
            let file = path(name);
            for read in ["own.jsonl", "own.*", "."] {
                assert!(would_read(&path(read), &file), "{read}: {}", file.display());
            }
            assert!(!would_read(&path("other.jsonl"), &file));
        }
    }
}
