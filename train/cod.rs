//! Conditional drop: which rows of the parallel blocks are trained on, and what they see
//! (PARD, <https://arxiv.org/abs/2504.18583>, section 3.3).
use burn::prelude::*;
use spectrain_data::seed::mix;
use spectrain_models::{Mask, Sight};

use crate::batch;
use crate::on_policy::is_chosen;

/// How many rows are kept.
#[derive(Debug, Clone, Copy)]
pub struct ConditionalDrop {
    /// Blocks, that of the text counted.
    pub blocks: usize,
    /// Share of a block's rows that the next one keeps.
    pub keep: f64,
    /// Share of the text that every block keeps at least.
    pub least: f64,
}

/// The rows that are kept of a batch: dense, `width` for each packed row, the text first.
#[derive(Debug, Clone)]
pub struct Subset {
    /// Block and position in the batch of each row; `None` fills up.
    places: Vec<Option<(usize, usize)>>,
    width: usize,
    /// For each place of the text the start of its document, and for padding itself.
    starts: Vec<usize>,
    row_length: usize,
    blocks: usize,
    /// Places at the start of a document that nothing sees.
    unread: usize,
    /// Share of the places of the text that chains start at, in a validation: the others are only read.
    chains: Option<f64>,
}

impl ConditionalDrop {
    /// Rows drawn from `seed`: of block `b`, `keep^b` of those that can be trained on, but `least` of them at least, each
    /// the successor of a kept row of the block before.
    pub fn draw(&self, rows: &batch::Rows, seed: u64) -> Subset {
        let text = 0..rows.len();
        let mut kept: Vec<Vec<usize>> = vec![text.clone().collect()];
        for block in 1..self.blocks {
            let useful = |at: &usize| self.is_useful(rows, block, *at);
            let possible = text.clone().filter(useful).count();
            let share = self.keep.powi(block as i32).max(self.least);
            let wanted = (possible as f64 * share) as usize;
            let next = |&at: &usize| Some(at + 1).filter(|at| rows.reaches(*at - 1, 1));
            let before = kept[block - 1].iter();
            let candidates = before.filter_map(next).filter(useful);
            kept.push(choose(
                candidates.collect(),
                wanted,
                mix(seed, block as u64),
            ));
        }
        self.gather(rows, &kept)
    }

    /// Whole chains, as many rows as a draw has, evenly spread: what a validation follows to the end.
    pub fn chains(&self, rows: &batch::Rows) -> Subset {
        let share = self.rows_per_position() / self.blocks as f64;
        let mut kept: Vec<Vec<usize>> = vec![(0..rows.len()).collect()];
        let first = |&at: &usize| starts(share, at);
        for block in 1..self.blocks {
            let start = |at: usize| at.checked_sub(block).filter(first);
            let in_chain = |&at: &usize| start(at).is_some_and(|start| rows.reaches(start, block));
            kept.push((0..rows.len()).filter(in_chain).collect());
        }
        Subset {
            chains: Some(share),
            ..self.gather(rows, &kept)
        }
    }

    /// Rows for each position of the text, its own counted, where every position can be trained on.
    pub(crate) fn rows_per_position(&self) -> f64 {
        let shares = (0..self.blocks).map(|block| self.keep.powi(block as i32).max(self.least));
        shares.sum()
    }

    /// Whether row `(block, position)` or one that sees it can be trained on.
    fn is_useful(&self, rows: &batch::Rows, block: usize, position: usize) -> bool {
        let mut later = (block..self.blocks).map(|later| (later, position + later - block));
        later.any(|(block, position)| position < rows.len() && counts(rows, block, position))
    }

