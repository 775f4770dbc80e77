//! `spectrain track`: a run's figures to a tracking server.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Subcommand;

use crate::cli::progress::print;
use crate::errors::Misuse;
use crate::recipe::read::read;
use crate::recipe::tables::{EXPERIMENT, TrackTable};
use crate::runs::run_folder::RunFolder;
use crate::tracking::sync::sync;

/// Commands of `spectrain track`.
#[derive(Debug, Subcommand)]
pub enum TrackCommand {
    /// Send what a tracking server does not have yet of a run
    Sync {
        /// The run: its name or its folder
        #[arg(value_name = "RUN")]
        run: String,
        /// Address of an MLflow tracking server, in place of the recipe's
        #[arg(long, value_name = "URL")]
        mlflow: Option<String>,
        /// The experiment, in place of the recipe's
        #[arg(long, value_name = "NAME")]
        experiment: Option<String>,
        /// The folder of runs
        #[arg(long, value_name = "DIR", default_value = "runs")]
        runs: PathBuf,
    },
}

/// Runs the command.
pub fn run(command: &TrackCommand) -> Result<()> {
    let TrackCommand::Sync {
        run,
        mlflow,
        experiment,
        runs,
    } = command;
    let folder = RunFolder::look(runs, run)?;
    let path = folder.join("recipe.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    let recipe = read(&text, &[]).with_context(|| format!("cannot read `{}`", path.display()))?;
    let own = recipe.track.clone();
    let address = mlflow
        .clone()
        .or_else(|| Some(own.as_ref()?.mlflow.clone()));
    let Some(address) = address else {
        let message =
            format!("the recipe of `{run}` has no `[track]`: name the server with `--mlflow`");
        return Err(Misuse(message).into());
    };
    let named = experiment.clone().or_else(|| Some(own?.experiment));
    let track = TrackTable {
        mlflow: address,
        experiment: named.unwrap_or_else(|| EXPERIMENT.to_owned()),
    };
    track
        .check()
        .map_err(|problem| Misuse(problem.within("track").to_string()))?;
    let synced = sync(&folder, &recipe, &track)?;
    let report = if synced.report {
        ", the report's among them"
    } else {
        ""
    };
    print(format!(
        "sent to `{}`: {} figures{report}\n",
        track.mlflow, synced.figures
    ))
}
