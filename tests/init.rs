//! `spectrain init`: recipes that are written for a target and data of one's own.
use std::io::{Read as _, Write as _};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use spectrain::families::registry::RECIPES;

use crate::golden::path;
use crate::samples::Folder;
use crate::workspace::{Outcome, Workspace, signal};

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
        assert!(text.contains("\n#max_new_tokens = "), "{text}");
        // But for the number of steps, which would read the few conversations too often, and how often these are validated and saved.
        for key in ["steps", "validate_every", "save_every"] {
            assert!(text.contains(&format!("\n{key} = ")), "no {key}: {text}");
        }
        assert!(told(&text).contains("This one makes 20 passes"), "{text}");
        let pages = "recipes/README.md and recipes/drafters.md have all others";
        assert!(told(&text).contains(pages), "{text}");
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
    let outcome = workspace.run_line(GIVEN).succeeded();
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
    let against = "llama.cpp is not known to load this drafter, because of `fc_norm = true` and `norm_output = true`";
    assert!(outcome.stderr.contains(against), "{outcome:#?}");
    assert!(
        told.contains("as in the shipped recipe `quickstart`"),
        "{text}"
    );
    let set = "--set objective.divergence=kl --set train.learning_rate=1e-3 --set drafter.fc_norm=false \
               --set drafter.norm_output=false";
    let line = format!("{GIVEN} {set} --out own.toml");
    let outcome = workspace.run_line(line).succeeded();
    assert!(!outcome.stderr.contains("llama.cpp"), "{outcome:#?}");
    let text = workspace.text("own.toml");
    for line in ["\ndivergence = \"kl\"\n", "\nlearning_rate = 0.001\n"] {
        assert!(text.contains(line), "no {line}: {text}");
    }
}

