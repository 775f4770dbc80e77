//! `spectrain data regenerate` of conversations in which the assistant calls tools.
use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use crate::fault_server::FaultServer;
use crate::http::{Request, listen, respond};
use crate::workspace::{Outcome, Workspace};

/// What the model says, by the user's last words and how many messages stand behind them.
type Script = fn(&str, usize) -> Value;

/// What a server was asked, and where it stops.
#[derive(Default)]
struct Memory {
    bodies: Vec<Value>,
    /// By the user's last words.
    refused: BTreeMap<String, String>,
}

/// A server whose model calls tools.
struct ToolServer {
    address: SocketAddr,
    memory: Arc<Mutex<Memory>>,
}

impl ToolServer {
    fn start(script: Script) -> Self {
        let memory: Arc<Mutex<Memory>> = Arc::default();
        let of_server = memory.clone();
        let address = listen(move |stream| serve(stream, &of_server, script));
        Self { address, memory }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    /// Refuses what the user says last, for this reason, or takes it again.
    fn refuse(&self, words: &str, reason: Option<&str>) {
        let mut memory = self.memory();
        memory.refused.remove(words);
        if let Some(reason) = reason {
            memory.refused.insert(words.into(), reason.into());
        }
    }

    /// The bodies that were sent since this was asked for last.
    fn take(&self) -> Vec<Value> {
        std::mem::take(&mut self.memory().bodies)
    }

    fn regenerate(&self, workspace: &Workspace, more: &str) -> Outcome {
        let address = self.address;
        let line = format!(
            "data regenerate --data data.jsonl --out out.jsonl --server http://{address} {more}"
        );
        workspace.run_line(line.trim_end())
    }
}

fn serve(stream: TcpStream, memory: &Mutex<Memory>, script: Script) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut out = stream;
    loop {
        let request = Request::read(&mut reader)?;
        if request.target == "/v1/models" {
            let models = json!({"data": [{"id": "served"}]});
            respond(&mut out, "200 OK", "", &models.to_string())?;
            continue;
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let messages = body["messages"].as_array().unwrap().clone();
        let user = messages.iter().rposition(|said| said["role"] == "user");
        let user = user.unwrap();
        let words = messages[user]["content"].as_str().unwrap().to_owned();
        let refused = {
            let mut memory = memory.lock().unwrap();
            memory.bodies.push(body);
            memory.refused.get(&words).cloned()
        };
        if let Some(reason) = refused {
            let body = json!({"error": {"message": reason}}).to_string();
            respond(&mut out, "400 Bad Request", "", &body)?;
            continue;
        }
        let message = script(&words, messages.len() - 1 - user);
        let calls = message.get("tool_calls").is_some();
        let finish = if calls { "tool_calls" } else { "stop" };
        let body = json!({"choices": [{"message": message, "finish_reason": finish}]});
        respond(&mut out, "200 OK", "", &body.to_string())?;
    }
}

/// A call, its arguments as a server or as a dataset has them.
fn call(id: &str, name: &str, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn calls(calls: &[Value]) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

fn weather(id: &str, city: &str) -> Value {
    call(id, "weather", json!(json!({"city": city}).to_string()))
}

fn say(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn result(id: &str, content: &str) -> Value {
    json!({"role": "tool", "content": content, "tool_call_id": id})
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])
}

/// A row whose user says this, asks for the weather of two cities, and goes on.
fn row(words: &str) -> Value {
    let old = calls(&[weather("old-1", "Oslo"), weather("old-2", "Rome")]);
    let mut old = old;
    old["content"] = json!("");
    json!({"id": words, "tools": tools(), "messages": [
        say("user", words), old, result("old-2", "warm"), result("old-1", "cold"), say("assistant", "old"),
        say("user", "thanks"), say("assistant", "old"),
    ]})
}

/// The model of these tests.
fn model(words: &str, behind: usize) -> Value {
    let both = [weather("new-1", "Rome"), weather("new-2", "Oslo")];
    match (words, behind) {
        ("equal", 0) => calls(&both[1..]),
        ("equal", 2) => calls(&both[..1]),
        ("both", 0) => calls(&both),
        ("other", 0) => calls(&[weather("new", "Rio")]),
        ("broken", 0) => calls(&[call("new", "weather", json!("{\"city\": \"Os"))]),
        ("late", 2) => say("assistant", "<tool_call>{\"name\": "),
        ("late", 0) => calls(&both[1..]),
        (words, behind) => say("assistant", &format!("{words} {behind}")),
    }
}

/// The calls as the output has them: their arguments are objects.
fn written(ids: &[(&str, &str)]) -> Value {
    let calls = ids
        .iter()
        .map(|(id, city)| call(id, "weather", json!({"city": city})));
    json!({"role": "assistant", "content": "", "tool_calls": calls.collect::<Vec<_>>()})
}

/// The rows of `out.jsonl`, by their ids.
fn output(workspace: &Workspace) -> BTreeMap<String, Value> {
    let text = workspace.text("out.jsonl");
    let rows = text.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        (
            row["id"].as_str().unwrap().to_owned(),
            row["messages"].clone(),
        )
    });
    rows.collect()
}

