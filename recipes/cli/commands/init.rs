//! `spectrain init`: a recipe for a target and data of one's own, with what is to be known of its keys.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use spectrain_checkpoints::atomic::write_file;
use spectrain_checkpoints::columns::{listed, wrapped};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::hub::check_model;
use spectrain_checkpoints::launch::quote;
use spectrain_checkpoints::near::near_file;
use spectrain_data::presets::Preset;
use spectrain_data::rows::files;
use spectrain_data::sources::{Origin, Sources as Given};

use crate::cli::arguments::{key_value, sources as read_sources};
use crate::errors::{Misuse, with_causes};
use crate::families::registry::{self, RECIPES, Recipe};
use crate::plan::preflight::Asked;
use crate::progress::{Output, tell};
use crate::recipe::document::{SCHEDULE, is_of_other_schedule, rival};
use crate::recipe::inline::assigned;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::shipped::SHIPPED;
use crate::recipe::tables::OF_SERVERS;
use crate::runs::run_folder::{Existing, check_name};
use crate::runtime::device;
use crate::trainers::{TARGET, TRAIN, Translated, translate};

mod amount;
mod ask;
mod keys;
mod needs;
mod passes;
mod recommended;
mod served;
mod settings;
mod start;
mod train_keys;
mod written;

use ask::{Asking, Question};
use keys::Keys;
use settings::Settings;
use start::Start;
use written::{Answers, Conversations, Wanted};

/// What is said of a relative path in another trainer's file.
const FROM_HERE: &str =
    "; the path is taken from the working folder, not from the file's: `--data PATH` gives another";

/// The key of the batches of a step, of which each device has to have as many.
const BATCHES: &str = "train.gradient_accumulation";

/// What stands before the keys of the table of answers.
const REGENERATE: &str = "regenerate.";

/// GPUs of a machine, at most.
const GPUS: u64 = 8;

/// What is behind the name of a run that would have that of a shipped recipe, which its file and its folder would hide.
const OWN: &str = "-own";
/// The same of a drafter that is trained further.
const TUNED: &str = "-tuned";

/// Arguments of `spectrain init`.
#[derive(Debug, Clone, Args)]
pub struct InitArguments {
    /// Start from settings of another trainer: a file of SpecForge, speculators, ModelOpt, NeMo Automodel or TorchSpec in YAML or JSON
    /// (by its name), or a shell script that trains with one of them. Options given beside it go before what the file says
    #[arg(long, value_name = "FILE", conflicts_with = "family")]
    from: Option<PathBuf>,
    /// Train this drafter further, on texts of your own: a run or its folder, a drafter's folder, or a hub id. Its kind, its settings
    /// and, where it says so, its target are taken from it
    #[arg(long, value_name = "DRAFTER", conflicts_with = "from")]
    start: Option<String>,
    /// The target: a folder in the Hugging Face layout, or a hub id
    #[arg(long, value_name = "FOLDER|ID")]
    target: Option<String>,
    /// Conversations to train on: a file, a folder, a pattern or a dataset on the hub, `hf://org/name`; or a table or a list as
    /// `data.train` takes it, such as `{ path = "b.jsonl", weight = 2 }`; may be repeated
    #[arg(long, value_name = "PATH")]
    data: Vec<String>,
    /// In place of `--data`: the name of a dataset that `spectrain data presets` lists
    #[arg(long, value_name = "NAME", conflicts_with = "data")]
    preset: Option<String>,
    /// Whose answers to train on: `keep` for those in the conversations; `target` for the target's, which spectrain then
    /// decodes itself; or the address of the target's server, `http://HOST:PORT`
    #[arg(long, value_name = "keep|target|URL")]
    answers: Option<String>,
    /// The kind of drafter, by its name in `spectrain recipes`
    #[arg(long, value_name = "NAME")]
    family: Option<String>,
    /// Where the drafter will be trained: `cpu` or `cuda:N`
    #[arg(long, value_name = "DEVICE", value_parser = device::check_name)]
    device: Option<String>,
    /// The run's name; without it, the names of the drafter and the target, with `-own` behind them where a recipe is shipped under
    /// that name
    #[arg(long)]
    name: Option<String>,
    /// Set a key of the recipe, such as `train.steps=1000`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<String>,
    /// The file to write; without it, `NAME.toml`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Ask nothing: take the defaults for everything that is not given
    #[arg(long)]
    yes: bool,
}

