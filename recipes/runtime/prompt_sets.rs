//! Sets of prompts that an evaluation names: their files, here or from the hub, and what is asked in them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use spectrain_checkpoints::hub::{self, Files, RepoType, Repository};
use spectrain_checkpoints::{Error as HubError, HubOptions};
use spectrain_data::dataset::Dataset;
use spectrain_data::hub_data::FetchedData;
use spectrain_data::prepare::Category;
use spectrain_data::prompts::read_prompts;
use spectrain_data::prompts::sets::{HubFile, KnownSet, names, near};
use spectrain_data::rows::{files, would_read};
use spectrain_data::sources::{Origin, Sources};
use spectrain_eval::PromptSet;

use crate::recipe::tables::{ChosenSet, PromptEntry};
use crate::runtime::prompts::{self, beside, split};
use crate::runtime::target::hub_options;
use crate::runtime::text::Text;

/// The sets to decode, and what was left of them.
#[derive(Default)]
pub struct ReadSets {
    /// At most so many prompts of each set as are wanted.
    pub sets: Vec<PromptSet>,
    /// First turns of all others.
    pub others: Vec<Vec<u32>>,
    /// How many prompts were left out of each set, of which some were, as they are too long.
    pub too_long: Vec<(String, usize)>,
    /// How many rows of tokens of each set, of which some are, are trained on from their first token, so that they have no prompt.
    pub all_trained: Vec<(String, usize)>,
    /// How many prompts were left out of each set, of which some were, as they repeat earlier ones.
    pub repeated: Vec<(String, usize)>,
    /// Sets with so many prompts that another set, which is named first, has too.
    pub shared: Vec<([String; 2], usize)>,
    /// What is wrong with the roles of a set's messages, by set.
    pub roles: Vec<(String, String)>,
    /// Rows of presets that are no conversations, by set.
    pub unusable: Vec<(String, Category)>,
    /// What to say of files that stand beside those of a set and are not read, by set.
    pub not_read: Vec<(String, String)>,
    /// What of them is of the hub, by its address.
    pub of_hub: Vec<FetchedData>,
}

impl ReadSets {
    /// What to say of what was left out, prompts longer than so many tokens and rows without any, and of what is wrong.
    pub fn warnings(&self, longest: usize) -> Vec<String> {
        let longest = format!("{longest} tokens");
        let too_long = self.too_long.iter().filter_map(|(name, count)| {
            prompts::too_long(&format!("prompts of `{name}`"), &longest, *count)
        });
        let all_trained = self.all_trained.iter().filter_map(|(name, count)| {
            prompts::without_prompt(&format!("rows of `{name}`"), *count)
        });
        let repeated = self.repeated.iter();
        let repeated = repeated.filter_map(|(name, count)| prompts::repeated(name, *count));
        let shared = self.shared.iter().map(|([first, second], count)| {
            format!(
                "prompts of `{second}` that `{first}` has too: {count}; over all prompts together they count twice, so intervals \
                 there are too narrow"
            )
        });
        let unusable = self.unusable.iter();
        let unusable = unusable.map(|(name, rows)| format!("`{name}`: {}", rows.left_out()));
        let roles = self.roles.iter();
        let roles = roles.map(|(name, lack)| format!("the prompts `{name}`: {lack}"));
        let not_read = self.not_read.iter();
        let not_read = not_read.map(|(name, remark)| format!("the prompts `{name}`: {remark}"));
        let remarks = self.of_hub.iter().filter_map(|data| data.remark.clone());
        let left_out = too_long.chain(all_trained).chain(repeated);
        left_out
            .chain(shared)
            .chain(unusable)
            .chain(roles)
            .chain(not_read)
            .chain(remarks)
            .collect()
    }
}

