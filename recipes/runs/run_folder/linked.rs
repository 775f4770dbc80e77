//! A stage that a run takes over from another one: its files are linked, so that they take no room, and need not be read to be known.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};
use spectrain_checkpoints::atomic::partial_path;

use super::RunFolder;
use super::lock::try_lock;
use crate::runs::files::remove_whole;
use crate::runs::hashes::{HASHES, HashMemory, Links};

/// Makes `stage` of the run in `other` that of `run`, which has none: its files are linked, or copied where they cannot be. Who has
/// the same files from there asks there what they are.
///
/// # Errors
/// A file can be neither linked nor copied; the run then has no such stage.
pub(crate) fn link_stage(run: &RunFolder, stage: &str, other: &Path) -> Result<()> {
    let (from, to) = (other.join(stage), run.stage(stage));
    let partial = partial_path(&to);
    if partial.exists() {
        remove_whole(&partial)?;
    }
    let mut links = Links::default();
    let linked = link_all(&from, &partial, &mut links).and_then(|()| fs::rename(&partial, &to));
    // Whoever forgets what a file is reads it once more.
    let _ = follow(run, [&from, &to], &links);
    linked.with_context(|| format!("cannot link `{}` as `{}`", from.display(), to.display()))
}

fn link_all(from: &Path, to: &Path, links: &mut Links) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (file, link) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link_all(&file, &link, links)?;
        } else {
            links.link(&file, &link)?;
        }
    }
    Ok(())
}

/// Has `run` know the files of its folder `to` that the run of the folder `from` knows, and that run know how they look since.
fn follow(run: &RunFolder, [from, to]: [&Path; 2], links: &Links) -> Result<()> {
    let Some(other) = from.parent() else {
        return Ok(());
    };
    let mut known = HashMemory::read(&other.join(HASHES));
    known.follow(links);
    run.with_memory(|memory| {
        memory.follow(links);
        memory.adopt(&known, [from, to]);
        memory.ask(&known);
        for lender in memory.lenders() {
            if let Some(folder) = lender.parent() {
                let _ = follow_in(folder, links);
            }
        }
        Ok(())
    })
}

/// Has the run in a folder know its files by how they look now. Nothing is written to one that another process uses.
fn follow_in(folder: &Path, links: &Links) -> Result<()> {
    let path = folder.join(HASHES);
    let follow = || {
        let mut memory = HashMemory::read(&path);
        memory.follow(links);
        memory
    };
    if !follow().has_changed() {
        return Ok(());
    }
    match try_lock(folder)? {
        // It may have learned more before it was let go.
        Some(_lock) => follow().write(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::runs::run_folder::{Existing, RunName, Start};

    /// Just large enough to be remembered.
    const LARGE: u64 = (4 << 20) + 1;

    fn run(root: &Path, name: &str) -> RunFolder {
        let recipe = "eagle3";
        RunFolder::open(
            RunName { root, name, recipe },
            "recipe = 1\n",
            Existing::Continue,
        )
        .unwrap()
    }

    /// What a run knows of a file of its stage `features`, without reading it.
    fn known(run: &Path) -> String {
        let mut memory = HashMemory::read(&run.join(HASHES));
        memory.of(&run.join("features/held_out/a.arrow")).unwrap()
    }

    #[test]
    fn runs_that_share_files_know_them_without_reading_them() {
        let root = tempfile::tempdir().unwrap();
        let [first, second, third] =
            ["first", "second", "third"].map(|name| root.path().join(name));
        let lender = run(root.path(), "first");
        let manifest = lender.start("features", Start::default()).unwrap();
        let file = lender.stage("features").join("held_out/a.arrow");
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::File::create(&file).unwrap().set_len(LARGE).unwrap();
        // Another hash than its own, so that it shows who reads it.
        lender
            .remember([(file.clone(), "as remembered".to_owned())])
            .unwrap();
        lender.finish(manifest, 1.0, Value::Null).unwrap();
        drop(lender);
        let all = [first.clone(), second.clone(), third.clone()];
        for borrower in ["second", "third"] {
            let borrower = run(root.path(), borrower);
            link_stage(&borrower, "features", &first).unwrap();
            let taken = borrower.manifest("features").unwrap().unwrap();
            assert_eq!(taken.outputs["held_out/a.arrow"], "as remembered");
        }
        for run in &all {
            assert_eq!(known(run), "as remembered", "{}", run.display());
        }
        // A run in which another process is at work is left alone.
        let held = run(root.path(), "second");
        let before = fs::read(second.join(HASHES)).unwrap();
        let fourth = run(root.path(), "fourth");
        link_stage(&fourth, "features", &third).unwrap();
        assert_eq!(known(fourth.path()), "as remembered");
        assert_eq!(fs::read(second.join(HASHES)).unwrap(), before);
        drop(held);
        // It asks the run from which all have the file.
        for run in &all {
            assert_eq!(known(run), "as remembered", "{}", run.display());
        }
    }

    #[test]
    fn a_run_that_has_a_stage_from_another_writes_to_none_but_that_one() {
        let root = tempfile::tempdir().unwrap();
        let lender = run(root.path(), "first");
        let manifest = lender.start("features", Start::default()).unwrap();
        let file = lender.stage("features").join("a.arrow");
        fs::File::create(&file).unwrap().set_len(LARGE).unwrap();
        lender.finish(manifest, 1.0, Value::Null).unwrap();
        let (first, memory) = (lender.path().to_owned(), |run: &RunFolder| {
            fs::read(run.path().join(HASHES)).unwrap()
        });
        drop(lender);
        let borrowers = ["second", "third"].map(|name| run(root.path(), name));
        link_stage(&borrowers[0], "features", &first).unwrap();
        let before = memory(&borrowers[0]);
        link_stage(&borrowers[1], "features", &first).unwrap();
        assert_eq!(memory(&borrowers[0]), before);
    }

    #[test]
    fn a_stage_that_cannot_be_linked_is_not_there() {
        let root = tempfile::tempdir().unwrap();
        let borrower = run(root.path(), "second");
        let other = root.path().join("first");
        let refused = link_stage(&borrower, "prepare", &other).unwrap_err();
        assert!(refused.to_string().contains("cannot link"), "{refused}");
        assert!(!borrower.stage("prepare").exists());
        fs::create_dir_all(other.join("prepare")).unwrap();
        fs::write(other.join("prepare/a"), "x").unwrap();
        link_stage(&borrower, "prepare", &other).unwrap();
        assert_eq!(fs::read(borrower.stage("prepare").join("a")).unwrap(), b"x");
    }
}
