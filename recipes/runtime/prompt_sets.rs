//! Sets of prompts that an evaluation names: their files, here or from the hub, and what is asked in them.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use spectrain_checkpoints::hub::{self, Files, RepoType, Repository};
use spectrain_checkpoints::{Error as HubError, HubOptions};
use spectrain_data::prompts::read_prompts;
use spectrain_data::prompts::sets::{HubFile, KnownSet, names, near};
use spectrain_data::rows::files;
use spectrain_eval::PromptSet;

use crate::recipe::tables::{ChosenSet, PromptEntry};
use crate::runtime::prompts::split;
use crate::runtime::target::hub_options;
use crate::runtime::text::Text;

/// The sets to decode, and what was left of them.
pub struct ReadSets {
    /// At most so many prompts of each set as are wanted.
    pub sets: Vec<PromptSet>,
    /// First turns of all others.
    pub others: Vec<Vec<u32>>,
    /// How many prompts were left out of each set, of which some were, as they are too long.
    pub too_long: Vec<(String, usize)>,
}

impl ReadSets {
    /// What to say of prompts longer than so many tokens.
    pub fn warnings(&self, longest: usize) -> Vec<String> {
        let said = |(name, count): &(String, usize)| {
            format!("prompts of `{name}` longer than {longest} tokens, which are left out: {count}")
        };
        self.too_long.iter().map(said).collect()
    }
}

/// Of each set at most `count` prompts to evaluate, and all others; downloads what is missing.
pub fn read(entries: &[PromptEntry], text: &Text, count: usize) -> Result<ReadSets> {
    let mut read = ReadSets {
        sets: Vec::new(),
        others: Vec::new(),
        too_long: Vec::new(),
    };
    for entry in entries {
        let chosen = choose(entry)?;
        let path = path(&chosen)?;
        let rows = read_prompts(&path, chosen.fields.clone())?;
        let found = text
            .asked(rows)
            .with_context(|| format!("the prompts `{entry}`"))?;
        if found.too_long > 0 {
            read.too_long.push((chosen.name.clone(), found.too_long));
        }
        let (prompts, left) = split(found.prompts, count);
        read.others.extend(left);
        read.sets.push(PromptSet {
            name: chosen.name,
            prompts,
        });
    }
    // Of sets that overlap, what is evaluated from one is not measured on from another.
    let judged = read.sets.iter().flat_map(|set| &set.prompts);
    let judged: Vec<&[u32]> = judged.map(|prompt| &prompt.tokens[..]).collect();
    read.others.retain(|other| !judged.contains(&&other[..]));
    Ok(read)
}

fn choose(entry: &PromptEntry) -> Result<ChosenSet> {
    match entry.choose() {
        Ok(chosen) => Ok(chosen),
        Err(message) => bail!("{message}"),
    }
}

/// The file, folder or pattern with the rows of a set; downloads the file of a known one.
pub fn path(chosen: &ChosenSet) -> Result<PathBuf> {
    match (&chosen.path, chosen.known) {
        (Some(path), known) => {
            // The folder may be a copy of the whole dataset.
            let inside = known
                .and_then(|known| known.hub)
                .map(|hub| path.join(hub.file));
            if let Some(file) = inside.filter(|file| file.is_file()) {
                return Ok(file);
            }
            let found = files(path).map(drop);
            let is_name = known.is_none() && path.components().count() == 1;
            found.with_context(|| match is_name {
                true => format!(
                    "`{}` is no file, and none of the sets {}{}",
                    path.display(),
                    names(),
                    near(&path.to_string_lossy())
                ),
                false => format!("the prompts `{}`", chosen.name),
            })?;
            Ok(path.clone())
        }
        (None, Some(known)) => {
            let name = known.name;
            if PathBuf::from(name).exists() {
                bail!(
                    "`{name}` is a set of prompts and a file here; say `./{name}` or `{{ set = \"{name}\" }}`"
                );
            }
            download(known)
        }
        (None, None) => bail!("`{}` has neither a set nor a path", chosen.name),
    }
}

/// The file of a known set, from the hub unless it is here.
fn download(known: &KnownSet) -> Result<PathBuf> {
    let name = known.name;
    let Some(HubFile { repository, file }) = known.hub else {
        bail!(
            "`{name}` is not on the hub ({}): name its file, `{name}=PATH`",
            known.about
        );
    };
    let dataset = Repository::new(RepoType::Dataset, repository, None)?;
    let folder = hub::download(&dataset, Files::Named(&[file]), &hub_options());
    // What these say is about models.
    let folder = folder.map_err(|error| match error {
        HubError::Unreachable {
            endpoint, reason, ..
        } => anyhow!("`{endpoint}` cannot be reached: {reason}"),
        HubError::NotOnHub {
            endpoint, reason, ..
        } => anyhow!("`{endpoint}` does not have it: {reason}"),
        error => error.into(),
    });
    let folder = folder.with_context(|| {
        format!(
            "cannot download the prompts `{name}`, `{file}` of the dataset `{repository}`; with a file of your own say \
             `{name}=PATH`"
        )
    })?;
    Ok(folder.join(file))
}

/// The first of these sets whose file would have to be downloaded.
pub fn missing(entries: &[PromptEntry]) -> Option<String> {
    entries.iter().find_map(|entry| {
        let chosen = entry.choose().ok()?;
        let HubFile { repository, file } = chosen.known.filter(|_| chosen.path.is_none())?.hub?;
        let dataset = Repository::new(RepoType::Dataset, repository, None).ok()?;
        let is_here = hub::cached_file(&dataset, file, &HubOptions::default()).is_some();
        (!is_here).then_some(chosen.name)
    })
}

/// Whether the files are there that are named by path, and whether the names are those of sets.
pub fn check(entries: &[PromptEntry]) -> Result<()> {
    for entry in entries {
        let chosen = choose(entry)?;
        let on_hub = chosen.known.is_some_and(|known| known.hub.is_some());
        if chosen.path.is_some() || !on_hub {
            path(&chosen)?;
        }
    }
    Ok(())
}

/// Each set with the files that it is read from.
pub fn files_of(entries: &[PromptEntry]) -> Result<Vec<(String, Vec<PathBuf>)>> {
    let of = |entry: &PromptEntry| {
        let chosen = choose(entry)?;
        Ok((chosen.name.clone(), files(&path(&chosen)?)?))
    };
    entries.iter().map(of).collect()
}
