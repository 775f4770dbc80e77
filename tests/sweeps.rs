//! `spectrain recipe --sweep`: runs that share what comes before their training, and one table.
use std::os::unix::fs::MetadataExt as _;

use crate::workspace::{CONVERSATIONS, Outcome, REFUSED, Workspace};

const SWEEP: [&str; 4] = [
    "--sweep",
    "train.learning_rate=1e-2,1e-5",
    "--sweep",
    "seed=0,1",
];
const TOKENS: &str = "prepare/train/tokens.json";

fn run_with(workspace: &Workspace, words: &[&str]) -> Outcome {
    workspace.run(&[&["recipe", "recipe.toml"], words].concat())
}

fn runs() -> Vec<String> {
    let each = |rate: &str| [0, 1].map(|seed| format!("runs/run-learning_rate-{rate}-seed-{seed}"));
    ["1e-2", "1e-5"]
        .iter()
        .flat_map(|rate| each(rate))
        .collect()
}

/// The tables of a sweep are rows and JSON in the folder of its runs, and no reports.
fn the_tables_are_kept_beside_the_runs(workspace: &Workspace) {
    let rows = workspace.text("runs/run.sweep.csv");
    let row = "learning_rate=1e-2,,\"T=0, greedy, chain 2\",overall,chain 2,2,0 1,,";
    assert!(rows.contains(row), "{rows}");
    let json = workspace.json("runs/run.sweep.json");
    assert_eq!(json["first"], "learning_rate=1e-2");
    // A shell that is asked for all runs gives these, too.
    let runs = runs();
    let mut words: Vec<&str> = vec!["report"];
    words.extend(runs.iter().map(String::as_str));
    words.extend([
        "runs/run.sweep.csv",
        "runs/run.sweep.json",
        "--pool",
        "--json",
    ]);
    let told = workspace.run(&words).succeeded();
    assert!(
        told.stderr.contains("left out `runs/run.sweep.csv`"),
        "{told:#?}"
    );
    let pooled: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(pooled["first"], "run-learning_rate-1e-2");
    let tau = |sweep: &serde_json::Value| {
        let rows = sweep["tables"][0]["rows"].as_array().unwrap().iter();
        let tau = rows.map(|row| (row["tau"].clone(), row["seeds"].clone()));
        tau.collect::<Vec<_>>()
    };
    assert_eq!(tau(&pooled), tau(&json));
}

/// What a first value that is new takes from runs that are there, whose prepared data are the file `prepared`.
fn is_taken_from_others_by_a_first_value(workspace: &Workspace, prepared: u64) {
    let inode = |file: String| workspace.path(file).metadata().unwrap().ino();
    let earlier = [
        "--sweep",
        "train.learning_rate=1e-4,1e-2",
        "--sweep",
        "seed=0",
        "--stage",
        "prepare",
    ];
    let told = run_with(workspace, &earlier).succeeded();
    let run = "runs/run-learning_rate-1e-4-seed-0";
    assert_eq!(inode(format!("{run}/{TOKENS}")), prepared);
    assert!(
        told.stderr.contains("prepare: the same as in `runs/run-"),
        "{told:#?}"
    );
    // What starts anew takes nothing that was there before.
    let fresh = [&earlier[..], &["--fresh"]].concat();
    run_with(workspace, &fresh).succeeded();
    let anew = inode(format!("{run}/{TOKENS}"));
    assert_ne!(anew, prepared);
    let second = "runs/run-learning_rate-1e-2-seed-0";
    assert_eq!(inode(format!("{second}/{TOKENS}")), anew);
}

#[test]
fn every_combination_is_trained_and_stands_in_one_table() {
    let workspace = Workspace::new();
    let first = run_with(&workspace, &SWEEP).succeeded();
    let inode = |file: String| workspace.path(file).metadata().unwrap().ino();
    let prepared: Vec<u64> = runs()
        .iter()
        .map(|run| inode(format!("{run}/{TOKENS}")))
        .collect();
    assert!(prepared.iter().all(|other| *other == prepared[0]), "linked");
    for part in [
        "learning_rate=1e-2 ",
        "learning_rate=1e-5 ",
        "the first",
        "seeds 0: ",
        "T=0, greedy, chain 2",
    ] {
        assert!(first.stdout.contains(part), "no `{part}`: {}", first.stdout);
    }
    assert!(!first.stdout.contains("seed=0"), "{}", first.stdout);
    assert!(
        first.stderr.contains("4 of 4: learning_rate=1e-5, seed=1"),
        "{}",
        first.stderr
    );

    the_tables_are_kept_beside_the_runs(&workspace);

    // Whoever adds a value trains that one alone.
    let more = [
        "--sweep",
        "train.learning_rate=1e-2,1e-5,1e-3",
        "--sweep",
        "seed=0,1",
    ];
    let weights =
        |run: &String| workspace.bytes(&format!("{run}/export/drafter/model.safetensors"));
    let before: Vec<Vec<u8>> = runs().iter().map(weights).collect();
    assert_ne!(before[0], before[1]);
    let second = run_with(&workspace, &more).succeeded();
    assert!(
        second.stdout.contains("learning_rate=1e-3 "),
        "{}",
        second.stdout
    );
    assert!(
        second.stderr.contains("train: done before"),
        "{}",
        second.stderr
    );
    assert!(before == runs().iter().map(weights).collect::<Vec<_>>());
    is_taken_from_others_by_a_first_value(&workspace, prepared[0]);
}

