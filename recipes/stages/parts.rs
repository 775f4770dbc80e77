//! Features that the elements of an array job capture, each its part of the samples, and all parts made the stage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_file_while;
use spectrain_data::features::{Recorded, join};

use crate::cli::progress::counted;
use crate::runs::files::{entries, write_json};
use crate::runs::prepared::printed_day;
use crate::runs::run_folder::{COMPUTED_IN, Inputs, RunFolder, differences};
use crate::runtime::interruption::check_interrupted;
use crate::runtime::store::{Remote, Store};
use crate::stages::array::Part;
use crate::stages::context::StageContext;
use crate::stages::features::places::FEATURES;
use crate::stages::inputs::{effect, settings};
use crate::stages::stage::Stage;

/// The stage that has parts.
pub(crate) const STAGE: &str = "features";
/// Where parts are in a run, where nothing else is said.
pub(crate) const PARTS: &str = "features-parts";
/// Where parts of an object store are in a run, until they are the stage.
pub(crate) const FETCHED: &str = ".features-parts-fetched";
/// What says how a part was made, written when it is whole.
pub(super) const PART: &str = "part.json";

/// What says what an unfinished part is made from, written when it begins.
const BEGUN: &str = "begun.json";
/// What says which files of a part an object store has: their SHA-256 by their addresses.
const SENT: &str = "sent.json";

/// `part.json`: what a part was made from, and the files that it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    pub(super) made: Made,
    /// Length and SHA-256 of each file, by its path in the part.
    pub(super) files: BTreeMap<String, FileOf>,
    /// What was done, in numbers.
    pub(super) summary: Value,
}

/// What a part is made from: equal, but for its number, in all parts of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Made {
    part: u64,
    of: u64,
    recipe: String,
    seed: u64,
    settings: Value,
    inputs: Inputs,
    /// The day that the texts may have in them, where the chat template prints one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    date: Option<String>,
}

impl Description {
    /// Whether the folder of the part holds these files, as they were written.
    pub(super) fn is_whole(&self, run: &RunFolder, folder: &Path) -> Result<bool> {
        Ok(files(run, folder)? == self.files)
    }
}

/// A file of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileOf {
    bytes: u64,
    sha256: String,
}

impl FileOf {
    /// Fails where the file at `path`, which the user knows by `name`, is not as it was written.
    fn check(&self, part: Part, path: &Path, name: &str) -> Result<()> {
        let sha256 = sha256_file_while(path, &mut |_| check_interrupted())?;
        if sha256 != self.sha256 {
            bail!(
                "part {part}: `{name}`: expected the SHA-256 {}, found {sha256}",
                self.sha256
            );
        }
        Ok(())
    }
}

impl Made {
    pub(super) fn of(context: &StageContext, stage: &Stage, part: Part) -> Result<Self> {
        // Where servers compute, the type on this device says nothing.
        let settings = if context.recipe.features.mode.computes_target() {
            context.settings(stage)?
        } else {
            settings(context.recipe, stage)?
        };
        Ok(Self {
            part: part.part,
            of: part.of,
            recipe: context.recipe.recipe.clone(),
            seed: context.recipe.seed,
            settings,
            inputs: context.inputs(stage)?,
            date: printed_day(context.run)?.map(|day| day.to_string()),
        })
    }

    /// The first thing that differs in `found`, in words: what a stage would start over for.
    fn difference(&self, found: &Self) -> Option<String> {
        let numbers = |made: &Self| {
            [
                ("part", json!(made.part)),
                ("of", json!(made.of)),
                ("recipe", json!(made.recipe)),
                ("seed", json!(made.seed)),
            ]
        };
        for ((key, own), (_, other)) in numbers(self).into_iter().zip(numbers(found)) {
            if own != other {
                return Some(format!("`{key}`: expected {own}, found {other}"));
            }
        }
        let both = [found, self].map(|made| (&made.settings, &made.inputs));
        differences(both, effect).into_iter().next()
    }

    /// What there is to say of a difference where the texts of both have dates in them, and not the same.
    fn other_date(&self, found: &Self) -> String {
        match (&self.date, &found.date) {
            (Some(own), Some(other)) if own != other => format!(
                " (the chat template prints the date, which is {own} here and {other} there: with `data.date = \"{other}\"` it is \
                 that day on all machines)"
            ),
            _ => String::new(),
        }
    }

