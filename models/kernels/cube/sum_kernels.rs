//! What one unit does with sums of attention: values summed by their weights, and behind them the sum of the weights, row by row.
#![expect(
    clippy::assign_op_pattern,
    reason = "`cube` assigns to places as a whole"
)]
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::heads::{Heads, shared_of, sharer_of, start_of};
use crate::cube::reduce::{own_row, row_sum};

/// Where sums stand.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sums {
    /// Numbers of a row, without the sum of the weights.
    width: u32,
    /// Numbers between the beginnings of two rows.
    step: u32,
}

/// Some queries of some sequences among all.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Part {
    /// The first sequence.
    sequence: u32,
    /// The first query.
    query: u32,
    /// How many queries.
    queries: u32,
    heads: u32,
    /// Queries of all.
    all: u32,
}

/// The row among all of a part's row.
#[cube]
fn among_all(part: &Part, row: usize) -> usize {
    let (queries, heads) = (part.queries as usize, part.heads as usize);
    let sequence = part.sequence as usize + row / (queries * heads);
    let head = row / queries % heads;
    (sequence * heads + head) * part.all as usize + part.query as usize + row % queries
}

/// The sum of the products of what stands in two rows, in f32. Every unit of the cube must call it.
#[cube]
fn product_sum<A: Float, B: Float>(
    one: &[A],
    other: &[B],
    one_start: usize,
    other_start: usize,
    width: usize,
    room: &mut Shared<[f32]>,
) -> f32 {
    let mut sum = 0.0f32;
    let mut at = UNIT_POS_X as usize;
    while at < width {
        sum += f32::cast_from(one[one_start + at]) * f32::cast_from(other[other_start + at]);
        at += CUBE_DIM_X as usize;
    }
    row_sum(sum, room)
}

/// Writes the sums of a part, or adds them to what keys before gave it.
#[cube(launch, address_type = "dynamic")]
pub(super) fn put_kernel(
    context: &[f32],
    weights: &[f32],
    before: &[f32],
    after: &[f32],
    sums: &mut [f32],
    largest: &mut [f32],
    places: Sums,
    part: Part,
    rows: u32,
    #[comptime] is_first: bool,
) {
    let (row, there) = own_row(rows);
    let (width, to) = (places.width as usize, among_all(&part, row));
    let start = to * places.step as usize;
    if there {
        let mut kept = 0.0f32;
        if !comptime!(is_first) {
            kept = (before[row] - after[row]).exp();
        }
        let mut at = UNIT_POS_X as usize;
        while at < width {
            let mut sum = context[row * width + at];
            if !comptime!(is_first) {
                sum += sums[start + at] * kept;
            }
            sums[start + at] = sum;
            at += CUBE_DIM_X as usize;
        }
        if UNIT_POS_X == 0 {
            let mut sum = weights[row];
            if !comptime!(is_first) {
                sum += sums[start + width] * kept;
            }
            sums[start + width] = sum;
            largest[to] = after[row];
        }
    }
}

/// Takes a part of sums apart, or of their gradient.
#[cube(launch, address_type = "dynamic")]
pub(super) fn parts_kernel<E: Float>(
    sums: &[f32],
    context: &mut [E],
    weights: &mut [f32],
    places: Sums,
    part: Part,
    rows: u32,
    #[define(E)] _dtype: ElemType,
) {
    let (row, there) = own_row(rows);
    let width = places.width as usize;
    let start = among_all(&part, row) * places.step as usize;
    if there {
        let mut at = UNIT_POS_X as usize;
        while at < width {
            context[row * width + at] = E::cast_from(sums[start + at]);
            at += CUBE_DIM_X as usize;
        }
        if UNIT_POS_X == 0 {
            weights[row] = sums[start + width];
        }
    }
}

/// The gradient with respect to scaled scores: `weight · (gradient of the weight + gradient of their sum)`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn by_scores_kernel<W: Float, E: Float, N: Size>(
    weights: &[Vector<W, N>],
    of_weights: &[Vector<f32, N>],
    of_sum: &[f32],
    out: &mut [Vector<E, N>],
    rows: u32,
    vectors: u32,
    #[define(W, E)] _dtypes: [ElemType; 2],
) {
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    if there {
        let of_sum = Vector::<f32, N>::new(of_sum[row]);
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let weight = Vector::<f32, N>::cast_from(weights[start + at]);
            out[start + at] = Vector::cast_from(weight * (of_weights[start + at] + of_sum));
            at += CUBE_DIM_X as usize;
        }
    }
}

/// By how much the sums before and a new value count, and the largest score behind them.
#[cube]
fn counting(before: f32, score: f32) -> (f32, f32, f32) {
    let after = max(before, score);
    ((before - after).exp(), (score - after).exp(), after)
}

/// Takes one key more for each query into its sums, where they stand.
#[cube(launch, address_type = "dynamic")]
pub(super) fn add_column_kernel<Q: Float, K: Float, V: Float>(
    query: &[Q],
    key: &[K],
    value: &[V],
    largest: &[f32],
    sums: &mut [f32],
    largest_out: &mut [f32],
    queries: Heads,
    keys: Heads,
    values: Heads,
    places: Sums,
    group: u32,
    rows: u32,
    scale: f32,
    #[comptime] units: usize,
    #[define(Q, K, V)] _dtypes: [ElemType; 3],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let width = places.width as usize;
    let shared = shared_of(&queries, row, group);
    let (own, of_key) = (start_of(&queries, row), start_of(&keys, shared));
    let score = product_sum::<Q, K>(query, key, own, of_key, width, &mut room) * scale;
    let (kept, weight, after) = counting(largest[row], score);
    if there {
        let (start, of_value) = (row * places.step as usize, start_of(&values, shared));
        let mut at = UNIT_POS_X as usize;
        while at < width {
            let value = f32::cast_from(value[of_value + at]);
            sums[start + at] = sums[start + at] * kept + weight * value;
            at += CUBE_DIM_X as usize;
        }
        if UNIT_POS_X == 0 {
            sums[start + width] = sums[start + width] * kept + weight;
            largest_out[row] = after;
        }
    }
}