#[test]
fn a_run_that_was_stopped_in_a_stage_of_its_own_goes_on() {
    let workspace = Workspace::new();
    let stages = ["--stage", "prepare", "--stage", "features"];
    let sweep = ["--sweep", "data.max_length=64,128"];
    let stored = ["--set", "features.mode=stored"];
    let words = [&sweep[..], &stored, &stages].concat();
    run_with(&workspace, &words).succeeded();
    let run = "runs/run-max_length-128";
    let captured = workspace.bytes(&format!("{run}/features/features-00000.arrow"));
    // As one leaves it that was killed there.
    let path = format!("{run}/prepare/manifest.json");
    let mut manifest = workspace.json(&path);
    manifest["status"] = "started".into();
    manifest.as_object_mut().unwrap().remove("sha256");
    workspace.write(&path, manifest.to_string());
    std::fs::remove_file(workspace.path(format!("{run}/{TOKENS}"))).unwrap();
    std::fs::remove_dir_all(workspace.path(format!("{run}/features"))).unwrap();
    run_with(&workspace, &words).succeeded();
    assert!(workspace.bytes(&format!("{run}/features/features-00000.arrow")) == captured);
}

#[test]
fn a_stage_that_is_another_in_a_combination_is_made_there() {
    let workspace = Workspace::new();
    run_with(
        &workspace,
        &["--sweep", "data.max_length=64,128", "--stage", "prepare"],
    )
    .succeeded();
    let length =
        |run: &str| workspace.bytes(&format!("runs/run-max_length-{run}/prepare/manifest.json"));
    assert_ne!(length("64"), length("128"));
}

