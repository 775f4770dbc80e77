//! Datasets of a hub wherever a command reads texts: prompts to decode, conversations to regenerate, a recipe that is written.
use std::process::Stdio;

use serde_json::{Value, json};
use spectrain_data::presets::{Conversion, Preset};

use crate::fake_hub::{FakeHub, Repository};
use crate::fault_server::{FaultServer, answer_to};
use crate::hub_data::{chat, row_of, table};
use crate::workspace::{Outcome, Workspace};

/// A hub with the workspace's conversations, and the commit that they have there.
fn hub_of(workspace: &Workspace) -> (FakeHub, String) {
    let repository = chat(workspace);
    let commit = repository.commit();
    (
        FakeHub::new().dataset("org/chat", "main", repository),
        commit,
    )
}

/// A hub with six rows of a preset, the last of which is of no use where it has speakers.
fn hub_with(name: &str) -> FakeHub {
    let preset = Preset::find(name).unwrap();
    let mut rows: Vec<Value> = (0..6).map(|number| row_of(preset, number)).collect();
    if preset.conversion == Conversion::Speakers {
        rows[5]["conversations"][1]["from"] = json!("somebody");
    }
    let address = preset.address();
    let (config, split) = (address.config.as_deref(), address.split.as_deref());
    let (config, split) = (config.unwrap_or("default"), split.unwrap_or("train"));
    let files = json!([{"split": split, "path": "rows/*"}]);
    let card = json!({"configs": [{"config_name": config, "data_files": files}]});
    let repository = Repository::of(&[("rows/0.parquet", table(&rows))], card);
    FakeHub::new().dataset(&address.id, "main", repository)
}

/// What the report says of the only dataset of the only setting.
fn judged(workspace: &Workspace) -> Value {
    let report = workspace.json("runs/run/evaluate/report.json");
    report["settings"][0]["datasets"][0].clone()
}

fn decode(prompts: &str) -> Vec<String> {
    let set = format!("evaluate.prompts=[{prompts}]");
    ["recipe", "recipe.toml", "--set", &set]
        .map(str::to_owned)
        .to_vec()
}

fn run(hub: &FakeHub, workspace: &Workspace, words: &[String]) -> Outcome {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    hub.run(workspace, &words)
}

#[test]
fn a_recipe_decodes_prompts_of_a_hub_as_those_of_its_file_and_records_the_commit() {
    let workspace = Workspace::finished();
    let (hub, commit) = hub_of(&workspace);
    run(&hub, &workspace, &decode("\"eval.jsonl\"")).succeeded();
    let of_file = judged(&workspace);

    let words = decode("\"hf://org/chat:test\"");
    let plan = run(&hub, &workspace, &[&words[..], &["--plan".into()]].concat()).succeeded();
    let wanted =
        format!("`hf://org/chat:test` (default/test): 1 of 1 files, 0.0 MiB, at commit {commit}");
    assert!(plan.stdout.contains(&wanted), "{plan:#?}");
    assert!(!workspace.path("hub/hub").exists());

    let outcome = run(&hub, &workspace, &words).succeeded();
    let told = format!(
        "evaluate: `evaluate.prompts`: `hf://org/chat:test` is `default/test` at commit {commit}, files: 1"
    );
    assert!(outcome.stderr.contains(&told), "{outcome:#?}");
    let found = judged(&workspace);
    for key in ["prompts_sha256", "tau", "tokens", "passes"] {
        assert!(
            found[key] == of_file[key] && !found[key].is_null(),
            "{key}: {found:#}"
        );
    }
    assert_eq!(found["name"], "chat test");
    let datasets = &workspace.manifest("evaluate")["summary"]["datasets"];
    assert_eq!(datasets[0]["commit"], commit.as_str());
    assert_eq!(datasets[0]["licence"], "mit");

    hub.asked();
    let again = run(&hub, &workspace, &words).succeeded();
    assert!(again.stderr.contains("evaluate: done before"), "{again:#?}");
    assert_eq!(hub.asked(), Vec::<String>::new());
}