/// Runs the command: asks for what was not given, and writes the recipe where nothing would stop it.
pub fn run(arguments: &InitArguments) -> Result<()> {
    let mut translated = arguments.from.as_deref().map(translated).transpose()?;
    if let Some(found) = &mut translated {
        let notes = arguments.unasked(found);
        found.notes.extend(notes);
    }
    let mut sources = Sources::of(arguments, translated.as_ref());
    let gpus = gpus(arguments, translated.as_ref())?;
    let mut arguments = arguments.beside(translated.as_ref());
    let start = arguments.start.as_deref().map(Start::find);
    let start = start.transpose().context("`--start`")?;
    if let Some(start) = &start {
        sources.add(&arguments, start);
        arguments = arguments.further(start)?;
    }
    if gpus > 0 {
        arguments.device = Some("cuda:0".to_owned());
    }
    let arguments = &arguments;
    let asking = Asking {
        silent: arguments.yes,
    };
    let (target, data) = asked_of_files(arguments, &sources, &asking)?;
    let answers = asked_of_answers(arguments, &asking)?;
    let (recipe, device) = asked_of_lists(arguments, &asking)?;
    let own = arguments.name.clone();
    if let Some(name) = &own {
        check_name(name).context("`--name`")?;
    }
    let wanted = Wanted {
        recipe,
        name: own.unwrap_or_else(|| match &start {
            Some(start) => start.run.clone().unwrap_or_else(|| name(recipe, &target)) + TUNED,
            None => not_shipped(name(recipe, &target)),
        }),
        target,
        data,
        answers,
        device,
        ranks: gpus.max(1),
        settings: Settings::of(&arguments.settings)?,
        translated,
        start,
    };
    write(arguments, &wanted)
}

/// How many GPUs of this machine would share the batches of another trainer's processes; none where an option says otherwise, or
/// where there are no several processes.
fn gpus(arguments: &InitArguments, translated: Option<&Translated>) -> Result<usize> {
    let is_set = Settings::of(&arguments.settings)?.has(BATCHES);
    if arguments.device.is_some() || is_set {
        return Ok(0);
    }
    Ok(match translated.and_then(|found| found.processes) {
        Some(processes @ 2..=GPUS) => processes as usize,
        // Those of several machines.
        Some(processes) if processes > GPUS && processes.is_multiple_of(GPUS) => GPUS as usize,
        _ => 0,
    })
}

/// What the settings of another trainer in a file say.
fn translated(file: &Path) -> Result<Translated> {
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "`--from`: cannot read `{}`{}",
            file.display(),
            near_file(file)
        )
    })?;
    translate(&text, file).context("`--from`")
}

impl InitArguments {
    /// The same with what a drafter says that is trained further, where nothing else was given.
    fn further(self, start: &Start) -> Result<Self> {
        let family = match self.family {
            Some(family) => family,
            None => start.kind().context("`--start`")?.to_owned(),
        };
        Ok(Self {
            family: Some(family),
            target: self.target.or_else(|| start.target()),
            ..self
        })
    }

