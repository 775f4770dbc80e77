//! The drafter that engines load, judged by the program's own speculative decoder.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::ModelFolder;
use spectrain_data::features::Recorded;
use spectrain_data::hub_data::FetchedData;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_eval::{
    ChoosingPrompts, EndsReport, Prompt, Report, TargetReport, TextSettings, TextsReport,
};
use spectrain_models::{Target as _, load_target};

use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::curves::curves_of;
use crate::runs::places::EXPORTED;
use crate::runs::prepared::prepared_in;
use crate::runs::stage_names;
use crate::runtime::computed_by::computed_by;
use crate::runtime::device::{device_report, is_gpu};
use crate::runtime::prompt_sets::ReadSets;
use crate::runtime::prompts::{beside, calibration};
use crate::runtime::target;
use crate::runtime::text_trial::{Parts, judge};
use crate::runtime::texts::StoredTexts;
use crate::runtime::trial::{Ends, Kept, Trial, TrialTarget, thinking};
use crate::stages::context::StageContext;
use crate::stages::evaluate::choosing::{choosing_prompts, leave_some};
use crate::stages::evaluate::known::known_prompts;
use crate::stages::evaluate::prompts::{Evaluated, decoded as decoded_of};
use crate::stages::features::places::answers_at;
use crate::stages::prepare;
use crate::stages::report::{record, write};
use crate::stages::self_check::{SelfCheck, Shape};
use crate::stages::train::trained_report;

pub(crate) mod choosing;
pub(crate) mod known;
pub(super) mod prompts;

/// What is computed in one pass of a decoder, at most: a tree of drafts, or a piece of a prompt.
const ONE_TEXT: Shape = Shape {
    rows: 1,
    length: 64,
};

/// What an interrupted evaluation goes on from, in the stage's folder.
const JOURNAL: &str = "decoded.journal";

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let drafter = context.run.path().join(EXPORTED);
    let (mut report, of_hub) = if context.recipe.features.mode.computes_target() {
        decoded(context, &drafter)?
    } else {
        (judged_by_answers(context, &drafter)?, Vec::new())
    };
    report.recipe = context.recipe.json.clone();
    report.trained = trained_report(context)?;
    report.prepared = prepared_in(context.run.path());
    report.drafter.path = drafter.display().to_string();
    report.drafter.sha256 = context.run.sha256_of_drafter(&drafter)?;
    report.device = device_report(&context.device_name);
    report.seeds.insert("recipe".into(), context.recipe.seed);
    let curves = curves_of(context.run.path())?;
    let folder = context.folder(stage_names::EVALUATE);
    write(&report, &folder, curves)?;
    record(context)?;
    // Nobody goes on from it now, and what is left of it does no harm.
    drop(std::fs::remove_file(folder.join(JOURNAL)));
    let mut summary = json!({
        "settings": report.settings.iter().map(|setting| json!({
            "target": report.target_of(setting),
            "drafter": setting.drafter,
            "temperature": setting.temperature,
            "verifier": setting.verifier,
            "lossy": setting.lossy,
            "draft": setting.draft,
            "tau": setting.overall.tau,
            "alpha": setting.overall.alpha,
        })).collect::<Vec<_>>(),
        "lossless": report.lossless,
    });
    if !of_hub.is_empty() {
        summary["datasets"] = json!(of_hub);
    }
    Ok(summary)
}

/// What decoding with the target finds, and what of the prompts is of the hub.
fn decoded(context: &StageContext, drafter: &Path) -> Result<(Report, Vec<FetchedData>)> {
    if is_gpu(&context.device_name) {
        check_decoding(context)?;
    }
    let settings = &context.recipe.evaluate;
    let (read, choosing) = prompts(context)?;
    let known = known_prompts(context.run.path(), decoded_of(&read), context.output)?;
    let ReadSets {
        sets,
        others,
        of_hub,
        ..
    } = read;
    let calibration = calibration(others, &sets, settings);
    let journal = context.folder(stage_names::EVALUATE).join(JOURNAL);
    let trial = Trial {
        targets: &targets(context)?,
        drafter: Some(drafter),
        device: &context.device,
        target_type: context.target_type,
        sets: &sets,
        calibration: &calibration,
        table: settings,
        ends: Ends::AtStopTokens,
        outputs: None,
        kept: Some(Kept {
            journal: &journal,
            about: about(context, drafter)?,
        }),
        output: context.output,
    };
    let mut report = trial.report()?;
    report.choosing_prompts = choosing;
    report.known_prompts = known;
    Ok((report, of_hub))
}

/// What the outputs and their times depend on beside what the recipe says: those of another machine or program are none of this one.
fn about(context: &StageContext, drafter: &Path) -> Result<String> {
    let about = json!({
        "drafter": context.run.sha256_of_drafter(drafter)?,
        "computed_by": computed_by(&context.device_name),
    });
    Ok(about.to_string())
}

/// Fails where the device does not compute the target as the CPU does over one text.
fn check_decoding(context: &StageContext) -> Result<()> {
    let model = ModelFolder::open(context.target_folder()?)?;
    let target = load_target(&model, &context.device, context.target_type)?;
    let capture = context.recipe.method.capture(target.spec())?;
    SelfCheck::new(context, &target, &capture, ONE_TEXT)?.target()
}

