//! The folders that the program writes to.

use std::path::{Path, PathBuf};

use indicatif::BinaryBytes;

use super::finding::Finding;

/// Space that the smallest run may need.
const LEAST: u64 = 1 << 30;
/// Space that a run for a target of some size may need.
const LITTLE: u64 = 20 << 30;

/// Whether a folder, or the one that it would be made in, can be written to, and what is free there.
pub(super) fn place(name: &str, folder: &Path, instead: &str) -> Finding {
    let shown = folder.display();
    let Some(there) = existing(folder) else {
        return Finding::good(name, format!("`{shown}`: nothing of this path is here"))
            .problem(instead.to_owned());
    };
    // What was only tried to be written has no name, and is gone by itself.
    if let Err(error) = tempfile::tempfile_in(&there) {
        let found = format!("`{shown}`: cannot write to `{}`: {error}", there.display());
        return Finding::good(name, found).problem(instead.to_owned());
    }
    let Some(free) = free_space(&there) else {
        return Finding::good(name, format!("`{shown}`: can be written to"));
    };
    let found = format!("`{shown}`: can be written to, {} free", BinaryBytes(free));
    let finding = Finding::good(name, found);
    match free {
        ..LEAST => finding.problem(format!("make room; {instead}")),
        LEAST..LITTLE => finding.note(
            "enough for small runs; `--plan` says what a recipe takes, and `spectrain clean` removes what was set aside",
        ),
        _ => finding,
    }
}

/// The nearest folder that is there, from a folder upwards.
fn existing(folder: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(folder).ok()?;
    let found = whole.ancestors().find(|path| path.exists());
    found.map(Path::to_owned)
}

/// Bytes that a user may still write.
fn free_space(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn a_folder_is_tried_and_nothing_is_left_in_it() {
        let root = tempfile::tempdir().unwrap();
        let below = root.path().join("a/b");
        let found = place("runs", &below, "name another one");
        assert!(found.found.contains("can be written to"), "{found:?}");
        assert_eq!(root.path().read_dir().unwrap().count(), 0);
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let found = place("runs", &file.join("runs"), "name another one");
        assert_eq!(found.state, State::Problem);
        assert_eq!(found.advice.as_deref(), Some("name another one"));
    }
}
