//! Requests that are under way at the same time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Result;
use spectrain_eval::served::answer::Answer;

use super::prompts::ServedPrompts;
use super::served_model::{Asking, ServedModel};
use crate::runtime::interruption::check_interrupted;

/// How often it is looked whether the user wants to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the workers share. They outlive a failure: one that waits for a server which is silent cannot be woken.
struct Shared {
    server: Arc<ServedModel>,
    tokens: Arc<[Vec<u32>]>,
    asking: Asking,
    next: AtomicUsize,
    end: usize,
    is_over: AtomicBool,
}

/// The answers to some of the prompts, with so many requests under way; `done` is called for each. The first failure ends it.
pub(super) fn ask(
    server: &Arc<ServedModel>,
    prompts: &ServedPrompts,
    asking: &Asking,
    which: Range<usize>,
    concurrency: usize,
    done: &mut dyn FnMut(),
) -> Result<Vec<Answer>> {
    let shared = Arc::new(Shared {
        server: server.clone(),
        tokens: prompts.tokens.clone(),
        asking: asking.clone(),
        next: AtomicUsize::new(which.start),
        end: which.end,
        is_over: AtomicBool::new(false),
    });
    let (sender, receiver) = channel();
    for _ in 0..concurrency.min(which.len()) {
        let (shared, sender) = (shared.clone(), sender.clone());
        std::thread::spawn(move || shared.work(&sender));
    }
    drop(sender);
    let mut answers = vec![None; which.len()];
    let outcome = loop {
        match receiver.recv_timeout(LOOK_EVERY) {
            Ok((number, Ok(answer))) => {
                answers[number - which.start] = Some(answer);
                done();
            }
            Ok((number, Err(error))) => {
                let (dataset, prompt) = &prompts.places[number];
                break Err(error.context(format!("dataset `{dataset}`, prompt {prompt}")));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Ok(()),
        }
        if let Err(stopped) = check_interrupted() {
            break Err(stopped);
        }
    };
    shared.is_over.store(true, Ordering::Relaxed);
    outcome.map(|()| answers.into_iter().flatten().collect())
}

impl Shared {
    /// Asks one prompt after the other, until there are no more or nobody wants them.
    fn work(&self, results: &Sender<(usize, Result<Answer>)>) {
        let is_over = || self.is_over.load(Ordering::Relaxed);
        while !is_over() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.end {
                return;
            }
            let answer = self
                .server
                .answer(&self.tokens[number], &self.asking, &is_over);
            if results.send((number, answer)).is_err() {
                return;
            }
        }
    }
}
