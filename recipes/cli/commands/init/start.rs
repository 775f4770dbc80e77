//! A drafter that is trained further: what a recipe takes from it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;
use spectrain_checkpoints::ModelFolder;
use spectrain_models::TargetSpec;

use super::amount::Recommended;
use super::needs::TOKENS;
use super::recommended::Recommendation;
use crate::families::registry::{self, Recipe};
use crate::runs::drafter_at::DrafterAt;
use crate::runtime::start_at;
use crate::runtime::target::trained_for;
use crate::trainers::rounded_rate;

/// Rates of a tuning, as a share of those that the drafter was trained with; and its length.
const RATE_SHARE: f64 = 0.25;
const LENGTH_SHARE: f64 = 0.2;
/// Keys of `[train]` that are taken from the recipe of the run: rates, lengths, and what belongs to them.
const RATES: [&str; 2] = ["learning_rate", "matrix_learning_rate"];
const EPOCHS: &str = "epochs";
const STEPS: [&str; 2] = ["steps", "warmup_steps"];
const TRAIN: [&str; 6] = [
    "optimizer",
    "warmup_ratio",
    "schedule",
    "min_lr_ratio",
    "batch_tokens",
    "gradient_accumulation",
];
/// Keys of `[data]` that are: how conversations become rows, and how long these are.
const DATA: [&str; 6] = [
    "max_length",
    "overlong",
    "mask",
    "turns",
    "template",
    "template_variables",
];

/// Keys of `[target]` and `[features]` that are, where the target is the same: what it computes in, and where its hidden states come from.
const TARGET: [&str; 2] = ["revision", "dtype"];
const SERVER: [&str; 5] = [
    "server",
    "server_model",
    "server_folder",
    "local_folder",
    "api_key_env",
];
const FEATURES: [&str; 4] = ["samples_per_shard", "under_way", "timeout", "wait"];
const FEATURES_TABLE: &str = "features";
const MODE: &str = "mode";
/// The mode of hidden states of the run's own texts, which are none of other texts.
const IMPORTED: &str = "imported";

/// What names the drafter in a recipe.
pub(super) struct Named {
    /// The key `start`; none where `[drafter]` names it.
    pub(super) start: Option<String>,
    /// Keys of `[drafter]`.
    pub(super) keys: Vec<(String, Value)>,
}

/// The drafter.
pub(super) struct Start {
    /// As a recipe names it.
    pub(super) given: String,
    /// The name of the run that it is from, where it is of one.
    pub(super) run: Option<String>,
    folder: PathBuf,
    /// The recipe of the run that has trained it, where it is a run's.
    recipe: Option<toml::Table>,
}

impl Start {
    /// The drafter that `--start` names: a run or its folder, a drafter's folder, or an id on the hub, which is downloaded.
    pub(super) fn find(given: &str) -> Result<Self> {
        let found = DrafterAt::find(given, Path::new("runs"))?;
        let (given, recipe, run) = match &found {
            DrafterAt::Run(run) => {
                let name = run
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned());
                (run.display().to_string(), recipe_of(run), name)
            }
            _ => (given.to_owned(), None, None),
        };
        let folder = match &found {
            DrafterAt::Hub { .. } => start_at::folder(Path::new(&given))?,
            _ => found.folder()?,
        };
        Ok(Self {
            given,
            run,
            folder,
            recipe,
        })
    }

    /// The name of the recipe for it: that of its run, else the first one of its kind.
    pub(super) fn kind(&self) -> Result<&'static str> {
        let named = self.recipe.as_ref().and_then(|recipe| recipe.get("recipe"));
        let named = named.and_then(toml::Value::as_str).and_then(registry::find);
        match named {
            Some(recipe) => Ok(recipe.name),
            None => Ok(registry::of_drafter(&ModelFolder::open(&self.folder)?)?.name),
        }
    }

    /// The target that it was trained for, where that is known.
    pub(super) fn target(&self) -> Option<String> {
        let of_recipe = || {
            let target = self.recipe.as_ref()?.get("target")?;
            Some(target.get("model")?.as_str()?.to_owned())
        };
        of_recipe().or_else(|| {
            let opened = ModelFolder::open(&self.folder).ok()?;
            Some(trained_for(&opened)?.model)
        })
    }

    /// What names it in a recipe for a target of these sizes.
    pub(super) fn named(&self, kind: &Recipe, target: &TargetSpec) -> Result<Named> {
        let found = (kind.at_start)(&self.folder, target).context("`--start`")?;
        Ok(match found {
            Some(keys) => Named {
                start: Some(self.given.clone()),
                keys,
            },
            None => Named {
                start: None,
                keys: self.as_model(),
            },
        })
    }

    /// The keys of `[drafter]` with which a language model starts from it.
    fn as_model(&self) -> Vec<(String, Value)> {
        // The folder of a run is no model's.
        let model = match self.run {
            Some(_) => self.folder.display().to_string(),
            None => self.given.clone(),
        };
        let of_run = |key: &str| {
            let token = self.recipe.as_ref()?.get("drafter")?.get(key)?;
            Some((key.to_owned(), token.as_integer()?.into()))
        };
        let tokens = TOKENS.into_iter().filter_map(of_run);
        let model = [("model".to_owned(), model.into())];
        model.into_iter().chain(tokens).collect()
    }

    /// What is recommended for its tuning beside `target`: the objective and the amounts of its run, else those of `shipped`, with a
    /// quarter of the rates and a fifth of the steps; and where the run had the hidden states of the same target from.
    pub(super) fn recommended(
        &self,
        target: &str,
        shipped: Recommendation,
        set: &dyn Fn(&str) -> Option<String>,
    ) -> Recommendation {
        let (mut keys, mut told) = match &self.recipe {
            Some(recipe) => (of_run(recipe, target, set), OF_RUN.to_owned()),
            None => (shipped.keys, shipped.told),
        };
        keys.iter_mut().for_each(tune);
        if keys.iter().any(|key| key.table == FEATURES_TABLE) {
            told += OF_FEATURES;
        }
        told += FURTHER;
        Recommendation { keys, told }
    }
}

