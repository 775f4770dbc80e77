//! What a stage is made from: the part of the recipe that it reads, and the hashes of everything else.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use spectrain_checkpoints::hash;
use spectrain_data::dataset::Located;
use spectrain_train::Effect;

use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::places::{EXPORTED, trained};
use crate::runs::run_folder::{Inputs, StageState, Wanted, stage_state};
use crate::runtime::model_files::text_files;
use crate::runtime::prompt_sets;
use crate::runtime::start_at;
use crate::stages::context::StageContext;
use crate::stages::stage::{Input, Stage};

/// The stage that trains, and the key of a stage's settings that tells how.
pub const TRAIN: &str = "train";

/// The key of the settings of an objective, of which a training stage may read some.
const OBJECTIVE: &str = "objective";

/// The tables that say how a drafter is trained, and nothing of what it is.
pub(super) const HOW: [&str; 2] = [TRAIN, OBJECTIVE];

impl StageContext<'_> {
    /// SHA-256 of everything that a stage reads beside the recipe.
    pub(super) fn inputs(&self, stage: &Stage) -> Result<Inputs> {
        let mut inputs = Inputs::new();
        let output = |path: &str| {
            let hash = self.run.sha256(&self.run.path().join(path))?;
            Ok::<_, anyhow::Error>((format!("`{path}`"), hash))
        };
        for input in stage.inputs {
            let (name, hash) = match input {
                Input::Target => ("the target".into(), self.target_sha256()?),
                Input::FurtherTargets => {
                    for (model, folder) in self.further_targets()? {
                        let hash = self.sha256_of_model(&folder)?;
                        inputs.insert(format!("the target `{model}`"), hash);
                    }
                    continue;
                }
                Input::Tokenizer => ("the tokenizer".into(), self.tokenizer_sha256()?),
                Input::TrainData if self.recipe.regenerate.is_some() => {
                    let hash = self.sha256_of_data(&self.train_data()?)?;
                    ("the answers of `regenerate`".into(), hash)
                }
                Input::GivenData | Input::TrainData => {
                    let hash = self.sha256_of_data(&self.given_data()?)?;
                    ("`data.train`".into(), hash)
                }
                Input::EvalData => match self.eval_data()? {
                    Some(eval) => ("`data.eval`".into(), self.sha256_of_data(&eval)?),
                    None => continue,
                },
                Input::PromptSets => {
                    inputs.extend(self.prompt_sets()?);
                    continue;
                }
                Input::Template => match &self.recipe.data.template {
                    Some(path) => ("`data.template`".into(), self.run.sha256(path)?),
                    None => continue,
                },
                Input::KnownFeatures => {
                    inputs.extend(self.known_features()?);
                    continue;
                }
                Input::Start => match &self.recipe.start {
                    Some(start) => ("`start`".into(), self.start_sha256(start)?),
                    None => continue,
                },
                Input::Output(path) => output(path)?,
                Input::Before => match self.recipe.trained_before(stage.name) {
                    Some(before) => output(&trained(before))?,
                    None => continue,
                },
                Input::Exported => {
                    let folder = self.run.path().join(EXPORTED);
                    let hash = self.run.sha256_of_drafter(&folder)?;
                    (format!("`{EXPORTED}`"), hash)
                }
                Input::Trained => output(&trained(self.recipe.last_trained()))?,
            };
            inputs.insert(name, hash);
        }
        Ok(inputs)
    }

    fn tokenizer_sha256(&self) -> Result<String> {
        self.run.sha256_of(&text_files(&self.target_folder()?)?)
    }

    /// SHA-256 of the drafter that training starts from; downloads what is missing.
    fn start_sha256(&self, start: &Path) -> Result<String> {
        self.run.sha256_of_drafter(&start_at::folder(start)?)
    }

    /// SHA-256 of what says which features are in the folders that the recipe names.
    fn known_features(&self) -> Result<Inputs> {
        let features = &self.recipe.features;
        let folders = features.from.iter().chain(&features.imported);
        let each = folders.map(|folder| {
            let hash = self.run.sha256(&folder.join("features.json"))?;
            Ok((format!("the features `{}`", folder.display()), hash))
        });
        each.collect()
    }

    /// SHA-256 of the prompt sets that the recipe names, and of what makes them tokens; nothing where it names none.
    fn prompt_sets(&self) -> Result<Inputs> {
        let mut inputs = Inputs::new();
        let sets = self.recipe.evaluate.sets();
        if sets.is_empty() {
            return Ok(inputs);
        }
        let datasets = prompt_sets::datasets(sets).context("`evaluate.prompts`")?;
        for (name, dataset) in datasets {
            let mut hash = self.run.sha256_of(&dataset.files()?)?;
            let reading: String = dataset.each().iter().map(Located::reading).collect();
            if !reading.is_empty() {
                hash = hash::sha256_bytes(format!("{hash} {reading}").as_bytes());
            }
            inputs.insert(format!("the prompts `{name}`"), hash);
        }
        let data = &self.recipe.data;
        let text = text_files(&self.target_folder()?)?;
        inputs.insert("the tokenizer".into(), self.run.sha256_of(&text)?);
        if let Some(path) = &data.template {
            inputs.insert("`data.template`".into(), self.run.sha256(path)?);
        }
        let variables = json!(data.template_variables).to_string();
        let hash = hash::sha256_bytes(variables.as_bytes());
        inputs.insert("`data.template_variables`".into(), hash);
        Ok(inputs)
    }

    /// Whether a stage has to run. Fails if an input is not there.
    pub fn state(&self, stage: &Stage) -> Result<StageState> {
        self.compared(stage, |wanted| self.run.stage_state(stage.name, wanted))
    }

    /// What the run in `other` holds of a stage as this one wants it. That what it left is unchanged is taken for granted.
    pub(super) fn state_in(&self, other: &Path, stage: &Stage) -> Result<StageState> {
        self.compared(stage, |wanted| stage_state(other, stage.name, wanted))
    }

    fn compared(
        &self,
        stage: &Stage,
        compare: impl FnOnce(Wanted) -> Result<StageState>,
    ) -> Result<StageState> {
        compare(Wanted {
            settings: &settings(self.recipe, stage)?,
            inputs: &self.inputs(stage)?,
            effect,
        })
    }
}

/// What a change of a setting of a stage, such as `train.steps`, does to what it has done already.
pub fn effect(path: &str) -> Effect {
    match path.split_once('.') {
        Some((TRAIN, key)) => Effect::of(key),
        _ => Effect::StartsOver,
    }
}

/// The part of a recipe that a stage reads.
pub fn settings(recipe: &ResolvedRecipe, stage: &Stage) -> Result<Value> {
    let mut settings = Map::new();
    for path in stage.reads {
        let (table, key) = match path.split_once('.') {
            Some((table, key)) => (table, Some(key)),
            None => (*path, None),
        };
        let value = &recipe.json[table];
        match key {
            None if table == TRAIN => {
                // Of several training stages each has a table of its own.
                let own = recipe.json["stages"].get(stage.name);
                drop(settings.insert(table.into(), own.unwrap_or(value).clone()));
            }
            None if table == OBJECTIVE => {
                let read = recipe.method.objective_of(stage.name)?;
                drop(settings.insert(table.into(), read));
            }
            None => drop(settings.insert(table.into(), value.clone())),
            Some(key) => {
                let part = settings
                    .entry(table)
                    .or_insert_with(|| Value::Object(Map::new()));
                part[key] = value[key].clone();
            }
        }
    }
    Ok(Value::Object(settings))
}
