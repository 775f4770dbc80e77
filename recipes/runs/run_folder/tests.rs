use std::collections::BTreeMap;

use serde_json::json;
use spectrain_checkpoints::state;
use spectrain_models::eagle3::Eagle3Config;
use spectrain_train::{Defaults, Effect, TrainConfig};

use super::lock::LOCK;
use super::manifest::MANIFEST;
use super::*;
use crate::runs::files::entries;
use crate::runtime::model_files::weight_files;

fn open(root: &Path, name: &str, recipe: &str, existing: Existing) -> Result<RunFolder> {
    RunFolder::open(RunName { root, name, recipe }, "recipe = 1\n", existing)
}

fn inputs(hash: &str) -> Inputs {
    BTreeMap::from([("the data".to_owned(), hash.to_owned())])
}

fn start(settings: &Value, hash: &str) -> Start {
    Start {
        seed: 7,
        settings: settings.clone(),
        inputs: inputs(hash),
        ..Start::default()
    }
}

/// The defaults of what is trained and how.
fn defaults() -> Defaults {
    Defaults::default()
        .with::<Eagle3Config>("drafter")
        .with::<TrainConfig>("train")
}

/// What `train` holds for these settings, of which a change of `train.steps` and of `train.log` is none.
fn state_of(run: &RunFolder, settings: &Value, hash: &str) -> StageState {
    let steps = settings["train"]["steps"].as_u64().unwrap_or_default();
    state_to(run, settings, (hash, steps))
}

/// The same where it ends at this step.
fn state_to(run: &RunFolder, settings: &Value, (hash, end): (&str, u64)) -> StageState {
    let wanted = Wanted {
        settings,
        inputs: &inputs(hash),
        defaults: &defaults(),
        effect: |path| match path {
            "train.steps" | "train.epochs" | "train.patience" => Effect::GoesOn,
            "train.log" => Effect::Nothing,
            _ => Effect::StartsOver,
        },
        ends: &|| Ok(end),
    };
    run.stage_state("train", wanted).unwrap()
}

/// What it holds for these settings and inputs, of which every change is one.
fn state_for(run: &RunFolder, settings: &Value, inputs: &Inputs) -> StageState {
    let wanted = Wanted {
        settings,
        inputs,
        defaults: &defaults(),
        effect: |_| Effect::StartsOver,
        ends: &|| Ok(0),
    };
    run.stage_state("train", wanted).unwrap()
}

fn changed(what: &[&str]) -> StageState {
    StageState::Changed(what.iter().map(|&what| what.into()).collect())
}

#[test]
fn a_second_run_in_the_same_folder_is_refused_until_the_first_ends() {
    let root = tempfile::tempdir().unwrap();
    let first = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    fs::create_dir(first.stage("train")).unwrap();
    for existing in [Existing::Continue, Existing::SetAside] {
        let error = open(root.path(), "a", "eagle3", existing)
            .unwrap_err()
            .to_string();
        assert!(error.contains("in use by another run"), "{error}");
    }
    assert!(first.stage("train").exists());
    drop(first);
    open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
}

#[test]
fn a_folder_of_another_recipe_or_of_no_run_is_refused() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path(), "a", "eagle3", Existing::Continue).unwrap());
    let error = open(root.path(), "a", "medusa", Existing::Continue)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("recipe `eagle3`") && error.contains("--fresh"),
        "{error}"
    );

    fs::create_dir(root.path().join("thesis")).unwrap();
    fs::write(root.path().join("thesis/chapter.tex"), "").unwrap();
    for existing in [Existing::Continue, Existing::SetAside] {
        let error = open(root.path(), "thesis", "eagle3", existing)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("chapter.tex") && error.contains("another `name`"),
            "{error}"
        );
    }
    assert_eq!(
        entries(&root.path().join("thesis")).unwrap(),
        ["chapter.tex"]
    );
}

#[test]
fn a_fresh_run_moves_the_old_one_aside_and_numbers_it() {
    let root = tempfile::tempdir().unwrap();
    for run in 0..3 {
        let folder = open(root.path(), "a", "eagle3", Existing::SetAside).unwrap();
        fs::write(folder.path().join("mark"), run.to_string()).unwrap();
    }
    let mark = |name: &str| fs::read_to_string(root.path().join(name).join("mark")).unwrap();
    assert_eq!(
        [mark("a.old-1"), mark("a.old-2"), mark("a")],
        ["0", "1", "2"]
    );
}

#[test]
fn a_run_that_was_moved_or_copied_is_called_as_its_folder_is() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path(), "a", "eagle3", Existing::Continue).unwrap());
    fs::rename(root.path().join("a"), root.path().join("b")).unwrap();
    drop(open(root.path(), "b", "eagle3", Existing::SetAside).unwrap());
    fs::create_dir(root.path().join("c")).unwrap();
    fs::copy(
        root.path().join("b").join(RUN),
        root.path().join("c").join(RUN),
    )
    .unwrap();
    drop(open(root.path(), "c", "eagle3", Existing::Continue).unwrap());
    drop(open(root.path(), "c", "eagle3", Existing::SetAside).unwrap());
    for name in ["b", "c"] {
        let found = aside::find(&root.path().join(name)).unwrap();
        let found: Vec<&Path> = found.iter().map(aside::Aside::path).collect();
        assert_eq!(found, [root.path().join(format!("{name}.old-1"))]);
    }
    // What cannot be read can still make room.
    fs::write(root.path().join("b").join(RUN), "{").unwrap();
    open(root.path(), "b", "eagle3", Existing::Continue).unwrap_err();
    drop(open(root.path(), "b", "eagle3", Existing::SetAside).unwrap());
}

