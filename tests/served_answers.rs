//! Answers that servers write and whose states they hand out with them: `data regenerate --capture`.
use serde_json::{Value, json};

use crate::served_targets::{IDS, another_from, run, serve, with_a_norm};
use crate::state_server::{Serving, StateServer};
use crate::workspace::{Outcome, RECIPE, Workspace, conversation};

/// A workspace in which servers have answered the conversations anew, in `own.jsonl`, and left the features in `own`; and one of them.
fn answered() -> (Workspace, StateServer) {
    let workspace = with_a_norm();
    let [server, other] = [(); 2].map(|()| serve(&workspace, Serving::of(&IDS)));
    write_served(&workspace, &[&server, &other]);
    captured(&workspace, "own.jsonl", "own").succeeded();
    (workspace, server)
}

/// Writes the recipe `served.toml` of these servers.
fn write_served(workspace: &Workspace, servers: &[&StateServer]) {
    let servers: Vec<String> = servers.iter().map(|server| server.url()).collect();
    let served = format!(
        "[target]\nserver = {}\nserver_folder = {}\n",
        json!(servers),
        json!(workspace.path("states"))
    );
    let recipe = RECIPE.replace("[target]\n", &served);
    let recipe = recipe.replace("[features]\n", "[features]\nmode = \"served\"\n");
    workspace.write("served.toml", &recipe);
}

/// What comes of asking the servers of `served.toml` for answers, in a file, and their features, in a folder.
fn captured(workspace: &Workspace, out: &str, folder: &str) -> Outcome {
    let wanted = format!("--data train.jsonl --out {out} --capture {folder} --wait 0");
    captured_as(workspace, &wanted)
}

/// The same with these options.
fn captured_as(workspace: &Workspace, wanted: &str) -> Outcome {
    workspace.run_line(format!(
        "data regenerate {wanted} --recipe served.toml --temperature 0 --max-tokens 6"
    ))
}

/// Samples in a folder of features.
fn samples_in(workspace: &Workspace, folder: &str) -> u64 {
    let index = workspace.json(&format!("{folder}/features.json"));
    let shards = index["shards"].as_array().unwrap().iter();
    shards.map(|shard| shard["samples"].as_u64().unwrap()).sum()
}

#[test]
fn answers_of_another_server_behind_the_address_are_not_kept() {
    let workspace = with_a_norm();
    let server = serve(&workspace, another_from(12));
    write_served(&workspace, &[&server]);
    let wanted = "--data train.jsonl --out own.jsonl --capture own --concurrency 1 --wait 60";
    captured_as(&workspace, wanted).failed(&[
        &server.url(),
        "not the server that was proven",
        "the same command goes on from here",
    ]);
    let kept = samples_in(&workspace, "own");
    assert!((1..12).contains(&kept), "{kept}");
    let journal = workspace.text("own.jsonl.journal");
    // Its first line says what it is of.
    assert_eq!(journal.lines().count() as u64, 1 + kept, "{journal}");
}

#[test]
fn a_text_that_is_answered_again_is_stored_once() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    write_served(&workspace, &[&server]);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let talk = json!({"messages": [
        message("user", "count to 9"),
        message("assistant", "one"),
        message("user", &"count ".repeat(512)),
        message("assistant", "two"),
    ]});
    let mut rows: Vec<String> = (0..4).map(|row| conversation(row, "one")).collect();
    rows.push(talk.to_string());
    workspace.write("talks.jsonl", rows.join("\n"));
    // The second question leaves no room for an answer, however often it is asked.
    let wanted = "--data talks.jsonl --out own.jsonl --capture own --wait 0";
    for _ in 0..2 {
        let told = captured_as(&workspace, wanted);
        told.failed(&["1 of 5 conversations was not regenerated"]);
        assert_eq!(samples_in(&workspace, "own"), 5);
    }
    captured_as(&workspace, &format!("{wanted} --fresh")).failed(&["1 of 5 conversations"]);
    for folder in ["own", "own.old-1"] {
        assert_eq!(samples_in(&workspace, folder), 5);
    }
    // Of answers that are left out there are no features.
    let wanted = "--data train.jsonl --out few.jsonl --capture few --wait 0 --truncated drop";
    captured_as(&workspace, wanted);
    let rows = workspace.text("few.jsonl").lines().count();
    assert!(rows < crate::workspace::CONVERSATIONS);
    assert_eq!(samples_in(&workspace, "few"), rows as u64);
}

#[test]
fn of_answers_that_are_only_context_there_are_no_features() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    write_served(&workspace, &[&server]);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let talk = |number: usize| {
        let mut context = message("assistant", "one");
        context["weight"] = json!(0);
        let question = message("user", &format!("count to {number}"));
        let messages = [
            question.clone(),
            context,
            question,
            message("assistant", "two"),
        ];
        json!({ "messages": messages }).to_string()
    };
    let rows: Vec<String> = (3..6).map(talk).collect();
    workspace.write("talks.jsonl", rows.join("\n"));
    let wanted = "--data talks.jsonl --out own.jsonl --capture own --wait 0";
    captured_as(&workspace, wanted).succeeded();
    // Rows and features are of the same texts.
    assert_eq!(workspace.text("own.jsonl").lines().count(), 3);
    assert_eq!(samples_in(&workspace, "own"), 3);
}

