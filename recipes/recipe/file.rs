//! A recipe file with the types of its drafter and its objective.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_train::{Defaults, TrainConfig};

use crate::families::method::Method;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::settings::Settings;
use crate::recipe::tables::{
    DataTable, EvaluateTable, ExportTable, FeaturesTable, RegenerateTable, SyntheticTable,
    TargetTable, TrackTable,
};

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
    /// The drafter whose weights training starts from: its folder, ours or a published one, the folder of a run, or a hub id,
    /// `owner/name` or `owner/name@revision`; `[drafter]` must describe it. These weights are validated before the first step, and
    /// exported if training finds no better ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<PathBuf>,
    /// The frozen model that a drafter is trained for.
    pub target: TargetTable,
    /// Generates conversations and trains a small target on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<SyntheticTable>,
    /// Has the target answer the conversations anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regenerate: Option<RegenerateTable>,
    /// The conversations to train and evaluate with, and how they become tokens.
    pub data: DataTable,
    /// When and by what the target's hidden states are computed.
    pub features: FeaturesTable,
    /// The settings of the drafter, which depend on `recipe`.
    pub drafter: D,
    /// The settings of the objective, which depend on `recipe`.
    pub objective: O,
    /// How the drafter is trained.
    pub train: TrainConfig,
    /// Where training has several stages: the keys of `[train]` that differ in one of them, by the name of the stage.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, TrainConfig>,
    /// The drafter as serving engines load it.
    pub export: ExportTable,
    /// How the drafter is evaluated.
    pub evaluate: EvaluateTable,
    /// A tracking server that receives the run's metrics, besides the run's own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub track: Option<TrackTable>,
}

/// Tables that may be left out of a file because every key in them has a default.
pub(super) const OPTIONAL_TABLES: [&str; 8] = [
    "target",
    "data",
    "features",
    "drafter",
    "objective",
    "train",
    "export",
    "evaluate",
];

impl<D: Settings, O: Settings> File<D, O> {
    /// Splits a file into what the program reads and the method that reads the rest.
    pub fn resolve(self, method: Box<dyn Method>) -> Result<ResolvedRecipe> {
        let toml = toml::to_string_pretty(&self).context("cannot write the recipe as TOML")?;
        let json = serde_json::to_value(&self).context("cannot write the recipe as JSON")?;
        Ok(ResolvedRecipe {
            origin: None,
            recipe: self.recipe,
            name: self.name,
            seed: self.seed,
            start: self.start,
            target: self.target,
            synthetic: self.synthetic,
            regenerate: self.regenerate,
            data: self.data,
            features: self.features,
            train: self.train,
            stages: self.stages,
            export: self.export,
            evaluate: self.evaluate,
            track: self.track,
            method,
            defaults: Self::defaults,
            toml,
            json,
        })
    }

    /// The defaults of the tables that say what is trained and how.
    fn defaults() -> Defaults {
        let own = Defaults::default()
            .with::<D>("drafter")
            .with::<O>("objective");
        own.with::<TrainConfig>("train")
            .with::<BTreeMap<String, TrainConfig>>("stages")
    }
}
