//! SHA-256 of large files, several at a time: where the user is shown how far it is, and stops it.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::Result;
use spectrain_checkpoints::hash::sha256_file_while;

use crate::progress::Output;
use crate::runtime::interruption::check_interrupted;

/// Files that are read at the same time, at most: more make a disk slower.
const MOST_AT_ONCE: usize = 8;

/// What comes of reading files.
enum Step {
    /// So many bytes were read.
    Read(usize),
    /// The file of this number was read whole.
    Done(usize, String),
    /// A file cannot be read, or the user asked to stop.
    Failed(anyhow::Error),
}

/// Gives `found` the number and the SHA-256 of each of the files, which have so many `bytes` together, as they come.
///
/// # Errors
/// A file cannot be read, or the user asked to stop; some of the files may have been given by then.
pub(super) fn sha256_each(
    files: &[&Path],
    bytes: u64,
    found: &mut dyn FnMut(usize, String),
) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut progress = Output::detect().start("hash", bytes >> 20);
    let (sender, steps) = channel();
    let next = AtomicUsize::new(0);
    let (mut read, mut failed) = (0, None::<anyhow::Error>);
    thread::scope(|scope| {
        for _ in 0..cores.min(files.len()).min(MOST_AT_ONCE) {
            let sender = sender.clone();
            scope.spawn(|| hash_next(files, &next, sender));
        }
        drop(sender);
        for step in steps {
            match step {
                Step::Read(more) => {
                    read += more as u64;
                    progress.set(read >> 20, "MiB");
                }
                Step::Done(number, sha256) => found(number, sha256),
                Step::Failed(error) => failed = failed.take().or(Some(error)),
            }
        }
    });
    failed.map_or(Ok(()), Err)
}

/// Hashes files whose turn it is until there is none, or one fails.
fn hash_next(files: &[&Path], next: &AtomicUsize, sender: Sender<Step>) {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(file) = files.get(number) else {
            return;
        };
        let sha256 = sha256_file_while::<anyhow::Error>(file, &mut |bytes| {
            check_interrupted()?;
            Ok(sender.send(Step::Read(bytes))?)
        });
        let step = match sha256 {
            Ok(sha256) => Step::Done(number, sha256),
            Err(error) => {
                // Nobody begins another one.
                next.store(files.len(), Ordering::Relaxed);
                Step::Failed(error)
            }
        };
        if sender.send(step).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;

    use spectrain_checkpoints::hash::sha256_bytes;

    use super::*;

    #[test]
    fn each_file_is_hashed_once_and_one_that_cannot_be_read_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = |number: usize| root.path().join(number.to_string());
        let files: Vec<PathBuf> = (0..40).map(path).collect();
        for (number, file) in files.iter().enumerate() {
            fs::write(file, vec![number as u8; number]).unwrap();
        }
        let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let mut found = BTreeMap::new();
        let mut learn = |number, sha256| assert!(found.insert(number, sha256).is_none());
        sha256_each(&paths, 780, &mut learn).unwrap();
        let hashed = |number: usize| (number, sha256_bytes(&vec![number as u8; number]));
        let expected: BTreeMap<usize, String> = (0..40).map(hashed).collect();
        assert_eq!(found, expected);
        fs::remove_file(&files[7]).unwrap();
        let error = sha256_each(&paths, 780, &mut |_, _| {}).unwrap_err();
        let name = files[7].display().to_string();
        assert!(format!("{error:#}").contains(&name), "{error:#}");
        sha256_each(&[], 0, &mut |_, _| panic!("there is no file")).unwrap();
    }
}
