//! Work on items one by one by several threads, of which the results come in the order of the items.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The most threads that work: the one that brings items and takes results cannot serve more.
const MOST_THREADS: usize = 32;
/// Items that a thread is given at a time, at most.
const BLOCK: usize = 16;
/// The weight of items that a thread is given at a time, at most, but for the last of them.
const BLOCK_WEIGHT: usize = 1 << 20;
/// Blocks for each thread that are worked on, wait for that, or wait to be taken.
const BLOCKS_PER_THREAD: usize = 2;
/// Stack of a thread that works: as much as the first thread of a process has.
const STACK: usize = 8 << 20;

/// How many threads work where nothing else is said: one for each processor that this process may use, at most 32.
pub fn threads() -> NonZero<usize> {
    let most = NonZero::new(MOST_THREADS).unwrap_or(NonZero::<usize>::MIN);
    thread::available_parallelism().map_or(NonZero::<usize>::MIN, |found| found.min(most))
}

/// What is done with items, by how many threads.
pub(crate) struct InOrder<W, D> {
    /// How many threads work. One is this thread, and reads no item before the one before it is taken.
    pub(crate) threads: NonZero<usize>,
    /// About how many bytes an item takes: few large ones are there at a time.
    pub(crate) weight: W,
    /// What is made of an item.
    pub(crate) work: D,
}