#[test]
fn a_run_that_has_lost_what_says_whose_it_is_tells_it_by_its_stages() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a");
    let open = |recipe: &str, existing: Existing| {
        let run = RunName {
            root: root.path(),
            name: "a",
            recipe,
        };
        RunFolder::open(run, "recipe = \"eagle3\"\n", existing)
    };
    let run = open("eagle3", Existing::Continue).unwrap();
    let started = run.start("prepare", Start::default()).unwrap().started;
    drop(run);
    for damaged in [None, Some("{"), Some("{\"recipe\": \"eagle4\"}")] {
        match damaged {
            Some(text) => fs::write(path.join(RUN), text).unwrap(),
            None => fs::remove_file(path.join(RUN)).unwrap(),
        }
        let other = open("medusa", Existing::Continue).unwrap_err().to_string();
        assert!(
            other.contains("holds a run of the recipe `eagle3`"),
            "{other}"
        );
        if damaged.is_none() {
            let told = RunFolder::look(root.path(), "a").unwrap_err().to_string();
            assert!(told.contains("writes the file anew"), "{told}");
        }
        assert!(!open("eagle3", Existing::Continue).unwrap().is_new());
        let found = Run::of(&path).unwrap();
        assert_eq!((&found.recipe[..], &found.name[..]), ("eagle3", "a"));
        assert_eq!(found.created, started);
    }
    // The recipe's own description may be damaged as well.
    let settings = json!({"recipe": "eagle3"});
    let run = open("eagle3", Existing::Continue).unwrap();
    run.start("train", start(&settings, "1")).unwrap();
    drop(run);
    for file in [RUN, RECIPE] {
        fs::write(path.join(file), "{").unwrap();
    }
    assert_eq!(Run::rebuilt(&path).unwrap().recipe, "eagle3");
    // And what is lost makes room, under the name by which it is found.
    fs::remove_file(path.join(RUN)).unwrap();
    assert!(open("eagle3", Existing::SetAside).unwrap().is_new());
    assert_eq!(aside::find(&path).unwrap().len(), 1);
    // Where no stage has begun, what to write is said.
    fs::write(path.join(RUN), "{").unwrap();
    let told = open("eagle3", Existing::Continue).unwrap_err().to_string();
    assert!(told.contains("write `{\"recipe\":\"eagle3\","), "{told}");
}

#[test]
fn a_run_is_described_by_another_recipe_once_a_stage_is_started_or_all_are_done() {
    let root = tempfile::tempdir().unwrap();
    let open = |toml: &str| {
        let run = RunName {
            root: root.path(),
            name: "a",
            recipe: "eagle3",
        };
        RunFolder::open(run, toml, Existing::Continue).unwrap()
    };
    let described = || fs::read_to_string(root.path().join("a").join(RECIPE)).unwrap();
    drop(open("steps = 1\n"));
    assert_eq!(described(), "steps = 1\n");
    let run = open("steps = 2\n");
    assert_eq!(described(), "steps = 1\n");
    run.start("train", Start::default()).unwrap();
    assert_eq!(described(), "steps = 2\n");
    drop(run);
    let run = open("steps = 3\n");
    assert_eq!(described(), "steps = 2\n");
    run.describe().unwrap();
    assert_eq!(described(), "steps = 3\n");
    drop(run);
    // Whoever knows no recipe leaves the one that is there.
    let run = RunFolder::existing(root.path(), "a").unwrap();
    run.start("train", Start::default()).unwrap();
    assert_eq!(described(), "steps = 3\n");
}

#[test]
fn a_journal_that_a_stage_has_set_aside_is_found_whether_the_stage_is_done_or_not() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let manifest = run.start("regenerate", Start::default()).unwrap();
    let folder = run.stage("regenerate");
    let journal = "train.jsonl.journal.old-1";
    for name in ["train.jsonl", "train.jsonl.journal", journal, "notes.old-1"] {
        fs::write(folder.join(name), "").unwrap();
    }
    // Somebody else's, in no stage.
    fs::create_dir(run.path().join("notes")).unwrap();
    fs::write(run.path().join("notes").join(journal), "").unwrap();
    let found = || {
        let found = aside::find(run.path()).unwrap();
        let found = found.iter().map(|aside| aside.path().to_owned());
        found.collect::<Vec<_>>()
    };
    assert_eq!(found(), [folder.join(journal)]);
    run.finish(manifest, 1.0, Value::Null).unwrap();
    assert_eq!(found(), [folder.join(journal)]);
}

#[test]
fn runs_that_cannot_be_written_are_said_to_be_so() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let error = open(&file, "a", "eagle3", Existing::Continue).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("cannot write to `"), "{error}");
    assert!(
        error.ends_with("name another folder with `--runs`"),
        "{error}"
    );
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for name in ["../x", "..", ".", "", "a/b", "/tmp/x", "-rf", "a b", "a\0"] {
        let error = open(root.path(), name, "eagle3", Existing::Continue)
            .unwrap_err()
            .to_string();
        assert!(error.contains("folder name"), "{name:?}: {error}");
    }
    check_name("qwen3-8b_eagle3.v1").unwrap();
    check_name(&"a".repeat(128)).unwrap();
    let told = check_name(&"a".repeat(129)).unwrap_err().to_string();
    assert!(told.contains("of at most 128 letters"), "{told}");
}

