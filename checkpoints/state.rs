//! The state a run resumes from: one folder per saved step.
//!
//! `step-00000100/` holds `state.json` and one safetensors file per group of tensors (`weights`, `optimizer`). It is filled
//! under another name and renamed when it is complete and on the disk, and removed in the same way, so that a folder with
//! a step's name is a whole checkpoint whenever the process may be killed. `state.json` has the digests of the other files
//! and its own, so that nothing in the folder can change unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::atomic;
use crate::error::{Error, Result};
use crate::folder::read_safetensors;
use crate::hash::{sha256_bytes, sha256_file};
use crate::json as json_file;
use crate::mismatch::Mismatch;
use crate::tensors::{NamedTensor, write_safetensors};

const STATE: &str = "state.json";
const VERSION: u64 = 2;
const PREFIX: &str = "step-";
/// The digest of `state.json` itself, without this key.
const DIGEST: &str = "sha256";

/// A complete checkpoint on the disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SavedState {
    /// Optimiser steps done when it was saved.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
}

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq)]
pub struct RunState {
    /// Optimiser steps done when it was saved.
    pub step: u64,
    /// The caller's own state: seeds, data position, schedule.
    pub state: Value,
    /// The tensors by group.
    pub tensors: BTreeMap<String, Vec<NamedTensor>>,
}

/// Makes the folder of a run's checkpoints. In one that is there, what a killed writer left, from which no run can go on, is
/// removed, and a checkpoint that was being replaced gets its name back.
pub fn begin(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    clean(dir)
}

/// Saves a checkpoint in the folder `dir` of a run, which must be there: one that has vanished is not made anew without all
/// else that was in it. Each group of tensors becomes one file, named after the group.
///
/// Leftovers of a writer that was killed are removed first.
pub fn save_state(
    dir: &Path,
    step: u64,
    state: &Value,
    tensors: &[(&str, &[NamedTensor])],
) -> Result<PathBuf> {
    if !dir.is_dir() {
        let reason = "the folder of the run is not there any more".to_string();
        let path = dir.to_path_buf();
        return Err(Error::Folder { path, reason });
    }
    clean(dir)?;
    let folder = folder_of(dir, step);
    let partial = atomic::start_dir(&folder)?;
    let saved =
        fill(&partial, step, state, tensors).and_then(|()| atomic::replace_dir(&partial, &folder));
    if let Err(error) = saved {
        // The first error is the one to report; what stays is removed by the next save.
        let _ = atomic::remove_dir(&partial);
        return Err(error);
    }
    Ok(folder)
}

/// Replaces the caller's own state in the checkpoint of a step, whose tensors stay as they are.
///
/// # Errors
/// The checkpoint is not there, what it says has changed since it was saved, or it cannot be written.
pub fn save_again(dir: &Path, step: u64, state: &Value) -> Result<()> {
    let folder = folder_of(dir, step);
    let mut contents = contents_of(&folder)?;
    contents["state"] = state.clone();
    write_contents(&folder, contents)
}

/// Where the checkpoint of a step is, in the folder `dir` of a run.
pub fn folder_of(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{step:08}"))
}

fn fill(
    partial: &Path,
    step: u64,
    state: &Value,
    tensors: &[(&str, &[NamedTensor])],
) -> Result<()> {
    let mut files = BTreeMap::new();
    for (group, tensors) in tensors {
        let path = group_file(partial, group)?;
        write_safetensors(&path, tensors, &BTreeMap::new())?;
        files.insert(*group, sha256_file(&path)?);
    }
    let contents = json!({"version": VERSION, "step": step, "files": files, "state": state});
    write_contents(partial, contents)
}

fn write_contents(folder: &Path, mut contents: Value) -> Result<()> {
    contents[DIGEST] = digest(&contents).into();
    atomic::write_file(&folder.join(STATE), &json_file::to_bytes(&contents))
}

fn digest(contents: &Value) -> String {
    sha256_bytes(&json_file::to_bytes(contents))
}

/// Groups are words, so that no name in a damaged `state.json` leads out of the folder.
fn group_file(folder: &Path, group: &str) -> Result<PathBuf> {
    let word = !group.is_empty()
        && group
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !word {
        let reason = format!("`{group}`: expected a group name of letters, digits and `_`");
        return Err(Error::Folder {
            path: folder.to_path_buf(),
            reason,
        });
    }
    Ok(folder.join(format!("{group}.safetensors")))
}