/// Of each set at most `count` prompts to evaluate, and all others; downloads what is missing.
pub fn read(entries: &[PromptEntry], text: &Text, count: usize) -> Result<ReadSets> {
    let mut read = ReadSets::default();
    for entry in entries {
        let chosen = choose(entry)?;
        let dataset = dataset(&chosen)?;
        let rows = read_prompts(&dataset, chosen.fields.clone())?;
        let found = text
            .asked(rows)
            .with_context(|| format!("the prompts `{entry}`"))?;
        if found.too_long > 0 {
            read.too_long.push((chosen.name.clone(), found.too_long));
        }
        if found.all_trained > 0 {
            let all_trained = (chosen.name.clone(), found.all_trained);
            read.all_trained.push(all_trained);
        }
        if let Some(lack) = found.roles.lack_in_prompts() {
            read.roles.push((chosen.name.clone(), lack));
        }
        let unusable = dataset.unusable();
        if !unusable.is_none() {
            read.unusable.push((chosen.name.clone(), unusable));
        }
        let not_read = dataset.not_read().into_iter();
        let not_read = not_read.map(|remark| (chosen.name.clone(), remark));
        read.not_read.extend(not_read);
        read.of_hub.extend(dataset.of_hub().cloned());
        let (distinct, repeated) = prompts::distinct(found.prompts);
        if repeated > 0 {
            read.repeated.push((chosen.name.clone(), repeated));
        }
        let (prompts, left) = split(distinct, count);
        read.others.extend(left);
        read.sets.push(PromptSet {
            name: chosen.name,
            prompts,
        });
    }
    read.shared = shared(&read.sets);
    // Of sets that overlap, what is evaluated from one is not measured on from another.
    let judged = read.sets.iter().flat_map(|set| &set.prompts);
    read.others = beside(judged, read.others);
    Ok(read)
}

/// Each two of the sets that share prompts, and how many.
fn shared(sets: &[PromptSet]) -> Vec<([String; 2], usize)> {
    let mut found = Vec::new();
    for (at, second) in sets.iter().enumerate() {
        for first in &sets[..at] {
            let known: HashSet<&[u32]> = first.prompts.iter().map(|of| &of.tokens[..]).collect();
            let both = second.prompts.iter();
            let both = both.filter(|of| known.contains(&of.tokens[..])).count();
            if both > 0 {
                found.push(([first.name.clone(), second.name.clone()], both));
            }
        }
    }
    found
}

fn choose(entry: &PromptEntry) -> Result<ChosenSet> {
    match entry.choose() {
        Ok(chosen) => Ok(chosen),
        Err(message) => bail!("{message}"),
    }
}

/// The rows of a set; downloads what is missing.
fn dataset(chosen: &ChosenSet) -> Result<Dataset> {
    match (&chosen.origin, chosen.known) {
        (Some(Origin::Path(path)), _) => Ok(own(path, chosen)?.into()),
        (Some(origin), _) => {
            let fetched = Sources::from(origin.clone()).fetch(&hub_options());
            fetched.with_context(|| format!("the prompts `{}`", chosen.name))
        }
        (None, Some(known)) => {
            let name = known.name;
            if PathBuf::from(name).exists() {
                bail!(
                    "`{name}` is a set of prompts and also a file here; write `./{name}` for the file or \
                     `{{ set = \"{name}\" }}` for the set"
                );
            }
            Ok(download(known)?.into())
        }
        (None, None) => bail!("`{}` has neither a set nor a path", chosen.name),
    }
}

/// The file, folder or pattern of one's own with the rows of a set.
fn own(path: &Path, chosen: &ChosenSet) -> Result<PathBuf> {
    let known = chosen.known;
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
    Ok(path.to_owned())
}

/// How many prompts a set has, as far as they are `wanted`: by the rows of its file, where that is one's own; else as many as are
/// wanted.
pub(crate) fn count(entry: &PromptEntry, wanted: usize) -> usize {
    let rows = || {
        let chosen = entry.choose().ok()?;
        let Some(Origin::Path(path)) = &chosen.origin else {
            return None;
        };
        let dataset = Dataset::from(own(path, &chosen).ok()?);
        let rows = read_prompts(&dataset, chosen.fields.clone()).ok()?;
        Some(rows.filter(|row| row.is_ok()).take(wanted).count())
    };
    rows().unwrap_or(wanted)
}

/// Whether prompts are read from a file, which need not be there yet.
pub(crate) fn are_read_from(entries: &[PromptEntry], file: &Path) -> bool {
    let chosen = entries.iter().filter_map(|entry| entry.choose().ok());
    let mut paths = chosen.filter_map(|chosen| match &chosen.origin {
        Some(Origin::Path(path)) => own(path, &chosen).ok(),
        _ => None,
    });
    paths.any(|path| would_read(&path, file))
}

/// The file of a known set, from the hub unless it is here.
fn download(known: &KnownSet) -> Result<PathBuf> {
    let name = known.name;
    let Some(HubFile { repository, file }) = known.hub else {
        bail!(
            "`{name}` is not on the hub ({}): give a file with it as `{name}=PATH`",
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
            "cannot download the prompts `{name}`, `{file}` of the dataset `{repository}`; to use a file of your own, write \
             `{name}=PATH`"
        )
    })?;
    Ok(folder.join(file))
}

