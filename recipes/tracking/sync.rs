//! Sends what a run has found to a tracking server, from where the last time ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_eval::Report;

use super::figures::{self, Figure, Line, Logged};
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
    /// What it has of each training stage.
    stages: BTreeMap<String, SentLines>,
    /// Digest of the report.
    report: Option<String>,
    /// The folder of the run that was sent. Earlier versions did not say it.
    #[serde(default)]
    place: String,
}

/// The lines of a training that a server has: from its first one on, none left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct SentLines {
    /// When the training began: by it one is told from another that has started over.
    first: Logged,
    /// The step of the last one. How many lines there are says nothing: a training that goes on from a saved state may log at other
    /// steps than before.
    step: u64,
    /// How many lines of this step it has: a validation's is of the same as the training's.
    of_step: usize,
}

/// A training stage and what it has logged.
struct Trained {
    stage: &'static str,
    /// When it began; of an earlier version's training, when its first line was logged.
    begun: Option<Logged>,
    lines: Vec<Line>,
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
    let settings = figures::settings(recipe);
    let trained = trained(run, recipe);
    let mut sent = match sent_before(run, (address, experiment), &trained)? {
        Some(sent) => sent,
        None => Sent {
            server: address.to_owned(),
            experiment: experiment.to_owned(),
            tag: server_tag(run, &trained, &settings)?,
            place: place(run),
            ..Sent::default()
        },
    };
    let id = begin(server, &mut sent, &path, (name, &recipe.recipe))?;
    if !sent.settings {
        server.settings(&id, &settings)?;
        sent.settings = true;
        keep(&path, &sent)?;
    }
    let mut synced = Synced {
        figures: 0,
        report: false,
        place: Place::Server(address.to_owned()),
    };
    for training in &trained {
        let lines = sent.unsent(training.stage, &training.lines);
        let all: Vec<Figure> = lines.iter().flat_map(|line| line.figures.clone()).collect();
        if !lines.is_empty() {
            server.figures(&id, &all)?;
            sent.add(training, lines);
            keep(&path, &sent)?;
            synced.figures += all.len();
        }
    }
    if let Some((report, time)) = report(run, &trained)? {
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

impl Sent {
    /// Whether it is of a server and an experiment, and of these trainings, none of which has started over since.
    fn is_of(&self, (server, experiment): (&str, &str), trained: &[Trained]) -> bool {
        let is_same = |training: &Trained| {
            let known = self.stages.get(training.stage);
            let both = known.zip(training.begun);
            both.is_none_or(|(known, begun)| known.first == begun)
        };
        self.server == server && self.experiment == experiment && trained.iter().all(is_same)
    }

    /// Whether the run in this folder is a copy of one that is still there, whose run on the server this is.
    fn is_copied_to(&self, place: &str) -> bool {
        if self.place.is_empty() || self.place == place {
            return false;
        }
        // What cannot be read there is of no run that goes on.
        let there = kept(&Path::new(&self.place).join(FILE)).ok().flatten();
        there.is_some_and(|there| there.tag == self.tag)
    }

    /// The lines of a stage behind those that the server has.
    fn unsent<'a>(&self, stage: &str, lines: &'a [Line]) -> &'a [Line] {
        let Some(known) = self.stages.get(stage) else {
            return lines;
        };
        let before = lines.partition_point(|line| line.logged.step < known.step);
        let of_step = of_step(&lines[before..], known.step);
        &lines[before + of_step.min(known.of_step)..]
    }

    /// Adds lines of a stage that the server has by now, behind the others.
    fn add(&mut self, training: &Trained, lines: &[Line]) {
        let (Some(begun), Some(last)) = (training.begun, lines.last()) else {
            return;
        };
        let step = last.logged.step;
        let known = self.stages.get(training.stage);
        let before = known.filter(|known| known.step == step);
        let from = lines.partition_point(|line| line.logged.step < step);
        let sent = SentLines {
            first: begun,
            step,
            of_step: before.map_or(0, |known| known.of_step) + of_step(&lines[from..], step),
        };
        self.stages.insert(training.stage.to_owned(), sent);
    }
}

/// How many lines at the beginning are of this step.
fn of_step(lines: &[Line], step: u64) -> usize {
    lines.partition_point(|line| line.logged.step <= step)
}

