//! When a request is made: how many there are in a second, and how long to wait after one that failed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::RngExt;

/// How failures that may pass are met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Further tries after the first.
    pub retries: u32,
    /// The pause before the first of them; it doubles from try to try.
    pub first: Duration,
    /// The longest pause, but for one that the server asks for.
    pub longest: Duration,
}

impl Retry {
    /// The pause after `failed` tries, at least 1: between half and all of what it has doubled to, so that requests that
    /// failed together do not come again together; and no less than what the server asks for.
    pub fn pause(&self, failed: u32, asked: Option<Duration>, rng: &mut impl RngExt) -> Duration {
        let doublings = failed.saturating_sub(1).min(31);
        let most = self.first.saturating_mul(1 << doublings).min(self.longest);
        let pause = most.mul_f64(rng.random_range(0.5..=1.0));
        pause.max(asked.unwrap_or_default())
    }
}

/// Keeps requests apart.
#[derive(Debug)]
pub struct Pace {
    apart: Duration,
    /// The first free moment.
    next: Mutex<Duration>,
}

impl Pace {
    /// At most this many requests in a second, evenly spread; without a limit where there is none.
    pub fn new(per_second: Option<f64>) -> Self {
        let apart = per_second.map(|rate| Duration::from_secs_f64(1.0 / rate));
        Self {
            apart: apart.unwrap_or_default(),
            next: Mutex::default(),
        }
    }

    /// Takes the next free moment for a request, at or after `now`, and returns it. Moments count from any one start.
    pub fn reserve(&self, now: Duration) -> Duration {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let moment = now.max(*next);
        *next = moment + self.apart;
        moment
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};

    #[test]
    fn a_pause_doubles_up_to_the_longest_and_is_spread() {
        let retry = Retry {
            retries: 9,
            first: Duration::from_millis(100),
            longest: Duration::from_millis(350),
        };
        let mut rng = StdRng::seed_from_u64(0);
        for (failed, most) in [(1, 100), (2, 200), (3, 350), (40, 350), (u32::MAX, 350)] {
            let pauses: Vec<u128> = (0..200)
                .map(|_| retry.pause(failed, None, &mut rng).as_millis())
                .collect();
            let (low, high) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
            assert!(
                *low >= most / 2 && *high <= most,
                "{failed}: {low} to {high}"
            );
            assert!(high - low > most / 4, "{failed}: {low} to {high}");
        }
    }

    #[test]
    fn a_pause_the_server_asks_for_is_kept() {
        let retry = Retry {
            retries: 1,
            first: Duration::from_millis(10),
            longest: Duration::from_millis(20),
        };
        let mut rng = StdRng::seed_from_u64(0);
        let asked = Some(Duration::from_secs(7));
        assert_eq!(retry.pause(1, asked, &mut rng), Duration::from_secs(7));
        let short = retry.pause(1, Some(Duration::from_millis(1)), &mut rng);
        assert!(short >= Duration::from_millis(5), "{short:?}");
    }

    #[test]
    fn no_second_has_more_requests_than_allowed() {
        let pace = Pace::new(Some(10.0));
        let mut rng = StdRng::seed_from_u64(1);
        let mut now = Duration::ZERO;
        let mut moments = Vec::new();
        for _ in 0..500 {
            now += Duration::from_millis(rng.random_range(0..150));
            moments.push(pace.reserve(now));
        }
        for (first, moment) in moments.iter().enumerate() {
            let within = moments[first..]
                .iter()
                .filter(|&&other| other < *moment + Duration::from_secs(1));
            assert!(within.count() <= 10);
        }
        let unlimited = Pace::new(None);
        assert_eq!(unlimited.reserve(now), now);
        assert_eq!(unlimited.reserve(now), now);
    }
}
