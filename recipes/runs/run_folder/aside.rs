//! What was moved to `<name>.old-N`: runs that `--fresh` made room for, stages that started over, and outputs that were not
//! as they had been written. And what is left of them where their removal was killed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::identity::Run;
use super::lock::{is_held, try_lock};
use super::manifest::{JOURNAL, Manifest, manifest_in};
use crate::runs::files::{entries, remove_rest, remove_whole, removed};

/// What stands between a name and its number.
const ASIDE: &str = ".old-";

/// Something that was set aside.
#[derive(Debug)]
pub struct Aside {
    path: PathBuf,
    what: What,
}

/// What something is that was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A whole run, which somebody may have taken up.
    Run,
    /// A stage, or something in one.
    OfStage,
    /// What is left of either where its removal was killed.
    Rest,
}

/// Whether something could be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It was.
    Done,
    /// A process is at work in it.
    InUse,
}

/// The name that was set aside under `name`, if it is one.
fn original(name: &str) -> Option<&str> {
    let (original, number) = name.rsplit_once(ASIDE)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(original)
}

/// Whether something of this name was set aside.
pub(crate) fn is_aside(name: &str) -> bool {
    original(name).is_some()
}

/// Whether this is what is left of something that was set aside, whose removal was killed.
pub(super) fn is_rest(name: &str) -> bool {
    removed(name).is_some_and(is_aside)
}

/// `<path>.old-N` for the first N that is free.
pub(super) fn free_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    first_free(|n| path.with_file_name(format!("{name}{ASIDE}{n}")))
}

/// The first of the paths with the numbers from 1 on that is free.
pub(crate) fn first_free(candidate: impl Fn(usize) -> PathBuf) -> PathBuf {
    (1..)
        .map(&candidate)
        .find(|path| !path.exists())
        .unwrap_or_else(|| candidate(0))
}

/// All that was set aside for the run in `run` and by its stages in it, and what is left of such where its removal was killed. What
/// others have put there is none of it, whatever it is called; but of a rest only its name tells.
pub fn find(run: &Path) -> Result<Vec<Aside>> {
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    let root = match run.parent() {
        Some(root) if !root.as_os_str().is_empty() => root,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    for entry in entries(root)? {
        let path = root.join(&entry);
        let what = match removed(&entry) {
            // It was set aside, or it is what was there before under the run's own name.
            Some(of) if of == name || original(of) == Some(&name) => What::Rest,
            None if original(&entry) == Some(&name) && was_called(&path, &name) => What::Run,
            _ => continue,
        };
        found.push(Aside { path, what });
    }
    let (rests, names): (Vec<_>, Vec<_>) = entries(run)?.into_iter().partition(|n| is_rest(n));
    let (asides, stages): (Vec<_>, Vec<_>) = names.into_iter().partition(|n| is_aside(n));
    let asides = asides.into_iter().filter(|name| was_stage(run, name));
    let of_stages = asides.map(|name| (name, What::OfStage));
    let of_run = rests.into_iter().map(|name| (name, What::Rest));
    found.extend(of_run.chain(of_stages).map(|(name, what)| Aside {
        path: run.join(name),
        what,
    }));
    for stage in stages {
        found.extend(in_stage(run, &stage)?);
    }
    Ok(found)
}

/// What a stage of the run in `run` has set aside in its folder. Of what is no stage it is nothing.
fn in_stage(run: &Path, stage: &str) -> Result<Vec<Aside>> {
    let Some(manifest) = manifest_in(run, stage).ok().flatten() else {
        return Ok(Vec::new());
    };
    let (folder, left) = (run.join(stage), left_by(manifest));
    let is_own = |name: &str| left.contains(name) || name.ends_with(JOURNAL);
    let of = |name: String| {
        let (aside, what) = match removed(&name) {
            Some(aside) => (aside, What::Rest),
            None => (name.as_str(), What::OfStage),
        };
        let path = folder.join(&name);
        original(aside)
            .is_some_and(is_own)
            .then_some(Aside { path, what })
    };
    Ok(entries(&folder)?.into_iter().filter_map(of).collect())
}

/// What was set aside of a stage of the run in `run`, by its names there. Of a run that is not there it is nothing.
pub(super) fn of_stage(run: &Path, stage: &str) -> Result<Vec<String>> {
    if !run.is_dir() {
        return Ok(Vec::new());
    }
    let is_of_stage = |name: &String| original(name) == Some(stage) && was_stage(run, name);
    Ok(entries(run)?.into_iter().filter(is_of_stage).collect())
}

/// Whether what is called so in a run is a stage that was set aside: its manifest went with it.
fn was_stage(run: &Path, name: &str) -> bool {
    let manifest = manifest_in(run, name).ok().flatten();
    manifest.is_some_and(|manifest| Some(manifest.stage.as_str()) == original(name))
}

/// What a finished stage vouches for in its folder, by name. Of others nobody knows what they would leave, but for the journals that
/// they go on from.
fn left_by(manifest: Manifest) -> BTreeSet<String> {
    let outputs = manifest.outputs.into_iter();
    let tops = outputs.filter_map(|(file, _)| file.split(['/', '\\']).next().map(str::to_owned));
    tops.collect()
}

/// Whether the run in a folder had this name: a run may be called `a.old-1` from the start.
fn was_called(path: &Path, name: &str) -> bool {
    Run::of(path).is_some_and(|run| run.name == name)
}

impl Aside {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it takes.
    pub fn bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        let mut paths = vec![self.path.clone()];
        while let Some(path) = paths.pop() {
            let data = fs::symlink_metadata(&path)
                .with_context(|| format!("cannot read `{}`", path.display()))?;
            bytes += data.len();
            if data.is_dir() {
                paths.extend(entries(&path)?.iter().map(|name| path.join(name)));
            }
        }
        Ok(bytes)
    }

    /// Removes it.
    pub fn remove(self) -> Result<Removal> {
        match self.what {
            What::Run => {
                let Some(_held) = try_lock(&self.path)? else {
                    return Ok(Removal::InUse);
                };
                remove_whole(&self.path)?;
            }
            What::OfStage => remove_whole(&self.path)?,
            // Another process is at this removal.
            What::Rest if self.path.is_dir() && is_held(&self.path) => return Ok(Removal::InUse),
            What::Rest => remove_rest(&self.path)?,
        }
        Ok(Removal::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_in_a_number_was_set_aside() {
        for name in ["a.old-1", "train.old-20", "a.old-1.old-2"] {
            assert!(is_aside(name), "{name}");
        }
        for name in [
            "a",
            "a.old",
            "a.old-",
            "a.old-x",
            "a.old-1.partial",
            "old-1",
        ] {
            assert!(!is_aside(name), "{name}");
        }
        assert_eq!(original("a.old-1.old-2"), Some("a.old-1"));
    }
}
