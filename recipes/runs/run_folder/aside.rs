//! What was moved to `<name>.old-N`: runs that `--fresh` made room for, stages that started over, and outputs that were not
//! as they had been written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::identity::{RUN, Run};
use super::lock::try_lock;
use crate::runs::files::{entries, remove_whole};

/// What stands between a name and its number.
const ASIDE: &str = ".old-";

/// Something that was set aside.
#[derive(Debug)]
pub struct Aside {
    path: PathBuf,
    /// Whether it is a whole run, which somebody may have taken up.
    is_run: bool,
}

/// Whether something could be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It was.
    Done,
    /// A process is at work in it.
    InUse,
}

/// The name that was set aside under `name`, if it is one.
fn original(name: &str) -> Option<&str> {
    let (original, number) = name.rsplit_once(ASIDE)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(original)
}

/// Whether something of this name was set aside.
pub(crate) fn is_aside(name: &str) -> bool {
    original(name).is_some()
}

/// `<path>.old-N` for the first N that is free.
pub(super) fn free_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    first_free(|n| path.with_file_name(format!("{name}{ASIDE}{n}")))
}

/// The first of the paths with the numbers from 1 on that is free.
pub(crate) fn first_free(candidate: impl Fn(usize) -> PathBuf) -> PathBuf {
    (1..)
        .map(&candidate)
        .find(|path| !path.exists())
        .unwrap_or_else(|| candidate(0))
}

/// All that was set aside for the run in `run` and in it.
pub fn find(run: &Path) -> Result<Vec<Aside>> {
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    let root = match run.parent() {
        Some(root) if !root.as_os_str().is_empty() => root,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    for entry in entries(root)? {
        let path = root.join(&entry);
        if original(&entry) == Some(&name) && was_called(&path, &name) {
            found.push(Aside { path, is_run: true });
        }
    }
    let mut folders = vec![run.to_owned()];
    folders.extend(entries(run)?.iter().map(|stage| run.join(stage)));
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let is_within = folder
            .file_name()
            .is_some_and(|name| is_aside(&name.to_string_lossy()));
        if is_within && folder != run {
            continue;
        }
        let inner = entries(folder)?.into_iter().filter(|name| is_aside(name));
        found.extend(inner.map(|name| Aside {
            path: folder.join(name),
            is_run: false,
        }));
    }
    Ok(found)
}

/// Whether the run in a folder had this name: a run may be called `a.old-1` from the start.
fn was_called(path: &Path, name: &str) -> bool {
    let text = fs::read_to_string(path.join(RUN)).ok();
    let run = text.and_then(|text| serde_json::from_str::<Run>(&text).ok());
    run.is_some_and(|run| run.name == name)
}

impl Aside {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it takes.
    pub fn bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        let mut paths = vec![self.path.clone()];
        while let Some(path) = paths.pop() {
            let data = fs::symlink_metadata(&path)
                .with_context(|| format!("cannot read `{}`", path.display()))?;
            bytes += data.len();
            if data.is_dir() {
                paths.extend(entries(&path)?.iter().map(|name| path.join(name)));
            }
        }
        Ok(bytes)
    }

    /// Removes it.
    pub fn remove(self) -> Result<Removal> {
        let held = if self.is_run {
            try_lock(&self.path)?
        } else {
            None
        };
        if self.is_run && held.is_none() {
            return Ok(Removal::InUse);
        }
        remove_whole(&self.path)?;
        Ok(Removal::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_in_a_number_was_set_aside() {
        for name in ["a.old-1", "train.old-20", "a.old-1.old-2"] {
            assert!(is_aside(name), "{name}");
        }
        for name in [
            "a",
            "a.old",
            "a.old-",
            "a.old-x",
            "a.old-1.partial",
            "old-1",
        ] {
            assert!(!is_aside(name), "{name}");
        }
        assert_eq!(original("a.old-1.old-2"), Some("a.old-1"));
    }
}