    /// The same with what another trainer's settings say, where nothing else was given.
    fn beside(&self, translated: Option<&Translated>) -> Self {
        let mut all = self.clone();
        let Some(found) = translated else {
            return all;
        };
        all.family = Some(found.recipe.to_owned());
        all.target = all.target.or_else(|| found.target.clone());
        all.name = all.name.or_else(|| found.name.clone().map(not_shipped));
        if all.data.is_empty() && all.preset.is_none() {
            // Several are taken from the file as they are.
            let train = found.train.as_ref().and_then(Value::as_str);
            all.data = train.map(str::to_owned).into_iter().collect();
            all.preset = found.preset.clone();
        }
        // Of a key that says the same as one that is given, such as epochs beside steps, the file says nothing either, nor of what
        // only its own schedule reads, or of who answers where an option says it.
        let given = Settings::of(&self.settings).ok();
        let schedule = given.as_ref();
        let schedule = schedule.and_then(|given| given.value(&format!("train.{SCHEDULE}")));
        let schedule = schedule.and_then(toml::Value::as_str);
        let is_left = |setting: &&String| {
            let key = setting.split('=').next().unwrap_or_default().trim();
            let of_training = key.strip_prefix("train.");
            let other = of_training.and_then(rival);
            let other = other.map(|other| format!("train.{other}"));
            let has = |key: &String| given.as_ref().is_some_and(|given| given.has(key));
            let is_unread = of_training.is_some_and(|key| is_of_other_schedule(key, schedule));
            let of_answers = key.strip_prefix(REGENERATE);
            let is_answered = of_answers.is_some_and(|key| !self.leaves(key));
            !(other.as_ref().is_some_and(has) || is_unread || is_answered)
        };
        let of_file = found.settings.iter().filter(is_left).cloned();
        all.settings = of_file.chain(self.settings.iter().cloned()).collect();
        all
    }

    /// Whether `--answers` leaves this key of `[regenerate]` as another trainer's settings say it.
    fn leaves(&self, key: &str) -> bool {
        // What is no answer is refused later.
        let answers = self.answers.as_deref().map(Answers::parse);
        answers.is_none_or(|answers| answers.is_ok_and(|answers| answers.leaves(key)))
    }

    /// The settings of another trainer that say how a server is asked, where `--answers` has none that is.
    fn unasked(&self, found: &Translated) -> Vec<String> {
        let answers = self.answers.as_deref().map(Answers::parse);
        if !matches!(answers, Some(Ok(Answers::OfTarget))) {
            return Vec::new();
        }
        let set = found.settings.iter().filter(|set| {
            let key = set
                .split('=')
                .next()
                .and_then(|key| key.strip_prefix(REGENERATE));
            key.is_some_and(|key| OF_SERVERS.contains(&key))
        });
        set.map(|set| {
            format!("`{set}`: only requests to a server have it, and `--answers target` asks none")
        })
        .collect()
    }
}

/// Settings of another trainer's file that the target and the conversations are from, or the drafter that the target is, as messages
/// name them; none where options give them.
#[derive(Default)]
struct Sources {
    target: Option<String>,
    data: Option<String>,
    /// Why there is no target and are no conversations though there are settings for them.
    lacks: [Option<String>; 2],
    /// The conversations, where there are several.
    several: Option<Value>,
}

impl Sources {
    fn of(arguments: &InitArguments, translated: Option<&Translated>) -> Self {
        let (Some(file), Some(found)) = (&arguments.from, translated) else {
            return Self::default();
        };
        let named = |key: &str| {
            let setting = found.settings_of.get(key)?;
            Some(format!("`{}`: `{setting}`", file.display()))
        };
        let has_data = !arguments.data.is_empty() || arguments.preset.is_some();
        let lacks = |key: &str| {
            let why = found.unknown.get(key)?;
            Some(format!("`{}`: {why}", file.display()))
        };
        Self {
            lacks: [TARGET, TRAIN].map(lacks),
            target: named(TARGET).filter(|_| arguments.target.is_none()),
            data: named(TRAIN).filter(|_| !has_data),
            several: found
                .train
                .clone()
                .filter(|train| train.is_array() && !has_data),
        }
    }

    /// Adds what a drafter that is trained further says of its target, where no option gives that.
    fn add(&mut self, arguments: &InitArguments, start: &Start) {
        let given = &start.given;
        match start.target() {
            _ if arguments.target.is_some() => {}
            Some(_) => self.target = Some(format!("`--start`: the target of `{given}`")),
            None => {
                self.lacks[0] = Some(format!("`{given}` does not say which target it is for"));
            }
        }
    }

