//! Whether a folder can be written to, asked before the work whose result goes there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The nearest folder that is there, from a folder upwards, if it can be written to. Nothing is left in it.
///
/// # Errors
/// Names the folder and why it cannot be written to.
pub(crate) fn writable(folder: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(folder);
    let whole = whole.with_context(|| format!("cannot write to `{}`", folder.display()))?;
    let there = whole.ancestors().find(|path| path.exists());
    let there = there.unwrap_or(&whole);
    // What was only tried to be written has no name, and is gone by itself.
    tempfile::tempfile_in(there)
        .with_context(|| format!("cannot write to `{}`", there.display()))?;
    Ok(there.to_owned())
}

/// The same of the folder in which a file is to be written, and of the file itself where it is there.
///
/// # Errors
/// As [`writable`]; and where a folder has the file's name.
pub(crate) fn writable_file(file: &Path) -> Result<()> {
    if file.is_dir() {
        anyhow::bail!(
            "cannot write to `{}`: expected a file, found a folder",
            file.display()
        );
    }
    let folder = file.parent().filter(|folder| folder != &Path::new(""));
    writable(folder.unwrap_or(Path::new("."))).map(drop)
}

/// Bytes that a user may still write to where a folder is.
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_tried_and_nothing_is_left_in_it() {
        let root = tempfile::tempdir().unwrap();
        let there = writable(&root.path().join("a/b")).unwrap();
        assert_eq!(there, root.path());
        writable_file(&root.path().join("a/b.jsonl")).unwrap();
        assert_eq!(root.path().read_dir().unwrap().count(), 0);

        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        for refused in [
            writable(&file.join("runs")).map(drop),
            writable_file(&file.join("x")),
            writable_file(root.path()),
        ] {
            let error = format!("{:#}", refused.unwrap_err());
            assert!(error.starts_with("cannot write to `"), "{error}");
        }
    }
}
