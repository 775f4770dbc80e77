//! One drafter judged by several targets of a family in one report.
use serde_json::Value;
use spectrain_data::tokenizer::train_byte_level_bpe;

use crate::workspace::{Outcome, VOCAB, Workspace, conversation};

/// Two targets of other sizes, and a language model that drafts for both.
fn family() -> Workspace {
    let workspace = Workspace::new();
    workspace.write_target_of("small", 8, |spec| spec.layers = 3);
    workspace.write_target_of("large", 9, |spec| spec.d_model = 48);
    workspace.write_target_of("drafter", 10, |spec| spec.layers = 2);
    workspace
}

/// Judges a drafter by some targets.
fn evaluate(workspace: &Workspace, targets: &[&str], drafter: &str, out: &str) -> Outcome {
    let mut words = vec!["evaluate", "--drafter", drafter, "--prompts", "eval.jsonl"];
    words.extend(["--max-new-tokens", "6", "--draft-length", "2", "--out", out]);
    words.extend(targets.iter().flat_map(|target| ["--target", *target]));
    workspace.run(&words)
}

/// What does not depend on the clock.
fn acceptance(setting: &Value) -> Vec<Value> {
    let overall = &setting["overall"];
    let keys = ["tokens", "passes", "tau", "tau_ci95", "accepted_histogram"];
    keys.map(|key| overall[key].clone()).to_vec()
}

/// Fails unless a report of both targets says of each what `evaluate` finds with it alone; the greedy tokens of both.
fn is_what_each_finds_alone(workspace: &Workspace, report: &Value) -> u64 {
    let settings = report["settings"].as_array().unwrap();
    let mut greedy_tokens = 0;
    for (index, target) in ["small", "large"].into_iter().enumerate() {
        let out = format!("alone-{target}");
        evaluate(workspace, &[target], "drafter", &out).succeeded();
        let alone = workspace.json(&format!("{out}/report.json"));
        assert!(alone.get("targets").is_none() && alone["settings"][0].get("target").is_none());
        assert_eq!(report["targets"][index], alone["target"]);
        for (at, setting) in alone["settings"].as_array().unwrap().iter().enumerate() {
            let of_both = &settings[3 * index + at];
            assert_eq!(of_both["target"], target);
            assert_eq!(acceptance(of_both), acceptance(setting));
            for key in ["model", "memory_bound"] {
                assert!(of_both["overall"]["speedup"][key].as_f64().unwrap() > 0.0);
            }
        }
        greedy_tokens += alone["lossless"]["greedy_tokens"].as_u64().unwrap();
    }
    greedy_tokens
}

fn differences_name_the_target(workspace: &Workspace) {
    let differences = workspace.run_line("report both --baseline both --csv pairs.csv");
    let differences = differences.succeeded().stdout;
    let rows = workspace.text("pairs.csv");
    for target in ["small", "large"] {
        let way = format!("{target}, T=0, greedy, chain 2");
        assert!(
            differences.contains(&format!("- {way}: τ ")),
            "{differences}"
        );
        assert!(rows.contains(&format!(",\"{way}\",overall,")), "{rows}");
    }
}

#[test]
fn one_drafter_is_judged_by_two_targets_in_one_report() {
    let workspace = family();
    let both = evaluate(&workspace, &["small", "large"], "drafter", "both").succeeded();
    for part in [
        "language_model drafter drafter",
        "for small, large\nprompts: ",
        "small: T=0, greedy, chain 2 ",
        "large: T=1, rejection, chain 2 drawn\n",
    ] {
        assert!(both.stdout.contains(part), "no `{part}`: {both:#?}");
    }
    let report = workspace.json("both/report.json");
    assert_eq!(report["schema"], 1);
    assert_eq!(report["recipe"]["evaluate"]["targets"][0], "large");
    assert_eq!(report["target"], report["targets"][0]);
    let greedy_tokens = is_what_each_finds_alone(&workspace, &report);
    assert_eq!(report["settings"].as_array().unwrap().len(), 6);
    assert_eq!(report["lossless"]["greedy_tokens"], greedy_tokens);
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);
    assert!(report["lossless"]["sampling"]["dof"].is_u64());

    let words = ["report", "both", "alone-large"];
    let shown = workspace.run(&words).succeeded().stdout;
    for row in [
        "\nsmall: T=0, greedy, chain 2\n  both  ",
        "\n  alone-large  ",
    ] {
        assert!(shown.contains(row), "no `{row}`: {shown}");
    }
    let words = [&words[..], &["--out", "table.md"]].concat();
    workspace.run(&words).succeeded();
    let table = workspace.text("table.md");
    for row in [
        "| target | decoding |",
        "| small | T=0, greedy, chain 2 | both |",
        "| large | T=0, greedy, chain 2 | alone-large |",
        "Of alone-large and both only both was judged with `small`.",
    ] {
        assert!(table.contains(row), "no `{row}`: {table}");
    }
    assert!(!table.contains("Not comparable"), "{table}");

    differences_name_the_target(&workspace);
}