#[test]
fn what_is_wrong_with_a_combination_is_told_before_any_is_trained() {
    let workspace = Workspace::new();
    for (sweep, words) in [
        ("train.learning_rate=1e-2,-1", "learning_rate=-1"),
        ("train.learning_rates=1,2", "learning_rates"),
        (
            "train.learning_rate=1e-2,1e-2",
            "two combinations would share the run",
        ),
        ("train.learning_rate=", "no value empty"),
    ] {
        let refused = run_with(&workspace, &["--sweep", sweep]);
        assert_eq!(refused.code, Some(2), "{refused:#?}");
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    for swept in ["seed=0,1", "synthetic.steps=10,20"] {
        let words = ["recipe", "quickstart", "--sweep", swept];
        let refused = workspace.run(&words);
        assert_eq!(refused.code, Some(2), "{refused:#?}");
        assert!(refused.stderr.contains("one target"), "{}", refused.stderr);
    }
    // What fits no target is known before the first is trained, too.
    let refused = run_with(&workspace, &["--sweep", "drafter.captured_layers=[0],[77]"]);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert!(
        refused.stderr.contains("captured_layers=[77]"),
        "{refused:#?}"
    );
    assert!(!workspace.path("runs").exists());
}

#[test]
fn the_other_runs_of_a_sweep_are_trained_and_judged_where_one_fails() {
    let workspace = Workspace::new();
    // A loss above itself by nothing is an explosion.
    let sweep = [
        "--sweep",
        "train.explosion=1.0000001,1e9",
        "--set",
        "train.learning_rate=0.9",
    ];
    let found = run_with(&workspace, &sweep);
    assert_eq!(found.code, Some(1), "{found:#?}");
    assert!(
        found
            .stderr
            .contains("1 of 2 runs failed: explosion=1.0000001"),
        "{found:#?}"
    );
    let words = found
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let told = "`explosion=1.0000001` has no report; differences are from `explosion=1e9`.";
    assert!(words.contains(told), "{found:#?}");
    // What the failed one has made the other has taken.
    assert!(
        found
            .stderr
            .contains("prepare: the same as in `runs/run-explosion-1.0000001`"),
        "{found:#?}"
    );
    assert!(
        workspace
            .path("runs/run-explosion-1e9/evaluate/report.json")
            .exists()
    );
}

#[test]
fn each_change_is_trained_beside_the_recipe_as_it_is() {
    let workspace = Workspace::new();
    let words = [
        "--vary",
        "train.ema_decay=0.5; train.schedule=constant",
        "--vary",
        "train.learning_rate=1e-5",
    ];
    let found = run_with(&workspace, &words).succeeded();
    let runs = [
        "run",
        "run-ema_decay-0.5-schedule-constant",
        "run-learning_rate-1e-5",
    ];
    for run in runs {
        let report = workspace.path(format!("runs/{run}/evaluate/report.json"));
        assert!(report.exists(), "{run}");
    }
    let mut lines = found.stdout.lines();
    let base = lines.find(|line| line.starts_with("the recipe as it is"));
    assert!(base.unwrap().contains("the first"), "{}", found.stdout);
    for part in [
        "ema_decay=0.5, schedule=constant\n",
        "learning_rate=1e-5 ",
        " s, ×",
    ] {
        assert!(found.stdout.contains(part), "no `{part}`: {}", found.stdout);
    }
    // The run of the recipe as it is is that of the recipe alone.
    let alone = run_with(&workspace, &[]).succeeded();
    assert!(
        alone.stderr.contains("train: done before"),
        "{}",
        alone.stderr
    );

    // What is done takes no time any more, and what starts over is said.
    let planned = run_with(&workspace, &[&words[..], &["--plan", "--json"]].concat()).succeeded();
    let json: serde_json::Value = serde_json::from_str(&planned.stdout).unwrap();
    assert_eq!(json["together"]["seconds"], 0.0, "{json}");
    assert_eq!(json["together"]["training_seconds"], 0.0, "{json}");
    assert_eq!(json["warnings"], serde_json::json!([]));
    let other = [&words[..], &["--set", "train.beta1=0.5", "--plan"]].concat();
    let planned = run_with(&workspace, &other).succeeded();
    let told = "run-learning_rate-1e-5: train starts over: `train.beta1`: 0.9 → 0.5";
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&planned.stdout).contains(told), "{}", planned.stdout);
}

#[test]
fn a_sweep_is_planned_with_a_line_for_each_run_and_their_sum() {
    let workspace = Workspace::new();
    let sweep = ["--sweep", "train.steps=10,30", "--plan"];
    let planned = run_with(&workspace, &sweep).succeeded();
    for words in ["run-steps-10 ", "run-steps-30 ", "one after the other"] {
        assert!(planned.stdout.contains(words), "{}", planned.stdout);
    }
    let planned = run_with(&workspace, &[&sweep[..], &["--json"]].concat()).succeeded();
    let json: serde_json::Value = serde_json::from_str(&planned.stdout).unwrap();
    let number = |of: &serde_json::Value, key: &str| of[key].as_f64().unwrap();
    let runs = [0, 1].map(|run| &json["runs"][run]["estimates"]);
    let together = &json["together"];
    for key in ["disk_bytes", "training_seconds", "seconds"] {
        let sum = number(runs[0], key) + number(runs[1], key);
        assert!((number(together, key) / sum - 1.0).abs() < 1e-9, "{json}");
    }
    let times = number(runs[1], "training_seconds") / number(runs[0], "training_seconds");
    assert!((times - 3.0).abs() < 0.1, "{json}");
    // Validations, export and evaluation take their time too.
    for run in runs {
        let [all, training] = ["seconds", "training_seconds"].map(|key| number(run, key));
        assert!(all > training, "{json}");
    }
    // What one of them is refused for ends it, behind all of them.
    let sweep = ["--sweep", "drafter.captured_layers=[0],[77]", "--plan"];
    let refused = run_with(&workspace, &sweep);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert!(refused.stdout.ends_with(REFUSED), "{refused:#?}");
    let told = "error: the run would be refused: run-captured_layers-_77_: ";
    assert!(refused.stderr.contains(told), "{refused:#?}");
    assert!(!workspace.path("runs").exists());
}

