//! The cache as Hugging Face's own tools write and read it: `blobs/`, `snapshots/COMMIT/`, `refs/` of one repository, and
//! `.locks/` beside all of them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use hf_hub::Cache;

use super::repository::{Repository, is_commit};
use crate::error::{Error, Result};

/// The folder of one repository in the cache.
pub(super) struct RepositoryCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepositoryCache {
    pub(super) fn new(cache: &Cache, repository: &Repository) -> Self {
        let name = repository.folder_name();
        RepositoryCache {
            folder: cache.path().join(&name),
            locks: cache.path().join(".locks").join(name),
        }
    }

    /// The commit that a revision meant when it was last downloaded; a commit means itself.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_string());
        }
        let commit = fs::read_to_string(self.reference(revision)).ok()?;
        Some(commit.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// The snapshot that an earlier download of a revision left, complete or not.
    pub(super) fn cached(&self, revision: &str) -> Option<PathBuf> {
        let folder = self.snapshot(&self.commit(revision)?);
        Some(folder).filter(|folder| folder.is_dir())
    }

    /// The folder of a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Contents, by the name that [`Announced`](super::announced::Announced) gives them.
    pub(super) fn blob(&self, name: &str) -> PathBuf {
        self.folder.join("blobs").join(name)
    }

    /// What an interrupted download left of contents.
    pub(super) fn incomplete(&self, name: &str) -> PathBuf {
        self.blob(&format!("{name}.incomplete"))
    }

    /// What whoever downloads contents holds.
    pub(super) fn lock(&self, name: &str) -> PathBuf {
        self.locks.join(format!("{name}.lock"))
    }

    /// Where this program keeps what the hub says of a commit. Other tools pass over it.
    pub(super) fn listing(&self, commit: &str) -> PathBuf {
        self.folder
            .join(".spectrain")
            .join(format!("{commit}.json"))
    }

    /// Keeps what the hub says of a commit.
    pub(super) fn keep_listing(&self, commit: &str, text: &str) -> Result<()> {
        replace(&self.listing(commit), |new| {
            let mut file = File::create_new(new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
    }

    /// Whether it is noted that a commit has no file of this name.
    pub(super) fn is_absent(&self, commit: &str, file: &str) -> bool {
        self.absence(commit, file).exists()
    }

    /// Notes that a commit has no file of this name, where Hugging Face's tools note it.
    pub(super) fn note_absence(&self, commit: &str, file: &str) -> Result<()> {
        replace(&self.absence(commit, file), |new| {
            File::create_new(new).map(drop)
        })
    }

    fn absence(&self, commit: &str, file: &str) -> PathBuf {
        self.folder.join(".no_exist").join(commit).join(file)
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.folder.join("refs").join(revision)
    }

    /// Notes which commit a revision means.
    pub(super) fn refer(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let reference = self.reference(revision);
        replace(&reference, |new| {
            let mut file = File::create_new(new)?;
            file.write_all(commit.as_bytes())?;
            file.sync_all()
        })
    }

    /// Makes a file of a commit point to its contents.
    pub(super) fn point(&self, commit: &str, file: &str, blob: &str) -> Result<()> {
        let pointer = self.snapshot(commit).join(file);
        if pointer.exists() && same_file(&pointer, &self.blob(blob)) {
            return Ok(());
        }
        // From the file's folder up to that of the repository.
        let up = "../".repeat(file.split('/').count() + 1);
        let relative = PathBuf::from(format!("{up}blobs/{blob}"));
        replace(&pointer, |new| link(&relative, &self.blob(blob), new))
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

#[cfg(unix)]
fn link(relative: &Path, _blob: &Path, new: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, new)
}

/// Where making symbolic links takes rights that few users have.
#[cfg(not(unix))]
fn link(_relative: &Path, blob: &Path, new: &Path) -> io::Result<()> {
    fs::hard_link(blob, new)
}

/// Gives `path` what `make` makes, all at once. Several processes may do so at the same time.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let (process, count) = (process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let new = folder.join(format!(".new-{process}-{count}"));
    let made = make(&new).and_then(|()| fs::rename(&new, path));
    made.map_err(|cause| {
        // The first error is the one to report.
        let _ = fs::remove_file(&new);
        Error::io("write", path)(cause)
    })
}

#[cfg(test)]
mod tests {
    use hf_hub::RepoType;

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn layout(cache: &Path) -> RepositoryCache {
        let repository = Repository::new(RepoType::Model, "o/n", None).unwrap();
        RepositoryCache::new(&Cache::new(cache.to_path_buf()), &repository)
    }

    #[test]
    fn a_reference_that_names_no_commit_leads_nowhere() {
        let cache = tempfile::tempdir().unwrap();
        let layout = layout(cache.path());
        for text in ["", "../../..", "/etc", "main"] {
            fs::create_dir_all(cache.path().join("models--o--n/refs")).unwrap();
            fs::write(cache.path().join("models--o--n/refs/main"), text).unwrap();
            assert_eq!(layout.commit("main"), None, "{text:?}");
        }
        layout.refer("main", COMMIT).unwrap();
        assert_eq!(layout.commit("main").unwrap(), COMMIT);
        layout.refer("refs/pr/1", COMMIT).unwrap();
        assert_eq!(layout.commit("refs/pr/1").unwrap(), COMMIT);
    }

    #[cfg(unix)]
    #[test]
    fn pointers_are_relative_at_every_depth_and_replace_what_leads_nowhere() {
        let cache = tempfile::tempdir().unwrap();
        let layout = layout(cache.path());
        fs::create_dir_all(layout.blob("")).unwrap();
        fs::write(layout.blob("b"), "contents").unwrap();
        let snapshot = layout.snapshot(COMMIT);
        fs::create_dir_all(&snapshot).unwrap();
        std::os::unix::fs::symlink("nowhere", snapshot.join("x")).unwrap();
        for (file, target) in [("x", "../../blobs/b"), ("a/b/x", "../../../../blobs/b")] {
            layout.point(COMMIT, file, "b").unwrap();
            layout.point(COMMIT, file, "b").unwrap();
            assert_eq!(
                fs::read_link(snapshot.join(file)).unwrap(),
                Path::new(target)
            );
            assert_eq!(fs::read(snapshot.join(file)).unwrap(), b"contents");
        }
        assert_eq!(
            fs::read_dir(&snapshot).unwrap().count(),
            2,
            "nothing is left over"
        );
    }
}
