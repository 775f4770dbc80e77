//! Where the rows of a dataset come from: a path, a dataset of the hub or a preset, or several of these, each with a weight.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::HubOptions;
use spectrain_checkpoints::near::did_you_mean;

use crate::dataset::{Dataset, Located, Place};
use crate::error::Result;
use crate::hub_data::{self, Downloads, FetchedData, HubAddress};
use crate::presets::{Conversion, Preset};
use crate::rows::files;

/// Where a dataset is. In a recipe a path or the address of a dataset on the hub (`hf://org/name`), `{ path = …, weight = … }`,
/// `{ preset = …, weight = … }`, or a list of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Read", into = "Given")]
#[schemars(!try_from, !into, with = "Given")]
pub struct Sources(Vec<Source>);

/// A part of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Where it is.
    pub origin: Origin,
    /// How often its samples are taken: 2 is twice, 0.5 is half of them, always the same ones.
    pub weight: f64,
}

/// Where rows come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file, a folder or a pattern; see [`crate::rows::files`].
    Path(PathBuf),
    /// A dataset of the hub.
    Hub(HubAddress),
    /// A dataset of the hub that is known by name.
    Preset(&'static Preset),
}

impl Origin {
    /// A path, or the address that it is.
    ///
    /// # Errors
    /// It begins as an address and is none.
    pub fn read(path: PathBuf) -> Result<Self, String> {
        match path.to_str().and_then(HubAddress::parse) {
            Some(address) => Ok(Self::Hub(address?)),
            None => Ok(Self::Path(path)),
        }
    }

    /// The dataset of the hub, where it is one.
    fn on_hub(&self) -> Option<HubAddress> {
        match self {
            Self::Path(_) => None,
            Self::Hub(address) => Some(address.clone()),
            Self::Preset(preset) => Some(preset.address()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "`{}`", path.display()),
            Self::Hub(address) => write!(f, "`{address}`"),
            Self::Preset(preset) => write!(f, "the preset `{}`", preset.name),
        }
    }
}

/// What sources are, for messages.
const SOURCES: &str = "a path, `hf://org/name`, `{ path = \"…\", weight = 1.0 }`, `{ preset = \"…\" }`, or a list of these";

// As sources are written. They are read from `Read`, which is there to say what is wrong with them.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Given {
    One(Entry),
    Several(Vec<Entry>),
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Entry {
    Path(PathBuf),
    Weighted(Weighted),
}

/// A path or a preset, with a weight.
#[derive(Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Weighted {
    /// A file, a folder, a pattern, or a dataset on the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    /// A dataset by its name, in place of `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    preset: Option<String>,
    /// How often its samples are used: 2 means twice, 0.5 means half of them, always the same half.
    #[schemars(default = "once")]
    weight: f64,
}

/// Anything that may stand where sources should.
#[derive(Deserialize)]
#[serde(untagged)]
enum Read {
    Text(String),
    Number(f64),
    List(Vec<Read>),
    Table(BTreeMap<String, Read>),
    Flag(bool),
    Nothing(()),
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "`{text}`"),
            Self::Number(number) => write!(f, "`{number}`"),
            Self::List(items) => write!(f, "a list of {}", items.len()),
            Self::Table(fields) if fields.is_empty() => f.write_str("a table without keys"),
            Self::Table(fields) => {
                let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
                write!(f, "a table with the keys `{}`", keys.join("`, `"))
            }
            Self::Flag(flag) => write!(f, "`{flag}`"),
            Self::Nothing(()) => f.write_str("`null`"),
        }
    }
}

fn once() -> f64 {
    1.0
}

impl TryFrom<Read> for Source {
    type Error = String;

    fn try_from(given: Read) -> Result<Self, String> {
        match given {
            Read::Text(path) => Ok(Self {
                origin: Origin::read(path.into())?,
                weight: once(),
            }),
            Read::Table(fields) => Self::of_table(fields),
            other => Err(format!("expected {SOURCES}; found {other}")),
        }
    }
}

impl Source {
    /// A path or the name of a preset, with its weight where it has one.
    fn of_table(mut fields: BTreeMap<String, Read>) -> Result<Self, String> {
        const KEYS: [&str; 3] = ["path", "preset", "weight"];
        if let Some(unknown) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!(
                "expected {SOURCES}; found the key `{unknown}`{}",
                did_you_mean(unknown, KEYS)
            ));
        }
        let weight = match fields.remove("weight") {
            None => once(),
            Some(Read::Number(weight)) => weight,
            Some(other) => return Err(format!("expected a number as `weight`, found {other}")),
        };
        let origin = match (fields.remove("path"), fields.remove("preset")) {
            (Some(Read::Text(path)), None) => Origin::read(path.into())?,
            (None, Some(Read::Text(name))) => Origin::Preset(Preset::find(&name)?),
            (None, None) => {
                return Err(format!(
                    "expected {SOURCES}; found neither `path` nor `preset`"
                ));
            }
            (Some(_), Some(_)) => {
                return Err(format!(
                    "expected {SOURCES}; found both `path` and `preset`"
                ));
            }
            (Some(other), None) => return Err(format!("expected a text as `path`, found {other}")),
            (None, Some(other)) => {
                return Err(format!("expected a text as `preset`, found {other}"));
            }
        };
        Ok(Self { origin, weight })
    }
}

impl From<Source> for Entry {
    fn from(Source { origin, weight }: Source) -> Self {
        let (path, preset) = match origin {
            Origin::Path(path) => (Some(path), None),
            Origin::Hub(address) => (Some(address.to_string().into()), None),
            Origin::Preset(preset) => (None, Some(preset.name.to_owned())),
        };
        match path {
            Some(path) if weight == once() => Self::Path(path),
            path => Self::Weighted(Weighted {
                path,
                preset,
                weight,
            }),
        }
    }
}