/// The training stages of a run.
fn trained(run: &Path, recipe: &ResolvedRecipe) -> Vec<Trained> {
    let stages = recipe.training_stages();
    let trained = |&stage: &&'static str| {
        let lines = figures::lines(run, stage, &prefix(&stages, stage));
        let first = lines.first().map(|line| line.logged);
        Trained {
            stage,
            begun: figures::begun(run, stage).or(first),
            lines,
        }
    };
    stages.iter().map(trained).collect()
}

/// What figures of a stage are called by: of several stages each counts its steps from 0.
fn prefix(stages: &[&str], stage: &str) -> String {
    match stages {
        [_] => String::new(),
        _ => format!("{stage}/"),
    }
}

/// The report of these trainings and when it was written; none where it is of an earlier one, which has started over since.
fn report(run: &Path, trained: &[Trained]) -> Result<Option<(Report, i64)>> {
    let begun = trained.iter().filter_map(|training| training.begun);
    let begun = begun.map(|begun| begun.time).max();
    let report = figures::report(run)?;
    Ok(report.filter(|(_, time)| begun.is_none_or(|begun| begun <= *time)))
}

/// Writes everything that a run has to say into a file of Weights & Biases.
fn write_whole(run: &Path, name: &str, recipe: &ResolvedRecipe, project: &str) -> Result<Synced> {
    let trained = trained(run, recipe);
    let report = report(run, &trained)?;
    let of_report = report
        .as_ref()
        .map_or_else(Vec::new, |(report, time)| figures::of_report(report, *time));
    // Of several trainings the first one: the file may be written before the others have begun, and stays the same.
    let begun = trained.iter().find_map(|training| training.begun);
    let figures_of = |training: Trained| -> Vec<Figure> {
        let lines = training.lines.into_iter();
        lines.flat_map(|line| line.figures).collect()
    };
    let stages: Vec<Vec<Figure>> = trained.into_iter().map(figures_of).collect();
    let whole = Whole {
        new: NewRun {
            experiment: project,
            name,
            tag: &tag(run, &json!(begun))?,
            recipe: &recipe.recipe,
        },
        recipe: &recipe.json,
        stages: &stages,
        report: &of_report,
    };
    Ok(Synced {
        figures: stages.iter().flatten().count() + of_report.len(),
        report: report.is_some(),
        place: Place::File(wandb::write(run, &whole)?),
    })
}

/// What an experiment on a server has of a run with these trainings; nothing where it is of others, or of the run that this one is a
/// copy of.
fn sent_before(run: &Path, wanted: (&str, &str), trained: &[Trained]) -> Result<Option<Sent>> {
    let (path, place) = (run.join(FILE), place(run));
    let sent = kept(&path)?.filter(|sent| sent.is_of(wanted, trained));
    let Some(mut sent) = sent.filter(|sent| !sent.is_copied_to(&place)) else {
        return Ok(None);
    };
    if sent.place != place {
        sent.place = place;
        keep(&path, &sent)?;
    }
    Ok(Some(sent))
}

/// What was sent, by the file that says it, where there is one.
fn kept(path: &Path) -> Result<Option<Sent>> {
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map(Some).with_context(|| {
            format!(
                "cannot read in `{}` what was sent; delete this file to send everything again",
                path.display()
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read `{}`", path.display())),
    }
}

/// The tag of a run on a server, which keeps the settings that it is given first: of the same trainings under other settings it is
/// another run.
fn server_tag(run: &Path, trained: &[Trained], settings: &[(String, String)]) -> Result<String> {
    let begun: Vec<Option<Logged>> = trained.iter().map(|training| training.begun).collect();
    tag(run, &json!([begun, settings]))
}

/// The folder of a run, by whatever path it was reached.
fn place(run: &Path) -> String {
    let place = std::fs::canonicalize(run).or_else(|_| std::path::absolute(run));
    let place = place.unwrap_or_else(|_| run.to_owned());
    place.display().to_string()
}

/// A name that no other run has: of its folder, the time at which that was made, and what else tells it from others.
fn tag(run: &Path, more: &Value) -> Result<String> {
    let made = std::fs::read_to_string(run.join("run.json"))
        .with_context(|| format!("`{}` is no run", run.display()))?;
    let place = std::path::absolute(run).unwrap_or_else(|_| PathBuf::from(run));
    let parts = format!("{}\n{made}\n{more}", place.display());
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
