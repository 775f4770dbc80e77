//! Products of factors that are rounded to bf16, by the tiles of Intel's AMX or by vectors that multiply pairs, as AMD's do; what is added
//! up is in f32.
//!
//! A tile has its numbers in an order of its own, so factors are laid out anew first, and rounded on the way: the shorter one once for all
//! threads, the longer one by each thread, a few panels at a time, which it then multiplies with all of the shorter one. A *lane* is
//! a row of the left factor or a column of the right one, a *panel* has [`SIDE`] lanes.
use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use self::block::SetUp;
use self::lanes::Lanes;
use self::line::{Line, SIDE, STEP};
use super::matrix::Factor;

pub(super) use self::block::Output;
pub(super) use self::permission::Tiles;

mod amx;
mod block;
mod lanes;
mod line;
mod permission;
mod vectors;

/// Numbers along the sum that are laid out at a time, about.
const SUMMED: usize = 1024;
/// Lines that are laid out for all threads at a time, about: as much as a core of these processors has a cache of its own for.
const SHARED: usize = (1 << 21) / size_of::<Line>();
/// Panels that a thread lays out for itself at a time, at most: half of that cache.
const OWN: usize = 16;
/// Times that each thread lays some out, at least: threads may be late.
const TURNS: usize = 4;
/// Multiplications that are worth laying factors out for.
const WORTH_LAYING_OUT: usize = 1 << 18;
/// Multiplications that are worth a second thread.
const WORTH_A_THREAD: usize = 1 << 21;

/// Whether tiles take less time than vectors for a product of these rows, numbers along the sum and columns: they have 32 rows and
/// columns, however few are there.
pub(super) fn pay(sizes: [usize; 3]) -> bool {
    let work: usize = sizes.iter().product();
    let padded: usize = sizes
        .map(|size| size.next_multiple_of(SIDE))
        .iter()
        .product();
    work >= WORTH_LAYING_OUT && padded <= 2 * work
}

/// Whether a product of so many numbers along the sum can be rounded as it is written: it is added up at once.
pub(super) fn may_round(summed: usize) -> bool {
    evenly(summed, SUMMED) >= summed
}

/// `lhs · rhs` to `output`, or added to what is there with `is_sum`; by all threads where they may share it.
///
/// # Safety
/// `output` is of as many rows as `lhs` has, and columns as `rhs` has; until this ends nobody else reads or writes there; with `is_sum`
/// all of it has been written.
///
/// # Panics
/// Factors do not go together, one lies behind the end of its numbers, or what is rounded is not added up at once.
#[expect(unsafe_code, reason = "threads write parts of one matrix")]
pub(super) unsafe fn multiply(
    tiles: Tiles,
    [lhs, rhs]: [Factor; 2],
    output: Output,
    is_sum: bool,
    is_shared: bool,
) {
    assert_eq!(lhs.columns, rhs.rows, "factors that do not go together");
    let work = lhs.rows * lhs.columns * rhs.columns;
    let product = Product {
        tiles,
        lanes: [Lanes::of_left(lhs), Lanes::of_right(rhs)],
        output,
        shorter: usize::from(lhs.rows > rhs.columns),
        by_threads: is_shared && work >= WORTH_A_THREAD,
    };
    let count = product.lanes[product.shorter].count();
    let summed = evenly(lhs.columns, SUMMED);
    let at_once = evenly(count, (SHARED / lines(summed)).max(1) * SIDE);
    for sum in parts(lhs.columns, summed) {
        for lanes in parts(count, at_once) {
            // SAFETY: the caller answers for it, and what was written in an earlier turn is there.
            unsafe { product.add(lanes, sum.clone(), is_sum || sum.start > 0) };
        }
    }
}

/// A product whose result has its place.
struct Product<'a> {
    tiles: Tiles,
    /// Of the left factor and of the right one.
    lanes: [Lanes<'a>; 2],
    output: Output,
    /// The one of them that is laid out for all threads.
    shorter: usize,
    by_threads: bool,
}

