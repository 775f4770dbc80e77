//! The stages of a recipe one after the other: what is done is skipped, what was interrupted goes on, what is out of date
//! or damaged makes room, and what made room before is taken back where it is wanted again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spectrain_checkpoints::state;

use crate::families::model_at_start;
use crate::progress::counted;
use crate::runs::files::entries;
use crate::runs::places::{EXPORTED, trained};
use crate::runs::run_folder::{COMPUTED_IN, Damage, Earlier, Manifest, StageState, Start};
use crate::runs::stage_names::EVALUATE;
use crate::runtime::interruption::{Interrupted, check_interrupted, or_interrupted};
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::failure;
use crate::stages::order::{is_selected, selected};
use crate::stages::parts;
use crate::stages::report;
use crate::stages::settings::HOW;
use crate::stages::stage::{AfterInterruption, Stage};
use crate::stages::unsaved::unsaved;

/// What is called with the names of stages on the way.
pub struct Told<'a> {
    /// Of each one that is not done yet, before it is run.
    pub begins: &'a mut dyn FnMut(&str),
    /// Of each one that was wanted, once it is done.
    pub done: &'a mut dyn FnMut(&str) -> Result<()>,
}

/// Runs the stages of a recipe that are not done, or of these only the ones named.
pub fn run(context: &StageContext, only: &[String]) -> Result<()> {
    let told = Told {
        begins: &mut |_| {},
        done: &mut |_| Ok(()),
    };
    run_and_tell(context, only, told)
}

/// The same, and tells of it.
pub fn run_and_tell(context: &StageContext, only: &[String], told: Told) -> Result<()> {
    if let Some(origin) = &context.recipe.origin {
        context.output.say(format!("recipe: {origin}"));
    }
    let run = context.run.path();
    failure::forget(run);
    let ended = run_each(context, only, told);
    if let Err(error) = &ended
        && !error.is::<Interrupted>()
    {
        failure::keep(run, error);
    }
    ended
}

fn run_each(context: &StageContext, only: &[String], told: Told) -> Result<()> {
    let stages = selected(context.recipe, only)?;
    let is_selected = |stage: &Stage| is_selected(stage.name, only);
    let last = stages.iter().rposition(is_selected);
    // An earlier version noted none, and a stage that starts over forgets when it began.
    context.note_day()?;
    for stage in &stages[..last.map_or(0, |last| last + 1)] {
        check_interrupted().map_err(|_| Interrupted::Run)?;
        let goes_on = |error| or_interrupted(error, Interrupted::Run);
        if is_selected(stage) {
            run_stage(context, stage, told.begins)
                .map_err(goes_on)
                .with_context(|| format!("stage `{}`", stage.name))?;
            (told.done)(stage.name)?;
        } else {
            require_done(context, stage).map_err(goes_on)?
        }
    }
    // Where nothing had to be started, something may be said otherwise that changes nothing.
    context.run.describe()
}

/// Fails unless a stage is done.
pub(crate) fn require_done(context: &StageContext, stage: &Stage) -> Result<()> {
    let name = stage.name;
    // What an unfinished stage reads may not be there either; that it is unfinished says more.
    let why = match context.run.manifest(name)? {
        None => Some(NOT_RUN.to_owned()),
        Some(_) => why_not_done(&context.state(stage)?),
    };
    match why {
        None => Ok(()),
        Some(why) => bail!("stage `{name}` {}", has_to_come_first(name, &why)),
    }
}

/// Why a stage that has not begun is not done, behind "has to come first".
pub(crate) const NOT_RUN: &str = " and has not run";

/// Why a stage in this state is not done, behind "has to come first"; nothing where it is.
pub(crate) fn why_not_done(state: &StageState) -> Option<String> {
    let what = |why: &str, what: &[String]| Some(format!(" and {why}: {}", what.join(", ")));
    match state {
        StageState::Done(_) => None,
        StageState::Missing | StageState::Interrupted => Some(" and is not finished".to_owned()),
        StageState::Damaged(damage) => Some(format!(
            ", and its files are not as it left them: {}",
            listed(damage)
        )),
        StageState::Longer { what: changes, .. } => what("has more to do", changes),
        StageState::Changed(changes) | StageState::Unfit { what: changes, .. } => {
            what("is out of date", changes)
        }
    }
}

/// What is said of a stage, behind its name, that was not asked for and without which later ones cannot run; `why` is why it is not
/// done.
pub(crate) fn has_to_come_first(name: &str, why: &str) -> String {
    format!("has to come first{why}; run it with `--stage {name}` too")
}

/// How the changes are told that give a training another number of steps.
const LENGTHS: [&str; 2] = ["`train.steps`", "`train.epochs`"];

