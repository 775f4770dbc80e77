//! Whether what a finished stage has left still goes with the rest of the run, for commands that only read it.

use std::path::Path;

use anyhow::Result;

use super::manifest::{Status, manifest_in};
use crate::runs::hashes::{HASHES, HashMemory};
use crate::runs::places::EXPORTED;

/// Why the results of `stage` of the run in `run` are not those of the run as it is now, if they are not: a stage that they
/// rest on was started again, or left something else. Settings and files outside of the run are not looked at.
pub fn stale(run: &Path, stage: &str) -> Result<Option<String>> {
    let Some(manifest) = manifest_in(run, stage)? else {
        return Ok(Some(format!("the stage `{stage}` has not run")));
    };
    if manifest.status != Status::Done {
        return Ok(Some(format!(
            "the stage `{stage}` was started again and is not done"
        )));
    }
    let mut memory = HashMemory::read(&run.join(HASHES));
    for (name, sha256) in &manifest.inputs {
        let Some((before, path)) = output(name) else {
            continue;
        };
        if before != stage
            && let Some(why) = stale(run, before)?
        {
            return Ok(Some(why));
        }
        let full = run.join(path);
        if !full.exists() {
            return Ok(Some(format!(
                "`{path}`, which it was made from, is missing"
            )));
        }
        let now = match path {
            EXPORTED => memory.of_drafter(&full)?,
            _ => memory.of(&full)?,
        };
        if now != *sha256 {
            return Ok(Some(format!("`{path}` has changed since")));
        }
    }
    Ok(None)
}

/// The stage that left an input of this name, and its path within the run; nothing of inputs that no stage left.
fn output(name: &str) -> Option<(&str, &str)> {
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
        for name in ["the target", "`data.train`", "the target `a/b`"] {
            assert_eq!(output(name), None, "{name}");
        }
    }
}
