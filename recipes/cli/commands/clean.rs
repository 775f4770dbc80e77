//! `spectrain clean`: what runs have set aside, removed.

use std::path::PathBuf;

use anyhow::{Result, bail};
use indicatif::HumanBytes;
use spectrain_checkpoints::printable;

use crate::progress::print;
use crate::runs::run_folder::{RunFolder, aside};

/// Arguments of `spectrain clean`.
#[derive(Debug, clap::Args)]
pub struct CleanArguments {
    /// The run's name
    #[arg(value_name = "RUN")]
    name: String,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
}

/// Runs the command: removes the runs that were moved aside for this one, and what stages of it have set aside.
pub fn run(arguments: &CleanArguments) -> Result<()> {
    let run = RunFolder::existing(&arguments.runs, &arguments.name)?;
    let found = aside::find(run.path())?;
    let mut in_use = Vec::new();
    for aside in found {
        let (path, bytes) = (aside.path().display().to_string(), aside.bytes()?);
        match aside.remove()? {
            aside::Removal::Done => {
                let path = printable(&path);
                print(format!("removed `{path}`: {}\n", HumanBytes(bytes)))?;
            }
            aside::Removal::InUse => in_use.push(format!("`{path}`")),
        }
    }
    if !in_use.is_empty() {
        bail!("in use by another run: {}", in_use.join(", "));
    }
    Ok(())
}
