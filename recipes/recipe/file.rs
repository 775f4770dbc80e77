//! A recipe file with the types of its drafter and its objective.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use spectrain_train::TrainConfig;

use crate::families::method::Method;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::settings::Settings;
use crate::recipe::tables::{
    DataTable, EvaluateTable, ExportTable, FeaturesTable, SyntheticTable, TargetTable,
};

/// A recipe file of a drafter with the settings `D` and an objective with the settings `O`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "")]
pub struct File<D: Settings, O: Settings> {
    /// The registry's name: drafter and objective.
    pub recipe: String,
    /// Folder under `runs/`.
    pub name: String,
    /// Seed of the drafter's first weights, of the data order and of the synthetic data. Default: 0.
    #[serde(default)]
    pub seed: u64,
    /// Folder of a drafter whose weights training starts from, ours or a published one. Default: none, random weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<PathBuf>,
    /// See [`TargetTable`].
    pub target: TargetTable,
    /// See [`SyntheticTable`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<SyntheticTable>,
    /// See [`DataTable`].
    pub data: DataTable,
    /// See [`FeaturesTable`].
    pub features: FeaturesTable,
    /// What only this drafter has.
    pub drafter: D,
    /// What only this objective has.
    pub objective: O,
    /// See [`TrainConfig`].
    pub train: TrainConfig,
    /// See [`ResolvedRecipe::stages`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, TrainConfig>,
    /// See [`ExportTable`].
    pub export: ExportTable,
    /// See [`EvaluateTable`].
    pub evaluate: EvaluateTable,
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
