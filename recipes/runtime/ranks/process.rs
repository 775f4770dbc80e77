//! Processes of other ranks that rank 0 has started, and how they end.

use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use spectrain_train::{Error, Result};

/// How long a process whose connection has ended may take to end itself.
const ENDING: Duration = Duration::from_secs(2);
/// The signal that no process can refuse, which the system sends where memory is out.
const KILL: i32 = 9;

/// Whether rank 0 starts the other processes, and those that it has started.
pub(super) enum Started {
    Elsewhere,
    Here(Vec<Process>),
    NotYet,
}

/// A process that rank 0 has started, which ends with it.
pub(super) struct Process {
    pub(super) rank: usize,
    pub(super) child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Started {
    /// Fails if a process has ended that was started here.
    pub(super) fn check(&mut self) -> Result<()> {
        let Self::Here(processes) = self else {
            return Ok(());
        };
        for Process { rank, child } in processes {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(Error::Rank {
                    rank: *rank,
                    what: ended(status),
                });
            }
        }
        Ok(())
    }

    /// The same error, with how the process has ended that it is about, where that was started here.
    pub(super) fn explained(&mut self, error: Error) -> Error {
        let Error::Rank { rank, .. } = error else {
            return error;
        };
        let Self::Here(processes) = self else {
            return error;
        };
        let process = processes.iter_mut().find(|process| process.rank == rank);
        match process.and_then(Process::ending) {
            Some(status) => Error::Rank {
                rank,
                what: ended(status),
            },
            None => error,
        }
    }
}

impl Process {
    /// How it ends, if it does so soon.
    fn ending(&mut self) -> Option<ExitStatus> {
        let since = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if since.elapsed() < ENDING => sleep(Duration::from_millis(10)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

/// How a process has ended that should not have.
fn ended(status: ExitStatus) -> String {
    match (signal(status), status.code()) {
        (Some(KILL), _) => format!(
            "has ended: killed by signal {KILL}; the system may have run out of memory (`dmesg` says whether)"
        ),
        (Some(signal), _) => format!("has ended: killed by signal {signal}"),
        (None, Some(code)) => {
            format!(
                "has ended with status {code}; its messages are above, in the lines that begin with its rank"
            )
        }
        (None, None) => format!("has ended: {status}"),
    }
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal()
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<i32> {
    None
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::{Command, Stdio};

    use super::*;

    #[cfg(unix)]
    #[test]
    fn how_a_rank_has_ended_is_told() {
        use std::os::unix::process::ExitStatusExt as _;
        for (raw, words) in [
            (9, "killed by signal 9; the system may"),
            (11, "has ended: killed by signal 11"),
            (1 << 8, "has ended with status 1;"),
        ] {
            let found = ended(ExitStatus::from_raw(raw));
            assert!(found.contains(words), "{found}");
        }
    }

    #[test]
    fn the_error_of_a_rank_that_was_started_here_has_its_cause() {
        let child = Command::new(env::current_exe().unwrap())
            .arg("--no-such-option")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut started = Started::Here(vec![Process { rank: 1, child }]);
        let lost = |rank| Error::Rank {
            rank,
            what: "has ended".into(),
        };
        let found = started.explained(lost(1)).to_string();
        assert!(
            found.starts_with("rank 1 has ended with status "),
            "{found}"
        );
        assert_eq!(started.explained(lost(2)).to_string(), "rank 2 has ended");
        let elsewhere = Started::Elsewhere.explained(lost(1)).to_string();
        assert_eq!(elsewhere, "rank 1 has ended");
    }
}
