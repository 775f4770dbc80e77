//! `spectrain push` against a hub on this machine, and the card that is pushed.
use serde_json::Value;

use crate::fake_hub::TOKEN;
use crate::push_hub::{PushHub, Wrong};
use crate::workspace::{Outcome, RECIPE, VOCAB, Workspace};

const DRAFTER: &str = "runs/run/export/drafter";
const ID: &str = "me/drafter";

fn push(hub: &PushHub, workspace: &Workspace, more: &[&str]) -> Outcome {
    let words = [&["push", "run", ID][..], more].concat();
    Outcome::from(hub.command(workspace, &words).output().unwrap())
}

/// Fails unless the hub has the files of the exported folder and no others.
fn is_whole(hub: &PushHub, workspace: &Workspace, branch: &str) {
    let files = workspace.files(DRAFTER).into_iter();
    let files = files.map(|(path, bytes)| (path.display().to_string(), bytes));
    let there = hub.branch(ID, branch);
    assert!(there == files.collect(), "{:?}", there.keys());
}

#[test]
fn a_run_is_pushed_in_one_private_commit_and_what_is_there_is_not_sent_again() {
    let workspace = Workspace::finished();
    let hub = PushHub::new();
    let outcome = push(&hub, &workspace, &["--message", "First"]).succeeded();
    assert!(
        outcome
            .stdout
            .contains("pushed: https://hub/me/drafter/commit/1"),
        "{outcome:#?}"
    );
    assert!(outcome.stdout.contains("private"), "{outcome:#?}");
    is_whole(&hub, &workspace, "main");
    assert!(hub.state().models[ID].private);
    assert_eq!(hub.state().models[ID].commits, ["First"]);
    assert!(hub.branch(ID, "main").contains_key("README.md"));

    let again = push(&hub, &workspace, &[]).succeeded();
    assert!(again.stdout.contains("nothing to push"), "{again:#?}");
    assert_eq!(hub.count("PUT "), 1);
    assert_eq!(hub.state().models[ID].commits.len(), 1);

    // Another branch takes the large file from the store.
    let outcome = push(&hub, &workspace, &["--revision", "v2"]).succeeded();
    assert!(outcome.stdout.contains("already: 1"), "{outcome:#?}");
    is_whole(&hub, &workspace, "v2");
    assert_eq!(hub.count("PUT "), 1);
}

#[test]
fn large_files_go_in_parts_where_the_hub_asks_for_them() {
    let workspace = Workspace::finished();
    let hub = PushHub::new();
    let length = workspace
        .bytes(&format!("{DRAFTER}/model.safetensors"))
        .len();
    hub.state().part = Some(length / 3);
    hub.state().wrong = Some(("PUT /store", Wrong::Status("500 Slow Down"), 1));
    push(&hub, &workspace, &[]).succeeded();
    is_whole(&hub, &workspace, "main");
    assert_eq!(hub.count("PUT "), length.div_ceil(length / 3) + 1);
    assert_eq!(
        (hub.count("POST /complete"), hub.count("POST /verify")),
        (1, 1)
    );
}

#[test]
fn a_push_that_fails_anywhere_goes_on_behind_what_was_sent() {
    let workspace = Workspace::finished();
    for (at, wrong) in [
        ("POST /api/repos/create", Wrong::Status("403 Forbidden")),
        (
            "POST /api/models/me/drafter/preupload",
            Wrong::Status("400 Bad Request"),
        ),
        ("POST /me/drafter.git/info", Wrong::Status("413 Too Large")),
        ("PUT /store", Wrong::Status("400 Bad Request")),
        ("PUT /store", Wrong::HangsUp),
        ("POST /verify", Wrong::Status("422 Wrong")),
        (
            "POST /api/models/me/drafter/commit",
            Wrong::Status("412 Precondition Failed"),
        ),
        ("POST /api/models/me/drafter/commit", Wrong::HangsUp),
    ] {
        let hub = PushHub::new();
        hub.state().wrong = Some((at, wrong, 99));
        let failed = push(&hub, &workspace, &[]);
        assert_eq!(failed.code, Some(1), "{at}: {failed:#?}");
        assert!(
            failed.stderr.contains("cannot push to `me/drafter`"),
            "{failed:#?}"
        );
        assert!(!format!("{failed:?}").contains(TOKEN));
        assert_eq!(hub.branch(ID, "main").len(), 0, "{at}: no commit of a part");
        let stored = hub.state().store.len();
        hub.state().wrong = None;
        let puts = hub.count("PUT ");
        push(&hub, &workspace, &[]).succeeded();
        is_whole(&hub, &workspace, "main");
        assert_eq!(hub.count("PUT ") - puts, 1 - stored, "{at}");
    }
}

