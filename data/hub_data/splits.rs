//! Which configurations and splits a dataset of the hub has, and which files are theirs: as its card says, else as the
//! library `datasets` finds them by their names (<https://huggingface.co/docs/hub/datasets-data-files-configuration>).

use std::collections::BTreeMap;

use glob::{MatchOptions, Pattern};
use serde_json::Value;
use spectrain_checkpoints::hub::Listing;
use spectrain_checkpoints::printable;

use super::address::HubAddress;
use super::formats::{best, rank};

/// The configuration of a dataset that names none.
const DEFAULT: &str = "default";
/// The split that is meant where none is named, if there is one.
const TRAIN: &str = "train";
/// Splits that an error lists.
const LISTED: usize = 40;

/// The words by which files show their split.
const WORDS: [(&str, &[&str]); 3] = [
    (TRAIN, &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Rows that go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) config: String,
    pub(super) name: String,
    /// Paths in the repository, in their order.
    pub(super) files: Vec<String>,
    /// Whether the hub has converted only the first of its rows.
    pub(super) is_cut: bool,
}

/// The splits of a repository with files of a format that is read here; none where it has none.
pub(super) fn splits(listing: &Listing) -> Vec<Split> {
    let by_card = of_card(listing);
    if by_card.is_empty() {
        by_names(listing, DEFAULT, "")
    } else {
        by_card
    }
}

fn paths(listing: &Listing) -> impl Iterator<Item = &str> + Clone {
    listing.files.iter().map(|file| file.path.as_str())
}

/// What the card's `configs` say.
fn of_card(listing: &Listing) -> Vec<Split> {
    let mut splits = Vec::new();
    for config in listing.card["configs"].as_array().into_iter().flatten() {
        let name = config["config_name"].as_str().unwrap_or(DEFAULT);
        let folder = config["data_dir"].as_str();
        if let Some(folder) = folder.filter(|_| config["data_files"].is_null()) {
            let folder = match tidy(folder) {
                "" | "." => String::new(),
                folder => format!("{folder}/"),
            };
            splits.extend(by_names(listing, name, &folder));
        }
        for (split, patterns) in data_files(&config["data_files"]) {
            let found: Vec<&str> = paths(listing)
                .filter(|path| {
                    patterns
                        .iter()
                        .any(|pattern| matches(pattern, folder, path))
                })
                .collect();
            let files = owned(&best(found.into_iter()));
            if !files.is_empty() {
                splits.push(Split {
                    config: name.to_string(),
                    name: split,
                    files,
                    is_cut: false,
                });
            }
        }
    }
    splits
}

/// Splits and their patterns: a pattern, a list of them, or a list of splits with theirs.
fn data_files(given: &Value) -> Vec<(String, Vec<String>)> {
    let texts = |value: &Value| -> Vec<String> {
        let one = value.as_str().map(str::to_owned);
        let several = value.as_array().into_iter().flatten();
        let several = several.filter_map(|text| Some(text.as_str()?.to_owned()));
        one.into_iter().chain(several).collect()
    };
    let named = given.as_array().into_iter().flatten().filter_map(|entry| {
        let split = entry["split"].as_str()?.to_owned();
        Some((split, texts(&entry["path"])))
    });
    let named: Vec<_> = named.collect();
    if !named.is_empty() {
        return named;
    }
    let plain = texts(given);
    if plain.is_empty() {
        Vec::new()
    } else {
        vec![(TRAIN.to_string(), plain)]
    }
}

/// Whether a path is that of a pattern, or in the folder of this name.
fn matches(pattern: &str, folder: Option<&str>, path: &str) -> bool {
    let pattern = match folder {
        Some(folder) => format!("{}/{}", tidy(folder), tidy(pattern)),
        None => tidy(pattern).to_owned(),
    };
    let options = MatchOptions {
        require_literal_separator: true,
        ..MatchOptions::new()
    };
    let is_in = path
        .strip_prefix(&pattern)
        .is_some_and(|rest| rest.starts_with('/'));
    is_in || Pattern::new(&pattern).is_ok_and(|pattern| pattern.matches_with(path, options))
}

/// A path without what says nothing at its ends.
fn tidy(path: &str) -> &str {
    path.trim_start_matches("./").trim_end_matches('/')
}