#[test]
fn what_a_killed_start_leaves_is_no_one_elses_folder() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a");
    let killed = [
        &[LOCK][..],
        &[LOCK, "run.json.spectrain-partial"],
        &["run.json.spectrain-partial"],
        &[],
    ];
    for left in killed {
        for existing in [Existing::Continue, Existing::SetAside] {
            fs::create_dir(&path).unwrap();
            for file in left {
                fs::write(path.join(file), "{").unwrap();
            }
            let run = open(root.path(), "a", "eagle3", existing).unwrap();
            assert!(run.is_new());
            assert_eq!(entries(&path).unwrap(), [LOCK, RECIPE, RUN]);
            run.discard().unwrap();
        }
    }
    assert_eq!(entries(root.path()).unwrap(), [""; 0]);
}

#[test]
fn a_folder_in_which_another_process_is_at_work_is_in_use_whatever_it_holds() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a");
    // What a second process may see of a first one that has just begun.
    let seen = [
        &["run.json.spectrain-partial"][..],
        &["run.json.spectrain-partial", "recipe.toml"],
    ];
    for files in seen {
        fs::create_dir(&path).unwrap();
        let held = lock(&path).unwrap();
        for file in files {
            fs::write(path.join(file), "{").unwrap();
        }
        let error = open(root.path(), "a", "eagle3", Existing::Continue).unwrap_err();
        assert!(
            error.to_string().contains("in use by another run"),
            "{error}"
        );
        drop(held);
        fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn a_run_that_is_discarded_is_gone_and_its_name_is_free() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "import", Existing::Continue).unwrap();
    assert!(run.is_new());
    fs::create_dir(run.stage("import")).unwrap();
    run.discard().unwrap();
    assert_eq!(entries(root.path()).unwrap(), [""; 0]);
    let again = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    drop(again);
    assert!(
        !open(root.path(), "a", "eagle3", Existing::Continue)
            .unwrap()
            .is_new()
    );
}

#[test]
fn what_a_killed_removal_has_left_is_found_and_removed_and_no_stage_vouches_for_it() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let manifest = run.start("train", start(&json!({}), "1")).unwrap();
    fs::create_dir(run.stage("train").join("drafter")).unwrap();
    fs::write(run.stage("train").join("drafter/a"), "").unwrap();
    let rests = [
        ".a.old-1.removed",
        ".a.removed",
        "a/.train.old-1.removed",
        "a/train/.drafter.old-1.removed",
    ];
    // Somebody else's.
    let others = [
        ".b.old-1.removed",
        ".notes.removed",
        "a/.notes.removed",
        "a/train/.notes.old-1.removed",
    ];
    for name in rests.iter().chain(&others) {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::write(root.path().join(name).join("part"), "").unwrap();
    }
    // A rest may hold whatever was to go last.
    fs::copy(
        run.stage("train").join("manifest.json"),
        root.path().join("a/.train.old-1.removed/manifest.json"),
    )
    .unwrap();
    run.finish(manifest, 1.0, Value::Null).unwrap();
    let left = run.manifest("train").unwrap().unwrap().outputs;
    assert_eq!(Vec::from_iter(left.keys()), ["drafter/a"]);
    let held = lock(&root.path().join(".a.removed")).unwrap();
    let mut outcomes = Vec::new();
    for aside in aside::find(run.path()).unwrap() {
        let path = aside.path().strip_prefix(root.path()).unwrap().to_owned();
        outcomes.push((path.display().to_string(), aside.remove().unwrap()));
    }
    let removals = [
        aside::Removal::Done,
        aside::Removal::InUse,
        aside::Removal::Done,
        aside::Removal::Done,
    ];
    let expected = rests.map(str::to_owned).into_iter().zip(removals);
    assert_eq!(outcomes, Vec::from_iter(expected));
    drop(held);
    for name in rests {
        let is_left = name == ".a.removed";
        assert_eq!(root.path().join(name).exists(), is_left, "{name}");
    }
    for name in others {
        assert!(root.path().join(name).exists(), "{name}");
    }
}