    /// The conversations, where there are several, unless `check` has something against one of their paths.
    fn several(&self, check: &dyn Fn(&str) -> Result<(), String>) -> Result<Option<Conversations>> {
        let Some(several) = &self.several else {
            return Ok(None);
        };
        let paths = several.as_array().into_iter().flatten();
        for path in paths.filter_map(Value::as_str) {
            check(path).map_err(|error| {
                let source = self.data.as_deref().unwrap_or("`--from`");
                Misuse(format!("{source}: {error}"))
            })?;
        }
        Ok(Some(Conversations::Several(several.clone())))
    }
}

/// The target and the conversations to train on.
fn asked_of_files(
    arguments: &InitArguments,
    sources: &Sources,
    asking: &Asking,
) -> Result<(String, Conversations)> {
    // These keys are the same of every kind of recipe.
    let keys = Keys::of(&RECIPES[0]);
    let text = |what: &str, table: &str, key: &str| {
        wrapped(&format!("{what}. {}", keys.meaning(table, key)), "")
    };
    let target = Question {
        flag: "--target",
        source: sources.target.as_deref(),
        lacks: sources.lacks[0].as_deref(),
        given: arguments.target.clone(),
        text: &text("Target", "target", "model"),
        default: None,
    };
    let data = Question {
        flag: "--data",
        source: sources.data.as_deref(),
        lacks: sources.lacks[1].as_deref(),
        given: arguments.data.first().cloned(),
        text: &text("Conversations to train on", "data", "train"),
        default: None,
    };
    let check_data = |given: &str| -> Result<(), String> {
        for source in read_sources(given.into())?.each() {
            let Origin::Path(path) = &source.origin else {
                continue;
            };
            let is_of_file = sources.data.is_some() && path.is_relative();
            let hint = if is_of_file { FROM_HERE } else { "" };
            let found = files(path).map(drop);
            found.map_err(|error| format!("{error}{hint}"))?;
        }
        Ok(())
    };
    if let Some(preset) = &arguments.preset {
        Preset::find(preset).map_err(|error| Misuse(format!("`--preset`: {error}")))?;
    }
    let target = asking.answer(target, &check_target)?;
    let data = match (&arguments.preset, sources.several(&check_data)?) {
        (Some(preset), _) => Conversations::Preset(preset.clone()),
        (None, Some(several)) => several,
        (None, None) => {
            let first = asking.answer(data, &check_data)?;
            let others = arguments.data.iter().skip(1);
            for other in others.clone() {
                check_data(other).map_err(|error| Misuse(format!("`--data`: {error}")))?;
            }
            conversations(std::iter::once(&first).chain(others)).map_err(Misuse)?
        }
    };
    Ok((target, data))
}

/// What `data.train` is where these are given, each a path or what the key takes.
fn conversations<'a>(given: impl Iterator<Item = &'a String>) -> Result<Conversations, String> {
    let each = given.map(|given| read_sources(given.into()));
    let all: Given = each.collect::<Result<_, String>>()?;
    Ok(match json!(all) {
        Value::String(path) => Conversations::Train(path),
        several => Conversations::Several(several),
    })
}

/// Whose answers the drafter is trained on.
fn asked_of_answers(arguments: &InitArguments, asking: &Asking) -> Result<Answers> {
    // Keys of that table say it, too.
    let is_set = Settings::of(&arguments.settings)?.has("regenerate");
    if is_set && arguments.answers.is_none() {
        return Ok(Answers::Kept);
    }
    let question = Question {
        flag: "--answers",
        source: None,
        lacks: None,
        given: arguments.answers.clone(),
        text: "Answers to train on. A drafter learns to guess what it is shown, so they should be the target's own.\n  \
               keep     the answers in the conversations: they are the target's own already, or are used as they are\n  \
               target   new answers of the target, which this program decodes\n  \
               http://HOST:PORT   new answers of the target, from this server of it (SGLang, vLLM, llama.cpp)",
        default: Some("keep"),
    };
    let given = asking.answer(question, &|given| Answers::parse(given).map(drop))?;
    Answers::parse(&given).map_err(|error| Misuse(error).into())
}

