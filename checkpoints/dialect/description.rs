//! What one engine, or several, take a folder of a kind of drafter to be.

use std::path::Path;

use serde_json::Value;

use crate::beside;
use crate::config::Config;
use crate::dialect::in_target::InTarget;
use crate::dialect::key::Key;
use crate::dialect::reading::Meaning;
use crate::dialect::settings::Settings;
use crate::dialect::vocabulary::TokenMap;
use crate::error::{Error, Result};
use crate::expected::TensorSpec;
use crate::folder::ModelFolder;
use crate::launch::Launch;
use crate::mismatch::Mismatch;
use crate::tensors::NamedTensor;

/// A layout of folders, as data. What is truly code are small functions in `Quirks`.
pub struct Dialect {
    /// What errors call it.
    pub name: &'static str,
    /// What messages call its drafters.
    pub family: &'static str,
    /// What they call one of them, where those of a layout have several names.
    pub called: Option<fn(&Settings) -> &'static str>,
    /// Whether they need nothing of their target but the text, and so draft for any target with its tokens.
    pub by_text: bool,
    /// Whether its folders are language models by themselves, as `transformers` loads them.
    pub is_language_model: bool,
    /// Whether a folder is of it.
    pub recognises: fn(&ModelFolder) -> bool,
    /// Values of `architectures` that it is read under; none where it is not told by them.
    pub(crate) architectures: &'static [&'static str],
    /// The table in which keys are looked for that are not at the top.
    pub(crate) section: Option<&'static str>,
    /// Keys in the order in which they are written.
    pub(crate) keys: &'static [Keys],
    /// Those of a dialect that is another's but for these: they stand behind, or in the place of keys of the same name.
    pub(crate) more: &'static [Keys],
    /// What keys must hold if they are there: the drafter computes nothing else.
    pub(crate) neutral: &'static [&'static [(&'static str, Neutral)]],
    /// Beginnings of names of tensors: here, and in the folder.
    pub(crate) renamed: &'static [[&'static str; 2]],
    /// Further beginnings in folders of others, and what they are here.
    pub(crate) aliases: &'static [[&'static str; 2]],
    /// Tensors that are written in 32 bits whatever the others are.
    pub(crate) in_f32: &'static [&'static str],
    /// Tensors that folders repeat of the target, or of nothing, and that are not read.
    pub(crate) repeated: &'static [&'static str],
    /// Those of them beside which vLLM does not load a folder.
    pub vllm_refuses: &'static [&'static str],
    /// Beginnings of names of the target's own tensors, in whose folder the drafter may stand. They are not read either.
    pub(crate) of_target: &'static [&'static str],
    /// How it stands there.
    pub(crate) in_target: Option<InTarget>,
    /// How it writes a draft vocabulary.
    pub(crate) token_map: TokenMap,
    /// Where the target's head is written if the drafter shares it.
    pub shared_head: SharedHead,
    /// Commands that serve such a folder: of its settings, the folder, the target and the tokens of a draft.
    pub launch: fn(&Settings, &Path, &str, usize) -> Vec<Launch>,
    /// The rest.
    pub(crate) quirks: Quirks,
}

/// Keys that stand together.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    /// The table that they are in; empty for none.
    pub(crate) under: &'static str,
    /// The switch that must be on for them to be there; empty for none.
    pub(crate) when: &'static str,
    /// The table of settings that they are all of.
    pub(crate) table: Option<Table>,
    pub(crate) keys: &'static [Key],
}

/// A table of settings.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    name: &'static str,
    /// Whether a configuration has it.
    is_in: fn(&Config) -> bool,
}

impl Keys {
    /// Whether they are there, by what was read before them.
    pub(crate) fn are_read(&self, config: &Config, settings: &Settings) -> bool {
        self.table.is_none_or(|table| (table.is_in)(config)) && self.are_on(settings)
    }

    /// Whether they are there, by the settings.
    pub(crate) fn are_written(&self, settings: &Settings) -> bool {
        let is_set = |table: Table| settings.get(table.name).is_some();
        self.table.is_none_or(is_set) && self.are_on(settings)
    }

    fn are_on(&self, settings: &Settings) -> bool {
        self.when.is_empty() || settings.flag(self.when)
    }
}

/// Keys at the top.
pub(crate) const fn top(keys: &'static [Key]) -> Keys {
    Keys {
        under: "",
        when: "",
        table: None,
        keys,
    }
}

