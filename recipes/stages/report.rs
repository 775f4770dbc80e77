//! The report of a run: its files, and its figures in the folders of the drafter.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use spectrain_checkpoints::atomic::write_file;
use spectrain_checkpoints::seal;
use spectrain_eval::{Curves, Report, page_with_curves, summary};

use crate::runs::places::EXPORTED;
use crate::runs::run_folder::RunFolder;
use crate::runs::run_folder::aside::first_free;
use crate::runs::stage_names;
use crate::runtime::model_files::read_json;
use crate::stages::card;
use crate::stages::context::StageContext;
use crate::stages::exported::{Written, written};

/// Writes `report.json`, `report.md` and `report.html`, the latter with these curves of the training.
pub fn write(report: &Report, folder: &Path, curves: Vec<Curves>) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create `{}`", folder.display()))?;
    write_file(&folder.join("report.json"), report.to_json()?.as_bytes())?;
    write_file(&folder.join("report.md"), report.to_markdown().as_bytes())?;
    let name = name_of(report);
    let reports = [(name.clone(), report.clone())];
    let html = page_with_curves(&reports, &[], &[(name, curves)]);
    write_file(&folder.join("report.html"), html.as_bytes())?;
    Ok(())
}

/// Moves a report that is in a folder into the first of `old-1`, `old-2`, … in it that is not there, which is returned.
pub fn keep_older(folder: &Path) -> Result<Option<PathBuf>> {
    if !folder.join("report.json").exists() {
        return Ok(None);
    }
    let old = first_free(|number| folder.join(format!("old-{number}")));
    std::fs::create_dir(&old).with_context(|| format!("cannot create `{}`", old.display()))?;
    for name in ["report.json", "report.md", "report.html"] {
        let file = folder.join(name);
        if file.exists() {
            std::fs::rename(&file, old.join(name))
                .with_context(|| format!("cannot move `{}`", file.display()))?;
        }
    }
    Ok(Some(old))
}

/// What a report is called: its run's name, or the drafter's folder, where there is one.
fn name_of(report: &Report) -> String {
    let path = Some(&*report.drafter.path).filter(|path| !path.is_empty());
    let name = report.recipe["name"].as_str().or(path);
    name.unwrap_or("drafters without training").to_owned()
}

/// The report as it is shown on a terminal.
pub fn shown(report: &Report) -> String {
    summary(&[(name_of(report), report.clone())])
}

/// The report of a finished run.
pub fn read(run: &RunFolder) -> Result<Report> {
    let path = run.stage(stage_names::EVALUATE).join("report.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    Report::from_json(&text).with_context(|| format!("`{}` is not a report", path.display()))
}

/// The same as it is shown on a terminal.
pub fn of_run(run: &RunFolder) -> Result<String> {
    read(run).map(|report| shown(&report))
}

/// The figures of the report in a run's folder, where it has one.
pub fn figures(run: &Path) -> Option<Value> {
    let report = read_json(&run.join(stage_names::EVALUATE).join("report.json")).ok()?;
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
    // Those of drafters without training say nothing of this one.
    let settings = report["settings"].as_array()?.iter();
    let settings: Vec<Value> = settings
        .filter(|setting| setting.get("drafter").is_none())
        .map(of)
        .collect();
    Some(json!({
        "drafter": {"sha256": report["drafter"]["sha256"]},
        "lossless": report["lossless"],
        "settings": settings,
    }))
}

/// Puts the figures of the report into the folders of this drafter, and into their cards.
pub(super) fn record(context: &StageContext) -> Result<()> {
    let Some(found) = figures(context.run.path()) else {
        return Ok(());
    };
    record_in(context, &written(context.run)?, &found)
}

/// Writes the cards of folders, with what a report found.
fn write_cards(context: &StageContext, folders: &[Written], report: Option<&Report>) -> Result<()> {
    for Written { folder, facts } in folders {
        let folder = context.run.path().join(folder);
        if let Some(facts) = facts.as_ref().filter(|_| folder.exists()) {
            card::write(&folder, facts, report)?;
        }
    }
    Ok(())
}

/// The same for folders that `export` has just written, where the report is of the same drafter; else cards without figures.
pub(super) fn record_again(context: &StageContext, folders: &[Written]) -> Result<()> {
    let drafter = context.run.path().join(EXPORTED);
    let drafter = context.run.sha256_of_drafter(&drafter)?;
    let of_this = |found: &Value| found["drafter"]["sha256"] == drafter;
    match figures(context.run.path()).filter(of_this) {
        Some(found) => record_in(context, folders, &found),
        None => write_cards(context, folders, None),
    }
}

fn record_in(context: &StageContext, folders: &[Written], found: &Value) -> Result<()> {
    for Written { folder, .. } in folders {
        let folder = context.run.path().join(folder);
        if folder.exists() {
            seal::add_report(&folder, found)?
        } else {
            tracing::warn!(
                "`{}` is no longer there; the figures are in `report.json` alone",
                folder.display()
            )
        }
    }
    write_cards(context, folders, read(context.run).ok().as_ref())
}
