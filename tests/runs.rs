//! What a run's folder is worth after changes, damage, other processes, full disks and Ctrl-C.
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use spectrain_checkpoints::{NamedTensor, state, write_folder};

use crate::program::SYNTHETIC;
use crate::workspace::{ENDLESS, Outcome, RECIPE, Workspace, signal, wait_for};

const RUN: [&str; 2] = ["recipe", "recipe.toml"];

/// What a recipe comes to.
const RESULTS: [&str; 4] = [
    "prepare/counts.json",
    "train/drafter/model.safetensors",
    "export/drafter/model.safetensors",
    "export/drafter/config.json",
];

fn with<'a>(overrides: &[&'a str]) -> Vec<&'a str> {
    let words = overrides.iter().flat_map(|given| ["--set", *given]);
    RUN.into_iter().chain(words).collect()
}

fn says(outcome: &Outcome, parts: &[&str]) {
    for part in parts {
        assert!(outcome.stderr.contains(part), "no `{part}`: {outcome:#?}");
    }
}

fn results(workspace: &Workspace) -> [Vec<u8>; 4] {
    RESULTS.map(|file| workspace.bytes(&format!("runs/run/{file}")))
}

/// The weights of a step of training.
fn weights(workspace: &Workspace, runs: &str, step: u64) -> Vec<NamedTensor> {
    let folder = workspace.path(format!("{runs}/run/train"));
    let saved = state::list(&folder).unwrap();
    let saved = saved.iter().find(|saved| saved.step == step).unwrap();
    state::load(&saved.path).unwrap().tensors["weights"].clone()
}

#[test]
fn a_finished_training_goes_on_to_more_steps() {
    let workspace = Workspace::new();
    let constant = "train.schedule=constant";
    workspace.run(&with(&[constant])).succeeded();
    let unchanged = [
        "train.log_every=1",
        "train.save_every=5",
        "train.keep=5",
        "train.explosion=20.0",
        "train.gradient_checkpointing=true",
        constant,
    ];
    let outcome = workspace.run(&with(&unchanged)).succeeded();
    says(&outcome, &["train: done before", "evaluate: done before"]);
    let described = workspace.text("runs/run/recipe.toml");
    assert!(described.contains("log_every = 1\n"), "{described}");

    let longer = [constant, "train.steps=9", "train.log_every=1"];
    let plan = workspace.run(&[&with(&longer)[..], &["--plan"]].concat());
    let goes_on = "goes on from step 6: `train.steps`: 6 → 9";
    let plan = plan.succeeded();
    assert!(plan.stdout.contains(goes_on), "{plan:#?}");
    let outcome = workspace.run(&with(&longer)).succeeded();
    says(
        &outcome,
        &[
            "prepare: done before",
            &format!("train: {goes_on}"),
            "resumed at step 6",
            "step 7/9",
            "export: starts over: `train/drafter` has changed",
        ],
    );
    assert!(!outcome.stderr.contains("step 6/9"), "{outcome:#?}");
    assert!(!workspace.path("runs/run/train.old-1").exists());
    let manifest = workspace.manifest("train");
    let history = manifest["history"].as_array().unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!(history[0]["steps"], 6);
    assert_eq!(history[0]["settings"]["train"]["steps"], 6);
    assert_eq!(manifest["settings"]["train"]["steps"], 9);
    assert_eq!(manifest["summary"]["fit"]["steps"], 9);
    let config = workspace.json("runs/run/train/drafter/config.json");
    assert_eq!(
        config["spectrain"]["provenance"]["history"],
        manifest["history"]
    );

    let config = workspace.json("runs/run/export/drafter/config.json");
    assert_eq!(
        config["spectrain"]["provenance"]["training"]["history"],
        manifest["history"]
    );

    let whole = [&with(&longer)[..], &["--runs", "whole"]].concat();
    workspace.run(&whole).succeeded();
    assert_eq!(
        weights(&workspace, "runs", 9),
        weights(&workspace, "whole", 9)
    );
    let whole = workspace.json("whole/run/train/drafter/config.json");
    assert_eq!(whole["spectrain"]["provenance"]["history"], Value::Null);
}

#[test]
fn weights_that_change_over_the_steps_are_named_where_a_training_goes_on_to_more() {
    let workspace = Workspace::new();
    let recipe = workspace.text("recipe.toml").replace("eagle3", "eagle1");
    let recipe = recipe.replace("draft_vocab = 256\n", "").replace(
        "draft_steps = 2\n",
        "passes = 2\nclass_weight = { start = 1.0, end = 0.1 }\n",
    );
    workspace.write("recipe.toml", recipe);
    workspace.run(&RUN).succeeded();
    let longer = with(&["train.steps=9"]);
    let told = "goes on from step 6: `train.steps`: 6 → 9; weights that change over the steps (`objective.class_weight`) go by \
                shares of the new steps";
    let plan = workspace.run(&[&longer[..], &["--plan"]].concat());
    let plan = plan.succeeded().stdout;
    let words = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(told), "{plan}");
    let outcome = workspace.run(&longer).succeeded();
    says(&outcome, &[&format!("train: {told}")]);
}

