//! The stages of a run: each reads the recipe and the folders of earlier ones, and fills one folder.

pub mod evaluate;
pub mod export;
pub mod features;
pub mod prepare;
pub mod synthetic;
#[cfg(test)]
mod tests;
pub mod train;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use serde_json::{Map, Value};
use spectrain_checkpoints::{DType, state};

use crate::cli::Misuse;
use crate::progress::{Output, Progress};
use crate::recipe::ResolvedRecipe;
use crate::run_folder::{Inputs, RunFolder, StageState};
use crate::tables::FeatureMode;
use crate::target;

/// A step of a run.
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
    /// Does it, and returns what was done in numbers.
    pub run: fn(&StageContext) -> Result<Value>,
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
}

/// Every stage in order.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "synthetic",
        wanted: |recipe| recipe.synthetic.is_some(),
        reads: &["seed", "synthetic"],
        inputs: &[],
        resumes: true,
        run: synthetic::run,
    },
    Stage {
        name: "prepare",
        wanted: |_| true,
        reads: &[
            "data.max_length",
            "data.overlong",
            "data.mask",
            "data.min_trained_tokens",
        ],
        inputs: &[
            Input::Tokenizer,
            Input::TrainData,
            Input::EvalData,
            Input::Template,
        ],
        resumes: false,
        run: prepare::run,
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
        run: features::run,
    },
    Stage {
        name: "train",
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
        ],
        resumes: true,
        run: |context| context.recipe.method.train(context),
    },
    Stage {
        name: "export",
        wanted: |_| true,
        reads: &["recipe", "export", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::Output("prepare/prompts.json"),
            Input::Output(TRAINED),
        ],
        resumes: false,
        run: export::run,
    },
    Stage {
        name: "evaluate",
        wanted: |_| true,
        reads: &["recipe", "evaluate", "target.dtype"],
        inputs: &[
            Input::Target,
            Input::FurtherTargets,
            Input::Output("prepare/prompts.json"),
            Input::Output(EXPORTED),
        ],
        resumes: false,
        run: evaluate::run,
    },
];

/// Where `train` leaves the drafter, in f32, within the run.
pub const TRAINED: &str = "train/drafter";

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
    pub fn train_data(&self) -> PathBuf {
        let made = || self.folder("synthetic").join("train.jsonl");
        self.recipe.data.train.clone().unwrap_or_else(made)
    }

    /// The conversations to evaluate with.
    pub fn eval_data(&self) -> PathBuf {
        let made = || self.folder("synthetic").join("eval.jsonl");
        self.recipe.data.eval.clone().unwrap_or_else(made)
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
                Input::TrainData => ("`data.train`".into(), self.run.sha256(&self.train_data())?),
                Input::EvalData => ("`data.eval`".into(), self.run.sha256(&self.eval_data())?),
                Input::Template => match &self.recipe.data.template {
                    Some(path) => ("`data.template`".into(), self.run.sha256(path)?),
                    None => continue,
                },
                Input::Start => match &self.recipe.start {
                    Some(folder) => ("`start`".into(), self.sha256_of_model(folder)?),
                    None => continue,
                },
                Input::Output(path) => (
                    format!("`{path}`"),
                    self.run.sha256(&self.run.path().join(path))?,
                ),
            };
            inputs.insert(name, hash);
        }
        Ok(inputs)
    }

    /// Whether a stage has to run. Fails if an input is not there.
    pub fn state(&self, stage: &Stage) -> Result<StageState> {
        let settings = settings(self.recipe, stage);
        self.run
            .stage_state(stage.name, &settings, &self.inputs(stage)?)
    }
}

/// The part of a recipe that a stage reads.
pub fn settings(recipe: &ResolvedRecipe, stage: &Stage) -> Value {
    let mut settings = Map::new();
    for path in stage.reads {
        let (table, key) = match path.split_once('.') {
            Some((table, key)) => (table, Some(key)),
            None => (*path, None),
        };
        let value = &recipe.json[table];
        match key {
            None => drop(settings.insert(table.into(), value.clone())),
            Some(key) => {
                let part = settings
                    .entry(table)
                    .or_insert_with(|| Value::Object(Map::new()));
                part[key] = value[key].clone();
            }
        }
    }
    Value::Object(settings)
}

