//! `spectrain completions`: what a shell needs to complete commands and options.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::progress::print;

/// Arguments of `spectrain completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for a shell that completes `command`.
pub fn run(arguments: &CompletionsArguments, mut command: Command) -> Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    print(String::from_utf8_lossy(&script))
}
