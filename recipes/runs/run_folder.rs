//! `runs/<name>/`: one recipe's outputs, used by one process at a time, with a manifest for each stage.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;
use spectrain_checkpoints::atomic::{partial_path, write_file};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::near::near_file;
use spectrain_data::day::Day;
use spectrain_data::features::{Recorded, WrittenShard};

use crate::runs::files::{remove_whole, write_json};
use crate::runs::hashes::{HASHES, HashMemory};
use crate::runtime::writable::writable;

pub mod aside;
pub mod identity;
pub(crate) mod linked;
mod lock;
pub mod manifest;
mod outputs;
pub mod stale;
#[cfg(test)]
mod tests;

use aside::free_name;
pub(crate) use identity::check;
pub use identity::{Existing, RunName, check_name};
use identity::{RECIPE, RUN, Run, check_lockable, check_ours, restore};
use lock::lock;
pub(crate) use lock::{LOCK, is_held, lock_for};
pub use manifest::{
    CAPTURED_LAYERS, COMPUTED_IN, Damage, Earlier, FOLDER_OF_FEATURES, Inputs, Manifest,
    OWN_SAMPLING, PRINTED_DAY, REGENERATED_DATA, STOP_TOKENS, StageState, Status, TARGET,
    TARGET_NAME, TOKENIZER, Wanted, differences, manifest_in, stage_state,
};
pub use stale::{left_before, stale};

/// Fails where the folder of a run can be neither made nor written to.
pub(crate) fn check_writable(run: &Path) -> Result<()> {
    let refused = |error| anyhow!("{error:#}; name another folder with `--runs`");
    writable(run).map(drop).map_err(refused)
}

/// A folder that this process alone uses until the value is dropped.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    is_new: bool,
    /// The recipe that it is to be described by, resolved; none where that stays as it is.
    recipe: Option<String>,
    /// None where nothing may be written.
    lock: Option<File>,
    /// Hashes of large files, those that this process has learned, too.
    memory: Mutex<HashMemory>,
}

/// What a manifest says of a stage when it starts.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// The recipe's seed.
    pub seed: u64,
    /// See [`Manifest::settings`].
    pub settings: Value,
    /// See [`Manifest::inputs`].
    pub inputs: Inputs,
    /// See [`Manifest::history`].
    pub history: Vec<Earlier>,
    /// See [`Manifest::parts`].
    pub parts: Option<String>,
}

impl RunFolder {
    /// Opens or makes the folder and locks it. `toml` is the resolved recipe, which stands in a run that has another one once a stage
    /// is started with it: what is refused changes nothing.
    pub fn open(run: RunName, toml: &str, existing: Existing) -> Result<Self> {
        check_name(run.name)?;
        let path = run.root.join(run.name);
        check_lockable(&path)?;
        check_writable(&path)?;
        let mut lock = lock(&path)?;
        // Only now does nobody else change what is there.
        let mut is_new = !check_ours(&path, run, existing)?;
        if !is_new {
            restore(&path)?;
            call(&path, run.name)?;
        }
        if existing == Existing::SetAside && !is_new {
            let aside = free_name(&path);
            fs::rename(&path, &aside).with_context(|| {
                format!("cannot move `{}` to `{}`", path.display(), aside.display())
            })?;
            tracing::info!("moved `{}` to `{}`", path.display(), aside.display());
            lock = self::lock(&path)?;
            is_new = true;
        }
        for file in [RUN, RECIPE, HASHES] {
            // What a killed process was writing; that nothing was is the usual case.
            let _ = fs::remove_file(partial_path(&path.join(file)));
        }
        let folder = Self {
            memory: kept_memory(&path),
            path,
            is_new,
            recipe: Some(toml.to_owned()),
            lock: Some(lock),
        };
        folder.begin(run)?;
        Ok(folder)
    }