const OF_RUN: &str =
    "Objective, optimiser and lengths are those of the run that the drafter is from.";
const OF_FEATURES: &str = " So is where the target's hidden states come from.";
const FURTHER: &str = " As it is trained further, rates are a quarter of those, steps and warm-up a fifth. Mix other texts into \
                       `data.train`, or it drafts worse for them than before: recipes/README.md, \"Tuning a drafter for your texts\".";

/// The recipe in the folder of a run; none where it was imported.
fn recipe_of(run: &Path) -> Option<toml::Table> {
    let text = std::fs::read_to_string(run.join("recipe.toml")).ok()?;
    let recipe: toml::Table = text.parse().ok()?;
    recipe.contains_key("train").then_some(recipe)
}

/// What the recipe of a run says that a tuning beside `target` needs too.
fn of_run(
    recipe: &toml::Table,
    target: &str,
    set: &dyn Fn(&str) -> Option<String>,
) -> Vec<Recommended> {
    let objective = recipe.get("objective").and_then(toml::Value::as_table);
    let objective = objective.into_iter().flat_map(toml::Table::keys);
    let train = RATES.into_iter().chain([EPOCHS]).chain(STEPS).chain(TRAIN);
    let all = objective.map(|key| ("objective", key.as_str()));
    let all = all.chain(train.map(|key| ("train", key)));
    let all = all.chain(DATA.map(|key| ("data", key)));
    let all = all.chain(of_target(recipe, target, set));
    let line = |(table, key): (&'static str, &str)| {
        let value = recipe.get(table)?.get(key)?;
        set(&format!("{table}.{key}"))
            .is_none()
            .then(|| Recommended {
                table,
                line: format!("{key} = {value}"),
            })
    };
    all.filter_map(line).collect()
}

/// The keys of the target that are taken, and of where its hidden states come from.
fn of_target(
    recipe: &toml::Table,
    target: &str,
    set: &dyn Fn(&str) -> Option<String>,
) -> Vec<(&'static str, &'static str)> {
    let value = |table: &str, key: &str| recipe.get(table)?.get(key)?.as_str();
    if value("target", "model") != Some(target) {
        return Vec::new();
    }
    let mut keys = TARGET.map(|key| ("target", key)).to_vec();
    let mode = value(FEATURES_TABLE, MODE).filter(|mode| *mode != IMPORTED);
    let set_mode = set(&format!("{FEATURES_TABLE}.{MODE}"));
    let is_mode = |set: &String| Some(set.trim_matches('"')) == mode;
    // Servers go with the mode that asks them, and all that is said of them together: a key is for its server only.
    if mode.is_some() && set_mode.as_ref().is_none_or(is_mode) {
        keys.push((FEATURES_TABLE, MODE));
        keys.extend(FEATURES.map(|key| (FEATURES_TABLE, key)));
        if !SERVER
            .iter()
            .any(|key| set(&format!("target.{key}")).is_some())
        {
            keys.extend(SERVER.map(|key| ("target", key)));
        }
    }
    keys
}

/// Lowers a rate or a length.
fn tune(key: &mut Recommended) {
    let Some((name, value)) = key.line.split_once(" = ") else {
        return;
    };
    let Ok(value) = value.parse::<f64>() else {
        return;
    };
    let lower = match name {
        _ if RATES.contains(&name) => toml::Value::Float(rounded_rate(value * RATE_SHARE)),
        EPOCHS => toml::Value::Float(rounded_rate(value * LENGTH_SHARE)),
        _ if STEPS.contains(&name) && value >= 1.0 => {
            toml::Value::Integer((value * LENGTH_SHARE).ceil() as i64)
        }
        _ => return,
    };
    key.line = format!("{name} = {lower}");
}
