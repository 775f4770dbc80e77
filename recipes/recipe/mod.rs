//! Reads a recipe file: TOML, with overrides from the command line, into tables and a [`Method`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use spectrain_checkpoints::ModelFolder;
use spectrain_checkpoints::published::Family;
use spectrain_models::{TargetSpec, bounds};
use spectrain_train::TrainConfig;

use crate::cli::Misuse;
use crate::families::footprint::Footprint;
use crate::families::registry::Method;
use crate::recipe::tables::{
    DataTable, EvaluateTable, ExportTable, FeaturesTable, Problem, SyntheticTable, TargetTable,
    some_of,
};
use crate::runs::run_folder::check_name;

mod defaults;
mod document;
pub mod schema;
pub mod tables;
#[cfg(test)]
mod tests;

pub use document::Document;
use document::{Change, setting};

/// A recipe file of a drafter with the settings `D` and an objective with the settings `O`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, bound = "")]
pub struct File<D: Settings, O: Settings> {
    /// Required. The drafter and its objective, by their name in `spectrain recipes`.
    pub recipe: String,
    /// Required. The run's folder under `runs/`.
    pub name: String,
    /// Seed of the drafter's first weights, of the data order and of the synthetic data.
    #[serde(default)]
    pub seed: u64,
    /// Folder of a drafter, ours or a published one, whose weights training starts from; `[drafter]` must describe it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<PathBuf>,
    /// The frozen model that a drafter is trained for.
    pub target: TargetTable,
    /// Makes conversations and a small target that has learnt them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<SyntheticTable>,
    /// Which conversations there are, and how they become tokens.
    pub data: DataTable,
    /// When the target's hidden states are computed.
    pub features: FeaturesTable,
    /// What only this drafter has.
    pub drafter: D,
    /// What only this objective has.
    pub objective: O,
    /// How the drafter is trained.
    pub train: TrainConfig,
    /// The keys of `[train]` that are other in one stage of a training in several stages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, TrainConfig>,
    /// The drafter as serving engines load it.
    pub export: ExportTable,
    /// How the drafter is judged.
    pub evaluate: EvaluateTable,
}

/// The table of a drafter or of an objective.
pub trait Settings:
    Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + 'static
{
}
impl<T: Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + 'static> Settings for T {}

/// Tensors with an entry for each token of a draft vocabulary.
const VOCABULARY_MAPS: [&str; 2] = ["d2t", "token_map"];

/// Tables that may be left out of a file because every key in them has a default.
const OPTIONAL_TABLES: [&str; 8] = [
    "target",
    "data",
    "features",
    "drafter",
    "objective",
    "train",
    "export",
    "evaluate",
];

/// A recipe with every default filled in, without the types of its drafter and objective.
pub struct ResolvedRecipe {
    /// [`crate::families::registry::Recipe::name`].
    pub recipe: String,
    /// Folder under `runs/`.
    pub name: String,
    /// See [`File::seed`].
    pub seed: u64,
    /// See [`File::start`].
    pub start: Option<PathBuf>,
    /// The `[target]` table.
    pub target: TargetTable,
    /// The `[synthetic]` table.
    pub synthetic: Option<SyntheticTable>,
    /// The `[data]` table.
    pub data: DataTable,
    /// The `[features]` table.
    pub features: FeaturesTable,
    /// The `[train]` table.
    pub train: TrainConfig,
    /// The tables in `[stages]` of a recipe that trains in several stages: `[train]` with what is changed for each.
    pub stages: BTreeMap<String, TrainConfig>,
    /// The `[export]` table.
    pub export: ExportTable,
    /// The `[evaluate]` table.
    pub evaluate: EvaluateTable,
    /// The drafter and the objective with their tables.
    pub method: Box<dyn Method>,
    /// The whole recipe as TOML.
    pub toml: String,
    /// The same as JSON, by table and key.
    pub json: Value,
}

impl fmt::Debug for ResolvedRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.toml)
    }
}

/// Reads a recipe file and changes the keys that `overrides` (`train.steps=100`) name.
pub fn read_file(path: &Path, overrides: &[String]) -> Result<ResolvedRecipe> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the recipe `{}`", path.display()))?;
    let wrong = || Misuse(format!("cannot read the recipe `{}`", path.display()));
    read(&text, overrides).with_context(wrong)
}

/// Reads the text of a recipe file.
pub fn read(text: &str, overrides: &[String]) -> Result<ResolvedRecipe> {
    let changes = Change::all(overrides, text.len() + 1)?;
    let document = Document::parse(text, &changes)?;
    let entry = document.recipe()?;
    let resolved = (entry.read)(&document)?;
    resolved
        .check()
        .map_err(|problem| document.locate(&problem))?;
    Ok(resolved)
}

