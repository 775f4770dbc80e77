//! `--plan` of a sweep: a line for each of its runs, and what they take together.

use std::fmt::Write as _;

use anyhow::Error;
use serde::Serialize;
use serde_json::{Value, json};
use spectrain_models::TargetSpec;

use super::data::TrainingData;
use super::estimate::Estimate;
use super::on_hub::OnHub;
use super::preflight::Asked;
use super::shown::{Plan, REFUSED, refusal};
use super::stage_times::{Known, StageTimes};
use super::stages::{self, Planned};
use super::target_sizes;
use super::words::{bytes, duration, part};
use crate::errors::with_causes;
use crate::recipe::resolved::ResolvedRecipe;
use crate::stages::inputs::settings;
use crate::stages::order;

/// What a run takes, as far as it is known.
#[derive(Clone, Copy, Default, Serialize)]
struct Takes {
    /// At the most at a time.
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
    training_seconds: Option<f64>,
    /// Of all stages whose time can be estimated.
    seconds: Option<f64>,
}

impl Takes {
    /// `stages` says what becomes of each.
    fn of(asked: &Asked, known: Option<&Known>, features: Features, stages: &[Planned]) -> Self {
        let is_trained = |name: &&str| stages.iter().any(|of| of.name == *name && !of.is_left());
        let estimate = known.map(|known| known.estimate);
        let disk_bytes = match features {
            Features::Own => Estimate::disk_bytes,
            Features::Linked => Estimate::own_disk_bytes,
        };
        Self {
            memory_bytes: estimate.and_then(Estimate::peak),
            disk_bytes: estimate.map(disk_bytes),
            training_seconds: match asked.recipe.training_stages().iter().all(is_trained) {
                true => Some(0.0),
                false => estimate.and_then(Estimate::training_seconds),
            },
            seconds: known.map(|known| seconds(known, features, stages)),
        }
    }

    /// Both, one after the other. What is not known of one is not known of both.
    fn and(self, other: Self) -> Self {
        let memory = self.memory_bytes.zip(other.memory_bytes);
        let disk = self.disk_bytes.zip(other.disk_bytes);
        let training = self.training_seconds.zip(other.training_seconds);
        let seconds = self.seconds.zip(other.seconds);
        Self {
            memory_bytes: memory.map(|(one, other)| one.max(other)),
            disk_bytes: disk.map(|(one, other)| one.saturating_add(other)),
            training_seconds: training.map(|(one, other)| one + other),
            seconds: seconds.map(|(one, other)| one + other),
        }
    }

    fn line(&self, name: &str, state: &str) -> [String; 5] {
        let later = || "later".to_owned();
        [
            name.to_owned(),
            state.to_owned(),
            self.memory_bytes.map_or_else(later, bytes),
            self.disk_bytes.map_or_else(later, bytes),
            self.seconds.map_or_else(later, duration),
        ]
    }
}

/// Where a run has its features from.
#[derive(Clone, Copy)]
enum Features {
    /// It makes them.
    Own,
    /// An earlier one has the same.
    Linked,
}

/// How long the stages of a run take that are its own and not done, as far as that can be estimated.
fn seconds(known: &Known, features: Features, planned: &[Planned]) -> f64 {
    let recipe = known.asked.recipe;
    let trains = recipe.method.stages();
    let stages = order::of(recipe).into_iter().map(|stage| stage.name);
    let linked =
        |stage: &&'static str| matches!(features, Features::Linked) && !trains.contains(stage);
    let is_left = |stage: &&'static str| planned.iter().all(|of| of.name != *stage || of.is_left());
    let own = stages.skip_while(linked).filter(is_left);
    let own: Vec<&str> = own.collect();
    StageTimes::of(known, &own).seconds()
}

/// What the stages before the training of a run are made from: of runs in which that is the same, each later one links what the
/// first has made. Nothing where it is not known.
fn before_training(recipe: &ResolvedRecipe, spec: &TargetSpec) -> Option<Value> {
    let trains = recipe.method.stages();
    let stages = order::of(recipe).into_iter();
    let before = stages.take_while(|stage| !trains.contains(&stage.name));
    let settings = before.map(|stage| settings(recipe, &stage));
    let settings: Vec<Value> = settings.collect::<anyhow::Result<_>>().ok()?;
    let layers = recipe.method.capture(spec).ok()?.layers;
    let tables = ["data", "target", "features"].map(|table| &recipe.json[table]);
    Some(json!([settings, layers, tables]))
}