#[test]
fn a_token_that_may_make_no_repository_pushes_to_one_that_is_there() {
    let workspace = Workspace::finished();
    let refusal = |line| Some(("POST /api/repos/create", Wrong::Status(line), 99));
    for line in [
        "401 Unauthorized",
        "402 Payment Required",
        "403 Forbidden\r\nx-error-message: no rights in the namespace `me`",
    ] {
        let hub = PushHub::new();
        hub.state().wrong = refusal(line);
        let failed = push(&hub, &workspace, &[]);
        let status = format!("make the repository: http {}", &line[..3]);
        failed.failed(&[&status]);
        hub.state().wrong = None;
        push(&hub, &workspace, &[]).succeeded();
        hub.state().wrong = refusal(line);
        push(&hub, &workspace, &["--revision", "v2"]).succeeded();
        is_whole(&hub, &workspace, "v2");
        // What it may not do there is still said.
        hub.state().models.get_mut(ID).unwrap().private = false;
        push(&hub, &workspace, &["--revision", "v3"]).failed(&["the repository is public"]);
    }
}

#[test]
fn why_the_hub_refuses_a_push_is_told() {
    let workspace = Workspace::finished();
    for (line, parts) in [
        (
            "401 Unauthorized\r\nx-error-message: Invalid username or password.",
            ["Invalid username or password.", "the token may be invalid"],
        ),
        (
            "403 Forbidden\r\nx-error-message: no rights in the namespace `me`",
            ["no rights in the namespace `me`", "may write"],
        ),
        (
            "402 Payment Required\r\nx-error-message: storage is full",
            ["storage is full", "the plan of the repository's owner"],
        ),
    ] {
        let hub = PushHub::new();
        let at = "POST /api/models/me/drafter/preupload";
        hub.state().wrong = Some((at, Wrong::Status(line), 99));
        push(&hub, &workspace, &[]).failed(&parts);
    }
}

#[test]
fn what_passes_is_tried_again_and_a_commit_whose_answer_is_lost_is_not_made_twice() {
    let workspace = Workspace::finished();
    for (at, wrong) in [
        ("POST /api/repos/create", Wrong::Status("503 Busy")),
        ("POST /me/drafter.git/info", Wrong::HangsUp),
        ("PUT /store", Wrong::HangsUpAfter),
        (
            "POST /api/models/me/drafter/commit",
            Wrong::Status("429 Slow Down"),
        ),
        ("POST /api/models/me/drafter/commit", Wrong::HangsUpAfter),
    ] {
        let hub = PushHub::new();
        hub.state().wrong = Some((at, wrong, 1));
        push(&hub, &workspace, &[]).succeeded();
        is_whole(&hub, &workspace, "main");
        assert_eq!(hub.state().models[ID].commits.len(), 1, "{at}");
    }
}