impl Product<'_> {
    /// What these lanes of the shorter factor and all of the longer one give over a part of the sum: written to its place, or added to
    /// what is there.
    ///
    /// # Safety
    /// See [`multiply`].
    #[expect(unsafe_code, reason = "threads write parts of one matrix")]
    unsafe fn add(&self, lanes: Range<usize>, sum: Range<usize>, is_sum: bool) {
        let (shorter, longer) = (&self.lanes[self.shorter], &self.lanes[1 - self.shorter]);
        let panel = lines(sum.len());
        let own: Vec<_> = parts(longer.count(), self.own_panels() * SIDE).collect();
        with_room(&FOR_ALL, lanes.len().div_ceil(SIDE) * panel, |shared| {
            self.each(
                shared.chunks_exact_mut(panel).enumerate().collect(),
                |(at, room)| {
                    let first = lanes.start + at * SIDE;
                    let lanes = first..(first + SIDE).min(lanes.end);
                    shorter.lay_out(self.tiles, lanes, sum.clone(), room);
                },
            );
            self.each(own, |own| {
                with_room(&FOR_ITSELF, own.len().div_ceil(SIDE) * panel, |room| {
                    longer.lay_out(self.tiles, own.clone(), sum.clone(), room);
                    let factors = [(lanes.start, &*shared), (own.start, &*room)];
                    // SAFETY: no other thread has these lanes of the longer factor; the caller answers for the rest.
                    unsafe { self.add_panels(factors, panel, is_sum) };
                });
            });
        });
    }

    /// Panels of the longer factor that a thread lays out at a time.
    fn own_panels(&self) -> usize {
        let all = self.lanes[1 - self.shorter].count().div_ceil(SIDE);
        let threads = match self.by_threads {
            true => rayon::current_num_threads(),
            false => 1,
        };
        all.div_ceil(all.div_ceil(OWN).max(TURNS * threads))
    }

    /// The same of panels of both that are laid out, each with the first of its lanes.
    ///
    /// # Safety
    /// See [`multiply`].
    #[expect(unsafe_code, reason = "threads write parts of one matrix")]
    unsafe fn add_panels(&self, factors: [(usize, &[Line]); 2], panel: usize, is_sum: bool) {
        let (left, right) = (factors[self.shorter], factors[1 - self.shorter]);
        let set_up = SetUp::new(self.tiles);
        for (row, left) in (left.0..).step_by(SIDE).zip(left.1.chunks_exact(panel)) {
            for (column, right) in (right.0..).step_by(SIDE).zip(right.1.chunks_exact(panel)) {
                // SAFETY: the caller answers for it.
                unsafe { (self.output).add(&set_up, [row, column], [left, right], is_sum) };
            }
        }
    }

    /// Works on each, by all threads where the product is shared.
    fn each<T: Send>(&self, all: Vec<T>, work: impl Fn(T) + Send + Sync) {
        match self.by_threads {
            true => all.into_par_iter().for_each(work),
            false => all.into_iter().for_each(work),
        }
    }
}

/// Lines of a panel of so many numbers along the sum.
fn lines(summed: usize) -> usize {
    summed.div_ceil(SIDE) * STEP
}

/// The size of parts, all but the last one equal, which is a multiple of [`SIDE`] and about `usual`: somewhat more where that leaves one part.
fn evenly(count: usize, usual: usize) -> usize {
    let parts = ((count + usual / 2) / usual).max(1);
    count.div_ceil(parts).next_multiple_of(SIDE)
}

/// So many numbers in parts of a size.
fn parts(count: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..count).step_by(size);
    starts.map(move |start| start..(start + size).min(count))
}

/// Memory that a thread keeps from product to product.
type Room = std::thread::LocalKey<Cell<Vec<Line>>>;

thread_local! {
    static FOR_ALL: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static FOR_ITSELF: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Works with so many lines of whatever content. Where a thread takes up another product within it, that one gets memory of its own.
fn with_room(room: &'static Room, count: usize, work: impl FnOnce(&mut [Line])) {
    let mut lines = room.take();
    if lines.len() < count {
        lines = vec![Line([0; 16]); count];
    }
    work(&mut lines[..count]);
    room.set(lines);
}

#[cfg(test)]
mod tests;