    fn gather(&self, rows: &batch::Rows, kept: &[Vec<usize>]) -> Subset {
        let length = rows.layout.row_length;
        let mut packed: Vec<Vec<(usize, usize)>> = vec![Vec::new(); rows.layout.rows];
        for (block, positions) in kept.iter().enumerate() {
            for &position in positions {
                packed[position / length].push((block, position));
            }
        }
        let width = packed.iter().map(Vec::len).max().unwrap_or(0);
        let filled = packed.into_iter().flat_map(|row| {
            let row = row.into_iter().map(Some);
            row.chain(std::iter::repeat(None)).take(width)
        });
        let layout = &rows.layout;
        let start = |at: usize| match layout.documents[at] {
            0 => at,
            _ => at - layout.positions[at] as usize,
        };
        Subset {
            places: filled.collect(),
            width,
            starts: (0..rows.len()).map(start).collect(),
            row_length: length,
            blocks: self.blocks,
            unread: 0,
            chains: None,
        }
    }
}

/// Whether a chain starts at this place of the text, where only this share of them start one.
fn starts(share: f64, at: usize) -> bool {
    is_chosen(share, at as u64)
}

/// Whether row `(block, position)` is trained on.
fn counts(rows: &batch::Rows, block: usize, position: usize) -> bool {
    position >= block && rows.drafts(position - block, block + 1)
}

/// `wanted` of `candidates` in their order, drawn from `seed`.
fn choose(mut candidates: Vec<usize>, wanted: usize, seed: u64) -> Vec<usize> {
    candidates.sort_by_cached_key(|&at| mix(seed, at as u64));
    candidates.truncate(wanted);
    candidates.sort_unstable();
    candidates
}

impl Subset {
    /// Block and position in the batch of each row; `None` fills up.
    pub fn places(&self) -> &[Option<(usize, usize)>] {
        &self.places
    }

    /// The same of a drafter whose rows read the feature before their token: the first token of a document has none, so
    /// nothing sees it.
    pub fn behind_features(self) -> Self {
        Self { unread: 1, ..self }
    }

    /// The rows that are judged, each with its block and position: a decoder would draft there, behind a token that is read. Of a
    /// validation those of whole chains, the first row of each included.
    pub(crate) fn counted(&self, rows: &batch::Rows) -> Vec<(usize, (usize, usize))> {
        let places = self.places.iter().enumerate();
        let counted = places.filter_map(|(row, place)| {
            let (block, position) = (*place)?;
            let in_chain = block > 0 || self.chains.is_none_or(|share| starts(share, position));
            let is_read = position >= block + self.starts[position] + self.unread;
            (in_chain && is_read && counts(rows, block, position))
                .then_some((row, (block, position)))
        });
        counted.collect()
    }

    /// Rows of each packed row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Token of each row, and its position in its document.
    pub(crate) fn inputs(&self, rows: &batch::Rows, mask_token: u32) -> (Vec<i64>, Vec<i64>) {
        let input = |place: &Option<(usize, usize)>| match *place {
            None => (0, 0),
            Some((0, at)) => (rows.tokens[at] as i64, rows.layout.positions[at] as i64),
            Some((_, at)) => (mask_token as i64, rows.layout.positions[at] as i64),
        };
        self.places.iter().map(input).unzip()
    }

    /// Position of the feature that each row reads, which is that before the last token it has seen; the number of
    /// positions where there is none. With a seed, `dropout` of the documents read none.
    pub(crate) fn features(
        &self,
        rows: &batch::Rows,
        dropout: f64,
        seed: Option<u64>,
    ) -> Vec<usize> {
        let none = rows.len();
        let of = |place: &Option<(usize, usize)>| {
            let &(block, at) = place.as_ref()?;
            let start = self.starts[at];
            let dropped = seed.is_some_and(|seed| is_chosen(dropout, mix(seed, start as u64)));
            let feature = at.checked_sub(block + 1)?;
            (feature >= start && !dropped && rows.layout.documents[at] != 0).then_some(feature)
        };
        self.places
            .iter()
            .map(|place| of(place).unwrap_or(none))
            .collect()
    }