    /// Writes what every run has from its beginning, where it is not there.
    fn begin(&self, run: RunName) -> Result<()> {
        if !self.path.join(RUN).exists() {
            let description = Run {
                recipe: run.recipe.into(),
                name: run.name.into(),
                spectrain: env!("CARGO_PKG_VERSION").into(),
                created: now(),
                day: None,
            };
            write_json(&self.path.join(RUN), &description)?;
        }
        match self.path.join(RECIPE).exists() {
            true => Ok(()),
            false => self.describe(),
        }
    }

    /// Describes the run by the recipe that it was opened with, where it was opened with one. That may change between two calls; the
    /// manifests tell what each stage was made from.
    pub fn describe(&self) -> Result<()> {
        let Some(toml) = &self.recipe else {
            return Ok(());
        };
        let recipe = self.path.join(RECIPE);
        if fs::read_to_string(&recipe).ok().as_ref() != Some(toml) {
            write_file(&recipe, toml.as_bytes())?;
        }
        Ok(())
    }

    /// Locks the folder of a run that is there.
    pub fn existing(root: &Path, name: &str) -> Result<Self> {
        let path = Self::look(root, name)?;
        let lock = lock(&path)?;
        Ok(Self {
            memory: kept_memory(&path),
            path,
            is_new: false,
            recipe: None,
            lock: Some(lock),
        })
    }

    /// A run that is there, of whose files nothing is written, so that other processes may use it, too.
    pub fn shared(root: &Path, name: &str) -> Result<Self> {
        Self::look(root, name).map(Self::unlocked)
    }

    /// A run that another process may use, or that may not be there: nothing is written to it.
    pub(crate) fn unlocked(path: PathBuf) -> Self {
        let mut memory = HashMemory::default();
        let kept = path.join(HASHES);
        memory.recall(&kept);
        // Whoever has locked the run may learn more.
        memory.ask(&HashMemory::read(&kept));
        Self {
            path,
            is_new: false,
            recipe: None,
            lock: None,
            memory: memory.into(),
        }
    }

    /// Whether this value has made the run.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Removes the whole run.
    pub fn discard(self) -> Result<()> {
        remove_whole(&self.path)
    }

    /// The folder of a run that another command reads; it is not locked.
    pub fn look(root: &Path, name: &str) -> Result<PathBuf> {
        check_name(name)?;
        let path = root.join(name);
        if !Self::is_run(&path) {
            let near = near_file(&path);
            let lost = match Run::rebuilt(&path) {
                Some(_) => ", but stages of one; the command that made it writes the file anew",
                None => "",
            };
            bail!(
                "`{}` is no run: it has no `{RUN}`{near}{lost}",
                path.display()
            );
        }
        Ok(path)
    }

    /// The same for what a user calls a run: its folder, or its name in `root`.
    pub fn find(root: &Path, given: &str) -> Result<PathBuf> {
        match Path::new(given) {
            folder if Self::is_run(folder) => Ok(folder.to_owned()),
            _ => Self::look(root, given),
        }
    }

    /// Whether a folder is a run's.
    pub fn is_run(path: &Path) -> bool {
        path.join(RUN).exists()
    }