/// The kind of drafter and the device.
fn asked_of_lists(arguments: &InitArguments, asking: &Asking) -> Result<(&'static Recipe, String)> {
    let kind = Question {
        flag: "--family",
        source: None,
        lacks: None,
        given: arguments.family.clone(),
        text: &format!("Drafter, by its name or number:\n{}", numbered()),
        default: Some(RECIPES[0].name),
    };
    let kind = asking.answer(kind, &|given| family(given).map(drop))?;
    let device = Question {
        flag: "--device",
        source: None,
        lacks: None,
        given: arguments.device.clone(),
        text: "Device to train on, `cpu` or `cuda:N`",
        default: Some("cpu"),
    };
    let check_device = |given: &str| device::check_name(given).map(drop);
    Ok((
        family(&kind).map_err(Misuse)?,
        asking.answer(device, &check_device)?,
    ))
}

/// Writes the recipe, unless something would stop it.
fn write(arguments: &InitArguments, wanted: &Wanted) -> Result<()> {
    let out = arguments.out.clone();
    let out = out.unwrap_or_else(|| PathBuf::from(format!("{}.toml", wanted.name)));
    if out.exists() {
        bail!(
            "`{}` is there already; `--out FILE` names another file",
            out.display()
        );
    }
    // A recipe that is refused may lack what these notes ask for.
    if let Some(translated) = &wanted.translated {
        tell(translated.summary());
    }
    let text = wanted.text(&out);
    let (text, resolved) = text.map_err(|error| of_file(arguments, wanted, error))?;
    let asked = Asked {
        recipe: &resolved,
        runs: Path::new("runs"),
        existing: Existing::Continue,
        device: &wanted.device,
        ranks: wanted.ranks,
        only: &[],
        parts: None,
    };
    asked
        .check_anywhere()
        .and_then(|()| asked.check_samples())
        .context("the recipe would be refused, so it was not written")?;
    write_file(&out, text.as_bytes())?;
    let output = Output::detect();
    for warning in asked.warnings() {
        output.warn(warning);
    }
    if let Err(error) = device::check_built(&wanted.device) {
        output.warn(format!("{error:#}"));
    }
    one_server(&resolved).into_iter().for_each(tell);
    unloaded(&asked, wanted).into_iter().for_each(tell);
    let (file, on) = (quote(&out.to_string_lossy()), wanted.on());
    tell(format!(
        "wrote `{}`; next:\n  spectrain recipe {file} {on} --plan    # what it would do and take\n  spectrain recipe {file} {on}",
        out.display()
    ));
    Ok(())
}

/// That one server is to give answers and hidden states, where it is.
fn one_server(recipe: &ResolvedRecipe) -> Option<String> {
    let answering = recipe.regenerate.as_ref()?.server.as_ref()?;
    let states = &recipe.target.server;
    let both = answering.each().iter().find(|url| states.contains(url))?;
    Some(format!(
        "`{both}` is in `regenerate.server` and in `target.server`: vLLM's connector writes hidden states for every answer too, and \
         these files stay in the folder until it is full; name a server without the connector for the answers (recipes/README.md)"
    ))
}

/// The engines that load drafters of this kind, and are not known to load this one.
fn unloaded(asked: &Asked, wanted: &Wanted) -> Vec<String> {
    // Of what no engine serves a warning tells.
    if served::unserved(asked.recipe).is_some() {
        return Vec::new();
    }
    let engines = wanted.recipe.engines.iter();
    let told = engines.filter(|engine| !asked.loads(**engine));
    let told = told.map(|engine| {
        let because = match &asked.against(*engine)[..] {
            [] => String::new(),
            keys => format!(", because of {} in `[drafter]`", assigned(keys)),
        };
        format!(
            "{} is not known to load this drafter{because}",
            engine.name()
        )
    });
    let mut told: Vec<String> = told.collect();
    told.dedup();
    told
}