    /// Row `(b, p)` sees the text of its document up to `p - b` and the masks of its own chain, itself included, at most
    /// `window` positions back. What fills up sees itself.
    pub fn mask(&self, window: Option<usize>, device: &Device) -> Mask {
        let width = self.width;
        let window = window.unwrap_or(usize::MAX);
        let mut sees = Vec::with_capacity(self.places.len());
        for (row, places) in self.places.chunks(width.max(1)).enumerate() {
            let first = row * self.row_length;
            let mut column = vec![None; self.blocks * self.row_length];
            for (index, place) in places.iter().enumerate() {
                if let Some((block, at)) = place {
                    column[block * self.row_length + at - first] = Some(index);
                }
            }
            for (index, place) in places.iter().enumerate() {
                let itself = index..index + 1;
                let &Some((block, position)) = place else {
                    sees.push(vec![itself]);
                    continue;
                };
                let nearest = (position + 1).saturating_sub(window);
                let start = self.starts[position] + self.unread;
                let text = start.max(nearest)..(position + 1 - block);
                if block == 0 && text.is_empty() {
                    sees.push(vec![itself]);
                    continue;
                }
                // The text stands first, in its own order.
                let mut seen = Vec::with_capacity(1 + block);
                if !text.is_empty() {
                    seen.push(text.start - first..text.end - first);
                }
                for step in 1..=block {
                    let at = position - block + step;
                    if at < nearest {
                        continue;
                    }
                    match column[step * self.row_length + at - first] {
                        Some(index) => seen.push(index..index + 1),
                        None => unreachable!("a kept row has its whole chain"),
                    }
                }
                sees.push(seen);
            }
        }
        Mask::new(Sight::new([width, width], sees), device)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use spectrain_data::packing::{PackedBatch, RowLayout};
    use spectrain_models::device::test_device;
    use spectrain_models::weights::host_f32;

    /// Rows of documents of these lengths, each trained on from its second token on.
    fn text(lengths: &[usize]) -> batch::Rows {
        let row_length = lengths.iter().sum::<usize>() + 1;
        let mut layout = RowLayout {
            rows: 1,
            row_length,
            documents: Vec::new(),
            positions: Vec::new(),
        };
        let mut loss_mask = Vec::new();
        for (number, &length) in lengths.iter().enumerate() {
            layout.documents.extend(vec![number as u32 + 1; length]);
            layout.positions.extend(0..length as u32);
            loss_mask.extend((0..length).map(|at| at > 0));
        }
        layout.documents.push(0);
        layout.positions.push(0);
        loss_mask.push(false);
        batch::Rows {
            packed: PackedBatch {
                rows: vec![(0..lengths.len()).collect()],
            },
            tokens: (0..row_length as u32).collect(),
            layout,
            loss_mask,
        }
    }

    fn drop(blocks: usize, keep: f64, least: f64) -> ConditionalDrop {
        ConditionalDrop {
            blocks,
            keep,
            least,
        }
    }

    #[test]
    fn the_mask_of_three_blocks_over_five_tokens_is_the_one_of_the_paper() {
        let rows = text(&[5]);
        let subset = drop(3, 1.0, 1.0).draw(&rows, 1);
        let kept: Vec<_> = subset.places().iter().flatten().copied().collect();
        // A row is kept where it or one that sees it has a trained token before and after its masks.
        let expected = [
            (0, 0),
            (0, 1),
            (0, 2),
            (0, 3),
            (0, 4),
            (0, 5), //
            (1, 2),
            (1, 3), //
            (2, 3),
        ];
        assert_eq!(kept, expected);
        let mask = host_f32(subset.mask(None, &test_device()).entries().clone());
        let seen: Vec<u8> = mask.iter().map(|&entry| u8::from(entry == 0.0)).collect();
        let truth = [
            1, 0, 0, 0, 0, 0, 0, 0, 0, //
            1, 1, 0, 0, 0, 0, 0, 0, 0, //
            1, 1, 1, 0, 0, 0, 0, 0, 0, //
            1, 1, 1, 1, 0, 0, 0, 0, 0, //
            1, 1, 1, 1, 1, 0, 0, 0, 0, //
            0, 0, 0, 0, 0, 1, 0, 0, 0, // padding
            1, 1, 0, 0, 0, 0, 1, 0, 0, // x_0 x_1 and a mask at 2
            1, 1, 1, 0, 0, 0, 0, 1, 0, // x_0..x_2 and a mask at 3
            1, 1, 0, 0, 0, 0, 1, 0, 1, // x_0 x_1 and masks at 2 and 3
        ];
        assert_eq!(seen, truth);
        let windowed = host_f32(subset.mask(Some(2), &test_device()).entries().clone());
        assert_eq!(
            windowed[8 * 9..]
                .iter()
                .map(|x| u8::from(*x == 0.0))
                .collect::<Vec<_>>(),
            [0, 0, 0, 0, 0, 0, 1, 0, 1]
        );
    }

    #[test]
    fn a_kept_row_has_its_whole_chain_and_stays_in_its_document() {
        let rows = text(&[9, 14, 3]);
        for seed in 0..20 {
            let subset = drop(4, 0.7, 0.2).draw(&rows, seed);
            let kept: Vec<_> = subset.places().iter().flatten().copied().collect();
            for &(block, at) in kept.iter().filter(|(block, _)| *block > 0) {
                assert!(
                    kept.contains(&(block - 1, at - 1)),
                    "seed {seed}: ({block}, {at})"
                );
                assert!(
                    rows.reaches(at - block, block),
                    "seed {seed}: ({block}, {at})"
                );
            }
            // It must not panic, and nobody is left without anything to see.
            let mask = host_f32(subset.mask(None, &test_device()).entries().clone());
            assert!(mask.chunks(subset.width()).all(|row| row.contains(&0.0)));
        }
    }

    #[test]
    fn the_share_of_kept_rows_falls_with_the_block_and_not_below_the_least() {
        let rows = text(&[400]);
        let subset = drop(6, 0.5, 0.2).draw(&rows, 3);
        let mut counts = [0; 6];
        subset
            .places()
            .iter()
            .flatten()
            .for_each(|(block, _)| counts[*block] += 1);
        assert_eq!(counts[0], 401);
        // Of 398 - block rows that can be trained on: half, a quarter, and then a fifth.
        assert_eq!(counts[1..], [198, 99, 79, 78, 78]);
        assert_ne!(subset.places(), drop(6, 0.5, 0.2).draw(&rows, 4).places());
    }

    #[test]
    fn a_validation_follows_whole_chains() {
        let rows = text(&[60, 30]);
        let subset = drop(4, 0.7, 0.2).chains(&rows);
        let kept: Vec<_> = subset.places().iter().flatten().copied().collect();
        let starts: Vec<_> = kept
            .iter()
            .filter(|(block, _)| *block == 1)
            .map(|(_, at)| at - 1)
            .collect();
        assert!(starts.len() > 20, "{starts:?}");
        for start in starts {
            let reached = (1..4).filter(|&block| rows.reaches(start, block)).count();
            let there = (1..4)
                .filter(|&block| kept.contains(&(block, start + block)))
                .count();
            assert_eq!(there, reached, "{start}");
        }
        // Where a chain starts its first row is judged, and nowhere else: others would be taken for chains that end at once.
        let counted = subset.counted(&rows);
        let judged = |of: usize| {
            let of_block = counted.iter().filter(|(_, (block, _))| *block == of);
            of_block
                .map(|(_, (block, at))| at - block)
                .collect::<BTreeSet<_>>()
        };
        for block in 1..4 {
            assert!(judged(block).is_subset(&judged(0)), "{block}");
        }
        assert!(judged(0).len() < 60, "{:?}", judged(0));
    }

    #[test]
    fn a_row_reads_the_feature_before_the_last_token_that_it_has_seen() {
        let rows = text(&[5]);
        let subset = drop(3, 1.0, 1.0).draw(&rows, 1);
        let none = rows.len();
        // Blocks 0, 1 and 2: masks read what the text before them reads.
        let expected = [none, 0, 1, 2, 3, none, 0, 1, 0];
        assert_eq!(subset.features(&rows, 0.0, Some(1)), expected);
        assert_eq!(subset.features(&rows, 1.0, Some(1)), [none; 9]);
        assert_eq!(subset.features(&rows, 1.0, None), expected);
    }
}
