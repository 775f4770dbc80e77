//! Recipes run end to end by the program, stopped in the middle, and taken up again.
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use spectrain_checkpoints::{ModelFolder, state};
use spectrain_models::products::Precision;

use crate::workspace::{CONVERSATIONS, ENDLESS, Outcome, RECIPE, Workspace, signal, wait_for};

/// From nothing to a report in some seconds.
pub const SYNTHETIC: &str = r#"recipe = "eagle3"
name = "run"

[synthetic]
conversations = 200
held_out = 24
vocab = 400
layers = 5
d_model = 32
d_ff = 64
heads = 2
kv_heads = 1
d_head = 16
steps = 20
batch_tokens = 512
max_length = 256
learning_rate = 1e-2
warmup_steps = 5

[data]
max_length = 256

[drafter]
draft_vocab = 256

[objective]
draft_steps = 3

[train]
steps = 12
batch_tokens = 256
learning_rate = 1e-2
warmup_steps = 2
validate_every = 6
validate_samples = 4
decode_prompts = 2
decode_tokens = 8
save_every = 6

[evaluate]
prompts = 2
draft_lengths = [3]
drafts = [{ shape = "dynamic", depth = 3, top_k = 2, nodes = 6 }, { shape = "calibrated", nodes = 4, prompts = 2 }]
max_new_tokens = 8
"#;

/// [`RECIPE`] for an EAGLE-1 drafter.
fn eagle1_workspace() -> Workspace {
    let workspace = Workspace::new();
    let recipe = RECIPE
        .replace("eagle3", "eagle1")
        .replace("draft_vocab = 256\n", "")
        .replace("[objective]\ndraft_steps = 2", "[objective]\npasses = 2")
        .replace(
            "[train]\n",
            "[train]\nmax_grad_norm = 0.0\nclip_value = 0.5\n",
        );
    workspace.write("recipe.toml", recipe);
    workspace
}

const RUN: [&str; 2] = ["recipe", "recipe.toml"];
const STAGES: [&str; 5] = ["synthetic", "prepare", "train", "export", "evaluate"];

fn run_with(workspace: &Workspace, settings: &[&str]) -> Outcome {
    workspace.run_recipe(settings).succeeded()
}

/// Fails unless the report of [`SYNTHETIC`] has what the recipe asks for, and can be true.
fn report_is_whole(report: &Value) {
    assert_eq!(report["schema"], 1);
    assert_eq!(report["recipe"]["synthetic"]["vocab"], 400);
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);
    assert!(report["lossless"]["greedy_tokens"].as_u64().unwrap() > 0);
    let settings = report["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 7);
    let calibrated = &settings[2]["draft"];
    assert_eq!(calibrated["measured_on"], "others");
    let paths = calibrated["tree"].as_array().unwrap().len();
    assert_eq!(calibrated["nodes"], paths);
    for setting in settings {
        let tau = setting["overall"]["tau"].as_f64().unwrap();
        // Paths of 3, but for the calibrated tree, whose longest path is 6 by default.
        let is_calibrated = setting["draft"]["shape"] == "calibrated";
        let longest = if is_calibrated { 7.0 } else { 4.0 };
        assert!((1.0..=longest).contains(&tau), "τ {tau} of {setting}");
    }
}

/// Fails unless a second run finds all stages done, says what the first said and writes nothing.
fn once_is_enough(workspace: &Workspace, first: &Outcome) {
    let before = workspace.files("runs");
    let again = workspace.run(&RUN).succeeded();
    let skipped = STAGES.map(|stage| format!("{stage}: done before\n"));
    let skipped = format!("recipe: ./recipe.toml\n{}", skipped.concat());
    let said: String = again
        .stderr
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("all stages: "))
        .collect();
    assert_eq!((&said, &again.stdout), (&skipped, &first.stdout));
    let plan = workspace.run_line("recipe recipe.toml --plan").succeeded();
    assert_eq!(plan.stdout.matches(" done in ").count(), 5, "{plan:#?}");
    assert!(
        workspace.files("runs") == before,
        "nothing was to be written"
    );
}