    /// The type that the target computed in, where it computed here.
    fn computed_in(&self) -> Option<&str> {
        self.settings["target"][COMPUTED_IN].as_str()
    }
}

/// Where the parts of a run are: as given, or in the run.
pub(super) fn store(context: &StageContext, given: Option<&str>) -> Result<Store> {
    match given {
        Some(given) => Store::open(given),
        None => Ok(Store::Folder(context.run.path().join(PARTS))),
    }
}

/// What is said of a part that is there, whole.
///
/// # Errors
/// It was made from something else.
pub(super) fn done(store: &Store, made: &Made, part: Part) -> Result<Option<Description>> {
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
pub(super) fn agree(store: &Store, made: &Made, part: Part) -> Result<()> {
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
pub(super) fn begin_beside_others(
    store: &Store,
    folder: &Path,
    made: &Made,
    part: Part,
) -> Result<()> {
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
pub(super) fn begin(folder: &Path, made: &Made, part: Part) -> Result<()> {
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

fn check_made(store: &Store, made: &Made, part: Part, found: &Made) -> Result<()> {
    match made.difference(found) {
        Some(difference) => bail!(
            "part {part} in `{}` was made from other inputs or settings: {difference}{}; put them back, or remove the part's folder \
             there to capture it anew, or the folders of all parts there",
            store.name(),
            made.other_date(found)
        ),
        None => Ok(()),
    }
}

/// The description of a part, where it is whole.
fn description(store: &Store, folder: &str) -> Result<Option<Description>> {
    let name = format!("{folder}/{PART}");
    let read = store.read(&name)?;
    let parsed = read.map(|text| serde_json::from_slice(&text));
    parsed
        .transpose()
        .with_context(|| format!("cannot read `{}/{name}`", store.name()))
}

/// Every file of features in a part, of which the run knows those that were written or read already.
pub(super) fn files(run: &RunFolder, folder: &Path) -> Result<BTreeMap<String, FileOf>> {
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
pub(super) fn send(
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

/// All parts of a stage, made as it is to be.
pub(super) struct Parts {
    store: Store,
    parts: Vec<Part>,
    descriptions: Vec<Description>,
}

/// Whether the stage is joined from parts, so that nothing of it is computed here.
pub(super) fn are_there(context: &StageContext) -> Result<bool> {
    Ok(context.array.parts.is_some() || !store(context, None)?.names()?.is_empty())
}

/// Fails where the stage, which is not finished, is of parts that are somewhere else than in the run, and nobody says where: all of it
/// would be computed here.
pub(super) fn check_given(context: &StageContext) -> Result<()> {
    let manifest = context.run.manifest(STAGE)?;
    match manifest.and_then(|manifest| manifest.parts) {
        Some(from) if context.array.parts.is_none() => bail!(
            "it has begun to join the parts in `{from}`: expected `--parts {from}`, found no `--parts`; remove `{}` to compute it here",
            context.folder(STAGE).display()
        ),
        _ => Ok(()),
    }
}

/// The parts of the stage, if there are some. None where there are none and none are said to be.
///
/// # Errors
/// Parts are missing, or were made from something else.
pub(super) fn find(context: &StageContext, stage: &Stage) -> Result<Option<Parts>> {
    let given = context.array.parts.as_deref();
    let store = store(context, given)?;
    let Some(parts) = complete(&store)? else {
        return match given {
            None => Ok(None),
            Some(_) => bail!("`{}` holds no part of the stage `{STAGE}`", store.name()),
        };
    };
    let mut descriptions = Vec::new();
    let mut made = Made::of(context, stage, parts[0])?;
    for &part in &parts {
        let found = description(&store, &part.folder())?;
        let found = found.with_context(|| {
            format!(
                "part {part} in `{}` is unfinished: {}",
                store.name(),
                again(&[part])
            )
        })?;
        let twice = (found.made.part, found.made.of) != (part.part, part.of);
        if twice && found.made.of == part.of {
            bail!(
                "part {} in `{}` is there twice, the second time as `{}`",
                found.made.part,
                store.name(),
                part.folder()
            );
        }
        made.part = part.part;
        check_made(&store, &made, part, &found.made)?;
        descriptions.push(found);
    }
    Ok(Some(Parts {
        store,
        parts,
        descriptions,
    }))
}

impl Parts {
    /// Makes them the stage.
    ///
    /// # Errors
    /// They cannot be fetched, or are not as they were written.
    pub(super) fn join(&self, context: &StageContext) -> Result<Value> {
        let (parts, descriptions) = (&self.parts, &self.descriptions);
        let from = match &self.store {
            Store::Folder(folder) => {
                for part in parts {
                    context.run.recall_in(&folder.join(part.folder()))?;
                }
                folder.clone()
            }
            Store::Remote(remote) => fetch(context, remote, parts, descriptions)?,
        };
        let files = join_all(context, &from, parts, descriptions)?;
        if matches!(self.store, Store::Remote(_)) {
            fs::remove_dir_all(&from)
                .with_context(|| format!("cannot remove `{}`", from.display()))?;
        }
        // Behind that: a file that has one name less is another to the system.
        context.run.remember(files)?;
        let each = descriptions.iter().map(|found| &found.summary);
        Ok(json!({
            "parts": parts.len(),
            "from": self.store.name(),
            "each": each.collect::<Vec<_>>(),
        }))
    }
}

/// All parts in their order; none where there is none.
fn complete(store: &Store) -> Result<Option<Vec<Part>>> {
    let mut parts: Vec<Part> = Vec::new();
    for name in store.names()? {
        let Some(part) = Part::named(&name) else {
            bail!(
                "`{}`: expected `part-NUMBER-of-PARTS` of an array job, found `{name}`",
                store.name()
            );
        };
        parts.push(part);
    }
    parts.sort();
    let Some(first) = parts.first().copied() else {
        return Ok(None);
    };
    if let Some(other) = parts.iter().find(|part| part.of != first.of) {
        bail!(
            "`{}` holds parts of two jobs: one of {} and one of {}",
            store.name(),
            first.of,
            other.of
        );
    }
    let all = (1..=first.of).map(|part| Part { part, ..first });
    let missing: Vec<Part> = all.filter(|part| !parts.contains(part)).collect();
    if !missing.is_empty() {
        let numbers: Vec<String> = missing.iter().map(|part| part.part.to_string()).collect();
        bail!(
            "`{}`: of {} parts these are missing: {}; {}",
            store.name(),
            first.of,
            numbers.join(", "),
            again(&missing)
        );
    }
    Ok(Some(parts))
}

/// What captures a part.
fn again(missing: &[Part]) -> String {
    let part = missing.first().map(ToString::to_string);
    let part = part.unwrap_or_default();
    format!("`--stage {STAGE} --part {part}` captures one")
}

/// A path of a part's file, which stays in the part.
fn checked(file: &str) -> Result<&Path> {
    let path = Path::new(file);
    let is_plain = |part| matches!(part, std::path::Component::Normal(_));
    if !path.components().all(is_plain) || path.components().count() > 2 {
        bail!("`{PART}`: expected files of the part, found `{file}`");
    }
    Ok(path)
}

/// Fetches the files of all parts into the run; those that are there already, whole, stay.
fn fetch(
    context: &StageContext,
    remote: &Remote,
    parts: &[Part],
    descriptions: &[Description],
) -> Result<PathBuf> {
    let folder = context.run.path().join(FETCHED);
    let mut progress = context.progress("fetch", parts.len() as u64);
    for (number, (part, found)) in parts.iter().zip(descriptions).enumerate() {
        let mut fetched = Vec::new();
        let of_part = fetch_part((context, remote), (*part, found), &folder, &mut fetched);
        // Whatever ended it: these need not be read again.
        context.run.remember(fetched)?;
        of_part?;
        progress.set(1 + number as u64, "parts");
    }
    progress.finish(format!("{} parts", parts.len()));
    Ok(folder)
}

/// Fetches the files of a part into its folder in `folder`, and says which were `fetched`, with their SHA-256.
fn fetch_part(
    (context, remote): (&StageContext, &Remote),
    (part, found): (Part, &Description),
    folder: &Path,
    fetched: &mut Vec<(PathBuf, String)>,
) -> Result<()> {
    let mut files = Vec::new();
    for (file, of) in &found.files {
        let to = folder.join(part.folder()).join(checked(file)?);
        let may_stay = fs::metadata(&to).is_ok_and(|found| found.len() == of.bytes);
        files.push((file, of, to, may_stay));
    }
    let there = files.iter().filter(|(.., may_stay)| *may_stay);
    let there = there.map(|(_, _, to, _)| to.clone());
    context.run.learn(there)?;
    for (file, of, to, may_stay) in files {
        if may_stay && context.run.sha256(&to)? == of.sha256 {
            continue;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot create `{}`", parent.display()))?;
        }
        let name = format!("{}/{file}", part.folder());
        remote.fetch(&name, &to, of.bytes)?;
        of.check(part, &to, &format!("{}/{name}", remote.name()))?;
        fetched.push((to, of.sha256.clone()));
    }
    Ok(())
}

/// Makes each set of samples one folder of its parts.
fn join_all(
    context: &StageContext,
    from: &Path,
    parts: &[Part],
    descriptions: &[Description],
) -> Result<Vec<(PathBuf, String)>> {
    let mut sets: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (part, found) in parts.iter().zip(descriptions) {
        let own = from.join(part.folder());
        for (file, of) in &found.files {
            let path = own.join(checked(file)?);
            let index = file.strip_suffix(FEATURES);
            let Some(set) = index.map(|set| set.trim_end_matches('/')) else {
                continue;
            };
            of.check(*part, &path, &path.display().to_string())?;
            sets.entry(set.to_owned()).or_default().push(own.join(set));
        }
    }
    let mut files = Vec::new();
    for (set, parts) in sets {
        let to = context.folder(STAGE).join(&set);
        let proof = |files: &[Recorded]| context.run.prove(files);
        let shards = join(&parts, &to, proof, &check_interrupted)?;
        files.extend(
            shards
                .into_iter()
                .map(|(file, sha256)| (to.join(file), sha256)),
        );
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::run_folder::CAPTURED_LAYERS;

    fn made(settings: Value, inputs: &[(&str, &str)]) -> Made {
        let inputs = inputs.iter();
        Made {
            part: 1,
            of: 2,
            recipe: "eagle3".into(),
            seed: 7,
            settings,
            inputs: inputs
                .map(|&(name, hash)| (name.into(), hash.into()))
                .collect(),
            date: None,
        }
    }

    /// Settings of a part with this type, which is that on the device.
    fn computed(dtype: &str, computed_in: &str) -> Value {
        let target = json!({"dtype": dtype, "computed_in": computed_in});
        json!({"features": {"mode": "stored", "from": ["own"]}, "target": target})
    }

    #[test]
    fn a_part_of_an_earlier_version_is_the_same_until_what_it_is_of_is_not() {
        let before = json!({
            "recipe": "eagle3",
            "features": {"mode": "stored", "from": ["../own"]},
            "drafter": {"heads": 2},
            "target": {"dtype": "auto"},
        });
        let old = [("the target", "1"), ("the features `../own`", "2")];
        let found = made(before, &old);
        let new = |target: &'static str| {
            let layers = (CAPTURED_LAYERS, "3");
            [("the target", target), ("the features `own`", "2"), layers]
        };
        let difference = |dtype: &str, inputs: &[(&str, &str)]| {
            made(computed(dtype, "f32"), inputs).difference(&found)
        };
        assert_eq!(difference("auto", &new("1")), None);
        let other = difference("auto", &new("5"));
        assert_eq!(other.unwrap(), "the target has changed");
        let other = difference("int8", &new("1"));
        assert_eq!(other.unwrap(), "`target.dtype`: \"auto\" → \"int8\"");
        let mut other = made(computed("auto", "f32"), &new("1"));
        other.seed = 8;
        let told = other.difference(&found).unwrap();
        assert_eq!(told, "`seed`: expected 8, found 7");
    }

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

    #[test]
    fn files_of_a_part_stay_in_it() {
        assert!(checked("held_out/features.json").is_ok());
        for file in ["../x", "/etc/passwd", "a/b/c", "a/../../b"] {
            assert!(checked(file).is_err(), "{file}");
        }
    }
}