/// The stages of a recipe; of these, the ones named in `only` are to run, or all if it is empty.
pub fn selected(recipe: &ResolvedRecipe, only: &[String]) -> Result<Vec<&'static Stage>> {
    let stages: Vec<&Stage> = STAGES
        .iter()
        .filter(|stage| (stage.wanted)(recipe))
        .collect();
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

/// Runs the stages of a recipe that are not done, or of these only the ones named.
pub fn run(context: &StageContext, only: &[String]) -> Result<()> {
    let stages = selected(context.recipe, only)?;
    let is_selected = |stage: &Stage| only.is_empty() || only.iter().any(|name| name == stage.name);
    let last = stages.iter().rposition(|stage| is_selected(stage));
    for stage in &stages[..last.map_or(0, |last| last + 1)] {
        check_interrupted()?;
        match is_selected(stage) {
            true => run_stage(context, stage).with_context(|| format!("stage `{}`", stage.name))?,
            false => require_done(context, stage)?,
        }
    }
    Ok(())
}

fn require_done(context: &StageContext, stage: &Stage) -> Result<()> {
    let name = stage.name;
    let advice = format!("run it with `--stage {name}` too");
    // What an unfinished stage reads may not be there either; that it is unfinished says more.
    if context.run.manifest(name)?.is_none() {
        bail!("stage `{name}` comes before and has not run; {advice}");
    }
    match context.state(stage)? {
        StageState::Done(_) => Ok(()),
        StageState::Missing | StageState::Interrupted => {
            bail!("stage `{name}` comes before and is not finished; {advice}")
        }
        StageState::Changed(what) => bail!(
            "stage `{name}` comes before and is out of date: {}; {advice}",
            what.join(", ")
        ),
    }
}

fn run_stage(context: &StageContext, stage: &Stage) -> Result<()> {
    let name = stage.name;
    match context.state(stage)? {
        StageState::Done(_) => {
            context.output.say(format!("{name}: done before"));
            return Ok(());
        }
        StageState::Missing => {}
        StageState::Interrupted if stage.resumes => {
            context
                .output
                .say(format!("{name}: goes on where it was interrupted"));
        }
        StageState::Interrupted => context.run.clear(name)?,
        StageState::Changed(what) => start_over(context, stage, &what)?,
    }
    let started = Instant::now();
    let settings = settings(context.recipe, stage);
    let manifest =
        context
            .run
            .start(name, context.recipe.seed, settings, context.inputs(stage)?)?;
    let summary = (stage.run)(context)?;
    context
        .run
        .finish(manifest, started.elapsed().as_secs_f64(), summary)
}

/// Makes room for a stage that was made from other settings or inputs. Trained weights are kept aside.
fn start_over(context: &StageContext, stage: &Stage, what: &[String]) -> Result<()> {
    let mut message = format!("{}: starts over: {}", stage.name, what.join(", "));
    if stage.name == "train" && holds_weights(context)? {
        let aside = context.run.set_aside(stage.name)?;
        message.push_str(&format!("; the old one is kept as `{}`", aside.display()));
    } else {
        context.run.clear(stage.name)?;
    }
    context.output.say(message);
    Ok(())
}

/// Whether training has left anything: a stage that failed before its first saved state has not.
fn holds_weights(context: &StageContext) -> Result<bool> {
    let trained = context.run.path().join(TRAINED).exists();
    Ok(trained || !state::list(&context.folder("train"))?.is_empty())
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Asks long stages to stop at the next point from which they can go on.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Whether the user asked to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails if the user asked to stop.
pub fn check_interrupted() -> Result<()> {
    match interrupted() {
        true => bail!("interrupted; the same command goes on from here"),
        false => Ok(()),
    }
}
