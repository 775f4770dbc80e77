//! The threads that answer conversations, each one conversation at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::{SeedableRng, rngs::StdRng};

use super::answers::{Answer, Answers, Failure, Request, ToolRows, Truncated};
use super::journal::Entry;
use super::report::Failed;
use super::retry::{Pace, Retry};
use super::turns::{Talk, planned};
use crate::conversation::{Content, Conversation, Exchange};
use crate::error::Result;
use crate::rows::{LocatedRow, Location};
use crate::seed::mix;

/// The longest sleep before it is looked whether to stop.
const NAP: Duration = Duration::from_millis(50);

/// How the work is done: of no influence on the answers.
pub struct Work<'a> {
    /// Conversations under way at a time, at least 1.
    pub concurrency: usize,
    /// How failures that may pass are met.
    pub retry: Retry,
    /// Requests in a second, at most.
    pub requests_per_second: Option<f64>,
    /// Whether to stop: no request is made any more, and what is not finished is left to the next run.
    pub interrupted: &'a (dyn Fn() -> bool + Sync),
}

/// How a conversation ended.
pub(super) enum Ended {
    Answered(Entry),
    Failed(Failed),
}

/// Rows in their order.
type Rows = Box<dyn Iterator<Item = Result<LocatedRow>> + Send>;

/// The rows that are not answered yet.
pub(super) struct Pending {
    rows: Rows,
    row: u64,
    done: Vec<bool>,
    tools: ToolRows,
}

impl Pending {
    /// The rows that are not `done` and that are taken at all.
    pub(super) fn new(rows: Rows, done: Vec<bool>, tools: ToolRows) -> Self {
        Self {
            rows,
            row: 0,
            done,
            tools,
        }
    }
}

impl Iterator for Pending {
    type Item = Result<(u64, Location, Conversation)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let LocatedRow {
                location: place,
                row,
                copies,
            } = match self.rows.next()? {
                Ok(row) => row,
                Err(error) => return Some(Err(error)),
            };
            self.row += 1;
            let index = usize::try_from(self.row - 1).unwrap_or(usize::MAX);
            // A row beyond those counted is of a dataset that has grown since; that ends in an error later.
            let done = self.done.get(index).copied().unwrap_or(true);
            match row.or_conversation().content {
                Content::Conversation(conversation)
                    if !done && copies > 0 && planned(&conversation, self.tools).is_ok() =>
                {
                    return Some(Ok((self.row, place, conversation)));
                }
                _ => {}
            }
        }
    }
}

/// What the workers have in common.
pub(super) struct Shared<'a> {
    answers: &'a dyn Answers,
    work: &'a Work<'a>,
    truncated: Truncated,
    tools: ToolRows,
    rows: Mutex<Pending>,
    pace: Pace,
    started: Instant,
    stop: AtomicBool,
    /// Requests made.
    pub(super) requests: AtomicU64,
    /// Of these, the further tries.
    pub(super) retried: AtomicU64,
}

/// A request that was not answered: it was interrupted, or how often it was tried and why it failed.
type Unanswered = Option<(u32, String)>;

impl<'a> Shared<'a> {
    pub(super) fn new(
        answers: &'a dyn Answers,
        work: &'a Work<'a>,
        truncated: Truncated,
        rows: Pending,
    ) -> Self {
        Self {
            answers,
            work,
            truncated,
            tools: rows.tools,
            rows: Mutex::new(rows),
            pace: Pace::new(work.requests_per_second),
            started: Instant::now(),
            stop: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            retried: AtomicU64::new(0),
        }
    }

    /// Lets the workers end as soon as they can.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Answers conversations until none is left or it is to stop.
    pub(super) fn work_off(&self, worker: u64, results: &SyncSender<Result<Ended>>) {
        let mut rng = StdRng::seed_from_u64(mix(u64::from(std::process::id()), worker));
        while !self.stopped() {
            let next = self
                .rows
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next();
            let ended = match next {
                None => return,
                Some(Err(error)) => Some(Err(error)),
                Some(Ok((row, place, conversation))) => {
                    self.converse(row, &place, &conversation, &mut rng).map(Ok)
                }
            };
            // Without a reader there is nothing left to do.
            if ended.is_none_or(|ended| results.send(ended).is_err()) {
                return;
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || (self.work.interrupted)()
    }

    /// Answers the turns of a conversation one after the other; none if it was interrupted.
    fn converse(
        &self,
        row: u64,
        place: &Location,
        conversation: &Conversation,
        rng: &mut StdRng,
    ) -> Option<Ended> {
        let mut answers: Vec<Answer> = Vec::new();
        let mut dropped = false;
        // Others were not taken from the dataset.
        let mut talk = Talk::of(conversation, self.tools).ok()?;
        while !dropped && talk.asks() {
            let turn = answers.len() + 1;
            let request = Request {
                row,
                turn,
                exchange: Exchange {
                    messages: talk.said(),
                    ..Exchange::from(conversation)
                },
                trained: talk.trains(),
            };
            let answer = match self.ask(&request, rng) {
                Ok(answer) => answer,
                Err(unanswered) => {
                    let (tries, reason) = unanswered?;
                    return Some(Ended::Failed(Failed {
                        row,
                        place: place.to_string(),
                        turn,
                        tries,
                        reason,
                    }));
                }
            };
            dropped = answer.truncated && self.truncated == Truncated::Drop;
            talk.take(answer.message.clone());
            answers.push(answer);
        }
        Some(Ended::Answered(Entry {
            row,
            answers,
            dropped,
        }))
    }

    /// Asks until there is an answer, further tries make no sense, or there were enough of them.
    fn ask(&self, request: &Request, rng: &mut StdRng) -> Result<Answer, Unanswered> {
        let mut tries = 0;
        loop {
            let moment = self.pace.reserve(self.started.elapsed());
            self.sleep_until(moment)?;
            tries += 1;
            self.requests.fetch_add(1, Ordering::Relaxed);
            let asked = match self.answers.answer(request) {
                Ok(answer) if answer.truncated && self.truncated == Truncated::Fail => {
                    return Err(Some((
                        tries,
                        "the answer was cut off at the maximum length".into(),
                    )));
                }
                Ok(answer) => return Ok(answer),
                // It may have failed because it was to stop.
                Err(_) if self.stopped() => return Err(None),
                Err(Failure::Lasting { reason }) => return Err(Some((tries, reason))),
                Err(Failure::Passing { reason, .. }) if tries > self.work.retry.retries => {
                    return Err(Some((tries, reason)));
                }
                Err(Failure::Passing { wait, .. }) => wait,
            };
            let pause = self.work.retry.pause(tries, asked, rng);
            self.sleep_until(self.started.elapsed() + pause)?;
            self.retried.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sleep_until(&self, moment: Duration) -> Result<(), Unanswered> {
        loop {
            if self.stopped() {
                return Err(None);
            }
            match moment.checked_sub(self.started.elapsed()) {
                None | Some(Duration::ZERO) => return Ok(()),
                Some(left) => std::thread::sleep(left.min(NAP)),
            }
        }
    }
}