#[test]
fn only_what_the_seal_knows_is_pushed_and_only_where_it_is_wanted() {
    let workspace = Workspace::finished();
    let hub = PushHub::new();
    workspace.write(&format!("{DRAFTER}/notes.txt"), "mine");
    let dry = push(&hub, &workspace, &["--dry-run"]).succeeded();
    assert!(
        dry.stdout.contains("model.safetensors") && dry.stdout.contains("README.md"),
        "{dry:#?}"
    );
    assert!(
        dry.stderr.contains("not uploaded") && dry.stderr.contains("`notes.txt`"),
        "{dry:#?}"
    );
    assert!(hub.state().asked.is_empty());

    let mut command = hub.command(&workspace, &["push", "run", ID]);
    let without = Outcome::from(command.env_remove("HF_TOKEN").output().unwrap());
    without.failed(&["set `HF_TOKEN`"]);
    assert!(hub.state().asked.is_empty());

    // A card that its maker has changed is pushed as it is.
    workspace.write(&format!("{DRAFTER}/README.md"), "# mine");
    push(&hub, &workspace, &[]).succeeded();
    let there = hub.branch(ID, "main");
    assert_eq!(there["README.md"], b"# mine");
    assert!(!there.contains_key("notes.txt"));

    // What is public is pushed to only where that was said, and weights of others are named.
    {
        let mut state = hub.state();
        let model = state.models.get_mut(ID).unwrap();
        model.private = false;
        let main = model.branches.get_mut("main").unwrap();
        main.insert("pytorch_model.bin".into(), Vec::new());
        main.remove("README.md");
    }
    push(&hub, &workspace, &[]).failed(&["the repository is public", "`--public`"]);
    let pushed = push(&hub, &workspace, &["--public"]).succeeded();
    assert!(
        pushed
            .stderr
            .contains("`pytorch_model.bin`, which is not part of this drafter"),
        "{pushed:#?}"
    );

    let changed = workspace
        .text(&format!("{DRAFTER}/config.json"))
        .replace("\"architectures\"", "\"architecture\"");
    workspace.write(&format!("{DRAFTER}/config.json"), changed);
    push(&hub, &workspace, &[]).failed(&["was changed after it was written"]);
    let misuse = push(&hub, &workspace, &["--revision", "../x"]);
    assert_eq!(misuse.code, Some(2), "{misuse:#?}");
}

/// The YAML at the top of a card, by lines.
fn front_matter(card: &str) -> Vec<&str> {
    let rest = card.strip_prefix("---\n").unwrap();
    rest.split_once("\n---\n").unwrap().0.lines().collect()
}

#[test]
fn the_card_says_what_is_known_and_names_no_place_on_this_machine() {
    let workspace = Workspace::new();
    let stages = ["prepare", "train", "export"]
        .map(|stage| ["--stage", stage])
        .concat();
    let words = [&["recipe", "recipe.toml"][..], &stages].concat();
    workspace.run(&words).succeeded();
    let card = workspace.text(&format!("{DRAFTER}/README.md"));
    assert!(
        card.contains("# EAGLE-3 drafter for a local target\n"),
        "{card}"
    );
    assert!(
        card.contains("has not been evaluated yet") && card.contains("None was given"),
        "{card}"
    );
    assert!(
        card.contains("\n- local files and folders\n")
            || card.contains("\n- a local file or folder\n")
    );

    let license = "export.license=apache-2.0";
    workspace.run_recipe(&[license]).succeeded();
    let card = workspace.text(&format!("{DRAFTER}/README.md"));
    assert!(
        front_matter(&card).contains(&"license: \"apache-2.0\""),
        "{card}"
    );
    assert!(
        front_matter(&card).contains(&"- speculative-decoding"),
        "{card}"
    );
    let report = workspace.json("runs/run/evaluate/report.json");
    let tau = report["settings"][0]["datasets"][0]["tau"]
        .as_f64()
        .unwrap();
    assert!(
        card.contains("| eval | 2 |") && card.contains(&format!("{tau:.2}")),
        "{card}"
    );
    assert!(card.contains("6 steps of 128 tokens"), "{card}");
    assert!(
        card.contains("vllm serve TARGET") && card.contains("DRAFTER"),
        "{card}"
    );
    let here = workspace.path("");
    for place in [
        here.to_str().unwrap(),
        "runs/run",
        "train.jsonl",
        "eval.jsonl",
    ] {
        assert!(!card.contains(place), "`{place}`: {card}");
    }
}

