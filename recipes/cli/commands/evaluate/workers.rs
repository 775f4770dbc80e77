//! Requests that are under way at the same time.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Result;
use spectrain_data::answered::said;
use spectrain_eval::Prompt;
use spectrain_eval::served::answer::Answer;
use spectrain_eval::served::figures::ServedTalk;

use super::prompts::ServedPrompts;
use super::served_model::{Asking, ServedModel};
use crate::runtime::interruption::check_interrupted;

/// How often it is looked whether the user wants to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is asked of each conversation.
#[derive(Clone)]
pub(super) enum Turns {
    /// Its first turn.
    First,
    /// Every turn, after the server's own answers to those before it, as far as it has at most so many tokens.
    Own { longest: usize },
    /// What it was asked in another run.
    Same(Arc<[Vec<Vec<u32>>]>),
}

/// What is asked at a time.
pub(super) struct Round<'a> {
    pub(super) asking: &'a Asking,
    pub(super) turns: &'a Turns,
    /// The conversations.
    pub(super) which: Range<usize>,
    /// Requests under way.
    pub(super) concurrency: usize,
}

/// What the workers share. They outlive a failure: one that waits for a server which is silent cannot be woken.
struct Shared {
    server: Arc<ServedModel>,
    talks: Arc<[Prompt]>,
    asking: Asking,
    turns: Turns,
    next: AtomicUsize,
    end: usize,
    is_over: AtomicBool,
}

/// What a worker sends: a conversation's number, and its next answer.
type Sent = (usize, Result<Answer>);

/// The answers to some of the conversations; `done` is called for each answer. The first failure ends it.
pub(super) fn ask(
    server: &Arc<ServedModel>,
    prompts: &ServedPrompts,
    round: Round,
    done: &mut dyn FnMut(),
) -> Result<Vec<ServedTalk>> {
    let which = round.which;
    let shared = Arc::new(Shared {
        server: server.clone(),
        talks: prompts.talks.clone(),
        asking: round.asking.clone(),
        turns: round.turns.clone(),
        next: AtomicUsize::new(which.start),
        end: which.end,
        is_over: AtomicBool::new(false),
    });
    let (sender, receiver) = channel();
    for _ in 0..round.concurrency.min(which.len()) {
        let (shared, sender) = (shared.clone(), sender.clone());
        std::thread::spawn(move || shared.work(&sender));
    }
    drop(sender);
    let mut talks = vec![ServedTalk::default(); which.len()];
    let outcome = loop {
        match receiver.recv_timeout(LOOK_EVERY) {
            Ok((number, Ok(answer))) => {
                talks[number - which.start].answers.push(answer);
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
    outcome.map(|()| talks)
}

impl Shared {
    /// Goes through one conversation after the other, until there are no more or nobody wants them.
    fn work(&self, results: &Sender<Sent>) {
        while !self.is_over() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.end || self.talk(number, results).is_break() {
                return;
            }
        }
    }

    /// Asks a conversation turn by turn; nothing more is to be asked where it breaks off.
    fn talk(&self, number: usize, results: &Sender<Sent>) -> ControlFlow<()> {
        let stop = self.asking.stop.as_deref().unwrap_or_default();
        let mut answers = Vec::new();
        for turn in 0..self.talks[number].turns() {
            let answer = match self.turn(number, turn, &answers) {
                Ok(Some(asked)) => self.server.answer(&asked, &self.asking, &|| self.is_over()),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            let of_server = answer.as_ref().ok();
            let ids = of_server.and_then(|answer| answer.ids.as_deref());
            answers.extend(ids.map(|ids| said(ids, stop).to_vec()));
            let failed = answer.is_err();
            if results.send((number, answer)).is_err() || failed || self.is_over() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// The tokens of a turn, after the `answers` to those before it; none where the conversation ends.
    fn turn(&self, number: usize, turn: usize, answers: &[Vec<u32>]) -> Result<Option<Vec<u32>>> {
        let prompt = &self.talks[number];
        match &self.turns {
            Turns::First => Ok((turn == 0).then(|| prompt.tokens.clone())),
            Turns::Same(all) => Ok(all[number].get(turn).cloned()),
            // Without token ids it is not known what was said.
            Turns::Own { .. } if answers.len() < turn => Ok(None),
            Turns::Own { longest } => Ok(prompt.next(answers, *longest)?),
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}
