//! What one unit does.
#![expect(clippy::needless_range_loop, reason = "kernels have no iterators")]
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::heads::{Heads, position_of, start_of};
use crate::cube::reduce::{
    inverse_rms, lanes_max, lanes_sum, normed, own_row, own_squares, row_max, row_sum,
};

/// Where the mask of a row of scores stands.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct MaskPlaces {
    /// Rows of scores, of all heads, that a sequence has.
    of_sequence: u32,
    /// Rows of scores that a head has.
    of_head: u32,
    /// Rows of scores that a row of the mask is for.
    sharing: u32,
    /// Sequences that the mask has; those of one are repeated for a batch.
    sequences: u32,
    /// From one of them to the next, in vectors.
    step: u32,
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn rms_norm_kernel<E: Float, W: Float, N: Size>(
    x: &[Vector<E, N>],
    weight: &[Vector<W, N>],
    out: &mut [Vector<E, N>],
    rows: u32,
    vectors: u32,
    epsilon: f32,
    #[comptime] units: usize,
    #[define(E, W)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let squares = own_squares::<E, N>(x, start, vectors);
    let scale = inverse_rms::<N>(squares, vectors, epsilon, &mut room);
    if there {
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            out[start + at] = normed::<E, W, N>(x[start + at], weight[at], scale);
            at += CUBE_DIM_X as usize;
        }
    }
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn rms_norm_backward_kernel<E: Float, W: Float, N: Size>(
    x: &[Vector<E, N>],
    weight: &[Vector<W, N>],
    gradient: &[Vector<E, N>],
    out: &mut [Vector<E, N>],
    scales: &mut [f32],
    rows: u32,
    vectors: u32,
    epsilon: f32,
    #[comptime] units: usize,
    #[define(E, W)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut products = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let x = Vector::<f32, N>::cast_from(x[start + at]);
        let weight = Vector::<f32, N>::cast_from(weight[at]);
        let gradient = Vector::<f32, N>::cast_from(gradient[start + at]);
        squares += x * x;
        products += x * weight * gradient;
        at += CUBE_DIM_X as usize;
    }
    let scale = inverse_rms::<N>(squares, vectors, epsilon, &mut room);
    let width = (vectors * N::value()) as f32;
    let pull = row_sum(lanes_sum::<N>(products), &mut room) * scale * scale / width;
    if there {
        if UNIT_POS_X == 0 {
            scales[row] = scale;
        }
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let x = Vector::<f32, N>::cast_from(x[start + at]);
            let weight = Vector::<f32, N>::cast_from(weight[at]);
            let gradient = Vector::<f32, N>::cast_from(gradient[start + at]);
            let change = gradient * weight - Vector::new(pull) * x;
            out[start + at] = Vector::cast_from(Vector::new(scale) * change);
            at += CUBE_DIM_X as usize;
        }
    }
}

/// `Σ gradient · x · scale` over each block of rows.
#[cube(launch, address_type = "dynamic")]
pub(super) fn norm_weight_kernel<E: Float, N: Size>(
    x: &[Vector<E, N>],
    gradient: &[Vector<E, N>],
    scales: &[f32],
    out: &mut [Vector<f32, N>],
    rows: u32,
    vectors: u32,
    block: u32,
    units: u32,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units as usize {
        terminate!();
    }
    let vectors = vectors as usize;
    let column = ABSOLUTE_POS % vectors;
    let first = ABSOLUTE_POS / vectors * block as usize;
    let end = min(first + block as usize, rows as usize);
    let mut sum = Vector::<f32, N>::new(0.0);
    for row in first..end {
        let at = row * vectors + column;
        let x = Vector::<f32, N>::cast_from(x[at]);
        let gradient = Vector::<f32, N>::cast_from(gradient[at]);
        sum += gradient * x * Vector::new(scales[row]);
    }
    out[ABSOLUTE_POS] = sum;
}

