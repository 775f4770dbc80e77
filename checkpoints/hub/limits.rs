//! How long a download may take, how large it may be, and how often it is tried.

use std::time::Duration;

/// What a download puts up with. The defaults suit the public hub and a slow line.
#[derive(Clone, Debug)]
pub struct HubLimits {
    /// The longest that finding a host takes, and then connecting to it.
    pub connect: Duration,
    /// The longest from a request to the end of the answer's headers.
    pub answer: Duration,
    /// The longest silence in the middle of a file.
    pub silence: Duration,
    /// What every file may take, whatever its size; [`slowest`](Self::slowest) adds to it.
    pub grace: Duration,
    /// Bytes per second at which a file must come on the whole, pauses and retries included.
    pub slowest: u64,
    /// Redirects of one request.
    pub redirects: usize,
    /// Attempts in a row that may bring nothing.
    pub attempts: usize,
    /// The pause before the second attempt; each further one is twice as long.
    pub pause: Duration,
    /// The longest pause that a hub may ask for.
    pub longest_pause: Duration,
    /// How long another process may hold a file without getting on with it.
    pub stall: Duration,
    /// Bytes of a configuration, a tokenizer or another file of text.
    pub largest_text: u64,
    /// Bytes of any other file.
    pub largest: u64,
}

impl Default for HubLimits {
    fn default() -> Self {
        HubLimits {
            connect: Duration::from_secs(20),
            answer: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            grace: Duration::from_secs(600),
            slowest: 16 << 10,
            redirects: 10,
            attempts: 5,
            pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(300),
            stall: Duration::from_secs(1800),
            largest_text: 512 << 20,
            largest: 1 << 40,
        }
    }
}

impl HubLimits {
    /// The same for what can be done without: one attempt, whose waits are short.
    pub(super) fn in_passing(&self) -> Self {
        let seconds = Duration::from_secs;
        HubLimits {
            connect: self.connect.min(seconds(3)),
            answer: self.answer.min(seconds(10)),
            silence: self.silence.min(seconds(10)),
            stall: self.stall.min(seconds(10)),
            attempts: 1,
            ..self.clone()
        }
    }

    /// What a file of this many bytes may take.
    pub(super) fn time_for(&self, bytes: u64) -> Duration {
        self.grace
            .saturating_add(Duration::from_secs(bytes / self.slowest.max(1)))
    }

    /// The pause after this many attempts in a row that brought nothing.
    pub(super) fn pause_after(&self, attempts: usize) -> Duration {
        let doublings = attempts.saturating_sub(1).min(16) as u32;
        self.pause
            .saturating_mul(1 << doublings)
            .min(self.longest_pause)
    }

    /// The most bytes of a file with this name.
    pub(super) fn largest_of(&self, file: &str) -> u64 {
        let is_text = [".json", ".jinja", ".txt"]
            .iter()
            .any(|ending| file.ends_with(ending));
        if is_text {
            self.largest_text
        } else {
            self.largest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_in_passing_is_waited_for_briefly() {
        let usual = HubLimits::default().in_passing();
        let waits = [usual.connect, usual.answer, usual.silence, usual.stall];
        assert_eq!(waits.map(|wait| wait.as_secs()), [3, 10, 10, 10]);
        assert_eq!(usual.attempts, 1);
        // Who waits even less still does.
        let hasty = HubLimits {
            answer: Duration::from_millis(50),
            ..HubLimits::default()
        };
        assert_eq!(hasty.in_passing().answer, hasty.answer);
    }

    #[test]
    fn a_larger_file_may_take_longer() {
        let limits = HubLimits {
            grace: Duration::from_secs(10),
            slowest: 100,
            ..HubLimits::default()
        };
        assert_eq!(limits.time_for(0), Duration::from_secs(10));
        assert_eq!(limits.time_for(5000), Duration::from_secs(60));
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let limits = HubLimits {
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(5),
            ..HubLimits::default()
        };
        let pauses = [1, 2, 3, 4, 99].map(|attempts| limits.pause_after(attempts).as_secs());
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
    }
}