/// The gradients of that, of a key and of the queries of the heads that share it; that of the sums stands where it stood.
#[cube(launch, address_type = "dynamic")]
pub(super) fn add_column_backward_kernel<Q: Float, K: Float, V: Float>(
    query: &[Q],
    key: &[K],
    value: &[V],
    largest: &[f32],
    gradient: &mut [f32],
    by_query: &mut [Q],
    by_key: &mut [K],
    by_value: &mut [V],
    queries: Heads,
    keys: Heads,
    values: Heads,
    places: Sums,
    rows: u32,
    scale: f32,
    #[comptime] group: usize,
    #[comptime] units: usize,
    #[comptime] rows_of_cube: usize,
    #[define(Q, K, V)] _dtypes: [ElemType; 3],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    // Of each head by how much its score counts, the new value, and what was there before.
    let mut factors = Shared::<[f32]>::new_slice(comptime!(3 * group * rows_of_cube));
    let (row, there) = own_row(rows);
    let (width, step) = (places.width as usize, places.step as usize);
    let (of_key, of_value) = (start_of(&keys, row), start_of(&values, row));
    let own = UNIT_POS_Y as usize * 3 * group;
    for head in 0..group {
        let sharer = sharer_of(&keys, row, head, group);
        let (own_query, start) = (start_of(&queries, sharer), sharer * step);
        let score = product_sum::<Q, K>(query, key, own_query, of_key, width, &mut room) * scale;
        let mut along = 0.0f32;
        let mut at = UNIT_POS_X as usize;
        while at < width {
            along += gradient[start + at] * f32::cast_from(value[of_value + at]);
            at += CUBE_DIM_X as usize;
        }
        let along = row_sum(along, &mut room);
        let (kept, weight, _) = counting(largest[sharer], score);
        if UNIT_POS_X == 0 {
            factors[own + 3 * head] = scale * weight * (along + gradient[start + width]);
            factors[own + 3 * head + 1] = weight;
            factors[own + 3 * head + 2] = kept;
        }
    }
    sync_cube();
    if there {
        let mut at = UNIT_POS_X as usize;
        while at < width {
            let key = f32::cast_from(key[of_key + at]);
            let mut to_key = 0.0f32;
            let mut to_value = 0.0f32;
            for head in 0..group {
                let sharer = sharer_of(&keys, row, head, group);
                let start = sharer * step;
                let of_score = factors[own + 3 * head];
                let of_sums = gradient[start + at];
                to_key += of_score * f32::cast_from(query[start_of(&queries, sharer) + at]);
                to_value += factors[own + 3 * head + 1] * of_sums;
                by_query[sharer * width + at] = Q::cast_from(of_score * key);
                gradient[start + at] = of_sums * factors[own + 3 * head + 2];
            }
            by_key[row * width + at] = K::cast_from(to_key);
            by_value[row * width + at] = V::cast_from(to_value);
            at += CUBE_DIM_X as usize;
        }
        if UNIT_POS_X == 0 {
            for head in 0..group {
                let end = sharer_of(&keys, row, head, group) * step + width;
                gradient[end] = gradient[end] * factors[own + 3 * head + 2];
            }
        }
    }
}

/// Divides sums by that of their weights.
#[cube(launch, address_type = "dynamic")]
pub(super) fn quotient_kernel<E: Float>(
    sums: &[f32],
    out: &mut [E],
    factors: &mut [f32],
    to: Heads,
    places: Sums,
    rows: u32,
    #[define(E)] _dtype: ElemType,
) {
    let (row, there) = own_row(rows);
    let (width, start) = (places.width as usize, row * places.step as usize);
    if there {
        let factor = 1.0 / sums[start + width];
        let to = start_of(&to, row);
        let mut at = UNIT_POS_X as usize;
        while at < width {
            out[to + at] = E::cast_from(sums[start + at] * factor);
            at += CUBE_DIM_X as usize;
        }
        if UNIT_POS_X == 0 {
            factors[row] = factor;
        }
    }
}

/// The gradient with respect to sums from that of their quotient.
#[cube(launch, address_type = "dynamic")]
pub(super) fn quotient_backward_kernel<E: Float, G: Float>(
    quotient: &[E],
    factors: &[f32],
    gradient: &[G],
    by_sums: &mut [f32],
    quotients: Heads,
    gradients: Heads,
    width: u32,
    rows: u32,
    #[comptime] units: usize,
    #[define(E, G)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let width = width as usize;
    let (own, from) = (start_of(&quotients, row), start_of(&gradients, row));
    let along = product_sum::<E, G>(quotient, gradient, own, from, width, &mut room);
    if there {
        let (factor, start) = (factors[row], row * (width + 1));
        let mut at = UNIT_POS_X as usize;
        while at < width {
            by_sums[start + at] = f32::cast_from(gradient[from + at]) * factor;
            at += CUBE_DIM_X as usize;
        }
        if UNIT_POS_X == 0 {
            by_sums[start + width] = -(along * factor);
        }
    }
}