impl TryFrom<Read> for Sources {
    type Error = String;

    fn try_from(given: Read) -> Result<Self, String> {
        let entries = match given {
            Read::List(entries) => entries,
            one => vec![one],
        };
        let sources = entries.into_iter().map(Source::try_from);
        Ok(Self(sources.collect::<Result<_, String>>()?))
    }
}

impl From<Sources> for Given {
    fn from(Sources(mut sources): Sources) -> Self {
        match (sources.len(), sources.pop()) {
            (1, Some(source)) => Self::One(source.into()),
            (_, last) => Self::Several(sources.into_iter().chain(last).map(Entry::from).collect()),
        }
    }
}

impl From<Origin> for Sources {
    fn from(origin: Origin) -> Self {
        Self(vec![Source {
            origin,
            weight: once(),
        }])
    }
}

impl FromIterator<Sources> for Sources {
    fn from_iter<I: IntoIterator<Item = Sources>>(several: I) -> Self {
        Self(several.into_iter().flat_map(|sources| sources.0).collect())
    }
}

impl From<PathBuf> for Sources {
    fn from(path: PathBuf) -> Self {
        Origin::Path(path).into()
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (number, source) in self.0.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{}", source.origin)?;
        }
        Ok(())
    }
}

impl Sources {
    /// Each of them.
    pub fn each(&self) -> &[Source] {
        &self.0
    }

    /// The path, where there is only one and it is no dataset of the hub.
    pub fn only(&self) -> Option<&Path> {
        match &self.0[..] {
            [
                Source {
                    origin: Origin::Path(path),
                    ..
                },
            ] => Some(path),
            _ => None,
        }
    }

    /// The dataset, with what is missing of it downloaded.
    ///
    /// # Errors
    /// A dataset of the hub cannot be had. Whether paths lead anywhere is not looked at.
    pub fn fetch(&self, options: &HubOptions) -> Result<Dataset> {
        let fetch = |address: &HubAddress| hub_data::fetch(address, options);
        let located = self.0.iter().map(|source| source.locate(fetch));
        Ok(Dataset::new(located.collect::<Result<_>>()?))
    }

    /// The same where nothing has to be downloaded; fails with the address of the first dataset that has to be.
    pub fn here(&self, options: &HubOptions) -> Result<Dataset, String> {
        let find = |address: &HubAddress| {
            hub_data::is_here(address, options).ok_or_else(|| address.to_string())
        };
        let located = self.0.iter().map(|source| source.locate(find));
        Ok(Dataset::new(located.collect::<Result<_, String>>()?))
    }

    /// What [`fetch`](Self::fetch) would download; of the hub only lists of files are asked.
    ///
    /// # Errors
    /// Those of `fetch`, and paths that lead to no file with rows.
    pub fn downloads(&self, options: &HubOptions) -> Result<Vec<Downloads>> {
        let each = self.0.iter().filter_map(|source| match &source.origin {
            Origin::Path(path) => files(path).err().map(Err),
            origin => Some(hub_data::downloads(&origin.on_hub()?, options)),
        });
        each.collect()
    }
}

impl Source {
    /// Where its files are; `hub` says it of a dataset of the hub.
    fn locate<E>(&self, hub: impl Fn(&HubAddress) -> Result<FetchedData, E>) -> Result<Located, E> {
        let (place, preset) = match &self.origin {
            Origin::Path(path) => (Place::Path(path.clone()), None),
            Origin::Hub(address) => (Place::Hub(Box::new(hub(address)?)), None),
            Origin::Preset(preset) => (Place::Hub(Box::new(hub(&preset.address())?)), Some(preset)),
        };
        Ok(Located {
            name: preset.map(|preset| preset.name.to_owned()),
            conversion: preset.map_or(Conversion::None, |preset| preset.conversion),
            weight: self.weight,
            place,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(value: serde_json::Value) -> Sources {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn sources_are_written_as_they_are_given() {
        for given in [
            json!("a.jsonl"),
            json!({"path": "b", "weight": 0.5}),
            json!(["a.jsonl", {"path": "b", "weight": 2.0}]),
            json!("hf://org/name@v1:c/s"),
            json!({"preset": "gsm8k", "weight": 1.0}),
            json!(["a", {"path": "hf://org/name", "weight": 0.5}, {"preset": "magpie", "weight": 2.0}]),
        ] {
            assert_eq!(json!(of(given.clone())), given);
        }
        assert_eq!(json!(of(json!([{"path": "a"}]))), json!("a"));
        for (given, expected) in [
            (json!(3), "or a list of these; found `3`"),
            (json!(true), "found `true`"),
            (json!([null]), "found `null`"),
            (json!([["a"]]), "found a list of 1"),
            (json!(["a", 0.5]), "found `0.5`"),
            (
                json!({"path": "a", "wieght": 2}),
                "found the key `wieght`; did you mean `weight`?",
            ),
            (
                json!({"path": "a", "weight": "2"}),
                "expected a number as `weight`, found `2`",
            ),
            (json!({"path": 2}), "expected a text as `path`, found `2`"),
            (json!({"weight": 2}), "found neither `path` nor `preset`"),
            (
                json!({"path": "a", "preset": "gsm8k"}),
                "found both `path` and `preset`",
            ),
            (
                json!({"preset": "gsm9k"}),
                "expected one of the presets `ultrachat`",
            ),
            (json!("hf://a/b/c"), "`hf://org/name@revision`"),
        ] {
            let error = serde_json::from_value::<Sources>(given)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
