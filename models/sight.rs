//! Who sees what, on the host: ranges of places in place of a matrix of all pairs.
use std::ops::Range;

use burn::prelude::Device;

use crate::device::is_cpu;

/// Which keys each query of some sequences sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// Queries of a sequence.
    queries: usize,
    /// Keys of a sequence.
    keys: usize,
    /// Ranges that are kept of each query.
    most: usize,
    /// The places where they begin and end: `most` for each query, ascending and apart; those that a query has too few of begin
    /// and end behind the last key.
    ranges: Vec<[u32; 2]>,
}

/// Which queries are taken at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtATime {
    /// Of one sequence. As many rows of a sight as divide them are for them.
    pub queries: usize,
    /// Sequences whose queries are taken together, at most.
    pub sequences: usize,
    /// Keys between others that are taken with them although no query sees them, at most: a product over a few more costs less than
    /// another one.
    pub gap: usize,
    /// Ranges of keys begin at a multiple of this, and end at one or at the last key: with the keys at either end that no query sees.
    /// How many keys of a cache are taken is a multiple of this too.
    pub aligned: usize,
}

impl AtATime {
    /// On the CPU: scores are to stay in the caches, and a sequence is computed as if it were alone.
    pub const CPU: Self = Self {
        queries: 128,
        sequences: 1,
        gap: 64,
        aligned: 1,
    };
    /// On a GPU, where few launches count more than keys that only other sequences see. Burn begins a row of scores at a multiple of 512
    /// bytes: only of so many keys do rows lie side by side as kernels read them, and products of sizes that 8 does not divide are slow.
    pub const GPU: Self = Self {
        queries: 256,
        sequences: usize::MAX,
        gap: 1024,
        aligned: 256,
    };

    /// On a device.
    pub fn on(device: &Device) -> Self {
        match is_cpu(device) {
            true => Self::CPU,
            false => Self::GPU,
        }
    }

    /// Keys that are taken of a cache in which so many are held. Those behind them are hidden: Burn copies what does not begin and end
    /// at a multiple of 512 bytes, and each number of keys would be a product of another shape.
    pub fn of_cache(self, held: usize) -> usize {
        held.next_multiple_of(self.aligned)
    }
}

/// Sequences that are taken together, in blocks of their queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) sequences: Range<usize>,
    pub(crate) blocks: Vec<Block>,
}

/// Queries that are taken together, and the keys that one of them sees: one range of them at least, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) queries: Range<usize>,
    pub(crate) keys: Vec<Range<usize>>,
}

impl Sight {
    /// What each query `sees`, in any order, one sequence behind the other.
    ///
    /// # Panics
    /// The queries make up no whole number of sequences, or one sees a place that no key has.
    pub fn new<S: IntoIterator<Item = Range<usize>>>(
        [queries, keys]: [usize; 2],
        sees: impl IntoIterator<Item = S>,
    ) -> Self {
        let sees: Vec<_> = sees.into_iter().map(|seen| joined(seen, 0)).collect();
        assert_eq!(sees.len() % queries.max(1), 0, "queries of whole sequences");
        let most = sees.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let none = [keys as u32; 2];
        let mut ranges = Vec::with_capacity(sees.len() * most);
        for seen in sees {
            assert!(seen.last().is_none_or(|last| last.end <= keys), "{seen:?}");
            let own = seen
                .iter()
                .map(|range| [range.start, range.end].map(|at| at as u32));
            ranges.extend(own.chain(std::iter::repeat(none)).take(most));
        }
        Self {
            queries,
            keys,
            most,
            ranges,
        }
    }

