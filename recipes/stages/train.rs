//! The drafter, trained; the best of it by the mean acceptance length of prompts really decoded.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;
use serde_json::{Value, json};
use spectrain_checkpoints::known::open_folder;
use spectrain_checkpoints::{DType, seal, state};
use spectrain_data::tokens::TokenShards;
use spectrain_eval::TrainedReport;
use spectrain_models::TargetParts;
use spectrain_models::weights::{export, import};
use spectrain_train::{FitSummary, Objective, Trainee, Validation, saved_weights};

use crate::families::drafter_folder::{check_tokenizer, check_unheld};
use crate::families::model_at_start::WHAT;
use crate::families::shipped::Shipped;
use crate::families::trained::write_usual;
use crate::progress::counted;
use crate::runs::places::trained;
use crate::runtime::device::{graph_device, is_gpu};
use crate::runtime::interruption::{Interrupted, check_interrupted};
use crate::runtime::start_at;
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::self_check::{SelfCheck, Shape};
use crate::stages::setup::Setup;
use crate::stages::stage::Temperatures;

/// Runs a stage of the training.
pub fn run<D: Shipped, O: Objective<D>>(
    context: &StageContext,
    stage: &str,
    drafter: &D::Config,
    objective: &O::Config,
) -> Result<Value>
where
    D::State: 'static,
{
    if let Some(group) = context.group {
        group.begin(stage)?;
    }
    let capture = D::capture(drafter, &target::spec(&context.target_folder()?)?)?;
    let setup = Setup::new(context, stage, capture)?;
    let make = || Ok(O::of_stage(objective, stage)?);
    let first = first::<D>(context, stage, drafter, &setup)?;
    if let (true, Some(target)) = (is_gpu(&context.device_name), &setup.target) {
        let shape = Shape::of_batch(&setup.config, context.recipe.data.max_length);
        let check = SelfCheck::new(context, target, &setup.capture, shape)?;
        check.target()?;
        check.step::<D, O>(drafter, &make, first.vocabulary())?;
    }
    let draft_vocab = first.vocabulary().len();
    let mut trainee = Trainee::drafter(first, make()?, setup.config.optimizer());
    let settings = json!(O::settings_of(objective, stage));
    let identity = identity(context, stage, (drafter, &settings), &setup.tokens)?;
    let summary = setup.fit(context, &mut trainee, &identity)?;
    check_interrupted()?;
    // Another rank may have been asked to stop.
    if summary.interrupted {
        return Err(Interrupted::Command.into());
    }
    if !context.leads() {
        return Ok(json!({ "fit": summary }));
    }

    let best = summary.best.as_ref();
    let step = best.map_or(summary.steps, |(step, _)| *step);
    let best = with_weights_of(trainee.model(), &context.folder(stage), step as u64);
    let best = best.map_err(|lost| {
        anyhow!("{lost:#}; the same command validates the last state in its place, and takes its weights if they are the best left")
    })?;
    let provenance = json!({
        "spectrain": env!("CARGO_PKG_VERSION"),
        "recipe": context.recipe.json,
        "objective": settings,
        "stage": stage,
        "target": {"model": context.target_name()?, "sha256": context.target_sha256()?},
        "data": {"sha256": setup.tokens.fingerprint()},
        "step": step,
    });
    let provenance = with_history(context, stage, provenance)?;
    let place = trained(stage);
    context.make_room(&place)?;
    let folder = context.run.path().join(place);
    write_usual(&best, &folder, DType::F32, &provenance)?;
    report(context, stage, (&summary, setup.config.steps), step);
    Ok(json!({ "fit": summary, (EXPORTED_STEP): step, "draft_vocab": draft_vocab }))
}

