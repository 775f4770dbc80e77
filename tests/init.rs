//! `spectrain init`: recipes that are written for a target and data of one's own.
use std::io::Write as _;
use std::process::Stdio;

use spectrain::families::registry::RECIPES;

use crate::golden::path;
use crate::workspace::{Outcome, Workspace};

const GIVEN: &str = "init --target target --data train.jsonl --yes";

#[test]
fn the_recipe_of_every_family_says_what_its_keys_mean_and_has_a_plan() {
    let workspace = Workspace::new();
    for recipe in RECIPES {
        let name = recipe.name;
        let outcome = workspace.run_line(format!("{GIVEN} --family {name}"));
        let file = format!("{name}-target.toml");
        outcome.succeeded();
        let text = workspace.text(&file);
        assert!(text.contains("# Peak learning rate"), "{text}");
        assert!(text.contains("\nmodel = \"target\"\n"), "{text}");
        // What is not asked for is a default, and stays one where defaults change.
        assert!(text.contains("\n#steps = "), "{text}");
        let plan = workspace.run(&["recipe", &file, "--plan"]).succeeded();
        assert!(
            plan.stdout.contains(&format!("name = \"{name}-target\"")),
            "{plan:#?}"
        );
        assert!(!plan.stdout.contains("\nrefused:"), "{plan:#?}");
    }
}

#[test]
fn keys_that_are_set_are_in_the_recipe_and_defaults_behind_a_sign() {
    let workspace = Workspace::new();
    let set =
        "--set train.steps=7 --set seed=3 --set evaluate.top_p=0.9 --name mine --out own.toml";
    workspace.run_line(format!("{GIVEN} {set}")).succeeded();
    let text = workspace.text("own.toml");
    for line in [
        "\nsteps = 7\n",
        "\nseed = 3\n",
        "\ntop_p = 0.9\n",
        "\nname = \"mine\"\n",
    ] {
        assert!(text.contains(line), "no {line}: {text}");
    }
    let words = |line: &str| line.chars().count();
    assert!(
        text.lines()
            .all(|line| words(line) <= 82 || !line.starts_with("# ")),
        "{text}"
    );
    let again = workspace.run_line(format!("{GIVEN} --out own.toml"));
    again.failed(&["`own.toml` is there already", "--out"]);
}

#[test]
fn what_has_helped_is_set_as_in_the_closest_shipped_recipe() {
    let workspace = Workspace::new();
    workspace.run_line(GIVEN).succeeded();
    let text = workspace.text("eagle3-target.toml");
    for line in [
        "\nfc_norm = true\n",
        "\ndivergence = { tempered_kl = 0.5 }\n",
        "\noptimizer = \"muon\"\n",
        "\nlearning_rate = 0.004\n",
        // The target has few tokens.
        "\n#draft_vocab = 0\n",
    ] {
        assert!(text.contains(line), "no {line}: {text}");
    }
    let lines = text.lines().map(|line| line.trim_start_matches("# "));
    let told = lines.collect::<Vec<_>>().join(" ");
    assert!(
        told.contains("as in the shipped recipe `quickstart`"),
        "{text}"
    );
    let set = "--set objective.divergence=kl --set train.learning_rate=1e-3";
    let line = format!("{GIVEN} {set} --out own.toml");
    workspace.run_line(line).succeeded();
    let text = workspace.text("own.toml");
    for line in ["\ndivergence = \"kl\"\n", "\nlearning_rate = 0.001\n"] {
        assert!(text.contains(line), "no {line}: {text}");
    }
}

#[test]
fn a_device_of_another_machine_is_written_and_warned_about() {
    let workspace = Workspace::new();
    let outcome = workspace.run_line(format!("{GIVEN} --device cuda:0"));
    let outcome = outcome.succeeded();
    let warns = outcome.stderr.contains("warning: device `cuda:0`");
    assert_eq!(warns, !cfg!(feature = "cuda"), "{outcome:#?}");
    let text = workspace.text("eagle3-target.toml");
    assert!(text.contains("--device cuda:0"), "{text}");
}

#[test]
fn keys_say_which_values_there_are_and_where_to_evaluate() {
    let workspace = Workspace::new();
    workspace.run_line(GIVEN).succeeded();
    let text = workspace.text("eagle3-target.toml");
    let lines = text.lines().map(|line| line.trim_start_matches("# "));
    let told = lines.collect::<Vec<_>>().join(" ");
    let head = "Where the head comes from. One of \"own\", \"copied\", \"shared\".";
    assert!(told.contains(head), "{text}");
    assert!(text.contains("\n#eval = \"eval.jsonl\"\n"), "{text}");
}

