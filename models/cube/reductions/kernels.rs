//! What one unit does.
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::reduce::{best_of, lanes_sum, own_row, row_sum};

#[cube(launch, address_type = "dynamic")]
pub(super) fn best_kernel<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    best: &mut [f32],
    rows: u32,
    vectors: u32,
    #[comptime] units: usize,
    #[define(E)] _dtype: ElemType,
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let mut room_of_indices = Shared::<[u32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let (_, index) = best_of::<E, N>(logits, start, vectors, &mut room, &mut room_of_indices);
    if there && UNIT_POS_X == 0 {
        best[row] = f32::cast_from(index);
    }
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn log_partition_kernel<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    found: &mut [f32],
    rows: u32,
    vectors: u32,
    #[comptime] units: usize,
    #[define(E)] _dtype: ElemType,
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let mut room_of_indices = Shared::<[u32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let (largest, _) = best_of::<E, N>(logits, start, vectors, &mut room, &mut room_of_indices);
    let mut sums = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let shifted = Vector::<f32, N>::cast_from(logits[start + at]) - Vector::new(largest);
        sums += shifted.exp();
        at += CUBE_DIM_X as usize;
    }
    let sum = row_sum(lanes_sum::<N>(sums), &mut room);
    if there && UNIT_POS_X == 0 {
        found[row] = sum.ln() + largest;
    }
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn sums_kernel<E: Float, N: Size>(
    x: &[Vector<E, N>],
    sums: &mut [f32],
    rows: u32,
    vectors: u32,
    #[comptime] of_squares: bool,
    #[comptime] units: usize,
    #[define(E)] _dtype: ElemType,
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
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