/// That a training goes on from a step to another end, for these changes, and which of its weights become others by that.
pub(crate) fn to_other_end(
    context: &StageContext,
    stage: &str,
    steps: u64,
    what: &[String],
) -> Result<String> {
    let goes_on = format!("goes on from step {steps}: {}", what.join(", "));
    let is_of_length = |what: &String| LENGTHS.iter().any(|length| what.starts_with(length));
    let recipe = context.recipe;
    let mut weights = Vec::new();
    if what.iter().any(is_of_length) && recipe.training_stages().contains(&stage) {
        let objective = recipe.method.objective_of(stage)?;
        find_changing("objective", &objective, &mut weights);
    }
    Ok(match &weights[..] {
        [] => goes_on,
        weights => format!(
            "{goes_on}; weights that change over the steps ({}) go by shares of the new steps",
            weights.join(", ")
        ),
    })
}

/// The keys in a table at `path` whose weights change over the steps of a training: tables with a `start` and an `end`, and a number
/// `base_weight`, which falls to 0.
fn find_changing(path: &str, table: &Value, found: &mut Vec<String>) {
    for (key, value) in table.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        let has_course = value.get("start").is_some() && value.get("end").is_some();
        let falls = key == "base_weight" && value.as_f64().is_some_and(|weight| weight != 0.0);
        match has_course || falls {
            true => found.push(format!("`{path}`")),
            false => find_changing(&path, value, found),
        }
    }
}

fn run_stage(context: &StageContext, stage: &Stage, begins: &mut dyn FnMut(&str)) -> Result<()> {
    let name = stage.name;
    let say = |message: String| context.output.say(format!("{name}: {message}"));
    let mut longer = None;
    let mut state = context.state(stage)?;
    if let Some((aside, fits)) = wanted_again(context, stage, &state)? {
        take_back(context, stage, &aside)?;
        state = fits;
    }
    if !matches!(state, StageState::Done(_)) {
        check_beginning(context, stage)?;
    }
    check_going_on(context, stage, &state)?;
    match state {
        StageState::Done(_) => {
            say("done before".into());
            return Ok(());
        }
        StageState::Missing => {}
        StageState::Interrupted => match (stage.after_interruption)(context.recipe) {
            AfterInterruption::StartsOver => context.run.clear(name)?,
            _ => say(after_interruption(context, stage, name)?),
        },
        StageState::Longer { steps, what } => {
            say(to_other_end(context, name, steps, &what)?);
            longer = Some(steps);
        }
        StageState::Unfit { steps, what } => bail!(unfit(context, name, steps, &what)),
        StageState::Damaged(what) => make_anew(context, stage, &what)?,
        StageState::Changed(what) => start_over(context, stage, &what)?,
    }
    let started = Instant::now();
    let parts = match name {
        parts::STAGE => parts::join::find(context, stage)?,
        _ => None,
    };
    let settings = context.settings(stage)?;
    let start = Start {
        seed: context.recipe.seed,
        history: history(context.run.manifest(name)?, longer, &settings),
        settings,
        inputs: context.inputs(stage)?,
        parts: parts.as_ref().and(context.array.parts.clone()),
    };
    begins(name);
    let manifest = context.run.start(name, start)?;
    context.note_day()?;
    let made = match parts {
        Some(parts) => parts.join(context),
        None => (stage.run)(context, name),
    };
    let seconds = started.elapsed().as_secs_f64();
    match made {
        Ok(summary) => context.run.finish(manifest, seconds, summary),
        Err(error) => {
            // What ended it says more than why its time cannot be noted.
            let _ = context.run.pause(manifest, seconds);
            Err(of_stage(context, stage, error))
        }
    }
}

/// The error that ended a stage; one that was interrupted and does not go on says so.
fn of_stage(context: &StageContext, stage: &Stage, error: anyhow::Error) -> anyhow::Error {
    match (stage.after_interruption)(context.recipe) {
        AfterInterruption::StartsOver => or_interrupted(error, Interrupted::Stage),
        AfterInterruption::GoesOn | AfterInterruption::TakesWhatFits => error,
    }
}

/// Of what was set aside of a stage that is in the state `now`, the name of what goes with the recipe as it is now, and its state:
/// what is done, or else, where nothing that stands in its place goes on, what does. What was damaged is left where it is.
pub(crate) fn wanted_again(
    context: &StageContext,
    stage: &Stage,
    now: &StageState,
) -> Result<Option<(String, StageState)>> {
    if matches!(now, StageState::Done(_) | StageState::Damaged(_)) {
        return Ok(None);
    }
    let mut asides = context.asides(stage)?;
    let is_done = |(_, state): &(String, StageState)| matches!(state, StageState::Done(_));
    if let Some(at) = asides.iter().position(is_done) {
        return Ok(Some(asides.swap_remove(at)));
    }
    if keeps_work(now) || !stage.kept_aside {
        return Ok(None);
    }
    for (name, state) in asides {
        let goes_on = matches!(state, StageState::Interrupted | StageState::Longer { .. });
        if goes_on && goes_on_here(context, stage, &name)? {
            return Ok(Some((name, state)));
        }
    }
    Ok(None)
}

