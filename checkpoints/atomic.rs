//! Files and folders that appear under their name complete or not at all.
//!
//! Contents are written under `NAME.spectrain-partial` beside their destination, synced to the disk, and renamed. A process that
//! is killed leaves at most that, which the next writer of the same name removes: no other program gives such a name. One
//! destination has one writer at a time; of a folder a second one is refused.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// How the name of what is still being written ends.
pub(crate) const PARTIAL: &str = "spectrain-partial";
/// How the name of what is being replaced ends.
pub(crate) const OLD: &str = "spectrain-old";

/// How often a folder is claimed that others make and remove.
const TRIES: usize = 5;

/// What is still being written, beside its destination.
pub fn partial_path(path: &Path) -> PathBuf {
    beside(path, PARTIAL)
}

/// What is being replaced, while the replacement takes its name.
pub(crate) fn old_path(path: &Path) -> PathBuf {
    beside(path, OLD)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.file_name().unwrap_or_default());
    name.push(".");
    name.push(suffix);
    path.with_file_name(name)
}

/// Writes or replaces a file.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| file.write_all(bytes))
}

/// Writes or replaces a file with what `fill` writes. On any error the file that was there before is untouched.
pub fn write_with(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let partial = partial_path(path);
    let written = write_synced(&partial, fill).and_then(|()| fs::rename(&partial, path));
    if let Err(cause) = written {
        // The first error is the one to report; a partial that stays is removed by the next writer.
        let _ = fs::remove_file(&partial);
        return Err(Error::io("write", path)(cause));
    }
    sync_folder(parent(path)).map_err(Error::io("sync the folder of", path))
}

fn write_synced(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
    fill(&mut file)?;
    file.into_inner()?.sync_all()
}

/// An empty folder to fill, which no other process takes for one that was left behind, until the value is dropped.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    /// None where folders cannot be locked.
    _held: Option<File>,
}

impl Deref for Partial {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

/// Makes an empty folder beside `folder` to fill before [`replace_dir`]. Whatever an earlier writer left there is removed.
///
/// # Errors
/// Another process is filling it, or it cannot be made.
pub fn start_dir(folder: &Path) -> Result<Partial> {
    if folder.file_name().is_none() {
        let reason = "expected a path that ends in a folder name".to_string();
        return Err(Error::Folder {
            path: folder.to_path_buf(),
            reason,
        });
    }
    let path = partial_path(folder);
    let above = parent(&path);
    fs::create_dir_all(above).map_err(Error::io("create", above))?;
    for _ in 0..TRIES {
        let is_made = match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create", &path)(error));
            }
            made => made.is_ok(),
        };
        match (hold(&path).map_err(Error::io("open", &path))?, is_made) {
            (Hold::Other, _) => break,
            (Hold::Gone, _) => {}
            // What is removed stays locked until it is gone.
            (Hold::Own(_held), false) => remove_dir(&path)?,
            (Hold::Own(_held), true) => {
                // Not before: another process may be at just this.
                recover_dir(folder)?;
                return Ok(Partial { path, _held });
            }
        }
    }
    Err(Error::Folder {
        path: folder.to_path_buf(),
        reason: "is being written by another process".to_string(),
    })
}

/// Whose a folder is.
enum Hold {
    /// This process's, with the lock where there can be one.
    Own(Option<File>),
    /// Another's.
    Other,
    /// Nobody's: it is not there any more.
    Gone,
}

/// Locks a folder, which nobody else can do until that file is closed, or the process ends.
#[cfg(unix)]
fn hold(path: &Path) -> io::Result<Hold> {
    use std::os::unix::fs::MetadataExt as _;
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Hold::Gone),
        file => file?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Ok(Hold::Other),
        // Some file systems lock no folders.
        Err(fs::TryLockError::Error(_)) => return Ok(Hold::Own(None)),
    }
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => {
            Ok(Hold::Own(Some(file)))
        }
        // Its holder has removed or renamed it meanwhile.
        Ok(_) => Ok(Hold::Gone),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Hold::Gone),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn hold(_path: &Path) -> io::Result<Hold> {
    Ok(Hold::Own(None))
}