#[test]
fn one_thread_is_enough() {
    let workspace = Workspace::new();
    workspace.write("recipe.toml", SYNTHETIC);
    let mut command = workspace.command(&RUN);
    command.env("RAYON_NUM_THREADS", "1");
    Outcome::of_ending(command).succeeded();
}

#[test]
fn a_recipe_goes_from_nothing_to_a_report_and_once_is_enough() {
    let workspace = Workspace::of(SYNTHETIC);
    let first = workspace.run(&RUN).succeeded();
    for stage in STAGES {
        assert_eq!(workspace.manifest(stage)["status"], "done", "{stage}");
    }
    report_is_whole(&workspace.json("runs/run/evaluate/report.json"));
    let table = workspace.text("runs/run/evaluate/report.md");
    for part in [
        "| τ [95 % CI] |",
        "| T=0, greedy, chain 3 |",
        "| T=1, rejection, dynamic 3×2, 6 nodes |",
    ] {
        assert!(table.contains(part), "no `{part}`: {table}");
    }
    for part in [
        " τ [95 % CI] ",
        "T=0, greedy, chain 3 ",
        "T=1, rejection, dynamic 3×2, 6 nodes",
        "calibrated tree of",
        "Greedy output: 0 of ",
        "vllm serve",
    ] {
        assert!(first.stdout.contains(part), "no `{part}`: {first:#?}");
    }
    once_is_enough(&workspace, &first);

    let report = "report runs/run runs/run/evaluate/report.json";
    let table = workspace.run_line(report).succeeded().stdout;
    let (_, rows) = table.split_once("\nT=0, greedy, chain 3\n").unwrap();
    assert!(
        rows.lines().take(2).all(|row| row.starts_with("  run ")),
        "{table}"
    );

    let exported = workspace.path("runs/run/export/drafter");
    let model = ModelFolder::open(&exported).unwrap();
    let config = model.config();
    assert_eq!(config["vocab_size"], 400);
    assert_eq!(config["draft_vocab_size"], 256);
    workspace.open_drafter(&exported);
}

#[test]
fn a_plan_writes_nothing() {
    let workspace = Workspace::of(SYNTHETIC);
    let plan = workspace.run_line("recipe recipe.toml --plan").succeeded();
    for part in [
        "[synthetic]",
        "warmup_steps = 5",
        "explosion = 10.0",
        "stages:",
        "estimates:",
    ] {
        assert!(plan.stdout.contains(part), "no `{part}`: {plan:#?}");
    }
    let left: Vec<_> = workspace.files("").into_keys().collect();
    assert_eq!(left, [std::path::Path::new("recipe.toml")]);
}

#[test]
fn a_synthetic_target_tells_which_conversations_are_too_long_for_it() {
    let workspace = Workspace::of(SYNTHETIC);
    let of = |longest: usize| {
        let setting = format!("synthetic.max_length={longest}");
        let settings = [
            "--stage",
            "synthetic",
            "--set",
            "synthetic.steps=5",
            "--set",
            &setting,
        ];
        workspace.run(&[&RUN[..], &settings].concat())
    };
    let refused = of(16);
    let expected = "`synthetic.max_length`: expected at least ";
    let asked = refused.stderr.split(expected).nth(1).unwrap();
    assert!(
        asked.contains("the shortest of 200 conversations has, found 16"),
        "{refused:#?}"
    );
    let shortest: usize = asked.split(',').next().unwrap().parse().unwrap();
    let outcome = of(shortest + 60).succeeded();
    for purpose in ["training", "validation"] {
        let said = format!("synthetic: the target's {purpose} leaves out ");
        assert!(outcome.stderr.contains(&said), "{outcome:#?}");
    }
    assert!(!of(512).succeeded().stderr.contains("leaves out"));
}

