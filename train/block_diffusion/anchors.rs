//! Where blocks stand in a batch.
use spectrain_data::seed::mix;

use super::config::Anchors;
use crate::batch::Rows;

/// Anchors of a batch: for each row the same number, each with the start of its document.
pub(crate) type Anchored = Vec<Option<(usize, usize)>>;

/// At most `most` anchors of each row, ascending; rows with fewer than others are filled up.
pub(super) fn place(
    rows: &Rows,
    placement: Anchors,
    most: usize,
    block_size: usize,
    seed: u64,
) -> Anchored {
    let length = rows.layout.row_length;
    let mut chosen: Vec<Vec<usize>> = Vec::with_capacity(rows.layout.rows);
    for row in 0..rows.layout.rows {
        let may = |&at: &usize| rows.drafts(at, 1);
        let mut anchors: Vec<usize> = (row * length..(row + 1) * length).filter(may).collect();
        if placement == Anchors::Chunks {
            let mut next = 0;
            anchors.retain(|&at| {
                // A new reply starts anew.
                let first = at < next && !rows.loss_mask[at - 1];
                let kept = at >= next || first;
                if kept {
                    next = at + block_size;
                }
                kept
            });
        }
        anchors.sort_by_cached_key(|&at| mix(seed, at as u64));
        anchors.truncate(most);
        anchors.sort_unstable();
        chosen.push(anchors);
    }
    let most = chosen.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let start = |at: usize| at - rows.layout.positions[at] as usize;
    let filled = chosen.into_iter().flat_map(|anchors| {
        let anchors = anchors.into_iter().map(|at| Some((at, start(at))));
        anchors.chain(std::iter::repeat(None)).take(most)
    });
    filled.collect()
}

/// The token before the one that each slot predicts: for each anchor, `slots` of the text.
pub(super) fn previous_tokens(rows: &Rows, anchors: &Anchored, slots: usize) -> Vec<u32> {
    let of_block = |anchor: &Option<(usize, usize)>| {
        let first = anchor.map_or(0, |(anchor, _)| anchor);
        let at = move |slot| rows.tokens.get(first + slot).copied().unwrap_or(0);
        (0..slots).map(at).collect::<Vec<_>>()
    };
    anchors.iter().flat_map(of_block).collect()
}

/// The token before each anchor, the anchor itself where it begins its text.
pub(super) fn earlier_tokens(rows: &Rows, anchors: &Anchored) -> Vec<u32> {
    let earlier = |anchor: &Option<(usize, usize)>| {
        anchor.map_or(0, |(anchor, start)| {
            rows.tokens[start.max(anchor.saturating_sub(1))]
        })
    };
    anchors.iter().map(earlier).collect()
}

#[cfg(test)]
mod tests {
    use spectrain_data::packing::{PackedBatch, RowLayout};

    use super::*;

    #[test]
    fn before_an_anchor_that_begins_its_text_stands_itself_and_no_token_of_the_text_before() {
        let rows = Rows {
            packed: PackedBatch {
                rows: vec![vec![0, 1]],
            },
            layout: RowLayout {
                rows: 1,
                row_length: 6,
                documents: vec![1, 1, 1, 2, 2, 2],
                positions: vec![0, 1, 2, 0, 1, 2],
            },
            tokens: vec![10, 11, 12, 13, 14, 15],
            loss_mask: vec![true; 6],
        };
        let anchors = place(&rows, Anchors::Random, 9, 2, 0);
        let expected = [(0, 0), (1, 0), (3, 3), (4, 3)].map(Some);
        assert_eq!(anchors, expected);
        assert_eq!(earlier_tokens(&rows, &anchors), [10, 10, 13, 13]);
        assert_eq!(
            previous_tokens(&rows, &anchors[2..].to_vec(), 2),
            [13, 14, 14, 15]
        );
        assert_eq!(earlier_tokens(&rows, &vec![None]), [0]);
    }
}
