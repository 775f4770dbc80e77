//! What one unit does.
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::reduce::{best_of, lanes_sum, own_row, row_sum};

/// Of each row the index of its first largest entry, or `log Σ exp`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn logits_kernel<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    found: &mut [f32],
    rows: u32,
    vectors: u32,
    step: u32,
    #[comptime] is_partition: bool,
    #[comptime] units: usize,
    #[define(E)] _dtype: ElemType,
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let mut room_of_indices = Shared::<[u32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * step as usize;
    let (largest, index) = best_of::<E, N>(logits, start, vectors, &mut room, &mut room_of_indices);
    let mut of_row = f32::cast_from(index);
    if comptime!(is_partition) {
        let mut sums = Vector::<f32, N>::new(0.0);
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let shifted = Vector::<f32, N>::cast_from(logits[start + at]) - Vector::new(largest);
            sums += shifted.exp();
            at += CUBE_DIM_X as usize;
        }
        of_row = row_sum(lanes_sum::<N>(sums), &mut room).ln() + largest;
    }
    if there && UNIT_POS_X == 0 {
        found[row] = of_row;
    }
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn sums_kernel<E: Float, N: Size>(
    x: &[Vector<E, N>],
    sums: &mut [f32],
    rows: u32,
    vectors: u32,
    step: u32,
    #[comptime] of_squares: bool,
    #[comptime] units: usize,
    #[define(E)] _dtype: ElemType,
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * step as usize;
    let mut own = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let vector = Vector::<f32, N>::cast_from(x[start + at]);
        if comptime!(of_squares) {
            own += vector * vector;
        } else {
            own += vector;
        }
        at += CUBE_DIM_X as usize;
    }
    let sum = row_sum(lanes_sum::<N>(own), &mut room);
    if there && UNIT_POS_X == 0 {
        sums[row] = sum;
    }
}

/// A number whose order is that of `x`, as `u32`: the bits of numbers above zero are in their order, those below in the other.
#[cube]
fn ordered(x: f32) -> u32 {
    let bits = u32::reinterpret(x);
    let negative = bits >> 31u32 == 1u32;
    select(negative, bits ^ 0xffff_ffffu32, bits | 0x8000_0000u32)
}

/// The number of which [`ordered`] makes `key`.
#[cube]
fn of_order(key: u32) -> f32 {
    let positive = key >> 31u32 == 1u32;
    f32::reinterpret(select(positive, key & 0x7fff_ffffu32, key ^ 0xffff_ffffu32))
}

/// Of each row the `k`th largest entry. Bit by bit, from the highest on, the largest key that at least `k` entries reach.
#[cube(launch, address_type = "dynamic")]
pub(super) fn kth_kernel<E: Float, N: Size>(
    x: &[Vector<E, N>],
    found: &mut [f32],
    rows: u32,
    vectors: u32,
    step: u32,
    k: u32,
    #[comptime] units: usize,
    #[define(E)] _dtype: ElemType,
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * step as usize;
    let mut key = 0u32;
    let mut bit = 0x8000_0000u32;
    while bit > 0 {
        let tried = key | bit;
        let mut reached = 0u32;
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let vector = Vector::<f32, N>::cast_from(x[start + at]);
            #[unroll]
            for lane in 0..N::value() {
                if ordered(vector.extract(lane)) >= tried {
                    reached += 1;
                }
            }
            at += CUBE_DIM_X as usize;
        }
        // Counts up to 2^24 are exact in f32.
        if row_sum(f32::cast_from(reached), &mut room) >= f32::cast_from(k) {
            key = tried;
        }
        bit >>= 1u32;
    }
    if there && UNIT_POS_X == 0 {
        found[row] = of_order(key);
    }
}
