//! The file in which a server leaves the hidden states of one request.

use std::fs::{self, File, TryLockError};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use spectrain_checkpoints::printable;
use spectrain_data::regenerate::Failure;

use crate::runtime::server::client::{lasting, passing};

/// How often it is looked whether the file is there.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a file may be unseen whose writer has let go of its lock: a network's file system may show it late.
const UNSEEN: Duration = Duration::from_secs(1);
/// Files of hidden states that nobody has taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abandoned {
    /// How many.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Abandoned {
    /// What the user is told of those in a folder, where there are any; `timeout` is what says how long a request may take.
    pub fn told(self, folder: &Path, timeout: &str) -> Option<String> {
        let Self { files, bytes } = self;
        (files > 0).then(|| {
            format!(
                "`{}` has {files} files of hidden states ({} MiB) that are older than `{timeout}`: clients that were killed left \
                 them, and they may be deleted",
                folder.display(),
                bytes >> 20
            )
        })
    }
}

/// A folder that a server writes into, under its name and under ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedFolder {
    /// As the server calls it.
    pub on_server: PathBuf,
    /// Where it is on this machine.
    pub here: PathBuf,
}

impl SharedFolder {
    /// Where a file of the server is on this machine. `option` is what the user named the folder by.
    ///
    /// # Errors
    /// It is not in the folder: no other file is read or deleted, whatever a server says.
    pub fn file(&self, path: &str, option: &str) -> Result<PathBuf> {
        let inside = Path::new(path).strip_prefix(&self.on_server).ok();
        let is_plain = |inside: &&Path| {
            inside
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
                && inside.components().next().is_some()
        };
        match inside.filter(is_plain) {
            Some(inside) => Ok(self.here.join(inside)),
            None => bail!(
                "`hidden_states_path`: expected a file in `{}`, where `{option}` says that the server writes, found `{}`",
                self.on_server.display(),
                printable(path)
            ),
        }
    }

    /// Files that are older than a request may take: what was asked for by a client that was killed.
    pub fn abandoned(&self, patience: Duration) -> Abandoned {
        let mut found = Abandoned::default();
        for entry in fs::read_dir(&self.here).into_iter().flatten().flatten() {
            let is_states = entry
                .path()
                .extension()
                .is_some_and(|ending| ending == "safetensors");
            let Some(of) = entry.metadata().ok().filter(|of| is_states && of.is_file()) else {
                continue;
            };
            let age = of.modified().ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > patience) {
                found.files += 1;
                found.bytes += of.len();
            }
        }
        found
    }
}

/// The settings that errors name.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// The folder's path here.
    pub folder: &'static str,
    /// How long a file is waited for.
    pub timeout: &'static str,
}

/// The files that come from one server.
#[derive(Debug)]
pub struct Received {
    named: Named,
    /// Whether one of them was found: then this machine has the server's folder.
    any: AtomicBool,
    /// Those that are no longer needed, but whose writer still holds the lock.
    given_up: Mutex<Vec<PathBuf>>,
}

impl Received {
    /// None yet.
    pub fn none(named: Named) -> Self {
        Self {
            named,
            any: AtomicBool::default(),
            given_up: Mutex::default(),
        }
    }

    /// What `read` makes of the file at `path`, once its writer has let go of the lock beside it. The file is deleted then.
    ///
    /// # Errors
    /// It does not come within `patience`, or cannot be read. What another request may not meet passes.
    pub fn take<T>(
        &self,
        path: &Path,
        patience: Duration,
        read: impl FnOnce(&Path) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let found = match wait_for(path, patience) {
            Ok(()) => {
                self.any.store(true, Ordering::Relaxed);
                read(path)
            }
            Err(Missing::Failed(failure)) => Err(failure),
            Err(Missing::Late(held)) => Err(self.late(path, held, patience)),
        };
        self.delete(Some(path));
        found
    }

    /// Deletes a file that nobody will ask for, once its writer is done with it.
    pub fn give_up(&self, path: &Path) {
        self.delete(Some(path));
    }

    /// What is said of a file that did not come in time. Where no file ever came and not even its lock is there, no other one
    /// would come.
    fn late(&self, path: &Path, held: Lock, patience: Duration) -> Failure {
        let (path, seconds) = (path.display(), patience.as_secs_f64());
        let reason = format!(
            "`{path}` was not complete within {seconds:.0} s (`{}`)",
            self.named.timeout
        );
        match held {
            Lock::Missing if !self.any.load(Ordering::Relaxed) => Failure::Lasting {
                reason: format!(
                    "{reason}; set `{}` to the path at which this machine has the server's folder",
                    self.named.folder
                ),
            },
            Lock::Missing => passing(format!(
                "{reason}: it is gone, as after a restart of the server's machine or container"
            )),
            Lock::Held | Lock::Free => passing(reason),
        }
    }

