//! A recipe as text: its keys with what they mean and the defaults of others.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spectrain_checkpoints::columns::wrapped;
use spectrain_checkpoints::launch::quote;

use super::amount::Own;
use super::keys::Keys;
use super::needs::{self, Needed};
use super::passes;
use super::recommended::{self, Recommendation};
use super::served;
use super::settings::{Settings, at};
use super::start::Start;
use super::train_keys::{STAGES, TRAIN, training_tables};
use crate::families::registry::Recipe;
use crate::plan::data::tokens_in;
use crate::progress::Output;
use crate::recipe::inline::{inline, quoted};
use crate::recipe::read::read;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::OF_SERVERS;
use crate::runtime::sizes::sizes_of;
use crate::trainers::Translated;

/// Keys that are shown where nothing sets them, by their tables; of `[drafter]` and `[objective]` all are. A table that a recipe
/// does not have is not shown.
const SHOWN: [(&str, &[&str]); 10] = [
    ("target", &["model", "dtype"]),
    ("data", &["train", "eval", "max_length", "overlong"]),
    (
        "regenerate",
        &["server", "temperature", "max_tokens", "seed", "concurrency"],
    ),
    ("features", &["mode"]),
    ("drafter", &[]),
    ("objective", &[]),
    (
        TRAIN,
        &[
            "steps",
            "batch_tokens",
            "learning_rate",
            "warmup_steps",
            "validate_every",
            "save_every",
        ],
    ),
    ("export", &["to"]),
    (
        "evaluate",
        &["prompts", "temperatures", "draft_lengths", "max_new_tokens"],
    ),
    ("track", &[]),
];

/// The key of a table that is shown though it has no value of its own, with what stands there.
const WITHOUT_DEFAULT: (&str, &str, &str) = ("data", "eval", "eval.jsonl");

/// The key of the server that answers.
const SERVER: &str = "server";

/// The file with the schema of recipe files.
const SCHEMA: &str = "schema.json";

/// The conversations to train on.
pub(super) enum Conversations {
    /// A path or the address of a dataset on the hub.
    Train(String),
    /// The name of a preset.
    Preset(String),
    /// Several of these, as `data.train` takes them.
    Several(Value),
}

impl Conversations {
    /// How many tokens there are in at most so many samples, by the size of their text; none where the files are not here, or do not
    /// say it.
    fn tokens(&self, most: Option<usize>) -> Option<u64> {
        let given = match self {
            Self::Train(given) => Value::from(given.as_str()),
            Self::Several(several) => several.clone(),
            Self::Preset(_) => return None,
        };
        tokens_in(&serde_json::from_value(given).ok()?, most)
    }
}

/// Whose answers the drafter is trained on.
pub(super) enum Answers {
    /// Those of the conversations, unless keys of `[regenerate]` are set, which say themselves who answers anew.
    Kept,
    /// The target's, which this program decodes.
    OfTarget,
    /// Those of the target's server at this address.
    OfServer(String),
}

impl Answers {
    /// What `--answers` says.
    pub(super) fn parse(given: &str) -> Result<Self, String> {
        match given {
            "keep" => Ok(Self::Kept),
            "target" => Ok(Self::OfTarget),
            url if url.starts_with("http://") || url.starts_with("https://") => {
                Ok(Self::OfServer(url.to_owned()))
            }
            other => Err(format!(
                "expected `keep`, `target` or a server's `http://HOST:PORT`, found `{other}`"
            )),
        }
    }

    /// Whether a key of `[regenerate]` means the same with them: not who answers, which they say, or what only a server is asked
    /// with.
    pub(super) fn leaves(&self, key: &str) -> bool {
        match self {
            Self::Kept => false,
            Self::OfTarget => key != SERVER && !OF_SERVERS.contains(&key),
            Self::OfServer(_) => ![SERVER, "model", "api_key_env"].contains(&key),
        }
    }

    /// The table of a recipe that says so.
    fn table(&self) -> String {
        match self {
            Self::Kept => String::new(),
            Self::OfTarget => "[regenerate]\n".to_owned(),
            Self::OfServer(url) => format!("[regenerate]\nserver = {}\n", quoted(url)),
        }
    }
}

