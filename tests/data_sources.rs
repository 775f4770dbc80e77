//! What recipes and commands take as data, and the chat template's variables, from preparation to serving.
use serde_json::{Value, json};

use crate::workspace::{CONVERSATIONS, Workspace};

/// A template that says nothing unless it is told whether to think.
const STRICT: &str = "{% if enable_thinking is not defined %}{{ raise_exception('think or not?') }}{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const VARIABLES: &str = "--template-variable enable_thinking";

fn strict() -> Workspace {
    let workspace = Workspace::new();
    workspace.write("target/chat_template.jinja", STRICT);
    workspace
}

#[test]
fn variables_of_the_template_reach_every_rendering_and_every_record_of_a_run() {
    let workspace = strict();
    workspace
        .run_recipe(&[])
        .failed(&["stage `prepare`", "think or not?"]);
    let set = "data.template_variables={ enable_thinking = false }";
    let outcome = workspace.run_recipe(&[set]).succeeded();
    let remark = "# send requests with \"chat_template_kwargs\": {\"enable_thinking\":false}";
    assert_eq!(outcome.stdout.matches(remark).count(), 1, "{outcome:#?}");
    let variables = json!({"enable_thinking": false});
    let manifest = workspace.manifest("prepare");
    assert_eq!(
        manifest["settings"]["data"]["template_variables"],
        variables
    );
    let report = workspace.json("runs/run/evaluate/report.json");
    assert_eq!(report["recipe"]["data"]["template_variables"], variables);

    // Commands take those of the run.
    let judged =
        "--target target --drafter runs/run/export/drafter --max-new-tokens 4 --temperature 0";
    let evaluate = format!("evaluate {judged} --prompts eval.jsonl --count 1 --out judged");
    workspace.run_line(evaluate).succeeded();
    let report = workspace.json("judged/report.json");
    assert_eq!(report["recipe"]["data"]["template_variables"], variables);
    let generate = format!("generate {judged} --prompt x");
    workspace.run_line(generate).succeeded();
    let export = "export runs/run/export/drafter --to vllm --out again --target target";
    let exported = workspace.run_line(export).succeeded();
    assert!(exported.stdout.contains(remark), "{exported:#?}");
}

#[test]
fn commands_without_a_run_take_variables_of_the_template_as_options() {
    let workspace = strict();
    let refused = |line: &str| {
        let outcome = workspace.run_line(line);
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(said.contains("think or not?"), "{line}: {outcome:#?}");
    };
    let with = |line: &str| workspace.run_line(format!("{line} {VARIABLES}=false"));
    let generate = "generate --target target --prompt x --max-new-tokens 4";
    let lint = "data lint --target target --train train.jsonl";
    let prepare = "data prepare --target target --data train.jsonl --out tokens";
    for line in [generate, lint, prepare] {
        refused(line);
        with(line).succeeded();
    }
    workspace.write("few.jsonl", workspace.text("eval.jsonl"));
    let data = "--target target --data few.jsonl --out new.jsonl --max-tokens 3";
    let regenerate = format!("data regenerate {data}");
    refused(&regenerate);
    with(&format!("{regenerate} --fresh")).succeeded();
    // Answers given in another mode are other answers.
    workspace
        .run_line(format!("{regenerate} {VARIABLES}=true"))
        .failed(&["`template_variables`", "`--fresh`"]);
}

