//! One element of an array job: a part of the stage `features`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::{Description, FileOf, Made, PART, PARTS, STAGE, check_made, description, store};
use crate::errors::Misuse;
use crate::progress::counted;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::files::{entries, write_json};
use crate::runs::run_folder::{RunFolder, lock_for};
use crate::runtime::interruption::check_interrupted;
use crate::runtime::store::{Remote, Store};
use crate::stages::array::{Part, PartOf};
use crate::stages::context::StageContext;
use crate::stages::features::places::FEATURES;
use crate::stages::in_order::require_done;
use crate::stages::order::selected;

/// What says what an unfinished part is made from, written when it begins.
const BEGUN: &str = "begun.json";
/// What says which files of a part an object store has: their SHA-256 by their addresses.
const SENT: &str = "sent.json";

/// Captures a part, or goes on with it. The run's other stages are not touched, and it is not locked: its parts may be captured
/// at the same time.
pub fn capture(context: &mut StageContext, part: Part) -> Result<()> {
    let given = context.array.parts.clone();
    let stages = selected(context.recipe, &[STAGE.into()])?;
    let Some(place) = stages.iter().position(|stage| stage.name == STAGE) else {
        bail!("the recipe has no stage `{STAGE}`");
    };
    for stage in &stages[..place] {
        require_done(context, stage)?;
    }
    let store = store(context, given.as_deref())?;
    let parts = match &store {
        Store::Folder(folder) => folder.clone(),
        Store::Remote(_) => context.run.path().join(PARTS),
    };
    let folder = parts.join(part.folder());
    // What it has learned of the target before.
    context.run.recall_in(&folder)?;
    let made = Made::of(context, &stages[place], part)?;
    if let Some(found) = done(&store, &made, part)?
        && found.is_there(&store, part)?
    {
        context.output.say(format!("part {part}: done before"));
        return Ok(());
    }
    if given.is_some() {
        agree(&store, &made, part)?;
    }
    let _lock = lock_for(&folder, "capture another `--part`")?;
    context.run.keep_in(&folder)?;
    match given {
        Some(_) => begin_beside_others(&store, &folder, &made, part)?,
        None => begin(&folder, &made, part)?,
    }
    // One that was stopped while it was sent is whole here.
    let description = match done(&Store::Folder(parts), &made, part)? {
        Some(found) if found.is_whole(context.run, &folder)? => found,
        _ => {
            context.array.part = Some(PartOf {
                part,
                folder: folder.clone(),
            });
            let summary = (stages[place].run)(context, STAGE)?;
            let description = Description {
                made,
                files: files(context.run, &folder)?,
                summary,
            };
            write_json(&folder.join(PART), &description)?;
            description
        }
    };
    if let Store::Remote(remote) = &store {
        send(context, remote, (part, &folder), &description.files)?;
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove `{}`", folder.display()))?;
    }
    context
        .output
        .say(format!("part {part}: `{}`", store.name()));
    Ok(())
}

/// Fails where parts are said to be somewhere, and none of the recipes has the stage that has some.
pub fn check_place(parts: Option<&str>, recipes: &[&ResolvedRecipe]) -> Result<()> {
    let only = [STAGE.to_owned()];
    let found = recipes
        .iter()
        .map(|recipe| selected(recipe, &only).map(drop));
    match (parts, found.reduce(|one, other| one.or(other))) {
        (Some(_), Some(Err(error))) => Err(error.context("`--parts`")),
        _ => Ok(()),
    }
}

/// Fails for a part of other stages than the one that has some.
pub fn check_stages(stages: &[String]) -> Result<()> {
    if stages != [STAGE] {
        let message =
            format!("`--part` works with one stage: expected `--stage {STAGE}` beside it");
        return Err(Misuse(message).into());
    }
    Ok(())
}

