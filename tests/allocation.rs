//! An allocator that remembers the largest single allocation, and the most that was allocated at a time.
#![expect(
    unsafe_code,
    reason = "an allocator is unsafe by nature; this one passes on to the system's"
)]
use std::alloc::{GlobalAlloc, Layout, System};
use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::thread;

/// Set for a process that runs one test.
const ALONE: &str = "SPECTRAIN_TEST_ALONE";

pub struct Counting;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
static HELD: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// Bytes more, or fewer, that are held now.
fn hold(change: isize) {
    let held = HELD.fetch_add(change, Ordering::Relaxed) + change;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        hold(layout.size() as isize);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        hold(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        hold(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Whether no other test runs in this process, so that what is allocated is this one's. Each has a process of its own with nextest.
pub fn is_alone() -> bool {
    let by_nextest =
        env::var("NEXTEST_EXECUTION_MODE").is_ok_and(|mode| mode == "process-per-test");
    by_nextest || env::var_os(ALONE).is_some()
}

/// Runs a test of what is allocated: where others run in this process, in a new one.
pub fn alone(test: impl FnOnce()) {
    let thread = thread::current();
    let name = match thread.name() {
        // One test after the other.
        None | Some("main") => return test(),
        Some(_) if is_alone() => return test(),
        Some(name) => name,
    };
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    let told = command.env(ALONE, "1").output().unwrap();
    let [stdout, stderr] =
        [&told.stdout, &told.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    print!("{stdout}");
    assert!(
        told.status.success() && stdout.contains("1 passed"),
        "{stderr}"
    );
}

/// Bytes of the largest allocation that any thread makes while `run` does.
pub fn largest_during(run: impl FnOnce()) -> usize {
    LARGEST.store(0, Ordering::SeqCst);
    run();
    LARGEST.load(Ordering::SeqCst)
}

/// The most bytes that are allocated at a time while `run` runs, beyond those allocated before.
pub fn peak_during(run: impl FnOnce()) -> usize {
    let before = HELD.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    run();
    usize::try_from(PEAK.load(Ordering::SeqCst) - before).unwrap_or(0)
}
