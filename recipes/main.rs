//! The `spectrain` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    spectrain::cli::main()
}
