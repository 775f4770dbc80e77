//! Kills at random moments: a run that is killed as often as one likes leaves, once it has ended, what one leaves that was
//! never touched.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::times;
use crate::program::SYNTHETIC;
use crate::workspace::{RECIPE, Workspace};

/// Kills in short, over all runs.
const KILLS: u64 = 10;
/// How often a run is killed before it is let alone, so that long ones end.
const MOST: u64 = 25;

/// What is run, and killed.
pub struct Case {
    pub name: &'static str,
    pub words: &'static [&'static str],
    pub workspace: fn() -> Workspace,
    /// The folder of its stages.
    run: Option<&'static str>,
}

const RECIPE_WORDS: &[&str] = &["recipe", "recipe.toml"];

/// Features that are computed before training.
pub const STORED: Case = Case {
    name: "eagle3, stored features",
    words: RECIPE_WORDS,
    workspace: stored,
    run: Some("runs/run"),
};

/// Answers made anew.
pub const REGENERATION: Case = Case {
    name: "regenerate",
    words: &[
        "data",
        "regenerate",
        "--target",
        "target",
        "--data",
        "train.jsonl",
        "--max-tokens",
        "24",
        "--out",
        "out.jsonl",
    ],
    workspace: Workspace::new,
    run: None,
};

/// Besides those, a training of two stages, a language model as a drafter, and a target of its own.
const CASES: [Case; 5] = [
    STORED,
    Case {
        name: "dflash-deer, two stages",
        words: RECIPE_WORDS,
        workspace: staged,
        run: Some("runs/run"),
    },
    Case {
        name: "distillspec, language model",
        words: RECIPE_WORDS,
        workspace: language_model,
        run: Some("runs/run"),
    },
    Case {
        name: "eagle3, synthetic",
        words: RECIPE_WORDS,
        workspace: synthetic,
        run: Some("runs/run"),
    },
    REGENERATION,
];

fn of(changes: &[(&str, &str)]) -> Workspace {
    let workspace = Workspace::new();
    let recipe = changes
        .iter()
        .fold(RECIPE.to_owned(), |recipe, (from, to)| {
            assert!(recipe.contains(from), "{from}");
            recipe.replace(from, to)
        });
    workspace.write("recipe.toml", recipe);
    workspace
}

fn stored() -> Workspace {
    of(&[(
        "[features]\nsamples_per_shard = 16",
        "[features]\nmode = \"stored\"\nsamples_per_shard = 5",
    )])
}

const EAGLE3_TABLES: &str = "[drafter]\ndraft_vocab = 256\n\n[objective]\ndraft_steps = 2\n";

fn staged() -> Workspace {
    let tables =
        "[drafter]\nlayers = 2\nmask_token = 189\nblock_size = 4\n\n[objective]\nanchors = 4\n";
    of(&[("\"eagle3\"", "\"dflash-deer\""), (EAGLE3_TABLES, tables)])
}

fn language_model() -> Workspace {
    let tables = "[drafter]\nkeep_layers = [0, 3]\n\n[objective]\ndivergence = \"kl\"\n\n[objective.on_policy]\nfraction = 0.5\nmax_new_tokens = 8\n";
    of(&[("\"eagle3\"", "\"distillspec\""), (EAGLE3_TABLES, tables)])
}

fn synthetic() -> Workspace {
    Workspace::of(SYNTHETIC)
}

/// What a run has left, without what a clock says.
pub type Results = BTreeMap<String, Vec<u8>>;

/// Keys of results that say when, how long or how fast, or what is chosen by that.
const OF_TIME: [&str; 5] = ["second", "time", "speed", "slowed", "recommended"];
/// Files that are of a process and not of its results, or are made of those with times.
const APART: [&str; 7] = [
    "manifest.json",
    "hashes.json",
    "run.json",
    ".lock",
    "report.md",
    "report.html",
    "README.md",
];

pub fn results(workspace: &Workspace) -> Results {
    let mut results = Results::new();
    for folder in ["runs", "."] {
        if !workspace.path(folder).is_dir() || folder == "." && workspace.path("runs").exists() {
            continue;
        }
        for (name, bytes) in workspace.files(folder) {
            let file = name.file_name().unwrap().to_str().unwrap();
            let of_events = name.components().any(|part| part.as_os_str() == "events");
            // How often a state was saved is no result, and neither is what was set aside.
            if APART.contains(&file)
                || of_events && file != "metrics.jsonl"
                || file.ends_with(".journal")
                || file.ends_with(".report")
            {
                continue;
            }
            results.insert(name.display().to_string(), timeless(&name, bytes));
        }
    }
    results
}

fn timeless(name: &Path, bytes: Vec<u8>) -> Vec<u8> {
    let is_json = name
        .extension()
        .is_some_and(|ending| ending == "json" || ending == "jsonl");
    if !is_json {
        return bytes;
    }
    let Some(values) = parsed(&bytes) else {
        return bytes;
    };
    let of_state = name.file_name().is_some_and(|name| name == "state.json");
    let without = |mut value: Value| {
        forget_times(&mut value);
        if let Some(table) = value.as_object_mut().filter(|_| of_state) {
            // The digest of the file itself, times included.
            table.remove("sha256");
        }
        value.to_string() + "\n"
    };
    values
        .into_iter()
        .map(without)
        .collect::<String>()
        .into_bytes()
}

