//! What of a run is on the disk already.

use std::fs;
use std::path::{Path, PathBuf};

use super::estimate::Estimate;
use crate::plan::preflight::Asked;
use crate::runs::run_folder::{Existing, Status, manifest_in};
use crate::runs::stage_names;
use crate::runtime::store::Store;
use crate::stages::parts::{FETCHED, PARTS, STAGE};

/// Bytes of the disk that a run takes, or still takes where it is there: of what is done nothing, and of the rest what is not written
/// yet. That what is there stays wanted is taken for granted.
pub(super) fn left(asked: &Asked, estimate: &Estimate) -> u64 {
    if asked.existing == Existing::SetAside {
        return estimate.disk_bytes();
    }
    let run = asked.runs.join(&asked.recipe.name);
    let mut drafters = asked.recipe.training_stages();
    drafters.push(stage_names::EXPORT);
    let parts = [parts_of(asked), run.join(FETCHED)];
    // From another disk they are copied.
    let parts = parts.into_iter().filter(|parts| is_on_disk_of(&run, parts));
    let parts: Vec<PathBuf> = parts.collect();
    let features = left_of(&run, &[STAGE], &parts, estimate.features_on_disk());
    features.saturating_add(left_of(&run, &drafters, &[], estimate.own_disk_bytes()))
}

/// The folder in which the parts of an array job are on this machine. One that goes to an object store is in the run before.
pub(super) fn parts_of(asked: &Asked) -> PathBuf {
    match asked.parts.map(Store::open) {
        Some(Ok(Store::Folder(folder))) => folder,
        _ => asked.runs.join(&asked.recipe.name).join(PARTS),
    }
}

/// Whether files of a folder, which is there, can be linked into the run.
#[cfg(unix)]
fn is_on_disk_of(run: &Path, folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let disk = |path: &Path| fs::metadata(path).ok().map(|data| data.dev());
    disk(run) == disk(folder)
}

#[cfg(not(unix))]
fn is_on_disk_of(_run: &Path, _folder: &Path) -> bool {
    true
}

/// Bytes that are left of `all` that the `stages` of the run in `run` write, which have some in folders `beside` theirs, too.
fn left_of(run: &Path, stages: &[&str], beside: &[PathBuf], all: u64) -> u64 {
    let is_done = |stage: &&str| {
        let manifest = manifest_in(run, stage).ok().flatten();
        manifest.is_some_and(|manifest| manifest.status == Status::Done)
    };
    if stages.iter().all(is_done) {
        return 0;
    }
    let own = stages.iter().map(|stage| bytes_in(&run.join(stage)));
    let there = own.chain(beside.iter().map(|folder| bytes_in(folder)));
    there.fold(all, u64::saturating_sub)
}

/// Bytes of all files in a folder, as far as they can be seen.
pub(super) fn bytes_in(path: &Path) -> u64 {
    let Ok(data) = fs::symlink_metadata(path) else {
        return 0;
    };
    if !data.is_dir() {
        return data.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let each = entries.map(|entry| bytes_in(&entry.path()));
    each.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_is_not_left_and_nothing_is_of_what_is_done() {
        let run = tempfile::tempdir().unwrap();
        let beside = [run.path().join(PARTS)];
        let left = |stages: &[&str]| left_of(run.path(), stages, &beside, 1000);
        assert_eq!(left(&["features"]), 1000);
        let write = |file: &str, bytes: usize| {
            let path = run.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        };
        write("features/features-00000.arrow", 300);
        write("features/held_out/features-00000.arrow", 50);
        write(
            "features-parts/part-00001-of-00002/features-00000.arrow",
            100,
        );
        assert_eq!(left(&["features"]), 550);
        let manifest = |stage: &str, status: &str| {
            let manifest = json!({
                "stage": stage, "status": status, "settings": {}, "inputs": {}, "spectrain": "", "seed": 0, "started": 0,
            });
            let manifest = manifest.to_string();
            write(&format!("{stage}/manifest.json"), manifest.len());
            fs::write(run.path().join(stage).join("manifest.json"), manifest).unwrap();
        };
        manifest("features", "started");
        assert!((300..550).contains(&left(&["features"])));
        manifest("features", "done");
        assert_eq!(left(&["features"]), 0);
        // Of several stages all have to be done.
        assert!(left(&["features", "train"]) > 0);
        manifest("train", "done");
        assert_eq!(left(&["features", "train"]), 0);
        write(
            "features-parts/part-00002-of-00002/features-00000.arrow",
            2000,
        );
        assert_eq!(left(&["export"]), 0);
    }
}