#[test]
fn bf16_on_the_cpu_is_what_a_drafter_is_trained_in_and_not_what_decodes() {
    let workspace = Workspace::finished();
    let outcome = run_with(&workspace, &["target.dtype=bf16"]);
    let expected = "starts over: `target.dtype`: \"auto\" → \"bf16\"";
    assert!(outcome.stderr.contains(expected), "{outcome:#?}");
    assert_eq!(
        outcome.stderr.contains("does not multiply in bf16"),
        !Precision::Bf16.is_here()
    );
    for (stage, computed_in) in [("train", "bf16"), ("evaluate", "f32")] {
        let manifest = workspace.json(&format!("runs/run/{stage}/manifest.json"));
        assert_eq!(manifest["settings"]["target"]["computed_in"], computed_in);
    }
    let report = workspace.json("runs/run/evaluate/report.json");
    assert_eq!(report["target"]["dtype"], "f32");
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);
}

#[test]
fn a_target_in_eight_bits_is_drafted_for_and_named_in_the_report() {
    let workspace = Workspace::finished();
    let trained = workspace.bytes("runs/run/train/drafter/model.safetensors");
    let outcome = run_with(&workspace, &["target.dtype=int8"]);
    let expected = "starts over: `target.dtype`: \"auto\" → \"int8\"";
    assert!(outcome.stderr.contains(expected), "{outcome:#?}");
    let again = workspace.bytes("runs/run/train/drafter/model.safetensors");
    assert_ne!(again, trained, "the target says something else");
    let report = workspace.text("runs/run/evaluate/report.json");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["target"]["dtype"], "int8");
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);

    let evaluate = "evaluate --target target --drafter run --prompts eval.jsonl --count 2 --max-new-tokens 8 --temperature 0 \
                    --out again --target-dtype";
    workspace.run_line(format!("{evaluate} int8")).succeeded();
    assert_eq!(
        workspace.json("again/report.json")["target"]["dtype"],
        "int8"
    );
    let refused = workspace.run_line(format!("{evaluate} int8 --device cuda:0"));
    let expected = "`--target-dtype`: expected `f32` or `bf16` on `cuda:0`, found `int8`";
    assert!(refused.stderr.contains(expected), "{refused:#?}");
}

#[test]
fn a_changed_key_runs_again_what_depends_on_it_and_no_more() {
    let workspace = Workspace::finished();
    let trained = workspace.bytes("runs/run/train/drafter/model.safetensors");
    let exported = workspace.bytes("runs/run/export/drafter/model.safetensors");
    let says = |overrides: &[&str], expected: &[&str]| {
        let outcome = run_with(&workspace, overrides);
        for expected in expected {
            assert!(
                outcome.stderr.contains(expected),
                "no `{expected}`: {outcome:#?}"
            );
        }
    };
    let unchanged = ["prepare: done before", "train: done before"];
    let report = [
        "export: done before",
        "evaluate: starts over: `evaluate.prompts`: 2 → 1",
    ];
    says(&["evaluate.prompts=1"], &[unchanged, report].concat());
    assert_eq!(
        workspace.manifest("evaluate")["settings"]["evaluate"]["prompts"],
        1
    );

    let export = [
        "export: starts over: `export.dtype`: \"bf16\" → \"f32\"",
        "`export/drafter` has changed",
    ];
    says(&["export.dtype=f32"], &[unchanged, export].concat());
    assert_eq!(
        workspace.bytes("runs/run/train/drafter/model.safetensors"),
        trained
    );
    assert_ne!(
        workspace.bytes("runs/run/export/drafter/model.safetensors"),
        exported
    );

    let train = [
        "prepare: done before",
        "train: starts over: `objective.draft_steps`: 2 → 3",
        "train.old-1",
    ];
    says(&["objective.draft_steps=3"], &train);
    assert_eq!(
        workspace.bytes("runs/run/train.old-1/drafter/model.safetensors"),
        trained
    );
    assert_ne!(
        workspace.bytes("runs/run/train/drafter/model.safetensors"),
        trained
    );
}

