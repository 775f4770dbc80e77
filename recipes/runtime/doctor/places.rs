//! The folders that the program writes to.

use std::path::Path;

use indicatif::BinaryBytes;

use super::finding::Finding;
use crate::runtime::writable::{free_space, writable};

/// Space that the smallest run may need.
const LEAST: u64 = 1 << 30;
/// Space that a run for a target of some size may need.
const LITTLE: u64 = 20 << 30;

/// Whether a folder, or the one that it would be made in, can be written to, and what is free there.
pub(super) fn place(name: &str, folder: &Path, instead: &str) -> Finding {
    let shown = folder.display();
    let there = match writable(folder) {
        Ok(there) => there,
        Err(error) => {
            let found = format!("`{shown}`: {error:#}");
            return Finding::good(name, found).problem(instead.to_owned());
        }
    };
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