impl<D: Settings, O: Settings> File<D, O> {
    /// Splits a file into what the program reads and the method that reads the rest.
    pub fn resolve(self, method: Box<dyn Method>) -> Result<ResolvedRecipe> {
        let toml = toml::to_string_pretty(&self).context("cannot write the recipe as TOML")?;
        let json = serde_json::to_value(&self).context("cannot write the recipe as JSON")?;
        Ok(ResolvedRecipe {
            recipe: self.recipe,
            name: self.name,
            seed: self.seed,
            start: self.start,
            target: self.target,
            synthetic: self.synthetic,
            data: self.data,
            features: self.features,
            train: self.train,
            stages: self.stages,
            export: self.export,
            evaluate: self.evaluate,
            method,
            toml,
            json,
        })
    }
}

impl ResolvedRecipe {
    /// The hub id or folder of the target; the folder that `[synthetic]` makes is not known here.
    pub fn model(&self) -> Option<&str> {
        self.target.model.as_deref()
    }

    /// Fails unless `start` is there and of this recipe's kind; whether it has the settings of `[drafter]` shows in training.
    pub fn check_start(&self) -> anyhow::Result<()> {
        let Some(folder) = &self.start else {
            return Ok(());
        };
        let model = ModelFolder::open(folder).context("`start`")?;
        let (found, expected) = (Family::of(&model)?, self.method.family());
        match found == expected {
            true => Ok(()),
            false => bail!(
                "`start`: expected an {expected} drafter for `recipe = \"{}\"`, found an {found} drafter in `{}`",
                self.recipe,
                folder.display()
            ),
        }
    }

    /// Sizes of the drafter for a target of these sizes; that of `start` keeps its draft vocabulary where none is asked for.
    pub(crate) fn footprint(&self, target: &TargetSpec) -> anyhow::Result<Footprint> {
        let footprint = self.method.footprint(target)?;
        let asked = footprint.draft_vocab != target.vocab as u64;
        let Some(folder) = self.start.as_ref().filter(|_| !asked) else {
            return Ok(footprint);
        };
        let model = ModelFolder::open(folder).context("`start`")?;
        let map = VOCABULARY_MAPS
            .iter()
            .find_map(|name| model.info(name).ok());
        let kept = map.and_then(|map| map.shape.first().copied());
        Ok(match kept {
            Some(kept) => footprint.with_vocabulary(kept as u64),
            None => footprint,
        })
    }

    /// How a stage trains.
    pub fn training(&self, stage: &str) -> &TrainConfig {
        self.stages.get(stage).unwrap_or(&self.train)
    }

    /// The training stages in order, without those of no step.
    pub fn training_stages(&self) -> Vec<&'static str> {
        let stages = self.method.stages().iter().copied();
        stages
            .filter(|stage| self.training(stage).steps > 0)
            .collect()
    }

    /// The training stage before another.
    pub fn trained_before(&self, stage: &str) -> Option<&'static str> {
        let stages = self.training_stages();
        let place = stages.iter().position(|&name| name == stage)?;
        Some(stages[place.checked_sub(1)?])
    }

    /// The training stage whose drafter the later stages take.
    pub fn last_trained(&self) -> &'static str {
        match self.training_stages().last() {
            Some(stage) => stage,
            None => unreachable!("a recipe has a training stage"),
        }
    }

    fn check_training(&self) -> Result<(), Problem> {
        let row = self.data.max_length;
        if self.stages.is_empty() {
            return self.train.check(row).map_err(setting);
        }
        if self.training_stages().is_empty() {
            let message = "expected steps in one of the stages, found 0 in each";
            return Err(Problem::new("train.steps", message));
        }
        for stage in self.training_stages() {
            let checked = self.training(stage).check(row).map_err(setting);
            checked.map_err(|problem| Problem {
                key: problem.key.replacen("train", &format!("stages.{stage}"), 1),
                ..problem
            })?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Problem> {
        check_name(&self.name).map_err(|error| Problem::new("name", error.to_string()))?;
        let given = [
            ("target.model", self.target.model.is_some()),
            ("data.train", self.data.train.is_some()),
            ("data.eval", self.data.eval.is_some()),
            ("data.held_out", self.data.held_out.is_some()),
        ];
        for (key, given) in given {
            let message = match (&self.synthetic, given) {
                (Some(_), true) => "must be absent beside `[synthetic]`, whose output it is".into(),
                // Without them some of the training data is the evaluation's.
                (None, false) if ["data.eval", "data.held_out"].contains(&key) => continue,
                (None, false) => {
                    format!("is missing; set it in the file or with `--set {key}=...`")
                }
                _ => continue,
            };
            return Err(Problem::new(key, message));
        }
        let within = |table| move |problem: Problem| problem.within(table);
        if let Some(synthetic) = &self.synthetic {
            synthetic.check().map_err(within("synthetic"))?;
        }
        self.data.check().map_err(within("data"))?;
        self.check_training()?;
        self.evaluate.check().map_err(within("evaluate"))?;
        if let Some(own) = self.model()
            && self.evaluate.targets.iter().any(|target| target == own)
        {
            let message = format!("expected targets beside `target.model`, found it: `{own}`");
            return Err(Problem::new("evaluate.targets", message));
        }
        let samples = self.features.samples_per_shard;
        let samples = bounds::up_to("samples_per_shard", samples, bounds::SAMPLES);
        tables::within([samples]).map_err(within("features"))?;
        some_of("to", &self.export.to).map_err(within("export"))
    }
}