#[test]
fn what_rests_on_a_target_that_was_made_anew_is_called_stale() {
    let workspace = Workspace::of(SYNTHETIC);
    run_with(&workspace, &["evaluate.temperatures=[0.0]"]);
    let told = |why: &str| {
        let report = workspace.run(&["report", "run"]).succeeded();
        assert!(report.stdout.contains(why), "no `{why}`: {report:#?}");
    };
    let anew = "recipe recipe.toml --set synthetic.steps=21 --stage synthetic";
    workspace.run_line(anew).succeeded();
    told("Stale: run: `synthetic/target` has changed since.");
    workspace.unfinish("synthetic");
    std::fs::remove_dir_all(workspace.path("runs/run/synthetic/target")).unwrap();
    let again = "the stage `synthetic` was started again and is not done";
    told(&format!("Stale: run: {again}."));
    let generate = "generate --target runs/run/synthetic/target --prompt a --max-new-tokens 2";
    let kept = format!("{again}; what it left before is in `runs/run/synthetic.old-1/target`");
    workspace.run_line(generate).failed(&[&kept]);
}

#[test]
fn the_drafter_of_a_run_is_judged_and_put_to_work_by_other_commands() {
    let workspace = Workspace::of(SYNTHETIC);
    run_with(
        &workspace,
        &[
            "evaluate.temperatures=[0.0]",
            "train.steps=24",
            "train.validate_every=24",
        ],
    );
    let pair = "--target runs/run/synthetic/target --drafter runs/run/export/drafter";
    let prompts = "--prompts runs/run/synthetic/eval.jsonl --count 3 --max-new-tokens 8";
    let drafts = "--temperature 0 --draft-length 2,4";
    let judged = format!("evaluate {pair} {prompts} {drafts} --out judged");
    let judged = workspace.run_line(judged).succeeded();
    let report = workspace.json("judged/report.json");
    // The terminal has what matters most, the files have all.
    for row in [
        "T=0, greedy, chain 2",
        "T=0, greedy, chain 4",
        "τ [95 % CI]",
    ] {
        assert!(judged.stdout.contains(row), "no `{row}`: {judged:#?}");
    }
    assert!(
        judged.stdout.lines().all(|line| line.chars().count() <= 80),
        "{judged:#?}"
    );
    let table = workspace.text("judged/report.md");
    assert!(table.contains("| T=0, greedy, chain 4 | eval |"), "{table}");
    assert!(
        workspace
            .text("judged/report.html")
            .contains("T=0, greedy, chain 4")
    );
    assert_eq!(
        (&report["schema"], &report["lossless"]["greedy_mismatches"]),
        (&1.into(), &0.into())
    );
    assert_eq!(report["settings"].as_array().unwrap().len(), 2);
    assert_eq!(report["settings"][1]["overall"]["prompts"], 3);
    assert!(report["settings"][0]["overall"]["tau"].as_f64().unwrap() >= 1.0);

    let generate = |pair: &str| {
        let words = format!("generate {pair} --max-new-tokens 24 --prompt");
        let words = words.split(' ').chain(["Sort these numbers: 4, 2, 9."]);
        workspace.run(&words.collect::<Vec<_>>()).succeeded()
    };
    let plain = generate("--target runs/run/synthetic/target");
    let drafted = generate(pair);
    // Brackets mark what was drafted, and may be in the text itself.
    let text = |outcome: &Outcome| outcome.stdout.replace(['[', ']'], "");
    assert_eq!(text(&drafted), text(&plain));
    assert!(drafted.stderr.contains("target passes"), "{drafted:#?}");

    let export = "export run --to vllm --dtype f32 --out exported";
    let export = workspace.run_line(export).succeeded();
    assert!(
        export.stdout.contains("vllm serve") && !export.stdout.contains("sglang"),
        "{export:#?}"
    );
    workspace.open_drafter(&workspace.path("exported"));
}