#[test]
fn more_steps_keep_a_warm_up_that_nobody_set() {
    let workspace = Workspace::new();
    let recipe = workspace.text("recipe.toml");
    workspace.write("recipe.toml", recipe.replace("warmup_steps = 2\n", ""));
    workspace.run(&RUN).succeeded();
    // A tenth of these steps is another warm-up.
    let longer = with(&["train.steps=12"]);
    let goes_on = "train: goes on from step 6: `train.steps`: 6 → 12\n";
    says(&workspace.run(&longer).succeeded(), &[goes_on]);
    let settings = workspace.manifest("train")["settings"]["train"].clone();
    assert_eq!(settings["steps"], 12);
    assert_eq!(settings["warmup_steps"], 0);
    says(&workspace.run(&longer).succeeded(), &["train: done before"]);
    let asked = with(&["train.steps=15", "train.warmup_steps=1"]);
    let plan = workspace
        .run(&[&asked[..], &["--plan"]].concat())
        .succeeded();
    // Long lines are wrapped.
    let told = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("`train.warmup_steps`: 0 → 1"), "{plan:#?}");
}

/// What is said where a training starts over that could go on.
const GOES_ON: &str = "; to train on from the drafter trained before, give the run another `name` and set `start = \"runs/run\"`";

#[test]
fn that_a_training_could_go_on_is_said_where_only_how_it_trains_has_changed() {
    let workspace = Workspace::finished();
    let plan = |change: &str| {
        let plan = workspace.run(&[&with(&[change])[..], &["--plan"]].concat());
        // Long lines are wrapped.
        let told = plan.succeeded().stdout;
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains("train starts over: "), "{told}");
        told.contains(GOES_ON)
    };
    assert!(plan("train.learning_rate=1e-4") && plan("objective.draft_steps=3"));
    assert!(!plan("seed=3") && !plan("drafter.window=7"));
    std::fs::remove_dir_all(workspace.path("runs/run/export")).unwrap();
    assert!(!plan("train.learning_rate=1e-4"), "there is none");
}

