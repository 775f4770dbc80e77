//! A device that runs out of memory: an error of the command, wherever that is noticed.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow};
use spectrain_models::out_of_memory::is_out_of_memory;

/// What whoever waits for a thread of a scope says of its panic, whatever that was.
const OF_A_THREAD: &str = "a scoped thread panicked";

/// Whether the last panic was that of a device without memory, those left out that only tell of another thread's.
static NOTICED: AtomicBool = AtomicBool::new(false);

/// Runs a command. What training says of it, and of the step, stays as it is.
pub(crate) fn as_error(run: impl FnOnce() -> Result<()>) -> Result<()> {
    hush();
    // Nothing of the command is used further.
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => done,
        Err(panic) if tells_of_no_memory(&*panic) => Err(anyhow!(
            "the device ran out of memory; `nvidia-smi` shows what else is on it"
        )),
        Err(panic) => panic::resume_unwind(panic),
    }
}

/// Whether a panic, by what it carries, is that of a device without memory, or tells of one on another thread.
fn tells_of_no_memory(panic: &(dyn Any + Send)) -> bool {
    match is_of_a_thread(panic) {
        true => NOTICED.load(Ordering::Relaxed),
        false => is_out_of_memory(panic),
    }
}

/// Whether a panic only tells of another thread's.
fn is_of_a_thread(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<&str>();
    text.is_some_and(|text| *text == OF_A_THREAD)
}

/// Has panics of a device without memory not printed, and all others as before.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let told = panic.payload();
            if !is_of_a_thread(told) {
                NOTICED.store(is_out_of_memory(told), Ordering::Relaxed);
            }
            if !tells_of_no_memory(told) {
                print(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use spectrain_models::out_of_memory::within_memory;

    use super::*;

    #[test]
    fn a_device_without_memory_is_an_error_and_a_bug_is_a_panic() {
        as_error(|| Ok(())).unwrap();
        let bug = || -> Result<()> { panic!("a bug") };
        panic::catch_unwind(|| as_error(bug).is_ok()).unwrap_err();
        let reads =
            || -> Result<()> { panic!("cannot read: out of device memory allocating 7 bytes") };
        let told = |run: &dyn Fn() -> Result<()>| as_error(run).unwrap_err().to_string();
        assert!(told(&reads).starts_with("the device ran out of memory"));
        // Of this panic whoever waits for the thread learns nothing.
        let elsewhere = |work: fn() -> Result<()>| -> Result<()> {
            std::thread::scope(|scope| {
                scope.spawn(work);
            });
            Ok(())
        };
        assert!(told(&|| elsewhere(reads)).starts_with("the device ran out of memory"));
        // A training that told of it explains no bug behind it, as of the next training of a sweep.
        let after = |work: fn() -> Result<()>| {
            move || {
                within_memory(reads).unwrap_err();
                elsewhere(work)
            }
        };
        panic::catch_unwind(|| as_error(after(bug)).is_ok()).unwrap_err();
        let here = || {
            within_memory(reads).unwrap_err();
            bug()
        };
        panic::catch_unwind(|| as_error(here).is_ok()).unwrap_err();
    }
}
