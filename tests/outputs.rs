//! Every output of an evaluation, one by one.
use serde_json::{Value, json};

use crate::workspace::Workspace;

/// Decodes the file of tokens with and without the end tokens of the target.
fn outputs(workspace: &Workspace, more: &[&str]) -> Vec<Value> {
    let words = [
        "evaluate",
        "--target",
        "target",
        "--drafter",
        "runs/run/export/drafter",
        "--prompts",
        "tokens.jsonl",
        "--temperature",
        "0",
        "--draft-length",
        "2",
        "--draft-length",
        "3",
        "--max-new-tokens",
        "9",
        "--outputs",
        "outputs.jsonl",
    ];
    workspace.run(&[&words[..], more].concat()).succeeded();
    let text = workspace.text("outputs.jsonl");
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn numbers(list: &Value) -> Vec<u64> {
    serde_json::from_value(list.clone()).unwrap()
}

#[test]
fn outputs_are_written_one_by_one_and_end_where_they_are_told_to() {
    let workspace = Workspace::finished();
    let row = |tokens: &[u32]| json!({"input_ids": tokens, "loss_mask": vec![0; tokens.len()]});
    let rows = [row(&[5, 6, 7]).to_string(), row(&[8]).to_string()];
    workspace.write("tokens.jsonl", rows.join("\n"));
    let whole = outputs(&workspace, &["--ignore-stop"]);
    let places: Vec<_> = whole
        .iter()
        .map(|line| (&line["draft"]["length"], &line["prompt"], &line["dataset"]))
        .map(|(length, prompt, set)| (length.as_u64(), prompt.as_u64(), set.as_str()))
        .collect();
    let place = |length, prompt| (Some(length), Some(prompt), Some("tokens"));
    assert_eq!(places, [place(2, 0), place(2, 1), place(3, 0), place(3, 1)]);
    for line in &whole {
        let (drafted, accepted) = (numbers(&line["drafted"]), numbers(&line["accepted"]));
        assert_eq!(numbers(&line["tokens"]).len(), 9);
        assert_eq!(1 + accepted.len() as u64 + accepted.iter().sum::<u64>(), 9);
        assert_eq!(drafted.len(), accepted.len());
        assert!(
            drafted
                .iter()
                .zip(&accepted)
                .all(|(drafted, accepted)| accepted <= drafted)
        );
        assert_eq!(drafted[0], line["draft"]["length"].as_u64().unwrap());
    }
    assert_eq!(whole[0]["tokens"], whole[2]["tokens"]);

    // The third token of the first output as the target's end token.
    let tokens = numbers(&whole[0]["tokens"]);
    let end = json!({ "eos_token_id": tokens[2] }).to_string();
    workspace.write("target/generation_config.json", end);
    let first = tokens.iter().position(|token| *token == tokens[2]).unwrap();
    let cut = outputs(&workspace, &["--no-baseline"]);
    assert_eq!(numbers(&cut[0]["tokens"]), tokens[..=first]);
    let again = outputs(&workspace, &["--ignore-stop"]);
    assert_eq!(again, whole);
}
