//! Attention of blocks that stand behind anchors in packed rows: a place of a block sees the context before its anchor and
//! its own block, and nothing of any other block.
use burn::prelude::*;

use crate::attend::{Projected, by_head, scale, scores, weigh};
use crate::kernels;
use crate::mask::{ByLayer, Mask};
use crate::sight::Sight;

/// Where blocks stand and what they see.
#[derive(Debug, Clone)]
pub struct BlockLayout {
    /// `[batch, seq]`
    context_positions: Tensor<2, Int>,
    /// `[batch * blocks, block_size]`
    block_positions: Tensor<2, Int>,
    masks: ByLayer<BlockMasks>,
}

/// What the places of blocks see in a layer, as attention reads it.
#[derive(Debug, Clone)]
pub(crate) struct BlockMasks {
    /// What the places of a row's blocks see of its context: `blocks` queries, or `blocks * block_size`.
    context: Mask,
    /// `[batch * blocks or 1, 1, block_size, block_size]`, added to scores; absent where a place sees its whole block.
    block: Option<Tensor<4>>,
}

/// What the places of blocks see in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSight {
    /// Whether a place sees only those before it in its block.
    pub causal: bool,
    /// How many positions back a place sees, the own one counted.
    pub window: Option<usize>,
}

/// Where the blocks of packed rows stand, on the host.
#[derive(Debug, Clone, Copy)]
pub struct BlockPlaces<'a> {
    /// Position of each place in its document, row by row.
    pub positions: &'a [u32],
    /// For each row the same number of anchors: a place of the row, and that where its document starts; `None` for a block
    /// that only fills up.
    pub anchors: &'a [Option<(usize, usize)>],
    /// Places of a row.
    pub row_length: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Places of each block that are seen, where some blocks are shorter.
    pub lengths: Option<&'a [usize]>,
    /// What they see in each layer.
    pub sights: &'a [BlockSight],
}

impl BlockLayout {
    /// The layout of blocks over packed rows.
    pub fn new(places: &BlockPlaces, device: &Device) -> Self {
        let length = places.row_length;
        let (rows, size) = (places.positions.len() / length, places.block_size);
        let ints = |values: Vec<i64>, shape: [usize; 2]| {
            Tensor::<1, Int>::from_ints(values.as_slice(), device).reshape(shape)
        };
        let context = places.positions.iter().map(|&at| at as i64).collect();
        let positions = places.anchors.iter().flat_map(|anchor| {
            let first = anchor.map_or(0, |(anchor, _)| places.positions[anchor] as i64);
            (0..size as i64).map(move |slot| first + slot)
        });
        Self {
            context_positions: ints(context, [rows, length]),
            block_positions: ints(positions.collect(), [places.anchors.len(), size]),
            masks: ByLayer::new(places.sights, |sight| BlockMasks {
                context: context_mask(places, sight.window, device),
                block: block_mask(places, sight, device),
            }),
        }
    }

    /// What the places see in a layer.
    pub(crate) fn masks(&self, layer: usize) -> &BlockMasks {
        self.masks.of(layer)
    }

    /// What one block sees after `cached` positions and with itself.
    ///
    /// # Shapes
    /// - output: `[1, 1, size, cached + size]`, on a GPU of as many more keys as are taken of a cache and hidden
    pub(crate) fn decoding(cached: usize, size: usize, sight: BlockSight, device: &Device) -> Mask {
        let total = cached + size;
        let window = sight.window.unwrap_or(usize::MAX);
        let sees = (cached..total).map(|own| {
            let end = if sight.causal { own + 1 } else { total };
            Some((own + 1).saturating_sub(window)..end)
        });
        Mask::new(Sight::of_cache([size, total], sees, device), device)
    }

    pub(crate) fn context_positions(&self) -> Tensor<2, Int> {
        self.context_positions.clone()
    }

    pub(crate) fn block_positions(&self) -> Tensor<2, Int> {
        self.block_positions.clone()
    }
}

impl BlockSight {
    /// Whether a place of a block sees another of it, by their positions.
    fn sees(self, query: usize, key: usize) -> bool {
        (!self.causal || key <= query) && self.window.is_none_or(|window| key + window > query)
    }
}