/// The drafter that the stage begins with: that of the stage before, that of `start`, or a fresh one.
fn first<D: Shipped>(
    context: &StageContext,
    stage: &str,
    config: &D::Config,
    setup: &Setup,
) -> Result<D> {
    let (recipe, parts) = (context.recipe, setup.parts.clone());
    if let Some(start) = D::model_at_start(config) {
        let folder = target::resolve_as(WHAT, start.model, start.revision);
        let folder = folder.context("`drafter.model`")?;
        check_tokenizer(&folder, &parts)?;
    }
    check_unheld(D::unheld(config), &setup.tokens)?;
    let device = graph_device(&context.device, &setup.config);
    let first = match &recipe.start {
        Some(start) => {
            let folder = start_at::folder(start)?;
            seal::check(&open_folder(&folder)?)?;
            D::check_start(config, &folder, &parts.spec)?;
            D::open(&folder, None, &parts, &device)?
        }
        None => {
            let size = D::footprint(config, &parts.spec)?.draft_vocab as usize;
            let vocabulary = setup.vocabulary(context, size)?;
            D::fresh(config, &parts, &vocabulary, recipe.seed, &device)?
        }
    };
    match recipe.trained_before(stage) {
        Some(before) => best_of(context, before, first, &parts),
        None => Ok(first),
    }
}

/// What must be the same for a saved state to be trained on, of a drafter and an objective with these settings.
///
/// Its keys are older than the inputs of the stage and stand in saved states, so it is not made from [these inputs](super::order::STAGES).
/// Both must agree: what is an input there, but for what decides over no state, is known by a key here.
pub(super) fn identity(
    context: &StageContext,
    stage: &str,
    (drafter, objective): (&impl Serialize, &Value),
    tokens: &TokenShards,
) -> Result<Value> {
    let (recipe, run) = (context.recipe, context.run);
    let mut identity = json!({
        "seed": recipe.seed,
        "drafter": drafter,
        "objective": objective,
        // As it was given: a warm-up may depend on how long the epochs are.
        "train": recipe.training(stage).identity(),
        "target": context.target_sha256()?,
        "tokens": tokens.fingerprint(),
        // `auto` means another type on another device, and a run must not change its numbers on the way.
        "dtype": context.target_type.name_over_texts(),
    });
    if let Some(start) = &recipe.start {
        let folder = start_at::folder(start)?;
        identity["start"] = json!(run.sha256_of_drafter(&folder)?);
    }
    if let Some(model) = context.model_sha256()? {
        identity["model"] = model.into();
    }
    let mut stored = context.stored_features()?;
    stored.extend(context.stored_answers(Temperatures::Validated)?);
    if !stored.is_empty() {
        identity["stored"] = json!(stored);
    }
    if let Some(before) = recipe.trained_before(stage) {
        identity["before"] = run.sha256(&run.path().join(trained(before)))?.into();
    }
    if recipe.method.stages().len() > 1 {
        identity["stage"] = stage.into();
    }
    Ok(identity)
}

/// Adds what the stage did before under other settings.
fn with_history(context: &StageContext, stage: &str, mut provenance: Value) -> Result<Value> {
    let manifest = context.run.manifest(stage)?;
    let history = manifest.map(|manifest| manifest.history);
    if let Some(history) = history.filter(|history| !history.is_empty()) {
        provenance["history"] = json!(history);
    }
    Ok(provenance)
}

/// Key of a training stage's summary: the step whose weights it has left.
pub(super) const EXPORTED_STEP: &str = "exported_step";

/// The step behind which validations have ended a training before its last one, by what its summary has under `fit`.
pub(crate) fn ended(fit: &Value) -> Option<u64> {
    let steps = fit["steps"].as_u64();
    steps.filter(|_| !fit["out_of_patience"].is_null())
}

/// What training found of the weights that the recipe's last training stage has left.
pub(super) fn trained_report(context: &StageContext) -> Result<Option<TrainedReport>> {
    let Some(stage) = context.recipe.training_stages().last().copied() else {
        return Ok(None);
    };
    let manifest = context.run.manifest(stage)?;
    let fit = manifest.map(|manifest| manifest.summary["fit"].clone());
    let fit = fit.unwrap_or_default();
    let best: Option<(u64, Validation)> = serde_json::from_value(fit["best"].clone())
        .with_context(|| format!("the manifest of the stage `{stage}`: `summary.fit.best`"))?;
    Ok(best.map(|(step, found)| TrainedReport {
        step,
        ended: ended(&fit),
        simulated_tau: found.simulated_tau,
        simulated_length: found.simulated_tau.map(|_| found.alpha.len()),
        tau: found.tau,
        tau_ci95: found.tau_ci95,
        draft_length: found.draft_length,
    }))
}