#[test]
fn a_card_names_the_library_that_loads_the_drafter() {
    let own = "[drafter]\ndraft_vocab = 256\n\n[objective]\ndraft_steps = 2\n";
    assert!(RECIPE.contains(own));
    for (recipe, drafter, library) in [
        ("eagle3", own, "spectrain"),
        (
            "distillspec",
            "[drafter.fresh]\nlayers = 1\n",
            "transformers",
        ),
        (
            "pard",
            "[drafter]\nmask_token = 303\n[drafter.fresh]\nlayers = 1\n",
            "transformers",
        ),
    ] {
        let workspace = Workspace::new();
        // Some tokens are in no text.
        workspace.write_target("target", VOCAB + 4);
        let kind = RECIPE.replace("\"eagle3\"", &format!("{recipe:?}"));
        workspace.write("recipe.toml", kind.replace(own, drafter));
        let stages = "--stage prepare --stage train --stage export --set train.steps=2";
        workspace
            .run_line(format!("recipe recipe.toml {stages}"))
            .succeeded();
        let card = workspace.text(&format!("{DRAFTER}/README.md"));
        let lines = front_matter(&card);
        let expected = format!("library_name: {library:?}");
        assert!(lines.contains(&expected.as_str()), "{recipe}: {card}");
        let generates = lines.contains(&"pipeline_tag: text-generation");
        assert_eq!(generates, library == "transformers", "{recipe}: {card}");
    }
}

#[test]
fn a_card_lists_the_stages_of_the_training() {
    let workspace = crate::training_stages::workspace();
    let card = |more: &str| {
        workspace
            .run_line(format!("recipe recipe.toml{more}"))
            .succeeded();
        workspace.text(&format!("{DRAFTER}/README.md"))
    };
    let (all, some) = (card(""), card(" --set stages.adapt.steps=0"));
    let last = "`align`, 6 steps of 128 tokens; `refine`, 9 steps of 128 tokens";
    let first = "in stages: `adapt`, 6 steps of 128 tokens; ";
    assert!(all.contains(&format!("{first}{last}")), "{all}");
    assert!(some.contains(&format!("in stages: {last}")), "{some}");
    let alone = card(" --set stages.adapt.steps=0 --set stages.align.steps=0");
    assert!(alone.contains(", 9 steps of 128 tokens"), "{alone}");
    assert!(!alone.contains("in stages"), "{alone}");
}

#[test]
fn a_card_says_that_the_drafter_knows_the_prompts_that_it_was_judged_by() {
    let workspace = Workspace::new();
    let told = "2 of 2 prompts are also in the training data";
    workspace.run_recipe(&["data.eval=train.jsonl"]).succeeded();
    let card = workspace.text(&format!("{DRAFTER}/README.md"));
    let page = workspace.text("runs/run/evaluate/report.html");
    for text in [&card, &page] {
        assert!(text.contains(told), "{text}");
    }
    workspace.run_recipe(&[]).succeeded();
    let card = workspace.text(&format!("{DRAFTER}/README.md"));
    assert!(!card.contains("also in the training data"), "{card}");
}

#[test]
fn a_card_that_was_changed_stays_and_changes_nothing_else() {
    let workspace = Workspace::finished();
    workspace.write(&format!("{DRAFTER}/README.md"), "# mine");
    let again = workspace.run_recipe(&[]).succeeded();
    assert!(!again.stderr.contains("again"), "{again:#?}");
    assert_eq!(workspace.text(&format!("{DRAFTER}/README.md")), "# mine");
    workspace
        .run(&["check", "run", "--target", "target"])
        .succeeded();
    let refused = workspace.run_recipe(&["export.license=all rights"]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("`export.license`"),
        "{refused:#?}"
    );
}

#[test]
fn a_card_of_the_command_export_has_the_figures_of_the_run() {
    let workspace = Workspace::finished();
    workspace
        .run_line("export run --to vllm --out exported --target target")
        .succeeded();
    let card = workspace.text("exported/README.md");
    assert!(
        card.contains("| eval | 2 |") && card.contains("vllm serve"),
        "{card}"
    );
    let config: Value = workspace.json("exported/config.json");
    assert!(config["spectrain"]["card"].is_string());
}