#[test]
fn what_changes_the_weights_starts_a_training_over_and_keeps_the_old_one_until_it_is_cleaned() {
    let workspace = Workspace::finished();
    let trained = workspace.bytes("runs/run/train/drafter/model.safetensors");
    let changes: [&[&str]; 3] = [
        &["train.max_grad_norm=2.0"],
        &["train.steps=8", "train.learning_rate=1e-4"],
        &[
            "train.steps=8",
            "train.learning_rate=1e-4",
            "train.decode_prompts=1",
        ],
    ];
    let said = [
        "train: starts over: `train.max_grad_norm`: ",
        "train: starts over: `train.learning_rate`: 0.001 → 0.0001, `train.max_grad_norm`: ",
        "train: starts over: `train.decode_prompts`: 2 → 1",
    ];
    for ((changes, said), number) in changes.into_iter().zip(said).zip(1..) {
        let outcome = workspace.run(&with(changes)).succeeded();
        let kept = format!("kept as `runs/run/train.old-{number}`");
        says(&outcome, &[said, &kept, GOES_ON]);
    }
    let old = "runs/run/train.old-1/drafter/model.safetensors";
    assert_eq!(workspace.bytes(old), trained);
    workspace
        .run(&[&RUN[..], &["--fresh"]].concat())
        .succeeded();
    workspace
        .run(&with(&["train.learning_rate=1e-4"]))
        .succeeded();
    workspace.run(&with(&["name=run.old-7"])).succeeded();
    let runs = || names_in(&workspace.path("runs"));
    assert_eq!(runs(), ["run", "run.old-1", "run.old-7"]);
    let kept = results(&workspace);
    fs::create_dir(workspace.path("runs/run/my.old-3")).unwrap();
    workspace.write("runs/run/notes.old-1", "somebody else's");
    let outcome = workspace.run(&["clean", "run"]).succeeded();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let removed = [
        "runs/run.old-1",
        "runs/run/evaluate.old-1",
        "runs/run/train.old-1",
    ];
    assert_eq!(lines.len(), removed.len(), "{outcome:#?}");
    for (line, path) in lines.iter().zip(removed) {
        assert!(line.starts_with(&format!("removed `{path}`: ")), "{line}");
    }
    assert_eq!(runs(), ["run", "run.old-7"]);
    assert!(!workspace.path("runs/run/train.old-1").exists());
    assert!(workspace.path("runs/run/my.old-3").exists());
    assert!(workspace.path("runs/run/notes.old-1").exists());
    assert!(results(&workspace) == kept);
    assert_eq!(workspace.run(&["clean", "run"]).succeeded().stdout, "");
    workspace
        .run(&["clean", "other"])
        .failed(&["`runs/other` is no run"]);
    workspace
        .run(&["clean", "../run"])
        .misused(&["expected a folder name"]);
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// What a plan with these settings says of the stages, its lines joined.
fn planned(workspace: &Workspace, overrides: &[&str]) -> String {
    let plan = workspace.run(&[&with(overrides)[..], &["--plan"]].concat());
    let told = plan.succeeded().stdout;
    told.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_training_that_was_set_aside_is_taken_back_where_its_settings_are_back() {
    let workspace = Workspace::finished();
    let weights = |folder: &str| workspace.bytes(&format!("runs/run/{folder}/model.safetensors"));
    let (trained, exported) = (weights("train/drafter"), weights("export/drafter"));
    let other = ["train.learning_rate=1e-4"];
    let undone = "kept as `runs/run/train.old-1`, and taken back once this is undone";
    says(&workspace.run(&with(&other)).succeeded(), &[undone]);
    let of_other = weights("train/drafter");
    assert!(of_other != trained);

    let told = planned(&workspace, &[]);
    for part in [
        "train takes back `runs/run/train.old-1`, which is done",
        "export runs again if the output of `train` changes",
    ] {
        assert!(told.contains(part), "no `{part}`: {told}");
    }
    let (_, times) = told.split_once(" time: ").unwrap();
    assert!(times.starts_with("export "), "{times}");

    let back = workspace.run(&RUN).succeeded();
    let said = "train: takes back `runs/run/train.old-1`, which goes with these settings and inputs; what stood in its place is \
                kept as `runs/run/train.old-2`\ntrain: done before\n";
    says(&back, &[said, "export: starts over: "]);
    assert!(!back.stderr.contains("train: 6 steps"), "{back:#?}");
    assert!(weights("train/drafter") == trained && weights("export/drafter") == exported);
    assert!(weights("train.old-2/drafter") == of_other);
    assert!(!workspace.path("runs/run/train.old-1").exists());

    // What was changed meanwhile is not what was trained.
    flip(&workspace, "runs/run/train.old-2/drafter/model.safetensors");
    let again = workspace.run(&with(&other)).succeeded();
    says(&again, &["train: starts over: `train.learning_rate`: "]);
    assert!(!again.stderr.contains("train: takes back"), "{again:#?}");
    assert!(weights("train/drafter") == of_other);
}

#[test]
fn an_evaluation_is_kept_where_another_takes_its_place_and_taken_back_with_its_figures() {
    let workspace = Workspace::finished();
    let report = |folder: &str| workspace.bytes(&format!("runs/run/{folder}/report.json"));
    let exported = || workspace.json("runs/run/export/drafter/config.json");
    let (first, with_first) = (report("evaluate"), exported());
    let other = workspace.run(&with(&["evaluate.prompts=1"])).succeeded();
    let kept = "evaluate: starts over: `evaluate.prompts`: 2 → 1; the old one is kept as `runs/run/evaluate.old-1`, and taken back \
                once this is undone";
    says(&other, &[kept]);
    assert!(report("evaluate.old-1") == first);
    let second = report("evaluate");
    assert!(second != first);
    assert_ne!(
        exported(),
        with_first,
        "the figures of the second are in it"
    );

    let told = planned(&workspace, &[]);
    let planned = "evaluate takes back `runs/run/evaluate.old-1`, which is done";
    assert!(told.contains(planned), "no `{planned}`: {told}");
    let back = workspace.run(&RUN).succeeded();
    let taken = "evaluate: takes back `runs/run/evaluate.old-1`, which goes with these settings and inputs; what stood in its place is \
                 kept as `runs/run/evaluate.old-2`\nevaluate: done before\n";
    says(&back, &[taken]);
    assert!(report("evaluate") == first && report("evaluate.old-2") == second);
    assert_eq!(exported(), with_first);
    let again = workspace.run(&RUN).succeeded();
    assert_eq!(again.stderr.matches("done before").count(), 4, "{again:#?}");
}

#[test]
fn a_training_that_was_set_aside_is_taken_back_into_a_free_place() {
    let workspace = Workspace::finished();
    let trained = workspace.bytes("runs/run/train/drafter/model.safetensors");
    workspace
        .run(&with(&["train.learning_rate=1e-4"]))
        .succeeded();
    fs::rename(workspace.path("runs/run/train"), workspace.path("away")).unwrap();
    let told = planned(&workspace, &[]);
    let takes_back = "train takes back `runs/run/train.old-1`, which is done";
    assert!(told.contains(takes_back), "{told}");
    let fresh = workspace.run(&[&RUN[..], &["--plan", "--fresh"]].concat());
    let fresh = fresh.succeeded();
    assert!(!fresh.stdout.contains("takes back"), "{fresh:#?}");
    let back = workspace.run(&RUN).succeeded();
    says(&back, &["train: takes back `runs/run/train.old-1`, "]);
    assert!(workspace.bytes("runs/run/train/drafter/model.safetensors") == trained);
}

#[test]
fn what_cannot_be_read_of_what_was_set_aside_stops_no_run() {
    let workspace = Workspace::finished();
    let other = ["train.learning_rate=1e-4"];
    workspace.run(&with(&other)).succeeded();
    let weights = workspace.path("runs/run/train.old-1/drafter/model.safetensors");
    fs::remove_file(&weights).unwrap();
    // Whoever opens it goes round in a circle.
    symlink("model.safetensors", &weights).unwrap();
    let left = "train: `runs/run/train.old-1` is left where it is: cannot read `";
    let run = workspace.run(&RUN).succeeded();
    says(&run, &[left, "train: starts over: "]);
}

#[test]
fn a_lengthened_training_is_taken_back_with_the_warm_up_that_nobody_set() {
    let workspace = Workspace::new();
    let recipe = RECIPE.replace("warmup_steps = 2\n", "");
    workspace.write("recipe.toml", recipe);
    let train = |overrides: &[&str]| {
        let stages = ["--stage", "prepare", "--stage", "train"];
        let words = [&with(overrides)[..], &stages].concat();
        workspace.run(&words).succeeded()
    };
    let warmup = || workspace.manifest("train")["settings"]["train"]["warmup_steps"].clone();
    train(&["train.steps=4"]);
    let longer = "train.steps=14";
    says(&train(&[longer]), &["train: goes on from step 4: "]);
    let kept = warmup();
    let other = train(&[longer, "train.learning_rate=1e-4"]);
    says(&other, &["and taken back once this is undone"]);
    assert_ne!(warmup(), kept);
    let back = train(&[longer]);
    says(&back, &["train: takes back `runs/run/train.old-1`, "]);
    assert_eq!(warmup(), kept);
}

#[test]
fn a_training_that_was_set_aside_before_its_end_goes_on_where_its_settings_are_back() {
    let workspace = Workspace::finished();
    let trained = workspace.bytes("runs/run/train/drafter/model.safetensors");
    workspace.unfinish("train");
    let other = ["train.learning_rate=1e-4"];
    workspace.run(&with(&other)).succeeded();
    let takes_back = "takes back `runs/run/train.old-1`, goes on where it was interrupted";
    let told = planned(&workspace, &[]);
    assert!(told.contains(takes_back), "{told}");
    let back = workspace.run(&RUN).succeeded();
    let said = [
        "train: takes back `runs/run/train.old-1`, ",
        "train: goes on where it was interrupted\n",
        "resumed at step 6",
    ];
    says(&back, &said);
    let again = workspace.bytes("runs/run/train/drafter/model.safetensors");
    assert!(again == trained);
    // What is half done here is not given up for what is half done there.
    workspace.unfinish("train");
    for (name, bytes) in workspace.files("runs/run/train") {
        let path = workspace.path("runs/run/train.old-9").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let stays = workspace.run(&RUN).succeeded();
    says(&stays, &["train: goes on where it was interrupted\n"]);
    assert!(!stays.stderr.contains("takes back"), "{stays:#?}");
}

#[test]
fn a_training_that_was_killed_before_its_first_saved_state_is_said_to_begin_anew() {
    let workspace = Workspace::finished();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    workspace.unfinish("train");
    let told = "begins anew: no state was saved yet (`train.save_every = 1`)";
    let saved = planned(&workspace, &[]);
    assert!(
        saved.contains(" train goes on where it was interrupted ") && !saved.contains(told),
        "{saved}"
    );
    let train = workspace.path("runs/run/train");
    for saved in state::list(&train).unwrap() {
        fs::remove_dir_all(saved.path).unwrap();
    }
    fs::remove_dir_all(train.join("drafter")).unwrap();
    let plan = planned(&workspace, &[]);
    assert!(plan.contains(&format!(" train {told} ")), "{plan}");
    let watched = workspace.run(&["watch", "run"]).succeeded().stdout;
    let resumed = format!("the command that started it resumes it; `train` {told}");
    assert!(words(&watched).contains(&resumed), "{watched}");
    let run = workspace.run(&RUN).succeeded();
    says(&run, &[&format!("train: {told}\n")]);
    assert!(!run.stderr.contains("goes on where"), "{run:#?}");
}

#[test]
fn a_training_that_cannot_end_where_it_is_asked_to_is_refused_and_stays() {
    let workspace = Workspace::finished();
    let before = results(&workspace);
    let described = workspace.text("runs/run/recipe.toml");
    assert!(described.contains("steps = 6\n"), "{described}");
    let shorter = with(&["train.steps=5"]);
    let refused = [
        "stage `train`: has done 6 steps, from which it cannot go on as is asked: `train.steps`: 6 → 5; ",
        "move `runs/run/train` away to train anew",
    ];
    workspace.run(&shorter).failed(&refused);
    assert_eq!(workspace.text("runs/run/recipe.toml"), described);
    let plan = workspace.run(&[&shorter[..], &["--plan"]].concat());
    let said = "the run would be refused: stage `train`: it has done 6 steps, from which it cannot go on as is asked: ";
    let told = plan.failed(&[said]).stdout;
    // Columns are aligned.
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let listed = "train cannot run, as the error says";
    assert!(told.contains(listed), "{told}");
    // In place of epochs in the recipe, the same steps are the same training.
    let recipe = workspace.text("recipe.toml");
    workspace.write("recipe.toml", recipe.replace("steps = 6\n", "epochs = 9\n"));
    let again = workspace.run(&with(&["train.steps=6"])).succeeded();
    assert_eq!(again.stderr.matches("done before").count(), 4, "{again:#?}");
    assert!(results(&workspace) == before);
    fs::rename(workspace.path("runs/run/train"), workspace.path("away")).unwrap();
    workspace.run(&shorter).succeeded();
    assert_eq!(workspace.manifest("train")["summary"]["fit"]["steps"], 5);
    let described = workspace.text("runs/run/recipe.toml");
    assert!(described.contains("steps = 5\n"), "{described}");
}

#[test]
fn a_run_that_was_renamed_is_cleaned_of_what_it_sets_aside() {
    let workspace = Workspace::new();
    let prepare = ["--stage", "prepare"];
    workspace.run(&[&RUN[..], &prepare].concat()).succeeded();
    fs::rename(workspace.path("runs/run"), workspace.path("runs/other")).unwrap();
    let fresh = [&with(&["name=other"])[..], &prepare, &["--fresh"]].concat();
    workspace.run(&fresh).succeeded();
    let told = workspace.run(&["clean", "other"]).succeeded();
    let line = "removed `runs/other.old-1`: ";
    assert!(told.stdout.starts_with(line), "{told:#?}");
}

/// Changes one byte of a file, and gives it the time back that it had.
fn flip(workspace: &Workspace, path: &str) {
    let mut bytes = workspace.bytes(path);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let modified = fs::metadata(workspace.path(path)).unwrap().modified();
    workspace.write(path, bytes);
    let file = File::options().write(true).open(workspace.path(path));
    file.unwrap().set_modified(modified.unwrap()).unwrap();
}

#[test]
fn a_byte_that_changed_in_what_a_stage_left_is_told_and_only_that_is_made_again() {
    let workspace = Workspace::finished();
    let before = results(&workspace);
    let cases = [
        ("prepare", "counts.json", "prepare.old-1"),
        ("prepare", "prompts.json", "prepare.old-2"),
        ("prepare", "train/tokens-00000.parquet", "prepare.old-3"),
        ("train", "drafter/model.safetensors", "train/drafter.old-1"),
        ("train", "drafter/config.json", "train/drafter.old-2"),
        ("export", "drafter/model.safetensors", "export.old-1"),
        ("export", "drafter/config.json", "export.old-2"),
        ("evaluate", "report.json", "evaluate.old-1"),
        ("evaluate", "report.md", "evaluate.old-2"),
    ];
    for (stage, file, aside) in cases {
        flip(&workspace, &format!("runs/run/{stage}/{file}"));
        let outcome = workspace
            .run(&[&RUN[..], &["--quiet"]].concat())
            .succeeded();
        let said = format!(
            "warning: {stage}: runs again: `{file}` was changed after it was written; what was there is kept as `runs/run/{aside}`"
        );
        // Preparing warns anew of the target.
        let told = outcome.stderr.lines();
        let told: Vec<&str> = told
            .filter(|line| !line.contains("no stop token"))
            .collect();
        assert_eq!(told, [said], "{outcome:#?}");
        assert!(workspace.path(format!("runs/run/{aside}")).exists());
        assert!(results(&workspace) == before, "{file}");
        let again = workspace.run(&RUN).succeeded();
        assert_eq!(again.stderr.matches("done before").count(), 4, "{again:#?}");
        assert!(!workspace.path("runs/run/train.old-1").exists());
    }
}

#[test]
fn a_file_that_is_missing_from_what_a_stage_left_is_made_again() {
    let workspace = Workspace::finished();
    let before = results(&workspace);
    for (stage, file) in [
        ("prepare", "counts.json"),
        ("train", "drafter/model.safetensors"),
        ("export", "drafter/config.json"),
        ("evaluate", "report.json"),
    ] {
        fs::remove_file(workspace.path(format!("runs/run/{stage}/{file}"))).unwrap();
        if stage == "prepare" {
            let only = [&RUN[..], &["--stage", "train"]].concat();
            let expected = [
                "stage `prepare` has to come first",
                "`counts.json` is missing",
            ];
            workspace.run(&only).failed(&expected);
        }
        let outcome = workspace.run(&RUN).succeeded();
        says(
            &outcome,
            &[&format!("{stage}: runs again: `{file}` is missing\n")],
        );
        assert!(results(&workspace) == before, "{file}");
    }
    assert_eq!(workspace.run(&["clean", "run"]).succeeded().stdout, "");
}

#[test]
fn a_drafter_that_has_lost_its_configuration_makes_room_for_a_whole_one() {
    let workspace = Workspace::finished();
    let before = results(&workspace);
    fs::remove_file(workspace.path("runs/run/train/drafter/config.json")).unwrap();
    let outcome = workspace.run(&RUN).succeeded();
    let said = [
        "train: runs again: `drafter/config.json` is missing",
        "kept as `runs/run/train/drafter.old-1`",
    ];
    says(&outcome, &said);
    assert!(results(&workspace) == before);
    workspace.run(&["clean", "run"]).succeeded();
    assert!(!workspace.path("runs/run/train/drafter.old-1").exists());
}

#[test]
fn a_damaged_synthetic_target_is_written_again_from_its_saved_state() {
    let workspace = Workspace::of(SYNTHETIC);
    let words = with(&["evaluate.temperatures=[0.0]", "evaluate.drafts=[]"]);
    workspace.run(&words).succeeded();
    let before = results(&workspace);
    let target = workspace.bytes("runs/run/synthetic/target/model.safetensors");
    for (file, aside) in [
        ("target/model.safetensors", "target.old-1"),
        ("target/tokenizer.json", "target.old-2"),
        ("train.jsonl", "train.jsonl.old-1"),
    ] {
        flip(&workspace, &format!("runs/run/synthetic/{file}"));
        let outcome = workspace.run(&words).succeeded();
        let said = format!("synthetic: runs again: `{file}` was changed after it was written");
        says(
            &outcome,
            &[&said, aside, "resumed at step 20", "train: done before"],
        );
        let again = workspace.bytes("runs/run/synthetic/target/model.safetensors");
        assert!(again == target && results(&workspace) == before);
    }
    fs::remove_file(workspace.path("runs/run/synthetic/target/config.json")).unwrap();
    let outcome = workspace.run(&words).succeeded();
    says(&outcome, &["kept as `runs/run/synthetic/target.old-3`"]);
    let again = workspace.bytes("runs/run/synthetic/target/model.safetensors");
    assert!(again == target && results(&workspace) == before);
}

#[test]
fn a_start_that_was_killed_does_not_block_the_name() {
    let workspace = Workspace::new();
    for fresh in [&[][..], &["--fresh"]] {
        fs::create_dir_all(workspace.path("runs/run")).unwrap();
        workspace.write("runs/run/.lock", "");
        workspace.write("runs/run/run.json.spectrain-partial", "{\"recipe\": ");
        let words = [&RUN[..], &["--stage", "prepare"], fresh].concat();
        workspace.run(&words).succeeded();
        assert!(
            !workspace
                .path("runs/run/run.json.spectrain-partial")
                .exists()
        );
        assert!(!workspace.path("runs/run.old-1").exists());
        fs::remove_dir_all(workspace.path("runs")).unwrap();
    }
}

#[test]
fn what_training_starts_from_is_validated_and_kept_where_it_gets_no_better() {
    let workspace = Workspace::finished();
    let words = [
        "recipe",
        "recipe.toml",
        "--set",
        "name=worse",
        // The folder of a run is that of its drafter.
        "--set",
        "start=runs/run",
        "--set",
        "train.learning_rate=0.2",
        "--set",
        "train.explosion=1e9",
        "--stage",
        "prepare",
        "--stage",
        "train",
        "--stage",
        "export",
    ];
    let told = workspace.run(&words).succeeded();
    for words in [
        "step 0 validation",
        "those of `start`, of step 0, taken",
        "none of the trained weights are better",
    ] {
        assert!(told.stderr.contains(words), "no `{words}`: {told:#?}");
    }
    let weights = ["run", "worse"].map(|run| {
        let path = format!("runs/{run}/export/drafter/model.safetensors");
        workspace.bytes(&path)
    });
    assert!(weights[0] == weights[1]);
    let own = format!("start={}", workspace.path("runs/run").display());
    let again = words.map(|word| match word {
        "start=runs/run" => own.as_str(),
        word => word,
    });
    says(&workspace.run(&again).succeeded(), &["train: done before"]);
}

const IMPORT: [&str; 4] = ["import", "runs/run/export/drafter", "--target", "target"];

#[test]
fn an_import_that_is_refused_leaves_the_one_that_is_at_work_alone() {
    let workspace = Workspace::finished();
    let words = |count| [&IMPORT[..], &["--name", "x", "--count", count]].concat();
    let mut first = workspace.start(&words(ENDLESS));
    wait_for(&mut first, || {
        workspace
            .path("runs/x/import/candidate/config.json")
            .exists()
    });
    for _ in 0..2 {
        let expected = ["`runs/x` is in use by another run"];
        workspace.run(&words("2")).failed(&expected);
        assert!(
            workspace
                .path("runs/x/import/candidate/config.json")
                .exists()
        );
    }
    assert_eq!(first.try_wait().unwrap(), None, "it was not disturbed");
    // What a killed import leaves is no obstacle, and a failed one leaves that as it was but for its own part.
    first.kill().unwrap();
    first.wait().unwrap();
    let other = workspace.path("runs/x/notes");
    fs::write(&other, "of the user").unwrap();
    let empty = [&words("2")[..], &["--prompts", "empty.jsonl"]].concat();
    workspace.write("empty.jsonl", "");
    workspace.run(&empty).failed(&["empty.jsonl"]);
    assert!(other.exists() && !workspace.path("runs/x/import").exists());
    workspace.run(&words("2")).succeeded();
    let expected = ["holds an imported drafter already"];
    workspace.run(&words("2")).failed(&expected);
    assert!(workspace.path("runs/x/import/drafter/config.json").exists());
}

#[test]
fn an_import_that_is_interrupted_stops_and_leaves_nothing() {
    let workspace = Workspace::finished();
    let words = [&IMPORT[..], &["--name", "x", "--count", ENDLESS]].concat();
    let mut child = workspace.start(&words);
    wait_for(&mut child, || {
        workspace.path("runs/x/import/manifest.json").exists()
    });
    signal(&child, "-TERM");
    let outcome = Outcome::from(child.wait_with_output().unwrap());
    let outcome = outcome.interrupted(&[]);
    assert!(
        outcome.stderr.ends_with("error: interrupted\n"),
        "{outcome:#?}"
    );
    assert!(!workspace.path("runs/x").exists());
}

#[test]
fn an_evaluation_that_is_interrupted_stops_and_starts_anew_with_other_settings() {
    let workspace = Workspace::finished();
    let before = results(&workspace);
    let report = workspace.text("runs/run/evaluate/report.md");
    // Each temperature is a setting of its own, with its own test of what is sampled: hours of work.
    let temperatures: Vec<String> = (1..5000)
        .map(|n| format!("{}", f64::from(n) / 1e3))
        .collect();
    let temperatures = format!("evaluate.temperatures=[{}]", temperatures.join(", "));
    let mut child = workspace.start(&with(&[&temperatures]));
    wait_for(&mut child, || {
        let manifest = fs::read(workspace.path("runs/run/evaluate/manifest.json"));
        let manifest = manifest
            .ok()
            .and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        manifest.is_some_and(|manifest| manifest["status"] == "started")
    });
    signal(&child, "-TERM");
    let outcome = Outcome::from(child.wait_with_output().unwrap());
    outcome
        .interrupted(&["error: stage `evaluate`: interrupted; the same command goes on from here"]);
    assert!(!workspace.path("runs/run/evaluate/report.json").exists());
    // The finished one would be taken back.
    fs::remove_dir_all(workspace.path("runs/run/evaluate.old-1")).unwrap();
    let outcome = workspace.run(&RUN).succeeded();
    let anew = "evaluate: starts over: ";
    says(
        &outcome,
        &["train: done before", "export: done before", anew],
    );
    assert!(results(&workspace)[..3] == before[..3]);
    assert!(!workspace.path("runs/run/evaluate/decoded.journal").exists());
    let lossless = |report: &str| report.lines().last().map(str::to_owned);
    let again = workspace.text("runs/run/evaluate/report.md");
    assert_eq!(lossless(&again), lossless(&report));
}

#[test]
fn a_stage_that_is_interrupted_and_does_not_go_on_says_so() {
    let workspace = Workspace::new();
    // What is held out of so many is chosen first, for seconds.
    workspace.write("recipe.toml", RECIPE.replace("eval = \"eval.jsonl\"\n", ""));
    workspace.write_conversations("train.jsonl", 0, 100_000);
    let mut child = workspace.start(&RUN);
    let manifest = workspace.path("runs/run/prepare/manifest.json");
    wait_for(&mut child, || manifest.exists());
    signal(&child, "-TERM");
    let outcome = Outcome::from(child.wait_with_output().unwrap());
    let told = "error: stage `prepare`: interrupted; the same command starts this stage over";
    outcome.interrupted(&[told]);
}

#[test]
fn an_evaluation_that_goes_on_says_how_many_outputs_it_takes() {
    let workspace = Workspace::finished();
    workspace.unfinish("evaluate");
    // Whatever was decoded by another program or on another machine is none that counts.
    let journal = "runs/run/evaluate/decoded.journal";
    workspace.write(journal, "{}\n");
    let goes_on = "goes on with what this program has decoded on a machine like this one";
    let told = planned(&workspace, &[]);
    assert!(told.contains(goes_on), "{told}");
    let outcome = workspace.run(&RUN).succeeded();
    let goes_on = format!("evaluate: {goes_on}\n");
    let taken =
        "evaluate: from before the interruption: 0 outputs, those without a drafter among them\n";
    says(&outcome, &[&goes_on, taken]);
    assert!(!workspace.path(journal).exists());
    // One that is not interrupted has nothing to say of it.
    workspace.unfinish("evaluate");
    let outcome = workspace.run(&RUN).succeeded();
    assert!(
        !outcome.stderr.contains("before the interruption"),
        "{outcome:#?}"
    );
}

#[test]
fn wherever_the_disk_is_full_a_run_fails_with_one_error_and_goes_on_when_there_is_room() {
    let whole = Workspace::finished();
    let expected = results(&whole);
    let workspace = Workspace::new();
    // So many KiB, and no more, may a file have: another write is the first to fail each time.
    let mut failed = 0;
    for kib in [0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256] {
        let outcome = workspace.run_with_file_limit(kib, &RUN);
        assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
        if outcome.code != Some(0) {
            outcome.failed(&["File too large"]);
            failed += 1;
        }
    }
    assert!(failed >= 8, "{failed}");
    workspace.run(&RUN).succeeded();
    assert!(results(&workspace)[..3] == expected[..3]);
}

#[test]
fn curves_that_a_full_disk_does_not_take_are_worth_one_warning() {
    let workspace = Workspace::new();
    let changes = [
        "train.steps=600",
        "train.log_every=1",
        "train.validate_every=600",
        "train.save_every=600",
    ];
    // More than any other file has, and less than so many steps write.
    let kib = 168;
    let outcome = workspace
        .run_with_file_limit(kib, &with(&changes))
        .succeeded();
    let told = outcome
        .stderr
        .matches("training goes on without its curves");
    assert_eq!(told.count(), 1, "{outcome:#?}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
    let events = workspace.files("runs/run/train/events");
    let of_events = events
        .iter()
        .filter(|(name, _)| name.to_string_lossy().contains("tfevents"));
    let lengths: Vec<usize> = of_events.map(|(_, events)| events.len()).collect();
    let most = kib * 1024;
    let is_full = |length: &usize| (most - 4096..=most).contains(length);
    assert!(
        lengths.len() == 1 && lengths.iter().all(is_full),
        "{lengths:?}"
    );
}

#[test]
fn a_run_whose_messages_cannot_be_written_goes_on() {
    let workspace = Workspace::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut command = workspace.command(&RUN);
    let status = command.stdout(Stdio::null()).stderr(full()).status();
    assert_eq!(status.unwrap().code(), Some(0));
    assert_eq!(workspace.manifest("evaluate")["status"], "done");
    let mut command = workspace.command(&RUN);
    let outcome = Outcome::from(command.stdout(full()).output().unwrap());
    outcome.failed(&["cannot write to standard output"]);
}

#[test]
fn quiet_leaves_warnings_and_nothing_else() {
    let workspace = Workspace::new();
    let same = workspace.text("train.jsonl");
    workspace.write("eval.jsonl", same);
    let outcome = workspace
        .run(&[&RUN[..], &["--quiet"]].concat())
        .succeeded();
    assert!(outcome.stderr.contains("warning: "), "{outcome:#?}");
    for line in outcome.stderr.lines() {
        assert!(line.starts_with("warning: "), "`{line}`: {outcome:#?}");
    }
    assert!(outcome.stdout.contains(" τ [95 % CI] "), "{outcome:#?}");
}

#[test]
fn weights_that_are_not_read_are_no_change_of_the_target() {
    let workspace = Workspace::finished();
    // As an engine downloads them into the same snapshot.
    let other = workspace.bytes("target/model.safetensors");
    workspace.write("target/consolidated.safetensors", &other);
    let again = workspace.run(&RUN).succeeded();
    assert_eq!(again.stderr.matches("done before").count(), 4, "{again:#?}");
    let (config, mut tensors) = workspace.contents("target");
    let norm = tensors.iter_mut().find(|t| t.name == "model.norm.weight");
    let norm = norm.unwrap();
    *norm = NamedTensor::from_f32(&norm.name, norm.shape.clone(), vec![1.5; norm.shape[0]]);
    let files = workspace.files("target");
    let texts = files.iter().filter_map(|(name, bytes)| {
        let name = name.to_str().unwrap();
        let is_text = name.ends_with(".jinja") || name.starts_with("tokenizer");
        is_text.then_some((name, &bytes[..]))
    });
    let texts: Vec<_> = texts.collect();
    write_folder(&workspace.path("target"), &config, &tensors, &texts).unwrap();
    let changed = workspace.run(&RUN).succeeded();
    says(&changed, &["train: starts over: the target has changed"]);
}

#[test]
fn control_characters_of_a_folder_do_not_reach_the_terminal() {
    let workspace = Workspace::of(RECIPE);
    fs::create_dir_all(workspace.path("runs/run")).unwrap();
    workspace.write("runs/run/\u{1b}]0;mine\u{7}", "");
    let outcome = workspace.run(&RUN).failed(&["is no run of this program"]);
    says(&outcome, &["`\\u{1b}]0;mine\\u{7}`"]);
    let acts = |c: char| c.is_control() && c != '\n';
    assert!(!outcome.stderr.contains(acts), "{outcome:#?}");
}

#[test]
fn a_run_is_exported_for_its_own_target_with_as_many_tokens_as_its_recipe_drafts() {
    let workspace = Workspace::finished();
    workspace.write_target_of("other", 8, |_| {});
    let words = ["export", "run", "--to", "vllm", "--out", "out"];
    let with_target = |target: &str| {
        let words = [&words[..], &["--target", target]].concat();
        workspace.run(&words)
    };
    with_target("absent").failed(&["cannot open the target `absent`"]);
    with_target("other").failed(&["which has other weights than `other`"]);
    assert!(!workspace.path("out").exists());
    // Somebody else's.
    std::fs::create_dir(workspace.path("out.partial")).unwrap();
    workspace.write("out.partial/notes", "kept");
    let outcome = with_target("target").succeeded();
    let length = "\"num_speculative_tokens\":2";
    assert!(outcome.stdout.contains(length), "{outcome:#?}");
    assert_eq!(workspace.text("out.partial/notes"), "kept");
}
