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
    /// How much all the losses are means over.
    pub(crate) fn counted(&self) -> f64 {
        self.reports.iter().map(|report| report.counted).sum()
    }

    /// The mean of `of` the losses, each by how much it is a mean over.
    fn mean(&self, of: impl Fn(&LossReport) -> f64) -> f64 {
        let sum: f64 = self.reports.iter().map(|r| of(r) * r.counted).sum();
        sum / self.counted()
    }

    /// The loss of the step.
    pub(crate) fn loss(&self) -> f64 {
        self.mean(|report| report.total)
    }

    /// The mean distance at a judged position, without weights, and the terms beside it. Losses that are divided by all of a batch
    /// are larger the more of it is judged; this is not.
    pub(crate) fn distance(&self) -> f64 {
        let steps = || self.reports.iter().flat_map(|report| &report.steps);
        let positions: usize = steps().map(|step| step.count).sum();
        let distances: f64 = steps().map(|step| step.loss).sum();
        distances / positions.max(1) as f64 + self.mean(|report| report.terms)
    }

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::objective::StepReport;

    /// A batch of 100 positions, so many of which are judged, at a distance of 2 each; the sum is divided by all of them.
    fn sparse(judged: usize, terms: f64) -> LossReport {
        let loss = 2.0 * judged as f64;
        LossReport {
            total: loss / 100.0 + terms,
            terms,
            parts: BTreeMap::new(),
            changing: BTreeMap::new(),
            counted: 100.0,
            steps: vec![StepReport {
                count: judged,
                loss,
                ..StepReport::default()
            }],
            measured: false,
            simulated_tau: 1.0,
            chains: 0,
        }
    }

    #[test]
    fn a_distance_does_not_depend_on_how_much_of_a_batch_is_judged() {
        let of = |reports: &[LossReport]| Seen {
            reports: reports.to_vec(),
            ..Seen::default()
        };
        let seen = of(&[sparse(2, 0.0), sparse(60, 0.0)]);
        assert_eq!((seen.counted(), seen.loss()), (200.0, 0.62));
        assert_eq!(seen.distance(), 2.0);
        for judged in [1, 100] {
            let seen = of(&[sparse(judged, 0.5)]);
            assert_eq!(seen.distance(), 2.5);
        }
    }
}
