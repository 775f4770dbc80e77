//! The lock of a folder: one process at a time, until that process ends.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// The file that is locked.
pub(crate) const LOCK: &str = ".lock";

/// How often a lock is tried before another run is taken to hold it, and the time between.
const TRIES: usize = 25;
const PAUSE: Duration = Duration::from_millis(20);

/// Locks the folder, which is made if it is not there.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    lock_for(folder, "choose another `name`")
}

/// The same, where the user can do something `other` than wait.
pub(crate) fn lock_for(folder: &Path, other: &str) -> Result<File> {
    // A program that this process or an ended run has just started holds the lock until it has replaced its own image.
    for _ in 0..TRIES {
        match try_lock(folder)? {
            Some(file) => return Ok(file),
            None => sleep(PAUSE),
        }
    }
    bail!(
        "`{}` is in use by another run; wait for it, stop it, or {other}",
        folder.display()
    )
}

/// Whether a process holds the folder; also where nobody can tell. Nothing is written, and whoever begins to hold it meanwhile tries
/// again.
pub(crate) fn is_held(folder: &Path) -> bool {
    match File::open(folder.join(LOCK)) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
        },
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// None while another process holds it, or has just moved the folder away.
pub(super) fn try_lock(folder: &Path) -> Result<Option<File>> {
    let path = folder.join(LOCK);
    open_and_lock(folder, &path).with_context(|| format!("cannot lock `{}`", path.display()))
}

fn open_and_lock(folder: &Path, path: &Path) -> io::Result<Option<File>> {
    fs::create_dir_all(folder)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let file = match file {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match file.try_lock() {
        Ok(()) => Ok(is_at(&file, path)?.then_some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether the file still has this path: the holder before may have moved the folder between opening and locking.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_until_its_holder_ends_and_looking_holds_nothing() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        let held = lock(&folder).unwrap();
        assert!(is_held(&folder));
        drop(held);
        assert!(!is_held(&folder));
        drop(lock(&folder).unwrap());
        assert!(!is_held(&root.path().join("moved here without it")));
    }

    #[test]
    fn a_lock_of_a_folder_that_was_moved_away_is_not_taken() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        let path = folder.join(LOCK);
        drop(lock(&folder).unwrap());
        let opened = File::options().write(true).open(&path).unwrap();
        assert!(is_at(&opened, &path).unwrap());
        fs::rename(&folder, root.path().join("b")).unwrap();
        assert!(!is_at(&opened, &path).unwrap());
        let held = lock(&folder).unwrap();
        assert!(!is_at(&opened, &path).unwrap() && is_at(&held, &path).unwrap());
    }
}