#[test]
fn rows_say_by_themselves_with_which_variables_they_are_rendered() {
    let workspace = strict();
    let text = workspace.text("eval.jsonl");
    let own = |(number, line): (usize, &str)| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        let variables = json!({"enable_thinking": number % 2 == 0});
        // Columns of some tables have objects as texts.
        row["chat_template_kwargs"] = match number % 4 {
            0 | 1 => variables,
            _ => json!(variables.to_string()),
        };
        format!("{row}\n")
    };
    let rows: String = text.lines().enumerate().map(own).collect();
    workspace.write("own.jsonl", rows);
    let data = "--target target --data own.jsonl --out new.jsonl --max-tokens 3";
    workspace
        .run_line(format!("data regenerate {data}"))
        .succeeded();
    for (number, line) in workspace.text("new.jsonl").lines().enumerate() {
        let row: Value = serde_json::from_str(line).unwrap();
        let expected = json!({"enable_thinking": number % 2 == 0});
        assert_eq!(row["chat_template_kwargs"], expected);
    }
    let prepare = "data prepare --target target --data new.jsonl --out tokens";
    workspace.run_line(prepare).succeeded();
    let lint = "data lint --target target --train new.jsonl";
    let told = "rendered with `chat_template_kwargs` of their own";
    let linted = workspace.run_line(lint);
    assert!(linted.stdout.contains(told), "{linted:#?}");
    let wrong = [
        (
            json!("no"),
            "expected `chat_template_kwargs` to be an object, or such an object as a text, found a text that is no JSON: ",
        ),
        (
            json!({"messages": []}),
            "expected only variables of the template itself in `chat_template_kwargs`, found `messages`, which the program sets",
        ),
    ];
    for (given, expected) in wrong {
        let mut row: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        row["chat_template_kwargs"] = given;
        workspace.write("new.jsonl", row.to_string());
        workspace
            .run_line(format!("{prepare}-2"))
            .failed(&["new.jsonl` row 1: ", expected]);
    }
}

#[test]
fn several_sources_are_given_by_options_as_in_a_recipe() {
    let workspace = Workspace::new();
    workspace.write_conversations("more.jsonl", 100, 10);
    let more = "{ path = \"more.jsonl\", weight = 2 }";
    let both = format!("[\"train.jsonl\", {more}]");
    let prepare = ["data", "prepare", "--target", "target", "--out"];
    for given in [
        &["one", "--data", "train.jsonl", "--data", more][..],
        &["other", "--data", &both],
    ] {
        let prepared = workspace.run(&[&prepare[..], given].concat()).succeeded();
        for told in [
            format!("{0} of {0} samples kept", CONVERSATIONS + 10),
            "0 rows were passed over and 10 copies made".to_owned(),
        ] {
            assert!(prepared.stdout.contains(&told), "no {told}: {prepared:#?}");
        }
    }
    let lint = [
        "data",
        "lint",
        "--target",
        "target",
        "--train",
        "train.jsonl",
    ];
    let more_too = [
        "--train",
        more,
        "--eval",
        "eval.jsonl",
        "--eval",
        "eval.jsonl",
    ];
    let linted = workspace.run(&[&lint[..], &more_too].concat());
    let told = format!("train: {} samples", CONVERSATIONS + 10);
    assert!(linted.stdout.contains(&told), "{linted:#?}");
    assert!(linted.stdout.contains("eval: 8 samples"), "{linted:#?}");
    let init = ["init", "--target", "target", "--yes"];
    for (given, out) in [
        (&["--data", "train.jsonl", "--data", more][..], "one.toml"),
        (&["--data", &both], "other.toml"),
    ] {
        let words = [&init[..], given, &["--out", out]].concat();
        workspace.run(&words).succeeded();
        let text = workspace.text(out);
        let line = "\ntrain = [\"train.jsonl\", { path = \"more.jsonl\", weight = 2.0 }]\n";
        assert!(text.contains(line), "{text}");
    }
    let wrong = [
        "--data",
        "train.jsonl",
        "--data",
        "{ pth = \"more.jsonl\" }",
    ];
    let told = "found the key `pth`; did you mean `path`?";
    let refused = workspace.run(&[&prepare[..], &["none"], &wrong].concat());
    refused.misused_by_usage(&[told]);
    let refused = workspace.run(&[&init[..], &wrong].concat());
    refused.misused(&["`--data`", told]);
}

