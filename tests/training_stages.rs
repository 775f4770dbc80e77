//! Recipes that train in several stages, each from what the one before has left.
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Child;

use spectrain_checkpoints::state;

use crate::workspace::{ENDLESS, Outcome, RECIPE, Workspace, signal, wait_for};

const STAGES: [&str; 3] = ["adapt", "align", "refine"];

/// The recipe of `Workspace::new` for DEER. The two tokens are bytes that no text holds.
pub(crate) fn workspace() -> Workspace {
    let workspace = Workspace::new();
    let drafter = "fresh = { layers = 1 }\nmask_token = 189\nseparator_token = 188\nblock_size = 4";
    let recipe = RECIPE
        .replace("recipe = \"eagle3\"", "recipe = \"deer\"")
        .replace("draft_vocab = 256", drafter)
        .replace("[objective]\ndraft_steps = 2", "[objective]\nspan = 4")
        .replace("[evaluate]", "[stages.refine]\nsteps = 9\n\n[evaluate]");
    workspace.write("recipe.toml", recipe);
    workspace
}

fn run(workspace: &Workspace, words: &[&str]) -> Outcome {
    let words: Vec<&str> = ["recipe", "recipe.toml"]
        .into_iter()
        .chain(words.iter().copied())
        .collect();
    workspace.run(&words)
}

fn drafter(workspace: &Workspace, runs: &str, stage: &str) -> Vec<u8> {
    workspace.bytes(&format!("{runs}/run/{stage}/drafter/model.safetensors"))
}

#[test]
fn each_stage_leaves_a_drafter_that_can_be_judged_and_the_last_one_is_exported() {
    let workspace = workspace();
    let outcome = run(&workspace, &[]).succeeded();
    let said = |part: &str| assert!(outcome.stderr.contains(part), "no `{part}`: {outcome:#?}");
    for (stage, steps) in STAGES.into_iter().zip([6, 6, 9]) {
        said(&format!("{stage}: {steps} steps"));
        let summary = &workspace.manifest(stage)["summary"]["fit"];
        assert_eq!(summary["steps"], steps);
        // Before the second stage nothing drafts, and before the third masks see what no decoder knows.
        let best = &summary["best"][1];
        assert_eq!(best["tau"].is_null(), stage == "adapt");
        assert_eq!(best["simulated_tau"].is_null(), stage != "refine");
        assert!(best["loss"].is_f64() && best["alpha"][0].is_f64(), "{best}");
    }
    let none = "# no serving engine loads a masked-diffusion drafter";
    assert!(outcome.stdout.contains(none), "{outcome:#?}");
    let drafters: BTreeSet<Vec<u8>> = STAGES
        .iter()
        .map(|stage| drafter(&workspace, "runs", stage))
        .collect();
    assert_eq!(drafters.len(), 3, "each stage trains");
    let exported = &workspace.manifest("export")["inputs"];
    assert!(exported["`refine/drafter`"].is_string(), "{exported}");
    let config = workspace.json("runs/run/export/drafter/config.json");
    let provenance = &config["spectrain"]["provenance"];
    let step = &workspace.manifest("refine")["summary"]["exported_step"];
    assert!(
        step.is_u64() && provenance["training"]["step"] == *step,
        "{provenance}"
    );
    assert!(!workspace.path("runs/run/train").exists());
    let report = workspace.json("runs/run/evaluate/report.json");
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);
    for stage in STAGES {
        let folder = format!("runs/run/{stage}/drafter");
        let words = ["evaluate", "--target", "target", "--drafter", &folder];
        let more = [
            "--prompts",
            "eval.jsonl",
            "--count",
            "2",
            "--temperature",
            "1",
        ];
        let judged = [&words[..], &more, &["--max-new-tokens", "6"]].concat();
        let judged = workspace.run(&judged).succeeded();
        assert!(
            judged.stdout.contains("masked_language_model drafter"),
            "{judged:#?}"
        );
    }
    let architecture = &config["architectures"];
    assert_eq!(architecture[0], "MaskedDiffusionDrafter");
    let out = ["export", "run", "--to", "vllm", "--out", "out"];
    workspace
        .run(&out)
        .failed(&["no serving engine loads masked_language_model drafters"]);
    assert!(!workspace.path("out").exists());
}

