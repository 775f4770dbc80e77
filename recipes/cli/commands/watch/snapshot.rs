//! What a run looks like at one time.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use spectrain_eval::Report;
use spectrain_train::OF_EPOCHS;

use super::figures::{Figures, Followed};
use super::last_written::last_written;
use crate::recipe::read::read;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::run_folder::{Manifest, Status, is_held, manifest_in, stale};
use crate::runs::stage_names;
use crate::stages::stage::Stage;
use crate::stages::train::ended;
use crate::stages::unsaved::unsaved;
use crate::stages::{failure, order};

/// A run that is looked at again and again.
pub(super) struct Watched {
    folder: PathBuf,
    followed: Vec<(String, Followed)>,
    judged: Judged,
}

/// The manifests of the stages by their names, and which of these were stale then: to find it, files are read.
#[derive(Default)]
struct Judged {
    manifests: Vec<(&'static str, Option<Manifest>)>,
    stale: Vec<&'static str>,
}

/// What a run looks like.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    /// The run's name.
    pub(super) name: String,
    /// Its kind of recipe.
    pub(super) recipe: String,
    /// Every stage in order.
    pub(super) stages: Vec<(String, Seen)>,
    /// Where no process holds the run any more though a stage has begun.
    pub(super) stopped: Option<Stopped>,
    /// What is trained, or was trained last.
    pub(super) training: Option<Training>,
    /// τ of each way of decoding, once the run is judged.
    pub(super) results: Vec<String>,
}

/// A run that nobody works on.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stopped {
    /// The error with which it stopped; nothing of a run that was interrupted or killed.
    pub(super) error: Option<String>,
    /// When something was last written, in seconds since 1970.
    pub(super) last: Option<f64>,
    /// What becomes of a training that has begun and has saved no state: its name, and that it begins anew.
    pub(super) unsaved: Option<String>,
}

/// How far a stage is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Seen {
    /// It has not begun.
    Waiting,
    /// It has begun.
    Begun,
    /// It is done, in so many seconds.
    Done(Option<f64>),
    /// It is done, but what it left is not that of the run as it is now.
    Stale,
}

/// A training.
#[derive(Debug, Clone, Default)]
pub(super) struct Training {
    /// Its stage.
    pub(super) stage: String,
    /// Steps it takes, where that is known before they are counted in epochs.
    pub(super) steps: Option<u64>,
    /// Whether it is done.
    pub(super) done: bool,
    /// The step behind which `train.patience` ended it before its last one.
    pub(super) ended: Option<u64>,
    /// What it has logged.
    pub(super) figures: Figures,
}

impl Watched {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            followed: Vec::new(),
            judged: Judged::default(),
        }
    }

    /// Looks at it now.
    ///
    /// # Errors
    /// A file of the run cannot be read.
    pub(super) fn look(&mut self) -> Result<Snapshot> {
        let path = self.folder.join("recipe.toml");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let recipe = read(&text, &[]).with_context(|| format!("`{}`", path.display()))?;
        let mut snapshot = Snapshot {
            name: recipe.name.clone(),
            recipe: recipe.recipe.clone(),
            ..Snapshot::default()
        };
        let manifest = |stage: Stage| Ok((stage.name, manifest_in(&self.folder, stage.name)?));
        let stages = order::selected(&recipe, &[])?.into_iter();
        let manifests = stages.map(manifest).collect::<Result<Vec<_>>>()?;
        self.judged.update(&self.folder, &manifests);
        for (stage, manifest) in manifests {
            let seen = match self.judged.stale.contains(&stage) {
                true => Seen::Stale,
                false => seen(manifest.as_ref()),
            };
            snapshot.stages.push((stage.to_owned(), seen));
            let summary = manifest.as_ref().map(|manifest| &manifest.summary);
            let ended = summary.and_then(|summary| ended(&summary["fit"]));
            self.look_at_training(&recipe, stage, (seen, ended), &mut snapshot)?;
        }
        snapshot.stopped = self.stopped(&recipe, &snapshot.stages);
        snapshot.results = results(
            &self.folder,
            self.judged.stale.contains(&stage_names::EVALUATE),
        );
        Ok(snapshot)
    }

    /// What is known of the end of a run that stopped with an error, or some of whose stages have begun and are not done.
    fn stopped(&self, recipe: &ResolvedRecipe, stages: &[(String, Seen)]) -> Option<Stopped> {
        let begun = stages.iter().filter(|(_, seen)| *seen == Seen::Begun);
        let begun = begun.map(|(name, _)| (name, self.folder.join(name)));
        let begun: Vec<(&String, PathBuf)> = begun.collect();
        let error = failure::of_run(&self.folder);
        if (begun.is_empty() && error.is_none()) || is_held(&self.folder) {
            return None;
        }
        let last = begun.iter().filter_map(|(_, folder)| last_written(folder));
        let unsaved = begun.iter().find_map(|(name, folder)| {
            // What cannot be read of it the next run says.
            let told = unsaved(recipe, name, folder).ok()??;
            Some(format!("`{name}` {told}"))
        });
        Some(Stopped {
            error,
            last: last.reduce(f64::max),
            unsaved,
        })
    }

    /// The figures of a stage, where it trains and has begun; `ended` is the step behind which its validations ended it.
    fn look_at_training(
        &mut self,
        recipe: &ResolvedRecipe,
        stage: &str,
        (seen, ended): (Seen, Option<u64>),
        snapshot: &mut Snapshot,
    ) -> Result<()> {
        let steps = match &recipe.synthetic {
            Some(made) if stage == stage_names::SYNTHETIC => made.steps,
            _ if recipe.training_stages().contains(&stage) => recipe.training(stage).steps,
            _ => return Ok(()),
        };
        if seen == Seen::Waiting {
            return Ok(());
        }
        let inside = if stage == stage_names::SYNTHETIC {
            "synthetic/training"
        } else {
            stage
        };
        let path = self.folder.join(inside).join("events/metrics.jsonl");
        let known = self.followed.iter().position(|(of, _)| of == stage);
        let at = known.unwrap_or_else(|| {
            self.followed.push((stage.to_owned(), Followed::new(path)));
            self.followed.len() - 1
        });
        let followed = &mut self.followed[at].1;
        followed.update()?;
        let begun = followed.path().exists() || seen == Seen::Begun;
        if begun {
            let done = matches!(seen, Seen::Done(_) | Seen::Stale);
            snapshot.training = Some(Training {
                stage: stage.to_owned(),
                steps: (steps != OF_EPOCHS).then_some(steps as u64),
                done,
                ended: ended.filter(|_| done),
                figures: followed.figures.clone(),
            });
        }
        Ok(())
    }
}

