//! Recipes whose conversations the target answers anew before anything learns from them.
use serde_json::{Value, json};

use crate::fault_server::{Fault, FaultServer};
use crate::regenerate::{answered, lines, row};
use crate::workspace::{Outcome, RECIPE, Workspace};

/// [`RECIPE`] with a table `[regenerate]`.
fn recipe(keys: &str) -> String {
    format!("{RECIPE}\n[regenerate]\n{keys}\n")
}

fn until_prepared(workspace: &Workspace, settings: &str) -> Outcome {
    let line = format!("recipe recipe.toml --stage regenerate --stage prepare{settings}");
    workspace.run_line(line)
}

#[test]
fn the_target_answers_as_the_command_has_it_answer_and_what_it_says_is_trained_on() {
    let workspace = Workspace::new();
    workspace.write(
        "recipe.toml",
        recipe("temperature = 0\nmax_tokens = 12\nconcurrency = 5"),
    );
    workspace.run_line("recipe recipe.toml").succeeded();
    let report = workspace.json("runs/run/evaluate/report.json");
    assert_eq!(report["recipe"]["regenerate"]["max_tokens"], 12);
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);

    let command = "data regenerate --target target --data train.jsonl --out out.jsonl --temperature 0 --max-tokens 12";
    workspace.run_line(command).succeeded();
    let own = workspace.text("runs/run/regenerate/train.jsonl");
    assert_eq!(own, workspace.text("out.jsonl"));
    assert_ne!(own, workspace.text("train.jsonl"));
    let prepare = "data prepare --target target --data out.jsonl --out tokens --max-length 64";
    workspace.run_line(prepare).succeeded();
    let fingerprint = |path: &str| workspace.json(path)["fingerprint"].clone();
    let prepared = fingerprint("runs/run/prepare/train/tokens.json");
    assert_eq!(prepared, fingerprint("tokens/tokens.json"));
    let card = workspace.text("runs/run/export/drafter/README.md");
    assert!(card.contains("The answers are the target's own"), "{card}");

    let again = until_prepared(&workspace, " --set regenerate.concurrency=2").succeeded();
    for stage in ["regenerate", "prepare"] {
        let done = format!("{stage}: done before\n");
        assert!(again.stderr.contains(&done), "{again:#?}");
    }
    let other = until_prepared(&workspace, " --set regenerate.max_tokens=8").succeeded();
    for expected in [
        "regenerate: starts over: `regenerate.max_tokens`: 12 → 8",
        "prepare: starts over: the answers of `regenerate`",
    ] {
        assert!(
            other.stderr.contains(expected),
            "no `{expected}`: {other:#?}"
        );
    }
    let aside = workspace.text("runs/run/regenerate.old-1/train.jsonl");
    assert_eq!(aside, own, "answers are kept");
}

#[test]
fn data_whose_answers_are_only_context_is_refused_by_the_plan_and_before_anything_is_asked() {
    let server = FaultServer::start(&[]);
    let workspace = Workspace::new();
    let context = |number| {
        let mut row = row(number, 1);
        row["messages"][2]["weight"] = json!(0);
        row
    };
    workspace.write("train.jsonl", lines((1..=3).map(context)));
    let keys = format!("server = \"{}\"", server.url());
    workspace.write("recipe.toml", recipe(&keys));
    let told = "`data.train`: `train.jsonl`: expected an answer that is trained on, found 3 rows with 3 answers that are only \
                context";
    let plan = workspace.run_line("recipe recipe.toml --plan");
    let refused = plan.stderr.split("the run would be refused:").nth(1);
    assert!(refused.is_some_and(|why| why.contains(told)), "{plan:#?}");
    until_prepared(&workspace, "").failed(&[told]);
    assert_eq!(server.answers(), 0);
    // With every token trained on it does not matter what messages say.
    let all = workspace.run_line("recipe recipe.toml --plan --set data.mask=all");
    assert!(!all.stderr.contains("only context"), "{all:#?}");
}