impl<W, D> InOrder<W, D> {
    /// Gives what is made of each item to `take`, in the order of the items, until that fails. A bounded number of items is there at a
    /// time; `items` is asked for them, and `take` is called, in this thread.
    ///
    /// # Errors
    /// Those of `take`, behind which nothing is worked on.
    ///
    /// # Panics
    /// If `work` does: once what was made before that is taken, without reading on.
    pub(crate) fn run<T: Send, U: Send, E>(
        &self,
        mut items: impl Iterator<Item = T>,
        take: &mut dyn FnMut(U) -> Result<(), E>,
    ) -> Result<(), E>
    where
        W: Fn(&T) -> usize,
        D: Fn(T) -> U + Sync,
    {
        if self.threads.get() < 2 {
            return items.try_for_each(|item| take((self.work)(item)));
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (jobs, waiting) = channel();
            let waiting = Arc::new(Mutex::new(waiting));
            let mut threads = 0;
            for _ in 0..self.threads.get() {
                let (waiting, is_over, work) = (waiting.clone(), &is_over, &self.work);
                let thread = thread::Builder::new().stack_size(STACK);
                let begun = thread.spawn_scoped(scope, move || {
                    while let Some(job) = next(&waiting) {
                        do_job(job, work, is_over);
                    }
                });
                threads += usize::from(begun.is_ok());
            }
            // The jobs end with the last thread that takes them.
            drop(waiting);
            if threads == 0 {
                return items.try_for_each(|item| take((self.work)(item)));
            }
            let most = threads * BLOCKS_PER_THREAD;
            let taken = self.feed(&mut items, (&jobs, most), take);
            is_over.store(true, Ordering::Relaxed);
            taken
        })
    }

    /// Hands out items in blocks, of which at most so many are there at a time, and takes what is made of them.
    fn feed<T, U, E>(
        &self,
        items: &mut impl Iterator<Item = T>,
        (jobs, most): (&Sender<Job<T, U>>, usize),
        take: &mut dyn FnMut(U) -> Result<(), E>,
    ) -> Result<(), E>
    where
        W: Fn(&T) -> usize,
    {
        // With how many results are to come.
        let mut made: VecDeque<(Receiver<U>, usize)> = VecDeque::with_capacity(most);
        loop {
            let block = self.block(items);
            let is_last = block.is_empty();
            if !is_last {
                let (sender, receiver) = channel();
                made.push_back((receiver, block.len()));
                // Nobody takes it where all threads have panicked.
                drop(jobs.send((block, sender)));
            }
            while made.len() >= most || (is_last && !made.is_empty()) {
                let Some((results, mut missing)) = made.pop_front() else {
                    break;
                };
                for result in results {
                    take(result)?;
                    missing -= 1;
                }
                // Their thread has panicked, which is told when it is joined.
                if missing > 0 {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// The next items.
    fn block<T>(&self, items: &mut impl Iterator<Item = T>) -> Vec<T>
    where
        W: Fn(&T) -> usize,
    {
        let (mut block, mut weight) = (Vec::with_capacity(BLOCK), 0_usize);
        while block.len() < BLOCK && weight < BLOCK_WEIGHT {
            let Some(item) = items.next() else {
                break;
            };
            weight = weight.saturating_add((self.weight)(&item));
            block.push(item);
        }
        block
    }
}

/// Items, and where what is made of each goes.
type Job<T, U> = (Vec<T>, Sender<U>);

/// The next job; none once all are done.
fn next<T, U>(waiting: &Mutex<Receiver<Job<T, U>>>) -> Option<Job<T, U>> {
    let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.recv().ok()
}

/// Does a job, as far as it is still wanted.
fn do_job<T, U>((items, made): Job<T, U>, work: &impl Fn(T) -> U, is_over: &AtomicBool) {
    for item in items {
        if is_over.load(Ordering::Relaxed) || made.send(work(item)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    fn threads_of(count: usize) -> NonZero<usize> {
        NonZero::new(count).unwrap()
    }

    #[test]
    fn results_come_in_the_order_of_the_items_however_many_threads_work() {
        for threads in [1, 2, 3, 7] {
            for count in [0, 1, 15, 16, 17, 1000] {
                let squares = InOrder {
                    threads: threads_of(threads),
                    weight: |item: &u64| *item as usize * 1000,
                    work: |item: u64| {
                        // The first items of a block take longest.
                        (0..(17 - item % 17) * 100)
                            .fold(item * item, |x, y| std::hint::black_box(x ^ y) ^ y)
                    },
                };
                let mut found = Vec::new();
                let taken: Result<(), ()> = squares.run(0..count, &mut |square| {
                    found.push(square);
                    Ok(())
                });
                taken.unwrap();
                let expected: Vec<u64> = (0..count).map(|item| item * item).collect();
                assert_eq!(found, expected, "{threads} {count}");
            }
        }
    }

    #[test]
    fn nothing_is_taken_behind_an_error_and_few_items_are_read_behind_it() {
        let read = AtomicUsize::new(0);
        let items = (0_usize..1_000_000).inspect(|_| {
            read.fetch_add(1, Ordering::Relaxed);
        });
        let same = InOrder {
            threads: threads_of(3),
            weight: |_: &usize| 0,
            work: |item: usize| item,
        };
        let mut last = 0;
        let taken = same.run(items, &mut |item| {
            last = item;
            if item == 100 { Err(item) } else { Ok(()) }
        });
        assert_eq!((taken, last), (Err(100), 100));
        let most = 100 + BLOCK * (BLOCKS_PER_THREAD * 3 + 1);
        assert!(read.load(Ordering::Relaxed) <= most);
    }

    #[test]
    fn large_items_are_worked_on_one_at_a_time() {
        let (there, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let large = InOrder {
            threads: threads_of(2),
            weight: |_: &()| BLOCK_WEIGHT,
            work: |()| (),
        };
        let items = (0..100).map(|_| {
            let now = 1 + there.fetch_add(1, Ordering::Relaxed);
            most.fetch_max(now, Ordering::Relaxed);
        });
        let taken: Result<(), ()> = large.run(items, &mut |()| {
            there.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        });
        taken.unwrap();
        assert!(most.load(Ordering::Relaxed) <= 2 * BLOCKS_PER_THREAD);
    }

    #[test]
    fn one_thread_reads_no_item_before_the_one_before_it_is_taken() {
        let read = std::cell::Cell::new(0);
        let items = (1..=50).inspect(|item| read.set(*item));
        let same = InOrder {
            threads: threads_of(1),
            weight: |_: &usize| 0,
            work: |item: usize| item,
        };
        let taken: Result<(), ()> = same.run(items, &mut |item| {
            assert_eq!(read.get(), item);
            Ok(())
        });
        taken.unwrap();
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_of_a_thread_is_one_of_all() {
        let panics = InOrder {
            threads: threads_of(2),
            weight: |_: &usize| 0,
            work: |item: usize| assert!(item != 40, "at 40"),
        };
        let _: Result<(), ()> = panics.run(0..1000, &mut |()| Ok(()));
    }

    #[test]
    fn few_items_are_read_behind_a_panic() {
        for count in [2, 3] {
            let read = AtomicUsize::new(0);
            let items = (0_usize..1_000_000).inspect(|_| {
                read.fetch_add(1, Ordering::Relaxed);
            });
            // With the last of these all threads have panicked.
            let panics = InOrder {
                threads: threads_of(count),
                weight: |_: &usize| 0,
                work: |item: usize| assert!(item < 40, "at {item}"),
            };
            let run = || panics.run(items, &mut |()| Ok::<(), ()>(()));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let most = 40 + BLOCK * (BLOCKS_PER_THREAD * count + 1);
            assert!(read.load(Ordering::Relaxed) <= most, "{count}");
        }
    }
}