    /// Deletes a file with its lock, and those before it that were still written then. A writer that is at work would make its
    /// file again, so that such a file waits for the next one's turn.
    fn delete(&self, path: Option<&Path>) {
        let given_up = self.given_up.lock();
        let mut given_up = given_up.unwrap_or_else(PoisonError::into_inner);
        given_up.extend(path.map(Path::to_owned));
        given_up.retain(|path| {
            let lock = lock_beside(path);
            let is_written = matches!(Lock::of(&lock), Ok(Lock::Held));
            if !is_written {
                [path, &lock].into_iter().for_each(|file| remove(file));
            }
            is_written
        });
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.delete(None);
    }
}

fn remove(file: &Path) {
    if let Err(error) = fs::remove_file(file)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(
            "cannot delete `{}`, which is no longer needed: {error}",
            file.display()
        );
    }
}

fn lock_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Who holds the lock beside a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    /// There is none.
    Missing,
    /// The writer.
    Held,
    /// Nobody any more.
    Free,
}

impl Lock {
    fn of(lock: &Path) -> Result<Self> {
        let Ok(file) = File::open(lock) else {
            return Ok(Self::Missing);
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Self::Free),
            Err(TryLockError::WouldBlock) => Ok(Self::Held),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock `{}`", lock.display()))
            }
        }
    }
}

/// Why a file is not there.
enum Missing {
    /// It did not come in time, and this is what became of its lock.
    Late(Lock),
    /// No more is to be waited for.
    Failed(Failure),
}

