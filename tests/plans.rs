//! A plan says what the run does: it is refused where the run is, and finds stages done, stale or damaged as the run does.
use crate::workspace::{Outcome, RECIPE, Workspace};

fn recipe(workspace: &Workspace, words: &[&str]) -> Outcome {
    workspace.run(&[&["recipe", "recipe.toml"], words].concat())
}

fn set<'a>(changes: &[&'a str]) -> Vec<&'a str> {
    changes
        .iter()
        .flat_map(|change| ["--set", *change])
        .collect()
}

/// What a plan says of a stage.
fn stage(workspace: &Workspace, name: &str) -> String {
    let plan = recipe(workspace, &["--plan"]);
    let stages = plan.stdout.split("\nstages:\n").nth(1).unwrap();
    let line = stages.lines().find_map(|line| {
        let (found, state) = line.trim().split_once(' ')?;
        (found == name).then(|| state.trim().to_owned())
    });
    line.unwrap_or_else(|| panic!("no `{name}`: {plan:#?}"))
}

#[test]
fn a_plan_is_refused_where_the_run_is_and_in_the_same_words() {
    let workspace = Workspace::new();
    let cuda = ["--device", "cuda:0"];
    let cases: [(&[&str], &[&str], &str); 6] = [
        (&["data.train=absent.jsonl"], &[], "`absent.jsonl`"),
        (
            &["data.template=absent.jinja"],
            &[],
            "cannot read `absent.jinja`",
        ),
        (
            &["drafter.captured_layers=[7]"],
            &[],
            "ascending layers below",
        ),
        (&["drafter.kv_heads=3"], &[], "a divisor of"),
        (
            &["drafter.draft_vocab=500"],
            &[],
            "at most the target's 300",
        ),
        (&["start=train.jsonl"], &[], "`start`"),
    ];
    let cuda: [(&[&str], &[&str], &str); 1] = [(&[], &cuda, "feature `cuda`")];
    let cuda = if cfg!(feature = "cuda") {
        &[][..]
    } else {
        &cuda
    };
    for (changes, words, message) in cases.iter().chain(cuda) {
        let words = [&set(changes)[..], words].concat();
        let run = recipe(&workspace, &words);
        let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat());
        assert_eq!((run.code, plan.code), (Some(1), Some(1)), "{plan:#?}");
        assert!(run.stderr.contains(message), "{run:#?}");
        let said = run.stderr.trim().strip_prefix("error: ").unwrap();
        assert!(
            plan.stderr.contains(said) && plan.stdout.contains(said),
            "{run:#?} {plan:#?}"
        );
        assert!(!workspace.path("runs").exists(), "nothing was begun");
    }
}

#[test]
fn a_plan_finds_what_a_run_would_come_to_at_once() {
    let workspace = Workspace::new();
    workspace.write("empty.jsonl", "");
    workspace.write("broken.jsonl", "{\"messages\": 3}\n");
    workspace.write("runs.txt", "");
    workspace.write_target("mute", crate::workspace::VOCAB);
    std::fs::remove_file(workspace.path("mute/tokenizer.json")).unwrap();
    let rows = "cannot prepare `data.train`";
    let cases: [(&[&str], &[&str], &[&str]); 7] = [
        (
            &["target.model=elsewhere"],
            &[],
            &["cannot open the target `elsewhere`", "not a hub id"],
        ),
        (
            &["evaluate.targets=[\"elsewhere\"]"],
            &[],
            &["cannot open the target `elsewhere`"],
        ),
        (&["target.model=mute"], &[], &["tokenizer.json"]),
        (
            &["data.train=empty.jsonl"],
            &[],
            &[rows, "the dataset is empty"],
        ),
        (&["data.train=broken.jsonl"], &[], &[rows, "row 1"]),
        (
            &["data.max_length=4", "train.batch_tokens=4"],
            &[],
            &[rows, "no sample is left of 40 read"],
        ),
        (
            &[],
            &["--runs", "runs.txt"],
            &["cannot write to `", "name another folder with `--runs`"],
        ),
    ];
    for (changes, words, expected) in cases {
        let words = [&set(changes)[..], words].concat();
        let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat());
        let refused = plan.stdout.split("\nrefused:\n").nth(1);
        let refused = refused.unwrap_or_else(|| panic!("not refused: {plan:#?}"));
        for part in expected {
            assert!(refused.contains(part), "no `{part}`: {plan:#?}");
        }
        recipe(&workspace, &words).failed(&expected[1..]);
        assert_eq!(plan.code, Some(1), "{plan:#?}");
    }
}

#[test]
fn a_plan_is_refused_where_its_run_is_one_of_another_recipe() {
    let workspace = Workspace::finished();
    let other = RECIPE.replace("eagle3", "eagle1");
    let other = other
        .replace("draft_vocab = 256\n", "")
        .replace("draft_steps = 2\n\n", "passes = 2\n\n");
    workspace.write("recipe.toml", other);
    let before = workspace.files("runs");
    let refused = ["a run of the recipe `eagle3`, this is the recipe `eagle1`"];
    recipe(&workspace, &[]).failed(&refused);
    recipe(&workspace, &["--plan"]).failed(&refused);
    recipe(&workspace, &["--plan", "--fresh"]).succeeded();
    assert!(workspace.files("runs") == before, "a plan leaves nothing");
}

#[test]
fn a_plan_compares_inputs_and_outputs_as_the_run_does() {
    let workspace = Workspace::finished();
    let before = workspace.files("runs");
    let report = workspace.path("runs/run/evaluate/report.json");
    let kept = std::fs::read(&report).unwrap();
    std::fs::remove_file(&report).unwrap();
    assert_eq!(
        stage(&workspace, "evaluate"),
        "runs again: `report.json` is missing"
    );
    std::fs::write(&report, "{}").unwrap();
    let changed = "runs again: `report.json` is not as it was written";
    assert_eq!(stage(&workspace, "evaluate"), changed);
    assert!(stage(&workspace, "export").starts_with("done in "));
    std::fs::write(&report, kept).unwrap();

    workspace.write_conversations("train.jsonl", 1, 41);
    let stale = "starts over: `data.train` has changed";
    assert_eq!(stage(&workspace, "prepare"), stale);
    assert_eq!(
        stage(&workspace, "train"),
        "runs again if `prepare` gives something else"
    );
    assert!(workspace.files("runs") == before, "a plan leaves nothing");
    let run = recipe(&workspace, &["--stage", "prepare"]).succeeded();
    assert!(run.stderr.contains(stale), "{run:#?}");
}

#[test]
fn a_plan_knows_the_draft_vocabulary_of_the_drafter_that_training_starts_from() {
    let workspace = Workspace::finished();
    let start = [
        "name=b",
        "start=runs/run/export/drafter",
        "drafter.draft_vocab=0",
    ];
    let plan = recipe(&workspace, &[&["--plan"][..], &set(&start)].concat()).succeeded();
    let fresh = recipe(&workspace, &["--plan"]).succeeded();
    let drafter = |plan: &Outcome| {
        let line = plan
            .stdout
            .lines()
            .find(|line| line.starts_with("  drafter "));
        line.unwrap().to_owned()
    };
    assert!(
        drafter(&plan).ends_with(" draft vocabulary of 256"),
        "{plan:#?}"
    );
    assert_eq!(drafter(&plan), drafter(&fresh));
}