/// Whether a stage that was set aside, and has more to do, could go on here once it is back.
fn goes_on_here(context: &StageContext, stage: &Stage, aside: &str) -> Result<bool> {
    let Some(manifest) = context.run.manifest(aside)? else {
        return Ok(false);
    };
    let same_type = !computes(context, stage.name)? || type_elsewhere(context, &manifest).is_none();
    // Where parts are that it has begun to join, has to be said.
    Ok(same_type && manifest.parts.is_none())
}

/// Puts what was set aside of a stage back in its place.
fn take_back(context: &StageContext, stage: &Stage, aside: &str) -> Result<()> {
    let kept = make_room(context, stage)?;
    context.run.take_back(aside, stage.name)?;
    if stage.name == EVALUATE {
        // The drafter's folders have the figures of what stood in its place.
        report::record(context)?;
    }
    let mut message = format!(
        "{}: takes back `{}`, which goes with these settings and inputs",
        stage.name,
        context.folder(aside).display()
    );
    if let Some(kept) = kept {
        message.push_str(&format!(
            "; what stood in its place is kept as `{}`",
            kept.display()
        ));
    }
    context.output.say(message);
    Ok(())
}

/// Frees the place of a stage: what took long to make, trained weights, answers that were paid for, features or figures, is kept aside,
/// in the folder that is returned.
fn make_room(context: &StageContext, stage: &Stage) -> Result<Option<PathBuf>> {
    let name = stage.name;
    if stage.kept_aside && context.folder(name).exists() && holds_work(context, name)? {
        return context.run.set_aside(name).map(Some);
    }
    context.run.clear(name)?;
    Ok(None)
}

/// Fails where a training could not begin, before it makes room for what was trained.
fn check_beginning(context: &StageContext, stage: &Stage) -> Result<()> {
    let method = &context.recipe.method;
    match method.model_at_start() {
        Some(start) if method.stages().contains(&stage.name) => {
            model_at_start::check(&start, &context.target_folder()?)
        }
        _ => Ok(()),
    }
}

/// Fails where a stage in this state would go on otherwise than it has begun.
pub(crate) fn check_going_on(
    context: &StageContext,
    stage: &Stage,
    state: &StageState,
) -> Result<()> {
    if keeps_work(state) {
        check_type(context, stage)?;
    }
    match state {
        StageState::Interrupted if stage.name == parts::STAGE => parts::join::check_given(context),
        _ => Ok(()),
    }
}

/// Whether a stage in this state keeps a part of what it has made.
fn keeps_work(state: &StageState) -> bool {
    matches!(
        state,
        StageState::Interrupted | StageState::Longer { .. } | StageState::Damaged(_)
    )
}

/// What is said of a training that has done so many steps and cannot go on to the end that it is to have now.
pub(crate) fn unfit(context: &StageContext, stage: &str, steps: u64, what: &[String]) -> String {
    format!(
        "has done {}, from which it cannot go on as is asked: {}; put back what has changed, or move `{}` away to train anew",
        counted(steps, "step"),
        what.join(", "),
        context.folder(stage).display()
    )
}

/// Whether the numbers of a stage that goes on depend on the type in which it computes here; parts of features are only joined.
fn computes(context: &StageContext, stage: &str) -> Result<bool> {
    let recipe = context.recipe;
    if stage == parts::STAGE && recipe.features.mode.computes_target() {
        return Ok(!parts::join::are_there(context)?);
    }
    Ok(recipe.method.stages().contains(&stage))
}

/// Fails where a stage that goes on would compute in another type than it began in, as `auto` means on another device.
pub(crate) fn check_type(context: &StageContext, stage: &Stage) -> Result<()> {
    let name = stage.name;
    if !computes(context, name)? {
        return Ok(());
    }
    let manifest = context.run.manifest(name)?;
    let Some(manifest) = manifest.filter(|_| holds_work(context, name).unwrap_or(true)) else {
        return Ok(());
    };
    match type_elsewhere(context, &manifest) {
        Some(began) => bail!(
            "`target.dtype`: expected `{began}`, in which the stage `{name}` has begun, found {}, which is `{}` on `{}`; \
             `--set target.dtype={began}` goes on with it, and `--fresh` begins anew",
            context.recipe.json["target"]["dtype"],
            context.type_in(name),
            context.device_name
        ),
        None => Ok(()),
    }
}

/// The type in which a stage has begun, where it would go on in another one here.
fn type_elsewhere<'m>(context: &StageContext, manifest: &'m Manifest) -> Option<&'m str> {
    let began = manifest.settings["target"][COMPUTED_IN].as_str();
    began.filter(|began| *began != context.type_in(&manifest.stage))
}

