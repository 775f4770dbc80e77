//! The text of a recipe as tables that remember where each key stands, with the overrides of the command line.

use std::ops::Range;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize as _;
use spectrain_checkpoints::near::did_you_mean;
use spectrain_train::{OF_EPOCHS, OF_WSD};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::recipe::change::{Change, merge};
use crate::recipe::defaults::fill;
use crate::recipe::file::{File, OPTIONAL_TABLES};
use crate::recipe::kinds;
use crate::recipe::misplaced::in_tables;
use crate::recipe::problem::{Problem, setting};
use crate::recipe::renamed::new_name;
use crate::recipe::settings::Settings;
use crate::recipe::twice;
use crate::recipe::wording::{LEAST, QUESTION, UNKNOWN_KEY, worded};

/// Keys of a training that say the same, of which there is one: how long it takes, and how long it warms up.
const RIVALS: [([&str; 2], &str); 2] = [
    (["steps", "epochs"], "how long to train"),
    (["warmup_steps", "warmup_ratio"], "how long to warm up"),
];

/// The key that says the same as this one.
pub(crate) fn rival(key: &str) -> Option<&'static str> {
    let mut pairs = RIVALS.iter();
    pairs.find_map(|([one, other], _)| match key {
        key if key == *one => Some(*other),
        key if key == *other => Some(*one),
        _ => None,
    })
}

/// The key that says which schedule a training has.
pub(crate) const SCHEDULE: &str = "schedule";
/// The only schedule that reads further keys, [`OF_WSD`].
const WSD: &str = "wsd";

/// Whether a key is one that a training with this schedule does not read, because another schedule does.
pub(crate) fn is_of_other_schedule(key: &str, schedule: Option<&str>) -> bool {
    OF_WSD.contains(&key) && schedule.is_some_and(|schedule| schedule != WSD)
}

/// What the parser says of a file without a `name`, the only key beside `recipe` that stands in no table and has no default.
const NO_NAME: &str = "missing field `name`";

/// How it begins what is said of a key that must not be there beside others.
const ABSENT: [&str; 2] = ["expected nothing beside ", "expected no such key "];

/// The table of the training stages.
const STAGES: &str = "stages";

/// A recipe's text as tables that remember where each key stands.
pub struct Document<'a> {
    text: &'a str,
    table: Spanned<DeTable<'a>>,
    changes: &'a [Change],
}

impl<'a> Document<'a> {
    pub(super) fn parse(text: &'a str, changes: &'a [Change]) -> Result<Self> {
        let parsed = DeTable::parse(text);
        let mut table = parsed.map_err(|error| anyhow!("{}", twice::told(text, &error)))?;
        for change in changes {
            let parsed = change.parse();
            let given = parsed.as_ref().map(rivals).unwrap_or_default();
            let applied =
                parsed.and_then(|changed| merge(table.get_mut(), changed, ("", change.key())));
            applied.with_context(|| format!("cannot apply `--set {}`", change.given))?;
            for (path, key) in given {
                give_way(table.get_mut(), &path, key, text.len());
            }
        }
        Ok(Self {
            text,
            table,
            changes,
        })
    }

    /// The name of the recipe that the file is of; `known` are those that there are.
    pub(super) fn recipe(&self, known: &str) -> Result<&str> {
        let root = self.table.get_ref();
        let Some((_, value)) = root.iter().find(|(key, _)| key.get_ref() == "recipe") else {
            bail!(
                "key `recipe` is missing: it names the drafter and its objective; known recipes: {known}"
            );
        };
        value.get_ref().as_str().ok_or_else(|| {
            let found = value.get_ref().type_str();
            let message = format!("expected a string, found {found}");
            self.locate(&Problem::new("recipe", message))
        })
    }