/// Where the rows of a set are, if that is on the hub and it is no known set.
fn on_hub(chosen: &ChosenSet) -> Option<Sources> {
    let origin = chosen.origin.clone();
    let origin = origin.filter(|origin| !matches!(origin, Origin::Path(_)));
    origin.map(Sources::from)
}

/// The datasets of the hub among these sets.
pub fn of_hub(entries: &[PromptEntry]) -> impl Iterator<Item = Sources> {
    let chosen = entries.iter().filter_map(|entry| entry.choose().ok());
    chosen.filter_map(|chosen| on_hub(&chosen))
}

/// The first of these sets of which something would have to be downloaded.
pub fn missing(entries: &[PromptEntry]) -> Option<String> {
    entries.iter().find_map(|entry| {
        let chosen = entry.choose().ok()?;
        if let Some(sources) = on_hub(&chosen) {
            return sources.here(&hub_options()).err();
        }
        let HubFile { repository, file } = chosen.known.filter(|_| chosen.origin.is_none())?.hub?;
        let dataset = Repository::new(RepoType::Dataset, repository, None).ok()?;
        let is_here = hub::cached_file(&dataset, file, &HubOptions::default()).is_some();
        (!is_here).then_some(chosen.name)
    })
}

/// Whether the files are there that are named by path, the hub has the datasets, and the names are those of sets.
pub fn check(entries: &[PromptEntry]) -> Result<()> {
    for entry in entries {
        let chosen = choose(entry)?;
        let has_file = chosen.known.is_some_and(|known| known.hub.is_some());
        if let Some(sources) = on_hub(&chosen) {
            sources.downloads(&hub_options())?;
        } else if chosen.origin.is_some() || !has_file {
            dataset(&chosen)?;
        }
    }
    Ok(())
}

/// Each set with its rows; downloads what is missing.
pub fn datasets(entries: &[PromptEntry]) -> Result<Vec<(String, Dataset)>> {
    let of = |entry: &PromptEntry| {
        let chosen = choose(entry)?;
        Ok((chosen.name.clone(), dataset(&chosen)?))
    };
    entries.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use spectrain_data::mask::Masking;
    use spectrain_data::prepare::{Overlong, PrepareSettings, Turns};
    use spectrain_data::tokenizer::Tokenizer;
    use spectrain_data::unusable::Unusable;

    use super::*;

    #[test]
    fn rows_of_a_set_that_have_no_prompt_are_told() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat_tokenizer");
        let text = Text {
            tokenizer: Tokenizer::from_folder(&golden).unwrap(),
            template: None,
            settings: PrepareSettings {
                max_length: 3,
                overlong: Overlong::Drop,
                masking: Masking::Assistant,
                turns: Turns::Auto,
                min_trained_tokens: 1,
                unusable: Unusable::Refuse,
                vocab: 320,
            },
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens.jsonl");
        let row = |mask: [u8; 5]| json!({"input_ids": [5, 6, 7, 8, 9], "loss_mask": mask});
        let written = |masks: &[[u8; 5]]| {
            let rows = masks.iter().map(|mask| format!("{}\n", row(*mask)));
            std::fs::write(&file, rows.collect::<String>()).unwrap();
        };
        let entry = PromptEntry::Short(file.display().to_string());
        let entries = [entry];
        written(&[[0, 1, 1, 1, 1], [1; 5], [1, 0, 0, 0, 1], [0, 0, 0, 0, 1]]);
        let found = read(&entries, &text, 9).unwrap();
        assert_eq!(found.sets[0].prompts.len(), 1);
        let name = &found.sets[0].name;
        assert_eq!(
            found.warnings(3),
            [
                format!("prompts of `{name}` longer than 3 tokens, which are left out: 1"),
                format!(
                    "rows of `{name}` that are trained on from their first token, so that nothing of them is a prompt: 2"
                ),
            ]
        );
        // Without others it is an error, which names no key of a recipe.
        written(&[[1; 5]]);
        let error = format!("{:#}", read(&entries, &text, 9).err().unwrap());
        let told = "it holds no prompt; rows that are trained on from their first token, so that nothing of them is a prompt: 1; \
                    expected conversations, or tokens whose mask begins with 0";
        assert!(error.ends_with(told), "{error}");
    }
}
