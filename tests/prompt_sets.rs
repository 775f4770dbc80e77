//! Sets of prompts by name and by path, conversations of several turns, and what reports break down by.
use serde_json::{Value, json};
use spectrain_data::tokenizer::{Special, Tokenizer};

use crate::workspace::{Outcome, Workspace};

/// Questions in the shape of Spec-Bench's file.
fn write_questions(workspace: &Workspace) {
    let row = |id: usize, category: &str, turns: &[&str]| {
        json!({"question_id": id, "category": category, "turns": turns}).to_string()
    };
    let rows = [
        row(1, "counting", &["count to 3", "and now to 5"]),
        row(2, "qa", &["count to 7"]),
        row(3, "counting", &["count to 9", "count on", "count back"]),
    ];
    workspace.write("question.jsonl", rows.join("\n"));
}

fn evaluate(workspace: &Workspace, prompts: &[&str], more: &[&str]) -> Outcome {
    let mut words = vec!["evaluate", "--target", "target", "--drafter", "run"];
    words.extend(["--max-new-tokens", "6", "--draft-length", "2"]);
    words.extend(prompts.iter().flat_map(|prompts| ["--prompts", *prompts]));
    words.extend(more);
    workspace.run(&words)
}

fn outputs(workspace: &Workspace, file: &str) -> Vec<Value> {
    let text = workspace.text(file);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn tokens(output: &Value) -> Vec<u32> {
    serde_json::from_value(output["tokens"].clone()).unwrap()
}

/// The answers of a setting to the prompts of a file.
fn greedy(workspace: &Workspace, prompts: &str) -> Vec<Value> {
    let more = [
        "--temperature",
        "0",
        "--outputs",
        "outputs.jsonl",
        "--out",
        "judged",
    ];
    evaluate(workspace, &[prompts], &more).succeeded();
    outputs(workspace, "outputs.jsonl")
}

#[test]
fn later_turns_continue_what_the_target_answered_before() {
    let workspace = Workspace::finished();
    write_questions(&workspace);
    let found = greedy(&workspace, "spec-bench=question.jsonl");
    let places: Vec<_> = found
        .iter()
        .map(|line| {
            (
                line["prompt"].as_u64().unwrap(),
                line["turn"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]);

    // The same conversation by hand, with the answers written out.
    let tokenizer = Tokenizer::from_folder(&workspace.path("target")).unwrap();
    let said = |at: usize| {
        tokenizer
            .decode(&tokens(&found[at]), Special::Skip)
            .unwrap()
    };
    let say = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = [
        say("user", "count to 9"),
        say("assistant", &said(3)),
        say("user", "count on"),
        say("assistant", &said(4)),
        say("user", "count back"),
    ];
    for (length, at) in [(1, 3), (3, 4), (5, 5)] {
        let row = json!({"messages": messages[..length]}).to_string();
        workspace.write("by_hand.jsonl", row);
        assert_eq!(
            tokens(&greedy(&workspace, "by_hand.jsonl")[0]),
            tokens(&found[at])
        );
    }
}

#[test]
fn a_report_breaks_down_by_category_and_turn_and_its_groups_add_up() {
    let workspace = Workspace::finished();
    write_questions(&workspace);
    let labelled = json!({
        "messages": [{"role": "user", "content": "count to 2"}],
        "category": "own",
        "language": "en",
    });
    workspace.write("own.jsonl", labelled.to_string());
    let prompts = ["spec-bench=question.jsonl", "own.jsonl"];
    let outcome = evaluate(&workspace, &prompts, &["--out", "judged"]).succeeded();
    for part in [
        "| category | τ (prompts, tokens): T=0, greedy, chain 2 |",
        "| counting | ",
        " (5, ",
        "| language |",
        "| turn |",
        "| setting | dataset | τ, mean over prompts |",
        "Each turn of a conversation is a prompt; intervals are over conversations.",
    ] {
        let table = workspace.text("judged/report.md");
        assert!(table.contains(part), "no `{part}`: {table}");
    }
    assert!(
        outcome.stdout.contains("lowest in category "),
        "{outcome:#?}"
    );
    let report = workspace.json("judged/report.json");
    let given = json!(["spec-bench=question.jsonl", "own.jsonl"]);
    assert_eq!(report["recipe"]["evaluate"]["prompts"], given);
    for setting in report["settings"].as_array().unwrap() {
        let overall = &setting["overall"];
        assert_eq!(
            (&overall["prompts"], &overall["conversations"]),
            (&7.into(), &4.into())
        );
        assert!(overall["tau_mean"].is_f64() && overall["slowed"].is_number());
        for (column, groups) in setting["groups"].as_object().unwrap() {
            for key in ["passes", "tokens"] {
                let each = groups.as_array().unwrap().iter();
                let sum: u64 = each.map(|group| group[key].as_u64().unwrap()).sum();
                assert_eq!(overall[key], sum, "{column}");
            }
        }
        let names = |column: &str| -> Vec<String> {
            let groups = setting["groups"][column].as_array().unwrap().iter();
            groups
                .map(|group| group["name"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(names("category"), ["counting", "qa", "own"]);
        assert_eq!(names("language"), ["none", "en"]);
        assert_eq!(names("turn"), ["1", "2", "3"]);
    }
    assert_eq!(report["lossless"]["greedy_outputs"], 7);
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);
}

#[test]
fn a_recipe_decodes_the_sets_that_it_names_and_again_when_one_has_changed() {
    let workspace = Workspace::finished();
    write_questions(&workspace);
    let words = [
        "recipe",
        "recipe.toml",
        "--set",
        "evaluate.prompts=[\"mt-bench=question.jsonl\", { path = \"own.jsonl\", template = \"count to {to}\" }]",
        "--set",
        "evaluate.count=2",
    ];
    let told = ["`evaluate.prompts`", "own.jsonl"];
    workspace.run(&words).failed(&told);
    let plan = workspace.run(&[&words[..], &["--plan"]].concat());
    assert_eq!(plan.code, Some(1), "{plan:#?}");
    workspace.write("own.jsonl", json!({"to": 4}).to_string());
    workspace.run(&words).succeeded();
    let datasets = || {
        let report = workspace.json("runs/run/evaluate/report.json");
        let datasets = report["settings"][0]["datasets"]
            .as_array()
            .unwrap()
            .clone();
        let name = |dataset: &Value| (dataset["name"].clone(), dataset["prompts"].clone());
        datasets.iter().map(name).collect::<Vec<_>>()
    };
    // The first and the second of three conversations.
    assert_eq!(
        datasets(),
        [("mt-bench".into(), 3.into()), ("own".into(), 1.into())]
    );
    let again = workspace.run(&words).succeeded();
    assert!(again.stderr.contains("evaluate: done before"), "{again:#?}");
    workspace.write("own.jsonl", json!({"to": 5}).to_string());
    let changed = workspace.run(&words).succeeded();
    let told = "evaluate: starts over: the prompts `own`";
    assert!(changed.stderr.contains(told), "{changed:#?}");
    assert!(
        changed.stderr.contains("export: done before"),
        "{changed:#?}"
    );
}

#[test]
fn labels_of_the_evaluation_data_reach_the_report() {
    let workspace = Workspace::new();
    let row = |number: usize, category: &str| {
        let messages = json!([
            {"role": "user", "content": format!("count to {number}")},
            {"role": "assistant", "content": "one two three"},
        ]);
        json!({"messages": messages, "category": category}).to_string()
    };
    workspace.write("eval.jsonl", [row(1, "a"), row(2, "b")].join("\n"));
    workspace.run(&["recipe", "recipe.toml"]).succeeded();
    let report = workspace.json("runs/run/evaluate/report.json");
    let category = report["settings"][0]["groups"]["category"]
        .as_array()
        .unwrap()
        .clone();
    let names: Vec<&str> = category
        .iter()
        .map(|group| group["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn prompts_whose_answers_have_another_role_are_warned_of() {
    let workspace = Workspace::finished();
    let row = |role: &str| {
        let answer = json!({"role": role, "content": "one two"});
        json!({"messages": [{"role": "user", "content": "count to 2"}, answer]}).to_string()
    };
    workspace.write("bot.jsonl", [row("bot"), row("bot")].join("\n"));
    workspace.write("mixed.jsonl", [row("bot"), row("assistant")].join("\n"));
    let warned = evaluate(&workspace, &["bot.jsonl"], &[]).succeeded();
    let lack = "none of 2 prompts has a message with the role `assistant`";
    let found = "roles found: `user` 2, `bot` 2; did you mean `assistant`?";
    assert!(
        warned.stderr.contains(lack) && warned.stderr.contains(found),
        "{warned:#?}"
    );
    let silent = evaluate(&workspace, &["mixed.jsonl"], &[]).succeeded();
    assert!(!silent.stderr.contains("roles found"), "{silent:#?}");
}

#[test]
fn what_cannot_be_asked_is_refused_with_what_there_is() {
    let workspace = Workspace::finished();
    workspace.write("lines.jsonl", json!({"frage": "a"}).to_string());
    let refused = |prompts: &str, told: &[&str]| evaluate(&workspace, &[prompts], &[]).failed(told);
    refused(
        "gsm8k=lines.jsonl",
        &[
            "`lines.jsonl` row 1: expected a column `question`",
            "found the keys `frage`",
        ],
    );
    refused(
        "lines.jsonl",
        &["`turns` (a list of texts)", "found the keys `frage`"],
    );
    refused(
        "gsm9k",
        &["`gsm9k` is no file, and none of the sets gsm8k, math-500"],
    );
    refused(
        "gsm8k=none.parquet",
        &["the prompts `gsm8k`", "none.parquet"],
    );
    refused(
        "spec-bench",
        &["`spec-bench` is not on the hub", "`spec-bench=PATH`"],
    );
    workspace.write("mbpp", "");
    refused("mbpp", &["`mbpp` is a set of prompts and also a file here"]);
    let table = "{ path = \"lines.jsonl\", template = \"{frage}\" }";
    evaluate(&workspace, &[table], &["--temperature", "0"]).succeeded();
    let unknown = evaluate(
        &workspace,
        &["{ path = \"lines.jsonl\", colunm = \"a\" }"],
        &[],
    );
    unknown.misused(&["`template`, `turns`, `category` and `language`"]);
    for (set, told) in [
        (
            "evaluate.count=3",
            "must be absent where `prompts` is a number",
        ),
        ("evaluate.prompts=[]", "`evaluate.prompts`"),
        (
            "evaluate.prompts=[{ set = \"gsm9k\" }]",
            "expected one of the sets gsm8k",
        ),
    ] {
        workspace
            .run(&["recipe", "recipe.toml", "--set", set])
            .misused(&[told]);
    }
}

#[test]
fn known_sets_are_listed() {
    let workspace = Workspace::of("");
    let listed = workspace.run(&["data", "prompts"]).succeeded().stdout;
    // Where lines end depends on the longest name.
    let words: Vec<&str> = listed.split_whitespace().collect();
    let listed = words.join(" ");
    for part in [
        "gsm8k ",
        "openai/gsm8k, main/test-00000-of-00001.parquet; licence: MIT",
        "spec-bench=PATH",
        "RedHatAI/speculator_benchmarks, tool_call.jsonl; licence: Apache 2.0",
        "NVIDIA Evaluation Dataset License",
    ] {
        assert!(listed.contains(part), "no `{part}`: {listed}");
    }
}
