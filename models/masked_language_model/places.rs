//! Packed rows of texts with blocks behind cuts of them, and which place sees which.
use burn::prelude::*;
use burn::tensor::DType;

use super::blocks::Context;
use crate::mask::{Layout, Mask};

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
    /// `[batch, width]`
    blocks: Tensor<2, Int>,
    /// `[batch, width]`
    sees: Tensor<2, Int>,
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
        let ints = |of: &dyn Fn(&Place) -> u32| {
            let values: Vec<i64> = all.iter().map(|place| of(place) as i64).collect();
            Tensor::<1, Int>::from_ints(values.as_slice(), device).reshape([rows.len(), width])
        };
        Self {
            tokens: ints(&|place| place.token),
            layout: Layout {
                documents: ints(&|place| place.document),
                positions: ints(&|place| place.position),
            },
            blocks: ints(&|place| place.block),
            sees: ints(&|place| place.sees),
        }
    }

    /// Places of a row.
    pub fn width(&self) -> usize {
        self.tokens.dims()[1]
    }

    /// Every place sees its own text with its blocks, at most `window` positions away, the own one counted. With a causal
    /// context it sees of the text only what comes before it or its block, and of the blocks its own. What fills up sees its
    /// like.
    ///
    /// # Shapes
    /// - output: `[batch, 1, width, width]`, added to scores
    pub fn mask(&self, context: Context, window: Option<usize>) -> Mask {
        let [batch, width] = self.tokens.dims();
        let square = [batch, width, width];
        let rows = |x: &Tensor<2, Int>| x.clone().reshape([batch, width, 1]).expand(square);
        let keys = |x: &Tensor<2, Int>| x.clone().reshape([batch, 1, width]).expand(square);
        let Layout {
            documents,
            positions,
        } = &self.layout;
        let mut hidden = rows(documents).not_equal(keys(documents));
        if context == Context::Causal {
            let of_text = keys(&self.blocks).equal_scalar(0);
            let ahead = keys(positions).greater_equal(rows(&self.sees));
            let other_block = rows(&self.blocks).not_equal(keys(&self.blocks));
            let in_text = of_text.clone().bool_and(ahead);
            let in_block = of_text.bool_not().bool_and(other_block);
            hidden = hidden.bool_or(in_text).bool_or(in_block);
        }
        if let Some(window) = window {
            let away = (rows(positions) - keys(positions)).abs();
            hidden = hidden.bool_or(away.greater_equal_scalar(window as i64));
        }
        let entries = Tensor::<3>::zeros(square, (&self.tokens.device(), DType::F32))
            .mask_fill(hidden, f32::NEG_INFINITY);
        Mask::of(entries.reshape([batch, 1, width, width]))
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
