//! A drafter by what a user calls it: its folder, a run, or its id on the hub.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::hub::{RepoType, Repository};
use spectrain_checkpoints::near::near_file;
use spectrain_checkpoints::printable;

use crate::recipe::read::read;
use crate::runs::places::{EXPORTED, IMPORTED, trained};
use crate::runs::run_folder::{RunFolder, Status, manifest_in};
use crate::runs::stage_names;
use crate::runtime::target;
use crate::stages::outdated::outdated;

/// What a user may call a drafter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrafterAt {
    /// A folder with a drafter's configuration.
    Folder(PathBuf),
    /// The folder of a run.
    Run(PathBuf),
    /// A repository of the hub.
    Hub {
        /// `owner/name`.
        id: String,
        /// A branch, a tag or a commit.
        revision: Option<String>,
    },
}

/// Where a drafter is in what holds one, by its path from there.
const INSIDE: [&str; 3] = [EXPORTED, IMPORTED, "drafter"];
/// Folders above a wrong path in which a drafter is looked for.
const ABOVE: usize = 3;

/// The folder of the drafter that `given` names; `runs` is the folder of runs. Downloads what is missing.
pub fn folder_of(given: &str, runs: &Path) -> Result<PathBuf> {
    DrafterAt::find(given, runs)?.folder()
}

impl DrafterAt {
    /// What `given` names: a folder of a drafter or of a run, else a run in `runs`, else an id of the hub, which is not asked.
    pub fn find(given: &str, runs: &Path) -> Result<Self> {
        let path = Path::new(given);
        // A path has no place in `runs`.
        let named = RunFolder::look(runs, given).ok();
        match (Self::at(path), named) {
            (Some(Self::Run(at)), Some(run)) if same(&at, &run) => Ok(Self::Run(at)),
            (Some(_), Some(run)) => bail!(
                "`{given}` can mean the folder `./{given}` or the run `{}`; give one of these two paths",
                run.display()
            ),
            (Some(found), None) => Ok(found),
            (None, Some(run)) => Ok(Self::Run(run)),
            (None, None) => Self::on_hub(path, runs),
        }
    }

    /// What a path holds.
    fn at(path: &Path) -> Option<Self> {
        match path {
            path if path.as_os_str().is_empty() => None,
            // Whoever opens it says what is wrong with the link.
            path if path.is_symlink() && !path.exists() => Some(Self::Folder(path.to_owned())),
            path if path.join(CONFIG).is_file() => Some(Self::Folder(path.to_owned())),
            path if RunFolder::is_run(path) => Some(Self::Run(path.to_owned())),
            _ => None,
        }
    }

    /// The id that is left when nothing on the disk is meant.
    fn on_hub(path: &Path, runs: &Path) -> Result<Self> {
        let given = printable(&path.display().to_string());
        let near = suggestion(path, runs);
        if path.exists() {
            let what = if path.is_dir() {
                format!("it has no `{CONFIG}`, and is no run")
            } else {
                "it is a file".to_owned()
            };
            bail!("`{given}` holds no drafter: {what}{near}");
        }
        let repository = Repository::read(RepoType::Model, &given).ok();
        // What is in a folder of runs is not looked for among other people's models.
        let is_ours =
            path.parent().is_some_and(|parent| same(parent, runs)) || is_in_run(path, runs);
        let Some(repository) = repository.filter(|_| !is_ours) else {
            let is_id = is_ours && Repository::read(RepoType::Model, &given).is_ok();
            let run = match path.components().count() {
                1 => format!(", no run `{}`", runs.join(path).display()),
                _ => String::new(),
            };
            let hub = if is_id {
                ""
            } else {
                ", and this is no id of the hub (`owner/name`, or `owner/name@revision`)"
            };
            bail!("no drafter `{given}`: there is no such folder{run}{hub}{near}");
        };
        Ok(Self::Hub {
            id: repository.id().to_owned(),
            revision: given
                .contains('@')
                .then(|| repository.revision().to_owned()),
        })
    }

