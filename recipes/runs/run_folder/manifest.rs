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
use spectrain_train::Effect;

use crate::runs::files::write_json;

pub(super) const MANIFEST: &str = "manifest.json";
/// The digest of the manifest itself, without this key.
const DIGEST: &str = "sha256";

/// SHA-256 of files or of what a stage reads, by a name for people.
pub type Inputs = BTreeMap<String, String>;

/// The input that says which layers of the target a drafter reads.
pub const CAPTURED_LAYERS: &str = "the list of captured layers";
/// What the inputs that say where a target stops begin with.
pub const STOP_TOKENS: &str = "the list of stop tokens";
/// The input that says how the target samples.
pub const OWN_SAMPLING: &str = "the target's own sampling";

/// What inputs begin with that earlier versions did not record: that a manifest lacks one says nothing of a change.
const RECORDED_LATER: [&str; 3] = [CAPTURED_LAYERS, STOP_TOKENS, OWN_SAMPLING];

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
    /// Seconds that the process that finished it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What it did, in numbers.
    #[serde(default)]
    pub summary: Value,
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
    /// What a change of one of the settings does, by its path, such as `train.steps`.
    pub effect: fn(&str) -> Effect,
}

/// What `stage` of the run in `run` holds. That what it left is unchanged is taken for granted.
pub fn stage_state(run: &Path, stage: &str, wanted: Wanted) -> Result<StageState> {
    let Some(manifest) = manifest_in(run, stage)? else {
        return Ok(StageState::Missing);
    };
    // `auto` and what it means on the device are one type.
    let computed_in =
        |settings: &Value| settings["target"][COMPUTED_IN].as_str().map(str::to_owned);
    let now = computed_in(wanted.settings);
    let same_type = now.is_some() && now == computed_in(&manifest.settings);
    let mut differences = Vec::new();
    find_differences("", &manifest.settings, wanted.settings, &mut differences);
    differences.retain(|difference| {
        // Earlier versions recorded tables that the stage does not read.
        let table = difference.table();
        let is_read = table.is_empty() || wanted.settings.get(table).is_some();
        let is_same_type = difference.path == "target.dtype" && same_type;
        is_read && !is_same_type && (wanted.effect)(&difference.path) != Effect::Nothing
    });
    let inputs = changed_inputs(&manifest.inputs, wanted.inputs);
    if differences.is_empty() && inputs.is_empty() {
        return Ok(match manifest.status {
            Status::Done => StageState::Done(manifest.summary),
            Status::Started => StageState::Interrupted,
        });
    }
    let steps = state::latest(&run.join(stage))?.map_or(0, |saved| saved.step);
    let is_longer = |difference: &Difference| {
        let (old, new) = (difference.old.as_f64(), difference.new.as_f64());
        // Epochs are no whole numbers: how many steps the new ones come to is not known here, only that there are more.
        let more = match difference.new.as_u64() {
            // A training may end at the step that it has reached.
            Some(new) => new >= steps,
            None => old.zip(new).is_some_and(|(old, new)| new > old),
        };
        (wanted.effect)(&difference.path) == Effect::GoesOn && more
    };
    let longer = steps > 0 && inputs.is_empty() && differences.iter().all(is_longer);
    let mut what: Vec<String> = differences.iter().map(ToString::to_string).collect();
    what.extend(inputs);
    Ok(if longer {
        StageState::Longer { steps, what }
    } else {
        StageState::Changed(what)
    })
}

fn changed_inputs(old: &Inputs, new: &Inputs) -> Vec<String> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |name: &String| match (old.get(name), new.get(name)) {
        (Some(old), Some(new)) if old == new => None,
        (Some(_), Some(_)) => Some(format!("{name} has changed")),
        (None, _) if RECORDED_LATER.iter().any(|later| name.starts_with(later)) => None,
        (None, _) => Some(format!("{name} is a new input")),
        (_, None) => Some(format!("{name} is no longer an input")),
    };
    names.into_iter().filter_map(change).collect()
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
