//! Whether each stage of a recipe is done, found as the run finds it, from the same inputs and outputs.

use anyhow::{Error, Result, anyhow};
use burn::prelude::Device;
use serde_json::{Value, json};

use super::shown::is_told;
use super::words::duration;
use crate::cli::progress::Output;
use crate::errors::with_causes;
use crate::plan::preflight::Asked;
use crate::runs::run_folder::{Existing, RunFolder, StageState, manifest_in};
use crate::runtime::device;
use crate::runtime::prompt_sets;
use crate::runtime::sizes::folder_of;
use crate::runtime::start_at;
use crate::runtime::target::hub_options;
use crate::stages::context::StageContext;
use crate::stages::in_order::{check_type, instead, keeps_work, listed, unfit};
use crate::stages::order;
use crate::stages::stage::Stage;

/// What becomes of a stage.
pub(super) struct Planned {
    /// Its name.
    pub(super) name: &'static str,
    /// What becomes of it, for people.
    pub(super) state: String,
    /// Whether nothing is left to do.
    pub(super) done: bool,
}

/// How a state begins in which a stage cannot run; why follows.
const CANNOT_RUN: &str = "cannot run: ";
/// How the states begin in which what was done is done again; why follows.
const STARTS_OVER: &str = "starts over: ";
const RUNS_AGAIN: &str = "runs again: ";

impl Planned {
    /// What becomes of it, in which that is not said again for which the run is refused.
    pub(super) fn beside(&self, refused: &[String]) -> &str {
        let why = self.state.strip_prefix(CANNOT_RUN);
        match why {
            Some(why) if is_told(why, refused) => "cannot run, as the error says",
            _ => &self.state,
        }
    }

    /// Whether what was done is done again.
    pub(super) fn is_again(&self) -> bool {
        [STARTS_OVER, RUNS_AGAIN]
            .iter()
            .any(|again| self.state.starts_with(again))
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        json!({"name": self.name, "state": self.state})
    }
}

/// What a run is refused for, with what stages cannot run for beside.
pub(super) fn with_refusals(mut refusals: Vec<Error>, stages: &[Planned]) -> Vec<Error> {
    let told: Vec<String> = refusals.iter().map(with_causes).collect();
    let of_stage = |stage: &Planned| {
        let why = stage.state.strip_prefix(CANNOT_RUN)?;
        (!is_told(why, &told)).then(|| anyhow!("stage `{}`: {why}", stage.name))
    };
    refusals.extend(stages.iter().filter_map(of_stage));
    refusals
}

/// Each stage with what becomes of it. One after a stage that has to run may have to run too, as its input changes.
pub(super) fn stages(asked: &Asked) -> Result<Vec<Planned>> {
    let recipe = asked.recipe;
    let run = RunFolder::unlocked(asked.runs.join(&recipe.name));
    let context = StageContext {
        recipe,
        run: &run,
        device: Device::flex(),
        device_name: asked.device.into(),
        target_type: device::target_type(recipe.target.dtype, asked.device),
        output: Output::Quiet,
        array: Default::default(),
        group: None,
    };
    let mut after: Option<&str> = None;
    let mut states = Vec::new();
    for stage in order::of(recipe) {
        let manifest = match asked.existing {
            Existing::SetAside => None,
            Existing::Continue => manifest_in(run.path(), stage.name)?,
        };
        let (state, done) = match (manifest, after) {
            (None, _) => ("runs".to_owned(), false),
            (Some(manifest), None) => state(&context, &stage, manifest.seconds)?,
            (Some(_), Some(name)) => (
                format!("runs again if the output of `{name}` changes"),
                false,
            ),
        };
        if !done && after.is_none() {
            after = Some(stage.name);
        }
        states.push(Planned {
            name: stage.name,
            state,
            done,
        });
    }
    Ok(states)
}

/// What becomes of a stage that was started, and whether it is done.
fn state(context: &StageContext, stage: &Stage, seconds: Option<f64>) -> Result<(String, bool)> {
    if let Some(model) = missing_model(context) {
        return Ok((
            format!("runs again if `{model}`, which is not on this machine, has changed"),
            false,
        ));
    }
    let state = match context.state(stage) {
        Ok(state) => state,
        Err(error) => return Ok((format!("{CANNOT_RUN}{}", with_causes(&error)), false)),
    };
    if keeps_work(&state)
        && let Err(error) = check_type(context, stage)
    {
        return Ok((format!("{CANNOT_RUN}{}", with_causes(&error)), false));
    }
    let text = match state {
        StageState::Done(_) => {
            return Ok((
                format!("done in {}", duration(seconds.unwrap_or(0.0))),
                true,
            ));
        }
        StageState::Missing => "runs".into(),
        StageState::Interrupted if stage.resumes => "goes on where it was interrupted".into(),
        StageState::Interrupted => "starts over after an interruption".into(),
        StageState::Longer { steps, what } => {
            format!("goes on from step {steps}: {}", what.join(", "))
        }
        StageState::Unfit { steps, what } => {
            format!(
                "{CANNOT_RUN}it {}",
                unfit(context, stage.name, steps, &what)
            )
        }
        StageState::Damaged(what) => format!("{RUNS_AGAIN}{}", listed(&what)),
        StageState::Changed(what) => {
            let instead = instead(context, stage)?;
            let parts = [format!("{STARTS_OVER}{}", what.join(", "))];
            parts
                .into_iter()
                .chain(instead)
                .collect::<Vec<_>>()
                .join("; ")
        }
    };
    Ok((text, false))
}

/// A model of the recipe, a dataset or a set of prompts, that would have to be downloaded to compare it with what a stage was made from.
fn missing_model(context: &StageContext) -> Option<String> {
    let recipe = context.recipe;
    let own = recipe
        .model()
        .map(|model| (model, recipe.target.revision.as_deref()));
    let further = recipe
        .evaluate
        .targets
        .iter()
        .map(|model| (model.as_str(), None));
    let drafter = recipe.method.model().filter(|_| recipe.start.is_none());
    let drafter = drafter.map(|model| (model, None));
    let mut models = own.into_iter().chain(drafter).chain(further);
    let missing = models.find(|(model, revision)| folder_of(model, *revision).is_none());
    let missing = missing.map(|(model, _)| model.to_owned());
    let data = [recipe.data.train_sources(), recipe.data.eval.clone()];
    let missing_data = || {
        let mut data = data.into_iter().flatten();
        data.find_map(|sources| sources.here(&hub_options()).err())
    };
    let start = recipe
        .start
        .as_deref()
        .filter(|start| start_at::here(start).is_none());
    missing
        .or_else(|| start.map(|start| start.display().to_string()))
        .or_else(missing_data)
        .or_else(|| prompt_sets::missing(recipe.evaluate.sets()))
}