    /// Reads the tables as those of one drafter and of one objective that trains in these stages.
    pub fn file<D: Settings, O: Settings>(
        &self,
        stages: &'static [&'static str],
    ) -> Result<File<D, O>> {
        let mut table = self.table.clone();
        for name in OPTIONAL_TABLES {
            let empty = Spanned::new(0..0, DeValue::Table(DeTable::new()));
            table
                .get_mut()
                .entry(Spanned::new(0..0, name.into()))
                .or_insert(empty);
        }
        self.fill_stages(table.get_mut(), stages)?;
        self.check_rivals(table.get_ref())?;
        if let Some(date) = kinds::date(self.table.get_ref()) {
            return Err(self.locate(&date));
        }
        let mut file: File<D, O> = File::deserialize(toml::Deserializer::from(table.clone()))
            .map_err(|error| {
                let meant = self.meant::<D, O>(&error);
                let choices = choices::<D, O>(table, &error);
                let told = self.explain(error, choices);
                match meant {
                    // A slip of a name that stands in no table is asked about already.
                    Some(meant) if !told.to_string().contains(QUESTION) => {
                        anyhow!("{told}{QUESTION}{meant}?")
                    }
                    _ => told,
                }
            })?;
        let read = serde_json::to_value(&file).context("cannot write the recipe as JSON")?;
        if let Some(positional) = kinds::positional(self.table.get_ref(), &read) {
            return Err(self.locate(&positional));
        }
        let trainings = std::iter::once(&mut file.train).chain(file.stages.values_mut());
        for training in trainings.filter(|training| training.epochs.is_some()) {
            training.steps = OF_EPOCHS;
        }
        fill(&mut file, &|key| self.sets(key));
        Ok(file)
    }

    /// The keys of tables that are meant by an unknown one that stands in none.
    fn meant<D: Settings, O: Settings>(&self, error: &toml::de::Error) -> Option<String> {
        if !error.message().starts_with(UNKNOWN_KEY) {
            return None;
        }
        let root = self.table.get_ref();
        // Of a key in a table this is its path.
        let key = key_at(root, &error.span()?).filter(|path| !path.contains('.'))?;
        let is_there = |table: &str| OPTIONAL_TABLES.contains(&table) || has(root, table);
        in_tables::<File<D, O>>(&key, is_there)
    }

    /// The tables as they were given: no default is in them.
    pub(super) fn tables(&self) -> Result<toml::Table> {
        toml::Table::deserialize(toml::Deserializer::from(self.table.clone()))
            .map_err(|error| self.explain(error, None))
    }

    /// Whether the file or an override sets this key, which has its table before it.
    pub fn sets(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Fails where a training has two keys of which one says the same as the other.
    fn check_rivals(&self, table: &DeTable<'a>) -> Result<()> {
        let named = |table: &DeTable<'a>, name: &str| {
            let found = table.iter().find(|(key, _)| key.get_ref() == name);
            found.and_then(|(_, value)| value.get_ref().as_table().cloned())
        };
        let train = named(table, "train").map(|train| ("train".to_owned(), train));
        let stages = named(table, STAGES).unwrap_or_default();
        let stages = stages.iter().filter_map(|(name, value)| {
            let training = value.get_ref().as_table()?.clone();
            Some((format!("{STAGES}.{}", name.get_ref()), training))
        });
        for (path, training) in train.into_iter().chain(stages) {
            for ([one, other], what) in RIVALS {
                if has(&training, one) && has(&training, other) {
                    let message = format!(
                        "must be absent beside `{path}.{one}`: only one of them can say {what}"
                    );
                    return Err(self.locate(&Problem::new(format!("{path}.{other}"), message)));
                }
            }
        }
        Ok(())
    }

    /// Gives each of several training stages a table: `[train]` with the keys that `[stages]` changes.
    fn fill_stages(&self, table: &mut DeTable<'a>, stages: &[&'static str]) -> Result<()> {
        let find = |table: &DeTable<'a>, name: &str| {
            let found = table.iter().find(|(key, _)| key.get_ref() == name);
            found.map(|(_, value)| value.clone())
        };
        let given = find(table, STAGES);
        let empty = || Spanned::new(0..0, DeValue::Table(DeTable::new()));
        if let Some(given) = &given {
            let Some(tables) = given.get_ref().as_table() else {
                // What it should be, the parser says.
                return Ok(());
            };
            let unknown = tables
                .iter()
                .find(|(key, _)| stages.len() < 2 || !stages.contains(&key.get_ref().as_ref()));
            if let Some((key, _)) = unknown {
                let message = unknown_stage(key.get_ref(), stages);
                return Err(self.at(key.span(), &message));
            }
        }
        if stages.len() < 2 {
            return Ok(());
        }
        let train = find(table, "train").unwrap_or_else(empty);
        let mut given = given.unwrap_or_else(empty);
        if let DeValue::Table(tables) = given.get_mut() {
            for &stage in stages {
                let mut own = train.clone();
                let changed = find(tables, stage).map(Spanned::into_inner);
                match (own.get_mut(), changed) {
                    (DeValue::Table(own), Some(DeValue::Table(changed))) => {
                        let given = changed.keys().filter_map(|key| rival(key.get_ref()));
                        for other in given {
                            own.remove(other);
                        }
                        // A stage with a schedule of its own has nothing of that of all.
                        let schedule = changed.get(SCHEDULE);
                        let schedule = schedule.and_then(|value| value.get_ref().as_str());
                        for key in OF_WSD {
                            if is_of_other_schedule(key, schedule) {
                                own.remove(key);
                            }
                        }
                        merge(own, changed, ("", ""))?;
                    }
                    (_, Some(other)) => own = Spanned::new(0..0, other),
                    (_, None) => {}
                }
                tables.insert(Spanned::new(0..0, stage.into()), own);
            }
        }
        table.insert(Spanned::new(0..0, STAGES.into()), given);
        Ok(())
    }

    /// A setting of a drafter or an objective that makes no sense, with the place where it stands.
    pub fn refuse(&self, error: spectrain_train::Error) -> anyhow::Error {
        self.locate(&setting(error))
    }

    /// The parser's error with the lines of the file, or with the override, that it is about.
    fn explain(&self, mut error: toml::de::Error, choices: Option<String>) -> anyhow::Error {
        if let Some(renamed) = self.renamed(&error) {
            return renamed;
        }
        if error.message() == NO_NAME && !self.sets("name") {
            let message = "is missing: it names the run's folder, `runs/NAME`; set it in the file or with `--set name=NAME`";
            return Problem::new("name", message).into();
        }
        let span = error.span();
        let is_at = |key: &str| {
            let found = self.find(key).zip(span.clone());
            found.is_some_and(|(value, span)| value.start == span.start)
        };
        let least = LEAST.iter().find(|(key, _)| is_at(key));
        let least = least.map(|(_, least)| *least);
        let own = error.message().to_owned();
        let said = self.in_words(&error, choices);
        let said = said.as_deref().unwrap_or(&own);
        match span {
            // Only a table that was left out stands at no place.
            None | Some(Range { start: 0, end: 0 }) => {}
            Some(span) => match self.override_at(&span) {
                Some(given) => {
                    return anyhow!("`--set {given}`: {}", worded(said, least));
                }
                None => error.set_input(Some(self.text)),
            },
        }
        let text = error.to_string().replacen(&own, said, 1);
        let text = worded(text.trim_end(), least);
        anyhow!("{}", text.replace("\nin `", " in `"))
    }

    /// What is wrong with a choice, of which there are these where they are known.
    fn in_words(&self, error: &toml::de::Error, choices: Option<String>) -> Option<String> {
        let (path, value) = kinds::at(self.table.get_ref(), &error.span()?)?;
        let choices =
            choices.map(|known| format!("expected {known}, found {}", kinds::words(value)));
        choices.or_else(|| kinds::choice(error.message(), &path, value))
    }

    /// The error at a key by its old name.
    fn renamed(&self, error: &toml::de::Error) -> Option<anyhow::Error> {
        let span = error.span()?;
        let path = key_at(self.table.get_ref(), &span)?;
        let (table, key) = path.rsplit_once('.')?;
        // A stage's table has the keys of `[train]`.
        let kind = match table.split_once('.') {
            Some((STAGES, _)) => "train",
            _ => table,
        };
        let new = new_name(kind, key, error.message())?;
        let problem = Problem::new(&path, format!("is now called `{new}`"));
        Some(self.at(span, &problem.to_string()))
    }

    fn override_at(&self, span: &Range<usize>) -> Option<&str> {
        let found = self
            .changes
            .iter()
            .find(|change| change.positions.contains(&span.start));
        found.map(|change| change.given.as_str())
    }

    fn at(&self, span: Range<usize>, message: &str) -> anyhow::Error {
        if let Some(given) = self.override_at(&span) {
            return anyhow!("`--set {given}`: {message}");
        }
        let before = &self.text[..span.start.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before
            .rsplit('\n')
            .next()
            .map_or(0, |rest| rest.chars().count())
            + 1;
        anyhow!("line {line}, column {column}: {message}")
    }

    /// A problem with a key, with the place where the key stands.
    pub(super) fn locate(&self, problem: &Problem) -> anyhow::Error {
        let key = self.set_by(&problem.key);
        let message = Problem::new(&key, &problem.message).to_string();
        match self.find(&key) {
            Some(span) if self.needs_deleting(&span, problem) => {
                self.at(span, &format!("{message}; delete the key from the file"))
            }
            Some(span) => self.at(span, &message),
            None => anyhow!("{message}"),
        }
    }

    /// Whether a key of the file must not be there beside what overrides have set: no override takes it away.
    fn needs_deleting(&self, span: &Range<usize>, problem: &Problem) -> bool {
        let is_unwanted = ABSENT.iter().any(|told| problem.message.starts_with(told));
        is_unwanted && !self.changes.is_empty() && self.override_at(span).is_none()
    }

    /// The key that was set where a stage's own was not: `[train]` is that of all stages.
    fn set_by(&self, key: &str) -> String {
        let of_stage = key
            .strip_prefix(STAGES)
            .and_then(|rest| rest.strip_prefix('.'));
        let shared = of_stage.and_then(|rest| rest.split_once('.'));
        let shared = shared.map(|(_, key)| format!("train.{key}"));
        match shared {
            Some(shared) if self.find(key).is_none() && self.find(&shared).is_some() => shared,
            _ => key.to_owned(),
        }
    }

    fn find(&self, path: &str) -> Option<Range<usize>> {
        let mut table = self.table.get_ref();
        let mut span = None;
        for part in path.split('.') {
            let (_, value) = table.iter().find(|(key, _)| key.get_ref() == part)?;
            span = Some(value.span());
            match value.get_ref().as_table() {
                Some(inner) => table = inner,
                None => break,
            }
        }
        span
    }
}

