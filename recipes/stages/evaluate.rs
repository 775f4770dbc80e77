//! The drafter that engines load, judged by the program's own speculative decoder.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::ModelFolder;
use spectrain_data::dataset::{Dataset, Located};
use spectrain_data::hub_data::FetchedData;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_eval::{
    KnownPrompts, Prompt, PromptSet, Report, TargetReport, TextSettings, TextsReport,
};
use spectrain_models::{Target as _, load_target};

use crate::recipe::tables::{EvaluateTable, Prompts};
use crate::runs::curves::curves_of;
use crate::runs::places::EXPORTED;
use crate::runtime::device::{device_report, is_gpu};
use crate::runtime::model_files::read_json;
use crate::runtime::prompt_sets::{self, ReadSets};
use crate::runtime::prompts::{calibration, distinct, has_room, repeated, split};
use crate::runtime::self_check::{SelfCheck, Shape};
use crate::runtime::target;
use crate::runtime::text::Text;
use crate::runtime::text_trial::{Parts, judge};
use crate::runtime::texts::StoredTexts;
use crate::runtime::trial::{Ends, Trial, TrialTarget, thinking};
use crate::stages::context::StageContext;
use crate::stages::features::places::answers_at;
use crate::stages::prepare::{self, LINT};
use crate::stages::report::{record, write};
use crate::stages::train::trained_report;

/// What is computed in one pass of a decoder, at most: a tree of drafts, or a piece of a prompt.
const ONE_TEXT: Shape = Shape {
    rows: 1,
    length: 64,
};

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
    report.known_prompts = known_prompts(context);
    report.drafter.path = drafter.display().to_string();
    report.drafter.sha256 = context.run.sha256_of_drafter(&drafter)?;
    report.device = device_report(&context.device_name);
    report.seeds.insert("recipe".into(), context.recipe.seed);
    let curves = curves_of(context.run.path())?;
    write(&report, &context.folder("evaluate"), curves)?;
    record(context)?;
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

/// The held-out prompts that are trained on as well, by what the stage `prepare` found; of named sets nothing is known.
fn known_prompts(context: &StageContext) -> Option<KnownPrompts> {
    if let Prompts::Sets(_) = context.recipe.evaluate.prompts {
        return None;
    }
    let found = read_json(&context.folder("prepare").join(LINT)).ok()?;
    let known = found["report"]["overlap"]["count"].as_u64()?;
    let of = found["report"]["eval"]["samples"].as_u64()?;
    (known > 0).then_some(KnownPrompts { known, of })
}

/// What decoding with the target finds, and what of the prompts is of the hub.
fn decoded(context: &StageContext, drafter: &Path) -> Result<(Report, Vec<FetchedData>)> {
    if is_gpu(&context.device_name) {
        check_decoding(context)?;
    }
    let settings = &context.recipe.evaluate;
    let ReadSets {
        sets,
        others,
        of_hub,
        ..
    } = prompts(context)?;
    let calibration = calibration(others, &sets, settings);
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
        output: context.output,
    };
    Ok((trial.report()?, of_hub))
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
    let name = name_of(context.eval_data()?.as_ref());
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
    for sampling in table.samplings() {
        let answers = answers_at(context, sampling.temperature);
        let texts = StoredTexts::open(&answers, &capture, &parts.target)?;
        let settings = TextSettings {
            sampling,
            drafts: table.choices(session.draft_length()),
            verifier: table.verifier.into(),
            thinking: thinking(&Tokenizer::from_folder(&folder)?),
            seed: table.seed,
        };
        let all: Vec<usize> = (0..texts.len()).collect();
        let judged = judge(
            &texts,
            (&all, None),
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

/// What is decoded, and the prompts of `data.eval` and of the sets that are not.
fn prompts(context: &StageContext) -> Result<ReadSets> {
    let table = &context.recipe.evaluate;
    let folder = context.target_folder()?;
    let places = target::spec(&folder)?.max_positions;
    let held_out = fitting(context, places)?;
    if table.sets().is_empty() {
        let name = name_of(context.eval_data()?.as_ref());
        let (held_out, repeats) = distinct(held_out);
        if let Some(told) = repeated(&name, repeats) {
            context.output.warn(format!("evaluate: {told}"));
        }
        let there = held_out.len();
        if there == 0 {
            bail!("no held-out prompt leaves room in the target's context of {places} tokens");
        }
        let (prompts, others) = split(held_out, table.of_eval());
        if table.prompts != EvaluateTable::default().prompts {
            tell_fewer(context, &name, table.of_eval(), there);
        }
        return Ok(ReadSets {
            sets: vec![PromptSet { name, prompts }],
            others,
            ..ReadSets::default()
        });
    }
    let mut text = Text::of(&folder, &context.recipe.data)?;
    // Of training rows their prompts need not know.
    text.settings.max_length = places.saturating_sub(table.max_new_tokens).max(1);
    let read = prompt_sets::read(table.sets(), &text, table.of_each_set());
    let mut read = read.context("`evaluate.prompts`")?;
    for data in &read.of_hub {
        let told = format!("evaluate: `evaluate.prompts`: {data}");
        context.output.say(told);
    }
    for warning in read.warnings(text.settings.max_length) {
        context.output.warn(warning);
    }
    for (set, count) in read.sets.iter().zip(table.count.iter().cycle()) {
        tell_fewer(context, &set.name, *count, set.prompts.len());
    }
    read.others
        .extend(held_out.into_iter().map(|prompt| prompt.tokens));
    Ok(read)
}

/// The held-out prompts behind which the target has room for a token, of so many `places`.
fn fitting(context: &StageContext, places: usize) -> Result<Vec<Prompt>> {
    let mut prompts = prepare::labelled_prompts(context.run)?;
    let all = prompts.len();
    prompts.retain(|prompt| has_room(&prompt.tokens, places));
    let too_long = all - prompts.len();
    if too_long > 0 {
        context.output.warn(format!(
            "evaluate: held-out prompts that fill the target's context of {places} tokens and are left out: {too_long}"
        ));
    }
    Ok(prompts)
}

/// Says where fewer prompts are `there` than were asked for.
fn tell_fewer(context: &StageContext, name: &str, asked: usize, there: usize) {
    if let Some(text) = fewer(name, asked, there) {
        context.output.warn(format!("evaluate: {text}"));
    }
}

/// What is said where fewer prompts are `there` than were asked for.
fn fewer(name: &str, asked: usize, there: usize) -> Option<String> {
    let text = || format!("`{name}`: asked for {asked} prompts, found {there}");
    (there < asked).then(text)
}

/// What the report calls the prompts: the name of their file or dataset, where there is one alone.
fn name_of(data: Option<&Dataset>) -> String {
    match data {
        None => "held out".into(),
        Some(data) => data
            .only()
            .and_then(Located::short_name)
            .unwrap_or_else(|| "eval".into()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_that_are_not_there_are_told() {
        let told = fewer("eval", 500, 400).unwrap();
        assert_eq!(told, "`eval`: asked for 500 prompts, found 400");
        assert_eq!(fewer("eval", 400, 400), None);
    }
}