/// What a recipe is to be.
pub(super) struct Wanted {
    /// The kind.
    pub(super) recipe: &'static Recipe,
    /// The run's name.
    pub(super) name: String,
    /// A folder or a hub id.
    pub(super) target: String,
    /// The conversations to train on.
    pub(super) data: Conversations,
    /// Whose answers of those conversations.
    pub(super) answers: Answers,
    /// Where it is to be trained.
    pub(super) device: String,
    /// How many processes train together, each on a GPU of its own where there are several.
    pub(super) ranks: usize,
    /// Further keys.
    pub(super) settings: Settings,
    /// The settings of another trainer that these are, where they are some.
    pub(super) translated: Option<Translated>,
    /// The drafter that is trained further, where there is one.
    pub(super) start: Option<Start>,
}

/// Lines of a recipe that trains a drafter further: one that was named, or a target's own layer.
#[derive(Default)]
struct Further {
    /// The key of no table.
    start: String,
    /// Keys of `[drafter]`.
    keys: Vec<String>,
}

impl Further {
    /// Whether a key of `[drafter]` is among them.
    fn has(&self, key: &str) -> bool {
        let mut keys = self.keys.iter().filter_map(|line| line.split_once(" = "));
        keys.any(|(name, _)| name == key)
    }
}

impl Wanted {
    /// The option that names the devices.
    pub(super) fn on(&self) -> String {
        match self.ranks {
            0 | 1 => format!("--device {}", self.device),
            several => format!("--devices cuda:0-{}", several - 1),
        }
    }

    /// The text of the recipe in `file`, and what it says.
    ///
    /// # Errors
    /// It makes no sense, or what the drafter needs of the target is not known.
    pub(super) fn text(&self, file: &Path) -> Result<(String, ResolvedRecipe)> {
        let keys = Keys::of(self.recipe);
        let mut own = self.further()?;
        let recommended = self.recommended();
        let set = &self.settings;
        let is_set = |key: &str| set.has(&format!("drafter.{key}")) || own.has(key);
        let needed = needs::of(&keys, &self.target, self.revision(), &is_set)?;
        let mut least = self.least(&needed, &own, &recommended);
        let mut resolved = set.read(&least)?;
        if own.start.is_empty()
            && self.start.is_none()
            && !set.has("start")
            && let Some(key) = served::key(&keys, &resolved, &|key| set.has(key))
        {
            own.keys.push(format!("{key} = true"));
            let other = self.least(&needed, &own, &recommended);
            let changed = set.read(&other)?;
            if served::unserved(&changed).is_none() {
                (least, resolved) = (other, changed);
            }
        }
        let given: toml::Table = least.parse()?;
        let is_given = |table: &str, key: &str| {
            let path = match table {
                "" => key.to_owned(),
                _ => format!("{table}.{key}"),
            };
            at(&given, &path).is_some() || set.has(&path)
        };
        let text = self.heading(file, &keys, &recommended.told)
            + &tables(&keys, &resolved.json, &is_given, &needed);
        // What is shown behind a `#` is what holds without it.
        let again = read(&text, &[])?;
        if again.json != resolved.json {
            bail!(
                "`--set`: the recipe would say something else than what was set; write these keys into the file yourself"
            );
        }
        Ok((text, again))
    }

    /// The revision of the target on the hub, where one is set or the drafter that is trained further was trained for one.
    fn revision(&self) -> Option<&str> {
        let set = self.settings.value("target.revision");
        let set = set.and_then(toml::Value::as_str);
        set.or_else(|| self.start.as_ref()?.revision(&self.target))
    }

    /// What the closest shipped recipe recommends, or the run of a drafter that is trained further, for this much data.
    fn recommended(&self) -> Recommendation {
        // What a trainer does is not mixed with what a shipped recipe does.
        if self.translated.is_some() {
            return Recommendation::default();
        }
        // Answers that are to come are longer or shorter.
        let is_kept = matches!(self.answers, Answers::Kept) && !self.settings.has("regenerate");
        let most = self.settings.value("data.max_samples");
        let most = most.and_then(toml::Value::as_integer);
        let most = most.and_then(|most| usize::try_from(most).ok());
        let own = Own {
            kind: self.recipe,
            target: &self.target,
            revision: self.revision(),
            is_made: self.start.is_some(),
            tokens: self.data.tokens(most).filter(|_| is_kept),
            settings: &self.settings,
        };
        let shipped = recommended::of(&own);
        let mut found = match &self.start {
            None => shipped,
            Some(start) => start.recommended(&own, shipped),
        };
        found.told += &passes::cut(&own, &mut found.keys);
        found
    }