#[test]
fn a_server_answers_and_what_it_does_not_is_asked_again() {
    let server = FaultServer::start(&[("2.1", &[Fault::Status(400)])]);
    let workspace = Workspace::new();
    workspace.write("train.jsonl", lines((1..=4).map(|number| row(number, 1))));
    let keys = format!(
        "server = [\"{}\"]\ntemperature = 0.5\nmax_tokens = 64\nextra = {{ top_k = 20 }}",
        server.url()
    );
    workspace.write(
        "recipe.toml",
        recipe(&keys).replace(
            "max_length = 64",
            "max_length = 128\ntemplate_variables = { enable_thinking = false }",
        ),
    );
    let expected = "1 of 4 conversations was not regenerated";
    until_prepared(&workspace, "").failed(&[expected]);
    until_prepared(&workspace, "").succeeded();
    let own = workspace.text("runs/run/regenerate/train.jsonl");
    assert_eq!(own, lines((1..=4).map(|number| answered(number, 1))));
    assert_eq!(server.answered().len(), 4);
    assert_eq!(
        server.answers(),
        4,
        "nothing that was answered was asked again"
    );
    for body in server.bodies() {
        let seed = body["seed"].as_u64().unwrap();
        let expected = json!({
            "temperature": 0.5, "max_tokens": 64, "top_k": 20, "model": "served", "messages": body["messages"], "stream": false,
            "seed": seed, "chat_template_kwargs": {"enable_thinking": false},
        });
        assert_eq!(body, expected);
    }
    // How servers are asked, and which, is of no influence on the answers.
    for key in [
        "retries=1",
        "requests_per_second=5.0",
        "wait=3",
        "timeout=9.0",
        "server=\"http://localhost:1\"",
    ] {
        let again = until_prepared(&workspace, &format!(" --set regenerate.{key}")).succeeded();
        assert!(
            again.stderr.contains("regenerate: done before"),
            "{again:#?}"
        );
    }
    let manifest = workspace.manifest("regenerate");
    assert_eq!(manifest["summary"]["answers"], 4, "{manifest}");
    assert_eq!(manifest["summary"]["failed"], Value::Array(Vec::new()));
}

#[test]
fn conversations_that_are_never_answered_are_left_out_where_the_recipe_says_so() {
    let refusals = [Fault::Status(400); 20];
    let server = FaultServer::start(&[("2.1", &refusals[..])]);
    let workspace = Workspace::new();
    let keys = format!("server = \"{}\"\nmax_tokens = 64", server.url());
    let recipe = recipe(&keys).replace("max_length = 64", "max_length = 128");
    workspace.write("recipe.toml", recipe);
    workspace.write("train.jsonl", lines((1..=4).map(|number| row(number, 1))));
    for _ in 0..2 {
        until_prepared(&workspace, "").failed(&[
            "1 of 4 conversations was not regenerated",
            "`regenerate.failed = \"drop\"` goes on without them",
        ]);
    }
    let dropped = until_prepared(&workspace, " --set regenerate.failed=drop").succeeded();
    for expected in [
        "1 failed:",
        "left out without an answer (`regenerate.failed`): 1 conversation;",
    ] {
        assert!(dropped.stderr.contains(expected), "{dropped:#?}");
    }
    let own = workspace.text("runs/run/regenerate/train.jsonl");
    assert_eq!(
        own,
        lines([1, 3, 4].into_iter().map(|number| answered(number, 1)))
    );
    assert_eq!(
        server.answers(),
        3,
        "nothing that was answered was asked again"
    );
    let failed = &workspace.manifest("regenerate")["summary"]["failed"];
    assert_eq!(failed[0]["row"], 2, "{failed}");
    // Where nobody answers anything, something else is wrong.
    workspace.write("train.jsonl", lines(std::iter::once(row(2, 1))));
    until_prepared(&workspace, " --set regenerate.failed=drop")
        .failed(&["1 of 1 conversation was not regenerated"]);
}

#[test]
fn answers_that_are_done_do_not_need_their_journal() {
    let server = FaultServer::start(&[]);
    let workspace = Workspace::new();
    workspace.write("train.jsonl", lines((1..=3).map(|number| row(number, 1))));
    let keys = format!("server = \"{}\"\nmax_tokens = 64", server.url());
    workspace.write("recipe.toml", recipe(&keys));
    let run = || workspace.run_line("recipe recipe.toml --stage regenerate");
    run().succeeded();
    let at = |name: &str| workspace.path(format!("runs/run/regenerate/{name}"));
    let own = workspace.text("runs/run/regenerate/train.jsonl");
    std::fs::remove_file(at("train.jsonl.journal")).unwrap();
    let again = run().succeeded();
    assert!(
        again.stderr.contains("regenerate: done before"),
        "{again:#?}"
    );
    // What has to be made again is made, although nothing says whose the answers are that are there.
    std::fs::remove_file(at("train.jsonl.report")).unwrap();
    let again = run().succeeded();
    assert!(
        again
            .stderr
            .contains("answers without their journal are moved aside"),
        "{again:#?}"
    );
    assert_eq!(workspace.text("runs/run/regenerate/train.jsonl"), own);
    assert!(at("train.jsonl.old-1").exists() && at("train.jsonl.journal").exists());
}