#[test]
fn what_was_set_aside_is_found_and_removed_unless_it_is_in_use_or_a_run_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        drop(open(root.path(), "a", "eagle3", Existing::SetAside).unwrap());
    }
    drop(open(root.path(), "a.old-9", "eagle3", Existing::Continue).unwrap());
    let run = RunFolder::existing(root.path(), "a").unwrap();
    for _ in 0..2 {
        let manifest = run.start("train", start(&json!({}), "1")).unwrap();
        fs::create_dir(run.stage("train").join("drafter")).unwrap();
        fs::write(run.stage("train").join("drafter/a"), "").unwrap();
        run.finish(manifest, 1.0, Value::Null).unwrap();
        if !run.stage("train.old-1").exists() {
            run.set_aside("train").unwrap();
        }
    }
    let again = run.set_aside("train/drafter").unwrap();
    fs::create_dir(run.stage("train").join("drafter")).unwrap();
    assert!(again.exists());
    // Somebody else's.
    let others = ["my.old-3", "notes.old-1", "train/notes.old-1"];
    for other in others {
        fs::create_dir(run.path().join(other)).unwrap();
    }
    let held = lock(&root.path().join("a.old-2")).unwrap();
    let mut outcomes = Vec::new();
    for aside in aside::find(run.path()).unwrap() {
        let path = aside.path().strip_prefix(root.path()).unwrap().to_owned();
        outcomes.push((path.display().to_string(), aside.remove().unwrap()));
    }
    let expected = [
        ("a.old-1", aside::Removal::Done),
        ("a.old-2", aside::Removal::InUse),
        ("a/train.old-1", aside::Removal::Done),
        ("a/train/drafter.old-1", aside::Removal::Done),
    ];
    assert_eq!(
        outcomes,
        expected.map(|(path, removal)| (path.to_owned(), removal))
    );
    drop(held);
    assert_eq!(entries(root.path()).unwrap(), ["a", "a.old-2", "a.old-9"]);
    assert!(others.iter().all(|other| run.path().join(other).exists()));
}

#[test]
fn what_is_set_aside_and_taken_back_is_known_without_being_read() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = json!({"train": {"rate": 1}});
    let manifest = run.start("train", start(&settings, "1")).unwrap();
    let weights = |folder: &str| run.stage(folder).join("drafter/weights");
    let large = weights("train");
    fs::create_dir(large.parent().unwrap()).unwrap();
    // Just large enough to be remembered, with another hash than its own, so that it shows who reads it.
    File::create(&large)
        .unwrap()
        .set_len((4 << 20) + 1)
        .unwrap();
    run.remember([(large, "as remembered".to_owned())]).unwrap();
    run.finish(manifest, 1.0, Value::Null).unwrap();
    assert!(run.asides("train").unwrap().is_empty());
    run.set_aside("train").unwrap();
    // Somebody else's.
    fs::create_dir(run.stage("train.old-2")).unwrap();
    assert_eq!(run.asides("train").unwrap(), ["train.old-1"]);
    let hash = |folder: &str| run.sha256(&weights(folder)).unwrap();
    assert_eq!(hash("train.old-1"), "as remembered");
    let wanted = inputs("1");
    let state = |stage: &str| {
        let wanted = Wanted {
            settings: &settings,
            inputs: &wanted,
            defaults: &Defaults::default(),
            effect: |_| Effect::StartsOver,
            ends: &|| Ok(0),
        };
        run.stage_state(stage, wanted).unwrap()
    };
    assert_eq!(state("train.old-1"), StageState::Done(Value::Null));
    run.take_back("train.old-1", "train").unwrap();
    assert_eq!(hash("train"), "as remembered");
    assert_eq!(state("train"), StageState::Done(Value::Null));
    assert!(run.asides("train").unwrap().is_empty());
}

#[cfg(unix)]
#[test]
fn what_is_learned_where_nothing_may_be_written_is_known_and_kept_beside_what_may() {
    let root = tempfile::tempdir().unwrap();
    let locked = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let shared = || RunFolder::shared(root.path(), "a").unwrap();
    let (run, part) = (shared(), root.path().join("part"));
    fs::create_dir(&part).unwrap();
    let large = |name: &str| {
        let path = root.path().join(name);
        let file = File::create(&path).unwrap();
        file.set_len((4 << 20) + 1).unwrap();
        path
    };
    let [first, second] = ["first", "second"].map(large);
    // Other hashes than their own, so that it shows who reads them.
    run.remember([(first.clone(), "one".to_owned())]).unwrap();
    assert_eq!(run.sha256(&first).unwrap(), "one");
    assert!(!run.path().join(HASHES).exists());
    // What the one that has locked it learns meanwhile is known, too.
    let learned = [(second.clone(), "two".to_owned())];
    locked.remember(learned).unwrap();
    let kept = fs::read(run.path().join(HASHES)).unwrap();
    assert_eq!(run.sha256(&second).unwrap(), "two");
    run.keep_in(&part).unwrap();
    assert_eq!(fs::read(run.path().join(HASHES)).unwrap(), kept);
    let next = shared();
    next.recall_in(&part).unwrap();
    assert_eq!(next.sha256(&first).unwrap(), "one");
    let unaware = shared().sha256(&first).unwrap();
    assert_ne!(unaware, "one");
}

#[test]
fn a_stage_is_missing_then_interrupted_then_done() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = json!({"train": {"steps": 1}});
    let state = || state_of(&run, &settings, "1");
    assert_eq!(state(), StageState::Missing);
    let manifest = run.start("train", start(&settings, "1")).unwrap();
    assert_eq!(state(), StageState::Interrupted);
    run.finish(manifest, 2.0, json!({"loss": 0.5})).unwrap();
    assert_eq!(state(), StageState::Done(json!({"loss": 0.5})));
    assert_eq!(run.manifest("train").unwrap().unwrap().seed, 7);
}