#[test]
fn features_that_runs_share_are_planned_once() {
    let workspace = Workspace::new();
    let disk = |sweep: &str, mode: &str| {
        let set = format!("features.mode={mode}");
        let words = ["--sweep", sweep, "--set", &set, "--plan", "--json"];
        let planned = run_with(&workspace, &words).succeeded();
        let json: serde_json::Value = serde_json::from_str(&planned.stdout).unwrap();
        [0, 1].map(|run| {
            json["runs"][run]["estimates"]["disk_bytes"]
                .as_u64()
                .unwrap()
        })
    };
    let rates = "train.learning_rate=1e-2,1e-5";
    let [alone, _] = disk(rates, "live");
    let [first, second] = disk(rates, "stored");
    assert!(first > alone, "{first} {alone}");
    assert_eq!(second, alone, "the second links those of the first");
    // Other texts have features of their own.
    let [first, second] = disk("data.max_length=64,32", "stored");
    assert!(first > alone && second > alone, "{first} {second} {alone}");
    // The run of the recipe as it is, which is none of them, lends what it has made.
    let stages = ["--stage", "prepare", "--stage", "features"];
    let stored = ["--set", "features.mode=stored"];
    run_with(&workspace, &[&stored[..], &stages].concat()).succeeded();
    assert_eq!(disk(rates, "stored"), [alone; 2]);
}

#[test]
fn a_change_of_many_keys_has_a_run_whose_name_is_cut() {
    let workspace = Workspace::new();
    let change = "train.optimizer=muon; train.learning_rate=1e-3; train.weight_decay=0.01; train.ema_decay=0.99; \
                  objective.divergence={ sum = { kl = 0.9, tv = 0.1 } }; drafter.captured_layers=[0, 1, 2]";
    let planned = run_with(&workspace, &["--vary", change, "--plan", "--json"]).succeeded();
    let json: serde_json::Value = serde_json::from_str(&planned.stdout).unwrap();
    let name = json["runs"][1]["run"].as_str().unwrap();
    let head = "run-optimizer-muon-learning_rate-1e-3-weight_decay-0.01-ema_decay-0.99-";
    assert!(name.starts_with(head) && name.len() == 128, "{name}");
}

#[test]
fn runs_are_planned_with_the_data_that_will_be_prepared_for_them() {
    let workspace = Workspace::finished();
    workspace.write_conversations("big.jsonl", 0, 10 * CONVERSATIONS);
    let disk = |name: &str| {
        let name = format!("name={name}");
        let sets = [
            name.as_str(),
            "data.train=big.jsonl",
            "features.mode=stored",
        ];
        let sets = sets.iter().flat_map(|set| ["--set", *set]);
        let words = ["--vary", "train.learning_rate=1e-5", "--plan", "--json"];
        let words: Vec<&str> = words.into_iter().chain(sets).collect();
        let planned = run_with(&workspace, &words).succeeded();
        let json: serde_json::Value = serde_json::from_str(&planned.stdout).unwrap();
        let runs = json["runs"].as_array().unwrap();
        let each = runs.iter().map(|run| &run["estimates"]["disk_bytes"]);
        each.map(|bytes| bytes.as_u64().unwrap()).sum::<u64>()
    };
    // That of the recipe as it is was prepared before, from other data.
    assert_eq!(disk("run"), disk("other"));
}

#[test]
fn what_is_swept_need_not_stand_in_the_recipe() {
    let workspace = Workspace::new();
    let recipe = workspace.text("recipe.toml");
    workspace.write(
        "recipe.toml",
        recipe.replace("train = \"train.jsonl\"\n", ""),
    );
    let data = workspace.bytes("train.jsonl");
    workspace.write("other.jsonl", data);
    let sweep = ["--sweep", "data.train=train.jsonl,other.jsonl", "--plan"];
    let planned = run_with(&workspace, &sweep).succeeded();
    for run in ["run-train-train.jsonl ", "run-train-other.jsonl "] {
        assert!(planned.stdout.contains(run), "{planned:#?}");
    }
    let refused = run_with(&workspace, &["--plan"]);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
}

#[test]
fn runs_that_would_be_judged_on_other_prompts_are_refused_before_any_is_trained() {
    let workspace = Workspace::new();
    let sweep = ["--vary", "evaluate.max_new_tokens=4; train.steps=5"];
    let refused = run_with(&workspace, &sweep);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert!(
        refused
            .stderr
            .contains("found `evaluate.max_new_tokens` = ")
            && refused.stderr.contains("and 4 in"),
        "{refused:#?}"
    );
    assert!(!workspace.path("runs").exists());
    // Where nothing is judged, nothing has to be alike.
    run_with(&workspace, &[&sweep[..], &["--stage", "prepare"]].concat()).succeeded();
}
