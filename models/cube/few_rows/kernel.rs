//! What one unit does.
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// Columns that the units of a row of a cube take at a time: what they read of `x` serves all.
pub(super) const COLUMNS: usize = 2;

/// `out = x · weight`.
///
/// # Shapes
/// - x: `[rows, vectors]`
/// - weight: `[columns, vectors]`, the matrix turned
/// - out: `[rows, columns]`
#[cube(launch, address_type = "dynamic")]
pub(super) fn few_rows_kernel<E: Float, N: Size>(
    x: &[Vector<E, N>],
    weight: &[Vector<E, N>],
    out: &mut [E],
    columns: u32,
    vectors: u32,
    #[comptime] rows: usize,
    #[comptime] units: usize,
    #[define(E)] _dtype: ElemType,
) {
    let count = comptime!(rows * COLUMNS);
    let mut room = Shared::<[f32]>::new_slice(count * units);
    let (columns, vectors) = (columns as usize, vectors as usize);
    let first = (CUBE_POS * CUBE_DIM_Y as usize + UNIT_POS_Y as usize) * COLUMNS;
    let mut sums = Array::<f32>::new(count);
    #[unroll]
    for nth in 0..count {
        sums[nth] = 0.0f32;
    }
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let mut held = Array::<Vector<f32, N>>::new(COLUMNS);
        #[unroll]
        for column in 0..COLUMNS {
            // Where there is no more, the last is taken once more, and not written.
            let place = min(first + column, columns - 1);
            held[column] = Vector::<f32, N>::cast_from(weight[place * vectors + at]);
        }
        #[unroll]
        for row in 0..rows {
            let of_row = Vector::<f32, N>::cast_from(x[row * vectors + at]);
            #[unroll]
            for column in 0..COLUMNS {
                let nth = comptime!(row * COLUMNS + column);
                #[unroll]
                for lane in 0..N::value() {
                    sums[nth] = fma(of_row.extract(lane), held[column].extract(lane), sums[nth]);
                }
            }
        }
        at += CUBE_DIM_X as usize;
    }
    // All sums go down the same tree at a time.
    let own = UNIT_POS as usize;
    #[unroll]
    for nth in 0..count {
        room[nth * units + own] = sums[nth];
    }
    sync_cube();
    let mut active = CUBE_DIM_X / 2;
    while active > 0 {
        if UNIT_POS_X < active {
            #[unroll]
            for nth in 0..count {
                let here = nth * units + own;
                room[here] = room[here] + room[here + active as usize];
            }
        }
        sync_cube();
        active /= 2;
    }
    let mut nth = UNIT_POS_X as usize;
    while nth < count {
        let column = first + nth % COLUMNS;
        if column < columns {
            let sum = room[nth * units + (UNIT_POS_Y * CUBE_DIM_X) as usize];
            out[nth / COLUMNS * columns + column] = E::cast_from(sum);
        }
        nth += CUBE_DIM_X as usize;
    }
}