    /// The run that has its drafter in a folder, `RUN/STAGE/drafter`.
    pub fn of_drafter(folder: &Path) -> Option<&Path> {
        let run = folder.parent().and_then(Path::parent);
        run.filter(|run| !run.as_os_str().is_empty() && Self::is_run(run))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The day that was noted for chat templates to take for today; none in a run of which nothing is rendered, or by an earlier
    /// version alone.
    pub(crate) fn day(&self) -> Option<Day> {
        Run::of(&self.path)?.day
    }

    /// Notes the day that chat templates take for today, by whoever has locked the run: it stays when what was rendered on it goes.
    pub(crate) fn note_day(&self, day: Day) -> Result<()> {
        match Run::of(&self.path) {
            Some(run) if self.lock.is_some() && run.day != Some(day) => {
                let day = Some(day);
                write_json(&self.path.join(RUN), &Run { day, ..run })
            }
            _ => Ok(()),
        }
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
    pub fn stage_state(&self, stage: &str, wanted: Wanted) -> Result<StageState> {
        let state = stage_state(&self.path, stage, wanted)?;
        if !matches!(state, StageState::Done(_)) {
            return Ok(state);
        }
        let left = self
            .manifest(stage)?
            .map_or_else(Inputs::new, |done| done.outputs);
        let damage =
            self.with_memory(|memory| outputs::damage(&self.stage(stage), &left, memory))?;
        Ok(if damage.is_empty() {
            state
        } else {
            StageState::Damaged(damage)
        })
    }

    /// Marks a stage as started, and describes the run by its recipe. The stage's folder is there afterwards; what is in it stays, and
    /// with it the seconds that it took.
    pub fn start(&self, stage: &str, start: Start) -> Result<Manifest> {
        self.describe()?;
        let folder = self.stage(stage);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create `{}`", folder.display()))?;
        let before = self.manifest(stage)?;
        let seconds = before.as_ref().and_then(|old| old.seconds);
        let started = before.filter(|old| old.status == Status::Started);
        let manifest = Manifest {
            stage: stage.into(),
            status: Status::Started,
            settings: start.settings,
            history: start.history,
            inputs: start.inputs,
            parts: start.parts,
            outputs: Inputs::new(),
            spectrain: env!("CARGO_PKG_VERSION").into(),
            git_revision: git_revision(),
            seed: start.seed,
            started: started.map_or_else(now, |old| old.started),
            finished: None,
            seconds,
            summary: Value::Null,
        };
        manifest::write_manifest(&self.path, &manifest)?;
        Ok(manifest)
    }

    /// Adds the seconds of a session to a stage that is to go on in another one.
    pub fn pause(&self, mut manifest: Manifest, seconds: f64) -> Result<()> {
        manifest.took(seconds);
        manifest::write_manifest(&self.path, &manifest)
    }

    /// Marks a stage as done, with what it has left, after so many seconds in this session.
    pub fn finish(&self, mut manifest: Manifest, seconds: f64, summary: Value) -> Result<()> {
        manifest.status = Status::Done;
        manifest.finished = Some(now());
        manifest.took(seconds);
        manifest.summary = summary;
        let folder = self.stage(&manifest.stage);
        manifest.outputs = self.with_memory(|memory| outputs::of(&folder, memory))?;
        manifest::write_manifest(&self.path, &manifest)
    }

    /// Removes a stage's folder.
    pub fn clear(&self, stage: &str) -> Result<()> {
        let folder = self.stage(stage);
        if !folder.exists() {
            return Ok(());
        }
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove `{}`", folder.display()))
    }

    /// Moves a stage's folder, or something in it, to `<name>.old-N`, whose path is returned.
    pub fn set_aside(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let folder = self.path.join(path);
        let aside = free_name(&folder);
        self.rename(&folder, &aside)?;
        Ok(aside)
    }

    /// The names in the run under which a stage was set aside.
    pub fn asides(&self, stage: &str) -> Result<Vec<String>> {
        aside::of_stage(&self.path, stage)
    }

    /// Moves what was set aside of a stage back to its place, where nothing may be.
    pub fn take_back(&self, aside: &str, stage: &str) -> Result<()> {
        self.rename(&self.path.join(aside), &self.stage(stage))
    }

    /// Moves a file or folder of the run, and still knows its hashes.
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        // Hashes are known by whole paths, which nobody finds any more behind the move.
        let whole = fs::canonicalize(from).unwrap_or_else(|_| from.to_owned());
        fs::rename(from, to)
            .with_context(|| format!("cannot move `{}` to `{}`", from.display(), to.display()))?;
        // Whoever forgets what a file is reads it once more.
        let _ = self.with_memory(|memory| {
            let before = memory.clone();
            memory.adopt(&before, [&whole, to]);
            Ok(())
        });
        Ok(())
    }

    /// Sets aside what stands in the place of a model's folder and is none: no writer takes it for its own. Returns where it is
    /// then; nothing where the place is free, or a model is there, which a writer replaces.
    pub fn free_for_model(&self, path: impl AsRef<Path>) -> Result<Option<PathBuf>> {
        let folder = self.path.join(&path);
        let is_free = !folder.exists() || folder.join(CONFIG).exists();
        (!is_free).then(|| self.set_aside(path)).transpose()
    }

    /// Uses what is known of files. What is learned, even before an error, is kept for the next process; where nothing may be written,
    /// it is known to this one alone.
    fn with_memory<T>(&self, using: impl FnOnce(&mut HashMemory) -> Result<T>) -> Result<T> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.ask_again();
        let used = using(&mut memory);
        let kept = memory.write();
        used.and_then(|used| kept.map(|()| used))
    }