#[test]
fn engines_that_a_key_loses_are_told_though_it_was_set() {
    let workspace = Workspace::new();
    for markov in ["xpress", "domino"] {
        let line = format!(
            "{GIVEN} --family dflash --set drafter.markov={markov} --set drafter.markov_rank=32 --name own-{markov}"
        );
        let outcome = workspace.run_line(line).succeeded();
        for engine in ["llama.cpp", "TensorRT-LLM", "Transformers"] {
            let told = format!("{engine} is not known to load this drafter");
            assert!(outcome.stderr.contains(&told), "{engine}: {outcome:#?}");
        }
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
fn a_question_is_left_by_an_interrupt() {
    let workspace = Workspace::new();
    let mut command = workspace.command(&["init"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // Else it would end with the answers.
    let answers = child.stdin.take();
    let mut errors = child.stderr.take().unwrap();
    let mut said: Vec<u8> = Vec::new();
    while !said.ends_with(b"\n? ") {
        let mut byte = [0];
        errors.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    signal(&child, "-TERM");
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > Duration::from_secs(300) {
            child.kill().unwrap();
            panic!("it waits for an answer");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    drop(answers);
    errors.read_to_end(&mut said).unwrap();
    let stdout = Vec::new();
    let outcome = Outcome::from(Output {
        status,
        stdout,
        stderr: said,
    });
    outcome.interrupted(&["error: interrupted"]);
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
    refused.misused(&["would be refused, so it was not written"]);
    assert!(!workspace.path("eagle3-target.toml").exists());
}

/// Adds a target, or what is beside one, of which engines computed logits.
fn add_golden(workspace: &Workspace, kind: &str, name: &str) {
    let folder = path(&format!("engines/{kind}"));
    std::fs::create_dir_all(workspace.path(name)).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(folder.join(file), workspace.path(name).join(file)).unwrap();
    }
}

/// The same with the texts of the usual target.
fn add_golden_target(workspace: &Workspace, kind: &str) {
    add_golden(workspace, kind, "own");
    for file in ["tokenizer.json", "chat_template.jinja"] {
        let to = workspace.path("own").join(file);
        std::fs::copy(workspace.path("target").join(file), to).unwrap();
    }
}

const OF_SERVER: &str = "--set features.mode=served --set target.server=[\"http://localhost:1\"] --set target.server_folder=/states";

#[test]
fn a_drafter_with_latent_attention_is_trained_further_in_its_own_sizes() {
    let workspace = Workspace::new();
    add_golden_target(&workspace, "mtp_deepseek");
    add_golden(&workspace, "eagle3_latent", "drafter");
    let given =
        format!("init --start drafter --target own --data train.jsonl --yes --name a {OF_SERVER}");
    workspace.run_line(given).succeeded();
    let text = workspace.text("a.toml");
    let latent = "latent = { q_rank = 24, kv_rank = 512, d_fixed = 16, d_turned = 64, d_value = 24, scale = 1.2";
    for part in [
        "recipe = \"eagle3\"",
        latent,
        "\nfc_norm = true\n",
        "\ncaptured_layers = [0]\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Without the key it is another drafter.
    let other = text.lines().filter(|line| !line.starts_with("latent"));
    workspace.write("b.toml", other.collect::<Vec<_>>().join("\n"));
    workspace
        .run_line("recipe b.toml --plan")
        .failed(&["`latent`: expected nothing, found { q_rank = 24"]);
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
        add_golden_target(&workspace, kind);
        let given =
            format!("init --target own --data train.jsonl --yes --family {family} {OF_SERVER}");
        workspace.run_line(given).succeeded();
        let text = workspace.text(&format!("{family}-own.toml"));
        assert!(text.contains("\nstart = \"own\"\n"), "{text}");
        assert!(text.contains(line), "{kind}: {text}");
    }
}

#[test]
fn a_drafter_is_tuned_with_its_own_settings_at_lower_rates() {
    let workspace = Workspace::new();
    workspace
        .run_recipe(&[
            "drafter.fc_norm=true",
            "objective.draft_steps=3",
            "data.mask=all",
        ])
        .succeeded();
    workspace
        .run_line("export run --to llama-cpp --out other")
        .failed(&[
            "llama.cpp is not known to load",
            "because of `fc_norm = true`",
        ]);
    workspace.write_conversations("own.jsonl", 60, 20);
    let tune = "init --start run --data own.jsonl --yes";
    workspace.run_line(tune).succeeded();
    let text = workspace.text("run-tuned.toml");
    for line in [
        "recipe = \"eagle3\"",
        "start = \"runs/run\"",
        "model = \"target\"",
        "train = \"own.jsonl\"",
        "max_length = 64",
        "mask = \"all\"",
        "fc_norm = true",
        "draft_vocab = 256",
        "draft_steps = 3",
        "learning_rate = 0.00025",
        "steps = 2",
        "warmup_steps = 1",
        "batch_tokens = 128",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "no `{line}`: {text}"
        );
    }
    assert!(
        told(&text).contains("rates are a quarter of those"),
        "{text}"
    );
    workspace
        .run_line("recipe run-tuned.toml --set evaluate.prompts=2")
        .succeeded();
    // What is set is left.
    let set = "--name other --set train.learning_rate=1e-4 --set train.steps=3";
    workspace.run_line(format!("{tune} {set}")).succeeded();
    let text = workspace.text("other.toml");
    for line in ["learning_rate = 0.0001", "steps = 3"] {
        assert!(
            text.lines().any(|found| found == line),
            "no `{line}`: {text}"
        );
    }
}

#[test]
fn a_drafter_is_tuned_with_the_servers_that_its_target_had() {
    let workspace = Workspace::finished();
    let file = "runs/run/recipe.toml";
    let mut recipe: toml::Table = workspace.text(file).parse().unwrap();
    let mut set = |table: &str, key: &str, value: toml::Value| {
        let table = recipe.entry(table).or_insert(toml::Table::new().into());
        table.as_table_mut().unwrap().insert(key.into(), value);
    };
    set("target", "server", vec!["http://localhost:1"].into());
    set("target", "api_key_env", "KEY".into());
    set("features", "mode", "streamed".into());
    set("features", "wait", 60.into());
    set("features", "from", vec!["old"].into());
    workspace.write(file, recipe.to_string());
    let lines = |line: &str| {
        workspace.run_line(line).succeeded();
        let text = workspace.text("tuned.toml");
        std::fs::remove_file(workspace.path("tuned.toml")).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let servers = ["server = [\"http://localhost:1\"]", "api_key_env = \"KEY\""];
    let (mode, wait) = ("mode = \"streamed\"", "wait = 60");
    let tune = "init --start run --data train.jsonl --name tuned --yes";
    let own = lines(tune);
    for line in servers.iter().chain(&[mode, wait]) {
        assert!(
            own.iter().any(|found| found == line),
            "no `{line}`: {own:#?}"
        );
    }
    // Features of other texts are none of these.
    assert!(!own.iter().any(|line| line.starts_with("from")), "{own:#?}");
    // What is said of one server is none of another.
    let same = lines(&format!("{tune} --set features.mode=streamed"));
    assert!(same.iter().any(|line| line == servers[0]), "{same:#?}");
    let moved = lines(&format!(
        "{tune} --set target.server=[\"http://localhost:2\"]"
    ));
    assert!(
        moved
            .iter()
            .any(|line| line == "server = [\"http://localhost:2\"]"),
        "{moved:#?}"
    );
    assert!(!moved.iter().any(|line| line == servers[1]), "{moved:#?}");
    // A mode that is set asks no server.
    let live = lines(&format!("{tune} --set features.mode=live"));
    assert!(
        !live.iter().any(|line| servers.contains(&line.as_str())),
        "{live:#?}"
    );
    // Servers of one target are none of another.
    std::fs::rename(workspace.path("target"), workspace.path("other")).unwrap();
    let other = lines(&format!("{tune} --target other"));
    for line in [servers[0], servers[1], mode, wait] {
        assert!(
            !other.iter().any(|found| found == line),
            "`{line}`: {other:#?}"
        );
    }
}

#[test]
fn a_published_drafter_is_tuned_by_the_shipped_recipe_of_its_kind() {
    let workspace = Workspace::finished();
    let from = workspace.path("runs/run/export/drafter");
    let to = workspace.path("published");
    std::fs::create_dir_all(&to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    workspace
        .run_line("init --start published --data train.jsonl --yes")
        .succeeded();
    let text = workspace.text("eagle3-target-tuned.toml");
    // A quarter of the rate of `quickstart`, the shipped recipe for small targets.
    for line in [
        "start = \"published\"",
        "model = \"target\"",
        "draft_vocab = 256",
        "optimizer = \"muon\"",
        "learning_rate = 0.001",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "no `{line}`: {text}"
        );
    }
    // The default is not what a tuning takes, nor as many as pass over few conversations too often.
    let mut steps = text
        .lines()
        .filter_map(|line| line.strip_prefix("steps = "));
    let steps: u64 = steps.next().unwrap().parse().unwrap();
    assert!((1..200).contains(&steps), "{text}");
    let said = told(&text);
    assert!(said.contains("steps and warm-up a fifth"), "{text}");
    workspace
        .run_line("init --start nothing --data train.jsonl --yes")
        .failed(&["`--start`", "nothing"]);
    workspace
        .run_line("init --start published --data train.jsonl --family medusa --yes")
        .failed(&["`--start`", "expected `MedusaModel`"]);
}

#[test]
fn a_language_model_is_tuned_from_its_folder() {
    let workspace = Workspace::new();
    let recipe = r#"recipe = "pard"
name = "run"
target.model = "target"
data = { train = "train.jsonl", max_length = 64 }
drafter = { keep_layers = [0], mask_token = 7, target_features = true, lora = { rank = 2 } }
objective = { feature_dropout = 0.1 }
train = { steps = 5, batch_tokens = 128, learning_rate = 1e-3 }
evaluate = { prompts = 2, max_new_tokens = 8 }
"#;
    workspace.write("recipe.toml", recipe);
    workspace.run(&["recipe", "recipe.toml"]).succeeded();
    workspace
        .run_line("init --start run --data train.jsonl --yes")
        .succeeded();
    let text = workspace.text("run-tuned.toml");
    for line in [
        "model = \"runs/run/export/drafter\"",
        "mask_token = 7",
        "target_features = true",
        // The rate is that of a training of thin matrices.
        "lora = { rank = 2, alpha = 32.0 }",
        "feature_dropout = 0.1",
        "steps = 1",
        "learning_rate = 0.00025",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "no `{line}`: {text}"
        );
    }
    assert!(!text.contains("\nkeep_layers"), "{text}");
    workspace
        .run_line("recipe run-tuned.toml --plan")
        .succeeded();
}

/// The table `[drafter]` of the recipe that trains a sample further for a target, from its folder alone, and what was said of it.
fn tuned_from_folder(sample: (&str, usize), target: &str) -> (toml::Value, String) {
    let workspace = Workspace::new();
    workspace.write_target_of("wide", 7, |spec| spec.d_model = 48);
    let folder = Folder::of(sample.0, sample.1);
    let start = folder.path().display();
    let line = format!("init --start {start} --target {target} --data train.jsonl --name tuned");
    let done = workspace.run_line(format!("{line} --yes")).succeeded();
    workspace.run_line("recipe tuned.toml --plan").succeeded();
    let recipe: toml::Table = workspace.text("tuned.toml").parse().unwrap();
    (recipe["drafter"].clone(), done.stderr)
}

#[test]
fn a_language_model_is_tuned_with_the_tokens_that_its_folder_tells() {
    let (pard, _) = tuned_from_folder(("pard", 0), "target");
    assert_eq!(pard["mask_token"], 5.into());
    assert_eq!(pard.get("target_features"), None);
    let (deer, _) = tuned_from_folder(("deer", 0), "target");
    assert_eq!(deer["mask_token"], 5.into());
    assert_eq!(deer["separator_token"], 6.into());
    assert_eq!(deer["context"], "causal".into());
}

#[test]
fn a_language_model_reads_hidden_states_again_where_its_folder_has_a_projection_that_fits() {
    let (fits, said) = tuned_from_folder(("pard", 1), "target");
    assert_eq!(fits["mask_token"], 5.into());
    assert_eq!(fits["target_features"], true.into());
    let told = "trained with the hidden states of a target of another width";
    assert!(!said.contains(told), "{said}");
    let (other, said) = tuned_from_folder(("pard", 1), "wide");
    assert_eq!(other["mask_token"], 5.into());
    assert_eq!(other.get("target_features"), None);
    assert!(said.contains(told), "{said}");
}

/// The lines of a recipe's comments, joined.
fn told(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim_start_matches("# "));
    lines.collect::<Vec<_>>().join(" ")
}

/// For a target that is not on this machine, and whose sizes are known.
const KNOWN: &str = "init --target Qwen/Qwen3-8B --data train.jsonl --family eagle3 --yes";

#[test]
fn a_large_targets_recipe_reads_as_much_in_a_step_as_the_shipped_one() {
    let workspace = Workspace::new();
    workspace.run_line(KNOWN).succeeded();
    let text = workspace.text("eagle3-qwen3-8b-own.toml");
    for line in [
        "max_length = 4096",
        "overlong = \"truncate\"",
        "template_variables = { enable_thinking = false }",
        "batch_tokens = 8192",
        "gradient_accumulation = 8",
        "matrix_learning_rate = 0.0128",
        // Twenty passes over a few conversations.
        "steps = 1",
        "#warmup_steps = 0",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line}: {text}");
    }
    let said = told(&text);
    for part in [
        "as in the shipped recipe `eagle3-qwen3-8b`",
        "5,000 steps of 65,536 tokens, 328 M tokens in all",
        "This one makes 20 passes",
    ] {
        assert!(said.contains(part), "no {part}: {text}");
    }
    let set = "--set train.steps=4000 --set train.batch_tokens=4096 --set data.overlong=drop";
    workspace
        .run_line(format!("{KNOWN} {set} --out own.toml"))
        .succeeded();
    let text = workspace.text("own.toml");
    for line in [
        "steps = 4000",
        "warmup_steps = 150",
        "batch_tokens = 4096",
        "gradient_accumulation = 16",
        "overlong = \"drop\"",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line}: {text}");
    }
    // How long the answers will be that are still to come, no file says.
    for (anew, out) in [
        ("--answers http://localhost:8000", "anew.toml"),
        ("--set regenerate.max_tokens=64", "set.toml"),
    ] {
        workspace
            .run_line(format!("{KNOWN} {anew} --out {out}"))
            .succeeded();
        let text = workspace.text(out);
        assert!(text.contains("\nsteps = 5000\n"), "{anew}: {text}");
    }
}

#[test]
fn a_name_that_is_made_up_is_no_shipped_recipes() {
    let workspace = Workspace::new();
    let done = workspace.run_line(KNOWN).succeeded();
    assert!(
        done.stderr.contains("`eagle3-qwen3-8b-own.toml`"),
        "{done:?}"
    );
    let text = workspace.text("eagle3-qwen3-8b-own.toml");
    assert!(
        text.contains("\nname = \"eagle3-qwen3-8b-own\"\n"),
        "{text}"
    );
    workspace
        .run_line(format!("{KNOWN} --name eagle3-qwen3-8b"))
        .succeeded();
    let text = workspace.text("eagle3-qwen3-8b.toml");
    assert!(text.contains("\nname = \"eagle3-qwen3-8b\"\n"), "{text}");
}

#[test]
fn a_drafter_that_no_engine_serves_beside_its_target_is_warned_of() {
    let workspace = Workspace::new();
    let done = workspace
        .run_line(format!("{GIVEN} --family mtp-qwen"))
        .succeeded();
    let warned =
        "warning: no engine would serve this drafter: vLLM loads this layer only with Qwen3.5";
    assert!(done.stderr.contains(warned), "{done:?}");
    // SGLang serves one that reads the state after the norm beside any target.
    let done = workspace
        .run_line(format!("{GIVEN} --family mtp"))
        .succeeded();
    assert!(!done.stderr.contains("no engine"), "{done:?}");
    let text = workspace.text("mtp-target.toml");
    assert!(text.contains("\nafter_final_norm = true\n"), "{text}");
    let set = "--set drafter.after_final_norm=false --out own.toml";
    let done = workspace
        .run_line(format!("{GIVEN} --family mtp {set}"))
        .succeeded();
    assert!(
        done.stderr.contains("warning: no engine would serve"),
        "{done:?}"
    );
    for (family, told) in [
        ("hydra", "warning: no serving engine loads Hydra heads"),
        (
            "medusa",
            "warning: serving this drafter: vLLM up to 0.32.0, which drafts a chain; 0.33 and other engines do not load Medusa",
        ),
    ] {
        let done = workspace
            .run_line(format!("{GIVEN} --family {family}"))
            .succeeded();
        assert!(done.stderr.contains(told), "no `{told}`: {done:?}");
    }
    workspace.write_qwen2("qwen2", |_| {});
    workspace
        .run_line(format!("{GIVEN} --family mtp").replace("--target target", "--target qwen2"))
        .succeeded();
    let text = workspace.text("mtp-qwen2.toml");
    assert!(text.contains("\n#after_final_norm = false\n"), "{text}");
}

#[test]
fn the_schema_beside_a_recipe_is_named_in_it() {
    let workspace = Workspace::new();
    let first = |out: &str| {
        workspace
            .run_line(format!("{GIVEN} --out {out}"))
            .succeeded();
        let text = workspace.text(out);
        text.lines().next().unwrap().to_owned()
    };
    assert_eq!(first("a.toml"), "# spectrain recipe a.toml --device cpu");
    workspace.write("schema.json", "{\"title\": \"Something else\"}");
    assert_eq!(first("b.toml"), "# spectrain recipe b.toml --device cpu");
    let schema = workspace.run_line("schema").succeeded();
    workspace.write("schema.json", schema.stdout);
    assert_eq!(first("c.toml"), "#:schema ./schema.json");
}

#[test]
fn the_help_names_the_files_that_are_read() {
    let help = Workspace::new().run_line("init --help").succeeded();
    let words = help.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("in YAML or JSON (by its name), or a shell script"),
        "{words}"
    );
}