#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    // Beyond 88 the exponential is infinite, and its inverse 0.
    Vector::new(1.0) / (Vector::new(1.0) + (-x).exp())
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn swiglu_kernel<E: Float, N: Size>(
    gate: &[Vector<E, N>],
    up: &[Vector<E, N>],
    out: &mut [Vector<E, N>],
    width: u32,
    step: u32,
    vectors: u32,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= vectors as usize {
        terminate!();
    }
    let width = width as usize;
    let at = ABSOLUTE_POS / width * step as usize + ABSOLUTE_POS % width;
    let gate = Vector::<f32, N>::cast_from(gate[at]);
    let up = Vector::<f32, N>::cast_from(up[at]);
    out[ABSOLUTE_POS] = Vector::cast_from(gate * sigmoid::<N>(gate) * up);
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn swiglu_backward_kernel<E: Float, N: Size>(
    gate: &[Vector<E, N>],
    up: &[Vector<E, N>],
    gradient: &[Vector<E, N>],
    by_gate: &mut [Vector<E, N>],
    by_up: &mut [Vector<E, N>],
    vectors: u32,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= vectors as usize {
        terminate!();
    }
    let gate = Vector::<f32, N>::cast_from(gate[ABSOLUTE_POS]);
    let up = Vector::<f32, N>::cast_from(up[ABSOLUTE_POS]);
    let gradient = Vector::<f32, N>::cast_from(gradient[ABSOLUTE_POS]);
    let sigmoid = sigmoid::<N>(gate);
    let one = Vector::<f32, N>::new(1.0);
    by_up[ABSOLUTE_POS] = Vector::cast_from(gradient * gate * sigmoid);
    let slope = sigmoid * (one + gate * (one - sigmoid));
    by_gate[ABSOLUTE_POS] = Vector::cast_from(gradient * up * slope);
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn rotate_kernel<E: Float, N: Size>(
    x: &[Vector<E, N>],
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    out: &mut [Vector<E, N>],
    places: Heads,
    half: u32,
    angles: u32,
    vectors: u32,
    turn: f32,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= vectors as usize {
        terminate!();
    }
    let half = half as usize;
    let (column, row) = (ABSOLUTE_POS % half, ABSOLUTE_POS / half);
    let from = start_of(&places, row) + column;
    let angle = (position_of(&places, row) * half + column) % angles as usize;
    let lower = Vector::<f32, N>::cast_from(x[from]);
    let upper = Vector::<f32, N>::cast_from(x[from + half]);
    let (cos, sin) = (cos[angle], sin[angle] * Vector::new(turn));
    let to = row * 2 * half + column;
    out[to] = Vector::cast_from(lower * cos - upper * sin);
    out[to + half] = Vector::cast_from(upper * cos + lower * sin);
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn added_at_kernel<N: Size>(
    more: &[Vector<f32, N>],
    sum: &mut [Vector<f32, N>],
    places: Heads,
    first: u32,
    width: u32,
    vectors: u32,
) {
    if ABSOLUTE_POS >= vectors as usize {
        terminate!();
    }
    let width = width as usize;
    let (row, column) = (ABSOLUTE_POS / width, ABSOLUTE_POS % width);
    let at = start_of(&places, row) + first as usize * places.seq_stride as usize + column;
    let there = sum[at];
    sum[at] = there + more[ABSOLUTE_POS];
}

/// Where the mask of a row of scores begins.
#[cube]
fn mask_start(places: &MaskPlaces, row: usize, vectors: usize) -> usize {
    let sequence = row / places.of_sequence as usize;
    let in_head = row % places.of_head as usize / places.sharing as usize;
    sequence % places.sequences as usize * places.step as usize + in_head * vectors
}

/// `e^(score - largest)`, and 0 where that is nothing in f32.
#[cube]
fn exponential<N: Size>(score: Vector<f32, N>, largest: f32) -> Vector<f32, N> {
    let shifted = score - Vector::new(largest);
    let counts = shifted.greater_than(&Vector::new(-87.0));
    select_many(counts, shifted.exp(), Vector::new(0.0))
}

/// The score that stands at `at`, times `scale`, with its mask, which stands at `mask_at`.
#[cube]
fn masked<E: Float, N: Size>(
    scores: &[Vector<E, N>],
    mask: &[Vector<f32, N>],
    at: usize,
    mask_at: usize,
    scale: f32,
    #[comptime] is_masked: bool,
) -> Vector<f32, N> {
    let mut score = Vector::<f32, N>::cast_from(scores[at]) * Vector::new(scale);
    if comptime!(is_masked) {
        score += mask[mask_at];
    }
    score
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn softmax_kernel<E: Float, W: Float, N: Size>(
    scores: &[Vector<E, N>],
    mask: &[Vector<f32, N>],
    out: &mut [Vector<W, N>],
    places: MaskPlaces,
    rows: u32,
    vectors: u32,
    scale: f32,
    #[comptime] is_masked: bool,
    #[comptime] units: usize,
    #[define(E, W)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let mask_start = mask_start(&places, row, vectors);
    let mut most = Vector::<f32, N>::new(f32::MIN);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let (own, own_mask) = (start + at, mask_start + at);
        let score = masked::<E, N>(scores, mask, own, own_mask, scale, is_masked);
        most = max(most, score);
        at += CUBE_DIM_X as usize;
    }
    let largest = row_max(lanes_max::<N>(most), &mut room);
    let mut sums = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let (own, own_mask) = (start + at, mask_start + at);
        let score = masked::<E, N>(scores, mask, own, own_mask, scale, is_masked);
        sums += exponential::<N>(score, largest);
        at += CUBE_DIM_X as usize;
    }
    let share = 1.0 / row_sum(lanes_sum::<N>(sums), &mut room);
    if there {
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let (own, own_mask) = (start + at, mask_start + at);
            let score = masked::<E, N>(scores, mask, own, own_mask, scale, is_masked);
            let weight = exponential::<N>(score, largest) * Vector::new(share);
            out[start + at] = Vector::cast_from(weight);
            at += CUBE_DIM_X as usize;
        }
    }
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn softmax_backward_kernel<W: Float, G: Float, E: Float, N: Size>(
    weights: &[Vector<W, N>],
    gradient: &[Vector<G, N>],
    out: &mut [Vector<E, N>],
    rows: u32,
    vectors: u32,
    scale: f32,
    #[comptime] units: usize,
    #[define(W, G, E)] _dtypes: [ElemType; 3],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let mut products = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let weight = Vector::<f32, N>::cast_from(weights[start + at]);
        products += weight * Vector::cast_from(gradient[start + at]);
        at += CUBE_DIM_X as usize;
    }
    let mean = row_sum(lanes_sum::<N>(products), &mut room);
    if there {
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let weight = Vector::<f32, N>::cast_from(weights[start + at]);
            let gradient = Vector::<f32, N>::cast_from(gradient[start + at]);
            let by_score = Vector::new(scale) * weight * (gradient - Vector::new(mean));
            out[start + at] = Vector::cast_from(by_score);
            at += CUBE_DIM_X as usize;
        }
    }
}