    /// The folder that holds the drafter: of a run the one that it exported or imported.
    pub fn folder(&self) -> Result<PathBuf> {
        match self {
            Self::Folder(folder) => Ok(folder.clone()),
            Self::Run(run) => of_run(run),
            Self::Hub { id, revision } => target::resolve_as("drafter", id, revision.as_deref()),
        }
    }

    /// What reports call it, where its folder is `folder`.
    pub fn name(&self, folder: &Path) -> String {
        match self {
            Self::Hub {
                id,
                revision: Some(revision),
            } => format!("{id}@{revision}"),
            Self::Hub { id, revision: None } => id.clone(),
            _ => folder.display().to_string(),
        }
    }
}

/// The drafter that a run has finished.
fn of_run(run: &Path) -> Result<PathBuf> {
    for (stage, drafter) in [
        (stage_names::IMPORT, IMPORTED),
        (stage_names::EXPORT, EXPORTED),
    ] {
        if !is_done(run, stage)? {
            continue;
        }
        let folder = run.join(drafter);
        if !folder.join(CONFIG).is_file() {
            bail!(
                "`{}`, which the stage `{stage}` wrote, is missing: run the stage again",
                folder.display()
            );
        }
        if let Some(told) = outdated(run, stage, &folder)? {
            tracing::warn!("{told}");
        }
        return Ok(folder);
    }
    if manifest_in(run, stage_names::IMPORT)?.is_some() {
        bail!("the import of `{}` is not finished", run.display());
    }
    let mut message = format!(
        "the run `{}` has not exported a drafter yet: run its recipe first",
        run.display()
    );
    if let Some(folder) = last_trained(run)? {
        message.push_str(&format!(
            "; what it has trained is in `{}`",
            folder.display()
        ));
    }
    bail!(message)
}

/// Whether a stage of a run is done.
pub fn is_done(run: &Path, stage: &str) -> Result<bool> {
    let manifest = manifest_in(run, stage)?;
    Ok(manifest.is_some_and(|manifest| manifest.status == Status::Done))
}

/// The drafter in f32 that the last training stage of a run has left, where that is done.
fn last_trained(run: &Path) -> Result<Option<PathBuf>> {
    // This is a hint in the message of an error: what else is wrong with the run is not what was asked.
    let text = std::fs::read_to_string(run.join("recipe.toml")).ok();
    let Some(recipe) = text.and_then(|text| read(&text, &[]).ok()) else {
        return Ok(None);
    };
    let stage = recipe.last_trained();
    Ok(is_done(run, stage)?.then(|| run.join(trained(stage))))
}

/// Where a drafter is near a path that holds none, as a question; empty where there is none.
fn suggestion(path: &Path, runs: &Path) -> String {
    let in_runs = &runs.join(path);
    // Of a path that is not there its parents may be; what it is relative to is none of them.
    let is_above = |path: &&Path| path.is_dir() && !same(path, runs) && !same(path, Path::new("."));
    let above = [path, in_runs].map(|path| path.ancestors().take(ABOVE).filter(is_above));
    let near = above.into_iter().flatten().find_map(|from| {
        let mut inside = INSIDE.iter().map(|inside| from.join(inside));
        inside.find(|path| path.join(CONFIG).is_file())
    });
    let near = near.or_else(|| newest_inside(path));
    if let Some(near) = near {
        return format!("; did you mean `{}`?", near.display());
    }
    let slips = [in_runs, path].map(near_file);
    let slip = slips.into_iter().find(|near| !near.is_empty());
    slip.unwrap_or_default()
}

/// The model that was written last in the folder of a training: other trainers leave one for each epoch or saved state.
fn newest_inside(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let configs = entries.filter_map(|entry| {
        let config = entry.path().join(CONFIG);
        let written = config.metadata().ok()?.modified().ok()?;
        Some((written, entry.path()))
    });
    configs.max().map(|(_, folder)| folder)
}

/// Whether a path, from here or from the folder of runs, leads into a run.
fn is_in_run(path: &Path, runs: &Path) -> bool {
    let in_runs = runs.join(path);
    let mut above = path.ancestors().chain(in_runs.ancestors());
    above.any(|above| !above.as_os_str().is_empty() && RunFolder::is_run(above))
}

fn same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}
