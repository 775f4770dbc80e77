//! Files and folders that appear under their name complete or not at all.
//!
//! Contents are written under `NAME.partial` beside their destination, synced to the disk, and renamed. A process that is
//! killed leaves at most a `.partial`, which the next writer of the same name removes. One destination has one writer at a time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What is still being written, beside its destination.
pub fn partial_path(path: &Path) -> PathBuf {
    beside(path, ".partial")
}

/// What is being replaced, while the replacement takes its name.
pub(crate) fn old_path(path: &Path) -> PathBuf {
    beside(path, ".old")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.file_name().unwrap_or_default());
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

/// Makes an empty `FOLDER.partial` to fill before [`replace_dir`]. Whatever an earlier writer left there is removed.
pub fn start_dir(folder: &Path) -> Result<PathBuf> {
    if folder.file_name().is_none() {
        let reason = "expected a path that ends in a folder name".to_string();
        return Err(Error::Folder {
            path: folder.to_path_buf(),
            reason,
        });
    }
    recover_dir(folder)?;
    let partial = partial_path(folder);
    remove_dir(&partial)?;
    fs::create_dir_all(&partial).map_err(Error::io("create", &partial))?;
    Ok(partial)
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
