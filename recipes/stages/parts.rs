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
use crate::runs::run_folder::Inputs;
use crate::runtime::store::{Remote, Store};
use crate::stages::array::Part;
use crate::stages::context::StageContext;
use crate::stages::inputs::settings;
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
        Ok(Self {
            part: part.part,
            of: part.of,
            recipe: context.recipe.recipe.clone(),
            seed: context.recipe.seed,
            settings: settings(context.recipe, stage)?,
            inputs: context.inputs(stage)?,
        })
    }

    /// The first thing that differs in `found`, in words.
    fn difference(&self, found: &Self) -> Option<String> {
        let [own, other] = [self, found].map(|made| json!(made));
        let keys = own.as_object()?.keys();
        let mut differences = keys.filter_map(|key| difference(key, &own[key], &other[key]));
        differences.next()
    }
}

/// Where two values differ first, by their keys.
fn difference(path: &str, own: &Value, found: &Value) -> Option<String> {
    if own == found {
        return None;
    }
    if let (Value::Object(own), Value::Object(other)) = (own, found) {
        let keys = own.keys().chain(other.keys());
        let at = |key: &String| {
            let [own, other] = [own, other].map(|table| table.get(key).unwrap_or(&Value::Null));
            difference(&format!("{path}.{key}"), own, other)
        };
        return keys.filter_map(at).next();
    }
    Some(format!("`{path}`: expected {own}, found {found}"))
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
    match made.difference(&found) {
        Some(difference) => bail!(
            "part {part} in `{}` has begun with other inputs or settings: {difference}; {}",
            folder.display(),
            anew()
        ),
        None => Ok(()),
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

/// Makes the parts of the stage the stage, if there are some. None where there are none and none are said to be.
///
/// # Errors
/// Parts are missing, or were made from something else, or are not as they were written.
pub(super) fn joined(context: &StageContext, stage: &Stage) -> Result<Option<Value>> {
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
    let folder = context.folder(STAGE);
    let from = match &store {
        Store::Folder(folder) => folder.clone(),
        Store::Remote(remote) => fetch(context, remote, &parts, &descriptions)?,
    };
    let files = join_all(&from, &folder, &parts, &descriptions)?;
    context.run.remember(files)?;
    if matches!(store, Store::Remote(_)) {
        fs::remove_dir_all(&from).with_context(|| format!("cannot remove `{}`", from.display()))?;
    }
    Ok(Some(json!({
        "parts": parts.len(),
        "from": store.name(),
        "each": descriptions.iter().map(|found| &found.summary).collect::<Vec<_>>(),
    })))
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

    #[test]
    fn a_difference_is_named_by_its_keys() {
        let [own, other] = [
            json!({"a": {"b": 1, "c": 2}}),
            json!({"a": {"b": 1, "c": 3}}),
        ];
        assert_eq!(difference("x", &own, &own), None);
        let told = difference("x", &own, &other).unwrap();
        assert_eq!(told, "`x.a.c`: expected 2, found 3");
    }

    #[test]
    fn files_of_a_part_stay_in_it() {
        assert!(checked("held_out/features.json").is_ok());
        for file in ["../x", "/etc/passwd", "a/b/c", "a/../../b"] {
            assert!(checked(file).is_err(), "{file}");
        }
    }
}