#[test]
fn a_recipe_decodes_conversations_of_a_preset_and_says_which_rows_are_none() {
    let workspace = Workspace::finished();
    let hub = hub_with("magpie");
    let outcome = run(&hub, &workspace, &decode("{ preset = \"magpie\" }")).succeeded();
    let told = "`magpie`: rows that cannot be used, which are left out: 1";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
    let found = judged(&workspace);
    assert_eq!(found["prompts"], 5, "{found:#}");
    // What is asked are the same texts.
    let rows = (0..5).map(|number| {
        json!({"messages": [{"role": "user", "content": format!("count to {number}")}]}).to_string()
    });
    workspace.write("magpie.jsonl", rows.collect::<Vec<_>>().join("\n"));
    run(&hub, &workspace, &decode("\"magpie.jsonl\"")).succeeded();
    assert_eq!(
        judged(&workspace)["prompts_sha256"],
        found["prompts_sha256"]
    );
}

#[test]
fn prompts_that_a_hub_does_not_have_are_refused_before_anything_runs() {
    let workspace = Workspace::finished();
    let (hub, _) = hub_of(&workspace);
    for (prompts, expected) in [
        (
            "\"hf://org/none\"",
            &["`evaluate.prompts`", "no such repository"][..],
        ),
        (
            "\"hf://org/chat:dev\"",
            &["`evaluate.prompts`", "no split `dev`"],
        ),
        ("\"gsm8k=hf://org/chat:test\"", &["a column `question`"]),
    ] {
        run(&hub, &workspace, &decode(prompts)).failed(expected);
    }
    for (prompts, expected) in [
        ("\"hf://a/b/c\"", "`hf://org/name@revision`"),
        ("{ preset = \"magpei\" }", "did you mean `magpie`?"),
        (
            "{ preset = \"magpie\", turns = \"x\" }",
            "no key but `name`",
        ),
    ] {
        run(&hub, &workspace, &decode(prompts)).misused(&[expected]);
    }
    let offline = decode("\"hf://org/chat:train\"");
    let offline: Vec<&str> = offline.iter().map(String::as_str).collect();
    let told = ["`evaluate.prompts`", "`HF_HUB_OFFLINE` is set"];
    workspace.run(&offline).failed(&told);
}

