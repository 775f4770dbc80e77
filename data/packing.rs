//! Packing: which samples share a row, and which rows a batch, in every epoch.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::seed::mix;

/// Rows are filled from samples worth so many batches at a time: enough for a close fit, few enough for random order.
const WINDOW: usize = 8;

/// How samples are packed; with their lengths it determines every batch of every epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packing {
    /// Tokens of a row.
    pub row_length: usize,
    /// Rows of a batch.
    pub rows: usize,
    /// Seed of the order.
    pub seed: u64,
}

/// One batch: for every row the numbers of the samples that lie in it, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedBatch {
    /// At least one row; only the last batch of an epoch may have fewer than [`Packing::rows`].
    pub rows: Vec<Vec<usize>>,
}

/// Which document every position of a batch belongs to.
///
/// # Shapes
///
/// - documents, positions: `[rows * row_length]`, row by row
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowLayout {
    /// Rows of the batch.
    pub rows: usize,
    /// Tokens of a row.
    pub row_length: usize,
    /// Document of the position, counted from 1 within its row; 0 is padding.
    pub documents: Vec<u32>,
    /// Place within the document; 0 in padding.
    pub positions: Vec<u32>,
}

/// A row being filled.
#[derive(Debug, Default)]
struct Row {
    samples: Vec<usize>,
    tokens: usize,
}

impl Packing {
    /// The batches of an epoch: every sample exactly once and whole.
    pub fn epoch(&self, lengths: &[usize], epoch: u64) -> Result<Vec<PackedBatch>> {
        if self.rows == 0 || self.row_length == 0 {
            return Err(Error::EmptyPacking {
                rows: self.rows,
                row_length: self.row_length,
            });
        }
        if let Some(sample) = lengths.iter().position(|&length| length > self.row_length) {
            let expected = format!("at most {} (the row length)", self.row_length);
            return Err(Error::sample(
                sample as u64,
                "tokens",
                expected,
                lengths[sample],
            ));
        }
        let mut random = StdRng::seed_from_u64(mix(self.seed, epoch));
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.shuffle(&mut random);

        let window = WINDOW * self.rows * self.row_length;
        let mut order = order.into_iter().peekable();
        let mut batches = Vec::new();
        let mut carried: Vec<usize> = Vec::new();
        while order.peek().is_some() {
            let mut samples = std::mem::take(&mut carried);
            let mut tokens: usize = samples.iter().map(|&sample| lengths[sample]).sum();
            while tokens < window
                && let Some(sample) = order.next()
            {
                tokens += lengths[sample];
                samples.push(sample);
            }
            let mut rows = self.fill_rows(samples, lengths);
            // The emptiest rows beyond a whole number of batches get another chance with the next window.
            rows.sort_by_key(|row| std::cmp::Reverse(row.tokens));
            let left_over = rows.split_off(rows.len() / self.rows * self.rows);
            carried = left_over.into_iter().flat_map(|row| row.samples).collect();
            rows.shuffle(&mut random);
            self.emit(rows, &mut batches);
        }
        let rows = self.fill_rows(carried, lengths);
        self.emit(rows, &mut batches);
        Ok(batches)
    }

    /// Best-fit decreasing: the longest sample first, each into the fullest row that has room for it.
    fn fill_rows(&self, mut samples: Vec<usize>, lengths: &[usize]) -> Vec<Row> {
        samples.sort_by_key(|&sample| std::cmp::Reverse(lengths[sample]));
        let mut rows: Vec<Row> = Vec::new();
        let mut by_room: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for sample in samples {
            let length = lengths[sample];
            let closest = by_room.range(length..).next().map(|(&room, _)| room);
            let row = closest
                .and_then(|room| by_room.get_mut(&room)?.pop())
                .unwrap_or_else(|| {
                    rows.push(Row::default());
                    rows.len() - 1
                });
            if let Some(room) = closest
                && by_room.get(&room).is_some_and(Vec::is_empty)
            {
                by_room.remove(&room);
            }
            rows[row].samples.push(sample);
            rows[row].tokens += length;
            by_room
                .entry(self.row_length - rows[row].tokens)
                .or_default()
                .push(row);
        }
        rows
    }

    fn emit(&self, rows: Vec<Row>, batches: &mut Vec<PackedBatch>) {
        let mut rows = rows.into_iter().map(|row| row.samples).peekable();
        while rows.peek().is_some() {
            batches.push(PackedBatch {
                rows: rows.by_ref().take(self.rows).collect(),
            });
        }
    }
}