    /// Takes the SHA-256 of shards in a folder from who wrote them, perhaps long ago, so that they need not be read again as long as
    /// they look as they did then.
    pub(crate) fn remember_written(&self, folder: &Path, written: &[WrittenShard]) -> Result<()> {
        self.with_memory(|memory| {
            memory.remember_written(folder, written);
            Ok(())
        })
    }

    /// Takes the SHA-256 of files from whoever has just written them, so that they need not be read again.
    pub fn remember(&self, files: impl IntoIterator<Item = (PathBuf, String)>) -> Result<()> {
        self.with_memory(|memory| {
            let mut files = files.into_iter();
            files.try_for_each(|(path, sha256)| memory.remember(&path, &sha256))
        })
    }

    /// Knows what was kept in a folder outside of the stages, such as that of a part.
    pub(crate) fn recall_in(&self, folder: &Path) -> Result<()> {
        self.with_memory(|memory| {
            memory.recall(&folder.join(HASHES));
            Ok(())
        })
    }

    /// Keeps what is learned in a folder that this process has locked, where it has not locked the run.
    pub(crate) fn keep_in(&self, folder: &Path) -> Result<()> {
        self.with_memory(|memory| {
            if self.lock.is_none() {
                memory.keep_in(folder.join(HASHES));
            }
            Ok(())
        })
    }

    /// Fails unless files of features are as they are on record. Those that are known are not read.
    ///
    /// # Errors
    /// One is another, or cannot be read; the user asked to stop.
    pub fn prove(&self, files: &[Recorded]) -> Result<()> {
        self.with_memory(|memory| memory.prove(files))
    }

    /// Reads those of these files that are large and not known, several at a time.
    ///
    /// # Errors
    /// One cannot be read; the user asked to stop.
    pub(crate) fn learn(&self, files: impl IntoIterator<Item = PathBuf>) -> Result<()> {
        let files: Vec<PathBuf> = files.into_iter().collect();
        self.with_memory(|memory| memory.learn_each(files.iter().map(PathBuf::as_path)))
    }

    /// SHA-256 of a file, or of every file of a folder, remembered for files that have not changed since.
    pub fn sha256(&self, path: &Path) -> Result<String> {
        self.with_memory(|memory| memory.of(path))
    }

    /// SHA-256 of a drafter: its weights, and its configuration without what an evaluation found.
    pub fn sha256_of_drafter(&self, folder: &Path) -> Result<String> {
        self.with_memory(|memory| memory.of_drafter(folder))
    }

    /// SHA-256 of a language model: its weights, and its configuration without what an evaluation found.
    pub fn sha256_of_language_model(&self, folder: &Path) -> Result<String> {
        self.with_memory(|memory| memory.of_language_model(folder))
    }

    /// SHA-256 of several files, by their names and contents.
    pub fn sha256_of(&self, files: &[PathBuf]) -> Result<String> {
        self.with_memory(|memory| memory.of_all(files))
    }
}

/// What a run that is locked knows of files.
fn kept_memory(run: &Path) -> Mutex<HashMemory> {
    HashMemory::read(&run.join(HASHES)).into()
}

/// Has a run that was moved or copied go by the name of its folder, by which what it sets aside is known for its own.
fn call(path: &Path, name: &str) -> Result<()> {
    match Run::of(path) {
        Some(run) if run.name != name => {
            let name = name.to_owned();
            write_json(&path.join(RUN), &Run { name, ..run })
        }
        _ => Ok(()),
    }
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
