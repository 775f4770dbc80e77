//! Settings of another trainer, as keys of a recipe.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Error, Result, anyhow};
use serde_json::Value;
use spectrain_checkpoints::columns::wrapped;
use spectrain_checkpoints::near::did_you_mean;
use spectrain_models::TargetSpec;

use super::known::TRAINERS;
use super::model_file;
use super::read::read;
use super::rows::{Asked, Becomes, Made, Row, Trainer};
use super::settings::{Given, NAME, PRESET, TARGET, TRAIN};
use super::shell;
use crate::recipe::inline::inline;

/// What the names of settings end in that hold secrets.
const SECRETS: [&str; 11] = [
    "wandb_key",
    "swanlab_key",
    "api_key",
    "access_key",
    "secret_key",
    "secret",
    "password",
    "hf_token",
    "hub_token",
    "auth_token",
    "access_token",
];

/// A recipe, as far as another trainer's settings say it.
pub struct Translated {
    /// The trainer, with its version.
    pub trainer: String,
    /// The kind of recipe, by its name in the registry.
    pub recipe: &'static str,
    /// The target: a folder or a hub id.
    pub target: Option<String>,
    /// The conversations to train on: a path or the address of a dataset on the hub, or a list of these and of tables, as
    /// `data.train` takes them.
    pub train: Option<Value>,
    /// The name of a dataset in place of them.
    pub preset: Option<String>,
    /// The run's name.
    pub name: Option<String>,
    /// The setting that made each key of the recipe, these among them, by its name.
    pub settings_of: BTreeMap<String, &'static str>,
    /// Further keys, as `KEY=VALUE`.
    pub settings: Vec<String>,
    /// How many of the given settings became keys, and how many were given.
    pub carried: [usize; 2],
    /// What was not carried over, or not exactly, each with its reason.
    pub notes: Vec<String>,
    /// Why a key of the recipe has no value though there is a setting for it, by the key's name: what the setting says is not known.
    pub unknown: BTreeMap<String, String>,
    /// How many processes train together, where several do.
    pub processes: Option<u64>,
}

impl Translated {
    /// What was carried over, and what was not, for the user.
    pub fn summary(&self) -> String {
        let [carried, given] = self.carried;
        let mut text = format!(
            "read {given} settings of {}: {carried} are keys of the recipe, as are that trainer's own defaults",
            self.trainer
        );
        if !self.notes.is_empty() {
            text.push_str("\nnot carried over, or not exactly:");
        }
        for note in &self.notes {
            text.push('\n');
            text.push_str(wrapped(&format!("  {note}"), "    ").trim_end());
        }
        text
    }
}

/// Reads the settings in `text`, the content of `file`: YAML or JSON by the file's name, else shell commands. Where the trainer has a
/// default of its own, that becomes a key too, so the recipe says what the trainer would have done.
///
/// # Errors
/// The file is of no trainer that is known, or for a kind of drafter that spectrain does not train.
pub fn translate(text: &str, file: &Path) -> Result<Translated> {
    let (trainer, given) = read(text, file)?;
    let kind = (trainer.kind)(&given.settings);
    let found = trainer.kinds.iter().find(|(name, _)| *name == kind);
    let Some(&(kind, recipe)) = found else {
        return Err(no_kind(trainer, &kind, &given, file));
    };
    let mut carrying = Carrying {
        notes: given.notes.clone(),
        ..Carrying::default()
    };
    carrying.rows(trainer, kind, &given);
    carrying.others(trainer, kind, &given);
    for (kinds, key, value) in trainer.always {
        if kinds.is_empty() || kinds.contains(&kind) {
            carrying.set(key, serde_json::from_str(value)?);
        }
    }
    Ok(carrying.done(trainer, recipe, given.written()))
}

/// That drafters of this kind are not trained.
fn no_kind(trainer: &Trainer, kind: &str, given: &Given, file: &Path) -> Error {
    let file = file.display();
    let known: Vec<&str> = trainer.kinds.iter().map(|(name, _)| *name).collect();
    let names = known.join(", ");
    // A drafter's file that was read, whose name stands for the kind where it does not say that itself.
    let read = trainer.further.and_then(|(setting, prefix)| {
        let named = given.settings.get(setting)?.as_str()?;
        let is_read = given.settings.keys().any(|key| key.starts_with(prefix));
        (is_read && named.to_lowercase() == kind).then_some((setting, named))
    });
    if let Some((setting, named)) = read {
        return anyhow!(
            "`{file}`: `{setting} = {named}`: the file lacks `architectures`, by which {} names the drafter: one of {names}",
            trainer.name
        );
    }
    anyhow!(
        "`{file}`: spectrain trains no drafters that {} calls `{kind}`; it trains those it calls {names}{}",
        trainer.name,
        did_you_mean(kind, known.iter().copied())
    )
}

