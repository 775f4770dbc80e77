//! `runs/<name>/`: one recipe's outputs, used by one process at a time, with a manifest for each stage.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use spectrain_checkpoints::atomic::write_file;

use crate::hashes::HashMemory;

#[cfg(test)]
mod tests;

const LOCK: &str = ".lock";
const RUN: &str = "run.json";
const RECIPE: &str = "recipe.toml";
const MANIFEST: &str = "manifest.json";
const HASHES: &str = "hashes.json";

/// SHA-256 of what a stage reads, by a name for people.
pub type Inputs = BTreeMap<String, String>;

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

/// `run.json`, written when the folder is made.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Run {
    recipe: String,
    name: String,
    spectrain: String,
    created: u64,
}

/// A folder that this process alone uses until the value is dropped.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    _lock: File,
}

/// `manifest.json` of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The stage's name.
    pub stage: String,
    /// Whether its outputs are complete.
    pub status: Status,
    /// The part of the recipe that it reads.
    pub settings: Value,
    /// SHA-256 of everything else that it reads.
    pub inputs: Inputs,
    /// Version of this program.
    pub spectrain: String,
    /// Commit of the working directory, where that is a git repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_revision: Option<String>,
    /// The recipe's seed.
    pub seed: u64,
    /// When it was first started, in seconds since 1970, UTC.
    pub started: u64,
    /// When it was finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<u64>,
    /// Seconds that the process that finished it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What it did, in numbers.
    #[serde(default)]
    pub summary: Value,
}

/// Whether a stage's outputs are complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// They are not; the stage runs, or was interrupted.
    Started,
    /// They are.
    Done,
}

/// What a stage's folder holds, seen from the recipe as it is now.
#[derive(Debug, Clone, PartialEq)]
pub enum StageState {
    /// Finished from the same settings and inputs, with this summary.
    Done(Value),
    /// Started from the same settings and inputs.
    Interrupted,
    /// Made from others; each entry says what differs.
    Changed(Vec<String>),
    /// Nothing.
    Missing,
}

/// Refuses names that are no plain folder name.
pub fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let starts_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !starts_plain || !name.chars().all(plain) || name.len() > 128 {
        bail!(
            "expected a folder name of letters, digits, `-`, `_` and `.` that starts with a letter or digit, found `{name}`"
        );
    }
    Ok(())
}

impl RunFolder {
    /// Opens or makes the folder and locks it. `toml` is the resolved recipe.
    pub fn open(run: RunName, toml: &str, existing: Existing) -> Result<Self> {
        check_name(run.name)?;
        let path = run.root.join(run.name);
        if path.exists() {
            Self::check_ours(&path, run, existing)?;
        }
        let mut lock = lock(&path)?;
        if existing == Existing::SetAside && !is_unused(&path)? {
            let aside = free_name(&path);
            fs::rename(&path, &aside).with_context(|| {
                format!("cannot move `{}` to `{}`", path.display(), aside.display())
            })?;
            tracing::info!("moved `{}` to `{}`", path.display(), aside.display());
            lock = self::lock(&path)?;
        }
        let folder = Self { path, _lock: lock };
        folder.write_description(run, toml)?;
        Ok(folder)
    }

    fn write_description(&self, run: RunName, toml: &str) -> Result<()> {
        if !self.path.join(RUN).exists() {
            let description = Run {
                recipe: run.recipe.into(),
                name: run.name.into(),
                spectrain: env!("CARGO_PKG_VERSION").into(),
                created: now(),
            };
            write_json(&self.path.join(RUN), &description)?;
        }
        // The recipe may change between two calls; the manifests tell what each stage was made from.
        let recipe = self.path.join(RECIPE);
        if fs::read_to_string(&recipe).ok().as_deref() != Some(toml) {
            write_file(&recipe, toml.as_bytes())?;
        }
        Ok(())
    }

