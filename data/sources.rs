//! Where the rows of a dataset come from: one path or several, each with a weight.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::rows::{LocatedRow, files, read_rows};
use crate::seed::{mix, uniform};

/// Seed of the choice of rows by weight: the same in every run, whatever its own seed.
const WEIGHT_SEED: u64 = 0x77e1_6474;

/// Paths of a dataset. In a recipe a path, `{ path = …, weight = … }`, or a list of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Given", into = "Given")]
pub struct Sources(Vec<Source>);

/// A path of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// A file, a folder or a pattern; see [`files`].
    pub path: PathBuf,
    /// How often its samples are taken: 2 is twice, 0.5 is half of them, always the same ones.
    pub weight: f64,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a path, `{ path = \"…\", weight = 1.0 }`, or a list of these"
)]
enum Given {
    One(Entry),
    Several(Vec<Entry>),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a path or `{ path = \"…\", weight = 1.0 }`"
)]
enum Entry {
    Path(PathBuf),
    Weighted(Weighted),
}

/// A path with a weight.
// Read from a table alone: as a struct it could be a list as well, in which a path and a weight have no names.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeMap<String, Part>")]
#[schemars(!try_from, deny_unknown_fields)]
struct Weighted {
    /// A file, a folder or a pattern.
    path: PathBuf,
    /// How often its samples are taken: 2 is twice, 0.5 is half of them, always the same ones.
    #[schemars(default = "once")]
    weight: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Path(PathBuf),
    Weight(f64),
}

impl TryFrom<BTreeMap<String, Part>> for Weighted {
    type Error = &'static str;

    fn try_from(mut parts: BTreeMap<String, Part>) -> Result<Self, Self::Error> {
        let (path, weight) = (parts.remove("path"), parts.remove("weight"));
        match (path, weight.unwrap_or(Part::Weight(once())), parts.len()) {
            (Some(Part::Path(path)), Part::Weight(weight), 0) => Ok(Self { path, weight }),
            _ => Err("expected `path` and `weight`"),
        }
    }
}

fn once() -> f64 {
    1.0
}

impl From<Entry> for Source {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Path(path) => Self {
                path,
                weight: once(),
            },
            Entry::Weighted(Weighted { path, weight }) => Self { path, weight },
        }
    }
}

impl From<Source> for Entry {
    fn from(Source { path, weight }: Source) -> Self {
        if weight == once() {
            Self::Path(path)
        } else {
            Self::Weighted(Weighted { path, weight })
        }
    }
}

impl From<Given> for Sources {
    fn from(given: Given) -> Self {
        let entries = match given {
            Given::One(entry) => vec![entry],
            Given::Several(entries) => entries,
        };
        Self(entries.into_iter().map(Source::from).collect())
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

impl From<PathBuf> for Sources {
    fn from(path: PathBuf) -> Self {
        Self(vec![Entry::Path(path).into()])
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (number, source) in self.0.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}`{}`", source.path.display())?;
        }
        Ok(())
    }
}

impl Sources {
    /// Each of them.
    pub fn each(&self) -> &[Source] {
        &self.0
    }

    /// The path, where there is only one.
    pub fn only(&self) -> Option<&Path> {
        match &self.0[..] {
            [source] => Some(&source.path),
            _ => None,
        }
    }

    /// The files of all paths.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let each = self.0.iter().map(|source| files(&source.path));
        Ok(each.collect::<Result<Vec<_>>>()?.concat())
    }

    /// The rows of all paths one after the other, with how often their samples are taken; those that are not are there too.
    pub fn rows(&self) -> Result<impl Iterator<Item = Result<LocatedRow>> + use<>> {
        let each = (0..).zip(&self.0).map(|(place, source)| {
            let (seed, weight) = (mix(WEIGHT_SEED, place), source.weight);
            let rows = (0..).zip(read_rows(&source.path)?);
            Ok(rows.map(move |(number, row)| {
                row.map(|row| LocatedRow {
                    copies: copies(weight, mix(seed, number)),
                    ..row
                })
            }))
        });
        Ok(each.collect::<Result<Vec<_>>>()?.into_iter().flatten())
    }
}

/// The whole part of a weight, and one more for as large a share of the rows as the rest says.
fn copies(weight: f64, bits: u64) -> usize {
    let more = uniform(bits) < weight.fract();
    weight as usize + usize::from(more)
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
        ] {
            assert_eq!(json!(of(given.clone())), given);
        }
        assert_eq!(json!(of(json!([{"path": "a"}]))), json!("a"));
        for (given, expected) in [
            (json!(3), "a list of these"),
            (json!([["a"]]), "a list of these"),
            (json!(["a", 0.5]), "a list of these"),
            (json!({"path": "a", "wieght": 2}), "a list of these"),
        ] {
            let error = serde_json::from_value::<Sources>(given)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_weight_says_how_often_rows_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let row = r#"{"input_ids": [1], "loss_mask": [1]}"#;
        for name in ["a.jsonl", "b.jsonl"] {
            std::fs::write(folder.path().join(name), format!("{row}\n").repeat(400)).unwrap();
        }
        let path = |name: &str| folder.path().join(name);
        let sources = of(
            json!([{"path": path("a.jsonl"), "weight": 2}, {"path": path("b.jsonl"), "weight": 0.5}]),
        );
        let taken = || -> Vec<usize> {
            sources
                .rows()
                .unwrap()
                .map(|row| row.unwrap().copies)
                .collect()
        };
        let copies = taken();
        assert!(copies[..400].iter().all(|&copies| copies == 2));
        let half: usize = copies[400..].iter().sum();
        assert!(
            (160..240).contains(&half) && copies[400..].iter().all(|&copies| copies < 2),
            "{half}"
        );
        assert_eq!(taken(), copies);
        assert_eq!(sources.files().unwrap(), [path("a.jsonl"), path("b.jsonl")]);
    }
}
