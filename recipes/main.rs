//! The `spectrain` command.
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::ffi::c_long;
use std::process::ExitCode;

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

/// Large tensors come and go in every layer. The system's allocator gives the memory of each back to the kernel, which clears it
/// for the next one: up to half of the time that a small target takes.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mimalloc.h`'s option of this name: whether memory that nobody uses is taken from the process, or only offered to the kernel.
const PURGE_DECOMMITS: mi_option_t = 5;
/// The same of how long memory that nobody uses is kept before that, in milliseconds.
const PURGE_DELAY: mi_option_t = 15;
/// What sets them where a user wants them otherwise, and what they are here.
const OPTIONS: [(&str, mi_option_t, c_long); 2] = [
    ("MIMALLOC_PURGE_DECOMMITS", PURGE_DECOMMITS, 0),
    ("MIMALLOC_PURGE_DELAY", PURGE_DELAY, 1000),
];

fn main() -> ExitCode {
    keep_memory();
    spectrain::cli::main()
}

/// Has the kernel take memory that was freed only once nobody has wanted it for some seconds, and it has no other itself: else it is taken
/// after some milliseconds, and the next training step waits while it is cleared, a tenth of the step's time. Until then the kernel counts
/// it as the process's own.
fn keep_memory() {
    for (name, option, value) in OPTIONS {
        if std::env::var_os(name).is_none() {
            #[expect(unsafe_code, reason = "mimalloc is a C library")]
            // SAFETY: mimalloc checks the number of the option, and reads it when it gives memory back, in whatever thread.
            unsafe {
                mi_option_set(option, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn found(option: mi_option_t) -> c_long {
        #[expect(unsafe_code, reason = "mimalloc is a C library")]
        // SAFETY: as above.
        unsafe {
            libmimalloc_sys::mi_option_get(option)
        }
    }

    /// mimalloc reads its environment by name when a process starts.
    #[test]
    fn the_options_have_the_numbers_that_mimalloc_gives_them() {
        const ELSEWHERE: &str = "7";
        let is_elsewhere = |name| std::env::var(name).is_ok_and(|value| value == ELSEWHERE);
        if OPTIONS.iter().all(|(name, ..)| is_elsewhere(name)) {
            keep_memory();
            for (name, option, _) in OPTIONS {
                assert_eq!(found(option), 7, "what a user wants stays: {name}");
            }
            return;
        }
        let name = "tests::the_options_have_the_numbers_that_mimalloc_gives_them";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ended = again
            .args([name, "--exact"])
            .envs(OPTIONS.map(|(name, ..)| (name, ELSEWHERE)))
            .output();
        let ended = ended.unwrap();
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.status.success() && told.contains("1 passed"),
            "{told}"
        );
        keep_memory();
        for (name, option, value) in OPTIONS {
            assert_eq!(found(option), value, "{name}");
        }
    }
}