/// What a stage did before under other settings than those that it has `now`; `longer` is the step from which it goes on under these.
fn history(before: Option<Manifest>, longer: Option<u64>, now: &Value) -> Vec<Earlier> {
    let Some(before) = before else {
        return Vec::new();
    };
    let mut history = before.history;
    let Some(steps) = longer else {
        return history;
    };
    // Settings under which no step was saved have done nothing.
    if history.last().is_none_or(|last| last.steps < steps) {
        history.push(Earlier {
            steps,
            settings: before.settings,
        });
    }
    // And those that are back go on.
    history.pop_if(|last| last.settings == *now);
    history
}

/// What becomes of an interrupted stage whose outputs are in `folder` of the run, for people.
pub(crate) fn after_interruption(
    context: &StageContext,
    stage: &Stage,
    folder: &str,
) -> Result<String> {
    let unsaved = unsaved(context.recipe, stage.name, &context.folder(folder))?;
    let goes_on = (stage.after_interruption)(context.recipe);
    Ok(unsaved.unwrap_or_else(|| goes_on.told().to_owned()))
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
    // A stage that goes on takes the rest of what it has left.
    let goes_on = (stage.after_interruption)(context.recipe) == AfterInterruption::GoesOn;
    let changed: BTreeSet<PathBuf> = if goes_on {
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
    if !goes_on {
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
    let mut made_with = manifest.settings;
    (context.recipe.defaults)().complete(&mut made_with, &wanted);
    let is_other = what_it_is(&made_with) != what_it_is(&wanted);
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

/// Makes room for a stage that was made from other settings or inputs.
fn start_over(context: &StageContext, stage: &Stage, what: &[String]) -> Result<()> {
    let mut message = format!("{}: starts over: {}", stage.name, what.join(", "));
    let instead = instead(context, stage)?;
    if let Some(aside) = make_room(context, stage)? {
        message.push_str(&format!(
            "; the old one is kept as `{}`, and taken back once this is undone",
            aside.display()
        ));
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runs::run_folder::{Inputs, Status};

    /// The manifest of a training to so many steps, with what it did before.
    fn manifest(steps: u64, history: Vec<Earlier>) -> Option<Manifest> {
        Some(Manifest {
            stage: "train".into(),
            status: Status::Started,
            settings: to(steps),
            history,
            inputs: Inputs::new(),
            parts: None,
            outputs: Inputs::new(),
            spectrain: String::new(),
            git_revision: None,
            seed: 0,
            started: 0,
            finished: None,
            seconds: None,
            summary: Value::Null,
        })
    }

    fn to(steps: u64) -> Value {
        json!({"train": {"steps": steps}})
    }

    #[test]
    fn weights_that_change_over_the_steps_are_found_in_an_objective() {
        let course = json!({"start": 1.0, "end": 0.0, "from": 0.0, "until": 0.5});
        let changing = |objective: Value| {
            let mut found = Vec::new();
            find_changing("objective", &objective, &mut found);
            found
        };
        let fixed =
            json!({"label_weight": 0.1, "base_weight": 0.0, "divergence": {"sum": {"ce": 0.1}}});
        assert_eq!(changing(fixed), [""; 0]);
        let both = json!({"base_weight": 0.8, "label_weight": course, "anchors": 16});
        let expected = ["`objective.base_weight`", "`objective.label_weight`"];
        assert_eq!(changing(both), expected);
        let within = json!({"parts": {"weight": course}});
        assert_eq!(changing(within), ["`objective.parts.weight`"]);
    }

    /// The steps of each part of a history, with those to which it would have gone on.
    fn parts(history: &[Earlier]) -> Vec<(u64, &Value)> {
        let each = history.iter();
        each.map(|part| (part.steps, &part.settings["train"]["steps"]))
            .collect()
    }

    #[test]
    fn a_history_has_what_was_trained_and_nothing_that_was_only_begun() {
        assert!(history(None, Some(1), &to(1)).is_empty());
        let longer = history(manifest(100, Vec::new()), Some(100), &to(200));
        assert_eq!(parts(&longer), [(100, &json!(100))]);
        // It goes on where it was interrupted.
        let again = history(manifest(200, longer.clone()), None, &to(200));
        assert_eq!(again, longer);
        // No step was saved, and the end is put back, or is another one.
        let back = history(manifest(200, longer.clone()), Some(100), &to(100));
        assert!(back.is_empty(), "{back:?}");
        let other = history(manifest(200, longer.clone()), Some(100), &to(300));
        assert_eq!(other, longer);
        // What was saved meanwhile stays, whatever comes after.
        let further = history(manifest(200, longer), Some(150), &to(300));
        assert_eq!(parts(&further), [(100, &json!(100)), (150, &json!(200))]);
    }
}