fn with_rows(words: &[&str]) -> Workspace {
    let workspace = Workspace::of("");
    let rows = words.iter().map(|words| format!("{}\n", row(words)));
    workspace.write("data.jsonl", rows.collect::<String>());
    workspace
}

#[test]
fn calls_are_written_anew_and_followed_by_what_the_data_has_as_their_results() {
    let workspace = with_rows(&["equal", "both", "words", "other", "broken", "late"]);
    let server = ToolServer::start(model);
    let outcome = server.regenerate(&workspace, "").succeeded();
    let thanks = [say("user", "thanks"), say("assistant", "thanks 0")];
    let [oslo, rome] = [("new-2", "Oslo"), ("new-1", "Rome")];
    let expected = |words: &str, middle: &[Value], ends: bool| {
        let goes_on = if ends { &[][..] } else { &thanks };
        json!([&[say("user", words)], middle, goes_on].concat())
    };
    let found = output(&workspace);
    let [cold, warm] = [result("new-2", "cold"), result("new-1", "warm")];
    let one_by_one = [
        written(&[oslo]),
        cold.clone(),
        written(&[rome]),
        warm.clone(),
        say("assistant", "equal 4"),
    ];
    assert_eq!(found["equal"], expected("equal", &one_by_one, false));
    let at_once = [
        written(&[rome, oslo]),
        warm,
        cold.clone(),
        say("assistant", "both 3"),
    ];
    assert_eq!(found["both"], expected("both", &at_once, false));
    let words = [say("assistant", "words 0")];
    assert_eq!(found["words"], expected("words", &words, false));
    let other = [written(&[("new", "Rio")])];
    assert_eq!(found["other"], expected("other", &other, true));
    // What is left of it ends with what a tool said, before the call that cannot be read.
    assert_eq!(
        found["late"],
        expected("late", &[written(&[oslo]), cold], true)
    );
    assert_eq!(
        found.len(),
        5,
        "nothing is left of the one with broken arguments"
    );

    let report = workspace.json("out.jsonl.report");
    for (key, expected) in [
        ("ended_at_call", json!({"data.jsonl": [4]})),
        ("unreadable_calls", json!({"data.jsonl": [5, 6]})),
        ("without_answer", json!({"data.jsonl": [5]})),
        ("calls", json!(5)),
        ("regenerated", json!(5)),
        ("answers", json!(11)),
        ("empty", json!(0)),
        ("failed", json!([])),
    ] {
        assert_eq!(report[key], expected, "{key} of {report}");
    }
    let said = "1 ended at a call of a tool that the data does not have in this turn";
    assert!(outcome.stdout.contains(said), "{outcome:#?}");
}

