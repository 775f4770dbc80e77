//! Memory for results on the CPU, which is written by the threads that compute, and not cleared by one of them before.
use std::mem::MaybeUninit;

use crate::parallel::{WORTH_A_THREAD, each_row};

/// So many numbers, all of which `write` writes.
pub(crate) fn written<T>(count: usize, write: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut values = Vec::with_capacity(count);
    write(&mut values.spare_capacity_mut()[..count]);
    #[expect(
        unsafe_code,
        reason = "clearing what is written anyway takes as long as a product"
    )]
    // SAFETY: so many elements were allocated, and each of them was written.
    unsafe {
        values.set_len(count);
    }
    values
}

/// So many numbers in rows of a `width`, each written by `write`, which is given its number; in all threads where that is worth it.
pub(crate) fn written_rows<T: Send>(
    count: usize,
    width: usize,
    write: impl Fn(usize, &mut [MaybeUninit<T>]) + Sync,
) -> Vec<T> {
    written(count, |to| each_row(to, width, write))
}

/// The same of rows that are zeros at first.
pub(crate) fn rows_of_zeros(
    count: usize,
    width: usize,
    change: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    written_rows(count, width, |number, row| {
        row.fill(MaybeUninit::new(0.0));
        #[expect(unsafe_code, reason = "numbers that were just written are changed")]
        // SAFETY: all of it was written.
        change(number, unsafe { row.assume_init_mut() });
    })
}

/// So many zeros.
pub fn zeros(count: usize) -> Vec<f32> {
    rows_of_zeros(count, WORTH_A_THREAD, |_, _| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_written_once_whoever_writes_it() {
        // One row, a last row that is shorter, wider rows than a thread takes, and nothing at all.
        for (count, width) in [
            (7, 7),
            (300 * 301, 301),
            (50_000, 300),
            (100_000, 40_000),
            (0, 5),
        ] {
            let expected: Vec<f32> = (0..count).map(|at| (at / width) as f32).collect();
            let found = written_rows(count, width, |number, row| {
                row.fill(MaybeUninit::new(number as f32));
            });
            assert_eq!(found, expected, "{count} {width}");
            let found = rows_of_zeros(count, width, |number, row| {
                row.iter_mut().for_each(|value| *value += number as f32);
            });
            assert_eq!(found, expected, "{count} {width}");
            assert_eq!(zeros(count), vec![0.0; count]);
        }
    }
}