/// The same error, with the setting of another trainer's file that it is about in place of an option that nobody gave.
fn of_file(arguments: &InitArguments, wanted: &Wanted, error: Error) -> Error {
    let (Some(file), Some(found)) = (&arguments.from, &wanted.translated) else {
        return error;
    };
    let message = with_causes(&error);
    // Those of the file are among them.
    let all = &arguments.settings;
    let is_given = |set: &String| all.iter().filter(|other| *other == set).count() > 1;
    let named = found.settings.iter().find_map(|set| {
        let option = format!("`--set {set}`");
        let (key, _) = set.split_once('=')?;
        let source = match found.settings_of.get(key) {
            Some(setting) => format!("`{}`: `{setting}`", file.display()),
            None => format!(
                "`{}`: `{set}`, which is what {} always does",
                file.display(),
                found.trainer
            ),
        };
        let is_of_file = message.contains(&option) && !is_given(set);
        is_of_file.then(|| message.replace(&option, &source))
    });
    named.map_or(error, |message| Misuse(message).into())
}

/// The kinds of drafters with their numbers.
fn numbered() -> String {
    let line = |(number, recipe): (usize, &Recipe)| {
        (format!("{:2} {}", number + 1, recipe.name), recipe.about)
    };
    listed(RECIPES.iter().enumerate().map(line))
}

/// The kind of drafter of this name or number.
fn family(given: &str) -> Result<&'static Recipe, String> {
    let by_number = given
        .parse::<usize>()
        .ok()
        .and_then(|number| RECIPES.get(number.checked_sub(1)?));
    let unknown = || format!("unknown recipe `{given}`; {}", registry::known(given));
    by_number
        .or_else(|| registry::find(given))
        .ok_or_else(unknown)
}

/// Whether a name can be a target's: of what is in a folder, the plan says more.
fn check_target(given: &str) -> Result<(), String> {
    let folder = Path::new(given);
    if folder.is_dir() && !folder.join(CONFIG).is_file() {
        return Err(format!(
            "`{given}` has no `{CONFIG}`: it is no model folder"
        ));
    }
    check_model(given).map_err(|error| error.to_string())
}

/// The name of a run: the drafter's kind and the last part of the target's name.
fn name(recipe: &Recipe, target: &str) -> String {
    let last = target
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    let plain = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() || ".-_".contains(c) => c,
        _ => '-',
    };
    let last: String = last.chars().map(plain).collect();
    match last.trim_matches(['.', '-']) {
        "" => recipe.name.to_owned(),
        last => format!("{}-{last}", recipe.name),
    }
}

/// A name that no shipped recipe has.
fn not_shipped(name: String) -> String {
    if SHIPPED.iter().any(|recipe| recipe.name == name) {
        name + OWN
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_by_drafter_and_target() {
        let named = |target: &str| name(&RECIPES[0], target);
        assert_eq!(named("Qwen/Qwen3-8B"), "eagle3-qwen3-8b");
        assert_eq!(named("models/my model/"), "eagle3-my-model");
        assert_eq!(named(".."), "eagle3");
    }

    #[test]
    fn no_name_that_is_made_up_is_a_shipped_recipes() {
        for recipe in SHIPPED {
            let free = not_shipped(recipe.name.to_owned());
            assert_eq!(free, format!("{}-own", recipe.name));
            assert_eq!(not_shipped(free.clone()), free, "not shipped either");
        }
        assert_eq!(not_shipped("mine".to_owned()), "mine");
    }

    #[test]
    fn a_family_is_known_by_name_and_number() {
        assert_eq!(family("1").unwrap().name, RECIPES[0].name);
        assert_eq!(family("medusa").unwrap().name, "medusa");
        assert!(family("0").is_err());
        assert!(
            family("medus")
                .err()
                .unwrap()
                .contains("did you mean `medusa`?")
        );
    }
}
