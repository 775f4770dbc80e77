//! Sends what a run has found to a tracking server, from where the last time ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use spectrain_checkpoints::hash::sha256_bytes;

use super::figures::{self, Figure};
use super::mlflow::Mlflow;
use super::server::{NewRun, Server};
use super::trackio::Trackio;
use super::wandb::{self, Whole};
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::{TrackTable, Tracker};
use crate::runs::files::write_json;

/// The file of a run that says what was sent.
const FILE: &str = "track.json";

/// What a server has of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Sent {
    /// The server's address and the experiment.
    server: String,
    experiment: String,
    /// What the run is called there, before and after it is made.
    tag: String,
    run: Option<String>,
    /// Whether it has the settings.
    settings: bool,
    /// Lines of each training stage.
    lines: BTreeMap<String, usize>,
    /// Digest of the report.
    report: Option<String>,
}

/// What was sent now, or written to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// Figures.
    pub figures: usize,
    /// Whether the report's are among them.
    pub report: bool,
    /// Where they are.
    pub place: Place,
}

/// Where figures are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On a server at this address.
    Server(String),
    /// In this file of Weights & Biases.
    File(PathBuf),
}

/// Sends what a tracker does not have yet of the run in a folder.
///
/// # Errors
/// A server does not answer or refuses. What it has got until then is not sent again. A file cannot be written.
pub fn sync(run: &Path, recipe: &ResolvedRecipe, track: &TrackTable) -> Result<Synced> {
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    match track.tracker()? {
        Tracker::Mlflow(address) => send(
            &Mlflow::new(address),
            (address, &track.experiment),
            (run, &name),
            recipe,
        ),
        Tracker::Trackio(address) => send(
            &Trackio::new(address, &track.experiment, &name),
            (address, &track.experiment),
            (run, &name),
            recipe,
        ),
        Tracker::Wandb => write_whole(run, &name, recipe, &track.experiment),
    }
}

/// Sends what a server does not have yet.
fn send(
    server: &dyn Server,
    (address, experiment): (&str, &str),
    (run, name): (&Path, &str),
    recipe: &ResolvedRecipe,
) -> Result<Synced> {
    let path = run.join(FILE);
    let mut sent = read(&path, run, address, experiment)?;
    let id = begin(server, &mut sent, &path, (name, &recipe.recipe))?;
    if !sent.settings {
        server.settings(&id, &figures::settings(recipe))?;
        sent.settings = true;
        keep(&path, &sent)?;
    }
    let mut synced = Synced {
        figures: 0,
        report: false,
        place: Place::Server(address.to_owned()),
    };
    let stages = recipe.training_stages();
    for stage in &stages {
        let prefix = prefix(&stages, stage);
        let known = sent.lines.get(*stage).copied().unwrap_or(0);
        let lines = figures::lines(run, stage, &prefix, known);
        let all = lines.concat();
        if !lines.is_empty() {
            server.figures(&id, &all)?;
            sent.lines.insert((*stage).to_owned(), known + lines.len());
            keep(&path, &sent)?;
            synced.figures += all.len();
        }
    }
    if let Some((report, time)) = figures::report(run)? {
        let digest = sha256_bytes(report.to_json()?.as_bytes());
        if sent.report.as_ref() != Some(&digest) {
            let all = figures::of_report(&report, time);
            server.figures(&id, &all)?;
            server.finish(&id)?;
            sent.report = Some(digest);
            keep(&path, &sent)?;
            synced.figures += all.len();
            synced.report = true;
        }
    }
    Ok(synced)
}

/// What figures of a stage are called by: of several stages each counts its steps from 0.
fn prefix(stages: &[&str], stage: &str) -> String {
    match stages {
        [_] => String::new(),
        _ => format!("{stage}/"),
    }
}

/// Writes everything that a run has to say into a file of Weights & Biases.
fn write_whole(run: &Path, name: &str, recipe: &ResolvedRecipe, project: &str) -> Result<Synced> {
    let names = recipe.training_stages();
    let stages: Vec<Vec<Vec<Figure>>> = names
        .iter()
        .map(|stage| figures::lines(run, stage, &prefix(&names, stage), 0))
        .collect();
    let report = figures::report(run)?;
    let of_report = report
        .as_ref()
        .map_or_else(Vec::new, |(report, time)| figures::of_report(report, *time));
    let whole = Whole {
        new: NewRun {
            experiment: project,
            name,
            tag: &tag(run)?,
            recipe: &recipe.recipe,
        },
        recipe: &recipe.json,
        stages: &stages,
        report: &of_report,
    };
    Ok(Synced {
        figures: stages.iter().flatten().flatten().count() + of_report.len(),
        report: report.is_some(),
        place: Place::File(wandb::write(run, &whole)?),
    })
}

/// What was sent to this server and experiment; nothing where it was another.
fn read(path: &Path, run: &Path, server: &str, experiment: &str) -> Result<Sent> {
    let kept = match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| {
            format!(
                "cannot read in `{}` what was sent; delete this file to send everything again",
                path.display()
            )
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Sent::default(),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read `{}`", path.display()));
        }
    };
    if kept.server == server && kept.experiment == experiment {
        return Ok(kept);
    }
    Ok(Sent {
        server: server.to_owned(),
        experiment: experiment.to_owned(),
        tag: tag(run)?,
        ..Sent::default()
    })
}

/// A name that no other run has: of its folder and the time at which that was made.
fn tag(run: &Path) -> Result<String> {
    let made = std::fs::read_to_string(run.join("run.json"))
        .with_context(|| format!("`{}` is no run", run.display()))?;
    let place = std::path::absolute(run).unwrap_or_else(|_| PathBuf::from(run));
    let parts = format!("{}\n{made}", place.display());
    Ok(sha256_bytes(parts.as_bytes())[..16].to_owned())
}

/// The run's id on the server.
fn begin(
    server: &dyn Server,
    sent: &mut Sent,
    path: &Path,
    (name, recipe): (&str, &str),
) -> Result<String> {
    if let Some(id) = &sent.run {
        return Ok(id.clone());
    }
    // Before anything is asked: a run whose making is not known here is found again by its tag.
    keep(path, sent)?;
    let id = server.begin(&NewRun {
        experiment: &sent.experiment,
        name,
        tag: &sent.tag,
        recipe,
    })?;
    sent.run = Some(id.clone());
    keep(path, sent)?;
    Ok(id)
}

fn keep(path: &Path, sent: &Sent) -> Result<()> {
    write_json(path, &json!(sent))
}
