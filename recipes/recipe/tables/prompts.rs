//! What `evaluate.prompts` takes: a number of prompts of `data.eval`, or sets of prompts by name and by path.

use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::hub_data::HubAddress;
use spectrain_data::presets::Preset;
use spectrain_data::prompts::sets::{KnownSet, find, names, near};
use spectrain_data::prompts::{Ask, Fields};
use spectrain_data::sources::Origin;

/// Which prompts are decoded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a number of prompts, or a list of prompt sets and paths"
)]
pub enum Prompts {
    /// This many prompts of `data.eval`.
    Count(usize),
    /// The prompts of these sets.
    Sets(Vec<PromptEntry>),
}

/// A set of prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a prompt set, a path, `hf://org/name`, `NAME=PATH`, or a table with `set`, `path` or `preset`, and no \
                 keys but `name`, `template`, `turns`, `category` and `language`"
)]
pub enum PromptEntry {
    /// The name of a known set, a path, a dataset on the hub (`hf://org/name[@revision][:config/split]`), or `NAME=PATH` for a
    /// known set in a file or dataset of your own.
    Short(String),
    /// The same, given by keys.
    Table(PromptTable),
}

/// A set of prompts by keys. In `template`, `turns`, `category` and `language` columns of its rows are named.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PromptTable {
    /// The name of a set that `spectrain data prompts` lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// A file, a folder, a pattern or a dataset on the hub; where `set` is given, it replaces the set's own file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// In place of both: the name of a training dataset that `spectrain data presets` lists; the prompts are its conversations
    /// up to their last answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The name of the set in reports. Left out: the name of the set, the file or the dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The text of a prompt, in which `{question}` stands for the column of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The column with the user's turns, a list of texts. Left out: `turns` or `prompt`, where rows have no `messages`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<String>,
    /// The column with the category. Left out: the set's column, or `category` where rows have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The column with the language. Left out: the set's column, or `language` where rows have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

/// Where the rows of a set come from, and what their columns are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenSet {
    /// What reports call it.
    pub name: String,
    /// The known set that it is.
    pub known: Option<&'static KnownSet>,
    /// Where its rows are; none where the known set's own file is meant.
    pub origin: Option<Origin>,
    /// Its columns.
    pub fields: Fields,
}

impl From<&str> for PromptEntry {
    fn from(given: &str) -> Self {
        Self::Short(given.to_owned())
    }
}

impl fmt::Display for PromptEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(given) => f.write_str(given),
            Self::Table(table) => {
                let path = table.path.iter().map(|path| path.display().to_string());
                let parts = table.set.clone().into_iter().chain(path);
                let parts: Vec<String> = parts.chain(table.preset.clone()).collect();
                f.write_str(&parts.join("="))
            }
        }
    }
}

impl PromptEntry {
    /// What is meant. Whether a path leads anywhere is not looked at.
    ///
    /// # Errors
    /// There is no set of this name, or keys do not go together: what was expected, and what was found.
    pub fn choose(&self) -> Result<ChosenSet, String> {
        let table = match self {
            Self::Table(table) => table.clone(),
            Self::Short(given) => short(given),
        };
        if table.preset.is_some() {
            return of_preset(table);
        }
        let known = match &table.set {
            Some(name) => Some(find(name).ok_or_else(|| {
                let (known, near) = (names(), near(name));
                format!("expected one of the sets {known}, found `{name}`{near}")
            })?),
            None => None,
        };
        let mut fields = known.map(KnownSet::fields).unwrap_or_default();
        match (table.template, table.turns) {
            (Some(_), Some(_)) => {
                return Err(format!(
                    "expected `template` or `turns`, found both for `{self}`"
                ));
            }
            (Some(template), None) => fields.ask = Ask::Text(template),
            (None, Some(turns)) => fields.ask = Ask::Turns(vec![turns]),
            (None, None) => {}
        }
        fields.category = table.category.or(fields.category);
        fields.language = table.language.or(fields.language);
        let origin = table.path.map(Origin::read).transpose()?;
        let own = known.map(|known| known.name.to_owned());
        let Some(name) = table
            .name
            .or(own)
            .or_else(|| origin.as_ref().and_then(short_name))
        else {
            return Err(format!(
                "expected `set`, `path` or `preset`, found none of them in `{self}`"
            ));
        };
        Ok(ChosenSet {
            name,
            known,
            origin,
            fields,
        })
    }
}

/// The conversations of a preset.
fn of_preset(table: PromptTable) -> Result<ChosenSet, String> {
    let PromptTable { name, preset, .. } = &table;
    let alone = PromptTable {
        name: name.clone(),
        preset: preset.clone(),
        ..PromptTable::default()
    };
    let preset = Preset::find(preset.as_deref().unwrap_or_default())?;
    if table != alone {
        let name = preset.name;
        return Err(format!(
            "expected no key but `name` beside `preset`, whose columns are known, found more for `{name}`"
        ));
    }
    let origin = Origin::Preset(preset);
    Ok(ChosenSet {
        name: table
            .name
            .or_else(|| short_name(&origin))
            .unwrap_or_default(),
        known: None,
        origin: Some(origin),
        fields: Fields::default(),
    })
}

