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
use super::room;
use super::shown::{Plan, REFUSED, refusal};
use super::stage_times::{Known, StageTimes};
use super::stages::{self, Planned};
use super::target_sizes;
use super::words::{bytes, duration, part};
use crate::errors::with_causes;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runtime::sizes::Sizes;
use crate::stages::order;
use crate::stages::settings::settings;
use crate::stages::stage::Stage;

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
        Self {
            memory_bytes: estimate.and_then(Estimate::peak),
            disk_bytes: estimate.map(|estimate| features.disk_bytes(estimate)),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Features {
    /// It makes them.
    Own,
    /// Another one has the same.
    Linked,
}

impl Features {
    /// Bytes of the disk that are a run's own.
    pub(super) fn disk_bytes(self, estimate: &Estimate) -> u64 {
        match self {
            Self::Own => estimate.disk_bytes(),
            Self::Linked => estimate.own_disk_bytes(),
        }
    }
}

/// What there is of a run before it is trained.
pub(super) struct Begun {
    sizes: Option<Sizes>,
    /// What becomes of its stages.
    stages: Vec<Planned>,
    /// What those before its training are made from, where it is known.
    before: Option<Value>,
    /// Whether they are done.
    has_features: bool,
    /// See [`room::begins`].
    begins: bool,
}

impl Begun {
    /// Of a run of whose stages this becomes.
    fn of(asked: &Asked, stages: Vec<Planned>) -> Self {
        let trains = asked.recipe.method.stages();
        let mut before = stages.iter().take_while(|of| !trains.contains(&of.name));
        let has_features = !stages.is_empty() && before.all(|stage| stage.done);
        Self::with(asked, stages, has_features)
    }

    /// Of a run by the manifests of its stages, of which it is not found what becomes of them.
    pub(super) fn noted(asked: &Asked) -> Self {
        let mut before = before(asked.recipe);
        let has_features = before.all(|stage| asked.is_noted_as_done(&stage));
        Self::with(asked, Vec::new(), has_features)
    }

    fn with(asked: &Asked, stages: Vec<Planned>, has_features: bool) -> Self {
        let sizes = target_sizes::of(asked.recipe);
        let before = sizes.as_ref();
        Self {
            before: before.and_then(|sizes| before_training(asked.recipe, &sizes.spec)),
            begins: room::begins(&asked.runs.join(&asked.recipe.name), asked.existing),
            sizes,
            stages,
            has_features,
        }
    }
}

/// Where each of several runs has its features from: of those that are made from the same, one makes them, the first that has done
/// so, or else, unless the `lender` has, which is none of them, the first that begins: the disk is counted of such runs alone.
pub(super) fn shares(all: &[Begun], lender: Option<&Begun>) -> Vec<Features> {
    let maker = |before: &Value| {
        let is_alike = |other: &Begun| other.before.as_ref() == Some(before);
        let first = |is: fn(&Begun) -> bool| {
            let mut all = all.iter();
            all.position(|other| is_alike(other) && is(other))
        };
        let is_lent = lender.is_some_and(|lender| is_alike(lender) && lender.has_features);
        match first(|other| other.has_features) {
            None if is_lent => None,
            None => first(|other| other.begins).or_else(|| first(|_| true)),
            made => made,
        }
    };
    let of = |(at, run): (usize, &Begun)| match &run.before {
        Some(before) if maker(before) != Some(at) => Features::Linked,
        _ => Features::Own,
    };
    all.iter().enumerate().map(of).collect()
}

/// The stages of a run before its training.
fn before(recipe: &ResolvedRecipe) -> impl Iterator<Item = Stage> {
    let trains = recipe.method.stages();
    let stages = order::of(recipe).into_iter();
    stages.take_while(move |stage| !trains.contains(&stage.name))
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

/// What the stages before the training of a run are made from: of runs in which that is the same, one makes it and the others link
/// it. Nothing where it is not known.
fn before_training(recipe: &ResolvedRecipe, spec: &TargetSpec) -> Option<Value> {
    let settings = before(recipe).map(|stage| settings(recipe, &stage));
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
    /// See [`room::needed_memory`].
    memory: Option<u64>,
    /// What is said of its recipe.
    of_recipe: Vec<String>,
    /// What is said of its folder.
    in_use: Option<String>,
}

impl<'a> Row<'a> {
    fn of(asked: &Asked<'a>, hub: &mut OnHub, (begun, features): (Begun, Features)) -> Self {
        let refusals = asked.all_refusals(hub.models(asked).refusals);
        let Begun { sizes, stages, .. } = begun;
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
        let memory = estimate.as_ref();
        let memory = memory.and_then(|estimate| room::needed_memory(asked, estimate));
        Self {
            name: &asked.recipe.name,
            memory,
            of_recipe: asked.warnings(),
            in_use: asked.in_use(),
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

    /// What should be known of it and is not `known` of all, and what of it that has been done is done again, and why.
    fn warnings(&self, known: &[&String]) -> impl Iterator<Item = String> {
        let again = self.stages.iter().filter(|stage| stage.is_again());
        let again = again.map(|stage| format!("{} {}", stage.name, stage.state));
        let own = self.of_recipe.iter();
        let own = own.filter(move |told| !known.contains(told));
        let all = self.in_use.iter().chain(own).cloned().chain(again);
        all.map(|warning| format!("{}: {warning}", self.name))
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

/// What should be known of the machine and of the runs; what is said of all of them, once.
fn warnings(all: &[Asked], rows: &[Row]) -> Vec<String> {
    let elsewhere = all.first().and_then(Asked::device_elsewhere);
    let memory = rows.iter().map(|row| row.memory);
    let memory = room::too_little_memory_for_all(all.iter().zip(memory));
    let disk = rows.iter().map(|row| row.takes.disk_bytes);
    let disk = room::too_little_disk_for_all(all.iter().zip(disk));
    let first = rows.iter().take(1).flat_map(|row| &row.of_recipe);
    let is_of_all = |told: &&String| rows.iter().all(|row| row.of_recipe.contains(told));
    let of_all: Vec<&String> = first.filter(is_of_all).collect();
    let of_machine = elsewhere.into_iter().chain(memory).chain(disk);
    let of_each = rows.iter().flat_map(|row| row.warnings(&of_all));
    let once = of_all.iter().map(|told| (*told).clone());
    of_machine.chain(once).chain(of_each).collect()
}

/// Plans several runs, each with a name of its own. What the run `lender` has made, which is none of them, they take over.
pub fn plan_all(all: &[Asked], lender: Option<&Asked>) -> Plan {
    let mut hub = OnHub::of_process();
    // What is wrong with a run's folder is told where it is trained.
    let stages = |asked: &Asked| stages::stages(asked).unwrap_or_default();
    let begun = all.iter().map(|asked| Begun::of(asked, stages(asked)));
    let begun: Vec<Begun> = begun.collect();
    let lender = lender.map(|asked| Begun::of(asked, stages(asked)));
    let shares = shares(&begun, lender.as_ref());
    let rows = all.iter().zip(begun.into_iter().zip(shares));
    let rows: Vec<Row> = rows
        .map(|(asked, begun)| Row::of(asked, &mut hub, begun))
        .collect();
    let together = rows.iter().map(|row| row.takes).reduce(Takes::and);
    let together = together.unwrap_or_default();
    let mut lines = vec![["run", "", "memory", "disk", "time"].map(str::to_owned)];
    lines.extend(rows.iter().map(|row| row.takes.line(row.name, row.state())));
    lines.push(together.line("one after the other", ""));
    let mut text = table(&lines);
    text.push_str("\n`--plan` without `--sweep` and `--vary` says more of one run.\n");
    let warnings = warnings(all, &rows);
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::recipe::read;
    use crate::runs::run_folder::Existing;

    use Features::{Linked, Own};

    /// A run that begins, has begun, or has made its features.
    #[derive(Clone, Copy)]
    enum State {
        Begins,
        Begun,
        Done,
    }
    use State::{Begins, Done};

    fn run((before, state): (Option<&str>, State)) -> Begun {
        Begun {
            sizes: None,
            stages: Vec::new(),
            before: before.map(|before| json!(before)),
            has_features: matches!(state, Done),
            begins: matches!(state, Begins),
        }
    }

    fn shared<const N: usize>(all: [(Option<&str>, State); N]) -> Vec<Features> {
        shares(&all.map(run), None)
    }

    #[test]
    fn of_runs_that_begin_alike_one_makes_the_features_which_is_the_first_that_has_made_them() {
        let (a, b) = (Some("a"), Some("b"));
        let found = shared([(a, Begins), (b, Begins), (a, Begins)]);
        assert_eq!(found, [Own, Own, Linked]);
        // A value that is new has what another one's run has made, wherever it stands.
        let found = shared([(a, Begins), (a, Done), (a, Done)]);
        assert_eq!(found, [Linked, Own, Linked]);
        assert_eq!(shared([(None, Begins), (None, Begins)]), [Own, Own]);
    }

    #[test]
    fn features_that_no_run_has_made_are_counted_with_one_whose_disk_is_counted() {
        let a = Some("a");
        let found = shared([(a, State::Begun), (a, Begins), (a, Begins)]);
        assert_eq!(found, [Linked, Own, Linked]);
        let found = shared([(a, State::Begun), (a, State::Begun)]);
        assert_eq!(found, [Own, Linked]);
    }

    #[test]
    fn features_that_a_run_beside_them_has_made_are_made_by_none() {
        let (a, b) = (Some("a"), Some("b"));
        let all = [(a, Begins), (b, Begins), (a, Begins)].map(run);
        let beside = |lender| shares(&all, Some(&run(lender)));
        assert_eq!(beside((a, Done)), [Linked, Own, Linked]);
        // It is not trained here, so it makes none either.
        assert_eq!(beside((a, State::Begun)), [Own, Own, Linked]);
    }

    #[test]
    fn what_is_said_of_all_runs_is_said_once_and_of_memory_what_the_largest_takes() {
        let text =
            "recipe = \"eagle3\"\nname = \"a\"\ntarget.model = \"t\"\ndata.train = \"d.jsonl\"\n";
        let recipes = ["a", "b"].map(|name| read(text, &[format!("name={name}")]).unwrap());
        let all = recipes.each_ref().map(|recipe| Asked {
            recipe,
            runs: Path::new("absent"),
            existing: Existing::Continue,
            device: "cpu",
            ranks: 1,
            only: &[],
            parts: None,
        });
        let row = |name, memory, told: [&str; 2]| Row {
            name,
            takes: Takes::default(),
            refusals: Vec::new(),
            stages: Vec::new(),
            memory: Some(memory),
            of_recipe: told.map(str::to_owned).to_vec(),
            in_use: None,
        };
        let rows = [row("a", 1, ["x", "y"]), row("b", u64::MAX, ["y", "z"])];
        let told = warnings(&all, &rows);
        assert!(told[0].starts_with("b: the run takes "), "{told:?}");
        assert_eq!(told[1..], ["y", "a: x", "b: z"]);
    }
}
