use super::*;
use serde_json::json;

fn open(root: &Path, name: &str, recipe: &str, existing: Existing) -> Result<RunFolder> {
    RunFolder::open(RunName { root, name, recipe }, "recipe = 1\n", existing)
}

fn inputs(hash: &str) -> Inputs {
    BTreeMap::from([("the data".to_owned(), hash.to_owned())])
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
fn names_that_lead_elsewhere_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for name in ["../x", "..", ".", "", "a/b", "/tmp/x", "-rf", "a b", "a\0"] {
        let error = open(root.path(), name, "eagle3", Existing::Continue)
            .unwrap_err()
            .to_string();
        assert!(error.contains("folder name"), "{name:?}: {error}");
    }
    check_name("qwen3-8b_eagle3.v1").unwrap();
}

#[test]
fn a_stage_is_missing_then_interrupted_then_done() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let settings = json!({"train": {"steps": 1}});
    let state = || run.stage_state("train", &settings, &inputs("1")).unwrap();
    assert_eq!(state(), StageState::Missing);
    let manifest = run
        .start("train", 7, settings.clone(), inputs("1"))
        .unwrap();
    assert_eq!(state(), StageState::Interrupted);
    run.finish(manifest, 2.0, json!({"loss": 0.5})).unwrap();
    assert_eq!(state(), StageState::Done(json!({"loss": 0.5})));
    assert_eq!(run.manifest("train").unwrap().unwrap().seed, 7);
}

#[test]
fn a_change_names_the_keys_and_inputs_that_differ() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    let manifest = run
        .start(
            "train",
            0,
            json!({"train": {"steps": 1, "clip": 0.5}}),
            inputs("1"),
        )
        .unwrap();
    run.finish(manifest, 1.0, Value::Null).unwrap();
    let new = json!({"train": {"steps": 2, "clip": 0.5}});
    let state = run.stage_state("train", &new, &inputs("2")).unwrap();
    let expected = ["`train.steps`: 1 → 2", "the data has other contents"];
    assert_eq!(
        state,
        StageState::Changed(expected.map(String::from).into())
    );
}

#[test]
fn a_damaged_manifest_is_an_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    let run = open(root.path(), "a", "eagle3", Existing::Continue).unwrap();
    fs::create_dir(run.stage("train")).unwrap();
    fs::write(run.stage("train").join(MANIFEST), "{").unwrap();
    let error = run
        .stage_state("train", &Value::Null, &inputs("1"))
        .unwrap_err();
    assert!(format!("{error:#}").contains("manifest.json"), "{error:#}");
}