/// What reports call rows by the place that they come from.
fn short_name(origin: &Origin) -> Option<String> {
    match origin {
        Origin::Path(path) => Some(path.file_stem()?.to_string_lossy().into_owned()),
        Origin::Preset(preset) => Some(preset.name.to_owned()),
        Origin::Hub(HubAddress { id, split, .. }) => {
            let name = id.rsplit('/').next()?.to_owned();
            Some(match split {
                Some(split) => format!("{name} {split}"),
                None => name,
            })
        }
    }
}

/// What a text stands for: a set, a set in a file of one's own, or else a path.
fn short(given: &str) -> PromptTable {
    let named = |set: &str, path: Option<&str>| PromptTable {
        set: Some(set.to_owned()),
        path: path.map(PathBuf::from),
        ..PromptTable::default()
    };
    match given.split_once('=') {
        _ if find(given).is_some() => named(given, None),
        Some((set, path)) if find(set).is_some() => named(set, Some(path)),
        _ => PromptTable {
            path: Some(Path::new(given).to_owned()),
            ..PromptTable::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(given: &str) -> (String, Option<&'static str>, Option<Origin>) {
        let chosen = PromptEntry::from(given).choose().unwrap();
        (
            chosen.name,
            chosen.known.map(|known| known.name),
            chosen.origin,
        )
    }

    #[test]
    fn a_text_is_a_set_a_set_in_a_file_or_a_path() {
        let path = |path: &str| Some(Origin::Path(path.into()));
        let hub = |address: &str| Some(Origin::Hub(HubAddress::parse(address)?.ok()?));
        assert_eq!(chosen("gsm8k"), ("gsm8k".into(), Some("gsm8k"), None));
        let own = ("gsm8k".into(), Some("gsm8k"), path("a=b.parquet"));
        assert_eq!(chosen("gsm8k=a=b.parquet"), own);
        assert_eq!(
            chosen("data/q.jsonl"),
            ("q".into(), None, path("data/q.jsonl"))
        );
        assert_eq!(chosen("a=b.jsonl"), ("a=b".into(), None, path("a=b.jsonl")));
        assert_eq!(chosen("./gsm8k"), ("gsm8k".into(), None, path("./gsm8k")));
        let address = "hf://org/chat@v1:c/test";
        assert_eq!(chosen(address), ("chat test".into(), None, hub(address)));
        let own = chosen("gsm8k=hf://org/problems");
        let expected = ("gsm8k".into(), Some("gsm8k"), hub("hf://org/problems"));
        assert_eq!(own, expected);
        let wrong = PromptEntry::from("hf://a/b/c").choose().unwrap_err();
        assert!(wrong.contains("`hf://org/name@revision`"), "{wrong}");
    }

    #[test]
    fn keys_take_the_place_of_those_of_a_set() {
        let read = |given: &str| -> Vec<PromptEntry> {
            #[derive(Deserialize)]
            struct Given {
                prompts: Prompts,
            }
            let read: Given = toml::from_str(&format!("prompts = [{given}]")).unwrap();
            match read.prompts {
                Prompts::Sets(sets) => sets,
                Prompts::Count(_) => panic!("a number"),
            }
        };
        let entry =
            &read(r#"{ set = "mt-bench", path = "q.jsonl", turns = "asked", name = "mine" }"#)[0];
        let chosen = entry.choose().unwrap();
        assert_eq!(chosen.name, "mine");
        assert_eq!(chosen.fields.ask, Ask::Turns(vec!["asked".into()]));
        assert_eq!(chosen.fields.category.as_deref(), Some("category"));
        assert_eq!(entry.to_string(), "mt-bench=q.jsonl");
        let entry = &read(r#"{ preset = "magpie", name = "mine" }"#)[0];
        let chosen = entry.choose().unwrap();
        let magpie = Preset::find("magpie").unwrap();
        assert_eq!(chosen.origin, Some(Origin::Preset(magpie)));
        assert_eq!(
            (chosen.name.as_str(), entry.to_string()),
            ("mine", "magpie".into())
        );
        for (given, error) in [
            (
                r#"{ set = "gsm9k" }"#,
                "expected one of the sets gsm8k, math-500",
            ),
            (
                r#"{ name = "a" , set = "gsm8k", template = "x", turns = "y" }"#,
                "found both",
            ),
            (
                r#"{ preset = "magpei" }"#,
                "expected one of the presets `ultrachat`",
            ),
            (
                r#"{ preset = "magpie", turns = "x" }"#,
                "no key but `name` beside `preset`",
            ),
            (
                "{ category = \"a\" }",
                "expected `set`, `path` or `preset`, found none of them",
            ),
        ] {
            let found = read(given)[0].choose().unwrap_err();
            assert!(found.contains(error), "{found}");
        }
    }
}