    fn check_ours(path: &Path, run: RunName, existing: Existing) -> Result<()> {
        const CHOICE: &str = "choose another `name`, or move it aside with `--fresh`";
        if !path.is_dir() {
            bail!("`{}` is a file; choose another `name`", path.display());
        }
        let description = path.join(RUN);
        if !description.exists() {
            if is_unused(path)? {
                return Ok(());
            }
            let found = entries(path)?;
            let shown = found
                .iter()
                .take(5)
                .map(|name| format!("`{name}`"))
                .collect::<Vec<_>>()
                .join(", ");
            // Not even `--fresh` moves a folder that was never a run.
            bail!(
                "`{}` is no run of this program: it has no `{RUN}` but {shown}; choose another `name`",
                path.display()
            );
        }
        if existing == Existing::SetAside {
            return Ok(());
        }
        let text = fs::read_to_string(&description)
            .with_context(|| format!("cannot read `{}`", description.display()))?;
        let found: Run = serde_json::from_str(&text)
            .with_context(|| format!("cannot read `{}`; {CHOICE}", description.display()))?;
        if found.recipe != run.recipe {
            bail!(
                "`{}` holds a run of the recipe `{}`, this is the recipe `{}`; {CHOICE}",
                path.display(),
                found.recipe,
                run.recipe
            );
        }
        Ok(())
    }

    /// The folder of a run that another command reads; it is not locked.
    pub fn look(root: &Path, name: &str) -> Result<PathBuf> {
        check_name(name)?;
        let path = root.join(name);
        match path.join(RUN).exists() {
            true => Ok(path),
            false => bail!("`{}` is no run: it has no `{RUN}`", path.display()),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of a stage.
    pub fn stage(&self, stage: &str) -> PathBuf {
        self.path.join(stage)
    }

    /// The manifest of a stage, if it was ever started.
    pub fn manifest(&self, stage: &str) -> Result<Option<Manifest>> {
        manifest_in(&self.path, stage)
    }

    /// Whether a stage has to run, and why.
    pub fn stage_state(
        &self,
        stage: &str,
        settings: &Value,
        inputs: &Inputs,
    ) -> Result<StageState> {
        stage_state(&self.path, stage, settings, inputs)
    }

    /// Marks a stage as started. Its folder is there afterwards; what is in it stays.
    pub fn start(
        &self,
        stage: &str,
        seed: u64,
        settings: Value,
        inputs: Inputs,
    ) -> Result<Manifest> {
        let folder = self.stage(stage);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create `{}`", folder.display()))?;
        let started = self
            .manifest(stage)?
            .filter(|old| old.status == Status::Started);
        let manifest = Manifest {
            stage: stage.into(),
            status: Status::Started,
            settings,
            inputs,
            spectrain: env!("CARGO_PKG_VERSION").into(),
            git_revision: git_revision(),
            seed,
            started: started.map_or_else(now, |old| old.started),
            finished: None,
            seconds: None,
            summary: Value::Null,
        };
        write_json(&folder.join(MANIFEST), &manifest)?;
        Ok(manifest)
    }

    /// Marks a stage as done.
    pub fn finish(&self, mut manifest: Manifest, seconds: f64, summary: Value) -> Result<()> {
        manifest.status = Status::Done;
        manifest.finished = Some(now());
        manifest.seconds = Some(seconds);
        manifest.summary = summary;
        write_json(&self.stage(&manifest.stage).join(MANIFEST), &manifest)
    }

    /// Removes a stage's folder.
    pub fn clear(&self, stage: &str) -> Result<()> {
        let folder = self.stage(stage);
        match folder.exists() {
            true => fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove `{}`", folder.display())),
            false => Ok(()),
        }
    }

    /// Moves a stage's folder to `<stage>.old-N`, whose path is returned.
    pub fn set_aside(&self, stage: &str) -> Result<PathBuf> {
        let folder = self.stage(stage);
        let aside = free_name(&folder);
        fs::rename(&folder, &aside).with_context(|| {
            format!(
                "cannot move `{}` to `{}`",
                folder.display(),
                aside.display()
            )
        })?;
        Ok(aside)
    }

    /// SHA-256 of a file, or of every file of a folder, remembered for files that have not changed since.
    pub fn sha256(&self, path: &Path) -> Result<String> {
        let mut memory = HashMemory::read(&self.path.join(HASHES));
        let hash = memory.of(path)?;
        memory.write()?;
        Ok(hash)
    }

    /// SHA-256 of a drafter: its weights, and its configuration without what an evaluation found.
    pub fn sha256_of_drafter(&self, folder: &Path) -> Result<String> {
        let mut memory = HashMemory::read(&self.path.join(HASHES));
        let hash = memory.of_drafter(folder)?;
        memory.write()?;
        Ok(hash)
    }

    /// SHA-256 of several files, by their names and contents.
    pub fn sha256_of(&self, files: &[PathBuf]) -> Result<String> {
        let mut memory = HashMemory::read(&self.path.join(HASHES));
        let hash = memory.of_all(files)?;
        memory.write()?;
        Ok(hash)
    }
}

/// See [`RunFolder::stage_state`]; `run` is the folder of the run.
pub fn stage_state(
    run: &Path,
    stage: &str,
    settings: &Value,
    inputs: &Inputs,
) -> Result<StageState> {
    let Some(manifest) = manifest_in(run, stage)? else {
        return Ok(StageState::Missing);
    };
    let mut changes = Vec::new();
    differences("", &manifest.settings, settings, &mut changes);
    let names: std::collections::BTreeSet<&String> =
        manifest.inputs.keys().chain(inputs.keys()).collect();
    for name in names {
        match (manifest.inputs.get(name), inputs.get(name)) {
            (Some(old), Some(new)) if old == new => {}
            (Some(_), Some(_)) => changes.push(format!("{name} has other contents")),
            (None, _) => changes.push(format!("{name} is a new input")),
            (_, None) => changes.push(format!("{name} is no input any more")),
        }
    }
    Ok(match (changes.is_empty(), manifest.status) {
        (false, _) => StageState::Changed(changes),
        (true, Status::Done) => StageState::Done(manifest.summary),
        (true, Status::Started) => StageState::Interrupted,
    })
}

/// The manifest of a stage of the run in `run`.
pub fn manifest_in(run: &Path, stage: &str) -> Result<Option<Manifest>> {
    let path = run.join(stage).join(MANIFEST);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read `{}`", path.display()));
        }
    };
    let manifest =
        serde_json::from_str(&text).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(Some(manifest))
}

