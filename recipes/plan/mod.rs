//! `--plan`: what a recipe would do, what would stop it, and what it would take.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};
use spectrain_checkpoints::columns::beside;

use crate::errors::with_causes;
use crate::plan::preflight::Asked;

mod capture;
mod data;
mod estimate;
mod flops;
mod memory;
mod offline;
mod parts;
pub mod preflight;
mod samples;
mod several;
mod shown;
mod space;
mod speed;
mod stages;
pub(crate) mod target_sizes;
#[cfg(test)]
mod tests;
mod words;

use capture::CapturePlan;
pub use estimate::Estimate;
pub use several::plan_all;
pub use shown::Plan;

/// Plans a run.
pub fn plan(asked: &Asked) -> Result<Plan> {
    let recipe = asked.recipe;
    let run = asked.runs.join(&recipe.name);
    let mut text = format!("{}\n", recipe.toml.trim_end());
    _ = writeln!(text, "\nrun: {}\nstages:", run.display());
    let stages = stages::stages(asked)?;
    for (name, state) in &stages {
        text += &beside(&format!("  {name}"), 12, state);
    }
    let refusals = asked.all_refusals();
    let refused: Vec<String> = refusals.iter().map(with_causes).collect();
    text += &part("refused", &refused);
    let warnings = asked.warnings();
    text += &part("warnings", &warnings);
    let (lines, downloads) = data::downloads(recipe);
    text += &part("to download", &lines);
    let read = parts::read_of(recipe);
    let lines = read.as_ref().map(parts::Read::lines);
    text += &part("read of the target", &lines.unwrap_or_default());
    let [estimates, capture] = estimates(asked, &mut text);
    let stage = |(name, state): &(&str, String)| json!({"name": name, "state": state});
    let json = json!({
        "recipe": recipe.json,
        "run": run,
        "stages": stages.iter().map(stage).collect::<Vec<_>>(),
        "refused": refused,
        "warnings": warnings,
        "downloads": downloads,
        "target_read": read.map(|read| json!(read)),
        "estimates": estimates,
        "capture": capture,
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

/// What the run takes and how fast its servers are, in words and in numbers.
fn estimates(asked: &Asked, text: &mut String) -> [Value; 2] {
    let recipe = asked.recipe;
    text.push_str("\nestimates:\n");
    let Some(found) = target_sizes::of(recipe) else {
        let model = recipe.model().unwrap_or_default();
        let none = "known once it is on this machine";
        _ = writeln!(text, "  none: the sizes of `{model}` are {none}");
        return [Value::Null, Value::Null];
    };
    let estimate = Estimate::of(asked, &found);
    let numbers = match &estimate {
        Ok(estimate) => {
            text.push_str(&estimate.text(recipe, &found, asked.device));
            let run = asked.runs.join(&recipe.name);
            if let Some(free) = space::missing(&run, estimate.disk_bytes()) {
                text.push_str(&beside("  disk, free", 25, &free));
            }
            estimate.json(&found, asked.device)
        }
        Err(error) => {
            _ = writeln!(text, "  none: {}", with_causes(error));
            Value::Null
        }
    };
    let run = asked.runs.join(&recipe.name);
    let measured = CapturePlan::measure(recipe, &run, &found, estimate.as_ref().ok());
    let (lines, capture) = match measured {
        Ok(None) => return [numbers, Value::Null],
        Ok(Some(measured)) => (measured.lines(), measured.json()),
        Err(error) => {
            let error = with_causes(&error);
            (
                vec![format!("not measured: {error}")],
                json!({"error": error}),
            )
        }
    };
    *text += &part("servers of the target", &lines);
    [numbers, capture]
}

/// What the run takes, where the sizes of its target need no download.
///
/// # Errors
/// The drafter does not fit the target, or its own sizes are not known here.
pub fn estimate(asked: &Asked) -> Result<Option<Estimate>> {
    let sizes = target_sizes::of(asked.recipe);
    sizes.map(|sizes| Estimate::of(asked, &sizes)).transpose()
}