#[test]
fn the_seconds_of_a_stage_are_those_of_all_its_sessions() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let start = || run.start("train", start(&json!({}), "1")).unwrap();
    let seconds = || run.manifest("train").unwrap().unwrap().seconds;
    let first = start();
    assert_eq!(seconds(), None);
    run.pause(first, 2.0).unwrap();
    assert_eq!(seconds(), Some(2.0));
    // One that is killed says nothing.
    start();
    run.finish(start(), 3.0, Value::Null).unwrap();
    assert_eq!(seconds(), Some(5.0));
    // To a later end it goes on.
    run.finish(start(), 1.0, Value::Null).unwrap();
    assert_eq!(seconds(), Some(6.0));
    run.clear("train").unwrap();
    run.finish(start(), 4.0, Value::Null).unwrap();
    assert_eq!(seconds(), Some(4.0));
}

#[test]
fn a_change_names_the_keys_and_inputs_that_differ() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = json!({"train": {"rate": 1, "clip": 0.5, "log": 1}});
    let manifest = run.start("train", start(&settings, "1")).unwrap();
    run.finish(manifest, 1.0, Value::Null).unwrap();
    let new = json!({"train": {"rate": 2, "clip": 0.5, "log": 2}});
    assert_eq!(
        state_of(&run, &new, "2"),
        changed(&["`train.rate`: 1 → 2", "the data has changed"])
    );
    let other_log = json!({"train": {"rate": 1, "clip": 0.5, "log": 2}});
    assert_eq!(
        state_of(&run, &other_log, "1"),
        StageState::Done(Value::Null)
    );
}

#[test]
fn a_training_goes_on_to_where_it_is_or_later_and_to_no_earlier_end() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = |steps: u64, rate: u64| json!({"train": {"steps": steps, "rate": rate}});
    let manifest = run.start("train", start(&settings(100, 1), "1")).unwrap();
    let longer = |steps: u64| settings(steps, 1);
    // Nothing is saved from which to go on.
    let from_100 = "`train.steps`: 100 → 200";
    assert_eq!(state_of(&run, &longer(200), "1"), changed(&[from_100]));
    state::save_state(&run.stage("train"), 60, &json!({}), &[]).unwrap();
    for status in [Status::Started, Status::Done] {
        if status == Status::Done {
            run.finish(manifest.clone(), 1.0, Value::Null).unwrap();
        }
        // It may end where it was interrupted.
        for steps in [60, 61, 200] {
            let what = vec![format!("`train.steps`: 100 → {steps}")];
            let expected = StageState::Longer { steps: 60, what };
            assert_eq!(state_of(&run, &longer(steps), "1"), expected);
        }
        let what = vec!["`train.steps`: 100 → 59".to_owned()];
        let expected = StageState::Unfit { steps: 60, what };
        assert_eq!(state_of(&run, &longer(59), "1"), expected);
        // Of so few steps the warm-up is another where nobody sets it.
        let few = json!({"train": {"steps": 3, "rate": 1, "warmup_steps": 0}});
        let what = [
            "`train.steps`: 100 → 3",
            "`train.warmup_steps`: nothing → 0",
        ];
        let what = what.map(str::to_owned).to_vec();
        let expected = StageState::Unfit { steps: 60, what };
        assert_eq!(state_of(&run, &few, "1"), expected);
        let other = state_of(&run, &settings(200, 2), "1");
        assert_eq!(other, changed(&["`train.rate`: 1 → 2", from_100]));
        let other = state_of(&run, &longer(200), "2");
        assert_eq!(other, changed(&[from_100, "the data has changed"]));
    }
}

#[test]
fn another_patience_goes_on_with_a_finished_training_only_where_that_has_waited_for_less() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = |patience: Option<u64>| json!({"train": {"steps": 100, "patience": patience}});
    let state = |patience| state_of(&run, &settings(patience), "1");
    let longer = |new: &str| StageState::Longer {
        steps: 60,
        what: vec![format!("`train.patience`: 3 → {new}")],
    };
    let manifest = run.start("train", start(&settings(Some(3)), "1")).unwrap();
    state::save_state(&run.stage("train"), 60, &json!({}), &[]).unwrap();
    assert_eq!(state(Some(2)), longer("2"));
    // It has done its steps.
    let done = json!({"fit": {"steps": 100}});
    run.finish(manifest.clone(), 1.0, done.clone()).unwrap();
    for patience in [None, Some(1), Some(3), Some(5)] {
        assert_eq!(state(patience), StageState::Done(done.clone()));
    }
    let other = json!({"train": {"steps": 200, "patience": 5}});
    let other = state_of(&run, &other, "1");
    assert!(matches!(other, StageState::Longer { .. }), "{other:?}");
    // Its validations have ended it.
    let done = json!({"fit": {"steps": 60, "out_of_patience": 3}});
    run.finish(manifest, 1.0, done.clone()).unwrap();
    for patience in [2, 3] {
        assert_eq!(state(Some(patience)), StageState::Done(done.clone()));
    }
    assert_eq!(state(Some(4)), longer("4"));
    assert_eq!(state(None), longer("nothing"));
}

#[test]
fn a_training_goes_on_to_whatever_epochs_do_not_end_before_it() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = |epochs: f64| json!({"train": {"epochs": epochs}});
    run.start("train", start(&settings(1.5), "1")).unwrap();
    state::save_state(&run.stage("train"), 60, &json!({}), &[]).unwrap();
    // So many steps are these epochs.
    for (epochs, end) in [(2.0, 80), (1.0, 70), (0.5, 60), (0.25, 30)] {
        let (steps, what) = (60, vec![format!("`train.epochs`: 1.5 → {epochs:?}")]);
        let expected = if end >= steps {
            StageState::Longer { steps, what }
        } else {
            StageState::Unfit { steps, what }
        };
        let found = state_to(&run, &settings(epochs), ("1", end));
        assert_eq!(found, expected);
    }
}