#[test]
fn stored_features_train_as_live_ones_do() {
    let workspace = Workspace::finished();
    let loss = || {
        workspace.manifest("train")["summary"]["fit"]["loss"]
            .as_f64()
            .unwrap()
    };
    let text = || workspace.manifest("train")["summary"]["fit"]["text"].clone();
    let (live, of_live) = (loss(), text());
    let outcome = run_with(&workspace, &["features.mode=stored"]);
    for said in [
        "`features.mode`: \"live\" → \"stored\"",
        "train: what the target says of ",
    ] {
        assert!(outcome.stderr.contains(said), "no `{said}`: {outcome:#?}");
    }
    // Before the first step, and in the curves with the first validation.
    assert!(of_live["tokens"].as_u64().unwrap() > 0, "{of_live}");
    assert_eq!(text()["tokens"], of_live["tokens"]);
    let curves = workspace.text("runs/run/train/events/metrics.jsonl");
    let told: Vec<&str> = curves
        .lines()
        .filter(|line| line.contains("\"text/likeliest\""))
        .collect();
    assert!(
        told.len() == 1
            && told[0].starts_with("{\"step\":3,")
            && told[0].contains("validation/loss"),
        "{told:?}"
    );
    let features = workspace.manifest("features");
    assert_eq!(
        (&features["status"], &features["summary"]["samples"]),
        (&"done".into(), &CONVERSATIONS.into())
    );
    assert!((loss() / live - 1.0).abs() < 1e-2, "{live} and {}", loss());
    let report = workspace.json("runs/run/evaluate/report.json");
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);
}

/// The recipe of `Workspace::new` for heads; `drafter` and `objective` are the contents of those tables.
fn heads(kind: &str, drafter: &str, objective: &str) -> Workspace {
    let workspace = Workspace::new();
    let recipe = RECIPE
        .replace("recipe = \"eagle3\"", &format!("recipe = \"{kind}\""))
        .replace("draft_vocab = 256", drafter)
        .replace(
            "[objective]\ndraft_steps = 2",
            &format!("[objective]\n{objective}"),
        );
    workspace.write("recipe.toml", recipe);
    workspace
}

#[test]
fn heads_go_from_conversations_to_a_report() {
    let cases = [
        (
            "medusa",
            "medusa_heads = 3\ndraft_vocab = 256",
            "",
            "only where its heads share the target's",
        ),
        (
            "medusa",
            "medusa_heads = 2\nhead = \"shared\"",
            "teacher_weight = 1.0",
            "\"original_lm_head\": true",
        ),
        (
            "hydra",
            "hydra_heads = 3\nhead_layers = 2\nprefix_layer = true",
            "label_weight = 0.0\nteacher_weight = 1.0",
            "no serving engine loads Hydra",
        ),
    ];
    for (kind, drafter, objective, part) in cases {
        let workspace = heads(kind, drafter, objective);
        let live = workspace.run(&RUN).succeeded();
        assert!(
            live.stdout.contains(&format!("{kind} drafter")),
            "{live:#?}"
        );
        let config = workspace.text("runs/run/export/drafter/config.json");
        let said = format!("{}{config}", live.stdout);
        assert!(said.contains(part), "no `{part}`: {live:#?}");
        let report = workspace.json("runs/run/evaluate/report.json");
        assert_eq!(report["lossless"]["greedy_mismatches"], 0);
        // Nothing is captured beside the last hidden state, in storage neither.
        let loss = || {
            let summary = &workspace.manifest("train")["summary"];
            summary["fit"]["loss"].as_f64().unwrap()
        };
        let live = loss();
        run_with(&workspace, &["features.mode=stored"]);
        assert!((loss() / live - 1.0).abs() < 1e-2, "{live} and {}", loss());
    }
}

/// Trains for so many short steps, each of which is saved. With a constant schedule the first ones are the same however many
/// follow.
fn long(workspace: &Workspace, runs: &str, steps: &str) -> Outcome {
    Outcome::from(long_command(workspace, runs, steps).output().unwrap())
}

fn long_command(workspace: &Workspace, runs: &str, steps: &str) -> Command {
    let steps = format!("train.steps={steps}");
    let mut words = [&RUN[..], &["--runs", runs, "--set", &steps]].concat();
    for given in ["train.schedule=constant", "train.validate_every=20"] {
        words.extend(["--set", given]);
    }
    workspace.command(&words)
}

/// Runs until some steps of training are saved, and sends a signal.
fn stop(workspace: &Workspace, sent: &str) -> Output {
    let mut command = long_command(workspace, "stopped", ENDLESS);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let train = workspace.path("stopped/run/train");
    wait_for(&mut child, || {
        let saved = state::latest(&train).ok().flatten();
        saved.is_some_and(|saved| saved.step >= 3)
    });
    signal(&child, sent);
    let output = child.wait_with_output().unwrap();
    let manifest = workspace.json("stopped/run/train/manifest.json");
    assert_eq!(manifest["status"], "started");
    // One that is killed cannot say how long it worked.
    assert_eq!(manifest["seconds"].is_f64(), sent != "-KILL");
    assert!(!train.join("drafter").exists());
    output
}