/// The keys with rivals that a table of the root gives trainings, each with the path of the training's table.
fn rivals(root: &DeTable<'_>) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    let mut add = |path: String, training: &DeValue<'_>| {
        let Some(training) = training.as_table() else {
            return;
        };
        let keys = RIVALS.iter().flat_map(|(pair, _)| *pair);
        let given = keys.filter(|key| has(training, key));
        found.extend(given.map(|key| (path.clone(), key)));
    };
    for (table, value) in root {
        match (&**table.get_ref(), value.get_ref()) {
            ("train", training) => add("train".into(), training),
            (STAGES, DeValue::Table(stages)) => {
                for (stage, training) in stages {
                    add(format!("{STAGES}.{}", stage.get_ref()), training.get_ref());
                }
            }
            _ => {}
        }
    }
    found
}

/// Drops the rival of a key in the file, of so many bytes, where an override gives the key to a training, whose table is at `path`. Of two overrides neither gives way: they contradict each other.
fn give_way(root: &mut DeTable<'_>, path: &str, given: &str, file: usize) {
    let mut table = root;
    for part in path.split('.') {
        let Some(DeValue::Table(inner)) = table.get_mut(part).map(Spanned::get_mut) else {
            return;
        };
        table = inner;
    }
    let is_in_file = |value: &Spanned<DeValue>| value.span().start <= file;
    if let Some(other) = rival(given)
        && table.get(other).is_some_and(is_in_file)
    {
        table.remove(other);
    }
}

