//! The stages of a run: each reads the recipe and the folders of earlier ones, and fills one folder.

pub mod evaluate;
pub mod export;
pub mod features;
mod in_order;
mod interruption;
pub mod prepare;
pub mod synthetic;
#[cfg(test)]
mod tests;
pub mod train;
mod validation;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use serde_json::{Map, Value};
use spectrain_checkpoints::{DType, hash};
use spectrain_data::rows;
use spectrain_data::sources::{Source, Sources};
use spectrain_train::Effect;

use crate::cli::Misuse;
use crate::cli::progress::{Output, Progress};
use crate::recipe::ResolvedRecipe;
use crate::recipe::tables::FeatureMode;
use crate::runs::run_folder::{Inputs, RunFolder, StageState, Wanted};
use crate::runtime::target;

pub(crate) use in_order::listed;
pub use in_order::run;
pub use interruption::{Interrupted, check_interrupted, interrupt, interrupted, or_interrupted};

/// A step of a run.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Its name and that of its folder.
    pub name: &'static str,
    /// Whether a recipe has this stage.
    pub wanted: fn(&ResolvedRecipe) -> bool,
    /// Tables and keys of the recipe that it reads: if one changes, it runs again.
    pub reads: &'static [&'static str],
    /// Everything else that it reads.
    pub inputs: &'static [Input],
    /// Whether it goes on where it was interrupted; the folder of one that does not is cleared.
    pub resumes: bool,
    /// Does it under its name, and returns what was done in numbers.
    pub run: fn(&StageContext, &'static str) -> Result<Value>,
}

/// Something a stage reads besides the recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The target's configuration and weights.
    Target,
    /// Configuration and weights of the targets in `evaluate.targets`.
    FurtherTargets,
    /// The target's tokenizer and chat template.
    Tokenizer,
    /// The conversations to train on.
    TrainData,
    /// The conversations to evaluate with.
    EvalData,
    /// The recipe's chat template, where it has one.
    Template,
    /// The drafter that training starts from, where the recipe names one.
    Start,
    /// A file or folder that an earlier stage left, by its path within the run; not there if that stage is not wanted.
    Output(&'static str),
    /// The drafter of the training stage before this one, where there is one.
    Before,
    /// The drafter of the last training stage.
    Trained,
    /// The drafter that engines load, whatever an evaluation wrote into its folder.
    Exported,
}

/// Every stage in order. A recipe that trains in several stages has each of them in the place of [`TRAIN`].
pub const STAGES: &[Stage] = &[
    Stage {
        name: "synthetic",
        wanted: |recipe| recipe.synthetic.is_some(),
        reads: &["seed", "synthetic"],
        inputs: &[],
        resumes: true,
        run: |context, _| synthetic::run(context),
    },
    Stage {
        name: "prepare",
        wanted: |_| true,
        reads: &[
            "data.max_length",
            "data.overlong",
            "data.mask",
            "data.turns",
            "data.template_variables",
            "data.held_out",
            "data.min_trained_tokens",
        ],
        inputs: &[
            Input::Tokenizer,
            Input::TrainData,
            Input::EvalData,
            Input::Template,
        ],
        resumes: false,
        run: |context, _| prepare::run(context),
    },
    Stage {
        name: "features",
        wanted: |recipe| recipe.features.mode == FeatureMode::Stored,
        reads: &["recipe", "features", "drafter", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::Output("prepare/train/tokens.json"),
            Input::Output("prepare/eval/tokens.json"),
        ],
        resumes: true,
        run: |context, _| features::run(context),
    },
    Stage {
        name: TRAIN,
        wanted: |_| true,
        reads: &[
            "recipe",
            "seed",
            "start",
            "features.mode",
            "drafter",
            "objective",
            "train",
            "target.dtype",
        ],
        inputs: &[
            Input::Target,
            Input::Start,
            Input::Output("prepare/train/tokens.json"),
            Input::Output("prepare/eval/tokens.json"),
            Input::Output("prepare/counts.json"),
            Input::Before,
        ],
        resumes: true,
        run: |context, stage| context.recipe.method.train(context, stage),
    },
    Stage {
        name: "export",
        wanted: |_| true,
        reads: &["recipe", "export", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::Output("prepare/prompts.json"),
            Input::Trained,
        ],
        resumes: false,
        run: |context, _| export::run(context),
    },
    Stage {
        name: "evaluate",
        wanted: |_| true,
        reads: &["recipe", "evaluate", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::FurtherTargets,
            Input::Output("prepare/prompts.json"),
            Input::Exported,
        ],
        resumes: false,
        run: |context, _| evaluate::run(context),
    },
];

/// The stage that trains, and the key of a stage's settings that tells how.
pub const TRAIN: &str = "train";

/// The key of the settings of an objective, of which a training stage may read some.
const OBJECTIVE: &str = "objective";

/// Where a training stage leaves the drafter, in f32, within the run.
pub fn trained(stage: &str) -> String {
    format!("{stage}/drafter")
}

/// Where `export` leaves the drafter that engines load, within the run.
pub const EXPORTED: &str = "export/drafter";

