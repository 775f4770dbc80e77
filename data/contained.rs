//! The one boundary at which a panic of another library becomes an error.
//!
//! Tokenizers, templates and shards come from anywhere, and the libraries that read them panic on some malformed ones
//! (an index beyond a table, a division by zero). What is read at this boundary is dropped when that happens, so nothing
//! half done is left behind. Panics elsewhere are bugs of this program and stay panics.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside of the boundary.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// What a library panicked with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("something that its library fails on: {0}")]
pub(crate) struct Panicked(String);

/// Runs what calls into another library. A panic there is returned, and not printed.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    hush();
    let before = INSIDE.replace(true);
    // The caller drops what `work` has borrowed mutably, or does not go on with it.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(before);
    outcome.map_err(|payload| Panicked(message(payload.as_ref())))
}

/// Has panics inside of the boundary not printed, and all others as before.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !INSIDE.get() {
                print(panic);
            }
        }));
    });
}

/// The first line of what a panic says.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("it does not say why");
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_first_line() {
        assert_eq!(contained(|| 3), Ok(3));
        let index = std::hint::black_box(7);
        let error = contained(|| [1, 2][index]).unwrap_err().to_string();
        assert!(error.ends_with("but the index is 7"), "{error}");
        let error = contained(|| panic!("one\ntwo")).unwrap_err();
        assert_eq!(error, Panicked("one".into()));
    }

    #[test]
    fn the_boundary_ends_where_it_ends() {
        _ = contained(|| {
            _ = contained(|| panic!("inner"));
            assert!(INSIDE.get());
        });
        assert!(!INSIDE.get());
    }
}
