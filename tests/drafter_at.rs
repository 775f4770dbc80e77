//! Commands that are given a drafter by its folder, by a run, by the name of a run, and by what is none of these.
use crate::workspace::{Outcome, Workspace};

/// `check`, which reads what it is given and writes nothing.
fn check(workspace: &Workspace, drafter: &str) -> Outcome {
    workspace.run(&["check", drafter, "--target", "target"])
}

const FOLDER: &str = "runs/run/export/drafter";

#[test]
fn a_check_takes_as_many_prompts_as_are_asked_for_and_says_so() {
    let workspace = Workspace::finished();
    let measured = |more: &[&str]| {
        let words = ["check", "run", "--target", "target"];
        workspace.run(&[&words[..], more].concat())
    };
    let own = ["--prompts", "eval.jsonl", "--count", "1"];
    for (more, told, limited) in [
        (&[][..], "on 8 texts that the target made up: ", true),
        (
            &["--count", "3"],
            "on 3 texts that the target made up: ",
            true,
        ),
        (&own, "on 1 prompt: ", true),
        // There are no more.
        (&own[..2], "on 4 prompts: ", false),
    ] {
        let outcome = measured(more).succeeded();
        assert!(outcome.stdout.contains(told), "{outcome:#?}");
        let more = outcome.stdout.contains("passes; `--count N` takes more\n");
        assert_eq!(more, limited, "{outcome:#?}");
    }
    measured(&["--count", "0"]).misused_by_usage(&["--count"]);
}

#[test]
fn a_run_stands_for_its_drafter_in_every_command() {
    let workspace = Workspace::finished();
    for drafter in [FOLDER, "run", "runs/run", "runs/run/", "./runs/run"] {
        let words = ["check", drafter, "--target", "target"];
        let outcome = workspace.run(&words).succeeded();
        assert!(
            outcome.stdout.contains("unchanged since it was written"),
            "{outcome:#?}"
        );

        let words = ["generate", "--target", "target", "--prompt", "count"];
        let settings = ["--max-new-tokens", "4", "--drafter", drafter];
        let outcome = workspace.run(&[&words[..], &settings].concat()).succeeded();
        assert!(outcome.stderr.contains("target pass"), "{outcome:#?}");
    }

    let words = ["evaluate", "--target", "target", "--prompts", "eval.jsonl"];
    let settings = ["--count", "1", "--max-new-tokens", "4", "--drafter", "run"];
    let short = [
        "--temperature",
        "0",
        "--draft",
        "dynamic:4,depth=2",
        "--draft",
        "chain:2",
    ];
    let words = [&words[..], &settings, &short].concat();
    let outcome = workspace.run(&words).succeeded();
    assert!(
        outcome.stdout.contains(&format!("drafter {FOLDER} ")),
        "{outcome:#?}"
    );
    for part in [
        "\nT=0, greedy, dynamic 2×10, 4 nodes\n",
        "\nT=0, greedy, chain 2  ",
    ] {
        assert!(outcome.stdout.contains(part), "no `{part}`: {outcome:#?}");
    }

    let of_run = ["export", "runs/run", "--to", "vllm", "--out", "exported"];
    workspace.run(&of_run).succeeded();
    assert!(workspace.path("exported/config.json").exists());

    let words = ["import", "run", "--target", "target", "--count", "2"];
    workspace
        .run(&words)
        .misused(&["`runs/run` is a run already", "`--name`"]);
    workspace
        .run(&[&words[..], &["--name", "again"]].concat())
        .succeeded();
    // Of an imported run it is what was imported.
    check(&workspace, "again").succeeded();
    let imported = &workspace.json("runs/again/import/manifest.json")["summary"]["imported"];
    assert_eq!(imported["from"], FOLDER);

    let words = ["report", "run", "runs/run", FOLDER];
    let outcome = workspace.run(&words).succeeded();
    let rows = outcome.stdout.matches("\n  run  ");
    assert!(outcome.stdout.contains("\nT=0, greedy, chain 2\n"));
    assert_eq!(rows.count(), 3, "{outcome:#?}");
}

#[test]
fn a_wrong_folder_is_told_where_the_drafter_is() {
    let workspace = Workspace::finished();
    let question = format!("did you mean `{FOLDER}`?");
    for (wrong, told) in [
        (
            "runs/run/export",
            "holds no drafter: it has no `config.json`",
        ),
        (
            "runs/run/evaluate",
            "holds no drafter: it has no `config.json`",
        ),
        ("runs/run/run.json", "holds no drafter: it is a file"),
        ("runs/run/exprt/drafter", "there is no such folder"),
        ("run/export/drafter", "there is no such folder"),
        // This could be the id of a model.
        ("run/export", "there is no such folder"),
    ] {
        check(&workspace, wrong).failed(&[&format!("`{wrong}`"), told, &question]);
    }
    // Other trainers leave a drafter for each epoch.
    for epoch in ["epoch_0", "epoch_1"] {
        let folder = format!("spf/{epoch}");
        std::fs::create_dir_all(workspace.path(&folder)).unwrap();
        workspace.write(&format!("{folder}/config.json"), "{}");
    }
    check(&workspace, "spf").failed(&["`spf` holds no drafter", "did you mean `spf/epoch_1`?"]);
    check(&workspace, "walk").failed(&[
        "no drafter `walk`",
        "no run `runs/walk`",
        "no id of the hub",
    ]);
    check(&workspace, "").failed(&["no drafter ``"]);
    // A run that is not there is not asked of the hub.
    let outcome = check(&workspace, "runs/walk").failed(&["no drafter `runs/walk`"]);
    assert!(!outcome.stderr.contains("HF_HUB_OFFLINE"), "{outcome:#?}");
    for id in ["some/drafter", "some/drafter@v1"] {
        let told = [
            "cannot open the drafter `some/drafter`",
            "`HF_HUB_OFFLINE` is set",
        ];
        check(&workspace, id).failed(&told);
    }
}