/// The checkpoints in a run's folder by step, oldest first. A folder that is not there has none.
pub fn list(dir: &Path) -> Result<Vec<SavedState>> {
    let mut saved = Vec::new();
    for (name, path) in entries(dir)? {
        if let Some(step) = step_of(&name).filter(|_| path.is_dir()) {
            saved.push(SavedState { step, path });
        }
    }
    saved.sort();
    Ok(saved)
}

/// The checkpoint of the highest step.
pub fn latest(dir: &Path) -> Result<Option<SavedState>> {
    Ok(list(dir)?.pop())
}

fn changed(path: &Path) -> Error {
    Error::Folder {
        path: path.to_path_buf(),
        reason: "its contents changed after it was saved".to_string(),
    }
}

/// A key of `state.json` that is not as it should be.
fn unexpected(path: &Path, contents: &Value, key: &str, expected: &str) -> Error {
    let found = contents.get(key);
    let found = found.map_or("nothing".to_string(), |value| format!("`{value}`"));
    Error::Key {
        path: path.to_path_buf(),
        key: key.to_string(),
        mismatch: Mismatch::new(expected, found),
    }
}

/// What `state.json` says, as it was saved, without its digest.
fn contents_of(folder: &Path) -> Result<Value> {
    let path = folder.join(STATE);
    let mut contents = json_file::read(&path)?;
    let stated = contents
        .as_object_mut()
        .and_then(|contents| contents.shift_remove(DIGEST));
    if contents["version"] != VERSION {
        let expected = format!("`{VERSION}`");
        return Err(unexpected(&path, &contents, "version", &expected));
    }
    if stated.is_none_or(|stated| stated != digest(&contents)) {
        return Err(changed(&path));
    }
    Ok(contents)
}

/// What `state.json` says.
struct Described {
    step: u64,
    state: Value,
    /// Digests of the files, by group.
    files: Map<String, Value>,
}

/// What `state.json` says, if it is as it was saved, and of the step that its folder is named after.
fn described(folder: &Path) -> Result<Described> {
    let path = folder.join(STATE);
    let mut contents = contents_of(folder)?;
    let expect = |key: &str, expected: &str| unexpected(&path, &contents, key, expected);
    let step = contents["step"]
        .as_u64()
        .ok_or_else(|| expect("step", "a step"))?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    if step_of(&name) != Some(step) {
        return Err(expect("step", &format!("that of the folder, `{name}`")));
    }
    let files = contents["files"]
        .as_object()
        .ok_or_else(|| expect("files", "a table of digests"))?
        .clone();
    let state = contents["state"].take();
    Ok(Described { step, state, files })
}

/// The file of a group of tensors, if it has this digest.
fn whole_file(folder: &Path, group: &str, digest: &Value) -> Result<PathBuf> {
    let file = group_file(folder, group)?;
    if *digest != sha256_file(&file)? {
        return Err(changed(&file));
    }
    Ok(file)
}

/// Reads a checkpoint, and checks that its files are the ones that were saved, and that it is of the step that its folder
/// is named after.
pub fn load(folder: &Path) -> Result<RunState> {
    let Described { step, state, files } = described(folder)?;
    let mut tensors = BTreeMap::new();
    for (group, digest) in &files {
        let file = whole_file(folder, group, digest)?;
        tensors.insert(group.clone(), read_safetensors(&file)?);
    }
    Ok(RunState {
        step,
        state,
        tensors,
    })
}

/// The file of a group of tensors in the checkpoint of a step, if it is as it was saved.
fn whole_group(dir: &Path, step: u64, group: &str) -> Result<PathBuf> {
    let folder = folder_of(dir, step);
    if !folder.is_dir() {
        let reason = format!("holds no state of step {step}");
        let path = dir.to_path_buf();
        return Err(Error::Folder { path, reason });
    }
    match described(&folder)?.files.get(group) {
        Some(digest) => whole_file(&folder, group, digest),
        None => Err(Error::Folder {
            path: folder,
            reason: format!("holds no tensors `{group}`"),
        }),
    }
}

/// Fails unless a group of tensors in the checkpoint of a step is there as it was saved, whatever became of the other groups.
pub fn check_group(dir: &Path, step: u64, group: &str) -> Result<()> {
    whole_group(dir, step, group).map(drop)
}

/// Reads a group of tensors in the checkpoint of a step, and checks that it is as it was saved, whatever became of the other groups.
pub fn load_group(dir: &Path, step: u64, group: &str) -> Result<Vec<NamedTensor>> {
    read_safetensors(&whole_group(dir, step, group)?)
}