/// The score that stands at `at`, times `scale`, whose first key has the place `place`; the lowest number for keys in none of the row's
/// `count` ranges, the first of which stands at `start`.
#[cube]
fn seen<E: Float, N: Size>(
    scores: &[Vector<E, N>],
    ranges: &[f32],
    at: usize,
    place: usize,
    start: usize,
    count: usize,
    scale: f32,
) -> Vector<f32, N> {
    let score = Vector::<f32, N>::cast_from(scores[at]) * Vector::new(scale);
    let mut found = Vector::<f32, N>::new(f32::MIN);
    for range in 0..count {
        let first = ranges[start + 2 * range];
        let end = ranges[start + 2 * range + 1];
        #[unroll]
        for lane in 0..N::value() {
            let own = (place + lane) as f32;
            if own >= first && own < end {
                found.insert(lane, score.extract(lane));
            }
        }
    }
    found
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn exponentials_kernel<E: Float, W: Float, N: Size>(
    scores: &[Vector<E, N>],
    ranges: &[f32],
    floor: &[f32],
    out: &mut [Vector<W, N>],
    largest_out: &mut [f32],
    places: MaskPlaces,
    floors: Heads,
    first: u32,
    count: u32,
    rows: u32,
    vectors: u32,
    scale: f32,
    #[comptime] units: usize,
    #[define(E, W)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let (first, count) = (first as usize, count as usize);
    let ranges_start = mask_start(&places, row, 2 * count);
    let mut most = Vector::<f32, N>::new(floor[start_of(&floors, row)]);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let (own, place) = (start + at, first + at * N::value());
        let score = seen::<E, N>(scores, ranges, own, place, ranges_start, count, scale);
        most = max(most, score);
        at += CUBE_DIM_X as usize;
    }
    let largest = row_max(lanes_max::<N>(most), &mut room);
    if there {
        if UNIT_POS_X == 0 {
            largest_out[row] = largest;
        }
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let (own, place) = (start + at, first + at * N::value());
            let score = seen::<E, N>(scores, ranges, own, place, ranges_start, count, scale);
            let weight = exponential::<N>(score, largest);
            out[start + at] = Vector::cast_from(weight);
            at += CUBE_DIM_X as usize;
        }
    }
}