    /// What each of `queries` sees of the places of a cache in which so many are `held`: of as many keys as
    /// [are taken of it](AtATime::of_cache) on the device.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub(crate) fn of_cache<S: IntoIterator<Item = Range<usize>>>(
        [queries, held]: [usize; 2],
        sees: impl IntoIterator<Item = S>,
        device: &Device,
    ) -> Self {
        Self::new([queries, AtATime::on(device).of_cache(held)], sees)
    }

    /// What the queries at some places of all sequences see, `each` of one sequence after as many of the one before it.
    ///
    /// # Panics
    /// A place is beyond all of them.
    pub(crate) fn of_places(&self, each: usize, places: &[usize]) -> Self {
        let of_place = |&place: &usize| &self.ranges[place * self.most..][..self.most];
        Self {
            queries: each,
            ranges: places.iter().flat_map(of_place).copied().collect(),
            ..*self
        }
    }

    /// Queries of a sequence, and keys.
    pub fn dims(&self) -> [usize; 2] {
        [self.queries, self.keys]
    }

    /// Sequences that differ in what they see.
    pub fn sequences(&self) -> usize {
        self.ranges.len() / (self.queries * self.most).max(1)
    }

    /// Ranges that are kept of each query.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Where ranges begin and end, `most` of them for each query.
    pub(crate) fn ranges(&self) -> &[[u32; 2]] {
        &self.ranges
    }

    /// Whether every query sees every key.
    pub fn hides_nothing(&self) -> bool {
        let all = [0, self.keys as u32];
        let mut of_queries = self.ranges.chunks(self.most);
        of_queries.all(|ranges| ranges[0] == all)
    }

    /// For each query what is added to its scores: 0 for what it sees, minus infinity for what it does not.
    pub fn entries(&self) -> Vec<f32> {
        let mut entries = vec![f32::NEG_INFINITY; self.ranges.len() / self.most * self.keys];
        let rows = entries.chunks_mut(self.keys.max(1));
        for (row, ranges) in rows.zip(self.ranges.chunks(self.most)) {
            for &[start, end] in ranges {
                row[start as usize..end as usize].fill(0.0);
            }
        }
        entries
    }

    /// The keys that one of some queries of some sequences sees, in ranges as they are taken: one at least.
    fn reach(
        &self,
        sequences: Range<usize>,
        queries: Range<usize>,
        AtATime { gap, aligned, .. }: AtATime,
    ) -> Vec<Range<usize>> {
        let all = self.sequences();
        let mut reach = Vec::new();
        // A range of a query mostly goes on where that of the query before it was.
        let mut growing = vec![0..0; self.most];
        for sequence in sequences {
            let of_sequence = sequence % all * self.queries;
            let of = |query: usize| (of_sequence + query) * self.most;
            for ranges in self.ranges[of(queries.start)..of(queries.end)].chunks(self.most) {
                let own = ranges.iter().map(|&[from, to]| from as usize..to as usize);
                for (growing, range) in growing
                    .iter_mut()
                    .zip(own)
                    .filter(|(_, own)| own.start < own.end)
                {
                    if are_near(growing, &range, gap) {
                        *growing = growing.start.min(range.start)..growing.end.max(range.end);
                    } else {
                        reach.push(std::mem::replace(growing, range));
                    }
                }
            }
        }
        reach.extend(growing);
        if reach.iter().all(Range::is_empty) {
            reach.push(0..1);
        }
        let taken = |range: Range<usize>| {
            let end = range.end.next_multiple_of(aligned).min(self.keys);
            range.start / aligned * aligned..end
        };
        joined(reach.into_iter().map(taken), gap)
    }

    /// The blocks of so many sequences, whose every query here is for `sharing` of theirs.
    pub(crate) fn blocks(&self, sequences: usize, sharing: usize, some: AtATime) -> Vec<Group> {
        let size = (some.queries / sharing).max(1);
        let starts = |all: usize, step: usize| {
            (0..all)
                .step_by(step)
                .map(move |at| at..all.min(at.saturating_add(step)))
        };
        let group = |sequences: Range<usize>| {
            let block = |queries: Range<usize>| Block {
                keys: self.reach(sequences.clone(), queries.clone(), some),
                queries: queries.start * sharing..queries.end * sharing,
            };
            Group {
                blocks: starts(self.queries, size).map(block).collect(),
                sequences,
            }
        };
        starts(sequences, some.sequences).map(group).collect()
    }
}

/// Whether two ranges are at most a `gap` apart.
fn are_near(one: &Range<usize>, other: &Range<usize>, gap: usize) -> bool {
    !one.is_empty() && other.start <= one.end + gap && one.start <= other.end + gap
}

/// The ranges in ascending order; those that are at most a `gap` apart are one, and those of nothing are left out.
fn joined(ranges: impl IntoIterator<Item = Range<usize>>, gap: usize) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        // Most come in ascending order, often one place at a time.
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined.sort_unstable_by_key(|range| range.start);
    joined.dedup_by(|next, before| {
        let touches = next.start <= before.end + gap;
        if touches {
            before.end = before.end.max(next.end);
        }
        touches
    });
    joined
}

/// The last `count` places of ranges that ascend.
pub(crate) fn last_of(mut ranges: Vec<Range<usize>>, count: usize) -> Vec<Range<usize>> {
    let mut left: usize = ranges.iter().map(Range::len).sum();
    ranges.retain_mut(|range| {
        let beyond = left.saturating_sub(count).min(range.len());
        left -= range.len();
        range.start += beyond;
        range.start < range.end
    });
    ranges
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "ranges are what is meant")]
mod tests {
    use super::*;

    const NO: f32 = f32::NEG_INFINITY;

    /// Two sequences of three queries and six keys.
    fn two() -> Sight {
        let sees = [
            vec![0..1],
            vec![3..4, 0..1, 1..2],
            vec![],
            vec![2..5],
            vec![0..3, 2..6],
            vec![5..6],
        ];
        Sight::new([3, 6], sees)
    }

    #[test]
    fn ranges_in_any_order_are_the_entries_of_their_places() {
        let sight = two();
        assert_eq!(sight.sequences(), 2);
        let expected = [
            [0.0, NO, NO, NO, NO, NO],
            [0.0, 0.0, NO, 0.0, NO, NO],
            [NO; 6],
            [NO, NO, 0.0, 0.0, 0.0, NO],
            [0.0; 6],
            [NO, NO, NO, NO, NO, 0.0],
        ];
        assert_eq!(sight.entries(), expected.concat());
        assert!(!sight.hides_nothing());
        assert!(Sight::new([2, 6], [vec![0..6], vec![3..6, 0..3]]).hides_nothing());
    }

