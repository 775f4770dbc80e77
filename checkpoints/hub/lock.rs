//! One process at a time downloads contents; the others wait for it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::failure::{Failure, Outcome, Patience};
use crate::error::Error;

/// The time between two looks at a lock that another process holds.
const LOOK: Duration = Duration::from_millis(200);

/// Held until dropped. The system lets go of it when its process dies, however it does.
pub(super) struct Lock(#[expect(dead_code, reason = "held, not read")] File);

/// What is waited for.
pub(super) struct Wait<'a> {
    /// The file that is locked.
    pub(super) lock: &'a Path,
    /// What its holder writes, whose growth says that it gets on.
    pub(super) incomplete: &'a Path,
    /// What is downloaded, for the message.
    pub(super) file: &'a str,
    /// How long the holder may stand still.
    pub(super) stall: Duration,
}

/// Takes the lock, as soon as nobody else has it.
pub(super) fn acquire(wait: &Wait<'_>, patience: &Patience<'_>) -> Outcome<Lock> {
    let folder = wait.lock.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(wait.lock)
        .map_err(Error::io("open", wait.lock))?;
    let mut watch: Option<Watch> = None;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lock(file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                let path = wait.lock.display();
                tracing::warn!(
                    "`{path}` cannot be locked: do not let another process download `{}` meanwhile",
                    wait.file
                );
                return Ok(Lock(file));
            }
            Err(TryLockError::Error(error)) => {
                return Err(Error::io("lock", wait.lock)(error).into());
            }
        }
        let size = fs::metadata(wait.incomplete).map_or(0, |metadata| metadata.len());
        let now = Instant::now();
        let watch = watch.get_or_insert_with(|| {
            tracing::info!("waiting for another process that downloads `{}`", wait.file);
            Watch { size, since: now }
        });
        if watch.stands_still(size, now) > wait.stall {
            let (path, seconds) = (wait.lock.display(), wait.stall.as_secs());
            return Err(Failure::Lasting(format!(
                "another process has locked `{path}` and written nothing for {seconds} s; end that process and try again"
            )));
        }
        patience.sleep(LOOK)?;
    }
}

/// What was last seen of another process.
struct Watch {
    size: u64,
    since: Instant,
}

impl Watch {
    /// For how long the size has been what it is.
    fn stands_still(&mut self, size: u64, now: Instant) -> Duration {
        if size != self.size {
            *self = Watch { size, since: now };
        }
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_the_other_writes_starts_the_wait_anew() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = Watch {
            size: 0,
            since: start,
        };
        assert_eq!(watch.stands_still(0, at(5)).as_secs(), 5);
        assert_eq!(watch.stands_still(1, at(9)).as_secs(), 0);
        assert_eq!(watch.stands_still(1, at(20)).as_secs(), 11);
        assert_eq!(watch.stands_still(0, at(30)).as_secs(), 0, "it starts anew");
    }
}
