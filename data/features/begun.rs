//! What a writer goes on with in a folder of features: the index, or where that is gone one made anew of the shards, none of which is
//! thrown away for what another file has lost.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use super::index::{
    FeatureHeader, FeatureIndex, FeatureShard, INDEX, SampleRange, is_ours, shard_name,
    shard_number,
};
use super::shards::described;
use crate::durable::{TEMPORARY, old_name};
use crate::error::{Error, Result};
use crate::words::counted;

/// Where a writer begins.
#[derive(Debug)]
pub(super) struct Begun {
    /// The shards that are there, and between them those that are lost.
    pub(super) index: FeatureIndex,
    /// Places in the index of those that are lost, in their order. The last shard is none of them.
    pub(super) lost: VecDeque<usize>,
    /// What was found amiss, for people.
    pub(super) amiss: Vec<String>,
}

impl Begun {
    /// Finds what is there in a folder: nothing, all that was begun there, or what is left of it. What was in the making is removed, and
    /// all else that is not on record kept under another name.
    ///
    /// # Errors
    /// It is of something else, or cannot be read.
    pub(super) fn find(
        folder: &Path,
        header: FeatureHeader,
        part: Option<SampleRange>,
    ) -> Result<Self> {
        let mut amiss = Vec::new();
        let index = match read(folder, &mut amiss)? {
            Some(index) => {
                check(&index, (&header, part), &folder.join(INDEX))?;
                index
            }
            None => rebuilt(folder, header, part, &mut amiss)?,
        };
        let mut begun = Self {
            index,
            lost: VecDeque::new(),
            amiss,
        };
        begun.find_lost(folder);
        begun.clear(folder)?;
        Ok(begun)
    }

    /// Finds the shards of which there is no file. Behind the last one that is there, nothing is kept of any.
    fn find_lost(&mut self, folder: &Path) {
        for (place, shard) in self.index.shards.iter_mut().enumerate() {
            let path = folder.join(&shard.file);
            if shard.is_on_record() && path.exists() {
                continue;
            }
            if shard.is_on_record() {
                let path = path.display();
                let range = shard.range();
                self.amiss.push(format!(
                    "`{path}`, of samples {} to {}, is missing",
                    range.start, range.end
                ));
            }
            *shard = FeatureShard::lost(shard.file.clone(), shard.range());
            self.lost.push_back(place);
            self.index.complete = false;
        }
        while self
            .lost
            .back()
            .is_some_and(|last| last + 1 == self.index.shards.len())
        {
            self.lost.pop_back();
            self.index.shards.pop();
        }
    }

    /// Frees the names under which shards are written.
    fn clear(&mut self, folder: &Path) -> Result<()> {
        let index = &self.index;
        let next = shard_name(index.shards.len());
        for name in names(folder)? {
            let is_listed = name == INDEX || index.on_record().any(|shard| shard.file == name);
            if !is_ours(&name) || is_listed {
                continue;
            }
            let path = folder.join(&name);
            // A shard that was renamed but not yet entered is computed again.
            if name.ends_with(TEMPORARY) || name == next {
                fs::remove_file(&path).map_err(|source| Error::write(&path, source))?;
            } else {
                let why = format!("`{INDEX}` has none of this name on record");
                self.amiss.push(kept_aside(&path, &why)?);
            }
        }
        Ok(())
    }
}

/// The index of a folder; none where there is none, or what is there was not written as it is, which is kept aside then.
fn read(folder: &Path, amiss: &mut Vec<String>) -> Result<Option<FeatureIndex>> {
    let path = folder.join(INDEX);
    if !path.exists() {
        return Ok(None);
    }
    match FeatureIndex::read(folder) {
        Err(error) if is_damage(&error) => {
            amiss.push(kept_aside(&path, &error.to_string())?);
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// Whether what stands there was not written as an index: it is cut, changed or something else. One of another version is an index, and
/// one that cannot be opened may be.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::Read { source, .. } => source.is::<serde_json::Error>(),
        Error::Altered { what, .. } => *what != "version",
        _ => false,
    }
}

/// Fails where an index is of something else.
fn check(
    index: &FeatureIndex,
    (header, part): (&FeatureHeader, Option<SampleRange>),
    path: &Path,
) -> Result<()> {
    header.require(&index.header, path)?;
    if index.part == part {
        return Ok(());
    }
    let named =
        |part: Option<SampleRange>| part.map_or("all samples".to_owned(), |part| part.to_string());
    let (expected, found) = (named(part), named(index.part));
    Err(Error::altered(path, "part", expected, found))
}

/// An index of the shards in a folder that has none, by what each says of itself. Those that are not whole, or of something else, are
/// kept aside.
fn rebuilt(
    folder: &Path,
    header: FeatureHeader,
    part: Option<SampleRange>,
    amiss: &mut Vec<String>,
) -> Result<FeatureIndex> {
    let mut index = FeatureIndex::new(header, part);
    let mut shards: Vec<(usize, String)> = names(folder)?
        .into_iter()
        .filter_map(|name| Some((shard_number(&name)?, name)))
        .collect();
    shards.sort_unstable();
    for (number, name) in &shards {
        let path = folder.join(name);
        let shard = described(folder, name, &index.header);
        if let Err(error) = shard.and_then(|shard| place(&mut index, *number, shard, &path)) {
            amiss.push(kept_aside(&path, &error.to_string())?);
        }
    }
    if !index.shards.is_empty() {
        amiss.push(format!(
            "`{}` is made anew of what {} say of themselves",
            folder.join(INDEX).display(),
            counted(index.on_record().count() as u64, "shard")
        ));
    }
    Ok(index)
}

/// Adds a shard of this number, and before it those that are missing between it and the one before.
fn place(index: &mut FeatureIndex, number: usize, shard: FeatureShard, path: &Path) -> Result<()> {
    let (count, next) = (index.shards.len(), index.samples());
    let files = number.saturating_sub(count) as u64;
    let samples = shard.first.checked_sub(next);
    let Some(samples) = samples.filter(|&samples| samples >= files && (files > 0 || samples == 0))
    else {
        let expected = match files {
            0 => next.to_string(),
            _ => format!("at least {}", next.saturating_add(files)),
        };
        return Err(Error::altered(path, "first sample", expected, shard.first));
    };
    let end = shard.first.checked_add(shard.samples);
    let most = index.part.map_or(u64::MAX, |part| part.end);
    if end.is_none_or(|end| end > most) {
        return Err(Error::altered(
            path,
            "last sample",
            format!("before {most}"),
            "a later one",
        ));
    }
    for missing in 1..=files {
        // How many each of them had is not known, and makes no difference.
        let SampleRange { first, end, .. } = SampleRange::of_part(missing, files, samples);
        let file = shard_name(index.shards.len());
        let lost = FeatureShard::lost(file, next + first..next + end);
        index.shards.push(lost);
    }
    index.shards.push(shard);
    Ok(())
}

/// Gives a file that is not gone on with another name, and says so.
pub(super) fn kept_aside(path: &Path, why: &str) -> Result<String> {
    let old = old_name(path);
    fs::rename(path, &old).map_err(|source| Error::write(path, source))?;
    let (path, old) = (path.display(), old.display());
    Ok(format!("`{path}` is kept as `{old}`: {why}"))
}

/// The names of what is in a folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let failed = |source| Error::read(folder, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}
