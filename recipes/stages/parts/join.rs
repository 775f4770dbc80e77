//! The parts of all elements of an array job, made the stage `features`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use spectrain_data::Error;
use spectrain_data::features::{Recorded, join};

use super::{
    Description, FETCHED, Made, PART, STAGE, captured_again, check_made, description, store,
};
use crate::runtime::interruption::check_interrupted;
use crate::runtime::store::{Remote, Store};
use crate::stages::array::Part;
use crate::stages::context::StageContext;
use crate::stages::features::places::FEATURES;
use crate::stages::stage::Stage;

/// All parts of a stage, made as it is to be.
pub(crate) struct Parts {
    store: Store,
    parts: Vec<Part>,
    descriptions: Vec<Description>,
}

/// Whether the stage is joined from parts, so that nothing of it is computed here.
pub(crate) fn are_there(context: &StageContext) -> Result<bool> {
    Ok(context.array.parts.is_some() || !store(context, None)?.names()?.is_empty())
}

/// Fails where the stage, which is not finished, is of parts that are somewhere else than in the run, and nobody says where: all of it
/// would be computed here.
pub(crate) fn check_given(context: &StageContext) -> Result<()> {
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
pub(crate) fn find(context: &StageContext, stage: &Stage) -> Result<Option<Parts>> {
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
    pub(crate) fn join(&self, context: &StageContext) -> Result<Value> {
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

/// An error of a file that one of these parts in `from` has, or that was joined before, with what to do about it.
fn advised(error: anyhow::Error, from: &Path, parts: &[Part]) -> anyhow::Error {
    let Some(Error::Altered { path, .. } | Error::Read { path, .. }) = error.downcast_ref() else {
        return error;
    };
    let is_of = |part: &&Part| path.starts_with(from.join(part.folder()));
    let then = match parts.iter().find(is_of) {
        Some(_) if from.ends_with(FETCHED) => "it is fetched again".to_owned(),
        Some(part) => captured_again(*part),
        None => "it is taken from the parts again".to_owned(),
    };
    anyhow!("{error}; remove this file, and {then}")
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
    for (set, folders) in sets {
        let to = context.folder(STAGE).join(&set);
        let proof = |files: &[Recorded]| context.run.prove(files);
        let shards = join(&folders, &to, proof, &check_interrupted);
        let shards = shards.map_err(|error| advised(error, from, parts))?;
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
    fn a_damaged_file_is_told_with_what_makes_it_again() {
        let parts = [1, 2].map(|part| Part { part, of: 2 });
        let told = |from: &str, file: &str| {
            let path = file.into();
            let source = "gone".into();
            let error = Error::Read { path, source };
            advised(error.into(), Path::new(from), &parts).to_string()
        };
        for (from, file, then) in [
            (
                "there",
                "there/part-00002-of-00002/a",
                "`--stage features --part 2/2` captures",
            ),
            (
                FETCHED,
                &format!("{FETCHED}/part-00002-of-00002/a"),
                "it is fetched again",
            ),
            (
                "there",
                "runs/run/features/a",
                "it is taken from the parts again",
            ),
        ] {
            let told = told(from, file);
            assert!(
                told.contains(&format!("remove this file, and {then}")),
                "{told}"
            );
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