#[test]
fn a_length_that_is_counted_otherwise_never_starts_a_training_over() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let epochs = json!({"train": {"epochs": 3.0}});
    run.start("train", start(&epochs, "1")).unwrap();
    state::save_state(&run.stage("train"), 60, &json!({}), &[]).unwrap();
    let counted = [
        "`train.epochs`: 3.0 → nothing",
        "`train.steps`: nothing → 90",
    ];
    let what = counted.map(str::to_owned).to_vec();
    let steps = json!({"train": {"steps": 90}});
    let expected = StageState::Longer { steps: 60, what };
    assert_eq!(state_of(&run, &steps, "1"), expected);
    // The warm-up of so many steps is not that of the epochs.
    let steps = json!({"train": {"steps": 90, "warmup_steps": 9}});
    let mut what = counted.map(str::to_owned).to_vec();
    what.push("`train.warmup_steps`: nothing → 9".into());
    let expected = StageState::Unfit { steps: 60, what };
    assert_eq!(state_of(&run, &steps, "1"), expected);
    // Without another way to count, a warm-up was asked for.
    let warm = json!({"train": {"epochs": 3.0, "warmup_steps": 9}});
    let other = changed(&["`train.warmup_steps`: nothing → 9"]);
    assert_eq!(state_of(&run, &warm, "1"), other);
}

#[test]
fn a_file_that_a_stage_left_and_that_is_not_the_same_any_more_is_named() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = json!({});
    let manifest = run.start("train", start(&settings, "1")).unwrap();
    let write = |name: &str, contents: &str| {
        let path = run.stage("train").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    };
    for name in ["counts.json", "drafter/a", "drafter/b", "events/x"] {
        write(name, "as it was");
    }
    write("step-00000001/weights", "as it was");
    write("old.old-1/counts.json", "of before");
    run.finish(manifest, 1.0, Value::Null).unwrap();
    let left = run.manifest("train").unwrap().unwrap().outputs;
    let names: Vec<&str> = left.keys().map(String::as_str).collect();
    assert_eq!(names, ["counts.json", "drafter/a", "drafter/b"]);
    let state = || state_of(&run, &settings, "1");
    for name in ["events/x", "step-00000001/weights", "notes", "drafter/c"] {
        write(name, "other");
        assert_eq!(state(), StageState::Done(Value::Null), "{name}");
    }
    write("counts.json", "as it wax");
    fs::remove_file(run.stage("train").join("drafter/b")).unwrap();
    let damage = [
        Damage::Changed("counts.json".into()),
        Damage::Missing("drafter/b".into()),
    ];
    assert_eq!(state(), StageState::Damaged(damage.into()));
    fs::remove_dir_all(run.stage("train").join("drafter")).unwrap();
    write("drafter", "a file");
    write("counts.json", "as it was");
    let missing = ["drafter/a", "drafter/b"].map(|name| Damage::Missing(name.into()));
    assert_eq!(state(), StageState::Damaged(missing.into()));
}

#[test]
fn a_damaged_manifest_is_an_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let path = run.stage("train").join(MANIFEST);
    let manifest = run
        .start("train", start(&json!({"steps": 6}), "1"))
        .unwrap();
    run.finish(manifest, 1.0, json!({"exported_step": 4}))
        .unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    let damaged = [
        "{".to_owned(),
        whole.replace("\"exported_step\": 4", "\"exported_step\": 5"),
        whole.replace("\"steps\": 6", "\"steps\": 7"),
    ];
    for text in damaged {
        assert_ne!(text, whole);
        fs::write(&path, text).unwrap();
        let error = format!("{:#}", run.manifest("train").unwrap_err());
        assert!(
            error.contains("manifest.json") && error.contains("saved states"),
            "{error}"
        );
    }
    fs::write(&path, whole).unwrap();
    run.manifest("train").unwrap();
}

#[test]
fn what_an_earlier_version_did_not_record_or_read_otherwise_is_no_change() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = json!({"train": {"rate": 1}, "drafter": {"d_ff": 8}});
    let manifest = run.start("train", start(&settings, "1")).unwrap();
    run.finish(manifest, 1.0, Value::Null).unwrap();
    // A table that the stage does not read any more, and inputs that it reads by now.
    let settings = json!({"train": {"rate": 1}});
    let state = |later: &[&str]| {
        let mut inputs = inputs("1");
        let later = later.iter().map(|name| ((*name).into(), "2".into()));
        inputs.extend(later);
        state_for(&run, &settings, &inputs)
    };
    let of_another = format!("{STOP_TOKENS} of `m`");
    let later = [
        CAPTURED_LAYERS,
        OWN_SAMPLING,
        PRINTED_DAY,
        STOP_TOKENS,
        TARGET_NAME,
        &of_another,
    ];
    assert_eq!(state(&later), StageState::Done(Value::Null));
    assert_eq!(state(&["`start`"]), changed(&["`start` is a new input"]));
}

