//! The drafter that engines load, judged by the program's own speculative decoder.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use spectrain_checkpoints::atomic::write_file;
use spectrain_checkpoints::seal;
use spectrain_data::sources::Sources;
use spectrain_eval::{
    CalibrationPrompts, DraftChoice, MeasuredOn, PromptSet, Report, TargetReport,
};

use super::{EXPORTED, StageContext, export, prepare};
use crate::recipe::tables::EvaluateTable;
use crate::runs::run_folder::RunFolder;
use crate::runtime::judge::{Ends, Trial, TrialTarget};

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let settings = &context.recipe.evaluate;
    let drafter = context.run.path().join(EXPORTED);
    let name = name_of(context.eval_data().as_ref());
    let (prompts, others) = split(prepare::prompts(context.run)?, settings.prompts);
    let sets = [PromptSet { name, prompts }];
    let calibration = calibration(others, &sets, settings);
    let trial = Trial {
        targets: &targets(context)?,
        drafter: &drafter,
        device: &context.device,
        dtype: context.dtype,
        sets: &sets,
        calibration: &calibration,
        table: settings,
        ends: Ends::AtStopTokens,
        outputs: None,
        output: context.output,
    };
    let mut report = trial.report()?;
    report.recipe = context.recipe.json.clone();
    report.drafter.path = drafter.display().to_string();
    report.drafter.sha256 = context.run.sha256_of_drafter(&drafter)?;
    report.device = device_report(&context.device_name);
    report.seeds.insert("recipe".into(), context.recipe.seed);
    write(&report, &context.folder("evaluate"))?;
    record(context)?;
    Ok(json!({
        "settings": report.settings.iter().map(|setting| json!({
            "target": report.target_of(setting),
            "temperature": setting.temperature,
            "verifier": setting.verifier,
            "lossy": setting.lossy,
            "draft": setting.draft,
            "tau": setting.overall.tau,
            "alpha": setting.overall.alpha,
        })).collect::<Vec<_>>(),
        "lossless": report.lossless,
    }))
}

/// What the report calls the prompts: the name of their file, where there is one.
fn name_of(data: Option<&Sources>) -> String {
    let stem = |path: &Path| Some(path.file_stem()?.to_string_lossy().into_owned());
    match data {
        None => "held out".into(),
        Some(data) => data.only().and_then(stem).unwrap_or_else(|| "eval".into()),
    }
}

/// Puts the figures of the report into the folders of this drafter.
fn record(context: &StageContext) -> Result<()> {
    let Some(found) = summary(context.run.path()) else {
        return Ok(());
    };
    record_in(context, &export::written(context.run)?, &found)
}

/// The same for folders that `export` has just written, where the report is of the same drafter.
pub(super) fn record_again(context: &StageContext, folders: &[String]) -> Result<()> {
    let Some(found) = summary(context.run.path()) else {
        return Ok(());
    };
    let drafter = context.run.path().join(EXPORTED);
    if found["drafter"]["sha256"] != context.run.sha256_of_drafter(&drafter)? {
        return Ok(());
    }
    record_in(context, folders, &found)
}

fn record_in(context: &StageContext, folders: &[String], found: &Value) -> Result<()> {
    for folder in folders {
        let folder = context.run.path().join(folder);
        match folder.exists() {
            true => seal::add_report(&folder, found)?,
            false => tracing::warn!(
                "`{}` is no longer there; the figures are in `report.json` alone",
                folder.display()
            ),
        }
    }
    Ok(())
}

