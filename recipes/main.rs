//! The `spectrain` command.
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::process::ExitCode;

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

/// Large tensors come and go in every layer. The system's allocator gives the memory of each back to the kernel, which clears it
/// for the next one: up to half of the time that a small target takes.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mimalloc.h`'s option of this name: whether memory that nobody uses is taken from the process, or only offered to the kernel.
const PURGE_DECOMMITS: mi_option_t = 5;
/// What sets it where a user wants it otherwise.
const BY_USER: &str = "MIMALLOC_PURGE_DECOMMITS";

fn main() -> ExitCode {
    keep_memory();
    spectrain::cli::main()
}

/// Has the kernel take memory that was freed only once it has no other: else it is taken after some milliseconds, and the next training
/// step waits while it is cleared, a tenth of the step's time. Until then the kernel counts it as the process's own.
fn keep_memory() {
    if std::env::var_os(BY_USER).is_none() {
        #[expect(unsafe_code, reason = "mimalloc is a C library")]
        // SAFETY: mimalloc checks the number of the option, and reads it when it gives memory back, in whatever thread.
        unsafe {
            mi_option_set(PURGE_DECOMMITS, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn found() -> std::ffi::c_long {
        #[expect(unsafe_code, reason = "mimalloc is a C library")]
        // SAFETY: as above.
        unsafe {
            libmimalloc_sys::mi_option_get(PURGE_DECOMMITS)
        }
    }

    /// mimalloc reads its environment by name when a process starts.
    #[test]
    fn the_option_has_the_number_that_mimalloc_gives_it() {
        const ELSEWHERE: &str = "7";
        if std::env::var(BY_USER).is_ok_and(|value| value == ELSEWHERE) {
            keep_memory();
            assert_eq!(found(), 7, "what a user wants stays");
            return;
        }
        let name = "tests::the_option_has_the_number_that_mimalloc_gives_it";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ended = again
            .args([name, "--exact"])
            .env(BY_USER, ELSEWHERE)
            .output();
        let ended = ended.unwrap();
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.status.success() && told.contains("1 passed"),
            "{told}"
        );
        keep_memory();
        assert_eq!(found(), 0);
    }
}