#[test]
fn a_name_that_means_a_folder_and_a_run_is_refused() {
    let workspace = Workspace::finished();
    std::fs::create_dir(workspace.path("run")).unwrap();
    // A folder without a drafter is nothing that could be meant.
    check(&workspace, "run").succeeded();
    let from = workspace.path(FOLDER);
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, workspace.path("run").join(path.file_name().unwrap())).unwrap();
    }
    check(&workspace, "run").failed(&["`run` can mean the folder", "`./run`", "`runs/run`"]);
    check(&workspace, "./run").succeeded();
    check(&workspace, "runs/run").succeeded();
}

#[test]
fn a_run_without_a_drafter_says_what_there_is() {
    let workspace = Workspace::new();
    let train = ["recipe", "recipe.toml", "--stage", "prepare"];
    workspace.run(&train).succeeded();
    let told = [
        "the run `runs/run` has not exported a drafter yet",
        "run its recipe",
    ];
    let outcome = check(&workspace, "run").failed(&told);
    assert!(!outcome.stderr.contains("train/drafter"), "{outcome:#?}");
    let train = [
        "recipe",
        "recipe.toml",
        "--stage",
        "prepare",
        "--stage",
        "train",
    ];
    workspace.run(&train).succeeded();
    check(&workspace, "run").failed(&[told[0], "`runs/run/train/drafter`"]);
    workspace
        .run(&["report", "run"])
        .failed(&["the run `run` has no report yet"]);
    workspace.run(&["recipe", "recipe.toml"]).succeeded();
    std::fs::remove_dir_all(workspace.path(FOLDER)).unwrap();
    let told = [&format!("`{FOLDER}`")[..], "`export` wrote, is missing"];
    check(&workspace, "run").failed(&told);
}

#[test]
fn the_drafter_and_the_report_of_a_run_that_trains_anew_are_stale() {
    let workspace = Workspace::finished();
    workspace.unfinish("train");
    let why = "the stage `train` was started again and is not done";
    let outcome = check(&workspace, "run").succeeded();
    let warned = format!("warning: the drafter in `{FOLDER}` is stale: {why}");
    assert!(outcome.stderr.contains(&warned), "{outcome:#?}");
    let outcome = workspace.run(&["report", "run"]).succeeded();
    assert!(
        outcome.stdout.contains(&format!("Stale: run: {why}.")),
        "{outcome:#?}"
    );
}

#[test]
fn the_drafter_of_a_training_before_is_told_by_what_has_changed_in_every_command() {
    let workspace = Workspace::finished();
    // What no stage up to the training reads has nothing to do with it.
    let sets = "--set train.learning_rate=1e-4 --set train.log_every=3 --set features.timeout=99 --set evaluate.seed=3";
    let recipe = format!("recipe recipe.toml {sets} --stage prepare --stage train");
    workspace.run_line(recipe).succeeded();
    let stale = format!(
        "the drafter in `{FOLDER}` is stale: it is of the previous training (`train.learning_rate`: 0.001 → 0.0001); run the \
         recipe again for the new one"
    );
    let warned = format!("warning: {stale}\n");
    for command in [
        "check run --target target",
        "generate --target target --prompt count --max-new-tokens 2 --drafter run",
        "push run me/drafter --dry-run",
    ] {
        let outcome = workspace.run_line(command).succeeded();
        assert!(outcome.stderr.contains(&warned), "{command}: {outcome:#?}");
    }
    // What is trained by now can be exported.
    let export = |out: &str| workspace.run_line(format!("export run --to vllm --out {out}"));
    let outcome = export("new").succeeded();
    assert!(!outcome.stderr.contains("stale"), "{outcome:#?}");
    workspace.unfinish("train");
    let told = "the run `runs/run` is not trained anew yet: ";
    export("none").failed(&[told, &stale]);
    assert!(!workspace.path("none").exists());
    // What a training rests on may be another one, too.
    let prepare = "recipe recipe.toml --set data.mask=all --stage prepare";
    workspace.run_line("recipe recipe.toml").succeeded();
    workspace.run_line(prepare).succeeded();
    let outcome = export("older").succeeded();
    let told = "warning: the drafter in `runs/run/train/drafter` is stale: it is of the previous training (`data.mask`: ";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
}
