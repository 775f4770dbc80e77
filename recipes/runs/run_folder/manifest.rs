//! `manifest.json`: what a stage was made from and what it left, and what has changed since.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_checkpoints::state;
use spectrain_train::{Defaults, Effect};

use crate::runs::files::write_json;

pub(super) const MANIFEST: &str = "manifest.json";
/// How the names of files end that a stage goes on from, which nobody needs once it is done: no manifest vouches for them.
pub(super) const JOURNAL: &str = ".journal";
/// The digest of the manifest itself, without this key.
const DIGEST: &str = "sha256";

/// SHA-256 of files or of what a stage reads, by a name for people.
pub type Inputs = BTreeMap<String, String>;

/// The input that is the target: its configuration and weights, as far as they are read.
pub const TARGET: &str = "the target";
/// The input that is the files that decide how a target's text becomes tokens.
pub const TOKENIZER: &str = "the tokenizer";
/// The input that is the conversations as the target has answered them.
pub const REGENERATED_DATA: &str = "the answers of `regenerate`";
/// The input that says which layers of the target a drafter reads.
pub const CAPTURED_LAYERS: &str = "the list of captured layers";
/// What the inputs that say where a target stops begin with.
pub const STOP_TOKENS: &str = "the list of stop tokens";
/// The input that says how the target samples.
pub const OWN_SAMPLING: &str = "the target's own sampling";
/// The input that is the day that the chat template prints.
pub const PRINTED_DAY: &str = "the day that the chat template prints";

/// The input that is the name of the target.
pub const TARGET_NAME: &str = "the name of the target";

/// What inputs begin with that one version records and another does not: that one is there or is missing says nothing of a change.
const RECORDED_LATER: [&str; 5] = [
    CAPTURED_LAYERS,
    STOP_TOKENS,
    OWN_SAMPLING,
    PRINTED_DAY,
    TARGET_NAME,
];

/// What the inputs begin with that are answers in the run.
const ANSWERS: &str = "`answers/";

/// The same of inputs that are in the identity of saved states by now, too: what is finished stays so, and a training that has
/// begun without them does not go on.
const RECORDED_LATER_IN_STATES: [&str; 3] = ["`drafter.model`", "`features/", ANSWERS];

/// What the inputs begin with that are folders of features which the recipe names.
pub const FOLDER_OF_FEATURES: &str = "the features `";

/// The settings that say how long a training takes, in optimiser steps or in passes over its data.
const STEPS: &str = "train.steps";
const EPOCHS: &str = "train.epochs";
/// The setting that says how many validations a training waits for.
const PATIENCE: &str = "train.patience";
/// The setting whose default goes with how long a training takes.
const WARM_UP: &str = "train.warmup_steps";

/// The key of settings beside `target.dtype` that says which type that was on the device of the stage.
pub const COMPUTED_IN: &str = "computed_in";

/// `manifest.json` of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The stage's name.
    pub stage: String,
    /// Whether its outputs are complete.
    pub status: Status,
    /// The part of the recipe that it reads.
    pub settings: Value,
    /// What it did under other settings, before it went on under these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Earlier>,
    /// SHA-256 of everything else that it reads.
    pub inputs: Inputs,
    /// Where the parts are that it is joined from, as `--parts` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<String>,
    /// SHA-256 of the files that it left, by their paths in its folder, once it is done.
    #[serde(default)]
    pub outputs: Inputs,
    /// Version of this program.
    pub spectrain: String,
    /// Commit of the working directory, where that is a git repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_revision: Option<String>,
    /// The recipe's seed.
    pub seed: u64,
    /// When it was first started, in seconds since 1970, UTC.
    pub started: u64,
    /// When it was finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<u64>,
    /// Seconds that it took, in all the processes that worked on it and ended by themselves: of one that was killed nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What it did, in numbers.
    #[serde(default)]
    pub summary: Value,
}

impl Manifest {
    /// Adds the seconds of a session.
    pub(super) fn took(&mut self, seconds: f64) {
        self.seconds = Some(self.seconds.unwrap_or_default() + seconds);
    }
}

/// A part of a training under other settings than what came after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Earlier {
    /// Steps done by its end, those before it included.
    pub steps: u64,
    /// Its settings.
    pub settings: Value,
}

/// Whether a stage's outputs are complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// They are not; the stage runs, or was interrupted.
    Started,
    /// They are.
    Done,
}

/// What a stage's folder holds, seen from the recipe as it is now.
#[derive(Debug, Clone, PartialEq)]
pub enum StageState {
    /// Finished from the same settings and inputs, with this summary.
    Done(Value),
    /// Finished, but these files of it are not what it left.
    Damaged(Vec<Damage>),
    /// Started from the same settings and inputs.
    Interrupted,
    /// Trained for so many steps, and its end is another now, which is none of those before.
    Longer {
        /// Steps that are saved.
        steps: u64,
        /// What differs.
        what: Vec<String>,
    },
    /// The same, but it cannot go on to that end, such as one that comes before the saved steps.
    Unfit {
        /// Steps that are saved.
        steps: u64,
        /// What differs.
        what: Vec<String>,
    },
    /// Made from others; each entry says what differs.
    Changed(Vec<String>),
    /// Nothing.
    Missing,
}