/// Waits until the file is there and nobody writes it.
fn wait_for(path: &Path, patience: Duration) -> std::result::Result<(), Missing> {
    let (lock, since) = (lock_beside(path), Instant::now());
    let mut free_since = None;
    loop {
        // A writer makes the lock first, and the file while it holds it.
        let held = Lock::of(&lock).map_err(|error| Missing::Failed(lasting(&error)))?;
        if held != Lock::Held && path.exists() {
            return Ok(());
        }
        if held == Lock::Free {
            // It lets go of the lock where it fails, too.
            let free_since = *free_since.get_or_insert_with(Instant::now);
            if free_since.elapsed() >= UNSEEN.min(patience) {
                return Err(Missing::Failed(passing(format!(
                    "the server did not write `{}`, although it let go of the lock beside it: see its log; its folder may be full",
                    path.display()
                ))));
            }
        }
        if since.elapsed() > patience {
            return Err(Missing::Late(held));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::capture::states::{self, HiddenStates};
    use spectrain_checkpoints::{NamedTensor, write_safetensors};

    const NAMED: Named = Named {
        folder: "target.local_folder",
        timeout: "features.timeout",
    };

    #[test]
    fn only_files_of_the_shared_folder_are_taken() {
        let shared = SharedFolder {
            on_server: "/dev/shm/hs".into(),
            here: "/mnt/hs".into(),
        };
        assert_eq!(
            shared.file("/dev/shm/hs/a/b.safetensors", "x").unwrap(),
            Path::new("/mnt/hs/a/b.safetensors")
        );
        for path in [
            "/dev/shm/hs",
            "/dev/shm/hs/../x",
            "/etc/passwd",
            "hs/a",
            "/dev/shm/hsx/a",
            "",
        ] {
            let told = shared.file(path, "x").unwrap_err().to_string();
            assert!(told.contains("expected a file in `/dev/shm/hs`"), "{told}");
        }
    }

    #[test]
    fn files_that_nobody_takes_are_counted_once_they_are_old() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_owned();
        for name in ["old.safetensors", "old.safetensors.lock", "other"] {
            fs::write(here.join(name), [0; 10]).unwrap();
        }
        let shared = SharedFolder {
            on_server: here.clone(),
            here,
        };
        let none = Abandoned::default();
        assert_eq!(shared.abandoned(Duration::from_secs(60)), none);
        let an_hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        for entry in fs::read_dir(&shared.here).unwrap() {
            let file = File::options().write(true).open(entry.unwrap().path());
            file.unwrap().set_modified(an_hour_ago).unwrap();
        }
        let one = Abandoned {
            files: 1,
            bytes: 10,
        };
        assert_eq!(shared.abandoned(Duration::from_secs(60)), one);
    }

    /// What comes of the first file of a server.
    fn take(
        path: &Path,
        sizes: [usize; 3],
        patience: Duration,
    ) -> std::result::Result<HiddenStates, Failure> {
        take_from(&Received::none(NAMED), path, sizes, patience)
    }

    fn take_from(
        received: &Received,
        path: &Path,
        sizes: [usize; 3],
        patience: Duration,
    ) -> std::result::Result<HiddenStates, Failure> {
        received.take(path, patience, |path| states::read(path, sizes))
    }

    fn tensors(tokens: usize, shape: [usize; 3]) -> Vec<NamedTensor> {
        let values = vec![0.5; shape.iter().product()];
        let ids: Vec<i64> = (0..tokens as i64).collect();
        vec![
            NamedTensor::from_f32("hidden_states", shape, values),
            NamedTensor::from_i64("token_ids", [tokens], ids),
        ]
    }

    #[test]
    fn a_file_is_read_once_its_writer_lets_go_and_is_gone_then() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let lock = File::create(lock_beside(&path)).unwrap();
        lock.lock().unwrap();
        let writer = {
            let path = path.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                write_safetensors(&path, &tensors(4, [4, 3, 2]), &Default::default()).unwrap();
                drop(lock);
            })
        };
        let found = take(&path, [8, 3, 2], Duration::from_secs(20)).unwrap();
        writer.join().unwrap();
        assert_eq!(found.tokens, [0, 1, 2, 3]);
        assert_eq!(found.states.shape, [4, 3, 2]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let refused = |tensors: &[NamedTensor], most: [usize; 3]| {
            write_safetensors(&path, tensors, &Default::default()).unwrap();
            lasting_reason(take(&path, most, Duration::from_secs(1)))
        };
        let told = refused(&tensors(4, [4, 2, 2]), [8, 3, 2]);
        assert!(told.contains("expected the shape [4, 3, 2]"), "{told}");
        assert!(refused(&tensors(3, [4, 3, 2]), [8, 3, 2]).contains("[3, 3, 2]"));
        let told = refused(&tensors(60_000, [60_000, 3, 2]), [8, 3, 2]);
        assert!(told.contains("expected at most"), "{told}");
        assert!(refused(&tensors(4, [4, 3, 2])[..1], [8, 3, 2]).contains("`token_ids`"));
        assert!(!path.exists(), "what is no good is deleted, too");
        let told = lasting_reason(take(&path, [8, 3, 2], Duration::from_millis(20)));
        assert!(told.contains("was not complete within"), "{told}");
        assert!(told.contains("`target.local_folder`"), "{told}");
    }
    fn lasting_reason(taken: std::result::Result<HiddenStates, Failure>) -> String {
        match taken {
            Err(Failure::Lasting { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    fn passing_reason(taken: std::result::Result<HiddenStates, Failure>) -> String {
        match taken {
            Err(Failure::Passing { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_server_could_not_write_may_come_at_another_try() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let patience = Duration::from_secs(600);
        // It let go of the lock and wrote nothing.
        File::create(lock_beside(&path)).unwrap();
        let since = Instant::now();
        let told = passing_reason(take(&path, [8, 3, 2], patience));
        assert!(told.contains("the server did not write `"), "{told}");
        assert!(since.elapsed() < Duration::from_secs(60));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // It wrote some of the file, or nothing into it.
        write_safetensors(&path, &tensors(4, [4, 3, 2]), &Default::default()).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in [0, 4, 60, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            let told = passing_reason(take(&path, [8, 3, 2], patience));
            assert!(told.contains("did not write it whole"), "{told}");
            assert!(!path.exists(), "what is no good takes no room");
        }
        // It writes for longer than a request may take.
        let lock = File::create(lock_beside(&path)).unwrap();
        lock.lock().unwrap();
        let received = Received::none(NAMED);
        let late = |path: &Path| take_from(&received, path, [8, 3, 2], Duration::from_millis(20));
        let told = passing_reason(late(&path));
        assert!(told.contains("`features.timeout`"), "{told}");
        // Once it is done, the file goes with the next one.
        write_safetensors(&path, &tensors(4, [4, 3, 2]), &Default::default()).unwrap();
        let next = folder.path().join("b.safetensors");
        lasting_reason(late(&next));
        assert!(path.exists(), "it is still written");
        drop(lock);
        lasting_reason(late(&next));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_gone_is_no_wrong_folder_where_others_came() {
        let folder = tempfile::tempdir().unwrap();
        let [first, gone] = ["a", "b"].map(|name| folder.path().join(name));
        let received = Received::none(NAMED);
        write_safetensors(&first, &tensors(4, [4, 3, 2]), &Default::default()).unwrap();
        take_from(&received, &first, [8, 3, 2], Duration::from_secs(20)).unwrap();
        let told = passing_reason(take_from(
            &received,
            &gone,
            [8, 3, 2],
            Duration::from_millis(20),
        ));
        assert!(told.contains("after a restart"), "{told}");
        assert!(!told.contains("`target.local_folder`"), "{told}");
    }
}
