//! Features that the elements of an array job capture, each its part of the samples, and all parts made the stage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spectrain_checkpoints::hash::sha256_file;
use spectrain_data::features::join;

use crate::runs::files::{entries, write_json};
use crate::runs::run_folder::{COMPUTED_IN, Inputs, differences};
use crate::runtime::store::{Remote, Store};
use crate::stages::array::Part;
use crate::stages::context::StageContext;
use crate::stages::inputs::{effect, settings};
use crate::stages::stage::Stage;

/// The stage that has parts.
pub(super) const STAGE: &str = "features";
/// Where parts are in a run, where nothing else is said.
pub(super) const PARTS: &str = "features-parts";
/// Where parts of an object store are in a run, until they are the stage.
const FETCHED: &str = ".features-parts-fetched";
/// What says how a part was made, written when it is whole.
pub(super) const PART: &str = "part.json";

/// What says what an unfinished part is made from, written when it begins.
const BEGUN: &str = "begun.json";

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
        let sha256 = sha256_file(path)?;
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

/// Whether a part is there, whole.
pub(super) fn is_done(store: &Store, made: &Made, part: Part) -> Result<bool> {
    let Some(found) = description(store, &part.folder())? else {
        return Ok(false);
    };
    check_made(store, made, part, &found)?;
    Ok(true)
}

/// Notes in the folder of a part, which is locked, what it is made from; it goes on only as it has begun.
///
/// # Errors
/// It was begun from something else, or nobody knows from what.
pub(super) fn begin(folder: &Path, made: &Made, part: Part) -> Result<()> {
    let path = folder.join(BEGUN);
    let anew = || format!("remove `{}` to capture it anew", folder.display());
    if !path.exists() {
        if !files(folder)?.is_empty() {
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

fn check_made(store: &Store, made: &Made, part: Part, found: &Description) -> Result<()> {
    match made.difference(&found.made) {
        Some(difference) => bail!(
            "part {part} in `{}` was made from other inputs or settings: {difference}; put them back, or remove the part's folder there \
             to capture it anew",
            store.name()
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

/// Every file of features in a part.
pub(super) fn files(folder: &Path) -> Result<BTreeMap<String, FileOf>> {
    let mut found = BTreeMap::new();
    for set in sets(folder)? {
        for name in entries(&folder.join(&set))? {
            let path = folder.join(&set).join(&name);
            let is_ours = name == "features.json" || name.ends_with(".arrow");
            if !path.is_file() || !is_ours {
                continue;
            }
            let bytes = fs::metadata(&path)
                .with_context(|| format!("cannot read `{}`", path.display()))?
                .len();
            let file = FileOf {
                bytes,
                sha256: sha256_file(&path)?,
            };
            let name = if set.is_empty() {
                name
            } else {
                format!("{set}/{name}")
            };
            found.insert(name, file);
        }
    }
    Ok(found)
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
        check_made(&store, &made, part, &found)?;
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
            Store::Folder(folder) => folder.clone(),
            Store::Remote(remote) => fetch(context, remote, parts, descriptions)?,
        };
        let files = join_all(&from, &context.folder(STAGE), parts, descriptions)?;
        context.run.remember(files)?;
        if matches!(self.store, Store::Remote(_)) {
            fs::remove_dir_all(&from)
                .with_context(|| format!("cannot remove `{}`", from.display()))?;
        }
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
        for (file, of) in &found.files {
            let to = folder.join(part.folder()).join(checked(file)?);
            if fs::metadata(&to).is_ok_and(|found| found.len() == of.bytes)
                && sha256_file(&to)? == of.sha256
            {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)
                    .with_context(|| format!("cannot create `{}`", parent.display()))?;
            }
            let name = format!("{}/{file}", part.folder());
            remote.fetch(&name, &to, of.bytes)?;
            of.check(*part, &to, &format!("{}/{name}", remote.name()))?;
        }
        progress.set(1 + number as u64, "parts");
    }
    progress.finish(format!("{} parts", parts.len()));
    Ok(folder)
}

/// Makes each set of samples one folder of its parts.
fn join_all(
    from: &Path,
    folder: &Path,
    parts: &[Part],
    descriptions: &[Description],
) -> Result<Vec<(PathBuf, String)>> {
    let mut sets: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (part, found) in parts.iter().zip(descriptions) {
        let own = from.join(part.folder());
        for (file, of) in &found.files {
            let path = own.join(checked(file)?);
            let index = file.strip_suffix("features.json");
            let Some(set) = index.map(|set| set.trim_end_matches('/')) else {
                continue;
            };
            of.check(*part, &path, &path.display().to_string())?;
            sets.entry(set.to_owned()).or_default().push(own.join(set));
        }
    }
    let mut files = Vec::new();
    for (set, parts) in sets {
        let to = folder.join(&set);
        let shards = join(&parts, &to)?;
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
    fn files_of_a_part_stay_in_it() {
        assert!(checked("held_out/features.json").is_ok());
        for file in ["../x", "/etc/passwd", "a/b/c", "a/../../b"] {
            assert!(checked(file).is_err(), "{file}");
        }
    }
}