    #[test]
    fn a_block_has_the_keys_from_the_first_to_the_last_that_its_queries_see() {
        let blocks = |sequences, sharing, queries, at_once| {
            let some = AtATime {
                queries,
                sequences: at_once,
                gap: 9,
                aligned: 1,
            };
            let groups = two().blocks(sequences, sharing, some);
            let of_group = |group: Group| {
                let blocks = group.blocks.into_iter();
                let only = |keys: Vec<Range<usize>>| match &keys[..] {
                    [one] => one.clone(),
                    others => panic!("{others:?}"),
                };
                let blocks: Vec<_> = blocks
                    .map(|block| (block.queries, only(block.keys)))
                    .collect();
                (group.sequences, blocks)
            };
            groups.into_iter().map(of_group).collect::<Vec<_>>()
        };
        let each = [
            (0..1, vec![(0..2, 0..4), (2..3, 0..1)]),
            (1..2, vec![(0..2, 0..6), (2..3, 5..6)]),
        ];
        assert_eq!(blocks(2, 1, 2, 1), each);
        assert_eq!(
            blocks(2, 4, 9, 1)[1],
            (1..2, vec![(0..8, 0..6), (8..12, 5..6)])
        );
        let together = (0..2, vec![(0..1, 0..5), (1..2, 0..6), (2..3, 5..6)]);
        assert_eq!(blocks(2, 1, 1, usize::MAX), [together]);
        // One sight for a whole batch.
        let one = Sight::new([1, 6], [vec![2..4]]);
        let some = AtATime {
            queries: 1,
            sequences: 1,
            gap: 9,
            aligned: 1,
        };
        let groups = one.blocks(3, 1, some);
        assert_eq!(groups.len(), 3);
        assert!(groups.iter().all(|group| group.blocks[0].keys == [2..4]));
    }

    #[test]
    fn keys_far_from_others_that_a_block_sees_are_taken_apart() {
        // A text, and behind it places that see its beginning, themselves and one more.
        let text = (0..20).map(|at| vec![0..at + 1]);
        let behind = (20..30).map(|at| vec![0..at - 18, at..at + 1, 40..41]);
        let sight = Sight::new([30, 41], text.chain(behind));
        let keys = |gap| {
            let some = AtATime {
                queries: 10,
                sequences: 1,
                gap,
                aligned: 1,
            };
            let mut blocks = sight.blocks(1, 1, some).remove(0).blocks;
            blocks.remove(2).keys
        };
        assert_eq!(keys(0), [0..11, 20..30, 40..41]);
        assert_eq!(keys(8), keys(0));
        assert_eq!(keys(9), [0..30, 40..41]);
        assert_eq!(keys(10), [0..41]);
        let blocks = sight.blocks(1, 1, AtATime::CPU).remove(0).blocks;
        assert_eq!(blocks[0].keys, [0..41]);
    }

    #[test]
    fn a_gpu_takes_ranges_that_begin_and_end_at_round_places() {
        // Two texts, of 701 and 1,299 tokens, and behind them places that see the beginning of the first and themselves.
        let start = |at: usize| if at < 701 { 0 } else { 701 };
        let texts = (0..2000).map(|at| vec![start(at)..at + 1]);
        let behind = (2000..2100).map(|at| vec![0..3, at..at + 1]);
        let sight = Sight::new([2100, 2100], texts.chain(behind));
        let blocks = sight.blocks(1, 1, AtATime::GPU).remove(0).blocks;
        let keys: Vec<_> = blocks.into_iter().map(|block| block.keys).collect();
        let expected = [
            vec![0..256],
            vec![0..512],
            vec![0..768],
            // From the second text's beginning on.
            vec![512..1024],
            vec![512..1280],
            vec![512..1536],
            vec![512..1792],
            // The first text's beginning is as near as the gap that is taken too.
            vec![0..2048],
            vec![0..256, 2048..2100],
        ];
        assert_eq!(keys, expected);
        let unseen = Sight::new([1, 300], [vec![]]);
        let blocks = unseen.blocks(1, 1, AtATime::GPU).remove(0).blocks;
        assert_eq!(blocks[0].keys, [0..256]);
    }

    #[test]
    fn a_gpu_takes_a_round_number_of_the_keys_of_a_cache() {
        let of = |some: AtATime| [0, 1, 256, 257].map(|held| some.of_cache(held));
        assert_eq!(of(AtATime::CPU), [0, 1, 256, 257]);
        assert_eq!(of(AtATime::GPU), [0, 256, 256, 512]);
    }

    #[test]
    fn the_last_places_of_ranges_begin_in_one_of_them() {
        let ranges = vec![0..4, 6..7, 9..12];
        assert_eq!(last_of(ranges.clone(), 2), [10..12]);
        assert_eq!(last_of(ranges.clone(), 5), [3..4, 6..7, 9..12]);
        assert_eq!(last_of(ranges.clone(), 4), [6..7, 9..12]);
        assert_eq!(last_of(ranges.clone(), 100), ranges);
        assert!(last_of(ranges, 0).is_empty());
    }
}
