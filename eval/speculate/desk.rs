//! Prompts that other threads hand in one by one, continued side by side.
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};

use rand::{SeedableRng as _, rngs::StdRng};

use super::generation::Generation;
use super::queue::{PromptQueue, Queued};
use crate::error::{Error, Result};

/// Where threads hand in prompts. It is closed when it is dropped.
pub struct Desk {
    orders: Sender<Order>,
}

/// What was handed in at a [`Desk`], for whoever decodes.
pub struct Orders(Receiver<Order>);

/// A prompt, and where what is decoded goes.
struct Order {
    prompt: Vec<u32>,
    seed: u64,
    reply: Sender<Result<Generation>>,
}

impl Order {
    /// Whoever has asked may have gone.
    fn reply(self, found: Result<Generation>) {
        drop(self.reply.send(found));
    }
}

impl Desk {
    /// A desk, and what is handed in there.
    pub fn open() -> (Self, Orders) {
        let (sender, receiver) = channel();
        (Self { orders: sender }, Orders(receiver))
    }

    /// Has a prompt continued with the draws of `seed`, and waits for it.
    ///
    /// # Errors
    /// As for a prompt that is decoded alone; nobody decodes any more, which is an interruption.
    pub fn ask(&self, prompt: Vec<u32>, seed: u64) -> Result<Generation> {
        received(&self.hand_in(prompt, seed))
    }

    /// Where what is decoded will be; nothing comes where nobody decodes any more.
    pub(super) fn hand_in(&self, prompt: Vec<u32>, seed: u64) -> Receiver<Result<Generation>> {
        let (reply, replies) = channel();
        let order = Order {
            prompt,
            seed,
            reply,
        };
        drop(self.orders.send(order));
        replies
    }
}

/// What comes there.
pub(super) fn received(replies: &Receiver<Result<Generation>>) -> Result<Generation> {
    replies.recv().unwrap_or(Err(Error::Interrupted))
}

/// The other side of a desk.
pub(super) struct Counter<'a> {
    orders: Receiver<Order>,
    /// Fails on what cannot be continued.
    check: &'a dyn Fn(&[u32]) -> Result<()>,
    /// What begins anew, before anything else.
    again: VecDeque<Order>,
    under_way: BTreeMap<usize, Order>,
    tickets: usize,
    /// The ticket of the prompt that failed.
    blamed: Cell<Option<usize>>,
}

impl<'a> Counter<'a> {
    pub(super) fn new(orders: Orders, check: &'a dyn Fn(&[u32]) -> Result<()>) -> Self {
        Self {
            orders: orders.0,
            check,
            again: VecDeque::new(),
            under_way: BTreeMap::new(),
            tickets: 0,
            blamed: Cell::new(None),
        }
    }

    /// Waits until there is something to do; false where nothing comes any more.
    pub(super) fn waits(&mut self) -> bool {
        if self.again.is_empty() {
            self.again.extend(self.orders.recv());
        }
        !self.again.is_empty()
    }

    /// An error ended the batch. The prompt that it is of gets it; the others, which have not ended, begin anew with their
    /// seeds.
    pub(super) fn failed(&mut self, error: Error) {
        let blamed = self.blamed.take();
        let culprit = blamed.and_then(|ticket| self.under_way.remove(&ticket));
        let rest = std::mem::take(&mut self.under_way).into_values();
        self.again.extend(rest);
        // Without a culprit the first one is it, so that this comes to an end.
        if let Some(order) = culprit.or_else(|| self.again.pop_front()) {
            order.reply(Err(error));
        }
    }

    /// The next prompt that can be continued.
    fn admitted(&mut self) -> Option<Order> {
        loop {
            let again = self.again.pop_front();
            let order = again.or_else(|| self.orders.try_recv().ok())?;
            match (self.check)(&order.prompt) {
                Ok(()) => return Some(order),
                Err(error) => order.reply(Err(error)),
            }
        }
    }
}

impl PromptQueue for Counter<'_> {
    fn next(&mut self) -> Result<Option<Queued>> {
        let Some(order) = self.admitted() else {
            return Ok(None);
        };
        let ticket = self.tickets;
        self.tickets += 1;
        let queued = Queued {
            ticket,
            prompt: order.prompt.clone(),
            rng: StdRng::seed_from_u64(order.seed),
        };
        self.under_way.insert(ticket, order);
        Ok(Some(queued))
    }

    fn answered(&mut self, ticket: usize, generation: Generation) -> Result<()> {
        if let Some(order) = self.under_way.remove(&ticket) {
            order.reply(Ok(generation));
        }
        Ok(())
    }

    fn blame(&self, ticket: usize, error: Error) -> Error {
        self.blamed.set(Some(ticket));
        error
    }
}
