//! `--plan`: what a recipe would do, what would stop it, and what it would take.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};
use spectrain_checkpoints::columns::beside;

use crate::errors::with_causes;
use crate::plan::preflight::Asked;

mod capture;
pub(crate) mod data;
mod drafts;
mod estimate;
mod flops;
mod memory;
mod offline;
mod on_hub;
mod parts;
pub mod preflight;
mod room;
mod samples;
mod several;
mod shown;
mod speed;
mod stages;
mod steps;
pub(crate) mod target_sizes;
#[cfg(test)]
mod tests;
pub(crate) mod words;

use capture::CapturePlan;
pub use estimate::Estimate;
use on_hub::OnHub;
pub use several::plan_all;
pub use shown::Plan;

/// Plans a run.
pub fn plan(asked: &Asked) -> Result<Plan> {
    plan_with(asked, &mut OnHub::of_process())
}

fn plan_with(asked: &Asked, hub: &mut OnHub) -> Result<Plan> {
    let recipe = asked.recipe;
    let run = asked.runs.join(&recipe.name);
    let origin = recipe.origin.as_ref().map(ToString::to_string);
    let mut text = format!("{}\n\n", recipe.toml.trim_end());
    if let Some(origin) = &origin {
        _ = writeln!(text, "recipe: {origin}");
    }
    _ = writeln!(text, "run: {}\nstages:", run.display());
    let stages = stages::stages(asked)?;
    let width = stages.iter().map(|(name, _)| name.len() + 3).max();
    let width = width.unwrap_or(0).max(12);
    for (name, state) in &stages {
        text += &beside(&format!("  {name}"), width, state);
    }
    let of_hub = hub.targets(recipe);
    let refusals = asked.all_refusals(of_hub.refusals);
    let refused: Vec<String> = refusals.iter().map(with_causes).collect();
    text += &part("refused", &refused);
    let mut known = String::new();
    let found = estimates(asked, &mut known);
    let warnings = [asked.warnings(), of_hub.warnings, found.warnings].concat();
    text += &part("warnings", &warnings);
    let (lines, downloads) = data::downloads(recipe);
    text += &part("to download", &lines);
    let read = parts::read_of(recipe);
    let lines = read.as_ref().map(parts::Read::lines);
    text += &part("read of the target", &lines.unwrap_or_default());
    text += &known;
    let stage = |(name, state): &(&str, String)| json!({"name": name, "state": state});
    let json = json!({
        "recipe": recipe.json,
        "recipe_from": origin,
        "run": run,
        "stages": stages.iter().map(stage).collect::<Vec<_>>(),
        "refused": refused,
        "warnings": warnings,
        "downloads": downloads,
        "target_read": read.map(|read| json!(read)),
        "estimates": found.numbers,
        "capture": found.capture,
    });
    Ok(Plan {
        text,
        json,
        refusal: refusals.into_iter().next(),
    })
}

/// A part of a plan under its name; nothing where it has no lines.
fn part(name: &str, lines: &[String]) -> String {
    let mut text = String::new();
    if !lines.is_empty() {
        text = format!("\n{name}:\n");
    }
    for line in lines {
        _ = writeln!(text, "  {line}");
    }
    text
}

/// What the run takes and how fast its servers are, as far as it is known.
#[derive(Default)]
struct Estimates {
    numbers: Value,
    capture: Value,
    warnings: Vec<String>,
}

/// What the run takes and how fast its servers are, which is added to the `text` too.
fn estimates(asked: &Asked, text: &mut String) -> Estimates {
    let recipe = asked.recipe;
    let mut known = Estimates::default();
    text.push_str("\nestimates:\n");
    let Some(found) = target_sizes::of(recipe) else {
        let model = recipe.model().unwrap_or_default();
        let none = "known once it is on this machine";
        _ = writeln!(text, "  none: the sizes of `{model}` are {none}");
        return known;
    };
    let estimate = Estimate::of(asked, &found);
    match &estimate {
        Ok(estimate) => {
            text.push_str(&estimate.text(recipe, &found, asked.device));
            known.warnings = room::warnings(asked, estimate);
            known.warnings.extend(estimate.many_passes(recipe));
            known.numbers = estimate.json(&found, asked.device);
        }
        Err(error) => _ = writeln!(text, "  none: {}", with_causes(error)),
    }
    let run = asked.runs.join(&recipe.name);
    let measured = CapturePlan::measure(recipe, &run, &found, estimate.as_ref().ok());
    let lines = match measured {
        Ok(None) => return known,
        Ok(Some(measured)) => {
            known.capture = measured.json();
            measured.lines()
        }
        Err(error) => {
            let error = with_causes(&error);
            known.capture = json!({"error": error});
            vec![format!("not measured: {error}")]
        }
    };
    *text += &part("servers of the target", &lines);
    known
}

/// What the run takes, where the sizes of its target need no download.
///
/// # Errors
/// The drafter does not fit the target, or its own sizes are not known here.
pub fn estimate(asked: &Asked) -> Result<Option<Estimate>> {
    let sizes = target_sizes::of(asked.recipe);
    sizes.map(|sizes| Estimate::of(asked, &sizes)).transpose()
}
