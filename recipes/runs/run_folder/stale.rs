//! Whether what a finished stage has left still goes with the rest of the run, for commands that only read it.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::aside;
use super::identity::{RECIPE, RUN};
use super::manifest::{REGENERATED_DATA, Status, TARGET, TOKENIZER, manifest_in};
use crate::runs::hashes::{HASHES, HashMemory};
use crate::runs::places::{EXPORTED, MADE_TARGET, REGENERATED};
use crate::runs::stage_names::{REGENERATE, SYNTHETIC};
use crate::runtime::model_files::{part_files, text_files, weight_files};

/// Why the results of `stage` of the run in `run` are not those of the run as it is now, if they are not: a stage that they
/// rest on was started again, or left something else. Settings and files outside of the run are not looked at.
pub fn stale(run: &Path, stage: &str) -> Result<Option<String>> {
    let Some(manifest) = manifest_in(run, stage)? else {
        return Ok(Some(format!("the stage `{stage}` has not run")));
    };
    if manifest.status != Status::Done {
        return Ok(Some(started_again(stage)));
    }
    let is_made = stage != SYNTHETIC && makes_target(run)?;
    if is_made && let Some(why) = stale(run, SYNTHETIC)? {
        return Ok(Some(why));
    }
    let mut memory = HashMemory::read(&run.join(HASHES));
    for (name, sha256) in &manifest.inputs {
        let (path, now) = if let Some((before, path)) = output(name) {
            if before != stage
                && let Some(why) = stale(run, before)?
            {
                return Ok(Some(why));
            }
            (path, hash_of(run, path, &mut memory)?)
        } else if is_made && [TARGET, TOKENIZER].contains(&name.as_str()) {
            let now = hash_of_made(run, (name, sha256), &mut memory)?;
            (MADE_TARGET, now)
        } else {
            continue;
        };
        match now {
            None => {
                return Ok(Some(format!(
                    "`{path}`, which it was made from, is missing"
                )));
            }
            Some(now) if now != *sha256 => {
                return Ok(Some(format!("`{path}` has changed since")));
            }
            Some(_) => {}
        }
    }
    Ok(None)
}

fn started_again(stage: &str) -> String {
    format!("the stage `{stage}` was started again and is not done")
}

/// Why a path that leads into the folder of a stage leads to nothing, and where what it led to is now: the stage was started again and
/// has set that aside. Nothing of any other path.
pub fn left_before(path: &Path) -> Option<String> {
    let (name, folder) = (path.file_name()?, path.parent()?);
    let (stage, run) = (folder.file_name()?.to_str()?, folder.parent()?);
    if path.exists() || !run.join(RUN).exists() {
        return None;
    }
    let manifest = manifest_in(run, stage).ok().flatten()?;
    if manifest.status == Status::Done {
        return None;
    }
    let asides = aside::of_stage(run, stage).unwrap_or_default().into_iter();
    let kept = asides.filter(|aside| run.join(aside).join(name).exists());
    // The last of them has the highest number.
    let last = kept.max_by_key(|aside| (aside.len(), aside.clone()));
    let told = last.map(|aside| {
        let kept = run.join(aside).join(name);
        format!("; what it left before is in `{}`", kept.display())
    });
    Some(started_again(stage) + &told.unwrap_or_default())
}

/// Whether the target of a run is what its stage `synthetic` makes. One that was begun says nothing of it where the recipe has
/// named another target since.
fn makes_target(run: &Path) -> Result<bool> {
    let recipe = fs::read_to_string(run.join(RECIPE)).ok();
    let recipe = recipe.and_then(|text| text.parse::<toml::Table>().ok());
    let has_table = recipe.is_some_and(|recipe| recipe.contains_key(SYNTHETIC));
    Ok(has_table && manifest_in(run, SYNTHETIC)?.is_some())
}

/// The hash of what a stage has left at `path` in the run; none where nothing is there.
fn hash_of(run: &Path, path: &str, memory: &mut HashMemory) -> Result<Option<String>> {
    let full = run.join(path);
    if !full.exists() {
        return Ok(None);
    }
    let now = match path {
        EXPORTED => memory.of_drafter(&full)?,
        _ => memory.of(&full)?,
    };
    Ok(Some(now))
}

/// The hash of the target that `synthetic` has made as the input of this name, which was `sha256`; none where nothing is there.
fn hash_of_made(
    run: &Path,
    (name, sha256): (&str, &str),
    memory: &mut HashMemory,
) -> Result<Option<String>> {
    let folder = run.join(MADE_TARGET);
    if !folder.exists() {
        return Ok(None);
    }
    if name == TOKENIZER {
        return memory.of_all(&text_files(&folder)?).map(Some);
    }
    // Of a target that servers compute only a part is an input.
    let part = memory.of_all(&part_files(&folder)?)?;
    if part == sha256 {
        return Ok(Some(part));
    }
    memory.of_all(&weight_files(&folder)?).map(Some)
}

/// The stage that left an input of this name, and its path within the run; nothing of inputs that no stage left.
fn output(name: &str) -> Option<(&str, &str)> {
    if name == REGENERATED_DATA {
        return Some((REGENERATE, REGENERATED));
    }
    let path = name.strip_prefix('`')?.strip_suffix('`')?;
    let (stage, _) = path.split_once('/')?;
    Some((stage, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_stage_left_is_an_output() {
        assert_eq!(output("`train/drafter`"), Some(("train", "train/drafter")));
        let answered = output("the answers of `regenerate`");
        assert_eq!(answered, Some(("regenerate", "regenerate/train.jsonl")));
        for name in ["the target", "`data.train`", "the target `a/b`"] {
            assert_eq!(output(name), None, "{name}");
        }
    }
}