#[test]
fn what_an_earlier_version_recorded_without_reading_it_is_no_change() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let mut recorded = inputs("1");
    let more = [CAPTURED_LAYERS, OWN_SAMPLING, STOP_TOKENS];
    recorded.extend(more.map(|name| (name.to_owned(), "2".to_owned())));
    let start = Start {
        inputs: recorded.clone(),
        ..Start::default()
    };
    run.start("train", start).unwrap();
    let state = |inputs: &Inputs| state_for(&run, &Value::Null, inputs);
    assert_eq!(state(&inputs("1")), StageState::Interrupted);
    recorded.insert(OWN_SAMPLING.into(), "3".into());
    let what = format!("{OWN_SAMPLING} has changed");
    assert_eq!(state(&recorded), changed(&[&what]));
}

#[test]
fn a_training_goes_on_as_it_was_where_a_key_that_was_not_there_yet_has_its_default() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let before = json!({"train": {"steps": 6, "rate": 1}, "drafter": {"heads": 2}});
    let manifest = run.start("train", start(&before, "1")).unwrap();
    state::save_state(&run.stage("train"), 6, &json!({}), &[]).unwrap();
    let now = |steps: u64, layers: u64, ema_decay: f64| {
        let train = json!({"steps": steps, "rate": 1, "ema_decay": ema_decay});
        json!({"train": train, "drafter": {"heads": 2, "layers": layers, "head": "copied"}})
    };
    let state = |settings: &Value| state_of(&run, settings, "1");
    for status in [Status::Started, Status::Done] {
        let mut expected = StageState::Interrupted;
        if status == Status::Done {
            run.finish(manifest.clone(), 1.0, Value::Null).unwrap();
            expected = StageState::Done(Value::Null);
        }
        assert_eq!(state(&now(6, 1, 0.0)), expected);
        let longer = StageState::Longer {
            steps: 6,
            what: vec!["`train.steps`: 6 → 9".to_owned()],
        };
        assert_eq!(state(&now(9, 1, 0.0)), longer);
        // What was set since is told alone.
        let layers = changed(&["`drafter.layers`: nothing → 2"]);
        assert_eq!(state(&now(6, 2, 0.0)), layers);
        let decay = changed(&["`train.ema_decay`: nothing → 0.5"]);
        assert_eq!(state(&now(6, 1, 0.5)), decay);
        // Of a table without known defaults any key may have been anything.
        let mut other = now(6, 1, 0.0);
        other["objective"] = json!({"draft_steps": 7});
        let unknown = changed(&["`objective`: nothing → {\"draft_steps\":7}"]);
        assert_eq!(state(&other), unknown);
    }
}

#[test]
fn what_an_earlier_version_has_finished_stays_so_and_what_it_has_begun_does_not_go_on() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let before = json!({"train": {"steps": 6}, "drafter": {"heads": 2}});
    let manifest = run.start("train", start(&before, "1")).unwrap();
    state::save_state(&run.stage("train"), 6, &json!({}), &[]).unwrap();
    let mut later = inputs("1");
    for name in ["`drafter.model`", "`features/features.json`"] {
        later.insert(name.into(), "2".into());
    }
    let now = |steps: u64, layers: u64| {
        let drafter = json!({"heads": 2, "layers": layers});
        json!({"train": {"steps": steps}, "drafter": drafter})
    };
    let all = [
        "`drafter.model` is a new input",
        "`features/features.json` is a new input",
    ];
    assert_eq!(state_for(&run, &now(6, 1), &later), changed(&all));
    run.finish(manifest, 1.0, Value::Null).unwrap();
    let done = StageState::Done(Value::Null);
    assert_eq!(state_for(&run, &now(6, 1), &later), done);
    assert_eq!(
        state_for(&run, &now(6, 2), &inputs("1")),
        changed(&["`drafter.layers`: nothing → 2"])
    );
    // Its states are not gone on from.
    let wanted = Wanted {
        settings: &now(9, 1),
        inputs: &later,
        defaults: &defaults(),
        effect: |path| match path {
            "train.steps" => Effect::GoesOn,
            _ => Effect::StartsOver,
        },
        ends: &|| Ok(9),
    };
    let what = ["`train.steps`: 6 → 9"].into_iter().chain(all);
    let what = what.map(str::to_owned).collect();
    let expected = StageState::Unfit { steps: 6, what };
    assert_eq!(run.stage_state("train", wanted).unwrap(), expected);
}

#[test]
fn answers_are_an_input_of_a_finished_training_in_both_versions_or_in_none() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = Value::Null;
    let of = |answers: &[(&str, &str)]| -> Inputs {
        let named = |&(at, hash): &(&str, &str)| (format!("`answers/{at}`"), hash.to_owned());
        answers.iter().map(named).collect()
    };
    let start = Start {
        inputs: of(&[("T=0", "1")]),
        ..Start::default()
    };
    let manifest = run.start("train", start).unwrap();
    let gone = "`answers/T=0` is no longer an input";
    assert_eq!(state_for(&run, &settings, &of(&[])), changed(&[gone]));
    run.finish(manifest, 1.0, Value::Null).unwrap();
    let done = StageState::Done(Value::Null);
    assert_eq!(state_for(&run, &settings, &of(&[])), done);
    let other = of(&[("T=0", "2")]);
    assert_eq!(
        state_for(&run, &settings, &other),
        changed(&["`answers/T=0` has changed"])
    );
    let other = of(&[("T=1", "1")]);
    let what = [gone, "`answers/T=1` is a new input"];
    assert_eq!(state_for(&run, &settings, &other), changed(&what));
}

