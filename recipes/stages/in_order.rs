//! The stages of a recipe one after the other: what is done is skipped, what was interrupted goes on, and what is out of date
//! or damaged makes room.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spectrain_checkpoints::state;

use crate::families::model_at_start;
use crate::runs::files::entries;
use crate::runs::places::{EXPORTED, trained};
use crate::runs::run_folder::{COMPUTED_IN, Damage, Earlier, StageState, Start};
use crate::runtime::interruption::{Interrupted, check_interrupted, or_interrupted};
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::failure;
use crate::stages::inputs::HOW;
use crate::stages::order::{is_selected, selected};
use crate::stages::parts;
use crate::stages::stage::Stage;

/// Runs the stages of a recipe that are not done, or of these only the ones named.
pub fn run(context: &StageContext, only: &[String]) -> Result<()> {
    run_and_tell(context, only, &mut |_| Ok(()))
}

/// The same; `done` is called with the name of each stage that was wanted, once it is done.
pub fn run_and_tell(
    context: &StageContext,
    only: &[String],
    done: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    if let Some(origin) = &context.recipe.origin {
        context.output.say(format!("recipe: {origin}"));
    }
    let run = context.run.path();
    failure::forget(run);
    let ended = run_each(context, only, done);
    if let Err(error) = &ended
        && !error.is::<Interrupted>()
    {
        failure::keep(run, error);
    }
    ended
}

fn run_each(
    context: &StageContext,
    only: &[String],
    done: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let stages = selected(context.recipe, only)?;
    let is_selected = |stage: &Stage| is_selected(stage.name, only);
    let last = stages.iter().rposition(is_selected);
    for stage in &stages[..last.map_or(0, |last| last + 1)] {
        check_interrupted().map_err(|_| Interrupted::Run)?;
        let goes_on = |error| or_interrupted(error, Interrupted::Run);
        if is_selected(stage) {
            run_stage(context, stage)
                .map_err(goes_on)
                .with_context(|| format!("stage `{}`", stage.name))?;
            done(stage.name)?;
        } else {
            require_done(context, stage).map_err(goes_on)?
        }
    }
    Ok(())
}

/// Fails unless a stage is done.
pub(crate) fn require_done(context: &StageContext, stage: &Stage) -> Result<()> {
    let name = stage.name;
    let advice = format!("run it with `--stage {name}` too");
    // What an unfinished stage reads may not be there either; that it is unfinished says more.
    if context.run.manifest(name)?.is_none() {
        bail!("stage `{name}` has to come first and has not run; {advice}");
    }
    match context.state(stage)? {
        StageState::Done(_) => Ok(()),
        StageState::Missing | StageState::Interrupted => {
            bail!("stage `{name}` has to come first and is not finished; {advice}")
        }
        StageState::Damaged(what) => bail!(
            "stage `{name}` has to come first, and its files are not as it left them: {}; {advice}",
            listed(&what)
        ),
        StageState::Longer { what, .. } => bail!(
            "stage `{name}` has to come first and has more to do: {}; {advice}",
            what.join(", ")
        ),
        StageState::Changed(what) | StageState::Unfit { what, .. } => bail!(
            "stage `{name}` has to come first and is out of date: {}; {advice}",
            what.join(", ")
        ),
    }
}

fn run_stage(context: &StageContext, stage: &Stage) -> Result<()> {
    let name = stage.name;
    let say = |message: String| context.output.say(format!("{name}: {message}"));
    let mut longer = None;
    let state = context.state(stage)?;
    if !matches!(state, StageState::Done(_)) {
        check_beginning(context, stage)?;
    }
    if keeps_work(&state) {
        check_type(context, stage)?;
    }
    match state {
        StageState::Done(_) => {
            say("done before".into());
            return Ok(());
        }
        StageState::Missing => {}
        StageState::Interrupted if stage.resumes => say("goes on where it was interrupted".into()),
        StageState::Interrupted => context.run.clear(name)?,
        StageState::Longer { steps, what } => {
            say(format!("goes on from step {steps}: {}", what.join(", ")));
            longer = Some(steps);
        }
        StageState::Unfit { steps, what } => bail!(unfit(context, name, steps, &what)),
        StageState::Damaged(what) => make_anew(context, stage, &what)?,
        StageState::Changed(what) => start_over(context, stage, &what)?,
    }
    let started = Instant::now();
    let start = Start {
        seed: context.recipe.seed,
        settings: context.settings(stage)?,
        inputs: context.inputs(stage)?,
        history: history(context, name, longer)?,
    };
    let manifest = context.run.start(name, start)?;
    let joined = match name {
        parts::STAGE => parts::joined(context, stage)?,
        _ => None,
    };
    let summary = match joined {
        Some(summary) => summary,
        None => (stage.run)(context, name)?,
    };
    context
        .run
        .finish(manifest, started.elapsed().as_secs_f64(), summary)
}

/// Fails where a training could not begin, before it makes room for what was trained.
fn check_beginning(context: &StageContext, stage: &Stage) -> Result<()> {
    let method = &context.recipe.method;
    match method.model() {
        Some(model) if method.stages().contains(&stage.name) => {
            model_at_start::check(model, &context.target_folder()?)
        }
        _ => Ok(()),
    }
}

/// Whether a stage in this state keeps a part of what it has made.
pub(crate) fn keeps_work(state: &StageState) -> bool {
    matches!(
        state,
        StageState::Interrupted | StageState::Longer { .. } | StageState::Damaged(_)
    )
}

/// What is said of a training that has done so many steps and cannot go on to the end that it is to have now.
pub(crate) fn unfit(context: &StageContext, stage: &str, steps: u64, what: &[String]) -> String {
    format!(
        "has done {steps} steps, from which it cannot go on as is asked: {}; put back what has changed, or move `{}` away to train \
         anew",
        what.join(", "),
        context.folder(stage).display()
    )
}

