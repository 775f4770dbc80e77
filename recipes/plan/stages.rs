//! Whether each stage of a recipe is done, found as the run finds it, from the same inputs and outputs.

use anyhow::{Error, Result, anyhow};
use burn::prelude::Device;
use serde_json::{Value, json};

use super::shown::is_told;
use super::words::duration;
use crate::errors::with_causes;
use crate::plan::preflight::Asked;
use crate::progress::Output;
use crate::runs::run_folder::{Existing, RunFolder, StageState, manifest_in};
use crate::runtime::device;
use crate::runtime::prompt_sets;
use crate::runtime::sizes::folder_of;
use crate::runtime::start_at;
use crate::runtime::target::hub_options;
use crate::stages::array::ArrayJob;
use crate::stages::context::StageContext;
use crate::stages::in_order::{
    NOT_RUN, after_interruption, check_going_on, has_to_come_first, instead, listed, to_other_end,
    unfit, wanted_again, why_not_done,
};
use crate::stages::order;
use crate::stages::stage::Stage;
use crate::stages::unsaved::BEGINS_ANEW;

/// What becomes of a stage.
pub(super) struct Planned {
    /// Its name.
    pub(super) name: &'static str,
    /// What becomes of it, for people.
    pub(super) state: String,
    /// Whether nothing is left to do.
    pub(super) done: bool,
    /// Whether it is asked for.
    asked: bool,
}

/// How a state begins in which a stage cannot run; why follows.
const CANNOT_RUN: &str = "cannot run: ";
/// What becomes of a stage that has not begun.
const RUNS: &str = "runs";
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

    /// Whether something is left to do that is asked for.
    pub(super) fn is_left(&self) -> bool {
        self.asked && !self.done
    }

    /// Whether what was done is done again.
    pub(super) fn is_again(&self) -> bool {
        [STARTS_OVER, RUNS_AGAIN]
            .iter()
            .any(|again| self.state.starts_with(again))
    }

    /// Whether it surely begins at the first step, or does so again.
    pub(super) fn begins_anew(&self) -> bool {
        let begins = self.state == RUNS || self.state.starts_with(BEGINS_ANEW);
        self.is_left() && (begins || self.is_again())
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
        array: ArrayJob {
            part: None,
            parts: asked.parts.map(str::to_owned),
        },
        group: None,
    };
    let stages = order::of(recipe);
    let is_asked = |stage: &Stage| order::is_selected(stage.name, asked.only);
    let last = stages.iter().rposition(is_asked).unwrap_or(0);
    let mut after: Option<&str> = None;
    let mut states = Vec::new();
    for (place, stage) in stages.iter().enumerate() {
        let manifest = match asked.existing {
            Existing::SetAside => None,
            Existing::Continue => manifest_in(run.path(), stage.name)?,
        };
        let has_run = manifest.is_some();
        let may_stay = has_run && after.is_some();
        let becomes = match (manifest, after) {
            (None, None) if may_be_taken_back(asked, &context, stage)? => {
                becomes(&context, stage, None)?
            }
            (None, _) => Becomes::to_do(RUNS),
            (Some(manifest), None) => becomes(&context, stage, manifest.seconds)?,
            (Some(_), Some(name)) => {
                Becomes::to_do(format!("runs again if the output of `{name}` changes"))
            }
        };
        if !becomes.stays && after.is_none() {
            after = Some(stage.name);
        }
        let (name, is_asked) = (stage.name, is_asked(stage));
        let state = match place < last {
            _ if is_asked || becomes.stays => becomes.told,
            true if may_stay => {
                format!("has to be named with `--stage {name}` too if what it reads changes")
            }
            true => becomes.missing(name, has_run),
            false => "not asked for".to_owned(),
        };
        states.push(Planned {
            name,
            state,
            done: becomes.done && (is_asked || becomes.stays),
            asked: is_asked,
        });
    }
    Ok(states)
}

