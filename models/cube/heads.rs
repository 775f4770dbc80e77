//! Where heads of attention stand in memory.
#![expect(missing_docs, reason = "`cube` makes modules beside the functions")]
use burn::backend::TensorMetadata as _;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Where heads stand, in vectors: `[batch, heads, seq, d_head]`, of which the last side alone must lie in one piece.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Heads {
    seq: u32,
    heads: u32,
    batch_stride: u32,
    head_stride: u32,
    pub seq_stride: u32,
}

/// A tensor each of whose heads lies in one piece.
pub fn in_heads(x: CubeTensor) -> CubeTensor {
    match x.meta.strides().last() {
        Some(1) => x,
        _ => into_contiguous(x),
    }
}

/// Of `seq` positions in `x`, `[batch, heads, positions, d_head]`, in vectors of so many elements.
pub fn heads_of(x: &CubeTensor, seq: usize, vector: usize) -> HeadsLaunch {
    let [_, heads, _, _] = x.shape().dims();
    let stride = |side: usize| (x.meta.strides()[side] / vector) as u32;
    HeadsLaunch::new(seq as u32, heads as u32, stride(0), stride(1), stride(2))
}

/// Where a row begins; rows are those of the heads of each sequence, position by position.
#[cube]
pub fn start_of(places: &Heads, row: usize) -> usize {
    let (seq, heads) = (places.seq as usize, places.heads as usize);
    row / (seq * heads) * places.batch_stride as usize
        + row / seq % heads * places.head_stride as usize
        + row % seq * places.seq_stride as usize
}

/// Which of the positions of all sequences a row is at.
#[cube]
pub fn position_of(places: &Heads, row: usize) -> usize {
    let (seq, heads) = (places.seq as usize, places.heads as usize);
    row / (seq * heads) * seq + row % seq
}

/// The row of the key head that a row of a query head shares with the others of its group.
#[cube]
pub fn shared_of(queries: &Heads, row: usize, group: u32) -> usize {
    let seq = queries.seq as usize;
    row / seq / group as usize * seq + row % seq
}

/// The row of the query head number `nth` of those that share the key head of a row.
#[cube]
pub fn sharer_of(keys: &Heads, row: usize, nth: usize, #[comptime] group: usize) -> usize {
    let seq = keys.seq as usize;
    (row / seq * group + nth) * seq + row % seq
}
