//! Packed rows of texts with blocks behind cuts of them, and which place sees which.
use std::sync::Arc;

use burn::prelude::*;
use spectrain_data::packing::RowLayout;

use super::blocks::Context;
use crate::mask::{Layout, Mask};
use crate::sight::Sight;

/// A place of a packed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// What stands there.
    pub token: u32,
    /// Number of the text it belongs to, in its row; 0 for what fills up.
    pub document: u32,
    /// Position in that text.
    pub position: u32,
    /// Number of its block, in its text; 0 for the text itself.
    pub block: u32,
    /// How many places of a causal text it sees, from the first on.
    pub sees: u32,
}

impl Place {
    const FILL: Self = Self {
        token: 0,
        document: 0,
        position: 0,
        block: 0,
        sees: 1,
    };
}

/// Packed rows of places.
#[derive(Debug, Clone)]
pub struct Places {
    /// `[batch, width]`
    pub tokens: Tensor<2, Int>,
    /// Texts, and positions within them.
    pub layout: Layout,
    /// Row by row.
    places: Arc<[Place]>,
}

impl Places {
    /// The rows, each filled up to the longest.
    pub fn new(rows: &[Vec<Place>], device: &Device) -> Self {
        let width = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let all: Vec<Place> = rows
            .iter()
            .flat_map(|row| {
                let fill = std::iter::repeat(Place::FILL);
                row.iter().copied().chain(fill).take(width)
            })
            .collect();
        let tokens: Vec<i64> = all.iter().map(|place| place.token.into()).collect();
        let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), device);
        let layout = RowLayout {
            rows: rows.len(),
            row_length: width,
            documents: all.iter().map(|place| place.document).collect(),
            positions: all.iter().map(|place| place.position).collect(),
        };
        Self {
            tokens: tokens.reshape([rows.len(), width]),
            layout: Layout::new(layout, device),
            places: all.into(),
        }
    }

    /// Places of a row.
    pub fn width(&self) -> usize {
        self.tokens.dims()[1]
    }

    /// Every place sees its own text with its blocks, at most `window` positions away, the own one counted. With a causal
    /// context it sees of the text only what comes before it or its block, and of the blocks its own. What fills up sees its
    /// like.
    pub fn mask(&self, context: Context, window: Option<usize>) -> Mask {
        let width = self.width();
        let window = window.unwrap_or(usize::MAX);
        let sees = |own: &Place, other: &Place| {
            let in_sight = match (context, other.block) {
                (Context::Bidirectional, _) => true,
                (Context::Causal, 0) => other.position < own.sees,
                (Context::Causal, block) => block == own.block,
            };
            in_sight && (own.position.abs_diff(other.position) as usize) < window
        };
        let rows = self.places.chunks(width);
        let all = rows.flat_map(|row| {
            let mut end = 0;
            // A text and the blocks behind it stand side by side.
            let documents = row.chunk_by(|one, next| one.document == next.document);
            documents.flat_map(move |document| {
                let first = end;
                end += document.len();
                document.iter().map(move |own| {
                    let others = (first..).zip(document);
                    let seen = others.filter(move |(_, other)| sees(own, other));
                    seen.map(|(at, _)| at..at + 1)
                })
            })
        });
        Mask::new(Sight::new([width, width], all), &self.tokens.device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;
    use crate::weights::host_f32;

    fn seen(context: Context, window: Option<usize>, row: &[[u32; 4]]) -> Vec<u8> {
        let place = |&[document, position, block, sees]: &[u32; 4]| Place {
            token: 1,
            document,
            position,
            block,
            sees,
        };
        let row = row.iter().map(place).collect();
        let places = Places::new(&[row], &test_device());
        let mask = host_f32(places.mask(context, window).entries().clone());
        mask.iter().map(|&entry| u8::from(entry == 0.0)).collect()
    }

    #[test]
    fn a_text_sees_itself_or_what_comes_before_and_a_block_sees_both() {
        let one = [
            [1, 0, 0, 1],
            [1, 1, 0, 2],
            [1, 2, 1, 2],
            [1, 3, 1, 2],
            [2, 0, 0, 1],
        ];
        let all = [
            1, 1, 1, 1, 0, //
            1, 1, 1, 1, 0, //
            1, 1, 1, 1, 0, //
            1, 1, 1, 1, 0, //
            0, 0, 0, 0, 1,
        ];
        assert_eq!(seen(Context::Bidirectional, None, &one), all);
        let causal = [
            1, 0, 0, 0, 0, //
            1, 1, 0, 0, 0, //
            1, 1, 1, 1, 0, //
            1, 1, 1, 1, 0, //
            0, 0, 0, 0, 1,
        ];
        assert_eq!(seen(Context::Causal, None, &one), causal);
        let near = [
            1, 1, 0, 0, 0, //
            1, 1, 1, 0, 0, //
            0, 1, 1, 1, 0, //
            0, 0, 1, 1, 0, //
            0, 0, 0, 0, 1,
        ];
        assert_eq!(seen(Context::Bidirectional, Some(2), &one), near);
    }

    #[test]
    fn blocks_behind_several_cuts_of_a_causal_text_do_not_see_each_other() {
        let two = [
            [1, 0, 0, 1],
            [1, 1, 0, 2],
            [1, 1, 1, 1], // behind the first token
            [1, 2, 1, 1],
            [1, 2, 2, 2], // behind the second
        ];
        let expected = [
            1, 0, 0, 0, 0, //
            1, 1, 0, 0, 0, //
            1, 0, 1, 1, 0, //
            1, 0, 1, 1, 0, //
            1, 1, 0, 0, 1,
        ];
        assert_eq!(seen(Context::Causal, None, &two), expected);
        let near = [
            1, 0, 0, 0, 0, //
            1, 1, 0, 0, 0, //
            1, 0, 1, 1, 0, //
            0, 0, 1, 1, 0, //
            0, 1, 0, 0, 1,
        ];
        assert_eq!(seen(Context::Causal, Some(2), &two), near);
    }
}
