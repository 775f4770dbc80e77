//! Texts to compare devices with.

use burn::prelude::Device;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use spectrain_data::packing::{PackedBatch, layout};
use spectrain_train::{Batch, Rows, TrainConfig};

/// Packed rows of a batch and their length.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Packed rows.
    pub rows: usize,
    /// Positions of each.
    pub length: usize,
}

impl Shape {
    /// Of the batches that a stage trains on, with rows of this length.
    pub fn of_batch(config: &TrainConfig, length: usize) -> Self {
        Self {
            rows: (config.batch_tokens / length).max(1),
            length,
        }
    }
}

/// Tokens of a text that the CPU computes too, at most.
pub(super) const LONGEST: usize = 64;

/// A batch of rows that are one text each, of drawn tokens and all in the loss mask. A row begins with the same tokens whatever
/// the length.
pub(super) fn texts(shape: Shape, vocab: usize, device: &Device) -> Batch {
    let Shape { rows, length } = shape;
    let packed = PackedBatch {
        rows: (0..rows).map(|row| vec![row]).collect(),
    };
    let text = |row: usize| {
        let mut rng = StdRng::seed_from_u64(row as u64);
        (0..length).map(move |_| rng.random_range(0..vocab as u32))
    };
    let rows = Rows {
        layout: layout(&packed, &vec![length; rows], length),
        tokens: (0..rows).flat_map(text).collect(),
        loss_mask: vec![true; rows * length],
        packed,
    };
    Batch::new(rows, device)
}