/// Whether the numbers of a stage that goes on depend on the type in which it computes here; parts of features are only joined.
fn computes(context: &StageContext, stage: &str) -> bool {
    let recipe = context.recipe;
    let has_parts = context.array.parts.is_some() || context.run.path().join(parts::PARTS).exists();
    let captures = stage == parts::STAGE && recipe.features.mode.computes_target() && !has_parts;
    captures || recipe.method.stages().contains(&stage)
}

/// Fails where a stage that goes on would compute in another type than it began in, as `auto` means on another device.
pub(crate) fn check_type(context: &StageContext, stage: &Stage) -> Result<()> {
    let name = stage.name;
    let manifest = context.run.manifest(name)?;
    let manifest = manifest.filter(|_| computes(context, name));
    let Some(manifest) = manifest.filter(|_| holds_work(context, name).unwrap_or(true)) else {
        return Ok(());
    };
    let here = context.target_type.name().to_lowercase();
    match manifest.settings["target"][COMPUTED_IN].as_str() {
        Some(began) if began != here => bail!(
            "`target.dtype`: expected `{began}`, in which the stage `{name}` has begun, found {}, which is `{here}` on `{}`; \
             `--set target.dtype={began}` goes on with it, and `--fresh` begins anew",
            context.recipe.json["target"]["dtype"],
            context.device_name
        ),
        _ => Ok(()),
    }
}

/// What a stage did before under other settings; `longer` is the step from which it goes on under new ones.
fn history(context: &StageContext, stage: &str, longer: Option<u64>) -> Result<Vec<Earlier>> {
    let Some(manifest) = context.run.manifest(stage)? else {
        return Ok(Vec::new());
    };
    let mut history = manifest.history;
    history.extend(longer.map(|steps| Earlier {
        steps,
        settings: manifest.settings,
    }));
    Ok(history)
}

/// What is wrong with the files of a stage, for people.
pub(crate) fn listed(damage: &[Damage]) -> String {
    let parts: Vec<String> = damage.iter().map(ToString::to_string).collect();
    parts.join(", ")
}

/// Makes room for what a finished stage has to make again. What was changed is kept aside: it may have been on purpose.
fn make_anew(context: &StageContext, stage: &Stage, damage: &[Damage]) -> Result<()> {
    let name = stage.name;
    let mut message = format!("{name}: runs again: {}", listed(damage));
    // Of a folder in a stage all or nothing is written.
    let tops = damage.iter().filter_map(|damage| match damage {
        Damage::Changed(file) => file.split(['/', '\\']).next(),
        Damage::Missing(_) => None,
    });
    let changed: BTreeSet<PathBuf> = if stage.resumes {
        tops.map(|top| Path::new(name).join(top)).collect()
    } else {
        tops.map(|_| PathBuf::from(name)).collect()
    };
    for path in &changed {
        let aside = context.run.set_aside(path)?;
        message.push_str(&format!(
            "; what was there is kept as `{}`",
            aside.display()
        ));
    }
    if !stage.resumes {
        context.run.clear(name)?;
    }
    context.output.warn(message);
    Ok(())
}

/// How a training that starts over could go on instead from what it has left: where nothing has changed but how it trains.
pub(crate) fn instead(context: &StageContext, stage: &Stage) -> Result<Option<String>> {
    let Some(manifest) = context.run.manifest(stage.name)? else {
        return Ok(None);
    };
    let trains = context.recipe.method.stages().contains(&stage.name);
    let wanted = context.settings(stage)?;
    let is_other = what_it_is(&manifest.settings) != what_it_is(&wanted);
    if !trains || is_other || manifest.inputs != context.inputs(stage)? {
        return Ok(None);
    }
    let spec = target::spec(&context.target_folder()?)?;
    let run = context.run.path();
    let can_start = context
        .recipe
        .method
        .check_start(&run.join(EXPORTED), &spec);
    let how = || {
        format!(
            "to train on from the drafter trained before, give the run another `name` and set `start = \"{}\"`",
            run.display()
        )
    };
    Ok(can_start.is_ok().then(how))
}

/// The settings of a training without those that say how it trains.
fn what_it_is(settings: &Value) -> BTreeMap<&String, &Value> {
    let tables = settings.as_object().into_iter().flatten();
    let others = tables.filter(|(table, _)| !HOW.contains(&table.as_str()));
    others.collect()
}

/// Makes room for a stage that was made from other settings or inputs. What took long to make is kept aside: trained weights,
/// answers that were paid for, features.
fn start_over(context: &StageContext, stage: &Stage, what: &[String]) -> Result<()> {
    let mut message = format!("{}: starts over: {}", stage.name, what.join(", "));
    let instead = instead(context, stage)?;
    if stage.resumes && holds_work(context, stage.name)? {
        let aside = context.run.set_aside(stage.name)?;
        message.push_str(&format!("; the old one is kept as `{}`", aside.display()));
    } else {
        context.run.clear(stage.name)?;
    }
    if let Some(instead) = instead {
        message.push_str(&format!("; {instead}"));
    }
    context.output.say(message);
    Ok(())
}

/// Whether a stage has left anything worth to be kept: a training that failed before its first saved state has not.
fn holds_work(context: &StageContext, stage: &str) -> Result<bool> {
    let folder = context.folder(stage);
    if context.recipe.method.stages().contains(&stage) {
        let trained = context.run.path().join(trained(stage)).exists();
        return Ok(trained || !state::list(&folder)?.is_empty());
    }
    // The manifest is there from the start.
    Ok(entries(&folder)?.len() > 1)
}