/// The leaves at which two settings differ, as `a.b: 1 → 2`.
fn differences(path: &str, old: &Value, new: &Value, out: &mut Vec<String>) {
    if old == new {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (old, new) {
        let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let inner = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            let none = &Value::Null;
            differences(
                &inner,
                old.get(key).unwrap_or(none),
                new.get(key).unwrap_or(none),
                out,
            );
        }
        return;
    }
    let show = |value: &Value| match value {
        Value::Null => "nothing".to_owned(),
        value => value.to_string(),
    };
    out.push(format!("`{path}`: {} → {}", show(old), show(new)));
}

/// How often a lock is tried before another run is taken to hold it, and the time between.
const LOCK_TRIES: usize = 25;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Locks the folder, which is made if it is not there.
fn lock(folder: &Path) -> Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    let path = folder.join(LOCK);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.with_context(|| format!("cannot open `{}`", path.display()))?;
    // A program that this process or an ended run has just started holds the lock until it has replaced its own image.
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock `{}`", path.display()));
            }
        }
    }
    bail!(
        "`{}` is in use by another run; wait for it, stop it, or choose another `name`",
        folder.display()
    )
}

pub(crate) fn entries(folder: &Path) -> Result<Vec<String>> {
    let read = || -> std::io::Result<Vec<String>> {
        let names = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    };
    let mut names = read().with_context(|| format!("cannot read `{}`", folder.display()))?;
    names.sort();
    Ok(names)
}

/// Whether nothing but a lock is in the folder.
fn is_unused(folder: &Path) -> Result<bool> {
    Ok(entries(folder)?.iter().all(|name| name == LOCK))
}

/// `<path>.old-N` for the first N that is free.
fn free_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let candidate = |n: usize| path.with_file_name(format!("{name}.old-{n}"));
    (1..)
        .map(candidate)
        .find(|path| !path.exists())
        .unwrap_or_else(|| candidate(0))
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    text.push('\n');
    write_file(path, text.as_bytes()).map_err(Into::into)
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |passed| passed.as_secs())
}

fn git_revision() -> Option<String> {
    let output = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .output()
        .ok()?;
    let revision = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !revision.is_empty()).then_some(revision)
}