/// The recipe's target and those of `evaluate.targets`.
fn targets(context: &StageContext) -> Result<Vec<TrialTarget>> {
    let dtype = context.dtype.name().to_lowercase();
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

/// The report of a finished run as a table.
pub fn table(run: &RunFolder) -> Result<String> {
    let path = run.stage("evaluate").join("report.md");
    std::fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// The figures of the report in a run's folder, where it has one.
pub fn summary(run: &Path) -> Option<Value> {
    let report =
        crate::runtime::target::read_json(&run.join("evaluate").join("report.json")).ok()?;
    let of = |setting: &Value| {
        json!({
            "temperature": setting["temperature"],
            "verifier": setting["verifier"],
            "draft": setting["draft"],
            "tau": setting["overall"]["tau"],
            "tau_ci95": setting["overall"]["tau_ci95"],
            "alpha": setting["overall"]["alpha"],
        })
    };
    let settings: Vec<Value> = report["settings"].as_array()?.iter().map(of).collect();
    Some(json!({
        "drafter": {"sha256": report["drafter"]["sha256"]},
        "lossless": report["lossless"],
        "settings": settings,
    }))
}

/// Writes `report.json` and `report.md`.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create `{}`", folder.display()))?;
    write_file(&folder.join("report.json"), report.to_json()?.as_bytes())?;
    write_file(&folder.join("report.md"), report.to_markdown().as_bytes())?;
    Ok(())
}

/// At most `count` prompts, spread evenly.
pub fn spread(prompts: Vec<Vec<u32>>, count: usize) -> Vec<Vec<u32>> {
    let total = prompts.len();
    let count = count.min(total);
    let mut taken = (0..count).map(|i| i * total / count).peekable();
    let keep = |(index, prompt)| (taken.next_if_eq(&index).is_some()).then_some(prompt);
    prompts.into_iter().enumerate().filter_map(keep).collect()
}

/// At most `count` prompts to evaluate, spread evenly, and the others.
pub fn split(prompts: Vec<Vec<u32>>, count: usize) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let judged = spread(prompts.clone(), count);
    let is_other = |prompt: &Vec<u32>| !judged.contains(prompt);
    let others = prompts.into_iter().filter(is_other).collect();
    (judged, others)
}

/// As many prompts as `table` calibrates trees on, of `others` or, without any, of those evaluated.
pub fn calibration(
    others: Vec<Vec<u32>>,
    sets: &[PromptSet],
    table: &EvaluateTable,
) -> CalibrationPrompts {
    let wanted = table.drafts.iter().filter_map(|draft| match draft {
        DraftChoice::Calibrated(calibration) => Some(calibration.prompts),
        _ => None,
    });
    let (from, measured_on) = match others.is_empty() {
        false => (others, MeasuredOn::Others),
        true => {
            let evaluated = sets.iter().flat_map(|set| set.prompts.iter().cloned());
            (evaluated.collect(), MeasuredOn::Evaluated)
        }
    };
    CalibrationPrompts {
        prompts: spread(from, wanted.max().unwrap_or(0)),
        measured_on,
    }
}

/// What a report says of the device.
pub fn device_report(name: &str) -> Map<String, Value> {
    let mut device = Map::new();
    device.insert("name".into(), json!(name));
    device.insert(
        "system".into(),
        json!(format!(
            "{} {}",
            std::env::consts::OS,
            std::env::consts::ARCH
        )),
    );
    device.insert(
        "threads".into(),
        json!(std::thread::available_parallelism().map_or(1, usize::from)),
    );
    device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_calibrated_on_prompts_that_do_not_count() {
        let prompts: Vec<Vec<u32>> = (0..10).map(|i| vec![i]).collect();
        let calibrated = r#"{ "shape": "calibrated", "nodes": 5, "prompts": 2 }"#;
        let mut table = EvaluateTable {
            prompts: 5,
            drafts: vec![serde_json::from_str(calibrated).unwrap()],
            ..EvaluateTable::default()
        };
        let calibrated_on = |table: &EvaluateTable| {
            let (prompts, others) = split(prompts.clone(), table.prompts);
            let name = "a".to_owned();
            calibration(others, &[PromptSet { name, prompts }], table)
        };
        let found = calibrated_on(&table);
        assert_eq!(found.prompts, [[1], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Others);
        table.prompts = 10;
        let found = calibrated_on(&table);
        assert_eq!(found.prompts, [[0], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Evaluated);
    }

    #[test]
    fn prompts_are_taken_evenly_and_never_twice() {
        let prompts: Vec<Vec<u32>> = (0..10).map(|i| vec![i]).collect();
        assert_eq!(spread(prompts.clone(), 3), [[0], [3], [6]]);
        assert_eq!(spread(prompts.clone(), 10), prompts);
        assert_eq!(spread(prompts.clone(), 64), prompts);
    }
}
