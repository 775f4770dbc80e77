//! `spectrain man`: a manual page of each command.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Command};

/// Arguments of `spectrain man`.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// The folder to write them into, such as `~/.local/share/man/man1`; created if it does not exist
    folder: PathBuf,
}

/// Writes a page of `command` and of each command below it.
pub fn run(arguments: &ManArguments, command: Command) -> Result<()> {
    let folder = &arguments.folder;
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    written.with_context(|| format!("cannot write pages into `{}`", folder.display()))
}