/// A JSON value, or several in lines; none where it is neither.
fn parsed(bytes: &[u8]) -> Option<Vec<Value>> {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Some(vec![value]);
    }
    let lines = std::str::from_utf8(bytes).ok()?.lines();
    lines.map(|line| serde_json::from_str(line).ok()).collect()
}

/// Removes what says when, how long or how fast, wherever it stands.
fn forget_times(value: &mut Value) {
    match value {
        Value::Object(table) => {
            table.retain(|key, _| !OF_TIME.iter().any(|word| key.contains(word)));
            table.values_mut().for_each(forget_times);
        }
        Value::Array(values) => values.iter_mut().for_each(forget_times),
        _ => {}
    }
}

/// The stage that a run has begun and not finished; what stands between two of them.
fn stage(workspace: &Workspace, run: Option<&str>) -> String {
    let Some(run) = run else {
        let begun = workspace.path("out.jsonl.journal").exists();
        return if begun { "answering" } else { "start" }.into();
    };
    let Ok(stages) = std::fs::read_dir(workspace.path(run)) else {
        return "start".into();
    };
    let mut begun = BTreeSet::new();
    for folder in stages.flatten() {
        let manifest = std::fs::read(folder.path().join("manifest.json"));
        let manifest: Option<Value> = manifest
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        if manifest.is_some_and(|manifest| manifest["status"] == "started") {
            begun.insert(folder.file_name().into_string().unwrap());
        }
    }
    begun.pop_first().unwrap_or_else(|| "between stages".into())
}

/// Starts the program, and lets it say what it likes to nobody.
fn start(workspace: &Workspace, words: &[&str]) -> Child {
    let mut command = workspace.command(words);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until the program ends; false where it has to be killed first.
fn ends_within(child: &mut Child, time: Duration) -> bool {
    let clock = Instant::now();
    while clock.elapsed() < time {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    // It may have come to its end just before.
    status.success()
}

/// A case, and what becomes of it where nobody kills it.
struct Trial {
    case: Case,
    expected: Results,
    takes: Duration,
}

impl Trial {
    fn of(case: Case) -> Self {
        let workspace = (case.workspace)();
        let clock = Instant::now();
        workspace.run(case.words).succeeded();
        Self {
            expected: results(&workspace),
            takes: clock.elapsed(),
            case,
        }
    }

    /// Kills one run at most so often, and compares what it leaves. Says where it was each time.
    fn kill(&self, most: u64, rng: &mut StdRng, stages: &mut BTreeMap<String, u64>) -> u64 {
        let workspace = (self.case.workspace)();
        let mut kills = 0;
        while kills < most.min(MOST) {
            let mut child = start(&workspace, self.case.words);
            let time = self.takes.mul_f64(rng.random_range(0.0..0.9));
            if ends_within(&mut child, time) {
                break;
            }
            kills += 1;
            let stage = stage(&workspace, self.case.run);
            *stages
                .entry(format!("{}: {stage}", self.case.name))
                .or_default() += 1;
        }
        workspace.run(self.case.words).succeeded();
        self.compare(&results(&workspace), kills);
        kills
    }

    fn compare(&self, found: &Results, kills: u64) {
        let name = self.case.name;
        let names = |results: &Results| results.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(found), names(&self.expected), "{name}, {kills} kills");
        for (file, bytes) in found {
            let expected = &self.expected[file];
            let shown = |bytes: &[u8]| {
                String::from_utf8_lossy(&bytes[..bytes.len().min(3000)]).into_owned()
            };
            assert!(
                bytes == expected,
                "{name}, {kills} kills: `{file}` differs: {}\nin place of\n{}",
                shown(bytes),
                shown(expected)
            );
        }
    }
}

#[test]
fn runs_that_are_killed_at_any_moment_end_as_those_that_are_not() {
    let clock = Instant::now();
    let wanted = times(KILLS);
    let trials = CASES.map(Trial::of);
    let mut stages = BTreeMap::new();
    let (mut kills, mut runs) = (0, 0);
    let first = super::number(super::fuzz::SEED).unwrap_or(0);
    let mut seed = first;
    while kills < wanted {
        let mut rng = StdRng::seed_from_u64(seed);
        let trial = &trials[seed as usize % trials.len()];
        eprintln!("run {seed}: {}, {kills} kills so far", trial.case.name);
        // Where few are wanted, each case has some of them.
        let share = (wanted - kills).min(wanted.div_ceil(trials.len() as u64));
        kills += trial.kill(share, &mut rng, &mut stages);
        runs += 1;
        seed += 1;
    }
    for (stage, count) in &stages {
        eprintln!("{count:>5} {stage}");
    }
    let seconds = clock.elapsed().as_secs_f64();
    eprintln!(
        "kills: {kills} in {runs} runs, {seconds:.0} s, seeds {first} to {}",
        seed - 1
    );
    // Where few are wanted, they may fall where they like.
    assert!(kills < 100 || stages.len() > 8, "{stages:?}");
}