/// What becomes of a stage.
struct Becomes {
    /// For people.
    told: String,
    /// Whether nothing is left to do.
    done: bool,
    /// Whether what stands in its place stays as it is.
    stays: bool,
    /// Why it is not done, as [`has_to_come_first`] takes it, of one that has run.
    why: Option<String>,
}

impl Becomes {
    /// Something is left to do.
    fn to_do(told: impl Into<String>) -> Self {
        Self {
            told: told.into(),
            done: false,
            stays: false,
            why: None,
        }
    }

    /// What is said of the stage `name` where it is not asked for and a later one reads what it is to leave.
    fn missing(&self, name: &str, has_run: bool) -> String {
        // Asked for, it could not run either.
        if self.told.starts_with(CANNOT_RUN) {
            return self.told.clone();
        }
        let becomes = || format!(" and {}", self.told);
        let why = match has_run {
            true => self.why.clone().unwrap_or_else(becomes),
            false => NOT_RUN.to_owned(),
        };
        format!("{CANNOT_RUN}it {}", has_to_come_first(name, &why))
    }
}

/// Whether something was set aside of a stage in whose place nothing is, and it can be told here whether that is wanted again.
fn may_be_taken_back(asked: &Asked, context: &StageContext, stage: &Stage) -> Result<bool> {
    Ok(asked.existing == Existing::Continue
        && !context.run.asides(stage.name)?.is_empty()
        && missing_model(context).is_none())
}

/// What becomes of a stage that was started, or of which something was set aside.
fn becomes(context: &StageContext, stage: &Stage, seconds: Option<f64>) -> Result<Becomes> {
    if let Some(model) = missing_model(context) {
        let told = format!("runs again if `{model}`, which is not on this machine, has changed");
        return Ok(Becomes::to_do(told));
    }
    let cannot = |error: &Error| Becomes::to_do(format!("{CANNOT_RUN}{}", with_causes(error)));
    let found = context.state(stage).and_then(|state| {
        let again = wanted_again(context, stage, &state)?;
        Ok((state, again))
    });
    let state = match found {
        Ok((_, Some((aside, state)))) => {
            return taken_back(context, stage, (&aside, state));
        }
        Ok((state, None)) => state,
        Err(error) => return Ok(cannot(&error)),
    };
    if let Err(error) = check_going_on(context, stage, &state) {
        return Ok(cannot(&error));
    }
    let why = why_not_done(&state);
    let found = match state {
        StageState::Done(_) => Becomes {
            told: format!("done in {}", duration(seconds.unwrap_or(0.0))),
            done: true,
            stays: true,
            why: None,
        },
        StageState::Missing => Becomes::to_do(RUNS),
        StageState::Interrupted => Becomes::to_do(after_interruption(context, stage, stage.name)?),
        StageState::Longer { steps, what } => {
            Becomes::to_do(to_other_end(context, stage.name, steps, &what)?)
        }
        StageState::Unfit { steps, what } => {
            let why = unfit(context, stage.name, steps, &what);
            Becomes::to_do(format!("{CANNOT_RUN}it {why}"))
        }
        StageState::Damaged(what) => Becomes::to_do(format!("{RUNS_AGAIN}{}", listed(&what))),
        StageState::Changed(what) => {
            let instead = instead(context, stage)?;
            let parts = [format!("{STARTS_OVER}{}", what.join(", "))];
            let parts: Vec<String> = parts.into_iter().chain(instead).collect();
            Becomes::to_do(parts.join("; "))
        }
    };
    Ok(Becomes { why, ..found })
}

/// What becomes of a stage that takes back what was set aside under this name, in this state.
fn taken_back(
    context: &StageContext,
    stage: &Stage,
    (aside, state): (&str, StageState),
) -> Result<Becomes> {
    let (how, done) = match state {
        StageState::Done(_) => ("which is done".to_owned(), true),
        StageState::Longer { steps, what } => {
            (to_other_end(context, stage.name, steps, &what)?, false)
        }
        _ => (after_interruption(context, stage, aside)?, false),
    };
    Ok(Becomes {
        told: format!("takes back `{}`, {how}", context.folder(aside).display()),
        done,
        stays: false,
        why: None,
    })
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
