//! Whether the disk has room for what a run leaves.

use std::path::Path;

use super::words::bytes;
use crate::runtime::writable::{free_space, writable};

/// What is said where less is free than the `needed` bytes of a run that is not there yet.
pub(super) fn missing(run: &Path, needed: u64) -> Option<String> {
    if run.exists() {
        // A part of them is on the disk already.
        return None;
    }
    let free = free_space(&writable(run).ok()?)?;
    let text = || format!("{}, less than the run takes", bytes(free));
    (free < needed).then(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_larger_than_the_disk_is_told() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("runs/a");
        assert_eq!(missing(&run, 1), None);
        let told = missing(&run, u64::MAX).unwrap();
        assert!(told.ends_with(", less than the run takes"), "{told}");
        std::fs::create_dir_all(&run).unwrap();
        assert_eq!(missing(&run, u64::MAX), None);
    }
}