/// Takes the run up again, which must give the bytes and figures that a run gives that was never stopped.
fn goes_on(workspace: &Workspace) {
    let saved = state::latest(&workspace.path("stopped/run/train"));
    let saved = saved.unwrap().unwrap().step;
    // Inside of a log interval of two steps or between two of them, as it was stopped.
    let steps = (saved + 5).to_string();
    let outcome = long(workspace, "stopped", &steps).succeeded();
    let said = format!("train: goes on from step {saved}: `train.steps`: {ENDLESS} → {steps}");
    assert!(outcome.stderr.contains(&said), "no `{said}`: {outcome:#?}");
    let resumed = format!("resumed at step {saved}");
    assert!(outcome.stderr.contains(&resumed), "{outcome:#?}");

    long(workspace, "whole", &steps).succeeded();
    for file in [
        "train/drafter/model.safetensors",
        "export/drafter/model.safetensors",
    ] {
        let [stopped, whole] =
            ["stopped", "whole"].map(|runs| workspace.bytes(&format!("{runs}/run/{file}")));
        assert!(stopped == whole, "`{file}` differs");
    }
    let fit = |runs: &str| {
        let manifest = workspace.json(&format!("{runs}/run/train/manifest.json"));
        let mut fit = manifest["summary"]["fit"].clone();
        fit.as_object_mut().unwrap().remove("seconds");
        fit
    };
    assert_eq!(fit("stopped"), fit("whole"));
}

#[test]
fn a_run_that_is_killed_while_it_trains_ends_as_one_that_is_not() {
    let workspace = Workspace::new();
    let output = stop(&workspace, "-KILL");
    assert_eq!(output.status.code(), None);
    goes_on(&workspace);
}

#[test]
fn a_run_that_is_interrupted_saves_and_ends_as_one_that_is_not() {
    let workspace = Workspace::new();
    let outcome = Outcome::from(stop(&workspace, "-INT"));
    let outcome =
        outcome.interrupted(&["stage `train`: interrupted; the same command goes on from here"]);
    let told = outcome.stderr.contains("stopping at the next safe point");
    assert!(told, "{outcome:#?}");
    goes_on(&workspace);
}

/// The program with these words, started by what ignores some signals, as `nohup` does, or a shell what it starts with `&`.
fn ignoring(workspace: &Workspace, signals: &str, words: &[&str]) -> Command {
    let program = workspace.command(words);
    let mut shell = Command::new("sh");
    let script = format!("trap '' {signals}; exec \"$0\" \"$@\"");
    shell
        .args(["-c", &script])
        .arg(program.get_program())
        .args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.current_dir(program.get_current_dir().unwrap());
    shell
}

#[test]
fn a_signal_that_the_program_is_started_to_ignore_does_not_stop_it() {
    let workspace = Workspace::new();
    let steps = format!("train.steps={ENDLESS}");
    for (ignored, sent) in [("HUP", "-HUP"), ("INT", "-INT"), ("TERM", "-HUP")] {
        let name = format!("name={ignored}");
        let words = [&RUN[..], &["--set", &steps, "--set", &name]].concat();
        let mut command = ignoring(&workspace, ignored, &words);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let train = workspace.path(format!("runs/{ignored}/train"));
        let saved = || state::latest(&train).ok().flatten();
        let is_over = |step| saved().is_some_and(|saved| saved.step > step);
        wait_for(&mut child, || is_over(1));
        let step = saved().map_or(1, |saved| saved.step);
        signal(&child, sent);
        let is_kept = sent.ends_with(ignored);
        if is_kept {
            // It would end after the step that it is at.
            wait_for(&mut child, || is_over(step + 3));
            signal(&child, "-TERM");
        }
        let outcome = Outcome::from(child.wait_with_output().unwrap());
        let outcome = outcome.interrupted(&["stage `train`: interrupted"]);
        let told = outcome.stderr.matches("stopping at the next safe point");
        assert_eq!(told.count(), 1, "{outcome:#?}");
    }
}