#[test]
fn a_token_without_a_text_is_named_and_blocks_are_those_of_a_small_target() {
    let workspace = Workspace::new();
    workspace
        .run_line(format!("{GIVEN} --family dflash"))
        .succeeded();
    let text = workspace.text("dflash-target.toml");
    for line in ["layers = 2", "block_size = 8", "anchors = 32"] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line}: {text}");
    }
    let said = told(&text);
    for part in [
        "of this target is ",
        "the numbers of layers, of tokens in a block",
    ] {
        assert!(said.contains(part), "no {part}: {text}");
    }
    let set = "--set drafter.mask_token=5 --out own.toml";
    workspace
        .run_line(format!("{GIVEN} --family dflash {set}"))
        .succeeded();
    let said = told(&workspace.text("own.toml"));
    assert!(!said.contains("of this target is "), "{said}");
}

#[test]
fn a_drafter_is_tuned_with_the_optimiser_of_its_run() {
    let workspace = Workspace::finished();
    let file = "runs/run/recipe.toml";
    let mut recipe: toml::Table = workspace.text(file).parse().unwrap();
    let train = recipe["train"].as_table_mut().unwrap();
    for (key, value) in [
        ("table_learning_rate", 1e-4),
        ("max_grad_norm", 0.0),
        ("clip_value", 0.5),
        ("weight_decay", 0.1),
        ("ema_decay", 0.99),
        ("beta2", 0.999),
    ] {
        train.insert(key.into(), value.into());
    }
    workspace.write(file, recipe.to_string());
    workspace
        .run_line("init --start run --data train.jsonl --name tuned --yes --set train.beta2=0.9")
        .succeeded();
    let text = workspace.text("tuned.toml");
    for line in [
        "table_learning_rate = 0.000025",
        "max_grad_norm = 0.0",
        "clip_value = 0.5",
        "weight_decay = 0.1",
        "ema_decay = 0.99",
        "beta2 = 0.9",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line}: {text}");
    }
}