/// What is wrong with a file that a stage left.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// It is not there.
    Missing(String),
    /// It holds something else.
    Changed(String),
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(file) => write!(f, "`{file}` is missing"),
            Self::Changed(file) => write!(f, "`{file}` was changed after it was written"),
        }
    }
}

/// What a stage is to be made from.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The part of the recipe that it reads.
    pub settings: &'a Value,
    /// SHA-256 of everything else that it reads.
    pub inputs: &'a Inputs,
    /// The defaults of its keys, with which was made what was made before there were these keys.
    pub defaults: &'a Defaults,
    /// What a change of one of the settings does, by its path, such as `train.steps`.
    pub effect: fn(&str) -> Effect,
    /// The step at which a training ends; asked for where nothing but its length has changed.
    pub ends: &'a dyn Fn() -> Result<u64>,
}

/// What `stage` of the run in `run` holds. That what it left is unchanged is taken for granted.
pub fn stage_state(run: &Path, stage: &str, wanted: Wanted) -> Result<StageState> {
    let Some(manifest) = manifest_in(run, stage)? else {
        return Ok(StageState::Missing);
    };
    let mut made_with = manifest.settings;
    wanted.defaults.complete(&mut made_with, wanted.settings);
    let differences = changed_settings(&made_with, wanted.settings, wanted.effect);
    let inputs = changed_inputs(&manifest.inputs, wanted.inputs);
    let is_done = manifest.status == Status::Done;
    let is_of_before =
        |difference: &Difference| is_done && difference.ends_the_same(&manifest.summary);
    let is_unrecorded =
        |name: &str| is_done && is_of_one_version(name, &manifest.inputs, wanted.inputs);
    let same_inputs = inputs.iter().all(|(name, _)| is_unrecorded(name));
    if same_inputs && differences.iter().all(is_of_before) {
        return Ok(match manifest.status {
            Status::Done => StageState::Done(manifest.summary),
            Status::Started => StageState::Interrupted,
        });
    }
    let what = in_words(&differences, &inputs);
    let steps = state::latest(&run.join(stage))?.map_or(0, |saved| saved.step);
    let is_length = |difference: &Difference| (wanted.effect)(&difference.path) == Effect::GoesOn;
    let takes_warm_up_along = |difference: &Difference| match difference.path.as_str() {
        STEPS => difference.new.as_u64().is_some_and(|end| end < steps),
        EPOCHS => difference.old.is_null() != difference.new.is_null(),
        _ => false,
    };
    let any_warm_up = differences.iter().any(takes_warm_up_along);
    let is_other_length = |difference: &Difference| {
        let warms_up = any_warm_up && difference.path == WARM_UP;
        is_length(difference) || warms_up || is_of_before(difference)
    };
    if steps == 0 || !same_inputs || !differences.iter().all(is_other_length) {
        return Ok(StageState::Changed(what));
    }
    // A state that another version has left, or one of another warm-up, is not gone on from.
    let goes_on = inputs.is_empty() && differences.iter().all(is_length);
    Ok(if goes_on && (wanted.ends)()? >= steps {
        StageState::Longer { steps, what }
    } else {
        StageState::Unfit { steps, what }
    })
}

/// What differs between the settings and inputs of what was made and of what is wanted, as a stage would start over for it; `effect`
/// says what a change of a setting does.
pub fn differences(
    [old, new]: [(&Value, &Inputs); 2],
    effect: impl Fn(&str) -> Effect,
) -> Vec<String> {
    let settings = changed_settings(old.0, new.0, effect);
    in_words(&settings, &changed_inputs(old.1, new.1))
}

fn in_words(settings: &[Difference], inputs: &[(String, &str)]) -> Vec<String> {
    let inputs = inputs.iter().map(|(name, how)| format!("{name} {how}"));
    let settings = settings.iter().map(ToString::to_string);
    settings.chain(inputs).collect()
}

/// The settings in which a stage is wanted otherwise than it was made.
fn changed_settings(old: &Value, new: &Value, effect: impl Fn(&str) -> Effect) -> Vec<Difference> {
    // `auto` and what it means on the device are one type.
    let computed_in =
        |settings: &Value| settings["target"][COMPUTED_IN].as_str().map(str::to_owned);
    let now = computed_in(new);
    let same_type = now.is_some() && now == computed_in(old);
    let mut differences = Vec::new();
    find_differences("", old, new, &mut differences);
    differences.retain(|difference| {
        // Earlier versions recorded tables that the stage does not read.
        let table = difference.table();
        let is_read = table.is_empty() || new.get(table).is_some();
        let is_same_type = difference.path == "target.dtype" && same_type;
        is_read && !is_same_type && effect(&difference.path) != Effect::Nothing
    });
    differences
}

