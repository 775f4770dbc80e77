//! Matrices laid out by rows that lie by columns.
use std::mem::MaybeUninit;

use pulp::Arch;
use rayon::prelude::*;

use crate::vectorised;

/// Numbers in a line of the processor's cache.
const LINE: usize = 16;

/// Writes `to`, row after row, from the columns of a matrix, which stand one after the other in `from`, `stride` apart.
///
/// # Shapes
/// - from: `[columns, stride]`, of which the last column may end with its rows
/// - to: `[rows, columns]`
pub(super) fn turn(from: &[f32], stride: usize, columns: usize, to: &mut [MaybeUninit<f32>]) {
    let arch = Arch::new();
    let strips = to.par_chunks_mut(LINE * columns).enumerate();
    strips.for_each(|(strip, to)| {
        let from = &from[strip * LINE..];
        vectorised!(arch, turn_strip(from, stride, columns, to));
    });
}

/// The same for at most [`LINE`] rows.
#[inline(always)]
fn turn_strip(from: &[f32], stride: usize, columns: usize, to: &mut [MaybeUninit<f32>]) {
    let rows = to.len() / columns;
    for column in (0..columns).step_by(LINE) {
        let width = LINE.min(columns - column);
        let (from, to) = (&from[column * stride..], &mut to[column..]);
        if [rows, width] == [LINE; 2] {
            // The compiler unrolls what is of a size that it knows.
            turn_tile(from, stride, to, columns, [LINE; 2]);
        } else {
            turn_tile(from, stride, to, columns, [rows, width]);
        }
    }
}

/// At most [`LINE`] rows of at most as many columns, through a copy: so both sides are read and written line by line.
#[inline(always)]
fn turn_tile(
    from: &[f32],
    stride: usize,
    to: &mut [MaybeUninit<f32>],
    columns: usize,
    [rows, width]: [usize; 2],
) {
    let mut tile = [[0.0; LINE]; LINE];
    for column in 0..width {
        let values = &from[column * stride..][..rows];
        for (row, value) in tile.iter_mut().zip(values) {
            row[column] = *value;
        }
    }
    for (row, values) in tile[..rows].iter().enumerate() {
        to[row * columns..][..width].write_copy_of_slice(&values[..width]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_of_any_size_are_turned() {
        for (rows, columns, stride) in [
            (1, 1, 1),
            (16, 16, 16),
            (17, 15, 17),
            (15, 33, 40),
            (48, 20, 48),
        ] {
            let length = (columns - 1) * stride + rows;
            let from: Vec<f32> = (0..length).map(|at| at as f32).collect();
            let mut to = vec![MaybeUninit::new(f32::NAN); rows * columns];
            turn(&from, stride, columns, &mut to);
            for (at, found) in to.iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                #[expect(unsafe_code, reason = "what was written is read")]
                // SAFETY: all of it was made with a value.
                let found = unsafe { found.assume_init() };
                assert_eq!(found, from[column * stride + row], "{row} {column}");
            }
        }
    }
}