#[test]
fn the_stages_of_a_training_are_those_of_the_shipped_recipe() {
    let workspace = Workspace::new();
    let tokens = "--set drafter.mask_token=5 --set drafter.separator_token=6";
    let given =
        format!("init --target Qwen/Qwen3-8B --data train.jsonl --family deer --yes {tokens}");
    workspace.run_line(&given).succeeded();
    let text = workspace.text("deer-qwen3-8b-own.toml");
    let read: toml::Table = text.parse().unwrap();
    assert_eq!(read["train"]["learning_rate"], 5e-5.into());
    assert_eq!(read["train"]["max_grad_norm"], 1.0.into());
    assert_eq!(read["stages"]["adapt"]["learning_rate"], 1e-4.into());
    assert_eq!(read["stages"]["refine"]["learning_rate"], 2e-5.into());
    let said = told(&text);
    let all = "9,000 steps of 65,536 tokens in 3 stages, 590 M tokens in all";
    assert!(said.contains(all), "{text}");
    assert!(said.contains("the keys of `[train]` that differ"), "{text}");
    let set = "--set stages.refine.learning_rate=3e-5 --set stages.adapt.steps=0 --out own.toml";
    workspace.run_line(format!("{given} {set}")).succeeded();
    let read: toml::Table = workspace.text("own.toml").parse().unwrap();
    assert_eq!(read["stages"]["refine"]["learning_rate"], 3e-5.into());
    assert_eq!(read["stages"]["adapt"]["steps"], 0.into());
}

