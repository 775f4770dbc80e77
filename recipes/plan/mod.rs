//! `--plan`: what a recipe would do, what would stop it, and what it would take.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Map, Value, json};
use spectrain_checkpoints::columns::beside;

use crate::errors::with_causes;
use crate::plan::preflight::Asked;
use crate::runtime::sizes::{Sizes, unknown_sizes};
use crate::stages::array::Part;

mod answering;
mod capture;
mod choosing;
pub(crate) mod data;
mod drafts;
mod estimate;
mod flops;
mod memory;
mod offline;
mod on_disk;
mod on_hub;
mod pace;
mod parts;
pub mod preflight;
mod resolved;
mod room;
mod samples;
mod several;
mod shown;
mod speed;
mod stage_times;
mod stages;
mod steps;
pub(crate) mod target_sizes;
#[cfg(test)]
mod tests;
pub(crate) mod words;

use capture::CapturePlan;
use data::TrainingData;
pub use estimate::Estimate;
use on_hub::OnHub;
use resolved::{commented, resolved};
pub use several::plan_all;
use several::{Begun, shares};
use shown::{REFUSED, is_told, refusal};
use stage_times::{Known, StageTimes};
use stages::Planned;
use words::part;

pub use shown::Plan;

/// Plans a run.
pub fn plan(asked: &Asked) -> Result<Plan> {
    plan_with(asked, &mut OnHub::of_process())
}

fn plan_with(asked: &Asked, hub: &mut OnHub) -> Result<Plan> {
    let recipe = asked.recipe;
    let run = asked.runs.join(&recipe.name);
    let origin = recipe.origin.as_ref().map(ToString::to_string);
    let sizes = target_sizes::of(recipe);
    let keys = sizes.as_ref().map(|sizes| resolved(asked, &sizes.spec));
    let keys = keys.unwrap_or_default();
    let mut text = format!("{}\n", commented(&recipe.described(), &keys));
    if let Some(origin) = &origin {
        _ = writeln!(text, "recipe: {origin}");
    }
    _ = writeln!(text, "run: {}\nstages:", run.display());
    let stages = stages::stages(asked)?;
    let of_hub = hub.models(asked);
    let refusals = stages::with_refusals(asked.all_refusals(of_hub.refusals), &stages);
    let refused: Vec<String> = refusals.iter().map(with_causes).collect();
    let width = stages.iter().map(|stage| stage.name.len() + 3).max();
    let width = width.unwrap_or(0).max(12);
    for stage in &stages {
        let name = format!("  {}", stage.name);
        text += &beside(&name, width, stage.beside(&refused));
    }
    let (lines, downloads) = data::downloads(recipe);
    text += &part("to download", &lines);
    let read = parts::read_of(recipe);
    let lines = read.as_ref().map(parts::Read::lines);
    text += &part("read of the target", &lines.unwrap_or_default());
    let found = estimates(asked, sizes.as_ref(), (&stages, &refused), &mut text);
    let here = asked.device_elsewhere().into_iter().chain(asked.in_use());
    let own = here.chain(asked.warnings());
    let own = own.chain(asked.of_text());
    let warnings = own.chain(of_hub.warnings).chain(found.warnings);
    let warnings = warnings.chain(answering::silent(recipe, &stages));
    let warnings: Vec<String> = warnings.collect();
    text += &part("warnings", &warnings);
    if !refused.is_empty() {
        text += REFUSED;
    }
    let becomes =
        |(table, key, value): &(&str, &str, Value)| (format!("{table}.{key}"), value.clone());
    let left_out = recipe.left_out().into_iter();
    let left_out = left_out.map(|(table, key, value)| (format!("{table}.{key}"), value));
    let json = json!({
        "recipe": recipe.json,
        "becomes": keys.iter().map(becomes).chain(left_out).collect::<Map<_, _>>(),
        "recipe_from": origin,
        "run": run,
        "stages": stages.iter().map(Planned::json).collect::<Vec<_>>(),
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
        refusal: refusal(&refusals),
    })
}

/// What the run takes and how fast its servers are, as far as it is known.
#[derive(Default)]
struct Estimates {
    numbers: Value,
    capture: Value,
    warnings: Vec<String>,
}