/// The choices of which one would be right where a value is none.
fn choices<D: Settings, O: Settings>(
    mut table: Spanned<DeTable>,
    error: &toml::de::Error,
) -> Option<String> {
    if error.message() != kinds::NO_CHOICE || !kinds::unname(table.get_mut(), &error.span()?) {
        return None;
    }
    let said = File::<D, O>::deserialize(toml::Deserializer::from(table)).err()?;
    let (_, known) = said.message().split_once(", expected ")?;
    Some(known.to_owned())
}

/// What is said of a stage that a recipe with these ones does not train in.
fn unknown_stage(name: &str, stages: &[&'static str]) -> String {
    let near = did_you_mean(name, stages.iter().copied());
    match stages.len() {
        0 | 1 => format!("unknown stage `{name}`; this recipe trains in one"),
        _ => format!(
            "unknown stage `{name}`; training stages: {}{near}",
            stages.join(", ")
        ),
    }
}

/// The path of the key that stands at this place.
fn key_at(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        if key.span() == *span {
            return Some(key.get_ref().to_string());
        }
        let below = key_at(value.get_ref().as_table()?, span)?;
        Some(format!("{}.{below}", key.get_ref()))
    })
}

fn has(table: &DeTable<'_>, name: &str) -> bool {
    table.keys().any(|key| key.get_ref() == name)
}
