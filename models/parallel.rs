//! Work on many things at a time.
use rayon::prelude::*;

/// Numbers that are worth a thread.
pub(crate) const WORTH_A_THREAD: usize = 1 << 14;

/// What `work` makes of each of `items`, in their order, on all threads that this program computes with.
pub fn in_parallel<I: Send, T: Send>(items: Vec<I>, work: impl Fn(I) -> T + Send + Sync) -> Vec<T> {
    items.into_par_iter().map(work).collect()
}

/// Calls `work` with each row of a `width` and its number, in all threads where that is worth it.
pub(crate) fn each_row<T: Send>(
    values: &mut [T],
    width: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let width = width.max(1);
    if values.len() <= WORTH_A_THREAD {
        for (number, row) in values.chunks_mut(width).enumerate() {
            work(number, row);
        }
        return;
    }
    (values.par_chunks_mut(width))
        .enumerate()
        .with_min_len(WORTH_A_THREAD / width.min(WORTH_A_THREAD))
        .for_each(|(number, row)| work(number, row));
}
