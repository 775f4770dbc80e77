//! Many requests under way at several servers, and their results one after the other in the order of the samples. So what is
//! written does not depend on which server was faster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::{SeedableRng, rngs::StdRng};
use spectrain_data::regenerate::{Failure, Retry};

use super::server::{Asked, CaptureServer, Captured};
use crate::runtime::interruption::check_interrupted;
use crate::runtime::server::waiting::{self, Waiting};

/// How often it is looked whether the user wants to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Tries of a request after the first.
const RETRIES: u32 = 8;

/// How servers are asked.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Requests that are under way at each server.
    pub under_way: usize,
    /// Samples that may be captured ahead of the first one that is not: the files and states that are alive are no more.
    pub ahead: usize,
    /// How failures that may pass are met.
    pub retry: Retry,
    /// How long servers that refuse connections are waited for.
    pub waiting: Waiting,
    /// Whether nobody wants what is still to come.
    pub is_over: Arc<AtomicBool>,
}

/// Who asks servers.
#[derive(Debug, Clone, Copy)]
pub struct Asking {
    /// Processes that ask the same servers at the same time, this one included: they share what may be under way.
    pub ranks: usize,
    /// How long servers that refuse connections are waited for.
    pub waiting: Waiting,
}

impl Pace {
    /// That of one of several processes which together have `under_way` requests at each of these servers, and four times as many
    /// files there; each has at least one request.
    pub(super) fn of(under_way: usize, servers: usize, asking: Asking) -> Self {
        let under_way = (under_way / asking.ranks.max(1)).max(1);
        Self {
            under_way,
            ahead: 4 * under_way * servers,
            retry: Retry {
                retries: RETRIES,
                first: Duration::from_millis(250),
                longest: Duration::from_secs(30),
            },
            waiting: asking.waiting,
            is_over: Arc::default(),
        }
    }
}

/// What a server did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Share {
    /// Samples.
    pub samples: u64,
    /// Tokens of which it handed out states.
    pub tokens: u64,
    /// Seconds that its requests took, all of them added.
    pub seconds: f64,
    /// Requests that failed and were sent anew.
    pub failed: u64,
}

impl Share {
    /// Adds what the same server did at another time.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.tokens += other.tokens;
        self.seconds += other.seconds;
        self.failed += other.failed;
    }
}

impl fmt::Display for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            samples,
            tokens,
            failed,
            ..
        } = self;
        write!(
            formatter,
            "the states of {tokens} tokens in {samples} samples, {failed} requests failed"
        )
    }
}

/// What comes of a sample: its states, or why there are none.
type Outcome = (usize, usize, f64, std::result::Result<Captured, Failure>);

/// Captures the samples in `samples`, which `ask` puts into words, and gives them to `take` in their order.
///
/// # Errors
/// A server refuses a sample, all servers fail longer than the retries last or are away longer than one waits, `take` fails, it is
/// over before, or the user stops it.
pub fn capture(
    servers: &[Arc<CaptureServer>],
    samples: Range<usize>,
    pace: &Pace,
    ask: &(dyn Fn(usize) -> Asked + Sync),
    take: &mut dyn FnMut(usize, Captured) -> Result<()>,
) -> Result<Vec<Share>> {
    let queue = Queue {
        state: Mutex::new(State {
            next: samples.start,
            end: samples.end,
            again: BTreeSet::new(),
            window: samples.start + pace.ahead.max(1),
            is_over: false,
        }),
        changed: Condvar::new(),
    };
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        for (number, server) in servers.iter().enumerate() {
            for worker in 0..pace.under_way.max(1) {
                let (queue, sender) = (&queue, sender.clone());
                let seed = (number * 1000 + worker) as u64;
                scope.spawn(move || work(queue, (number, server), pace, ask, (&sender, seed)));
            }
        }
        drop(sender);
        let mut collector = Collector {
            queue: &queue,
            pace,
            servers,
            shares: vec![Share::default(); servers.len()],
            early: BTreeMap::new(),
            next: samples.start,
            failing: BTreeSet::new(),
            away: BTreeSet::new(),
        };
        let found = collector.collect(&receiver, samples.end, take);
        queue.lock().is_over = true;
        queue.changed.notify_all();
        found.map(|()| collector.shares)
    })
}

