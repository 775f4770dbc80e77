//! Whose a folder is: that of a run of this name and recipe, or of something else.

use std::fs;
use std::path::Path;

use anyhow::{Error, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use spectrain_checkpoints::atomic::partial_path;
use spectrain_data::day::Day;

use crate::errors::Misuse;
use crate::runs::files::{entries, write_json};
use crate::runs::run_folder::lock::LOCK;
use crate::runs::run_folder::manifest::{Manifest, manifest_in};

/// The file that tells whose a run is.
pub(super) const RUN: &str = "run.json";

/// The recipe of a run, resolved.
pub(super) const RECIPE: &str = "recipe.toml";

/// What is done with a folder that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Its finished stages are kept and its unfinished one goes on.
    Continue,
    /// It is moved to `<name>.old-N`.
    SetAside,
}

/// Which run a folder is for.
#[derive(Debug, Clone, Copy)]
pub struct RunName<'a> {
    /// The folder of runs.
    pub root: &'a Path,
    /// The folder's name.
    pub name: &'a str,
    /// The registry's name of the recipe.
    pub recipe: &'a str,
}

/// `run.json`, written when the folder is made, and again where the folder has another name or the run another day.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) recipe: String,
    pub(super) name: String,
    pub(super) spectrain: String,
    pub(super) created: u64,
    /// The day that chat templates take for today, once something of the run is rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) day: Option<Day>,
}

impl Run {
    /// What a folder says of its run; none where it says nothing that can be read.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        read(&folder.join(RUN)).ok()
    }

    /// What a folder says of its run without that file: in its recipe and in the manifests of its stages. None where no stage has one.
    pub(super) fn rebuilt(folder: &Path) -> Option<Self> {
        let manifests = manifests(folder);
        let first = manifests.iter().min_by_key(|manifest| manifest.started)?;
        Some(Self {
            recipe: recipe_of(folder, &manifests)?,
            name: folder.file_name()?.to_str()?.to_owned(),
            spectrain: first.spectrain.clone(),
            created: first.started,
            // The manifests tell it as well, to whoever asks for it.
            day: None,
        })
    }
}

/// The manifests of stages in a folder, as far as they can be read.
fn manifests(folder: &Path) -> Vec<Manifest> {
    let names = entries(folder).unwrap_or_default().into_iter();
    let of_stage = |name: String| {
        let manifest = manifest_in(folder, &name).ok().flatten();
        manifest.filter(|manifest| manifest.stage == name)
    };
    names.filter_map(of_stage).collect()
}

/// The recipe's name that a run's recipe has, or else one of its manifests.
fn recipe_of(folder: &Path, manifests: &[Manifest]) -> Option<String> {
    let text = fs::read_to_string(folder.join(RECIPE)).ok();
    let table = text.and_then(|text| text.parse::<toml::Table>().ok());
    let told = table.and_then(|table| Some(table.get("recipe")?.as_str()?.to_owned()));
    told.or_else(|| {
        let mut settings = manifests.iter().map(|manifest| &manifest.settings);
        settings.find_map(|settings| Some(settings["recipe"].as_str()?.to_owned()))
    })
}

/// Writes the file anew that tells whose a run is, where it is gone or damaged and the rest of the run tells it, too.
pub(super) fn restore(folder: &Path) -> Result<()> {
    let (None, Some(run)) = (Run::of(folder), Run::rebuilt(folder)) else {
        return Ok(());
    };
    let path = folder.join(RUN);
    write_json(&path, &run)?;
    let path = path.display();
    tracing::warn!(
        "`{path}` was gone or damaged; it is written anew from what the run's stages say"
    );
    Ok(())
}

/// Letters of a run's name, at most.
pub const LONGEST_NAME: usize = 128;

/// Refuses names that are no plain folder name.
pub fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let starts_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !starts_plain || !name.chars().all(plain) || name.len() > LONGEST_NAME {
        let message = format!(
            "expected a folder name of at most {LONGEST_NAME} letters, digits, `-`, `_` and `.` that starts with a letter or digit, found \
             `{name}`"
        );
        return Err(Misuse(message).into());
    }
    Ok(())
}

/// What a folder of this program holds from the moment at which it is made: a killed process may leave no more.
fn is_beginning(name: &str) -> bool {
    name == LOCK || Path::new(name) == partial_path(Path::new(RUN))
}

/// Fails where [`RunFolder::open`] would, but for a lock that another process holds.
pub(crate) fn check(run: RunName, existing: Existing) -> Result<()> {
    check_name(run.name)?;
    let path = run.root.join(run.name);
    if !path.exists() {
        return Ok(());
    }
    check_lockable(&path)?;
    check_ours(&path, run, existing).map(drop)
}

/// Fails where not even a lock may be put: on a file, or in a folder of something else.
pub(super) fn check_lockable(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    if !path.is_dir() {
        bail!("`{}` is a file; choose another `name`", path.display());
    }
    let found = entries(path)?;
    let is_run = found.iter().any(|name| name == RUN || is_beginning(name));
    if is_run || found.is_empty() || Run::rebuilt(path).is_some() {
        Ok(())
    } else {
        Err(not_ours(path, &found))
    }
}

/// Whether a folder that is locked holds a run, which must be of this recipe.
pub(super) fn check_ours(path: &Path, run: RunName, existing: Existing) -> Result<bool> {
    const CHOICE: &str = "choose another `name`, or move it aside with `--fresh`";
    let description = path.join(RUN);
    let rebuilt = || Run::rebuilt(path);
    if !description.exists() && rebuilt().is_none() {
        let found = entries(path)?;
        return if found.iter().all(|name| is_beginning(name)) {
            Ok(false)
        } else {
            Err(not_ours(path, &found))
        };
    }
    if existing == Existing::SetAside {
        return Ok(true);
    }
    let unreadable = |error: Error| {
        let would_do = json!({
            "recipe": run.recipe,
            "name": run.name,
            "spectrain": env!("CARGO_PKG_VERSION"),
            "created": 0,
        });
        error.context(format!(
            "cannot read `{}`; write `{would_do}` into it if this is a run of the recipe `{}`, {CHOICE}",
            description.display(),
            run.recipe
        ))
    };
    let found = match Run::of(path).or_else(rebuilt) {
        Some(found) => found,
        None => read(&description).map_err(unreadable)?,
    };
    if found.recipe != run.recipe {
        bail!(
            "`{}` holds a run of the recipe `{}`, this is the recipe `{}`; {CHOICE}",
            path.display(),
            found.recipe,
            run.recipe
        );
    }
    Ok(true)
}

/// What the file says that tells whose a run is, or why it does not.
fn read(description: &Path) -> Result<Run> {
    let text = fs::read_to_string(description)?;
    Ok(serde_json::from_str(&text)?)
}

/// Not even `--fresh` moves a folder that was never a run.
fn not_ours(path: &Path, found: &[String]) -> anyhow::Error {
    let others = found.iter().filter(|name| !is_beginning(name)).take(5);
    let shown: Vec<String> = others.map(|name| format!("`{name}`")).collect();
    anyhow::anyhow!(
        "`{}` is no run of this program: it has no `{RUN}` but {}; choose another `name`",
        path.display(),
        shown.join(", ")
    )
}