/// What has been carried over so far.
#[derive(Default)]
struct Carrying {
    keys: BTreeMap<String, Value>,
    settings_of: BTreeMap<String, &'static str>,
    notes: Vec<String>,
    carried: usize,
    /// What is said of settings whose values are not known, and of the keys that they would be.
    unknown_settings: Vec<String>,
    unknown: BTreeMap<String, String>,
    processes: Option<u64>,
}

impl Carrying {
    fn set(&mut self, key: &str, value: Value) {
        if value.is_null() {
            self.keys.remove(key);
        } else {
            self.keys.insert(key.to_owned(), value);
        }
    }

    /// Every setting that drafters of this kind have, in the order of the rows; of several rows the first that is for them.
    fn rows(&mut self, trainer: &'static Trainer, kind: &str, given: &Given) {
        let mut seen = BTreeSet::new();
        for row in trainer.rows.iter().filter(|row| row.is_for(kind)) {
            if row.prefix().is_some() || !seen.insert(row.key) {
                continue;
            }
            let is_given = given.wrote(row.key);
            let value = row.value(given);
            let shown = format!("`{}`", shown(row.key, &value));
            let unknown = not_known(&value);
            let is_empty = value.is_null() || value == Value::String(String::new());
            let is_known = is_given && unknown.is_none();
            let expected = row.expected(&value).filter(|_| is_known);
            let made = match (&row.becomes, expected) {
                (Becomes::Key(_), _) if is_empty => continue,
                // What is none of the key's values is an error of the recipe.
                (Becomes::Key(key), _) => Made::key(key, value),
                (Becomes::Nothing(_), _) if !is_given => continue,
                (Becomes::Nothing(why), _) => Made::note(*why),
                (_, Some(expected)) => Made::expected(expected),
                (Becomes::Read(_), None) => Made::nothing(),
                (Becomes::Made(_, make), None) => make(&Asked {
                    trainer,
                    kind,
                    given,
                    value,
                }),
            };
            match unknown.filter(|_| !matches!(row.becomes, Becomes::Nothing(_))) {
                Some(why) => {
                    let keys = made.keys.into_iter().map(|(key, _)| key);
                    let keys = keys.chain(made.lacks.map(|(key, _)| key));
                    self.tell_unknown(format!("{shown}: {why}"), keys);
                }
                None => self.made(row.key, (&shown, is_given), made),
            }
        }
    }

    /// Takes what was made of a setting, which messages show like this, and says whether it was given.
    fn made(&mut self, setting: &'static str, (shown, is_given): (&str, bool), made: Made) {
        if let Some((key, why)) = made.lacks {
            self.tell_unknown(format!("{shown}: {why}"), [key]);
            return;
        }
        let is_silent = made.note.is_none() && !made.is_told;
        let is_carried = !made.keys.is_empty() || is_silent;
        self.carried += usize::from(is_given && is_carried);
        self.processes = self.processes.or(made.processes);
        if let Some(note) = made.note {
            self.notes.push(format!("{shown}: {note}"));
        }
        for (key, value) in made.keys {
            self.settings_of.insert(key.to_owned(), setting);
            self.set(key, value);
        }
    }

    /// Tells of a setting from which the values of these keys would be, and are not known.
    fn tell_unknown(&mut self, told: String, keys: impl IntoIterator<Item = &'static str>) {
        let keys = keys.into_iter();
        let keys = keys.map(|key| (key.to_owned(), told.clone()));
        self.unknown.extend(keys);
        self.unknown_settings.push(told);
    }

    /// Settings that have no row of their own, or one of another kind of drafters.
    fn others(&mut self, trainer: &Trainer, kind: &str, given: &Given) {
        let is_read = |key: &str| {
            let mut rows = trainer.rows.iter().filter(|row| row.is_for(kind));
            rows.any(|row| row.key == key)
        };
        let target = trainer.sizes(given);
        // Settings that have one reason are told of together.
        let mut told: Vec<(String, Vec<String>)> = Vec::new();
        let written = given.settings.iter().filter(|(key, _)| given.wrote(key));
        for (key, value) in written.filter(|(key, _)| !is_read(key)) {
            let Some(why) = why_not(trainer, kind, (key, value), target.as_ref()) else {
                self.carried += 1;
                continue;
            };
            let shown = format!("`{}`", shown(key, value));
            match told.iter_mut().find(|(other, _)| *other == why) {
                Some((_, settings)) => settings.push(shown),
                None => told.push((why, vec![shown])),
            }
        }
        let lines = told
            .iter()
            .map(|(why, settings)| format!("{}: {why}", settings.join(", ")));
        self.notes.extend(lines);
    }