/// The names of the inputs that are not the same, each with what has become of it.
fn changed_inputs(old: &Inputs, new: &Inputs) -> Vec<(String, &'static str)> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    // Another path to the same files is no change.
    let is_at_other_path = |name: &str, hash: &String, inputs: &Inputs| {
        let mut others = inputs.iter();
        name.starts_with(FOLDER_OF_FEATURES)
            && others.any(|(other, found)| other.starts_with(FOLDER_OF_FEATURES) && found == hash)
    };
    let is_not_always_recorded =
        |name: &str| RECORDED_LATER.iter().any(|later| name.starts_with(later));
    let change = |name: &String| match (old.get(name), new.get(name)) {
        (Some(old), Some(new)) if old == new => None,
        (Some(_), Some(_)) => Some("has changed"),
        _ if is_not_always_recorded(name) => None,
        (None, Some(hash)) if is_at_other_path(name, hash, old) => None,
        (Some(hash), None) if is_at_other_path(name, hash, new) => None,
        (None, _) => Some("is a new input"),
        (_, None) => Some("is no longer an input"),
    };
    let told = |name: &String| Some((name.clone(), change(name)?));
    names.into_iter().filter_map(told).collect()
}

/// Whether an input is of a kind of which the version that made a finished stage recorded none, or this one records none.
fn is_of_one_version(name: &str, old: &Inputs, new: &Inputs) -> bool {
    let none = |inputs: &Inputs, kind: &str| !inputs.keys().any(|name| name.starts_with(kind));
    let is_recorded_later = |kind: &&str| name.starts_with(*kind) && none(old, kind);
    let is_recorded_no_more = name.starts_with(ANSWERS) && none(new, ANSWERS);
    is_recorded_no_more || RECORDED_LATER_IN_STATES.iter().any(is_recorded_later)
}

/// A setting that is another now.
struct Difference {
    /// Its keys, with dots between them.
    path: String,
    old: Value,
    new: Value,
}

impl Difference {
    /// The first of its keys; nothing where one of the two has no keys at all.
    fn table(&self) -> &str {
        self.path.split('.').next().unwrap_or_default()
    }

    /// Whether a finished training with this summary waits for no validation that it has not waited for: with its steps it is at
    /// its end, and so it is where as many have ended it as do now.
    fn ends_the_same(&self, summary: &Value) -> bool {
        let waited = summary["fit"]["out_of_patience"].as_u64();
        let is_over = |waited: u64| self.new.as_u64().is_some_and(|patience| patience <= waited);
        self.path == PATIENCE && waited.is_none_or(is_over)
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |value: &Value| match value {
            Value::Null => "nothing".to_owned(),
            value => value.to_string(),
        };
        let (old, new) = (show(&self.old), show(&self.new));
        write!(f, "`{}`: {old} → {new}", self.path)
    }
}

/// The leaves at which two settings differ.
fn find_differences(path: &str, old: &Value, new: &Value, out: &mut Vec<Difference>) {
    if old == new {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (old, new) {
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let inner = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            let [old, new] = [old, new].map(|table| table.get(key).unwrap_or(&Value::Null));
            find_differences(&inner, old, new, out);
        }
        return;
    }
    out.push(Difference {
        path: path.to_owned(),
        old: old.clone(),
        new: new.clone(),
    });
}

fn path_of(run: &Path, stage: &str) -> PathBuf {
    run.join(stage).join(MANIFEST)
}

/// The manifest of a stage of the run in `run`.
pub fn manifest_in(run: &Path, stage: &str) -> Result<Option<Manifest>> {
    let path = path_of(run, stage);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        // What stands in the place of the folder is told where it is opened.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read `{}`", path.display()));
        }
    };
    let read = || -> Result<Manifest> {
        let mut value: Value = serde_json::from_str(&text)?;
        let stated = value
            .as_object_mut()
            .and_then(|manifest| manifest.shift_remove(DIGEST));
        if stated.is_some_and(|stated| stated != digest(&value)) {
            bail!("it was changed after it was written");
        }
        Ok(serde_json::from_value(value)?)
    };
    let manifest = read().with_context(|| {
        format!(
            "cannot read `{}`; if you delete this file, the stage runs again, and a training resumes from its saved states",
            path.display()
        )
    })?;
    Ok(Some(manifest))
}

pub(super) fn write_manifest(run: &Path, manifest: &Manifest) -> Result<()> {
    let path = path_of(run, &manifest.stage);
    let mut value = serde_json::to_value(manifest)
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    value[DIGEST] = digest(&value).into();
    write_json(&path, &value)
}

fn digest(manifest: &Value) -> String {
    sha256_bytes(manifest.to_string().as_bytes())
}