impl Description {
    /// Whether the part has these files there, each as long as it was written. Whether it is as it was written is not asked: that
    /// would be to read all parts once more wherever an array job is started again.
    fn is_there(&self, store: &Store, part: Part) -> Result<bool> {
        for (file, FileOf { bytes, .. }) in &self.files {
            let name = format!("{}/{file}", part.folder());
            if store.length(&name)? != Some(*bytes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the folder of the part holds these files, as they were written.
    fn is_whole(&self, run: &RunFolder, folder: &Path) -> Result<bool> {
        Ok(files(run, folder)? == self.files)
    }
}

/// What is said of a part that is there, whole.
///
/// # Errors
/// It was made from something else.
fn done(store: &Store, made: &Made, part: Part) -> Result<Option<Description>> {
    let found = description(store, &part.folder())?;
    if let Some(found) = &found {
        check_made(store, made, part, &found.made)?;
    }
    Ok(found)
}

/// Fails where this part could not be joined with those that have begun there, told by the first other one: before anything is
/// captured, and not once all is.
///
/// # Errors
/// That part is made from something else, or cannot be read.
fn agree(store: &Store, made: &Made, part: Part) -> Result<()> {
    let names = store.names()?;
    let parts = names.iter().filter_map(|name| Part::named(name));
    for other in parts.filter(|other| *other != part) {
        if let Some(found) = begun(store, other)? {
            let made = Made {
                part: other.part,
                ..made.clone()
            };
            return check_made(store, &made, other, &found);
        }
    }
    Ok(())
}

/// What a part that has begun is made from.
fn begun(store: &Store, part: Part) -> Result<Option<Made>> {
    let folder = part.folder();
    let name = format!("{folder}/{BEGUN}");
    let Some(text) = store.read(&name)? else {
        return Ok(description(store, &folder)?.map(|found| found.made));
    };
    let found = serde_json::from_slice(&text);
    found.with_context(|| format!("cannot read `{}/{name}`", store.name()))
}

/// The same as [`begin`] where other machines work beside this one: tells them what the part is made from, and has it agree with
/// theirs.
///
/// # Errors
/// Those of [`begin`] and [`agree`].
fn begin_beside_others(store: &Store, folder: &Path, made: &Made, part: Part) -> Result<()> {
    begin(folder, made, part)?;
    if let Store::Remote(remote) = store {
        remote.send(&folder.join(BEGUN), &format!("{}/{BEGUN}", part.folder()))?;
    }
    // Of those that begin at the same time each may have seen nobody before; the last one to tell sees all.
    agree(store, made, part)
}

/// Notes in the folder of a part, which is locked, what it is made from; it goes on only as it has begun.
///
/// # Errors
/// It was begun from something else, or nobody knows from what.
fn begin(folder: &Path, made: &Made, part: Part) -> Result<()> {
    let path = folder.join(BEGUN);
    let anew = || format!("remove `{}` to capture it anew", folder.display());
    if !path.exists() {
        if !paths(folder)?.is_empty() {
            bail!(
                "part {part}: expected `{}`, which says what its features are made from, found none; {}",
                path.display(),
                anew()
            );
        }
        return write_json(&path, made);
    }
    let text = fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let found: Made = serde_json::from_slice(&text)
        .with_context(|| format!("cannot read `{}`; {}", path.display(), anew()))?;
    if let Some(difference) = made.difference(&found) {
        bail!(
            "part {part} in `{}` has begun with other inputs or settings: {difference}; {}",
            folder.display(),
            anew()
        );
    }
    // What is finished may be joined anywhere; what goes on computes.
    match (found.computed_in(), made.computed_in()) {
        (Some(began), Some(here)) if began != here => bail!(
            "`target.dtype`: expected `{began}`, in which part {part} has begun, found `{here}` on this device; \
             `--set target.dtype={began}` goes on with it, or {}",
            anew()
        ),
        _ => Ok(()),
    }
}

/// Every file of features in a part, of which the run knows those that were written or read already.
fn files(run: &RunFolder, folder: &Path) -> Result<BTreeMap<String, FileOf>> {
    let names = paths(folder)?;
    run.learn(names.iter().map(|name| folder.join(name)))?;
    let file = |name: String| {
        let path = folder.join(&name);
        let data =
            fs::metadata(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let (bytes, sha256) = (data.len(), run.sha256(&path)?);
        Ok((name, FileOf { bytes, sha256 }))
    };
    names.into_iter().map(file).collect()
}

/// The path of every file of features in a part.
fn paths(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for set in sets(folder)? {
        for name in entries(&folder.join(&set))? {
            let is_ours = name == FEATURES || name.ends_with(".arrow");
            if !is_ours || !folder.join(&set).join(&name).is_file() {
                continue;
            }
            found.push(match set.is_empty() {
                true => name,
                false => format!("{set}/{name}"),
            });
        }
    }
    Ok(found)
}

/// Sends the files of a part, which are as they were written, and last what says so. Those that were sent before and are there
/// stay.
fn send(
    context: &StageContext,
    remote: &Remote,
    (part, folder): (Part, &Path),
    files: &BTreeMap<String, FileOf>,
) -> Result<()> {
    let path = folder.join(SENT);
    let read = fs::read(&path).ok();
    // What cannot be read is sent again.
    let sent = read.and_then(|text| serde_json::from_slice(&text).ok());
    let mut sent: BTreeMap<String, String> = sent.unwrap_or_default();
    let mut progress = context.progress("send", files.len() as u64);
    for (file, FileOf { bytes, sha256 }) in files {
        check_interrupted()?;
        let name = format!("{}/{file}", part.folder());
        let address = format!("{}/{name}", remote.name());
        let was_sent = sent.get(&address) == Some(sha256);
        if !was_sent || remote.length(&name)? != Some(*bytes) {
            remote.send(&folder.join(file), &name)?;
            sent.insert(address, sha256.clone());
            write_json(&path, &sent)?;
        }
        progress.step("files");
    }
    remote.send(&folder.join(PART), &format!("{}/{PART}", part.folder()))?;
    progress.finish(counted(files.len() as u64, "file"));
    Ok(())
}

/// The sets of samples in a part: those to train on, and folders of others.
fn sets(folder: &Path) -> Result<Vec<String>> {
    let inner = entries(folder)?.into_iter();
    let inner = inner.filter(|name| folder.join(name).is_dir());
    Ok(std::iter::once(String::new()).chain(inner).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stages::parts::tests::{computed, made};

    #[test]
    fn a_part_goes_on_only_in_the_type_that_it_has_begun_in_and_is_joined_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let part = Part { part: 1, of: 2 };
        let go_on = |dtype: &str, computed_in: &str| {
            begin(
                folder.path(),
                &made(computed(dtype, computed_in), &[]),
                part,
            )
        };
        go_on("auto", "bf16").unwrap();
        go_on("auto", "bf16").unwrap();
        let told = go_on("auto", "f32").unwrap_err().to_string();
        let advice = "`--set target.dtype=bf16` goes on with it";
        assert!(
            told.starts_with("`target.dtype`: expected `bf16`") && told.contains(advice),
            "{told}"
        );
        go_on("bf16", "bf16").unwrap();
        let [gpu, cpu] =
            ["bf16", "f32"].map(|computed_in| made(computed("auto", computed_in), &[]));
        assert_eq!(cpu.difference(&gpu), None);
    }

    #[test]
    fn a_part_is_refused_before_it_begins_where_another_has_begun_from_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::Folder(folder.path().to_owned());
        let [first, second] = [1, 2].map(|part| Part { part, of: 2 });
        let on = |day: Option<&str>, tokens: &str, part: Part| Made {
            part: part.part,
            date: day.map(str::to_owned),
            ..made(json!({}), &[("`prepare/train/tokens.json`", tokens)])
        };
        agree(&store, &on(None, "a", first), first).unwrap();
        let there = folder.path().join(first.folder());
        fs::create_dir(&there).unwrap();
        begin(&there, &on(Some("2026-11-28"), "a", first), first).unwrap();
        agree(&store, &on(Some("2026-11-28"), "a", second), second).unwrap();
        // Its own folder says what becomes of it.
        agree(&store, &on(None, "b", first), first).unwrap();
        let refused = |made: &Made| agree(&store, made, second).unwrap_err().to_string();
        let told = refused(&on(Some("2026-11-29"), "b", second));
        for part in [
            "part 1/2 in `",
            "`prepare/train/tokens.json` has changed",
            "2026-11-29 here and 2026-11-28 there",
            "`data.date = \"2026-11-28\"`",
        ] {
            assert!(told.contains(part), "{told}");
        }
        // Of the same day it is something else that differs.
        let told = refused(&on(Some("2026-11-28"), "b", second));
        assert!(!told.contains("data.date"), "{told}");
        let of_three = Made {
            of: 3,
            ..on(Some("2026-11-28"), "a", second)
        };
        assert!(refused(&of_three).contains("`of`: expected 3, found 2"));
    }

    #[test]
    fn a_part_is_refused_that_has_begun_at_the_same_time_as_another_one_from_something_else() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::Folder(root.path().to_owned());
        let begin = |part: u64, tokens: &str| {
            let (made, part) = (made(json!({}), &[("tokens", tokens)]), Part { part, of: 3 });
            let made = Made {
                part: part.part,
                of: part.of,
                ..made
            };
            let folder = root.path().join(part.folder());
            fs::create_dir(&folder).unwrap();
            begin_beside_others(&store, &folder, &made, part)
        };
        begin(1, "a").unwrap();
        begin(2, "a").unwrap();
        let told = begin(3, "b").unwrap_err().to_string();
        for part in ["tokens has changed", "or the folders of all parts there"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