    /// A recipe of what is wanted, needed and recommended, without the further keys.
    fn least(&self, needed: &[Needed], own: &Further, recommended: &Recommendation) -> String {
        let needed = needed.iter().map(|needed| needed.line.clone() + "\n");
        let own_keys = own.keys.iter().map(|line| line.clone() + "\n");
        let (key, data) = match &self.data {
            Conversations::Train(given) => ("train", quoted(given)),
            Conversations::Preset(name) => ("preset", quoted(name)),
            Conversations::Several(several) => ("train", inline(several)),
        };
        let lines_of = |table: &str| {
            let lines = recommended.keys.iter().filter(|found| found.table == table);
            lines
                .map(|found| found.line.clone() + "\n")
                .collect::<String>()
        };
        let trainings = training_tables(self.recipe).into_iter();
        let trainings = trainings.map(|table| format!("[{table}]\n{}", lines_of(&table)));
        format!(
            "recipe = {}\nname = {}\n{}[target]\nmodel = {}\n{}[features]\n{}[data]\n{key} = {}\n{}{}[drafter]\n{}{}[objective]\n{}{}",
            quoted(self.recipe.name),
            quoted(&self.name),
            own.start,
            quoted(&self.target),
            lines_of("target"),
            lines_of("features"),
            data,
            lines_of("data"),
            self.answers.table(),
            needed.chain(own_keys).collect::<String>(),
            lines_of("drafter"),
            lines_of("objective"),
            trainings.collect::<String>(),
        )
    }

    /// What trains a drafter further, if one is to be.
    ///
    /// # Errors
    /// The named drafter is of another kind, or for another target.
    fn further(&self) -> Result<Further> {
        let Some(start) = &self.start else {
            return Ok(self.own_layer());
        };
        let revision = self.revision();
        let sizes = sizes_of(&self.target, revision).with_context(|| {
            let at = revision.map_or_else(String::new, |name| format!(" at revision `{name}`"));
            format!(
                "`--start`: the settings of `{}` are read for a target, whose `config.json` must be here: download `{}`{at}",
                start.given, self.target
            )
        })?;
        let named = start.named(self.recipe, &sizes.spec)?;
        let start = named
            .start
            .map(|start| format!("start = {}\n", quoted(&start)));
        Ok(Further {
            start: start.unwrap_or_default(),
            keys: self.lines(named.keys),
        })
    }

    /// Lines of these keys of `[drafter]`, where nothing else sets them.
    fn lines(&self, keys: Vec<(String, Value)>) -> Vec<String> {
        let free = |(key, _): &(String, Value)| self.settings.leaves("drafter", key);
        let keys = keys.into_iter().filter(free);
        keys.map(|(key, value)| format!("{key} = {}", inline(&value)))
            .collect()
    }

    /// What trains the layer further that the checkpoint of the target has for this kind of drafter, if it has one.
    fn own_layer(&self) -> Further {
        let folder = Path::new(&self.target);
        if !folder.is_dir() || self.settings.has("start") {
            return Further::default();
        }
        let keys = match (self.recipe.beside_target)(folder) {
            Ok(Some(keys)) => keys,
            Ok(None) => return Further::default(),
            Err(error) => {
                Output::detect().warn(format!(
                    "the recipe trains a new layer, as that of the target cannot be read: {error:#}"
                ));
                return Further::default();
            }
        };
        Further {
            start: format!("start = {}\n", quoted(&self.target)),
            keys: self.lines(keys),
        }
    }

    /// What stands above the keys; `recommended` says which are a shipped recipe's.
    fn heading(&self, file: &Path, keys: &Keys, recommended: &str) -> String {
        let recipe = self.recipe;
        let mut text = format!(
            "{}: {}. Keys behind a `#` have the default that they show; `spectrain schema {}` and the pages recipes/README.md and recipes/drafters.md have all others.",
            recipe.name, recipe.about, recipe.name
        );
        if !recommended.is_empty() {
            text += &format!(" {recommended}");
        }
        let mut notes = String::new();
        if let Some(translated) = &self.translated {
            text += &format!(" The other keys are settings of {}.", translated.trainer);
            if !translated.notes.is_empty() {
                notes += "#\n# Not carried over, or not exactly:\n";
            }
            let lines = translated.notes.iter();
            let lines = lines.map(|note| wrapped(&format!("- {note}"), "  "));
            notes.extend(lines.map(|text| commented(&text)));
        }
        let command = format!(
            "{}# spectrain recipe {} {}\n#\n",
            schema_line(file, keys),
            quote(&file.to_string_lossy()),
            self.on()
        );
        command + &comment(&text) + &notes
    }
}