/// Gives the finished folder `partial` the name `folder`. A folder that has this name is removed once the new one has
/// taken its place; if that fails, the old one gets its name back.
pub fn replace_dir(partial: &Path, folder: &Path) -> Result<()> {
    let replace = Error::io("write", folder);
    if let Err(cause) = sync_folder(partial) {
        return Err(replace(cause));
    }
    recover_dir(folder)?;
    let old = old_path(folder);
    let replaces = folder.exists();
    if replaces {
        fs::rename(folder, &old).map_err(Error::io("replace", folder))?;
    }
    if let Err(cause) = fs::rename(partial, folder) {
        if replaces {
            fs::rename(&old, folder).map_err(Error::io("restore", folder))?;
        }
        return Err(replace(cause));
    }
    sync_folder(parent(folder)).map_err(Error::io("sync the folder of", folder))?;
    remove_dir(&old)
}

/// Undoes a replacement that was cut off between its two renames: the old folder gets its name back.
pub(crate) fn recover_dir(folder: &Path) -> Result<()> {
    let old = old_path(folder);
    if !old.exists() {
        return Ok(());
    }
    if folder.exists() {
        return remove_dir(&old);
    }
    fs::rename(&old, folder).map_err(Error::io("restore", folder))
}

/// Removes a folder and what is in it, if it is there.
pub(crate) fn remove_dir(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A rename is durable once the folder that holds the name is on the disk.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_no_partial() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        write_file(&path, b"old").unwrap();
        let error = write_with(&path, |file| {
            file.write_all(b"half of the new")?;
            Err(io::ErrorKind::StorageFull.into())
        })
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("weights") && error.contains("no storage space"),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(!partial_path(&path).exists());
    }

    #[test]
    fn a_leftover_partial_does_not_reach_the_next_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        fs::write(partial_path(&path), "a long rest of a killed writer").unwrap();
        write_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(!partial_path(&path).exists());
    }

    #[test]
    fn a_folder_replaces_an_older_one_whole() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("stale"), "").unwrap();
        let partial = start_dir(&target).unwrap();
        fs::write(partial.join("fresh"), "").unwrap();
        replace_dir(&partial, &target).unwrap();
        assert!(target.join("fresh").exists() && !target.join("stale").exists());
        assert!(!partial.exists() && !old_path(&target).exists());
    }

    #[test]
    fn a_folder_has_one_writer_and_what_others_have_beside_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        for name in ["model.partial", "model.old"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let first = start_dir(&target).unwrap();
        fs::write(first.join("fresh"), "").unwrap();
        if cfg!(unix) {
            let error = start_dir(&target).unwrap_err().to_string();
            assert!(
                error.contains("model`: is being written by another process"),
                "{error}"
            );
        }
        replace_dir(&first, &target).unwrap();
        drop(first);
        // What a killed process has left is held by nobody.
        fs::create_dir(partial_path(&target)).unwrap();
        fs::write(partial_path(&target).join("half"), "").unwrap();
        let second = start_dir(&target).unwrap();
        assert!(!second.join("half").exists() && target.join("fresh").exists());
        for name in ["model.partial", "model.old"] {
            assert!(folder.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_replacement_cut_off_between_its_renames_is_undone() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        fs::create_dir(old_path(&target)).unwrap();
        fs::write(old_path(&target).join("kept"), "").unwrap();
        start_dir(&target).unwrap();
        assert!(target.join("kept").exists());
    }

    #[test]
    fn a_folder_that_cannot_take_its_name_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("kept"), "").unwrap();
        assert!(replace_dir(&folder.path().join("absent"), &target).is_err());
        assert!(target.join("kept").exists());
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        assert!(
            start_dir(Path::new(".."))
                .unwrap_err()
                .to_string()
                .contains("folder name")
        );
    }
}