/// Removes all checkpoints but the last `keep_last` and those of the steps in `keep`. Returns the steps that were removed.
pub fn prune(dir: &Path, keep_last: usize, keep: &[u64]) -> Result<Vec<u64>> {
    let mut saved = list(dir)?;
    saved.truncate(saved.len().saturating_sub(keep_last));
    let keep: BTreeSet<_> = keep.iter().collect();
    let mut removed = Vec::new();
    for SavedState { step, path } in saved {
        if keep.contains(&step) {
            continue;
        }
        let partial = atomic::partial_path(&path);
        fs::rename(&path, &partial).map_err(Error::io("remove", &path))?;
        atomic::remove_dir(&partial)?;
        removed.push(step);
    }
    Ok(removed)
}

fn clean(dir: &Path) -> Result<()> {
    for (name, path) in entries(dir)? {
        let Some((stem, suffix)) = name.rsplit_once('.') else {
            continue;
        };
        if step_of(stem).is_none() {
            continue;
        }
        match suffix {
            atomic::PARTIAL => atomic::remove_dir(&path)?,
            atomic::OLD => atomic::recover_dir(&dir.join(stem))?,
            _ => {}
        }
    }
    Ok(())
}

fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    let plain = digits.len() >= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        if let Ok(name) = entry.file_name().into_string() {
            entries.push((name, entry.path()));
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(value: f32) -> Vec<NamedTensor> {
        vec![NamedTensor::from_f32("w", [2], vec![value, f32::NAN])]
    }

    fn save(dir: &Path, step: u64) -> PathBuf {
        let tensors = weights(step as f32);
        save_state(
            dir,
            step,
            &json!({"position": step}),
            &[("weights", &tensors), ("optimizer", &[])],
        )
        .unwrap()
    }

    fn steps(dir: &Path) -> Vec<u64> {
        list(dir)
            .unwrap()
            .into_iter()
            .map(|saved| saved.step)
            .collect()
    }

    #[test]
    fn a_saved_state_is_loaded_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), 100);
        assert!(path.ends_with("step-00000100"));
        let loaded = load(&latest(folder.path()).unwrap().unwrap().path).unwrap();
        assert_eq!(
            (loaded.step, &loaded.state),
            (100, &json!({"position": 100}))
        );
        assert_eq!(loaded.tensors["weights"][0].bytes, weights(100.0)[0].bytes);
        assert!(loaded.tensors["optimizer"].is_empty());
    }

    #[test]
    fn a_run_that_never_saved_has_no_latest() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(latest(&folder.path().join("absent")).unwrap(), None);
    }

    #[test]
    fn the_latest_is_the_highest_step_not_the_last_name() {
        let folder = tempfile::tempdir().unwrap();
        for step in [200, 99_999_999, 100_000_000, 3] {
            save(folder.path(), step);
        }
        assert_eq!(steps(folder.path()), [3, 200, 99_999_999, 100_000_000]);
    }

    #[test]
    fn what_a_killed_writer_left_is_never_listed_and_removed_by_the_next_save() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        save(dir, 100);
        let partial = dir.join("step-00000200.spectrain-partial");
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join("weights.safetensors"), "half").unwrap();
        fs::write(dir.join("notes.spectrain-partial"), "not ours").unwrap();
        assert_eq!(steps(dir), [100]);
        save(dir, 300);
        assert_eq!(steps(dir), [100, 300]);
        assert!(!partial.exists() && dir.join("notes.spectrain-partial").exists());
    }

    #[test]
    fn a_folder_that_has_vanished_is_not_made_anew_by_a_save() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("train");
        begin(&dir).unwrap();
        save(&dir, 100);
        fs::rename(&dir, folder.path().join("away")).unwrap();
        let error = save_state(&dir, 200, &json!({}), &[]).unwrap_err();
        assert!(error.to_string().contains("not there any more"), "{error}");
        assert!(!dir.exists());
    }

    #[test]
    fn a_save_cut_off_while_replacing_keeps_the_old_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let path = save(dir, 100);
        fs::rename(&path, atomic::old_path(&path)).unwrap();
        save(dir, 200);
        assert_eq!(steps(dir), [100, 200]);
        assert_eq!(load(&path).unwrap().step, 100);
    }

    #[test]
    fn saving_a_step_again_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 100);
        let path = save_state(folder.path(), 100, &json!({"again": true}), &[]).unwrap();
        assert_eq!(load(&path).unwrap().state, json!({"again": true}));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_caller_says_of_a_step_is_replaced_without_its_tensors() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), 100);
        let file = path.join("weights.safetensors");
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        let opened = fs::File::options().write(true).open(&file).unwrap();
        opened.set_modified(long_ago).unwrap();
        let before = load(&path).unwrap();
        save_again(folder.path(), 100, &json!({"again": true})).unwrap();
        let after = load(&path).unwrap();
        assert_eq!(after.state, json!({"again": true}));
        let bytes = |state: &RunState| state.tensors["weights"][0].bytes.clone();
        assert_eq!(bytes(&after), bytes(&before));
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), long_ago);

        // What is changed, or not there, is not made a checkpoint by it.
        let text = fs::read_to_string(path.join(STATE)).unwrap();
        fs::write(path.join(STATE), text.replace("true", "false")).unwrap();
        for step in [100, 200] {
            let error = save_again(folder.path(), step, &json!({})).unwrap_err();
            assert!(error.to_string().contains("state.json"), "{error}");
        }
        assert!(load(&path).is_err() && steps(folder.path()) == [100]);
    }

    #[test]
    fn a_changed_or_missing_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), 100);
        let file = path.join("weights.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(
            error.contains("weights.safetensors") && error.contains("changed"),
            "{error}"
        );
        fs::remove_file(&file).unwrap();
        assert!(
            load(&path)
                .unwrap_err()
                .to_string()
                .contains("weights.safetensors")
        );
    }

    #[test]
    fn a_group_is_read_without_the_others_and_only_as_it_was_saved() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let path = save(dir, 100);
        fs::remove_file(path.join("optimizer.safetensors")).unwrap();
        assert!(load(&path).is_err());
        check_group(dir, 100, "weights").unwrap();
        let read = load_group(dir, 100, "weights").unwrap();
        assert_eq!(read[0].bytes, weights(100.0)[0].bytes);
        let refused = |step: u64, group: &str| {
            let error = check_group(dir, step, group).unwrap_err().to_string();
            assert_eq!(load_group(dir, step, group).unwrap_err().to_string(), error);
            error
        };
        let told = refused(200, "weights");
        assert!(told.ends_with("holds no state of step 200"), "{told}");
        let told = refused(100, "moments");
        assert!(told.ends_with("holds no tensors `moments`"), "{told}");
        // Another state under this name is none of this step.
        fs::rename(&path, folder_of(dir, 300)).unwrap();
        assert!(refused(300, "weights").contains("key `step`"));
        fs::rename(folder_of(dir, 300), &path).unwrap();
        fs::write(path.join("weights.safetensors"), "cut").unwrap();
        let told = refused(100, "weights");
        assert!(told.contains("weights.safetensors"), "{told}");
    }

    /// Replaces `state.json` by one that has the digest of what it says.
    fn forge(path: &Path, mut contents: Value) {
        contents[DIGEST] = digest(&contents).into();
        fs::write(path.join(STATE), json_file::to_bytes(&contents)).unwrap();
    }

    #[test]
    fn a_state_file_cannot_lead_out_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), 100);
        forge(
            &path,
            json!({"version": 2, "step": 100, "files": {"../x": ""}, "state": {}}),
        );
        assert!(load(&path).unwrap_err().to_string().contains("`../x`"));
        forge(&path, json!({"version": 3}));
        assert!(
            load(&path)
                .unwrap_err()
                .to_string()
                .contains("key `version`: expected `2`, found `3`")
        );
    }

    #[test]
    fn no_byte_of_a_state_file_can_change_unnoticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), 100);
        let file = path.join(STATE);
        let whole = fs::read(&file).unwrap();
        let saved = load(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&file, &bytes).unwrap();
            let error = load(&path).map(|state| state.step).unwrap_err().to_string();
            assert!(error.contains("state.json"), "byte {at}: {error}");
        }
        fs::write(&file, &whole).unwrap();
        assert_eq!(load(&path).unwrap().state, saved.state);
    }

    #[test]
    fn a_checkpoint_under_the_name_of_another_step_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), 100);
        for name in ["step-00000200", "step-9007199254740992", "step-100", "kept"] {
            let other = folder.path().join(name);
            fs::rename(&path, &other).unwrap();
            let error = load(&other).unwrap_err().to_string();
            assert!(
                error.contains("key `step`") && error.contains(name) && error.contains("`100`"),
                "{error}"
            );
            fs::rename(&other, &path).unwrap();
        }
        forge(
            &path,
            json!({"version": 2, "step": 300, "files": {}, "state": {}}),
        );
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("`300`"), "{error}");
    }

    #[test]
    fn pruning_keeps_the_last_and_the_named() {
        let folder = tempfile::tempdir().unwrap();
        for step in [100, 200, 300, 400, 500] {
            save(folder.path(), step);
        }
        assert_eq!(prune(folder.path(), 2, &[100, 7]).unwrap(), [200, 300]);
        assert_eq!(steps(folder.path()), [100, 400, 500]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