#[test]
fn a_recipe_trains_for_epochs_on_several_sources_and_holds_prompts_out() {
    let workspace = Workspace::new();
    workspace.write_conversations("more-1.jsonl", 100, 10);
    workspace.write_conversations("more-2.jsonl", 200, 10);
    let recipe = workspace.text("recipe.toml");
    let recipe = recipe
        .replace(
            "train = \"train.jsonl\"",
            "train = [\"train.jsonl\", { path = \"more-?.jsonl\", weight = 2 }]\nheld_out = 0.1",
        )
        .replace("eval = \"eval.jsonl\"\n", "")
        .replace("[train]\nsteps = 6", "[train]\nepochs = 1.5");
    workspace.write("recipe.toml", &recipe);
    let run = ["recipe", "recipe.toml"];
    let plan = workspace.run(&[&run[..], &["--plan"]].concat()).succeeded();
    let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("1.5 times the data"), "{plan:#?}");
    assert!(words.contains("training about "), "{plan:#?}");
    let outcome = workspace.run(&run).succeeded();
    let prepared = workspace.manifest("prepare")["summary"].clone();
    let held = prepared["held_out"]["prompts"].as_u64().unwrap();
    assert_eq!((held, &prepared["prompts"]), (12, &json!(12)));
    let rows = CONVERSATIONS as u64 + 20;
    assert_eq!(prepared["train"]["read"].as_u64(), Some(rows - held));
    let copies = prepared["train"]["copies"].as_u64().unwrap();
    assert!(copies > 0 && copies <= 20, "{copies}");
    let steps = &workspace.manifest("train")["summary"]["fit"]["steps"];
    let said = format!("train: `epochs = 1.5` comes to {steps} steps");
    assert!(outcome.stderr.contains(&said), "{said}: {outcome:#?}");
    assert_eq!(
        workspace.json("runs/run/evaluate/report.json")["settings"][0]["datasets"][0]["name"],
        "held out"
    );
    // The recipe that the run keeps is the one that was run.
    let again = workspace.run(&run).succeeded();
    assert_eq!(again.stderr.matches("done before").count(), 4, "{again:#?}");
    workspace
        .run(&["export", "run", "--to", "vllm", "--out", "exported"])
        .succeeded();
    let longer = workspace
        .run(&[&run[..], &["--set", "train.epochs=3"]].concat())
        .succeeded();
    let goes_on = format!("train: goes on from step {steps}: `train.epochs`: 1.5 → 3.0");
    assert!(longer.stderr.contains(&goes_on), "{goes_on}: {longer:#?}");
    workspace
        .run(&run)
        .failed(&["from which it cannot go on", "`train.epochs`: 3.0 → 1.5"]);
    // More data are more steps.
    workspace.write_conversations("more-3.jsonl", 300, 40);
    let more = workspace.run(&run).succeeded();
    assert!(
        more.stderr.contains("`data.train` has changed"),
        "{more:#?}"
    );
    assert!(workspace.manifest("train")["summary"]["fit"]["steps"].as_u64() > steps.as_u64());
}

