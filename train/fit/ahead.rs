//! Batches that are made ahead of the training step, on a thread of their own.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use spectrain_data::packing::PackedBatch;
use spectrain_models::out_of_memory::{OutOfMemory, within_memory};

use crate::batch::{Batch, Rows};
use crate::error::{Error, Result};
use crate::on_policy::is_chosen;
use crate::settings::TrainConfig;
use crate::source::{BatchSource, Order, Samples};

/// What is made ahead of the training step.
pub(super) enum Ahead {
    /// A batch, and its seed.
    Ready(Box<Batch>, u64),
    /// The rows of one that the model has to write first, and its seed.
    ToWrite(Rows, u64),
}

impl Ahead {
    /// What can be made ahead of the next batch of `order`, where the model writes this `fraction` of batches itself.
    pub(super) fn next(
        order: &mut Order,
        samples: &Samples,
        source: &mut dyn BatchSource,
        config: &TrainConfig,
        fraction: f64,
    ) -> Result<Self> {
        let packed = order.advance()?;
        let position = order.last_position();
        let seed = samples.step_seed(position);
        let made = within_memory(|| Self::made(source, packed, seed, fraction));
        let step = position / config.gradient_accumulation;
        made.unwrap_or_else(|OutOfMemory| Err(Error::out_of_memory(step)))
    }

    /// What can be made of `packed` ahead, where the model writes this `fraction` of batches itself.
    fn made(
        source: &mut dyn BatchSource,
        packed: PackedBatch,
        seed: u64,
        fraction: f64,
    ) -> Result<Self> {
        if is_chosen(fraction, seed) {
            return Ok(Self::ToWrite(source.rows(packed), seed));
        }
        Ok(Self::Ready(Box::new(source.batch(packed)?), seed))
    }
}

/// Sends what `next` makes ahead, so many times; nothing behind an error, as what has failed may be in any state.
pub(super) fn send(
    count: usize,
    mut next: impl FnMut() -> Result<Ahead>,
    sender: &SyncSender<Result<Ahead>>,
) {
    for _ in 0..count {
        let ahead = next();
        let failed = ahead.is_err();
        // The loop has ended and dropped its side.
        if sender.send(ahead).is_err() || failed {
            return;
        }
    }
}

/// Tells a source that nobody wants its batches any more, once it is dropped: by a panic, too.
pub(super) struct Over(pub(super) Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
