//! Reductions over the units of a row.
#![expect(missing_docs, reason = "`cube` makes modules beside the functions")]
#![expect(
    clippy::assign_op_pattern,
    reason = "`cube` assigns to places as a whole"
)]
use cubecl::prelude::*;

/// The sum of a vector.
#[cube]
pub fn lanes_sum<N: Size>(vector: Vector<f32, N>) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for lane in 0..N::value() {
        sum += vector.extract(lane);
    }
    sum
}

/// The largest number of a vector.
#[cube]
pub fn lanes_max<N: Size>(vector: Vector<f32, N>) -> f32 {
    let mut most = vector.extract(0usize);
    #[unroll]
    for lane in 0..N::value() {
        most = max(most, vector.extract(lane));
    }
    most
}

/// What the units of a row found together: the sum, or the largest. Every unit of the cube must call it.
#[cube]
fn row_reduced(value: f32, room: &mut Shared<[f32]>, #[comptime] is_sum: bool) -> f32 {
    // Others may still read what stood here.
    sync_cube();
    room[UNIT_POS as usize] = value;
    sync_cube();
    let mut active = CUBE_DIM_X / 2;
    while active > 0 {
        if UNIT_POS_X < active {
            let (here, there) = (UNIT_POS as usize, (UNIT_POS + active) as usize);
            if comptime!(is_sum) {
                room[here] = room[here] + room[there];
            } else {
                room[here] = max(room[here], room[there]);
            }
        }
        sync_cube();
        active /= 2;
    }
    room[(UNIT_POS_Y * CUBE_DIM_X) as usize]
}

/// The sum of what the units of a row found. Every unit of the cube must call it.
#[cube]
pub fn row_sum(value: f32, room: &mut Shared<[f32]>) -> f32 {
    row_reduced(value, room, true)
}

/// The largest of what the units of a row found. Every unit of the cube must call it.
#[cube]
pub fn row_max(value: f32, room: &mut Shared<[f32]>) -> f32 {
    row_reduced(value, room, false)
}

/// The squares that a unit adds up of the row of vectors that begins at `start`.
#[cube]
pub(crate) fn own_squares<E: Float, N: Size>(
    all: &[Vector<E, N>],
    start: usize,
    vectors: usize,
) -> Vector<f32, N> {
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let x = Vector::<f32, N>::cast_from(all[start + at]);
        squares += x * x;
        at += CUBE_DIM_X as usize;
    }
    squares
}

/// Numbers times `scale` and their weights, in their type.
#[cube]
pub(crate) fn normed<E: Float, W: Float, N: Size>(
    x: Vector<E, N>,
    weight: Vector<W, N>,
    scale: f32,
) -> Vector<E, N> {
    let (x, weight) = (
        Vector::<f32, N>::cast_from(x),
        Vector::<f32, N>::cast_from(weight),
    );
    Vector::<E, N>::cast_from(x * Vector::new(scale) * weight)
}

/// One over the root mean square of a row of `vectors`, of whose squares a unit summed `squares`. Every unit of the cube must call it.
#[cube]
pub fn inverse_rms<N: Size>(
    squares: Vector<f32, N>,
    vectors: usize,
    epsilon: f32,
    room: &mut Shared<[f32]>,
) -> f32 {
    let sum = row_sum(lanes_sum::<N>(squares), room);
    1.0 / (sum / (vectors * N::value()) as f32 + epsilon).sqrt()
}

/// The row of this unit, and whether there is one; where there is none it takes part with the first.
#[cube]
pub fn own_row(rows: u32) -> (usize, bool) {
    let row = CUBE_POS * CUBE_DIM_Y as usize + UNIT_POS_Y as usize;
    let there = row < rows as usize;
    (select(there, row, 0), there)
}

/// The largest of what the units of a row found, and the least index where it was found. Every unit of the cube must call it.
#[cube]
pub fn row_best(
    value: f32,
    index: u32,
    room: &mut Shared<[f32]>,
    indices: &mut Shared<[u32]>,
) -> (f32, u32) {
    sync_cube();
    room[UNIT_POS as usize] = value;
    indices[UNIT_POS as usize] = index;
    sync_cube();
    let mut active = CUBE_DIM_X / 2;
    while active > 0 {
        if UNIT_POS_X < active {
            let (here, there) = (UNIT_POS as usize, (UNIT_POS + active) as usize);
            let (one, other) = (room[here], room[there]);
            let (index, other_index) = (indices[here], indices[there]);
            if other > one || (other == one && other_index < index) {
                room[here] = other;
                indices[here] = other_index;
            }
        }
        sync_cube();
        active /= 2;
    }
    let first = (UNIT_POS_Y * CUBE_DIM_X) as usize;
    (room[first], indices[first])
}

/// The largest number of the row of vectors that begins at `start`, and its least index in it. Every unit of the cube must call it.
#[cube]
pub fn best_of<E: Float, N: Size>(
    all: &[Vector<E, N>],
    start: usize,
    vectors: usize,
    room: &mut Shared<[f32]>,
    indices: &mut Shared<[u32]>,
) -> (f32, u32) {
    let mut best = f32::new(f32::MIN);
    let mut index = 0u32;
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let vector = Vector::<f32, N>::cast_from(all[start + at]);
        #[unroll]
        for lane in 0..N::value() {
            let value = vector.extract(lane);
            if value > best {
                best = value;
                index = (at * N::value() + lane) as u32;
            }
        }
        at += CUBE_DIM_X as usize;
    }
    row_best(best, index, room, indices)
}
