//! `spectrain track`: a run's figures to a tracker.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Subcommand;

use crate::errors::Misuse;
use crate::progress::print;
use crate::recipe::read::read;
use crate::recipe::tables::{EXPERIMENT, TrackTable};
use crate::runs::run_folder::RunFolder;
use crate::tracking::sync::{Place, sync};

/// Commands of `spectrain track`.
#[derive(Debug, Subcommand)]
pub enum TrackCommand {
    /// Send to a tracking server what it does not have yet of a run, or write a file for one
    Sync {
        /// The run: its name or its folder
        #[arg(value_name = "RUN")]
        run: String,
        /// Address of an MLflow tracking server, in place of the recipe's
        #[arg(long, value_name = "URL")]
        mlflow: Option<String>,
        /// Address of a trackio server, in place of the recipe's
        #[arg(long, value_name = "URL", conflicts_with = "mlflow")]
        trackio: Option<String>,
        /// Write a file that `wandb sync` sends, in place of the recipe's
        #[arg(long, conflicts_with_all = ["mlflow", "trackio"])]
        wandb: bool,
        /// The experiment or project, in place of the recipe's
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
        trackio,
        wandb,
        experiment,
        runs,
    } = command;
    let folder = RunFolder::find(runs, run)?;
    let path = folder.join("recipe.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    let recipe = read(&text, &[]).with_context(|| format!("cannot read `{}`", path.display()))?;
    let is_named = mlflow.is_some() || trackio.is_some() || *wandb;
    let mut track = match &recipe.track {
        Some(own) => own.clone(),
        None if is_named => TrackTable {
            mlflow: None,
            trackio: None,
            wandb: false,
            experiment: EXPERIMENT.to_owned(),
        },
        None => {
            let message = format!(
                "the recipe of `{run}` has no `[track]`: name the tracker with `--mlflow`, `--trackio` or `--wandb`"
            );
            return Err(Misuse(message).into());
        }
    };
    if is_named {
        (track.mlflow, track.trackio, track.wandb) = (mlflow.clone(), trackio.clone(), *wandb);
    }
    if let Some(experiment) = experiment {
        track.experiment.clone_from(experiment);
    }
    track
        .check()
        .map_err(|problem| Misuse(problem.within("track").to_string()))?;
    let synced = sync(&folder, &recipe, &track)?;
    let report = if synced.report {
        ", the report's among them"
    } else {
        ""
    };
    let done = match &synced.place {
        Place::Server(address) => format!("sent to `{address}`"),
        Place::File(file) => {
            let folder = file.parent().unwrap_or(file).display();
            format!("written for `wandb sync {folder}`")
        }
    };
    print(format!("{done}: {} figures{report}\n", synced.figures))
}
