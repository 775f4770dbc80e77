//! `evaluate --server` with conversations of several turns: every turn after the server's own answers, the same for all runs.
use serde_json::{Value, json};
use spectrain_data::tokenizer::{Special, Tokenizer};

use crate::played_engine::{Played, PlayedEngine, accepted_of, answer_to};
use crate::served::{asked_for, served};
use crate::workspace::{Outcome, VOCAB, Workspace};

/// Tokens of an answer.
const NEW: usize = 9;
/// Turns of all conversations.
const TURNS: usize = 6;

fn workspace() -> Workspace {
    let workspace = Workspace::of("");
    workspace.write_target("target", VOCAB);
    let rows = [
        json!({"turns": ["count to 3", "and now to 5"]}),
        json!({"turns": ["count to 7"]}),
        json!({"turns": ["count to 9", "count on", "count back"]}),
    ];
    let rows: Vec<String> = rows.iter().map(Value::to_string).collect();
    workspace.write("talks.jsonl", rows.join("\n"));
    workspace
}

fn evaluate(workspace: &Workspace, more: &str) -> Outcome {
    workspace.run_line(format!(
        "evaluate --target target --prompts talks.jsonl --out out --temperature 0 --ignore-stop --max-new-tokens {NEW} {more}"
    ))
}

fn measured(engine: &PlayedEngine) -> Vec<Value> {
    asked_for(NEW, engine)
}

fn tokens(body: &Value) -> Vec<u32> {
    serde_json::from_value(body["prompt"].clone()).unwrap()
}

/// What was asked in a run, in an order that does not depend on which request came first.
fn prompts(bodies: &[Value]) -> Vec<Vec<u32>> {
    let mut prompts: Vec<_> = bodies.iter().map(tokens).collect();
    prompts.sort();
    prompts
}

/// What a server is asked with one request at a time.
fn one_by_one(workspace: &Workspace) -> Vec<Value> {
    let drafter = PlayedEngine::start(Played::vllm());
    let url = drafter.url();
    evaluate(workspace, &format!("--server {url} --concurrency 1")).succeeded();
    let bodies = measured(&drafter);
    assert_eq!(bodies.len(), TURNS);
    bodies
}

#[test]
fn every_turn_follows_what_the_server_said() {
    let workspace = workspace();
    let one_by_one = one_by_one(&workspace);
    let tokenizer = Tokenizer::from_folder(&workspace.path("target")).unwrap();
    let text = |tokens: &[u32]| tokenizer.decode(tokens, Special::Keep).unwrap();
    let said = |body: &Value| {
        let answer = answer_to(body, false);
        tokenizer.decode(&answer, Special::Skip).unwrap()
    };
    // The last conversation has three turns.
    let [first, second, third] = [3, 4, 5].map(|at| &one_by_one[at]);
    let asked = text(&tokens(third));
    let said_before = [
        said(first),
        "count on".into(),
        said(second),
        "count back".into(),
    ];
    let mut at = 0;
    for part in &said_before {
        let found = asked[at..].find(part.trim());
        at += found.unwrap_or_else(|| panic!("{part:?} is not in {asked:?} from {at}"));
    }
}

#[test]
fn all_runs_are_asked_the_same() {
    let workspace = workspace();
    let one_by_one = one_by_one(&workspace);
    // One answer of the other server is another one.
    let again = PlayedEngine::start(Played::vllm());
    let baseline = PlayedEngine::start(Played {
        wrong: Some(tokens(&one_by_one[3])),
        ..Played::baseline()
    });
    let urls = format!(
        "--server {} --baseline-server {}",
        again.url(),
        baseline.url()
    );
    evaluate(
        &workspace,
        &format!("{urls} --concurrency 3 --concurrency 1"),
    )
    .succeeded();
    for engine in [&again, &baseline] {
        let bodies = measured(engine);
        assert_eq!(bodies.len(), 2 * TURNS);
        for run in bodies.chunks(TURNS) {
            assert_eq!(prompts(run), prompts(&one_by_one));
        }
    }
    assert_eq!(again.most_under_way(), 3);
    for report in served(&workspace)
        .iter()
        .filter(|of| of["role"] == "drafter")
    {
        assert_eq!(
            (&report["prompts"], &report["figures"]["tokens"]),
            (&json!(TURNS), &json!(TURNS * NEW))
        );
        let outputs = &report["outputs"];
        assert_eq!(
            (&outputs["outputs"], &outputs["differ"]),
            (&json!(TURNS), &json!(1))
        );
        let place = &outputs["differences"][0];
        assert_eq!((&place["prompt"], &place["token"]), (&json!(2), &json!(2)));
        assert!(report.get("notes").is_none(), "{report}");
    }
}

#[test]
fn counters_are_read_around_each_conversation() {
    let workspace = workspace();
    let drafter = PlayedEngine::start(Played {
        tells: false,
        ..Played::vllm()
    });
    evaluate(
        &workspace,
        &format!("--server {} --concurrency 1", drafter.url()),
    )
    .succeeded();
    let bodies = measured(&drafter);
    let drafts: usize = bodies.iter().map(|body| accepted_of(body, NEW).len()).sum();
    let found = &served(&workspace)[0]["figures"];
    assert_eq!(found["counted_by"], "counters_around_each");
    assert_eq!(
        (&found["drafts"]["drafts"], bodies.len()),
        (&json!(drafts), TURNS)
    );
    assert!(found["tau_ci95"].is_array());
}

#[test]
fn turns_that_cannot_be_asked_are_told() {
    let workspace = workspace();
    let drafter = PlayedEngine::start(Played::vllm());
    evaluate(
        &workspace,
        &format!("--server {} --concurrency 3", drafter.url()),
    )
    .succeeded();
    let longest = measured(&drafter)
        .iter()
        .map(|body| tokens(body).len())
        .max();
    // The baseline server has no room for the last turn, so neither is asked it.
    let baseline = PlayedEngine::start(Played {
        max_model_len: longest.unwrap() + NEW - 1,
        ..Played::baseline()
    });
    let urls = format!(
        "--server {} --baseline-server {}",
        drafter.url(),
        baseline.url()
    );
    evaluate(&workspace, &format!("{urls} --concurrency 3")).succeeded();
    let note = "1 later turns of conversations were left out: they are too long for a server";
    for report in served(&workspace) {
        assert_eq!(
            (&report["prompts"], &report["notes"]),
            (&json!(TURNS - 1), &json!([note]))
        );
    }
    assert_eq!(measured(&baseline).len(), TURNS - 1);

    // Without ids nobody knows what was said.
    let silent = PlayedEngine::start(Played {
        hides_ids: true,
        ..Played::vllm()
    });
    evaluate(
        &workspace,
        &format!("--server {} --concurrency 3", silent.url()),
    )
    .succeeded();
    assert_eq!(measured(&silent).len(), 3);
    let note = served(&workspace)[0]["notes"][0]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        note.starts_with("3 later turns") && note.contains("`token_ids`"),
        "{note}"
    );
}