#[test]
fn a_setting_of_one_stage_runs_that_one_again_and_those_after_it() {
    let workspace = workspace();
    run(&workspace, &[]).succeeded();
    let again = |changed: &[&str], kept: &[&str], repeated: &[&str]| {
        let words: Vec<&str> = changed.iter().flat_map(|key| ["--set", *key]).collect();
        let outcome = run(&workspace, &words).succeeded();
        for (stages, part) in [(kept, "done before"), (repeated, "starts over")] {
            for stage in stages {
                let line = format!("{stage}: {part}");
                assert!(outcome.stderr.contains(&line), "no `{line}`: {outcome:#?}");
            }
        }
    };
    again(
        &["objective.alpha=1.02"],
        &["adapt", "align"],
        &["refine", "export"],
    );
    let changed = ["objective.alpha=1.02", "stages.align.learning_rate=2e-3"];
    again(&changed, &["adapt"], &["align", "refine", "export"]);
    // A stage of no step is none.
    let skipped = [&changed[..], &["stages.adapt.steps=0"]].concat();
    again(&skipped, &["prepare"], &["align", "refine"]);
    let plan = [&["--plan"], &["--set", "stages.refine.steps=0"][..]].concat();
    let plan = run(&workspace, &plan).succeeded().stdout;
    assert!(
        plan.contains("  align ") && !plan.contains("  refine "),
        "{plan}"
    );
}

#[test]
fn stages_that_there_are_not_or_that_make_no_sense_are_refused_where_they_stand() {
    let workspace = workspace();
    let with = |words: &[&str]| {
        let words: Vec<&str> = words.iter().flat_map(|key| ["--set", *key]).collect();
        run(&workspace, &words)
    };
    let refused = |words: &[&str], parts: &[&str]| drop(with(words).misused(parts));
    refused(
        &["stages.polish.steps=1"],
        &["unknown stage `polish`", "adapt, align, refine"],
    );
    refused(&["stages.align.stpes=1"], &["stpes"]);
    refused(
        &["stages.align.max_grad_norm=-1.0"],
        &["stages.align.max_grad_norm"],
    );
    refused(
        &["stages.align.batch_tokens=100"],
        &["stages.align.batch_tokens"],
    );
    refused(&["objective.alpha=0.5"], &["objective.alpha"]);
    // That the token occurs in texts is no fault of the recipe alone.
    with(&["drafter.separator_token=0"]).failed(&["separator_token", "times"]);
    let none = [
        "stages.adapt.steps=0",
        "stages.align.steps=0",
        "stages.refine.steps=0",
    ];
    refused(&none, &["0 in each"]);
    workspace.write(
        "recipe.toml",
        format!("{RECIPE}[stages.align]\nsteps = 3\n"),
    );
    refused(&[], &["this recipe trains in one"]);
}