/// A dump as people have them: of four rows one is no JSON, one has a message without a text, one is refused by the template.
fn dirty(workspace: &Workspace) -> &'static str {
    let train = workspace.text("train.jsonl");
    let mut rows: Vec<&str> = train.lines().collect();
    rows.insert(0, r#"{"messages": [{"role": "user""#);
    rows.insert(
        3,
        r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": null}]}"#,
    );
    rows.push(r#"{"messages": [{"role": "user", "content": "FORBIDDEN"}, {"role": "assistant", "content": "b"}]}"#);
    workspace.write("dirty.jsonl", rows.join("\n"));
    let template = workspace.text("target/chat_template.jinja");
    let refuses = "{% for m in messages %}{% if m.content == 'FORBIDDEN' %}{{ raise_exception('no such text') }}{% endif %}{% endfor %}";
    workspace.write("target/chat_template.jinja", format!("{refuses}{template}"));
    "dirty.jsonl"
}

#[test]
fn rows_that_cannot_be_used_end_the_command_or_are_left_out_and_counted() {
    let workspace = Workspace::new();
    let rows = workspace.text("train.jsonl").lines().count();
    let data = dirty(&workspace);
    let prepare = format!("data prepare --target target --data {data} --out");
    workspace.run_line(format!("{prepare} refused")).failed(&[
        "`dirty.jsonl` row 1 is not JSON",
        "; `--unusable drop` leaves such rows out, and `spectrain data lint` finds them all",
    ]);
    let left = workspace
        .run_line(format!("{prepare} left --unusable drop"))
        .succeeded();
    let last = rows + 3;
    for expected in [
        format!("{rows} of {rows} samples kept"),
        "3 rows that cannot be used, left out: `dirty.jsonl` row 1 is not JSON".into(),
        "`dirty.jsonl` row 4: expected message 2 with `role` and `content`".into(),
        format!(
            "`dirty.jsonl` row {last}: chat template: `target/chat_template.jinja`: line 1: it refuses the conversation: no such text"
        ),
    ] {
        assert!(left.stdout.contains(&expected), "{expected}\n{left:#?}");
    }
    let lint = format!("data lint --target target --train {data} --rows bad.jsonl");
    workspace.run_line(&lint).failed(&["problem"]);
    let bad = workspace.text("bad.jsonl");
    let bad: Vec<Value> = bad
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let refused = bad.iter().filter(|row| row["problem"] == "refused");
    let refused: Vec<u64> = refused.map(|row| row["row"].as_u64().unwrap()).collect();
    assert_eq!(refused, [1, 4, last as u64]);
    assert!(
        bad.iter()
            .all(|row| row["set"] == "train" && row["file"] == "dirty.jsonl")
    );
}

#[test]
fn a_run_leaves_unusable_rows_out_of_training_and_evaluation_where_it_is_told_to() {
    let workspace = Workspace::new();
    let data = dirty(&workspace);
    let train = format!("data.train={data}");
    let advice = "`data.unusable = \"drop\"` leaves such rows out";
    workspace
        .run(&["recipe", "recipe.toml", "--set", &train, "--plan"])
        .failed(&["`dirty.jsonl` row 1 is not JSON", advice]);
    workspace
        .run_recipe(&[&train])
        .failed(&["`dirty.jsonl` row 1 is not JSON", advice]);
    let drop = "data.unusable=drop";
    let prepare = [
        "recipe",
        "recipe.toml",
        "--stage",
        "prepare",
        "--set",
        &train,
        "--set",
        drop,
    ];
    let outcome = workspace.run(&prepare).succeeded();
    let told =
        "`data.train`: 3 rows that cannot be used, left out: `dirty.jsonl` row 1 is not JSON";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
    let manifest = workspace.manifest("prepare");
    let prepared = &manifest["summary"]["train"];
    assert_eq!(prepared["unusable"]["count"], 3, "{manifest:#}");
    // Without data of its own the evaluation gets some of the rows that can be used.
    let text = workspace.text("recipe.toml");
    let own: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("eval = "))
        .collect();
    assert!(own.len() < text.lines().count());
    workspace.write("recipe.toml", own.join("\n"));
    workspace
        .run_recipe(&[&train])
        .failed(&["`dirty.jsonl` row 1 is not JSON", advice]);
    workspace.run(&prepare).succeeded();
    let manifest = workspace.manifest("prepare");
    assert_eq!(manifest["summary"]["train"]["unusable"]["count"], 3);
    assert!(
        manifest["summary"]["held_out"]["rows"].as_u64() > Some(0),
        "{manifest:#}"
    );
}

