//! When something was last written to a run.

use std::path::Path;
use std::time::UNIX_EPOCH;

/// When the newest file of a folder was written, in seconds since 1970.
pub(super) fn last_written(folder: &Path) -> Option<f64> {
    let entries = std::fs::read_dir(folder).ok()?;
    let newest = entries.flatten().filter_map(|entry| {
        let data = entry.metadata().ok()?;
        if data.is_dir() {
            return last_written(&entry.path());
        }
        let since = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(since.as_secs_f64())
    });
    newest.reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn what_was_written_last_may_be_anywhere_below() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(last_written(&root.path().join("not there")), None);
        assert_eq!(last_written(root.path()), None);
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        for (path, seconds) in [(root.path().join("old"), 100), (inner.join("new"), 200)] {
            let file = File::create(path).unwrap();
            let time = UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(time).unwrap();
        }
        assert_eq!(last_written(root.path()), Some(200.0));
    }
}