/// Keys in a table.
pub(crate) const fn under(under: &'static str, keys: &'static [Key]) -> Keys {
    Keys { under, ..top(keys) }
}

/// Keys at the top that are there where a switch is on.
pub(crate) const fn when(when: &'static str, keys: &'static [Key]) -> Keys {
    Keys { when, ..top(keys) }
}

/// Keys at the top that are settings of the table `name`, which there is where it `is_in` a configuration.
pub(crate) const fn of_table(
    name: &'static str,
    is_in: fn(&Config) -> bool,
    keys: &'static [Key],
) -> Keys {
    let table = Some(Table { name, is_in });
    Keys { table, ..top(keys) }
}

/// Where a shared head is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedHead {
    /// Nowhere: engines use the target's.
    Never,
    /// In folders whose drafter has a vocabulary of its own, as engines share the whole head or none, and beside targets whose logits
    /// are more than their head's: engines would draft with the head alone.
    OfDraftVocabulary,
    /// In every folder, as if it were the drafter's own.
    AsOwn,
    /// In every folder, which says whose it is.
    Beside,
}

/// The one value of a key that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Neutral {
    Flag(bool),
    Word(&'static str),
    Number(f64),
    Size(usize),
    /// No value at all, for this reason.
    Absent(&'static str),
}

/// What no table says.
#[derive(Clone, Copy)]
pub(crate) struct Quirks {
    /// The name here of a stored tensor that nothing wraps, where no table of beginnings has it.
    pub(crate) canonical: fn(&ModelFolder, &str) -> Option<String>,
    /// The reverse, for names that depend on the settings.
    pub(crate) stored: fn(&Settings, &str) -> Option<String>,
    /// Fails for a folder that says it computes something else.
    pub(crate) check_folder: fn(&Config) -> Result<()>,
    /// Fails for settings that would be read as others, or that no engine runs as they are meant.
    pub(crate) check_settings: fn(&Settings) -> Check,
    /// Makes stored tensors the drafter's: what is written twice, or is missing and means something.
    pub(crate) reduce: fn(&Path, &Settings, &mut Vec<NamedTensor>) -> Result<()>,
    /// The reverse: adds what engines read besides.
    pub(crate) complete: fn(&Settings, &mut Vec<NamedTensor>),
    /// What a folder may hold besides.
    pub(crate) optional: fn(&Settings) -> Vec<TensorSpec>,
    /// Every way in which a folder can be meant, the likeliest first; where there are captured layers these are not in
    /// question.
    pub(crate) meanings: Meanings,
    /// Whether one may be given captured layers in place of those that it says.
    pub(crate) takes_layers: bool,
}

/// The ways in which a configuration can be meant, where these captured layers are given.
type Meanings = fn(&Config, Option<&[usize]>) -> Result<Vec<Meaning>>;

/// Nothing, or the setting at fault with what was expected and found.
pub(crate) type Check = std::result::Result<(), (&'static str, String, String)>;

impl Quirks {
    pub(crate) const NONE: Self = Self {
        canonical: |_, _| None,
        stored: |_, _| None,
        check_folder: |_| Ok(()),
        check_settings: |_| Ok(()),
        reduce: |_, _, _| Ok(()),
        complete: |_, _| (),
        optional: |_| Vec::new(),
        meanings: |config, captured_layers| {
            let mut reading = config.reading().clone();
            reading.captured_layers = captured_layers.map(<[usize]>::to_vec);
            let text = String::from("as it says");
            Ok(vec![Meaning { reading, text }])
        },
        takes_layers: false,
    };
}

impl Dialect {
    /// One that says nothing yet.
    pub(crate) const fn named(name: &'static str, recognises: fn(&ModelFolder) -> bool) -> Self {
        Self {
            name,
            family: name,
            called: None,
            by_text: false,
            is_language_model: false,
            recognises,
            architectures: &[],
            section: None,
            keys: &[],
            more: &[],
            neutral: &[],
            renamed: &[],
            aliases: &[],
            in_f32: &[],
            repeated: &[],
            vllm_refuses: &[],
            of_target: &[],
            in_target: None,
            token_map: TokenMap::Whole,
            shared_head: SharedHead::Never,
            launch: |_, _, _, _| Vec::new(),
            quirks: Quirks::NONE,
        }
    }

    /// Whether its drafters may stand in the folder of their target, beside the target's own tensors.
    pub fn may_be_beside_target(&self) -> bool {
        !self.of_target.is_empty()
    }

    /// Whether [`Dialect::meanings`] heeds captured layers that it is given.
    pub fn takes_layers(&self) -> bool {
        self.quirks.takes_layers
    }

    /// Its keys.
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = &'static Keys> {
        self.keys.iter().chain(self.more)
    }

    /// The name of a drafter's tensor in a folder.
    pub(crate) fn stored(&self, settings: &Settings, name: &str) -> String {
        if let Some(stored) = (self.quirks.stored)(settings, name) {
            return stored;
        }
        replaced(self.renamed.iter().copied(), name)
    }

    /// The name here of a stored tensor that nothing wraps.
    pub(crate) fn canonical(&self, folder: &ModelFolder, stored: &str) -> String {
        if let Some(name) = (self.quirks.canonical)(folder, stored) {
            return name;
        }
        let aliases = self.aliases.iter().copied();
        let renamed = self.renamed.iter().map(|[here, there]| [*there, *here]);
        replaced(aliases.chain(renamed), stored)
    }

    /// Commands that serve a folder of these settings, which may tell of its target: with a remark in place of each for an engine that
    /// does not run such a drafter beside such a target.
    pub fn launch_lines(
        &self,
        settings: &Settings,
        folder: &Path,
        target: &str,
        draft_tokens: usize,
    ) -> Vec<Launch> {
        let lines = (self.launch)(settings, folder, target, draft_tokens);
        let mut lines = beside::kept(settings, lines);
        // Engines leave out the factor of such logits where the head is the target's and the folder has none: the likeliest tokens are
        // the same, their probabilities are not. Most layouts have no other head, and no setting that says so.
        let is_of_target = settings.get("head").is_none() || settings.shares_head();
        let is_unwritten = self.shared_head == SharedHead::Never && !self.is_language_model;
        if is_of_target && is_unwritten && settings.flag(beside::TARGET_SCALES_LOGITS) {
            lines = lines.into_iter().map(Launch::likeliest_alone).collect();
        }
        lines
    }

    /// An error about settings that are not written.
    pub(crate) fn refuse(&self, (field, expected, got): (&'static str, String, String)) -> Error {
        Error::Layout {
            dialect: self.name,
            field,
            mismatch: Mismatch::new(expected, got),
        }
    }
}

fn replaced(mut pairs: impl Iterator<Item = [&'static str; 2]>, name: &str) -> String {
    let found = pairs.find_map(|[from, to]| Some((to, name.strip_prefix(from)?)));
    match found {
        Some((to, rest)) => format!("{to}{rest}"),
        None => name.to_owned(),
    }
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Self::Flag(flag) => *value == flag,
            Self::Word(word) => *value == word,
            Self::Number(number) => value.as_f64() == Some(number),
            Self::Size(size) => *value == size,
            Self::Absent(_) => false,
        }
    }

    fn expected(self) -> String {
        match self {
            Self::Flag(flag) => format!("`{flag}`"),
            Self::Word(word) => format!("`\"{word}\"`"),
            Self::Number(number) => format!("`{number:?}`"),
            Self::Size(size) => format!("`{size}`"),
            Self::Absent(reason) => format!("nothing: {reason}"),
        }
    }

    pub(crate) fn check(self, config: &Config, key: &str) -> Result<()> {
        match config.get(key) {
            Some(value) if !self.is(value) => Err(config.wrong(key, self.expected())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{self, Choosing};

    #[test]
    fn probabilities_of_a_head_of_the_targets_without_its_factor_are_not_drawn_from() {
        let dialect = Dialect {
            launch: |_, dir, target, tokens| vec![launch::vllm(dir, "eagle", target, tokens)],
            ..Dialect::named("a", |_| false)
        };
        let choosing = |head: Option<&str>, scales: bool| {
            let mut settings = Settings::default();
            settings.set("head", head);
            settings.set(beside::TARGET_SCALES_LOGITS, scales);
            let lines = dialect.launch_lines(&settings, Path::new("d"), "t", 3);
            lines[0].choosing
        };
        for (head, is_likeliest) in [(None, true), (Some("shared"), true), (Some("own"), false)] {
            let found = choosing(head, true) == Some(Choosing::Likeliest);
            assert_eq!(found, is_likeliest, "{head:?}");
            assert_ne!(choosing(head, false), Some(Choosing::Likeliest));
        }
    }
}