/// What a stage runs with.
pub struct StageContext<'a> {
    /// The recipe.
    pub recipe: &'a ResolvedRecipe,
    /// The run.
    pub run: &'a RunFolder,
    /// The device.
    pub device: Device,
    /// The device's name, for reports.
    pub device_name: String,
    /// Type of the target's weights.
    pub dtype: DType,
    /// Where progress goes.
    pub output: Output,
}

impl StageContext<'_> {
    /// The folder of a stage.
    pub fn folder(&self, stage: &str) -> PathBuf {
        self.run.stage(stage)
    }

    /// The target's folder: made by `synthetic`, given, or downloaded now.
    pub fn target_folder(&self) -> Result<PathBuf> {
        match self.recipe.model() {
            None => Ok(self.folder("synthetic").join("target")),
            Some(model) => target::resolve(model, self.recipe.target.revision.as_deref()),
        }
    }

    /// What reports call the target.
    pub fn target_name(&self) -> Result<String> {
        match self.recipe.model() {
            None => Ok(self.target_folder()?.display().to_string()),
            Some(model) => Ok(model.to_owned()),
        }
    }

    /// Names and folders of the targets in `evaluate.targets`; downloads what is missing.
    pub fn further_targets(&self) -> Result<Vec<(String, PathBuf)>> {
        let resolved = |model: &String| Ok((model.clone(), target::resolve(model, None)?));
        self.recipe.evaluate.targets.iter().map(resolved).collect()
    }

    /// The conversations to train on.
    pub fn train_data(&self) -> Result<Sources> {
        let given = self.recipe.data.train.clone();
        given
            .or_else(|| self.made("train.jsonl"))
            .context("`data.train` is missing")
    }

    /// The conversations to evaluate with; none where some of those to train on are held out.
    pub fn eval_data(&self) -> Option<Sources> {
        let given = self.recipe.data.eval.clone();
        given.or_else(|| self.made("eval.jsonl"))
    }

    /// Conversations that `synthetic` makes, in a recipe that has it.
    fn made(&self, file: &str) -> Option<Sources> {
        let made = self.recipe.synthetic.as_ref();
        made.map(|_| self.folder("synthetic").join(file).into())
    }

    /// SHA-256 of the files of a dataset, with the weights of its paths where they have some.
    fn sha256_of_data(&self, sources: &Sources) -> Result<String> {
        if let [Source { path, weight: 1.0 }] = sources.each()
            && path.exists()
        {
            return self.run.sha256(path);
        }
        let mut parts = String::new();
        for Source { path, weight } in sources.each() {
            let hash = self.run.sha256_of(&rows::files(path)?)?;
            parts.push_str(&format!("{hash} {weight}\n"));
        }
        Ok(hash::sha256_bytes(parts.as_bytes()))
    }

    /// Starts to show progress; see [`Output::start`].
    pub fn progress(&self, what: &str, total: u64) -> Progress {
        self.output.start(what, total)
    }

    /// SHA-256 of the target's configuration and weights.
    pub fn target_sha256(&self) -> Result<String> {
        self.sha256_of_model(&self.target_folder()?)
    }

    /// SHA-256 of the configuration and weights in a folder.
    pub fn sha256_of_model(&self, folder: &Path) -> Result<String> {
        self.run.sha256_of(&target::weight_files(folder)?)
    }

    fn inputs(&self, stage: &Stage) -> Result<Inputs> {
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
                Input::Tokenizer => {
                    let files = target::text_files(&self.target_folder()?)?;
                    ("the tokenizer".into(), self.run.sha256_of(&files)?)
                }
                Input::TrainData => {
                    let hash = self.sha256_of_data(&self.train_data()?)?;
                    ("`data.train`".into(), hash)
                }
                Input::EvalData => match self.eval_data() {
                    Some(eval) => ("`data.eval`".into(), self.sha256_of_data(&eval)?),
                    None => continue,
                },
                Input::Template => match &self.recipe.data.template {
                    Some(path) => ("`data.template`".into(), self.run.sha256(path)?),
                    None => continue,
                },
                Input::Start => match &self.recipe.start {
                    Some(folder) => ("`start`".into(), self.run.sha256_of_drafter(folder)?),
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

    /// Whether a stage has to run. Fails if an input is not there.
    pub fn state(&self, stage: &Stage) -> Result<StageState> {
        let wanted = Wanted {
            settings: &settings(self.recipe, stage)?,
            inputs: &self.inputs(stage)?,
            effect,
        };
        self.run.stage_state(stage.name, wanted)
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

/// The stages of a recipe.
pub fn of(recipe: &ResolvedRecipe) -> Vec<Stage> {
    let wanted = STAGES.iter().filter(|stage| (stage.wanted)(recipe));
    let each = |stage: &Stage| match stage.name {
        TRAIN => {
            let named = |&name: &&'static str| Stage { name, ..*stage };
            recipe.training_stages().iter().map(named).collect()
        }
        _ => vec![*stage],
    };
    wanted.flat_map(each).collect()
}

/// The stages of a recipe, of which there are those named in `only`.
pub fn selected(recipe: &ResolvedRecipe, only: &[String]) -> Result<Vec<Stage>> {
    let stages = of(recipe);
    for name in only {
        if !stages.iter().any(|stage| stage.name == name) {
            let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
            return Err(Misuse(format!(
                "this recipe has no stage `{name}`; its stages: {}",
                names.join(", ")
            ))
            .into());
        }
    }
    Ok(stages)
}