/// What the run takes and how fast its servers are, which is added to the `text` too.
fn estimates(
    asked: &Asked,
    sizes: Option<&Sizes>,
    (stages, refused): (&[Planned], &[String]),
    text: &mut String,
) -> Estimates {
    let recipe = asked.recipe;
    let mut known = Estimates::default();
    text.push_str("\nestimates:\n");
    let Some(sizes) = sizes else {
        let model = recipe.model().unwrap_or_default();
        let none = unknown_sizes(model, recipe.target.revision.as_deref());
        _ = writeln!(text, "  none: {none}");
        return known;
    };
    let data = TrainingData::of(asked, stages);
    let estimate = Estimate::of(asked, sizes, &data);
    match &estimate {
        Ok(estimate) => {
            text.push_str(&estimate.text(recipe, sizes));
            known.warnings = room::warnings(asked, estimate);
            known.warnings.extend(estimate.many_passes(recipe));
            known.warnings.extend(estimate.in_vain(recipe, stages));
            known.numbers = estimate.json(sizes);
        }
        Err(error) => {
            let why = with_causes(error);
            let why = match is_told(&why, refused) {
                true => "the error says why",
                false => &why,
            };
            _ = writeln!(text, "  none: {why}");
        }
    }
    known
        .warnings
        .extend(choosing::none_left(recipe, &data, stages));
    let (lines, numbers, captured) = servers(asked, sizes, estimate.as_ref().ok(), &data);
    known.capture = numbers;
    *text += &part("servers of the target", &lines);
    if let Ok(estimate) = &estimate {
        let left = stages.iter().filter(|stage| stage.is_left());
        let left: Vec<&str> = left.map(|stage| stage.name).collect();
        let from = Known {
            asked: *asked,
            sizes,
            estimate,
            data: &data,
            captured,
        };
        let times = StageTimes::of(&from, &left);
        *text += &times.text();
        known.numbers["time"] = times.json();
    }
    known
}

/// How fast the servers of the target are, for people and for programs, and the seconds that they take for all; nothing where there
/// are none.
fn servers(
    asked: &Asked,
    sizes: &Sizes,
    estimate: Option<&Estimate>,
    data: &TrainingData,
) -> (Vec<String>, Value, Option<f64>) {
    match CapturePlan::measure(asked.recipe, data, sizes, estimate) {
        Ok(None) => (Vec::new(), Value::Null, None),
        Ok(Some(measured)) => (measured.lines(), measured.json(), measured.seconds()),
        Err(error) => {
            let error = with_causes(&error);
            let line = format!("not measured: {error}");
            (vec![line], json!({"error": error}), None)
        }
    }
}

/// What a run takes that this machine does not have, as far as both are known.
pub fn too_little_room(asked: &Asked) -> Vec<String> {
    // Why there is no estimate the run comes to by itself.
    let known = estimate(asked).ok().flatten();
    known.map_or_else(Vec::new, |known| room::warnings(asked, &known))
}

/// What a part of the features takes of the disk that it does not have, as far as both are known.
pub fn too_little_for_part(asked: &Asked, part: Part) -> Option<String> {
    let known = estimate(asked).ok().flatten()?;
    room::too_little_for_part(asked, part, &known)
}

/// What several runs, one after the other, take of the memory and together of the disk that this machine does not have, as far as
/// both are known; of the disk those that begin. What the run `lender` has made, which is none of them, they take over.
pub fn too_little_room_for_all(all: &[Asked], lender: Option<&Asked>) -> Vec<String> {
    let begun: Vec<Begun> = all.iter().map(Begun::noted).collect();
    let shares = shares(&begun, lender.map(Begun::noted).as_ref());
    let known = all.iter().map(|asked| estimate(asked).ok().flatten());
    let known: Vec<Option<Estimate>> = known.collect();
    let each = || all.iter().zip(&known);
    let memory = each().map(|(asked, known)| {
        let known = known.as_ref();
        let needed = known.and_then(|known| room::needed_memory(asked, known));
        (asked, needed)
    });
    let disk = each().zip(shares).map(|((asked, known), features)| {
        let known = known.as_ref();
        (asked, known.map(|known| features.disk_bytes(known)))
    });
    let memory = room::too_little_memory_for_all(memory);
    let disk = room::too_little_disk_for_all(disk);
    memory.into_iter().chain(disk).collect()
}

/// What is said where a training stage of the run takes more of its device's memory than the `available` bytes, as far as it is known
/// what it takes.
pub fn too_little_on_device(asked: &Asked, stage: &str, available: u64) -> Option<String> {
    let peak = estimate(asked).ok().flatten()?.peak_of(stage)?;
    room::too_little_on_device((stage, peak), asked.device, available)
}

/// What the run takes, where the sizes of its target need no download. Nothing is hashed: of the data counts what a run
/// of this name has noted of it where it has prepared it with these settings, or else what the files say.
///
/// # Errors
/// The drafter does not fit the target, or its own sizes are not known here.
pub fn estimate(asked: &Asked) -> Result<Option<Estimate>> {
    let Some(sizes) = target_sizes::of(asked.recipe) else {
        return Ok(None);
    };
    let data = TrainingData::noted(asked);
    Estimate::of(asked, &sizes, &data).map(Some)
}