/// A run of several.
struct Row<'a> {
    name: &'a str,
    takes: Takes,
    refusals: Vec<Error>,
    /// What becomes of its stages.
    stages: Vec<Planned>,
}

impl<'a> Row<'a> {
    /// `known` is what the stages before the training of earlier runs are made from.
    fn of(asked: &Asked<'a>, hub: &mut OnHub, known: &mut Vec<Value>) -> Self {
        let refusals = asked.all_refusals(hub.models(asked).refusals);
        let sizes = target_sizes::of(asked.recipe);
        let before = sizes.as_ref();
        let before = before.and_then(|sizes| before_training(asked.recipe, &sizes.spec));
        let features = match before {
            Some(before) if known.contains(&before) => Features::Linked,
            before => {
                known.extend(before);
                Features::Own
            }
        };
        // What is wrong with a run's folder is told where it is trained.
        let stages = stages::stages(asked).unwrap_or_default();
        let data = TrainingData::of(asked, &stages);
        // Why there is no estimate is among the refusals.
        let estimate = sizes.as_ref();
        let estimate = estimate.and_then(|sizes| Estimate::of(asked, sizes, &data).ok());
        let known = estimate.as_ref().zip(sizes.as_ref());
        let known = known.map(|(estimate, sizes)| Known {
            asked: *asked,
            sizes,
            estimate,
            data: &data,
            captured: None,
        });
        Self {
            name: &asked.recipe.name,
            takes: Takes::of(asked, known.as_ref(), features, &stages),
            refusals: stages::with_refusals(refusals, &stages),
            stages,
        }
    }

    /// What becomes of it, in a word or two.
    fn state(&self) -> &'static str {
        let mut stages = self.stages.iter();
        match (self.stages.is_empty(), stages.all(|stage| !stage.is_left())) {
            (false, true) => "done",
            _ if self.stages.iter().any(|stage| stage.done) => "goes on",
            _ => "runs",
        }
    }

    /// What of it that has been done is done again, and why.
    fn again(&self) -> impl Iterator<Item = String> {
        let again = self.stages.iter().filter(|stage| stage.is_again());
        again.map(|stage| format!("{}: {} {}", self.name, stage.name, stage.state))
    }

    fn json(&self) -> Value {
        let refused = self.refusals.iter().map(with_causes);
        json!({
            "run": self.name,
            "stages": self.stages.iter().map(Planned::json).collect::<Vec<_>>(),
            "refused": refused.collect::<Vec<_>>(),
            "estimates": self.takes,
        })
    }
}

/// Plans several runs, each with a name of its own.
pub fn plan_all(all: &[Asked]) -> Plan {
    let mut hub = OnHub::of_process();
    let mut known = Vec::new();
    let rows = all.iter();
    let rows: Vec<Row> = rows
        .map(|asked| Row::of(asked, &mut hub, &mut known))
        .collect();
    let together = rows.iter().map(|row| row.takes).reduce(Takes::and);
    let together = together.unwrap_or_default();
    let mut lines = vec![["run", "", "memory", "disk", "time"].map(str::to_owned)];
    lines.extend(rows.iter().map(|row| row.takes.line(row.name, row.state())));
    lines.push(together.line("one after the other", ""));
    let mut text = table(&lines);
    text.push_str("\n`--plan` without `--sweep` and `--vary` says more of one run.\n");
    let warnings = all.first().and_then(Asked::device_elsewhere);
    let warnings = warnings.into_iter();
    let warnings: Vec<String> = warnings.chain(rows.iter().flat_map(Row::again)).collect();
    text += &part("warnings", &warnings);
    let runs = rows.iter().map(Row::json);
    let json =
        json!({"runs": runs.collect::<Vec<_>>(), "warnings": warnings, "together": together});
    let refusals = rows.into_iter().flat_map(|row| {
        let of_run = row.refusals.into_iter();
        of_run.map(move |why| why.context(row.name.to_owned()))
    });
    let refusal = refusal(&refusals.collect::<Vec<_>>());
    if refusal.is_some() {
        text += REFUSED;
    }
    Plan {
        text,
        json,
        refusal,
    }
}

/// Names on the left, numbers on the right.
fn table(lines: &[[String; 5]]) -> String {
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let [name, state, memory, disk, time] = [0, 1, 2, 3, 4].map(width);
    let mut text = String::new();
    for [a, b, c, d, e] in lines {
        _ = writeln!(
            text,
            "{a:name$}  {b:state$}  {c:>memory$}  {d:>disk$}  {e:>time$}"
        );
    }
    text
}