#[test]
fn a_run_that_is_stopped_behind_a_stage_and_killed_in_the_next_ends_as_one_that_is_not() {
    let workspace = workspace();
    let run = |runs: &str, steps: &str, more: &[&str]| {
        let steps = format!("stages.align.steps={steps}");
        let words = ["recipe", "recipe.toml", "--runs", runs, "--set", &steps];
        // The first steps are the same however many follow.
        let schedule = ["--set", "train.schedule=constant"];
        workspace.start(&[&words[..], &schedule, more].concat())
    };
    let ended = |child: Child| Outcome::from(child.wait_with_output().unwrap());
    let first = ["--stage", "prepare", "--stage", "adapt"];
    ended(run("stopped", ENDLESS, &first)).succeeded();
    assert!(!workspace.path("stopped/run/align").exists());
    let mut child = run("stopped", ENDLESS, &[]);
    let folder = workspace.path("stopped/run/align");
    wait_for(&mut child, || {
        let saved = state::latest(&folder).ok().flatten();
        saved.is_some_and(|saved| saved.step >= 3)
    });
    signal(&child, "-KILL");
    child.wait().unwrap();
    let manifest = workspace.json("stopped/run/align/manifest.json");
    assert_eq!(manifest["status"], "started");
    let saved = state::latest(&folder).unwrap().unwrap().step;
    let steps = (saved + 5).to_string();
    let outcome = ended(run("stopped", &steps, &[])).succeeded();
    let goes_on = format!("align: goes on from step {saved}: ");
    for part in ["adapt: done before", &goes_on] {
        assert!(outcome.stderr.contains(part), "no `{part}`: {outcome:#?}");
    }
    ended(run("whole", &steps, &[])).succeeded();
    for stage in STAGES {
        let [stopped, whole] = ["stopped", "whole"].map(|runs| drafter(&workspace, runs, stage));
        assert!(stopped == whole, "the drafter of `{stage}` differs");
    }
}

/// Loses the weights of every state of a stage in its way, and makes the last stage one that has not run.
fn lose(workspace: &Workspace, stage: &str, way: fn(&Path)) {
    let saved = state::list(&workspace.path(format!("runs/run/{stage}"))).unwrap();
    assert!(!saved.is_empty());
    for state in saved {
        way(&state.path);
    }
    fs::remove_dir_all(workspace.path("runs/run/refine")).unwrap();
}

/// The recipe of `Workspace::new` for DFlash by DEER.
fn dflash() -> Workspace {
    let workspace = Workspace::new();
    let recipe = RECIPE
        .replace("recipe = \"eagle3\"", "recipe = \"dflash-deer\"")
        .replace(
            "draft_vocab = 256",
            "layers = 1\nblock_size = 4\nmask_token = 189",
        )
        .replace("draft_steps = 2", "anchors = 4");
    workspace.write("recipe.toml", recipe);
    workspace
}

#[test]
fn a_stage_goes_on_from_the_drafter_before_it_where_the_states_of_that_are_damaged_or_gone() {
    for workspace in [workspace(), dflash()] {
        goes_on_from_the_drafter(&workspace);
    }
}

fn goes_on_from_the_drafter(workspace: &Workspace) {
    run(workspace, &[]).succeeded();
    let expected = drafter(workspace, "runs", "refine");
    let losses: [fn(&Path); 2] = [
        |state| fs::write(state.join("weights.safetensors"), "cut").unwrap(),
        |state| fs::remove_dir_all(state).unwrap(),
    ];
    for way in losses {
        lose(workspace, "align", way);
        let outcome = run(workspace, &[]).succeeded();
        for part in [
            "align: done before",
            "the same weights are taken from `runs/run/align/drafter`",
        ] {
            assert!(outcome.stderr.contains(part), "no `{part}`: {outcome:#?}");
        }
        assert!(drafter(workspace, "runs", "refine") == expected);
    }
}

#[test]
fn where_low_rank_matrices_are_merged_in_a_drafter_a_lost_state_is_told_with_a_way_on() {
    let workspace = workspace();
    let recipe = workspace.text("recipe.toml");
    let recipe = recipe.replace("block_size = 4", "block_size = 4\nlora = { rank = 2 }");
    workspace.write("recipe.toml", recipe);
    run(&workspace, &[]).succeeded();
    lose(&workspace, "align", |state| {
        fs::remove_dir_all(state).unwrap()
    });
    run(&workspace, &[]).failed(&[
        "stage `refine`: `runs/run/align`: holds no state of step",
        "move `runs/run/align` away to train the stage `align` anew",
    ]);
    let (folder, away) = (workspace.path("runs/run/align"), workspace.path("away"));
    fs::rename(folder, away).unwrap();
    run(&workspace, &[]).succeeded();
}