impl Judged {
    /// Judges the stages of the run in `run` anew where one of their manifests has changed.
    fn update(&mut self, run: &Path, manifests: &[(&'static str, Option<Manifest>)]) {
        if self.manifests == manifests {
            return;
        }
        let is_done = |manifest: &Manifest| manifest.status == Status::Done;
        let done = manifests.iter();
        let done = done.filter(|(_, manifest)| manifest.as_ref().is_some_and(is_done));
        self.stale.clear();
        let mut is_known = true;
        for stage in done.map(|(stage, _)| *stage) {
            // What it was made from may be moved away just now.
            let why = stale(run, stage);
            is_known &= why.is_ok();
            if why.map_or(true, |why| why.is_some()) {
                self.stale.push(stage);
            }
        }
        // What could not be judged is judged again at the next look.
        self.manifests = match is_known {
            true => manifests.to_vec(),
            false => Vec::new(),
        };
    }
}

fn seen(manifest: Option<&Manifest>) -> Seen {
    match manifest {
        None => Seen::Waiting,
        Some(manifest) if manifest.status == Status::Done => Seen::Done(manifest.seconds),
        Some(_) => Seen::Begun,
    }
}

/// What the report of a run says of τ, and whether that is stale; nothing of a run without one, or with one that another version wrote.
fn results(run: &Path, is_stale: bool) -> Vec<String> {
    let text = std::fs::read_to_string(run.join("evaluate/report.json")).ok();
    let report = text.and_then(|text| Report::from_json(&text).ok());
    let settings = report.map(|report| report.settings).unwrap_or_default();
    let told = settings.iter().map(|setting| {
        let of = &setting.overall;
        let interval = of
            .tau_ci95
            .map(|[low, high]| format!(" [{low:.2}, {high:.2}]"));
        let tau = of.tau.map_or("–".to_owned(), |tau| format!("{tau:.2}"));
        format!(
            "{}: τ {tau}{}{}",
            setting.of_target(),
            interval.unwrap_or_default(),
            if is_stale { ", stale" } else { "" }
        )
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::*;
    use crate::runs::run_folder::{Existing, Inputs, RunFolder, RunName, Start};

    #[test]
    fn a_stage_is_stale_no_longer_than_what_it_was_made_from_cannot_be_read() {
        let root = tempfile::tempdir().unwrap();
        let name = RunName {
            root: root.path(),
            name: "a",
            recipe: "eagle3",
        };
        let run = RunFolder::open(name, "recipe = 1\n", Existing::Continue).unwrap();
        let done = |stage: &str, inputs: Inputs| {
            let start = Start {
                inputs,
                ..Start::default()
            };
            let manifest = run.start(stage, start).unwrap();
            fs::write(run.stage(stage).join("left"), stage).unwrap();
            run.finish(manifest, 1.0, Value::Null).unwrap();
        };
        done("prepare", Inputs::new());
        let left = run.sha256(&run.stage("prepare").join("left")).unwrap();
        done("train", Inputs::from([("`prepare/left`".to_owned(), left)]));
        let manifests = [("train", run.manifest("train").unwrap())];
        let mut judged = Judged::default();
        let mut stale = || {
            judged.update(run.path(), &manifests);
            judged.stale.clone()
        };
        let before = run.stage("prepare").join("manifest.json");
        let written = fs::read(&before).unwrap();
        fs::write(&before, "{").unwrap();
        assert_eq!(stale(), ["train"]);
        fs::write(&before, written).unwrap();
        assert_eq!(stale(), [""; 0]);
    }
}
