//! The `spectrain` command.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Large tensors come and go in every layer. The system's allocator gives the memory of each back to the kernel, which clears it
/// for the next one: up to half of the time that a small target takes.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    spectrain::cli::main()
}