/// Samples that nobody asks for yet.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    next: usize,
    end: usize,
    /// Samples that failed.
    again: BTreeSet<usize>,
    /// No sample from here on is asked for yet.
    window: usize,
    is_over: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next sample, once there is one; none when it is over.
    fn take(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(failed) = state.again.pop_first() {
                return Some(failed);
            }
            if state.next < state.end.min(state.window) {
                state.next += 1;
                return Some(state.next - 1);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Waits, unless it is over before.
    fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let mut state = self.lock();
        while !state.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

/// Asks one server for one sample after the other.
fn work(
    queue: &Queue,
    (number, server): (usize, &CaptureServer),
    pace: &Pace,
    ask: &dyn Fn(usize) -> Asked,
    (results, seed): (&Sender<Outcome>, u64),
) {
    let mut rng = StdRng::seed_from_u64(seed);
    // Failures of this server since its last success: a server that is down is left alone for longer and longer.
    let mut failed = 0;
    while let Some(sample) = queue.take() {
        let since = Instant::now();
        let found = server.capture(&ask(sample));
        let wait = match &found {
            Err(Failure::Passing { wait, .. }) => {
                failed += 1;
                let pause = pace.retry.pause(failed, *wait, &mut rng);
                // A server that is not there costs nothing, and is asked soon after it is.
                Some(match server.client().refuses_for() {
                    Some(_) => pause.min(waiting::LOOK_EVERY),
                    None => pause,
                })
            }
            _ => {
                failed = 0;
                None
            }
        };
        if results
            .send((sample, number, since.elapsed().as_secs_f64(), found))
            .is_err()
        {
            return;
        }
        if let Some(wait) = wait {
            queue.pause(wait);
        }
    }
}

/// Puts what comes back into order.
struct Collector<'a> {
    queue: &'a Queue,
    pace: &'a Pace,
    servers: &'a [Arc<CaptureServer>],
    shares: Vec<Share>,
    /// Samples that came before their turn.
    early: BTreeMap<usize, Captured>,
    next: usize,
    /// Servers whose last request failed.
    failing: BTreeSet<usize>,
    /// Those of them where nobody was.
    away: BTreeSet<usize>,
}

impl Collector<'_> {
    fn collect(
        &mut self,
        results: &Receiver<Outcome>,
        end: usize,
        take: &mut dyn FnMut(usize, Captured) -> Result<()>,
    ) -> Result<()> {
        let mut tries: BTreeMap<usize, u32> = BTreeMap::new();
        while self.next < end {
            check_interrupted()?;
            if self.pace.is_over.load(Ordering::Relaxed) {
                bail!("nobody wants the samples from {} on", self.next);
            }
            let (sample, server, seconds, found) = match results.recv_timeout(LOOK_EVERY) {
                Ok(outcome) => outcome,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("a thread that asks servers ended too early")
                }
            };
            let url = self.servers[server].url();
            match found {
                Ok(captured) => {
                    self.failing.remove(&server);
                    if self.away.remove(&server) {
                        self.pace.waiting.tell_back(url);
                    }
                    let share = &mut self.shares[server];
                    share.samples += 1;
                    share.tokens += captured.states.tokens.len() as u64;
                    share.seconds += seconds;
                    self.early.insert(sample, captured);
                    self.pass_on(take)?;
                }
                Err(Failure::Lasting { reason }) => {
                    bail!("the server `{url}`, sample {sample}: {reason}")
                }
                Err(Failure::Passing { reason, .. }) => {
                    let tried = tries.entry(sample).or_default();
                    self.failed(server, tried);
                    if self.is_over(*tried) {
                        let waited = match self.away.contains(&server) {
                            true => self.pace.waiting.in_vain(),
                            false => String::new(),
                        };
                        bail!(
                            "the server `{url}`, sample {sample}, tried {tried} times: {reason}{waited}"
                        );
                    }
                    self.queue.lock().again.insert(sample);
                    self.queue.changed.notify_all();
                }
            }
        }
        Ok(())
    }

    /// Notes that a server failed; that nobody is there is no try, and is said once.
    fn failed(&mut self, server: usize, tried: &mut u32) {
        self.failing.insert(server);
        let asked = &self.servers[server];
        if asked.client().refuses_for().is_none() {
            self.shares[server].failed += 1;
            *tried += 1;
        } else if self.away.insert(server) {
            self.pace.waiting.tell(asked.url());
        }
    }

    /// Whether there is nobody to wait for, where a sample was tried so often. Another server may have what one has not: only where
    /// all fail, or are away for too long, is it the end.
    fn is_over(&self, tried: u32) -> bool {
        let is_over = |server: &Arc<CaptureServer>| match server.client().refuses_for() {
            Some(away) => away >= self.pace.waiting.longest,
            None => tried > self.pace.retry.retries,
        };
        self.failing.len() == self.servers.len() && self.servers.iter().all(is_over)
    }

    fn pass_on(&mut self, take: &mut dyn FnMut(usize, Captured) -> Result<()>) -> Result<()> {
        while let Some(captured) = self.early.remove(&self.next) {
            take(self.next, captured)?;
            self.next += 1;
        }
        self.queue.lock().window = self.next + self.pace.ahead.max(1);
        self.queue.changed.notify_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Output;

    fn of(under_way: usize, servers: usize, ranks: usize) -> Pace {
        let waiting = Waiting {
            longest: Duration::ZERO,
            key: "features.wait",
            output: Output::Quiet,
        };
        Pace::of(under_way, servers, Asking { ranks, waiting })
    }

    #[test]
    fn samples_that_nobody_wants_any_more_are_not_waited_for() {
        let pace = of(1, 1, 1);
        pace.is_over.store(true, Ordering::Relaxed);
        let ask = |_| Asked::default();
        let found = capture(&[], 3..5, &pace, &ask, &mut |_, _| Ok(()));
        let told = found.unwrap_err().to_string();
        assert_eq!(told, "nobody wants the samples from 3 on");
    }

    #[test]
    fn processes_share_what_may_be_under_way_and_each_has_something() {
        let pace = |under_way, servers, ranks| {
            let pace = of(under_way, servers, ranks);
            [pace.under_way, pace.ahead]
        };
        assert_eq!(pace(8, 3, 1), [8, 96]);
        assert_eq!(pace(8, 3, 4), [2, 24]);
        assert_eq!(pace(8, 1, 3), [2, 8]);
        assert_eq!(pace(1, 2, 4), [1, 8]);
    }
}
