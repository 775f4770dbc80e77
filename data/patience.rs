//! How long a thread may work on one thing. Time in which it does not run, since the machine is busy or the program was stopped for
//! a while (Ctrl-Z), does not count.

use std::time::{Duration, Instant};

/// Since when a thread works on something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    since: Instant,
    /// What the thread had worked by then.
    worked: Option<Duration>,
}

impl Patience {
    /// Of this thread, from now on.
    pub(crate) fn begin() -> Self {
        Self {
            since: Instant::now(),
            worked: worked(),
        }
    }

    /// Whether this thread, which must be the one that began, has worked for longer than that.
    pub(crate) fn exceeds(&self, limit: Duration) -> bool {
        // It has not worked for longer than time has passed, which is quicker to ask for.
        self.since.elapsed() > limit
            && match (self.worked, worked()) {
                (Some(before), Some(now)) => now.saturating_sub(before) > limit,
                _ => true,
            }
    }
}

/// What this thread has worked so far, where the system counts it.
#[cfg(unix)]
fn worked() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).ok()
}

#[cfg(not(unix))]
fn worked() -> Option<Duration> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_rests_takes_none_of_the_time_and_one_that_works_does() {
        let limit = Duration::from_millis(20);
        let patience = Patience::begin();
        std::thread::sleep(limit * 3);
        assert!(!patience.exceeds(limit));
        let since = Instant::now();
        while !patience.exceeds(limit) {
            assert!(since.elapsed() < Duration::from_secs(60));
        }
        assert!(since.elapsed() >= limit / 2);
    }
}