/// Where the documents of a batch lie.
///
/// # Panics
///
/// If a row's samples are longer than `row_length`.
pub fn layout(batch: &PackedBatch, lengths: &[usize], row_length: usize) -> RowLayout {
    let rows = batch.rows.len();
    let mut documents = Vec::with_capacity(rows * row_length);
    let mut positions = Vec::with_capacity(rows * row_length);
    for (row, samples) in batch.rows.iter().enumerate() {
        for (document, &sample) in (1u32..).zip(samples) {
            documents.extend(std::iter::repeat_n(document, lengths[sample]));
            positions.extend(0..lengths[sample] as u32);
        }
        let end = (row + 1) * row_length;
        assert!(
            documents.len() <= end,
            "row {row} is longer than {row_length}"
        );
        documents.resize(end, 0);
        positions.resize(end, 0);
    }
    RowLayout {
        rows,
        row_length,
        documents,
        positions,
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    const PACKING: Packing = Packing {
        row_length: 512,
        rows: 4,
        seed: 7,
    };

    fn varied_lengths(count: usize) -> Vec<usize> {
        let mut random = StdRng::seed_from_u64(1);
        (0..count)
            .map(|_| {
                if random.random_bool(0.2) {
                    random.random_range(200..=512)
                } else {
                    random.random_range(10..200)
                }
            })
            .collect()
    }

    #[test]
    fn every_sample_is_in_exactly_one_row_of_an_epoch() {
        for count in [1, 3, 37, 1000] {
            let lengths = varied_lengths(count);
            let batches = PACKING.epoch(&lengths, 3).unwrap();
            let mut seen: Vec<usize> = batches
                .iter()
                .flat_map(|batch| batch.rows.iter().flatten().copied())
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
            for row in batches.iter().flat_map(|batch| &batch.rows) {
                assert!(row.iter().map(|&sample| lengths[sample]).sum::<usize>() <= 512);
                assert!(!row.is_empty());
            }
            assert!(
                batches[..batches.len() - 1]
                    .iter()
                    .all(|batch| batch.rows.len() == 4)
            );
        }
    }

    #[test]
    fn a_varied_mix_of_lengths_leaves_little_padding() {
        let lengths = varied_lengths(2000);
        let batches = PACKING.epoch(&lengths, 0).unwrap();
        let rows = || batches.iter().flat_map(|batch| &batch.rows);
        let tokens: usize = rows().flatten().map(|&sample| lengths[sample]).sum();
        let share = tokens as f64 / (rows().count() * PACKING.row_length) as f64;
        assert!(share > 0.97 && share <= 1.0, "{share}");
    }

    #[test]
    fn batches_follow_from_lengths_seed_and_epoch_alone() {
        let lengths = varied_lengths(300);
        let epoch = |packing: &Packing, number| packing.epoch(&lengths, number).unwrap();
        assert_eq!(epoch(&PACKING, 5), epoch(&PACKING, 5));
        assert_ne!(epoch(&PACKING, 5), epoch(&PACKING, 6));
        assert_ne!(
            epoch(&PACKING, 5),
            epoch(&Packing { seed: 8, ..PACKING }, 5)
        );
    }

    #[test]
    fn samples_of_every_length_come_at_every_time() {
        let lengths = varied_lengths(4000);
        let batches = PACKING.epoch(&lengths, 0).unwrap();
        let half = batches.len() / 2;
        let mean = |batches: &[PackedBatch]| {
            let samples: Vec<usize> = batches
                .iter()
                .flat_map(|batch| batch.rows.iter().flatten().copied())
                .collect();
            samples.iter().map(|&sample| lengths[sample]).sum::<usize>() as f64
                / samples.len() as f64
        };
        let ratio = mean(&batches[..half]) / mean(&batches[half..]);
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_sample_longer_than_a_row_is_refused_by_number() {
        let message = PACKING.epoch(&[5, 513], 0).unwrap_err().to_string();
        assert_eq!(
            message,
            "sample 1: tokens: expected at most 512 (the row length), found 513"
        );
        assert!(Packing { rows: 0, ..PACKING }.epoch(&[5], 0).is_err());
        assert_eq!(PACKING.epoch(&[], 0).unwrap(), []);
    }

    #[test]
    fn a_layout_counts_documents_and_positions_within_each_row() {
        let batch = PackedBatch {
            rows: vec![vec![2, 0], vec![1]],
        };
        let layout = layout(&batch, &[2, 4, 3], 6);
        assert_eq!(layout.documents, [1, 1, 1, 2, 2, 0, 1, 1, 1, 1, 0, 0]);
        assert_eq!(layout.positions, [0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 0, 0]);
        assert_eq!((layout.rows, layout.row_length), (2, 6));
    }
}