#[test]
fn another_path_to_the_same_features_is_no_change() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let of = |folders: &[(&str, &str)]| -> Inputs {
        let named = |&(path, hash): &(&str, &str)| {
            (format!("{FOLDER_OF_FEATURES}{path}`"), hash.to_owned())
        };
        folders.iter().map(named).collect()
    };
    let start = Start {
        inputs: of(&[("own", "1"), ("other", "2")]),
        ..Start::default()
    };
    run.start("train", start).unwrap();
    let state = |folders: &[(&str, &str)]| state_for(&run, &Value::Null, &of(folders));
    let moved = [("/data/own", "1"), ("other", "2")];
    assert_eq!(state(&moved), StageState::Interrupted);
    let what = "the features `other` is no longer an input";
    assert_eq!(state(&moved[..1]), changed(&[what]));
    let corrected = [("own", "3"), ("other", "2")];
    assert_eq!(
        state(&corrected),
        changed(&["the features `own` has changed"])
    );
}

#[test]
fn auto_and_the_type_that_it_means_on_the_device_are_the_same() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings =
        |dtype: &str, meant: &str| json!({"target": {"dtype": dtype, "computed_in": meant}});
    let begun = settings("auto", "f32");
    let manifest = run.start("train", start(&begun, "1")).unwrap();
    run.finish(manifest, 1.0, Value::Null).unwrap();
    let state = |settings: &Value| {
        let wanted = Wanted {
            settings,
            inputs: &inputs("1"),
            defaults: &Defaults::default(),
            effect: |path| match path {
                "target.computed_in" => Effect::Nothing,
                _ => Effect::StartsOver,
            },
            ends: &|| Ok(0),
        };
        run.stage_state("train", wanted).unwrap()
    };
    let done = StageState::Done(Value::Null);
    // What is done stays done on a device that computes otherwise.
    assert_eq!(state(&settings("auto", "bf16")), done);
    assert_eq!(state(&settings("f32", "f32")), done);
    let other = changed(&["`target.dtype`: \"auto\" → \"bf16\""]);
    assert_eq!(state(&settings("bf16", "bf16")), other);
}

/// Finishes a stage, made from these inputs, that leaves a file with this text at this path in its folder.
fn leave(run: &RunFolder, stage: &str, inputs: Inputs, (file, text): (&str, &str)) {
    let start = Start {
        inputs,
        ..Start::default()
    };
    let manifest = run.start(stage, start).unwrap();
    let file = run.stage(stage).join(file);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
    run.finish(manifest, 1.0, Value::Null).unwrap();
}

#[test]
fn what_rests_on_a_target_that_is_made_anew_is_stale_unless_the_recipe_names_another_one() {
    let root = tempfile::tempdir().unwrap();
    let name = RunName {
        root: root.path(),
        name: "a",
        recipe: "eagle3",
    };
    let open = |recipe: &str| RunFolder::open(name, recipe, Existing::Continue).unwrap();
    let run = open("[synthetic]\n");
    let why = || stale(&root.path().join("a"), "train").unwrap();
    let weights = "target/model.safetensors";
    leave(&run, "synthetic", Inputs::new(), (weights, "one"));
    let target = run.stage("synthetic").join("target");
    let hash = run.sha256_of(&weight_files(&target).unwrap()).unwrap();
    let inputs = Inputs::from([("the target".to_owned(), hash)]);
    leave(&run, "train", inputs, ("left", "drafter"));
    assert_eq!(why(), None);
    assert_eq!(left_before(&target), None);

    let aside = run.set_aside("synthetic").unwrap();
    leave(&run, "synthetic", Inputs::new(), (weights, "two"));
    let changed = "`synthetic/target` has changed since";
    assert_eq!(why().as_deref(), Some(changed));
    fs::remove_dir_all(&target).unwrap();
    let missing = "`synthetic/target`, which it was made from, is missing";
    assert_eq!(why().as_deref(), Some(missing));
    run.start("synthetic", Start::default()).unwrap();
    let again = "the stage `synthetic` was started again and is not done";
    assert_eq!(why().as_deref(), Some(again));
    let kept = aside.join("target");
    let told = format!("{again}; what it left before is in `{}`", kept.display());
    assert_eq!(left_before(&target), Some(told));
    assert_eq!(left_before(&run.path().join("a/target")), None);

    drop(run);
    open("[target]\nmodel = \"m\"\n").describe().unwrap();
    assert_eq!(why(), None);
}

#[test]
fn what_was_made_of_answers_that_are_asked_for_anew_is_stale() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    leave(&run, "regenerate", Inputs::new(), ("train.jsonl", "{}"));
    let answers = run.stage("regenerate").join("train.jsonl");
    let hash = run.sha256(&answers).unwrap();
    let inputs = Inputs::from([("the answers of `regenerate`".to_owned(), hash)]);
    leave(&run, "prepare", inputs, ("left", "tokens"));
    let why = || stale(run.path(), "prepare").unwrap();
    assert_eq!(why(), None);
    run.start("regenerate", Start::default()).unwrap();
    let again = "the stage `regenerate` was started again and is not done";
    assert_eq!(why().as_deref(), Some(again));
}