/// The splits of a configuration that the names of the files show whose paths begin with `folder`; without any all of these are one to
/// train on.
fn by_names(listing: &Listing, config: &str, folder: &str) -> Vec<Split> {
    let readable = best(paths(listing).filter(|path| path.starts_with(folder)));
    let split = |(name, files): (String, Vec<&str>)| Split {
        config: config.to_string(),
        name,
        files: owned(&files),
        is_cut: false,
    };
    for named in [of_shard as fn(&str) -> Option<String>, of_word] {
        let mut splits: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for path in &readable {
            if let Some(split) = named(&path[folder.len()..]) {
                splits.entry(split).or_default().push(path);
            }
        }
        if !splits.is_empty() {
            return splits.into_iter().map(split).collect();
        }
    }
    let all = (!readable.is_empty()).then(|| split((TRAIN.to_string(), readable)));
    all.into_iter().collect()
}

/// The split of `data/SPLIT-00000-of-00002.parquet`.
fn of_shard(path: &str) -> Option<String> {
    let (folder, name) = path.rsplit_once('/')?;
    let stem = name.split('.').next()?;
    let mut parts = stem.split('-');
    let (split, number, of, count) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (folder == "data" && of == "of" && is_number(number) && is_number(count) && !split.is_empty())
        .then(|| split.to_string())
}

/// The split that a word of the path names: of the file's name, else of its folders from the innermost on.
fn of_word(path: &str) -> Option<String> {
    path.rsplit('/').find_map(|part| {
        let mut words = part.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.find_map(|word| {
            let known = |(_, words): &&(&str, &[&str])| words.contains(&word);
            Some(WORDS.iter().find(known)?.0.to_string())
        })
    })
}

/// The splits on the branch that the hub converts to Parquet: `CONFIG/SPLIT/0000.parquet`.
pub(super) fn converted(listing: &Listing) -> Vec<Split> {
    let mut splits: BTreeMap<(String, String, bool), Vec<String>> = BTreeMap::new();
    for path in paths(listing).filter(|path| rank(path) == Some(0)) {
        let parts: Vec<&str> = path.split('/').collect();
        let [config, split, _] = parts[..] else {
            continue;
        };
        let whole = split.strip_prefix("partial-");
        let key = (
            config.to_string(),
            whole.unwrap_or(split).to_string(),
            whole.is_some(),
        );
        splits.entry(key).or_default().push(path.to_string());
    }
    let split = |((config, name, is_cut), files)| Split {
        config,
        name,
        files,
        is_cut,
    };
    splits.into_iter().map(split).collect()
}

/// The split that an address means.
///
/// # Errors
/// It names none of these, or none where several could be meant: what was expected, what was found and what there is.
pub(super) fn choose<'s>(splits: &'s [Split], address: &HubAddress) -> Result<&'s Split, String> {
    let mut configs: Vec<&str> = splits.iter().map(|split| split.config.as_str()).collect();
    configs.sort_unstable();
    configs.dedup();
    let there_are = || format!("; there are {}", listed(splits));
    let config = match (&address.config, &configs[..]) {
        (Some(config), _) if configs.contains(&config.as_str()) => config.as_str(),
        (Some(config), _) => {
            return Err(format!(
                "no configuration `{}`{}",
                printable(config),
                there_are()
            ));
        }
        (None, [only]) => only,
        (None, _) if configs.contains(&DEFAULT) => DEFAULT,
        (None, _) => {
            return Err(format!(
                "expected a configuration, as in `:{}`, found none{}",
                splits.first().map(name).unwrap_or_default(),
                there_are()
            ));
        }
    };
    let of_config: Vec<&Split> = splits
        .iter()
        .filter(|split| split.config == config)
        .collect();
    let named = |wanted: &str| of_config.iter().copied().find(|split| split.name == wanted);
    match (&address.split, &of_config[..]) {
        (Some(split), _) => named(split).ok_or_else(|| {
            let split = printable(split);
            format!(
                "no split `{split}` in the configuration `{config}`{}",
                there_are()
            )
        }),
        (None, [only]) => Ok(only),
        (None, _) => named(TRAIN).ok_or_else(|| {
            format!(
                "expected a split, as in `:{config}/{}`, found none{}",
                of_config[0].name,
                there_are()
            )
        }),
    }
}

/// `config/split`.
pub(super) fn name(split: &Split) -> String {
    format!("{}/{}", printable(&split.config), printable(&split.name))
}

fn listed(splits: &[Split]) -> String {
    let names: Vec<String> = splits
        .iter()
        .take(LISTED)
        .map(|split| format!("`{}`", name(split)))
        .collect();
    let more = splits.len().saturating_sub(LISTED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    names.join(", ") + &more
}

fn owned(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_string()).collect()
}

#[cfg(test)]
mod tests;