#[test]
fn a_damaged_first_line_of_a_journal_is_put_back_and_nothing_is_asked_again() {
    let server = FaultServer::start(&[]);
    let workspace = Workspace::new();
    workspace.write("train.jsonl", lines((1..=3).map(|number| row(number, 1))));
    let keys = format!("server = \"{}\"\nmax_tokens = 64", server.url());
    workspace.write("recipe.toml", recipe(&keys));
    let stage = "recipe recipe.toml --stage regenerate";
    let command = format!(
        "data regenerate --server {} --data train.jsonl --out out.jsonl",
        server.url()
    );
    for (line, out, then) in [
        (
            stage,
            "runs/run/regenerate/train.jsonl",
            "move the journal away",
        ),
        (
            &command[..],
            "out.jsonl",
            "`--fresh` moves what is there aside",
        ),
    ] {
        workspace.run_line(line).succeeded();
        let asked = server.answers();
        let journal = format!("{out}.journal");
        let whole = workspace.text(&journal);
        let (first, _) = whole.split_once('\n').unwrap();
        // The stage would be done.
        std::fs::remove_file(workspace.path(format!("{out}.report"))).unwrap();
        workspace.write(&journal, whole.replacen("\"rows\":3", "\"rows\":7", 1));
        let advice =
            format!("expected `{first}`; put this line back to keep the answers, or {then}");
        workspace
            .run_line(line)
            .failed(&["the first line of the journal", "is damaged", &advice]);
        workspace.write(&journal, whole.as_bytes());
        workspace.run_line(line).succeeded();
        assert_eq!(server.answers(), asked);
    }
}

#[test]
fn begun_answers_of_one_who_answered_are_not_mixed_with_those_of_another() {
    let server = FaultServer::start(&[("2.1", &[Fault::Status(400)])]);
    let workspace = Workspace::new();
    workspace.write("train.jsonl", lines((1..=3).map(|number| row(number, 1))));
    let keys = format!("max_tokens = 12\nserver = \"{}\"", server.url());
    workspace.write("recipe.toml", recipe(&keys));
    until_prepared(&workspace, "").failed(&["1 of 3 conversations"]);
    workspace.write("recipe.toml", recipe("max_tokens = 12"));
    let own = workspace.run_line("recipe recipe.toml --stage regenerate");
    let own = own.succeeded();
    assert!(own.stderr.contains("moved aside"), "{own:#?}");
    let text = workspace.text("runs/run/regenerate/train.jsonl");
    assert_eq!(text.lines().count(), 3);
    assert!(!text.contains("new answer to"), "{text}");
}

#[test]
fn keys_that_make_no_sense_are_refused() {
    for (keys, expected) in [
        (
            "top_p = 0",
            "key `regenerate.top_p`: expected more than 0 and at most 1, found 0",
        ),
        (
            "temperature = -1",
            "key `regenerate.temperature`: expected at least 0 and at most 100, found -1",
        ),
        ("max_tokens = 0", "key `regenerate.max_tokens`: expected"),
        (
            "timeout = 0",
            "key `regenerate.timeout`: expected at least 0.001",
        ),
        (
            "model = \"m\"",
            "key `regenerate.model`: expected `server` beside it",
        ),
        (
            "server = \"u\"\nextra = { seed = 1 }",
            "key `regenerate.extra`: expected keys other than",
        ),
        (
            "server = []",
            "key `regenerate.server`: expected at least one entry, found none",
        ),
        ("server = 3", "or a list of such addresses"),
        (
            "requests_per_second = 1",
            "key `regenerate.requests_per_second`: expected `server` beside it",
        ),
        (
            "server = \"http://a\"\nrequests_per_second = 0",
            "key `regenerate.requests_per_second`: expected at least 0.000001",
        ),
        ("wait = 100000000", "key `regenerate.wait`: expected"),
        (
            "server = \"http://a\"\nextra = { chat_template_kwargs = { enable_thinking = false } }",
            "key `regenerate.extra.chat_template_kwargs`: expected the variables of `data.template_variables`",
        ),
        ("failed = \"keep\"", "`drop`"),
        ("temprature = 1", "`temperature`"),
    ] {
        let workspace = Workspace::of(&recipe(keys));
        workspace
            .run_line("recipe recipe.toml --plan")
            .misused(&[expected]);
    }
    let served = recipe("").replace("[features]", "[features]\nmode = \"served\"");
    let served = served.replace(
        "model = \"target\"",
        "model = \"target\"\nserver = [\"http://localhost:1\"]\nserver_folder = \"states\"",
    );
    let workspace = Workspace::new();
    workspace.write("recipe.toml", served);
    let refused = workspace.run_line("recipe recipe.toml");
    refused
        .misused(&["`[regenerate]`: expected the key `server`: with `features.mode = \"served\"`"]);
}

#[test]
fn a_row_that_cannot_be_used_is_refused_with_the_key_that_leaves_it_out() {
    let workspace = Workspace::new();
    let text = workspace.text("train.jsonl");
    workspace.write("train.jsonl", format!("{{\"messages\": [\n{text}"));
    workspace.write("recipe.toml", recipe("temperature = 0\nmax_tokens = 4"));
    let refused = until_prepared(&workspace, "");
    let expected = [
        "train.jsonl",
        "is not JSON",
        "`data.unusable = \"drop\"` leaves such rows out",
        "`spectrain data lint`",
    ];
    refused.failed(&expected);
    until_prepared(&workspace, " --set data.unusable=drop").succeeded();
}