/// What the answers say that servers gave to held-out prompts, with the features that they handed out.
fn judged_by_answers(context: &StageContext, drafter: &Path) -> Result<Report> {
    let table = &context.recipe.evaluate;
    let folder = context.target_folder()?;
    let parts = Parts::open(&folder, drafter, &context.device, context.target_type.dtype)?;
    let capture = parts.drafter.capture()?;
    let session = parts.drafter.session();
    let name = context.eval_name()?;
    let mut report = Report::new(
        TargetReport {
            model: context.target_name()?,
            revision: context.recipe.target.revision.clone(),
            sha256: context.target_sha256()?,
            dtype: context.target_type.name().to_lowercase(),
        },
        parts.drafter_report(),
        Vec::new(),
    );
    let ends = ends_of_answers(context)?;
    for sampling in table.samplings() {
        let answers = answers_at(context, sampling.temperature);
        let proof = |files: &[Recorded]| context.prove(files);
        let texts = StoredTexts::open(&answers, &capture, &parts.target, proof)?;
        let (texts, left_out) = texts.judged(context.recipe.features.mode);
        if report.texts.is_empty() {
            // All temperatures have the same prompts.
            for told in left_out.told(&name) {
                context.output.warn(format!("evaluate: {told}"));
            }
            let prompts = prompts_of(&texts);
            report.choosing_prompts = choosing_of(context, prompts.iter(), None)?;
            report.known_prompts =
                known_prompts(context.run.path(), prompts.iter(), context.output)?;
        }
        let settings = TextSettings {
            sampling,
            drafts: table.choices(session.draft_length()),
            verifier: table.verifier.into(),
            ends: ends.clone(),
            thinking: thinking(&Tokenizer::from_folder(&folder)?),
            seed: table.seed,
        };
        let all: Vec<usize> = (0..texts.len()).collect();
        let judged = judge(
            &texts,
            (&all, context.longest_answer()),
            session.as_ref(),
            &settings,
            (&name, context.output),
        );
        let (found, own) = judged.with_context(|| format!("`{}`", answers.display()))?;
        report.settings.extend(found);
        report.texts.push(TextsReport {
            source: answers.display().to_string(),
            ..own
        });
    }
    Ok(report)
}

/// Where the answers of servers end; of imported texts nobody knows it.
fn ends_of_answers(context: &StageContext) -> Result<Option<EndsReport>> {
    let Some(max_new_tokens) = context.longest_answer() else {
        return Ok(None);
    };
    Ok(Some(EndsReport {
        max_new_tokens,
        stop: target::stop_tokens_in(&context.target_folder()?)?,
    }))
}

/// The prompts that were answered.
fn prompts_of(texts: &StoredTexts) -> Vec<Prompt> {
    let prompts = (0..texts.len()).map(|conversation| Prompt::from(texts.prompt(conversation)));
    prompts.collect()
}

/// How many of the evaluated prompts training has chosen its weights by; the user is told. `left` held-out prompts are not evaluated;
/// of stored answers all are.
fn choosing_of<'a>(
    context: &StageContext,
    prompts: impl Iterator<Item = &'a Prompt>,
    left: Option<usize>,
) -> Result<Option<ChoosingPrompts>> {
    let choosing = choosing_prompts(context.run.path(), prompts)?;
    if let Some(choosing) = choosing {
        let advice = advice(context.recipe, choosing.of, left);
        context.output.warn(format!("evaluate: {choosing}{advice}"));
    }
    Ok(choosing)
}

/// How the weights are chosen by other prompts than the `all` that are evaluated, `left` others being held out; nothing where that
/// cannot be.
fn advice(recipe: &ResolvedRecipe, all: u64, left: Option<usize>) -> String {
    let key = match recipe.evaluate.sets() {
        [] => "evaluate.prompts",
        _ => "evaluate.count",
    };
    match left {
        // Validations and evaluation have the same.
        None => String::new(),
        Some(0) => format!(
            "; {}",
            leave_some(key, &format!("the {all} held-out prompts"))
        ),
        Some(_) => format!("; evaluate as many prompts as while it trained (`{key}`)"),
    }
}

/// What is decoded, and the prompts of `data.eval` and of the sets that are not; and how many of them training has chosen its
/// weights by.
fn prompts(context: &StageContext) -> Result<(ReadSets, Option<ChoosingPrompts>)> {
    let mut evaluated = Evaluated::of(context, &context.eval_name()?)?;
    let mut places = target::spec(&context.target_folder()?)?.max_positions;
    let mut whose = "the target's".to_owned();
    for (model, folder) in context.further_targets()? {
        let further = target::spec(&folder)?.max_positions;
        if further < places {
            (whose, places) = (format!("`{model}`'s"), further);
        }
    }
    // Whatever has no room with one target is not compared with the others either.
    evaluated.fit(&whose, places);
    let Evaluated { read, warnings } = evaluated;
    for data in &read.of_hub {
        let told = format!("evaluate: `evaluate.prompts`: {data}");
        context.output.say(told);
    }
    for warning in warnings {
        context.output.warn(warning);
    }
    let left = beside(decoded_of(&read), prepare::prompts(context.run)?).len();
    let choosing = choosing_of(context, decoded_of(&read), Some(left))?;
    if read.sets.iter().all(|set| set.prompts.is_empty()) {
        bail!("no held-out prompt leaves room in {whose} context of {places} tokens");
    }
    Ok((read, choosing))
}

/// The recipe's target and those of `evaluate.targets`.
fn targets(context: &StageContext) -> Result<Vec<TrialTarget>> {
    let dtype = context.target_type.name().to_lowercase();
    let mut targets = vec![TrialTarget {
        folder: context.target_folder()?,
        report: TargetReport {
            model: context.target_name()?,
            revision: context.recipe.target.revision.clone(),
            sha256: context.target_sha256()?,
            dtype: dtype.clone(),
        },
    }];
    for (model, folder) in context.further_targets()? {
        let report = TargetReport {
            sha256: context.sha256_of_model(&folder)?,
            dtype: dtype.clone(),
            revision: None,
            model,
        };
        targets.push(TrialTarget { folder, report });
    }
    Ok(targets)
}