/// The line that names the schema of recipe files to an editor, where that lies beside the recipe.
fn schema_line(file: &Path, keys: &Keys) -> String {
    let text = std::fs::read_to_string(file.with_file_name(SCHEMA)).unwrap_or_default();
    let found: Value = serde_json::from_str(&text).unwrap_or_default();
    // Other programs have schemas too.
    if found.is_object() && &found["title"] == keys.title() {
        format!("#:schema ./{SCHEMA}\n")
    } else {
        String::new()
    }
}

/// Every table with its keys: those that are given, and the defaults of those that are shown. What is to be known of the values of
/// some is said with them.
fn tables(
    keys: &Keys,
    recipe: &Value,
    is_given: &dyn Fn(&str, &str) -> bool,
    needed: &[Needed],
) -> String {
    let mut text = String::new();
    for key in keys.names("") {
        let is_value = recipe.get(&key).is_some_and(|value| !value.is_object());
        if is_value {
            text += &line(keys, recipe, ("", &key), is_given("", &key), "");
        }
    }
    let is_there = |table: &str| recipe.get(table).is_some_and(Value::is_object);
    for (table, shown) in SHOWN.into_iter().filter(|(table, _)| is_there(table)) {
        let all = ["drafter", "objective"].contains(&table);
        let mut lines = String::new();
        for key in keys.names(table) {
            let given = is_given(table, &key);
            let value = &recipe[table][&key];
            // A table in a table is shown where it is given.
            let default = (all && !value.is_object()) || shown.contains(&key.as_str());
            let (of, name, example) = WITHOUT_DEFAULT;
            let mut own = needed.iter();
            let own = own.find(|needed| table == "drafter" && needed.key == key);
            let about = own.map_or("", |needed| needed.about.as_str());
            if !value.is_null() && (given || default) {
                lines += &line(keys, &recipe[table], (table, &key), given, about);
            } else if (table, key.as_str()) == (of, name) {
                let meaning = format!("{} For example:", keys.meaning(of, name));
                _ = write!(
                    lines,
                    "\n{}#{name} = {}\n",
                    comment(&meaning),
                    quoted(example)
                );
            }
        }
        _ = write!(text, "\n{}[{table}]\n{lines}", comment(&keys.about(table)));
        if table == TRAIN {
            text += &stages(keys, recipe, is_given);
        }
    }
    text
}

/// The tables of a training's stages in which keys are given, with these.
fn stages(keys: &Keys, recipe: &Value, is_given: &dyn Fn(&str, &str) -> bool) -> String {
    let mut text = String::new();
    let mut about = comment(&keys.about(STAGES));
    for (stage, values) in recipe[STAGES].as_object().into_iter().flatten() {
        let table = format!("{STAGES}.{stage}");
        let names = keys.names(&table).into_iter();
        let names = names.filter(|key| !values[key].is_null() && is_given(&table, key));
        let lines: String = names
            .map(|key| line(keys, values, (&table, &key), true, ""))
            .collect();
        if !lines.is_empty() {
            _ = write!(text, "\n{about}[{table}]\n{lines}");
            about.clear();
        }
    }
    text
}

/// A key with what it means and what is to be known of its value, behind a `#` unless it is given.
fn line(
    keys: &Keys,
    values: &Value,
    (table, key): (&str, &str),
    given: bool,
    about: &str,
) -> String {
    let sign = if given { "" } else { "#" };
    let choices = keys.values(table, key).join(", ");
    let mut meaning = keys.meaning(table, key);
    if !choices.is_empty() {
        meaning += &format!(" One of {choices}.");
    }
    if !about.is_empty() {
        meaning += &format!(" {about}");
    }
    let meaning = comment(&meaning);
    format!("\n{meaning}{sign}{key} = {}\n", inline(&values[key]))
}

/// Text in lines of comments; nothing of none.
fn comment(text: &str) -> String {
    commented(&wrapped(text, ""))
}

/// Lines behind the sign of comments, without those that are empty.
fn commented(lines: &str) -> String {
    let lines = lines.lines().filter(|line| !line.is_empty());
    lines.map(|line| format!("# {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::registry::RECIPES;

    #[test]
    fn the_keys_that_are_shown_are_there() {
        let keys = Keys::of(&RECIPES[0]);
        for (table, shown) in SHOWN {
            let known = keys.names(table);
            for key in shown {
                assert!(known.iter().any(|name| name == key), "{table}.{key}");
            }
        }
    }
}