fn context_mask(places: &BlockPlaces, window: Option<usize>, device: &Device) -> Mask {
    let length = places.row_length;
    let rows = places.positions.len() / length;
    let blocks = places.anchors.len() / rows.max(1);
    // Without a window every place of a block sees the same context.
    let slots = window.map_or(1, |_| places.block_size);
    let mut sees = Vec::with_capacity(places.anchors.len() * slots);
    for (index, anchor) in places.anchors.iter().enumerate() {
        let row = index / blocks.max(1) * length;
        sees.extend((0..slots).map(|slot| {
            let (anchor, start) = (*anchor)?;
            let nearest = window.map_or(0, |window| (anchor + slot + 1).saturating_sub(window));
            Some(start.max(nearest).min(anchor) - row..anchor - row)
        }));
    }
    Mask::new(Sight::new([blocks * slots, length], sees), device)
}

fn block_mask(places: &BlockPlaces, sight: BlockSight, device: &Device) -> Option<Tensor<4>> {
    let (size, whole) = (places.block_size, [places.block_size]);
    let lengths = places.lengths.unwrap_or(&whole);
    let mut mask = Vec::with_capacity(lengths.len() * size * size);
    for &length in lengths {
        mask.extend((0..size * size).map(|at| {
            let (query, key) = (at / size, at % size);
            // A place beyond the end counts for nothing, but it must see something.
            let there = key < length || query >= length;
            if there && sight.sees(query, key) {
                0.0
            } else {
                f32::NEG_INFINITY
            }
        }));
    }
    let hidden = mask.iter().any(|&entry| entry != 0.0);
    let shape = [lengths.len(), 1, size, size];
    hidden.then(|| Tensor::<1>::from_floats(mask.as_slice(), device).reshape(shape))
}

/// Attends from blocks to their context and to themselves. Scores are `[block_size, seq]` and `[block_size, block_size]` for
/// each block: the softmax goes over both without joining them, so that nothing is computed between blocks.
///
/// # Shapes
/// - blocks: `[batch * blocks, heads, block_size, d_head]`, and keys and values alike
/// - key, value: `[batch, kv_heads, seq, d_head]`, of the context
/// - sinks: see [`Projects::sinks`](crate::attention::Projects::sinks)
/// - output: `[batch * blocks, heads, block_size, d_head]`
pub(crate) fn attend_blocks(
    blocks: Projected,
    (key, value): (Tensor<4>, Tensor<4>),
    sinks: Option<Tensor<1>>,
    masks: &BlockMasks,
) -> Tensor<4> {
    let batch = key.dims()[0];
    let [all, heads, size, d_head] = blocks.query.dims();
    let count = all / batch;
    let (scale, dtype) = (scale(&blocks.query), blocks.query.dtype());
    // All blocks of a row ask the same keys: they are rows of one product.
    let together = |x: Tensor<4>, width: usize| {
        x.reshape([batch, count, heads, size * width])
            .swap_dims(1, 2)
            .reshape([batch, heads, count * size, width])
    };
    let apart = |x: Tensor<4>, width: usize| {
        x.reshape([batch, heads, count, size * width])
            .swap_dims(1, 2)
            .reshape([all, heads, size, width])
    };
    let mut inside = scores(blocks.query.clone(), blocks.key) * scale;
    if let Some(mask) = &masks.block {
        inside = inside + mask.clone();
    }
    let sinks = sinks.map(by_head);
    // A place sees itself, so the largest score of its block is finite.
    let mut floor = inside.clone().detach().max_dim(3);
    if let Some(sinks) = &sinks {
        floor = floor.max_pair(sinks.clone().detach().expand([all, heads, size, 1]));
    }
    let floor = together(floor, 1); // [batch, heads, count * size, 1]
    let query = together(blocks.query, d_head);
    let outside = kernels::gather(query, (key, value), &masks.context, Some(floor), scale);
    let largest = apart(outside.largest, 1);
    let inside = (inside - largest.clone()).exp();
    let mut sum = inside.clone().sum_dim(3);
    if let Some(sinks) = sinks {
        sum = sum + (sinks - largest).exp();
    }
    let inside = weigh(inside.cast(dtype), blocks.value);
    let inside = Tensor::cat(vec![inside, sum], 3);
    kernels::quotient(apart(outside.sums, d_head + 1) + inside, dtype)
}