/// Has the target in the hub's cache as `org/t`, at the revision `v1` alone.
fn move_target_to_hub(workspace: &Workspace) {
    let commit = "a".repeat(40);
    let repository = workspace.path("hub/hub/models--org--t");
    for folder in ["refs", "snapshots"] {
        std::fs::create_dir_all(repository.join(folder)).unwrap();
    }
    std::fs::write(repository.join("refs/v1"), &commit).unwrap();
    let snapshot = repository.join("snapshots").join(commit);
    std::fs::rename(workspace.path("target"), snapshot).unwrap();
}

#[test]
fn a_target_is_looked_at_by_its_revision() {
    let workspace = Workspace::finished();
    let file = "runs/run/recipe.toml";
    let mut recipe: toml::Table = workspace.text(file).parse().unwrap();
    let target = recipe["target"].as_table_mut().unwrap();
    target.insert("model".into(), "org/t".into());
    target.insert("revision".into(), "v1".into());
    workspace.write(file, recipe.to_string());
    move_target_to_hub(&workspace);
    let given = "init --target org/t --set target.revision=v1 --data train.jsonl --yes --family";
    workspace.run_line(format!("{given} eagle3")).succeeded();
    let text = workspace.text("eagle3-t.toml");
    // The target has few tokens.
    assert!(text.contains("\n#draft_vocab = 0\n"), "{text}");
    workspace.run_line(format!("{given} pard")).succeeded();
    let text = workspace.text("pard-t.toml");
    assert!(told(&text).contains("of this target is "), "{text}");
    let tune = "init --start run --data train.jsonl --name tuned --yes";
    workspace.run_line(tune).succeeded();
    let text = workspace.text("tuned.toml");
    for line in ["model = \"org/t\"", "revision = \"v1\""] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line}: {text}");
    }
    let other = format!("{tune} --set target.revision=v2 --out other.toml");
    let refused = workspace.run_line(other);
    refused.failed(&["download `org/t` at revision `v2`"]);
}

#[test]
fn any_key_can_be_set_by_itself_or_with_its_table() {
    let workspace = Workspace::new();
    let words: Vec<&str> = GIVEN.split(' ').collect();
    let set = [
        "--set",
        "train={ keep = 1 }",
        "--set",
        "track.wandb=true",
        "--set",
        "data.template_variables={ \"a b\" = 1, \"c.d\" = 2 }",
    ];
    workspace.run(&[&words[..], &set[..]].concat()).succeeded();
    let text = workspace.text("eagle3-target.toml");
    for line in [
        "keep = 1",
        "[track]",
        "wandb = true",
        "template_variables = { \"a b\" = 1, \"c.d\" = 2 }",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line}: {text}");
    }
    for unknown in ["x.y=1", "train={ keeps = 1 }", "stages.align.steps=1"] {
        let set = ["--out", "other.toml", "--set", unknown];
        let refused = workspace.run(&[&words[..], &set].concat());
        refused.misused(&[&format!("`--set {unknown}`")]);
    }
    assert!(!workspace.path("other.toml").exists());
}