#[test]
fn tools_are_shown_by_templates_that_show_them_and_warned_of_otherwise() {
    let workspace = Workspace::new();
    let said = json!([{"role": "user", "content": [{"type": "text", "text": "count"}]}, {"role": "assistant", "content": "one"}]);
    let row = json!({"id": 7, "messages": said, "tools": [{"type": "function", "function": {"name": "adder"}}]});
    workspace.write("tools.json", Value::from(vec![row]).to_string());
    let lint = "data lint --target target --train tools.json";
    let hidden = workspace.run_line(lint).failed(&["1 problem"]);
    assert!(
        hidden
            .stdout
            .contains("1 training row defines tools that the chat template does not show"),
        "{hidden:#?}"
    );
    // What is prepared is warned of in the same words.
    let prepare = "data prepare --target target --data tools.json --out tokens";
    let prepared = workspace.run_line(prepare).succeeded();
    let warning = "warning: 1 training row defines tools that the chat template does not show: ";
    assert!(prepared.stderr.contains(warning), "{prepared:#?}");
    let template = workspace.text("target/chat_template.jinja");
    workspace.write(
        "target/chat_template.jinja",
        format!("{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{template}"),
    );
    let shown = workspace.run_line(lint).succeeded();
    assert!(
        shown.stdout.contains("adder") && shown.stdout.contains("no problems found"),
        "{shown:#?}"
    );
}

#[test]
fn a_file_that_is_read_is_not_written() {
    let workspace = Workspace::new();
    std::fs::hard_link(workspace.path("train.jsonl"), workspace.path("rows.out")).unwrap();
    let before = workspace.text("train.jsonl");
    let lint = "data lint --target target --train train.jsonl --eval eval.jsonl --rows";
    for (rows, read) in [
        ("train.jsonl", "--train"),
        ("./target/../train.jsonl", "--train"),
        ("rows.out", "--train"),
        ("eval.jsonl", "--eval"),
    ] {
        let expected = format!("`--rows`: expected a file that is not part of `{read}`, found");
        workspace
            .run_line(format!("{lint} {rows}"))
            .misused(&[&expected]);
    }
    let prepare = "data prepare --target target --data";
    workspace
        .run_line(format!("{prepare} train.jsonl --out in"))
        .succeeded();
    for data in ["in", "in/*.parquet", "in/tokens-00000.parquet"] {
        let expected = "`--out`: expected a file that is not part of `--data`, found `in`";
        workspace
            .run_line(format!("{prepare} {data} --out in"))
            .misused(&[expected]);
    }
    let evaluate = "evaluate --target target --training-free prompt-lookup --prompts train.jsonl";
    workspace
        .run_line(format!("{evaluate} --outputs ./train.jsonl"))
        .misused(&["`--outputs`: expected a file that is not part of `--prompts`, found"]);
    assert_eq!(workspace.text("train.jsonl"), before);
}

#[test]
fn files_that_hold_no_rows_are_named_where_a_folder_or_a_pattern_is_read() {
    let workspace = Workspace::new();
    let rows = workspace.text("train.jsonl");
    std::fs::create_dir_all(workspace.path("in/sub")).unwrap();
    workspace.write("in/A.JSONL", &rows);
    for name in ["x.txt", "f.arrow", "x.jsonl.bz2", "sub/a.jsonl"] {
        workspace.write(&format!("in/{name}"), &rows);
    }
    let named = "not read: `f.arrow`, `sub/`, `x.jsonl.bz2`, `x.txt`; only rows in `.jsonl`";
    for (data, option) in [
        ("in", "prepare --out tokens --data"),
        ("in/*", "lint --train"),
    ] {
        let line = format!("data {option} {data} --target target");
        let said = workspace.run_line(line).stderr;
        let warning = format!("warning: `{data}`: {named}");
        assert!(said.contains(&warning), "{said}");
    }
    workspace
        .run_recipe(&["data.train=in", "data.eval=eval.jsonl"])
        .succeeded();
    let summary = &workspace.manifest("prepare")["summary"];
    let warning = summary["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("`data.train`: `") && warning.contains(named),
        "{warning}"
    );
}