#[test]
fn a_folder_that_stays_without_states_is_told_and_so_is_what_became_of_the_conversations() {
    let (workspace, _server) = answered();
    // All of them are answered in the journal.
    let told = captured(&workspace, "own.jsonl", "empty");
    let told = told.failed(&["`empty` holds no hidden states", "`own.jsonl.journal`"]);
    assert!(
        told.stdout.contains("conversations regenerated with"),
        "{told:#?}"
    );
    assert_eq!(workspace.json("empty/features.json")["complete"], false);
}

#[test]
fn answers_in_another_template_are_not_gone_on_with() {
    let (workspace, _server) = answered();
    let template = workspace.text("target/chat_template.jinja");
    workspace.write("other.jinja", format!("{template} "));
    let recipe = workspace.text("served.toml");
    let recipe = recipe.replace("[data]\n", "[data]\ntemplate = \"other.jinja\"\n");
    workspace.write("served.toml", recipe);
    captured(&workspace, "own.jsonl", "others").failed(&[
        "own.jsonl.journal",
        "`template`: expected",
        "`--fresh`",
    ]);
    captured(&workspace, "own.jsonl", "own").failed(&["own/features.json", "`--fresh`"]);
}

#[test]
fn two_commands_do_not_capture_into_one_folder() {
    let (workspace, _server) = answered();
    let before = workspace.files("own");
    let lock = std::fs::File::open(workspace.path("own/.lock")).unwrap();
    lock.lock().unwrap();
    captured(&workspace, "others.jsonl", "own").failed(&[
        "`own` is in use by another run",
        "choose another `--capture`",
    ]);
    assert!(workspace.files("own") == before);
    assert!(!workspace.path("others.jsonl").exists());
}

#[test]
fn answers_and_their_features_come_in_one_request() {
    let (workspace, _server) = answered();
    let text =
        String::from_utf8(workspace.files("")["own.jsonl".as_ref() as &std::path::Path].clone())
            .unwrap();
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mask = |row: &Value| row["loss_mask"].as_array().unwrap().clone();
    assert!(rows.len() >= crate::workspace::CONVERSATIONS);
    for row in &rows {
        assert_eq!(mask(row).len(), row["input_ids"].as_array().unwrap().len());
        let trained = mask(row).iter().filter(|bit| **bit == json!(1)).count();
        assert!((1..=6).contains(&trained), "{row}");
    }
    let index = workspace.json("own/features.json");
    assert_eq!(index["complete"], true);
    assert_eq!(samples_in(&workspace, "own"), rows.len() as u64);
    // What they say of themselves is what the target here says: greedy texts.
    workspace
        .run(&["recipe", "recipe.toml", "--set", "name=any"])
        .succeeded();
    workspace
        .run(&[
            "evaluate",
            "--target",
            "target",
            "--drafter",
            "runs/any/export/drafter",
            "--features",
            "own",
            "--draft-length",
            "2",
            "--out",
            "judged",
        ])
        .succeeded();
    let judged = workspace.json("judged/report.json");
    assert!(judged["texts"][0]["likeliest"].as_f64().unwrap() > 0.95);
}

#[test]
fn features_that_are_there_already_are_trained_on_and_not_asked_for() {
    let (workspace, server) = answered();
    // Trained on from there, and from servers that hand them out again, the drafter is the same.
    let own = ["data.train=own.jsonl", "data.overlong=truncate"];
    let from = ["features.from=[\"own\"]", "name=known"];
    run(&workspace, &[&server], &[&own[..], &from].concat()).succeeded();
    run(
        &workspace,
        &[&server],
        &[&own[..], &["name=again"]].concat(),
    )
    .succeeded();
    workspace
        .run_recipe(
            &[
                &own[..],
                &[
                    "features.from=[\"own\"]",
                    "features.mode=stored",
                    "name=here",
                ],
            ]
            .concat(),
        )
        .succeeded();
    let summary = |run: &str| {
        workspace.json(&format!("runs/{run}/features/manifest.json"))["summary"].clone()
    };
    for known in ["known", "here"] {
        assert_eq!(
            summary(known)["known"],
            summary(known)["samples"],
            "{known}"
        );
    }
    assert_eq!(summary("again")["known"], 0);
    let drafter = |run: &str| workspace.contents(&format!("runs/{run}/train/drafter")).1;
    assert_eq!(drafter("known"), drafter("again"));
    // Features of another target and of no use are refused.
    workspace.write_target_of("other", 99, |_| {});
    workspace
        .run_recipe(&[
            "target.model=other",
            "features.mode=stored",
            "features.from=[\"own\"]",
            "name=other",
        ])
        .failed(&["features.from", "target_sha256"]);
    run(
        &workspace,
        &[&server],
        &["features.mode=streamed", "features.from=[\"own\"]"],
    )
    .misused(&["features.from"]);
}