/// `drafter` with the weights that an earlier stage has left: those of a saved state, as low-rank matrices are merged in the stage's
/// drafter. That is in f32, and has the same weights where nothing is merged; so where the state is gone or damaged, it does as well.
///
/// # Errors
/// The state is lost, and the weights do not stand in the drafter's folder.
fn best_of<D: Shipped>(
    context: &StageContext,
    stage: &str,
    drafter: D,
    target: &TargetParts,
) -> Result<D> {
    let manifest = context.run.manifest(stage)?;
    let step = manifest.and_then(|manifest| manifest.summary[EXPORTED_STEP].as_u64());
    let step = step.with_context(|| {
        format!("the manifest of the stage `{stage}` does not say which weights it has left")
    })?;
    let folder = context.folder(stage);
    let lost = match with_weights_of(drafter.clone(), &folder, step) {
        Ok(drafter) => return Ok(drafter),
        Err(lost) => lost,
    };
    let left = context.run.path().join(trained(stage));
    let taken = with_weights_in(context, drafter, &left, target);
    let taken = taken.map_err(|error| {
        anyhow!(
            "{lost:#}, and the weights cannot be taken from its drafter: {error:#}; move `{}` away to train the stage `{stage}` anew",
            folder.display()
        )
    })?;
    context.output.warn(format!(
        "{lost:#}; the same weights are taken from `{}`",
        left.display()
    ));
    Ok(taken)
}

/// `drafter` with the weights that the state of a step in `folder` holds.
fn with_weights_of<D: Shipped>(drafter: D, folder: &Path, step: u64) -> Result<D> {
    let weights = saved_weights(folder, step)?;
    let source = state::folder_of(folder, step);
    Ok(import(drafter, weights, &source.display().to_string())?)
}

/// `drafter` with the weights of the drafter in a folder.
///
/// # Errors
/// That has other tensors, as where low-rank matrices are merged in it.
fn with_weights_in<D: Shipped>(
    context: &StageContext,
    drafter: D,
    folder: &Path,
    target: &TargetParts,
) -> Result<D> {
    seal::check(&open_folder(folder)?)?;
    let opened = D::open(folder, None, target, &context.device)?;
    let source = folder.display().to_string();
    Ok(import(drafter, export(&opened), &source)?)
}

/// Tells how a stage of so many steps ended, and that the weights of `step` are taken.
fn report(
    context: &StageContext,
    stage: &str,
    (summary, asked): (&FitSummary, usize),
    step: usize,
) {
    let rate = summary.tokens as f64 / summary.seconds.max(1e-9);
    let best = summary.best.as_ref().map(|(_, best)| best);
    let tau = best.and_then(|best| Some((best.tau?, best.tau_ci95)));
    let tau = tau.map_or(String::new(), |(tau, interval)| {
        // Of one prompt there is none.
        let interval = interval.map(|[low, high]| format!(" [{low:.2}, {high:.2}]"));
        let interval = interval.unwrap_or_default();
        format!(", τ {tau:.2}{interval} on held-out prompts")
    });
    let done = summary.steps as u64;
    let steps = match summary.out_of_patience {
        Some(_) => format!(
            "{done} of {}, ended by `patience`,",
            counted(asked as u64, "step")
        ),
        None => format!("{},", counted(done, "step")),
    };
    let weights = match step {
        0 => "those of `start`, of step 0,".to_owned(),
        _ => format!("weights of step {step}"),
    };
    context.output.say(format!(
        "{stage}: {steps} {} in {:.0} s ({rate:.0} tokens/s), loss {:.4}, {weights} taken{tau}",
        counted(summary.tokens, "token"),
        summary.seconds,
        summary.loss
    ));
    if step == 0 {
        context.output.warn(
            "none of the trained weights are better than those of `start`: try a smaller `train.learning_rate`, or more steps",
        );
    }
}