#[test]
fn a_recipe_judges_by_further_targets_and_again_when_one_has_changed() {
    let workspace = Workspace::finished();
    workspace.write_target_of("second", 8, |_| {});
    let words = [
        "recipe",
        "recipe.toml",
        "--set",
        "evaluate.targets=[\"second\"]",
    ];
    workspace.run(&words).succeeded();
    let report = || workspace.json("runs/run/evaluate/report.json");
    let first = report();
    let names = [
        &first["settings"][0]["target"],
        &first["settings"][1]["target"],
    ];
    assert_eq!(names, ["target", "second"]);
    assert_ne!(first["targets"][0]["sha256"], first["targets"][1]["sha256"]);

    workspace.write_target_of("second", 9, |_| {});
    let outcome = workspace.run(&words).succeeded();
    let told = "evaluate: starts over: the target `second`";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
    assert!(
        outcome.stderr.contains("export: done before"),
        "{outcome:#?}"
    );
    assert_ne!(report()["targets"][1], first["targets"][1]);
}

#[test]
fn prompts_without_room_in_a_target_are_refused_before_anything_is_decoded() {
    let workspace = family();
    workspace.write_target_of("tight", 8, |spec| spec.max_positions = 8);
    for targets in [&["small", "tight"][..], &["tight"]] {
        evaluate(&workspace, targets, "drafter", "out").failed(&[
            "the target `tight`: prompt 0 of `eval",
            "expected at most 7 tokens, so that one more fits the context of 8",
            "`spectrain evaluate --max-length 7` leaves longer prompts out",
        ]);
        assert!(!workspace.path("out").exists());
    }
    // Those that a tree is made on are longer than those that are evaluated.
    let short = conversation(1, "one");
    let long = short.replace("count to", &"count to ".repeat(9));
    workspace.write("long.jsonl", format!("{short}\n{long}"));
    workspace.write_target_of("middle", 8, |spec| spec.max_positions = 36);
    let words = [
        "evaluate",
        "--target",
        "middle",
        "--drafter",
        "drafter",
        "--prompts",
        "long.jsonl",
        "--count",
        "1",
        "--draft",
        "{ shape = \"calibrated\", nodes = 3 }",
    ];
    workspace
        .run(&words)
        .failed(&["the target `middle`: a prompt to calibrate a tree or tune a threshold on"]);
}

#[test]
fn a_recipe_leaves_out_prompts_without_room_in_a_further_target() {
    let workspace = Workspace::new();
    let short = conversation(1, "one");
    let long = short.replace("count to", &"count to ".repeat(9));
    workspace.write("eval.jsonl", format!("{short}\n{long}"));
    workspace.write_target_of("middle", 8, |spec| spec.max_positions = 36);
    workspace.write_target_of("tight", 9, |spec| spec.max_positions = 8);
    let run = |targets: &str| {
        let targets = format!("evaluate.targets={targets}");
        workspace.run_recipe(&["data.max_length=128", &targets])
    };
    let outcome = run(r#"["middle"]"#).succeeded();
    let told =
        "evaluate: held-out prompts that fill `middle`'s context of 36 tokens and are left out: 1";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
    let report = workspace.json("runs/run/evaluate/report.json");
    for setting in report["settings"].as_array().unwrap() {
        assert_eq!(setting["overall"]["prompts"], 1);
    }
    run(r#"["middle", "tight"]"#)
        .failed(&["no held-out prompt leaves room in `tight`'s context of 8 tokens"]);
}

#[test]
fn targets_that_do_not_go_together_are_refused_by_name() {
    let workspace = Workspace::finished();
    workspace.write_target_of("wide", 8, |spec| spec.d_model = 48);
    let exported = "runs/run/export/drafter";
    let judged = |targets: &[&str]| evaluate(&workspace, targets, exported, "out");
    judged(&["target", "wide"]).failed(&[
        "the target `wide`: ",
        "the drafter `runs/run/export/drafter` is not for this target",
    ]);
    workspace.write_target_of("other", 8, |_| {});
    let texts = (0..50).map(|i| format!("zebras and quails {i}"));
    let special = ["<|im_start|>", "<|im_end|>"];
    let tokenizer = train_byte_level_bpe(texts, VOCAB, &special).unwrap();
    tokenizer.save(&workspace.path("other")).unwrap();
    judged(&["target", "other"]).failed(&[
        "the target `other`: token ",
        "as in `target`",
        "the targets of one report must share their tokens with `target`",
    ]);
    workspace.write_target_of("short", 8, |spec| spec.vocab = 100);
    judged(&["target", "short"]).failed(&["the target `short`: it knows 100 tokens"]);
    assert!(!workspace.path("out").exists());
    for repeated in [["target", "wide", "target"], ["wide", "target", "target"]] {
        let twice = judged(&repeated);
        assert_eq!(twice.code, Some(2), "{twice:#?}");
        let told = "`--target target` is given twice";
        assert!(twice.stderr.contains(told), "{twice:#?}");
    }
}