#[test]
fn commands_that_measure_take_prompts_of_a_hub() {
    let workspace = Workspace::finished();
    let (hub, commit) = hub_of(&workspace);
    let told = format!("`hf://org/chat:test` is `default/test` at commit {commit}");
    let line = "--target target --prompts hf://org/chat:test";
    for line in [
        format!("evaluate --drafter run --max-new-tokens 4 --temperature 0 {line}"),
        format!("check run {line}"),
        format!("import runs/run/export/drafter --name imported {line}"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let outcome = hub.run(&workspace, &words).succeeded();
        assert!(outcome.stderr.contains(&told), "{outcome:#?}");
    }
    let of_file = workspace.run_line("check run --target target --prompts eval.jsonl");
    let of_hub = workspace.run_line("check run --target target --prompts hf://org/chat:test");
    assert_eq!(of_file.succeeded().stdout, of_hub.succeeded().stdout);
}

/// `data regenerate` with the answers of a server.
fn regenerate(hub: &FakeHub, workspace: &Workspace, line: &str) -> Outcome {
    let server = FaultServer::start(&[]);
    let line = format!(
        "data regenerate --server {} --out out.jsonl {line}",
        server.url()
    );
    hub.run(workspace, &line.split(' ').collect::<Vec<_>>())
}

#[test]
fn conversations_of_a_hub_are_regenerated_as_those_of_its_file() {
    let workspace = Workspace::new();
    let (hub, commit) = hub_of(&workspace);
    regenerate(&hub, &workspace, "--data train.jsonl").succeeded();
    let of_file = workspace.text("out.jsonl");
    assert!(of_file.contains(&answer_to("count to 7")), "{of_file}");
    let fresh = "--data hf://org/chat:train --fresh";
    let outcome = regenerate(&hub, &workspace, fresh).succeeded();
    let told = format!("`hf://org/chat:train` is `default/train` at commit {commit}, files: 1");
    assert!(outcome.stderr.contains(&told), "{outcome:#?}");
    assert_eq!(workspace.text("out.jsonl"), of_file);
    let report = workspace.json("out.jsonl.report");
    assert_eq!(report["datasets"][0]["commit"], commit.as_str());
    // It goes on by the same journal, and asks nobody.
    let again = regenerate(&hub, &workspace, "--data hf://org/chat:train").succeeded();
    assert!(
        again
            .stdout
            .contains("40 of them by an earlier run\n0 requests"),
        "{again:#?}"
    );
    regenerate(&hub, &workspace, "--data hf://org/none --fresh").failed(&["no such repository"]);
}

#[test]
fn commands_take_presets_by_name_and_count_what_is_no_conversation() {
    let workspace = Workspace::new();
    let hub = hub_with("magpie");
    let left_out = "rows that cannot be used, which are left out: 1";
    let outcome = regenerate(&hub, &workspace, "--preset magpie").succeeded();
    assert!(
        outcome.stdout.contains("5 of 5 conversations"),
        "{outcome:#?}"
    );
    assert!(outcome.stdout.contains(left_out), "{outcome:#?}");
    let first = workspace
        .text("out.jsonl")
        .lines()
        .next()
        .unwrap()
        .to_owned();
    let first: Value = serde_json::from_str(&first).unwrap();
    let messages = json!([
        {"role": "user", "content": "count to 0"},
        {"role": "assistant", "content": answer_to("count to 0")},
    ]);
    assert_eq!(first["messages"], messages);
    assert_eq!(workspace.json("out.jsonl.report")["unusable"]["count"], 1);

    let prepare = [
        "data", "prepare", "--target", "target", "--out", "tokens", "--preset",
    ];
    let prepared = hub
        .run(&workspace, &[&prepare[..], &["magpie"]].concat())
        .succeeded();
    assert!(
        prepared.stdout.contains("5 of 5 samples kept"),
        "{prepared:#?}"
    );
    assert!(prepared.stderr.contains(left_out), "{prepared:#?}");
    let near = hub.run(&workspace, &[&prepare[..], &["magpei"]].concat());
    near.misused(&["did you mean `magpie`?"]);
    let lint = ["data", "lint", "--target", "target", "--preset", "magpie"];
    let linted = hub.run(&workspace, &lint);
    assert!(linted.stderr.contains(left_out), "{linted:#?}");
    let both = [&prepare[..], &["magpie", "--data", "train.jsonl"]].concat();
    workspace
        .run(&both)
        .misused_by_usage(&["cannot be used with"]);
    let neither = workspace.run_line("data prepare --target target --out tokens");
    neither.misused_by_usage(&["--data <PATH>", "--preset <NAME>"]);
}

#[test]
fn a_recipe_is_written_for_a_preset() {
    let workspace = Workspace::new();
    let hub = hub_with("magpie");
    let words = ["init", "--target", "target", "--yes", "--preset"];
    hub.run(&workspace, &[&words[..], &["magpie"]].concat())
        .succeeded();
    let text = workspace.text("eagle3-target.toml");
    assert!(
        text.contains("\npreset = \"magpie\"\n") && !text.contains("train = \""),
        "{text}"
    );
    let prepare = ["recipe", "eagle3-target.toml", "--stage", "prepare"];
    hub.run(&workspace, &prepare).succeeded();
    let manifest = workspace.json("runs/eagle3-target/prepare/manifest.json");
    assert_eq!(manifest["summary"]["rows_of_no_use"]["count"], 1);
    let unknown = hub.run(&workspace, &[&words[..], &["magpei"]].concat());
    unknown.misused(&["`--preset`", "did you mean `magpie`?"]);

    // The target is asked for, the conversations are not.
    let mut command = hub.command(
        &workspace,
        &["init", "--preset", "magpie", "--name", "asked"],
    );
    let ended = Outcome::from(command.stdin(Stdio::null()).output().unwrap());
    let ended = ended.misused(&["`--target` is missing"]);
    assert!(
        !ended.stderr.contains("Conversations to train on"),
        "{ended:#?}"
    );
}
