//! What the loop keeps of a step until it reads it from the device.
use burn::prelude::*;
use serde::{Deserialize, Serialize};
use spectrain_models::weights::host_f32;

use crate::objective::{Loss, LossReport};

/// A step whose losses were not read from the device yet.
pub(crate) struct Pending {
    /// Counted from 0.
    pub(crate) step: usize,
    /// Tokens trained on.
    pub(crate) tokens: u64,
    pub(crate) samples: Vec<usize>,
    /// One for each batch.
    pub(crate) losses: Vec<Loss>,
    /// That of the gradients, before clipping.
    pub(crate) norm: Option<Tensor<1>>,
}

/// A step as it is read from the device, of one rank or of all.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) step: usize,
    pub(crate) tokens: u64,
    pub(crate) samples: Vec<usize>,
    /// Positions judged.
    pub(crate) positions: usize,
    /// Whether any of them counts for something.
    pub(crate) counts: bool,
    pub(crate) reports: Vec<LossReport>,
    pub(crate) norm: f64,
}

impl Pending {
    pub(crate) fn read(self) -> Seen {
        let positions = self.losses.iter().map(|loss| loss.rows.len()).sum();
        // What a loss is divided by may count positions that nothing is judged at, such as all of a batch.
        let counts = |loss: &Loss| !loss.rows.is_empty() && loss.counted > 0.0;
        Seen {
            step: self.step,
            tokens: self.tokens,
            samples: self.samples,
            positions,
            counts: self.losses.iter().any(counts),
            // Of no position there is no loss: by chance, as where masks are drawn and none was.
            reports: match positions {
                0 => Vec::new(),
                _ => self.losses.iter().map(Loss::report).collect(),
            },
            norm: self.norm.map_or(0.0, |norm| host_f32(norm)[0] as f64),
        }
    }
}

impl Seen {
    /// Adds what another rank has seen of the same step.
    fn add(mut self, other: Self) -> Self {
        self.tokens += other.tokens;
        self.samples.extend(other.samples);
        self.positions += other.positions;
        self.counts |= other.counts;
        self.reports.extend(other.reports);
        self
    }
}

/// The steps of all ranks, each step of all together.
pub(crate) fn together(all: Vec<Vec<Seen>>) -> Vec<Seen> {
    let added = all.into_iter().reduce(|sum, of_rank| {
        let pairs = sum.into_iter().zip(of_rank);
        pairs.map(|(sum, seen)| sum.add(seen)).collect()
    });
    added.unwrap_or_default()
}
