//! Work on many things at a time.
use rayon::prelude::*;

/// What `work` makes of each of `items`, in their order, on all threads that this program computes with.
pub fn in_parallel<I: Send, T: Send>(items: Vec<I>, work: impl Fn(I) -> T + Send + Sync) -> Vec<T> {
    items.into_par_iter().map(work).collect()
}
