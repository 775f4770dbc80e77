//! Packed rows of texts with a block behind each, and which place sees which.
use burn::prelude::*;
use burn::tensor::DType;

use super::Context;
use crate::Layout;

/// A place of a packed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// What stands there.
    pub token: u32,
    /// Number of the text it belongs to; 0 for what fills up.
    pub document: u32,
    /// Position in that text.
    pub position: u32,
    /// Whether it belongs to the block, which is the end of its text.
    pub in_block: bool,
}

impl Place {
    const FILL: Self = Self {
        token: 0,
        document: 0,
        position: 0,
        in_block: false,
    };
}

/// Packed rows of places.
#[derive(Debug, Clone)]
pub struct Places {
    /// `[batch, width]`
    pub tokens: Tensor<2, Int>,
    /// Texts, and positions within them.
    pub layout: Layout,
    /// `[batch, width]`: whether the place belongs to a block.
    in_block: Tensor<2, Bool>,
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
            in_block: ints(&|place| u32::from(place.in_block)).equal_scalar(1),
        }
    }

    /// Places of a row.
    pub fn width(&self) -> usize {
        self.tokens.dims()[1]
    }

    /// Every place sees its own text, at most `window` positions away, the own one counted; with a causal context, a place
    /// outside of the block only what comes before it. What fills up sees its like.
    ///
    /// # Shapes
    /// - output: `[batch, 1, width, width]`, added to scores
    pub fn mask(&self, context: Context, window: Option<usize>) -> Tensor<4> {
        let [batch, width] = self.tokens.dims();
        let square = [batch, width, width];
        let device = self.tokens.device();
        let documents = &self.layout.documents;
        let of_row = documents.clone().reshape([batch, width, 1]).expand(square);
        let of_column = documents.clone().reshape([batch, 1, width]).expand(square);
        let mut hidden = of_row.not_equal(of_column);
        let index = Tensor::<1, Int>::arange(0..width as i64, &device);
        // Places of a text stand side by side, so that these are differences of positions, too.
        let back = index.clone().reshape([1, width, 1]) - index.reshape([1, 1, width]);
        if context == Context::Causal {
            let ahead = back.clone().lower_scalar(0).expand(square);
            let in_block = self.in_block.clone().reshape([batch, width, 1]);
            let outside = in_block.expand(square).bool_not();
            hidden = hidden.bool_or(ahead.bool_and(outside));
        }
        if let Some(window) = window {
            let far = back.abs().greater_equal_scalar(window as i64);
            hidden = hidden.bool_or(far.expand(square));
        }
        Tensor::<3>::zeros(square, (&device, DType::F32))
            .mask_fill(hidden, f32::NEG_INFINITY)
            .reshape([batch, 1, width, width])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::host_f32;

    fn seen(context: Context, window: Option<usize>) -> Vec<u8> {
        let text = |document, blocks: &[bool]| -> Vec<Place> {
            let place = |(position, &in_block): (usize, &bool)| Place {
                token: 1,
                document,
                position: position as u32,
                in_block,
            };
            blocks.iter().enumerate().map(place).collect()
        };
        let row = [text(1, &[false, false, true, true]), text(2, &[false])].concat();
        let places = Places::new(&[row], &Device::flex());
        let mask = host_f32(places.mask(context, window));
        mask.iter().map(|&entry| u8::from(entry == 0.0)).collect()
    }

    #[test]
    fn a_text_sees_itself_or_what_comes_before_and_a_block_sees_both() {
        let all = [
            1, 1, 1, 1, 0, //
            1, 1, 1, 1, 0, //
            1, 1, 1, 1, 0, //
            1, 1, 1, 1, 0, //
            0, 0, 0, 0, 1,
        ];
        assert_eq!(seen(Context::Bidirectional, None), all);
        let causal = [
            1, 0, 0, 0, 0, //
            1, 1, 0, 0, 0, //
            1, 1, 1, 1, 0, //
            1, 1, 1, 1, 0, //
            0, 0, 0, 0, 1,
        ];
        assert_eq!(seen(Context::Causal, None), causal);
        let near = [
            1, 1, 0, 0, 0, //
            1, 1, 1, 0, 0, //
            0, 1, 1, 1, 0, //
            0, 0, 1, 1, 0, //
            0, 0, 0, 0, 1,
        ];
        assert_eq!(seen(Context::Bidirectional, Some(2)), near);
    }
}