#[test]
fn requests_have_the_tools_and_earlier_calls_in_the_form_of_the_protocol_and_what_is_written_can_be_prepared()
 {
    let workspace = with_rows(&["equal"]);
    let server = ToolServer::start(model);
    server.regenerate(&workspace, "").succeeded();
    let bodies = server.take();
    assert_eq!(bodies.len(), 4);
    for body in &bodies {
        assert_eq!(body["tools"], tools());
    }
    let mut called = calls(&[weather("new-2", "Oslo")]);
    called["content"] = json!("");
    let expected = json!([say("user", "equal"), called, result("new-2", "cold")]);
    assert_eq!(bodies[1]["messages"], expected);

    // A template gets the arguments as an object, as engines hand them to it.
    let target = Workspace::new();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
        {% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    target.write("target/chat_template.jinja", template);
    target.write("out.jsonl", workspace.text("out.jsonl"));
    let lint = "data lint --target target --train out.jsonl --show 1";
    let shown = target.run_line(lint).stdout;
    for expected in [
        "⟦[weather Oslo]<|im_end|>⟧",
        "⟦[weather Rome]<|im_end|>⟧",
        "⟦equal 4<|im_end|>⟧",
    ] {
        assert!(shown.contains(expected), "no `{expected}` in {shown}");
    }
}

#[test]
fn a_run_that_failed_goes_on_with_the_conversations_that_are_missing() {
    let words = ["equal", "both", "other", "broken"];
    let workspace = with_rows(&words);
    let server = ToolServer::start(model);
    server.refuse("both", Some("tool choice requires a parser"));
    let outcome = server.regenerate(&workspace, "");
    let outcome = outcome.failed(&["1 of 4 conversations was not regenerated"]);
    let advice = "status 400: tool choice requires a parser: vLLM takes tools with `--enable-auto-tool-choice";
    assert!(outcome.stdout.contains(advice), "{outcome:#?}");
    assert_eq!(output(&workspace).len(), 2);
    server.take();
    server.refuse("both", None);
    server.regenerate(&workspace, "").succeeded();
    let asked = server.take();
    assert_eq!(
        asked.len(),
        3,
        "only what failed was asked again: {asked:?}"
    );
    let whole = output(&workspace);
    let alone = with_rows(&words);
    server.regenerate(&alone, "").succeeded();
    assert_eq!(whole, output(&alone));
    let reports = [&workspace, &alone].map(|workspace| workspace.json("out.jsonl.report"));
    for key in [
        "answers",
        "calls",
        "ended_at_call",
        "unreadable_calls",
        "without_answer",
    ] {
        assert_eq!(reports[0][key], reports[1][key], "{key}");
    }
    assert_eq!(reports[0]["from_journal"], 3);
}

#[test]
fn rows_with_tools_are_copied_where_that_is_wanted_or_nothing_else_is_possible() {
    let workspace = with_rows(&["equal"]);
    let mut undefined = row("both");
    undefined.as_object_mut().unwrap().remove("tools");
    let plain = json!({"id": "plain", "messages": [say("user", "plain")]});
    let rows = [row("equal"), undefined, plain];
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    workspace.write("data.jsonl", text);
    let server = ToolServer::start(model);
    server.regenerate(&workspace, "--tools copy").succeeded();
    let bodies = server.take();
    assert_eq!(bodies.len(), 1);
    assert!(bodies[0].get("tools").is_none(), "{}", bodies[0]);
    let found = output(&workspace);
    assert_eq!(found["equal"], rows[0]["messages"]);
    let said = json!([say("user", "plain"), say("assistant", "plain 0")]);
    assert_eq!(found["plain"], said);
    let other = server.regenerate(&workspace, "");
    other.failed(&["out.jsonl.journal"]);
    server.regenerate(&workspace, "--fresh").succeeded();
    let report = workspace.json("out.jsonl.report");
    assert_eq!(
        report["unchanged"]["tools"],
        json!({"data.jsonl": [2]}),
        "its tools are not defined"
    );
    assert_eq!(report["regenerated"], 2);

    let own = "data regenerate --data data.jsonl --out own.jsonl --target nowhere --tools answer";
    let told = "`--tools answer`: expected `--server`: every model writes calls of tools in a form of its own";
    workspace.run_line(own).misused(&[told]);
}

#[test]
fn the_first_rows_alone_are_read_where_a_limit_is_given() {
    let server = FaultServer::start(&[]);
    let workspace = Workspace::of("");
    let rows = (1..=9).map(|number| crate::regenerate::row(number, 1));
    workspace.write("data.jsonl", crate::regenerate::lines(rows));
    let line = |limit: usize| {
        let url = server.url();
        format!("data regenerate --data data.jsonl --out out.jsonl --server {url} --limit {limit}")
    };
    let outcome = workspace.run_line(line(3)).succeeded();
    let expected = (1..=3).map(|number| crate::regenerate::answered(number, 1));
    assert_eq!(
        workspace.text("out.jsonl"),
        crate::regenerate::lines(expected)
    );
    let said = "at most 3 rows are read: the first 3 rows of `data.jsonl`, those behind them left out, not counted";
    assert!(outcome.stdout.contains(said), "{outcome:#?}");
    assert_eq!(server.answers(), 3);
    let named = "`limit`: expected 4, found 3";
    workspace.run_line(line(4)).failed(&[named, "--fresh"]);
}

#[test]
fn a_recipe_reads_the_first_rows_of_its_training_data_and_says_what_it_leaves_out() {
    let workspace = Workspace::new();
    let keys = |most: usize| format!("data.max_samples={most}");
    let prepare = ["recipe", "recipe.toml", "--stage", "prepare", "--set"];
    let run = |set: &str| workspace.run(&[&prepare[..], &[set]].concat());
    let outcome = run(&keys(5)).succeeded();
    let said = "prepare: `data.max_samples`: at most 5 rows are read: the first 5 rows of `train.jsonl`, those behind them left out";
    assert!(outcome.stderr.contains(said), "{outcome:#?}");
    let summary = workspace.manifest("prepare")["summary"].clone();
    assert_eq!(summary["train"]["read"], 5);
    assert_eq!(summary["left_out"]["at_most"], 5);
    let all = summary["eval"]["read"].as_u64().unwrap();
    let eval = workspace.text("eval.jsonl").lines().count();
    assert_eq!(all, eval as u64, "the data to evaluate with is read whole");
    let rows = crate::workspace::CONVERSATIONS;
    let again = run(&keys(rows)).succeeded();
    let changed = format!("prepare: starts over: `data.max_samples`: 5 → {rows}");
    assert!(again.stderr.contains(&changed), "{again:#?}");
    let summary = workspace.manifest("prepare")["summary"].clone();
    assert_eq!(summary["train"]["read"], rows as u64);
    assert!(summary.get("left_out").is_none(), "{summary}");
    run(&keys(0)).misused(&["key `data.max_samples`: expected at least 1, found 0"]);

    let line =
        "data prepare --target target --data train.jsonl --out tokens --max-length 64 --limit 7";
    let outcome = workspace.run_line(line).succeeded();
    assert!(
        outcome.stdout.starts_with("7 of 7 samples kept"),
        "{outcome:#?}"
    );
    assert!(
        outcome
            .stderr
            .contains("`--limit`: at most 7 rows are read"),
        "{outcome:#?}"
    );
}

#[test]
fn held_out_prompts_are_among_the_rows_that_are_read() {
    let workspace = Workspace::new();
    let recipe = workspace
        .text("recipe.toml")
        .replace("eval = \"eval.jsonl\"\n", "");
    workspace.write("recipe.toml", recipe);
    let line = "recipe recipe.toml --stage prepare --set data.max_samples=10";
    workspace.run_line(line).succeeded();
    let summary = workspace.manifest("prepare")["summary"].clone();
    let rows = summary["held_out"]["rows"].as_u64().unwrap();
    let [train, eval] = ["train", "eval"].map(|set| summary[set]["read"].as_u64().unwrap());
    assert_eq!((train + eval, eval), (10, rows), "{summary}");
}

#[test]
fn rows_with_tokens_are_read_by_them_and_the_conversations_beside_them_are_counted() {
    let workspace = Workspace::new();
    let text = workspace.text("train.jsonl");
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let mut both = first.clone();
    both["input_ids"] = json!([5, 6, 7]);
    both["loss_mask"] = json!([0, 1, 1]);
    workspace.write("both.jsonl", format!("{both}\n{first}\n"));
    let line = "data prepare --target target --data both.jsonl --out tokens --max-length 64";
    let outcome = workspace.run_line(line).succeeded();
    let said = "1 row read by its `input_ids` and mask; the conversation beside it is not read";
    assert!(outcome.stdout.contains(said), "{outcome:#?}");
    let index = workspace.json("tokens/tokens.json");
    assert_eq!(index["samples"], 2);

    // The answers are another model's where it is the conversation that counts.
    let server = ToolServer::start(model);
    workspace.write("data.jsonl", format!("{both}\n"));
    server.regenerate(&workspace, "").succeeded();
    let row: Value = serde_json::from_str(&workspace.text("out.jsonl")).unwrap();
    assert!(
        row.get("input_ids").is_none() && row.get("messages").is_some(),
        "{row}"
    );
}