#[test]
fn the_target_or_its_server_may_answer_anew() {
    let workspace = Workspace::new();
    let asked = |answers: &str, out: &str| {
        let line = format!("{GIVEN} --answers {answers} --out {out}");
        workspace.run_line(line).succeeded();
        let plan = workspace.run(&["recipe", out, "--plan"]).succeeded();
        (workspace.text(out), plan.stdout)
    };
    let (kept, plan) = asked("keep", "kept.toml");
    assert!(!kept.contains("[regenerate]") && !plan.contains("[regenerate]"));
    let (decoded, plan) = asked("target", "decoded.toml");
    assert!(decoded.contains("\n[regenerate]\n"), "{decoded}");
    assert!(decoded.contains("\n#max_tokens = 2048\n"), "{decoded}");
    assert!(plan.contains("[regenerate]"), "{plan}");
    let (served, plan) = asked("http://localhost:8000", "served.toml");
    let server = "server = \"http://localhost:8000\"\n";
    assert!(served.contains(&format!("\n{server}")), "{served}");
    assert!(plan.contains(server), "{plan}");
    let wrong = workspace.run_line(format!("{GIVEN} --answers mine"));
    wrong.misused(&["`--answers`", "found `mine`"]);
}

#[test]
fn what_is_not_given_is_asked_for_until_the_answer_makes_sense() {
    let workspace = Workspace::new();
    let mut command = workspace.command(&["init"]);
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let answers = "traget\ntarget\nnowhere.jsonl\ntrain.jsonl\nlocalhost:8000\nkeep\n99\n5\n\n";
    child
        .stdin
        .take()
        .unwrap()
        .write_all(answers.as_bytes())
        .unwrap();
    let outcome = Outcome::from(child.wait_with_output().unwrap()).succeeded();
    for said in [
        "did you mean `target`?",
        "`nowhere.jsonl`",
        "or a server's `http://HOST:PORT`, found `localhost:8000`",
        "unknown recipe `99`",
        "? [cpu] ",
    ] {
        assert!(outcome.stderr.contains(said), "no {said}: {outcome:#?}");
    }
    let name = RECIPES[4].name;
    let text = workspace.text(&format!("{name}-target.toml"));
    assert!(text.contains(&format!("\nrecipe = \"{name}\"\n")), "{text}");
}

#[test]
fn without_answers_nothing_is_written() {
    let workspace = Workspace::new();
    let mut command = workspace.command(&["init", "--target", "target"]);
    let ended = Outcome::from(command.stdin(Stdio::null()).output().unwrap());
    ended.misused(&["`--data` is missing"]);
    workspace
        .run(&["init", "--yes"])
        .misused(&["`--target` is missing"]);
    let of_hub = "init --target target --yes --data hf://";
    let wrong = workspace.run(&of_hub.split(' ').collect::<Vec<_>>());
    wrong.misused(&["`--data`", "hf://org/name"]);
    let wrong = workspace.run_line(format!("{GIVEN} --family medus"));
    wrong.misused(&["`--family`", "did you mean `medusa`?"]);
    let refused = workspace.run_line(format!("{GIVEN} --set drafter.captured_layers=[99]"));
    refused.failed(&["would be refused, so it was not written"]);
    assert!(!workspace.path("eagle3-target.toml").exists());
}

#[test]
fn the_layer_that_a_targets_checkpoint_has_is_trained_further() {
    for (kind, family, line) in [
        ("mtp", "mtp", "start = "),
        ("mtp_qwen", "mtp-qwen", "start = "),
        (
            "mtp_qwen_moe",
            "mtp-qwen",
            "\nexperts = { count = 5, per_token = 2, d_ff = 16, shared_d_ff = 32 }\n",
        ),
        ("mtp_glm", "mtp-deepseek", "\nqk_norm = true\n"),
        ("mtp_deepseek", "mtp-deepseek", "\nlatent = { q_rank = 24, "),
    ] {
        let workspace = Workspace::new();
        let folder = path(&format!("engines/{kind}"));
        for file in ["config.json", "model.safetensors"] {
            let to = workspace.path("own").join(file);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(folder.join(file), to).unwrap();
        }
        for file in ["tokenizer.json", "chat_template.jinja"] {
            let to = workspace.path("own").join(file);
            std::fs::copy(workspace.path("target").join(file), to).unwrap();
        }
        let server = "--set features.mode=served --set target.server=[\"http://localhost:1\"] --set target.server_folder=/states";
        let given =
            format!("init --target own --data train.jsonl --yes --family {family} {server}");
        workspace.run_line(given).succeeded();
        let text = workspace.text(&format!("{family}-own.toml"));
        assert!(text.contains("\nstart = \"own\"\n"), "{text}");
        assert!(text.contains(line), "{kind}: {text}");
    }
}