    fn done(mut self, trainer: &Trainer, recipe: &'static str, given: usize) -> Translated {
        let train = self.keys.remove(TRAIN);
        let mut own = |key: &str| {
            let value = self.keys.remove(key)?;
            Some(value.as_str().map_or(value.to_string(), str::to_owned))
        };
        let [target, preset, name] = [TARGET, PRESET, NAME].map(&mut own);
        let set = |(key, value): (String, Value)| format!("{key}={}", inline(&value));
        Translated {
            trainer: format!("{} {}", trainer.name, trainer.version),
            recipe,
            target,
            train,
            preset,
            name,
            settings_of: self.settings_of,
            settings: self.keys.into_iter().map(set).collect(),
            carried: [self.carried, given],
            // What is lacking comes first.
            notes: [self.unknown_settings, self.notes].concat(),
            unknown: self.unknown,
            processes: self.processes,
        }
    }
}

/// Why a setting that has no row of its own for this kind of drafters becomes no key; nothing where none is needed.
fn why_not(
    trainer: &Trainer,
    kind: &str,
    (key, value): (&str, &Value),
    target: Option<&TargetSpec>,
) -> Option<String> {
    let mut rows = trainer.rows.iter();
    let of_file = trainer
        .further
        .and_then(|(_, prefix)| key.strip_prefix(prefix));
    if let Some((name, known)) = of_file.and_then(|name| Some((name, model_file::find(name)?))) {
        return known.why_not(name, value, target).map(str::to_owned);
    }
    if trainer.rows.iter().any(|row| row.key == key) {
        return Some(format!("no setting of `{kind}`"));
    }
    let begins = |row: &&Row| row.prefix().is_some_and(|prefix| key.starts_with(prefix));
    if let Some(row) = rows.find(|row| row.is_for(kind) && begins(row)) {
        return match row.becomes {
            Becomes::Nothing(why) => Some(why.to_owned()),
            _ => None,
        };
    }
    if of_file.is_some() {
        return Some(model_file::UNKNOWN.to_owned());
    }
    let rows = trainer.rows.iter().filter(|row| row.prefix().is_none());
    let near = match called_elsewhere(trainer, kind, key) {
        Some(own) => format!("; did you mean `{own}`?"),
        None => did_you_mean(key, rows.map(|row| row.key)),
    };
    Some(format!(
        "no setting of {} {} that is known{near}",
        trainer.name, trainer.version
    ))
}

/// The setting of a trainer that becomes the same key of a recipe as one that another trainer calls so, in whatever table.
fn called_elsewhere(trainer: &Trainer, kind: &str, key: &str) -> Option<&'static str> {
    let last = |path: &str| path.rsplit('.').next().map(str::to_owned);
    let key_of = |row: &Row| match row.becomes {
        Becomes::Key(becomes) => Some(becomes),
        _ => None,
    };
    let mut elsewhere = TRAINERS.into_iter().flat_map(|other| other.rows);
    let same = elsewhere.find(|row| key_of(row).is_some() && last(row.key) == last(key))?;
    let mut own = trainer.rows.iter().filter(|row| row.is_for(kind));
    let own = own.find(|row| key_of(row) == key_of(same));
    own.map(|row| row.key)
}

/// Why what a setting says is not known, where a script does not explain a word of it.
fn not_known(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => shell::not_known(text),
        Value::Array(several) => {
            let mut words = several.iter().filter_map(Value::as_str);
            words.find_map(shell::not_known)
        }
        _ => None,
    }
}

/// A setting as a user wrote it, unless it is a secret: recipes are shared.
fn shown(setting: &str, value: &Value) -> String {
    if SECRETS.iter().any(|name| setting.ends_with(name)) {
        return format!("{setting} = …");
    }
    let value = value.as_str().map_or(value.to_string(), str::to_owned);
    format!("{setting} = {value}")
}

#[cfg(test)]
mod tests {
    use super::super::specforge::SPECFORGE;
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_script_does_not_explain_is_told() {
        for (value, part) in [
            (json!("$ROOT/a.jsonl"), "variable $ROOT"),
            (json!("data/${DAY}/a.jsonl"), "variable ${DAY}"),
            (json!(["a.jsonl", "$(ls)"]), "command $(ls) prints"),
        ] {
            let told = not_known(&value).unwrap_or_default();
            assert!(told.contains(part), "{value}: {told}");
        }
        for value in [json!("a.jsonl"), json!(1), json!("5$"), json!(null)] {
            assert_eq!(not_known(&value), None, "{value}");
        }
    }

    #[test]
    fn a_setting_that_another_trainer_has_is_asked_about_by_its_own_name() {
        for (key, own) in [
            ("training.lr", "`training.learning_rate`"),
            ("training.lerning_rate", "`training.learning_rate`"),
        ] {
            let why = why_not(&SPECFORGE, "eagle3", (key, &json!(1)), None).unwrap();
            let question = format!("; did you mean {own}?");
            assert!(why.ends_with(&question), "{why}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let key = shown("tracking.wandb_key", &json!("abc"));
        assert_eq!(key, "tracking.wandb_key = …");
        let key = shown("model.embedding_key", &json!("abc"));
        assert_eq!(key, "model.embedding_key = abc");
    }
}