#[test]
fn a_check_that_is_interrupted_ends_as_other_commands_do() {
    let workspace = Workspace::finished();
    let words = "check run --target target --count 100000";
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = workspace.command(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Of what is told the second line is the last one before texts are made up.
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    for expected in ["drafter, unchanged", "trained for this target"] {
        let line = out.next().unwrap().unwrap();
        assert!(line.contains(expected), "{line}");
    }
    signal(&child, "-TERM");
    let outcome = Outcome::from(child.wait_with_output().unwrap());
    outcome.interrupted(&["error: interrupted"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_linter_that_is_interrupted_says_so_and_reports_nothing() {
    let workspace = Workspace::new();
    workspace.write_conversations("many.jsonl", 0, 50_000);
    let words = "data lint --target target --train many.jsonl";
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = workspace.command(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    wait_for(&mut child, || {
        // As soon as it listens: signals that are caught are bits, SIGTERM is the 15th.
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok());
        caught.is_some_and(|caught| caught & (1 << 14) != 0)
    });
    signal(&child, "-TERM");
    let outcome = Outcome::from(child.wait_with_output().unwrap());
    let outcome = outcome.interrupted(&["error: interrupted"]);
    assert_eq!(outcome.stdout, "");
}

#[test]
fn an_eagle1_recipe_goes_to_a_report_and_features_may_be_live_or_stored() {
    let workspace = eagle1_workspace();
    run_with(&workspace, &["export.dtype=f32"]);
    let export = workspace.manifest("export")["summary"].clone();
    assert_eq!(export["tau_trained"], export["tau_exported"]);
    let launch = export["launch"].as_array().unwrap();
    assert!(
        launch[0].as_str().unwrap().contains(r#""method":"eagle""#),
        "{launch:?}"
    );
    assert!(
        launch[1]
            .as_str()
            .unwrap()
            .contains("--speculative-algorithm EAGLE "),
        "{launch:?}"
    );
    let report = workspace.json("runs/run/evaluate/report.json");
    assert_eq!(report["drafter"]["kind"], "eagle1");
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);
    let exported = workspace.path("runs/run/export/drafter");
    assert_eq!(
        ModelFolder::open(&exported).unwrap().config()["bias"],
        false
    );
    workspace.open_drafter(&exported);

    let stored = ["name=stored", "features.mode=stored", "export.dtype=f32"];
    run_with(&workspace, &stored);
    let of = |run: &str| workspace.bytes(&format!("runs/{run}/export/drafter/model.safetensors"));
    assert!(of("run") == of("stored"), "the weights are the same");
    let of = |run: &str| {
        let mut config = workspace.json(&format!("runs/{run}/export/drafter/config.json"));
        // Where they come from is not.
        config.as_object_mut().unwrap().remove("spectrain");
        config
    };
    assert_eq!(of("run"), of("stored"));
}

#[test]
fn evaluated_prompts_that_chose_the_weights_are_told() {
    let workspace = Workspace::finished();
    let told = |more: &[&str], advice: &str| {
        let outcome = run_with(&workspace, more);
        let told = "evaluated prompts also chose the weights, which makes τ a little too high; ";
        outcome.stderr.contains(&format!("{told}{advice}"))
    };
    let again = "evaluate as many prompts as while it trained (`evaluate.prompts`)";
    assert!(!told(&["evaluate.prompts=1"], ""));
    assert!(told(&["evaluate.prompts=3"], again));
    let all = "before a training set `evaluate.prompts` to fewer than the 4 held-out prompts, or `data.eval` to conversations with more";
    assert!(told(&["evaluate.prompts=64"], all));
    // What was validated once chose nothing.
    let once = ["name=once", "evaluate.prompts=4", "train.validate_every=6"];
    assert!(!told(&once, ""));
    let report = workspace.json("runs/once/evaluate/report.json");
    assert!(report["choosing_prompts"].is_null(), "{report}");
}
