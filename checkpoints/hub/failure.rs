//! Why a request or a download did not succeed, before it is known to which file an error belongs.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use ureq::Timeout;

use super::announced::shown;
use super::limits::HubLimits;
use crate::error::Error;

/// How long the stop of a program may go unnoticed in a pause.
const GLANCE: Duration = Duration::from_millis(100);

/// What a request or a download gives.
pub(super) type Outcome<T> = Result<T, Failure>;

/// Why something did not succeed.
#[derive(Debug)]
pub(super) enum Failure {
    /// 404 with the hub's reason.
    Missing(&'static str),
    /// 401, 402 or 403, with what the hub says of it.
    Refused { status: u16, said: Option<String> },
    /// Nobody answers there.
    Unreachable(String),
    /// The connection broke, or nothing came through it. Another attempt may succeed.
    Broken(String),
    /// The hub asks to try again, or what came was not whole. Another attempt may succeed, after a pause that the hub
    /// may ask for.
    Passing {
        reason: String,
        pause: Option<Duration>,
    },
    /// What was here of a file, from this download or an earlier one, was none of it.
    ThrownAway(String),
    /// Another attempt would end in the same way.
    Lasting(String),
    /// The program is to stop.
    Interrupted,
    /// The disk refuses.
    Local(Error),
}

/// A status, with what the server says of it.
pub(super) fn http(status: u16, said: Option<&str>) -> String {
    match said {
        Some(said) => format!("http {status}: {said}"),
        None => format!("http {status}"),
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Failure::Lasting(reason)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Local(error)
    }
}

impl Failure {
    pub(super) fn passing(reason: impl Into<String>) -> Self {
        Failure::Passing {
            reason: reason.into(),
            pause: None,
        }
    }

    /// What went wrong on the way to an answer.
    pub(super) fn of_transport(error: ureq::Error) -> Self {
        use io::ErrorKind as Kind;
        let reason = shown(&error.to_string());
        match error {
            ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::ConnectProxyFailed(_)
            | ureq::Error::Tls(_)
            | ureq::Error::Rustls(_) => Failure::Unreachable(reason),
            ureq::Error::Io(error) => match error.kind() {
                Kind::ConnectionRefused
                | Kind::HostUnreachable
                | Kind::NetworkUnreachable
                | Kind::NetworkDown
                | Kind::AddrNotAvailable
                | Kind::PermissionDenied
                | Kind::InvalidData => Failure::Unreachable(reason),
                _ => Failure::Broken(reason),
            },
            ureq::Error::Timeout(_) => Failure::Broken(reason),
            _ => Failure::Lasting(reason),
        }
    }
}

/// Attempts in a row that brought nothing, and when the file must be here.
pub(super) struct Patience<'a> {
    limits: &'a HubLimits,
    stop: Option<fn() -> bool>,
    attempts: usize,
    until: Option<Instant>,
}

impl<'a> Patience<'a> {
    pub(super) fn new(limits: &'a HubLimits, stop: Option<fn() -> bool>) -> Self {
        Patience {
            limits,
            stop,
            attempts: 0,
            until: None,
        }
    }

    /// Sets the time for a file of this many bytes, once.
    pub(super) fn expect(&mut self, bytes: u64) {
        self.until = self
            .until
            .or_else(|| Instant::now().checked_add(self.limits.time_for(bytes)));
    }

    /// Forgets the attempts that brought nothing.
    pub(super) fn progressed(&mut self) {
        self.attempts = 0;
    }

    /// Whether to go on: the program is not to stop, and there is time.
    pub(super) fn check(&self) -> Outcome<()> {
        if self.stop.is_some_and(|stop| stop()) {
            return Err(Failure::Interrupted);
        }
        if self.until.is_some_and(|until| Instant::now() >= until) {
            let slowest = self.limits.slowest;
            return Err(Failure::Lasting(format!(
                "the download is slower than {slowest} bytes per second; what is here is kept, and the next download goes on from there"
            )));
        }
        Ok(())
    }

    /// Waits until the next attempt, or gives the failure back if there is none.
    pub(super) fn after(&mut self, failure: Failure) -> Outcome<()> {
        self.attempts += 1;
        if self.attempts >= self.limits.attempts {
            return Err(failure);
        }
        let longest = self.limits.longest_pause;
        match failure {
            Failure::Passing {
                reason,
                pause: Some(pause),
            } => {
                let seconds = pause.as_secs();
                if pause > longest {
                    let longest = longest.as_secs();
                    return Err(Failure::Lasting(format!(
                        "{reason}; the hub asks for a pause of {seconds} s, and this program waits {longest} s at most: try again after the pause"
                    )));
                }
                tracing::warn!("{reason}; the hub asks for a pause of {seconds} s");
                self.sleep(pause)
            }
            Failure::Broken(_) | Failure::Passing { .. } => {
                self.sleep(self.limits.pause_after(self.attempts))
            }
            lasting => Err(lasting),
        }
    }

    /// Sleeps, unless the program is to stop.
    pub(super) fn sleep(&self, pause: Duration) -> Outcome<()> {
        let end = Instant::now() + pause;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(GLANCE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> HubLimits {
        HubLimits {
            attempts: 3,
            pause: Duration::ZERO,
            longest_pause: Duration::from_secs(9),
            ..HubLimits::default()
        }
    }

    #[test]
    fn attempts_in_a_row_are_counted_and_progress_forgets_them() {
        let limits = limits();
        let mut patience = Patience::new(&limits, None);
        let mut fails = || patience.after(Failure::passing("x")).is_err();
        assert_eq!([fails(), fails(), fails()], [false, false, true]);
        patience.progressed();
        assert!(patience.after(Failure::passing("x")).is_ok());
    }

    #[test]
    fn a_pause_that_is_too_long_is_not_waited_for() {
        let limits = limits();
        let failure = Failure::Passing {
            reason: "http 429".to_string(),
            pause: Some(Duration::from_secs(10)),
        };
        let after = Patience::new(&limits, None).after(failure);
        assert!(matches!(after, Err(Failure::Lasting(reason)) if reason.contains("10 s")));
    }

    #[test]
    fn a_lasting_failure_is_not_tried_again() {
        let limits = limits();
        let refused = Failure::Refused {
            status: 403,
            said: None,
        };
        let after = Patience::new(&limits, None).after(refused);
        assert!(matches!(after, Err(Failure::Refused { status: 403, .. })));
    }

    #[test]
    fn a_program_that_is_to_stop_does_not_wait() {
        let limits = limits();
        let patience = Patience::new(&limits, Some(|| true));
        let slept = patience.sleep(Duration::from_secs(3600));
        assert!(matches!(slept, Err(Failure::Interrupted)));
    }

    #[test]
    fn time_that_is_over_ends_a_download_whatever_it_brings() {
        let limits = HubLimits {
            grace: Duration::ZERO,
            slowest: u64::MAX,
            ..limits()
        };
        let mut patience = Patience::new(&limits, None);
        assert!(patience.check().is_ok());
        patience.expect(1 << 40);
        patience.progressed();
        assert!(matches!(patience.check(), Err(Failure::Lasting(_))));
    }
}
