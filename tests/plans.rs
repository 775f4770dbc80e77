//! A plan says what the run does: it is refused where the run is, and finds stages done, stale or damaged as the run does.
use serde_json::{Value, json};
use spectrain_data::tokenizer::Tokenizer;

use crate::fake_hub::{FakeHub, Repository};
use crate::workspace::{CONVERSATIONS, Outcome, RECIPE, REFUSED, Workspace};

fn recipe(workspace: &Workspace, words: &[&str]) -> Outcome {
    workspace.run(&[&["recipe", "recipe.toml"], words].concat())
}

fn set<'a>(changes: &[&'a str]) -> Vec<&'a str> {
    changes
        .iter()
        .flat_map(|change| ["--set", *change])
        .collect()
}

/// What a plan says of a stage.
fn stage(workspace: &Workspace, name: &str) -> String {
    let plan = recipe(workspace, &["--plan"]);
    let stages = plan.stdout.split("\nstages:\n").nth(1).unwrap();
    let line = stages.lines().find_map(|line| {
        let (found, state) = line.trim().split_once(' ')?;
        (found == name).then(|| state.trim().to_owned())
    });
    line.unwrap_or_else(|| panic!("no `{name}`: {plan:#?}"))
}

/// Settings with which a run is refused before anything is begun, how the program ends, and what is said: with 2 where a value makes
/// no sense for the target, with 1 where something is not there.
const REFUSALS: [(&str, i32, &str); 13] = [
    ("data.train=absent.jsonl", 1, "`absent.jsonl`"),
    (
        "data.template=absent.jinja",
        1,
        "cannot read `absent.jinja`",
    ),
    ("drafter.captured_layers=[7]", 2, "ascending layers below"),
    ("drafter.kv_heads=3", 2, "a divisor of"),
    ("drafter.draft_vocab=500", 2, "at most the target's 300"),
    (
        "features.mode=served",
        2,
        "`target.server` is missing; `features.mode = \"served\"` needs it",
    ),
    (
        "evaluate.drafts=[{ shape = \"best_first\", nodes = 4 }]",
        2,
        "`evaluate.drafts`: expected a drafter that makes all steps in one pass",
    ),
    (
        "evaluate.training_free=[{ name = \"early-layers\", layers = 9 }]",
        2,
        "`evaluate.training_free`: `early-layers:9`",
    ),
    ("start=train.jsonl", 1, "`start`"),
    (
        "target.model=org/model",
        1,
        "`HF_HUB_OFFLINE` is set; without a network, name a folder",
    ),
    (
        "evaluate.targets=[\"org/other\"]",
        1,
        "cannot open the target `org/other`",
    ),
    ("start=org/drafter", 1, "the start `org/drafter`"),
    (
        "evaluate.prompts=[\"math-500\"]",
        1,
        "cannot download the prompts `math-500`",
    ),
];

#[test]
fn a_plan_is_refused_where_the_run_is_and_in_the_same_words() {
    let workspace = Workspace::new();
    for (change, code, message) in REFUSALS {
        let words = set(&[change]);
        let run = recipe(&workspace, &words);
        let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat());
        assert_eq!((run.code, plan.code), (Some(code), Some(code)), "{plan:#?}");
        assert!(run.stderr.contains(message), "{run:#?}");
        let said = run.stderr.trim().strip_prefix("error: ").unwrap();
        assert!(plan.stderr.contains(said), "{run:#?} {plan:#?}");
        // Whatever is to be read is at the end, and said once.
        assert!(plan.stdout.ends_with(REFUSED), "{plan:#?}");
        assert!(!plan.stdout.contains(said), "{plan:#?}");
        for line in plan.stdout.lines() {
            let causes = line.matches("(os error").count();
            assert!(causes < 2, "{line}");
        }
        assert!(!workspace.path("runs").exists(), "nothing was begun");
    }
}

#[test]
fn what_no_training_stage_could_do_is_refused_before_anything_is_begun() {
    let stages = crate::training_stages::workspace();
    let distilled = Workspace::new();
    let text = other("distillspec", "fresh = { layers = 1 }", "target")
        + "[features]\nmode = \"streamed\"\n[objective]\non_policy = { fraction = 0.5 }\n";
    distilled.write("recipe.toml", text);
    let unjudged =
        "key `objective.on_policy.fraction`: expected 0 with `features.mode = \"streamed\"`";
    let unmeasured = "validations of the stage `adapt` do not count τ";
    let cases: [(&Workspace, &[&str], &str); 2] = [
        (&stages, &["train.validate_samples=0"], unmeasured),
        (&distilled, &[], unjudged),
    ];
    for (workspace, changes, told) in cases {
        let words = set(changes);
        recipe(workspace, &words).misused(&[told]);
        recipe(workspace, &[&words[..], &["--plan"]].concat()).misused(&[told]);
        assert!(!workspace.path("runs").exists(), "nothing was begun");
    }
}

#[test]
fn a_plan_counts_by_what_was_prepared_only_where_that_stays_done() {
    let workspace = Workspace::finished();
    workspace.write_conversations("big.jsonl", 0, 10 * CONVERSATIONS);
    let tokens = |words: &[&str]| {
        let plan = recipe(&workspace, &[&["--plan", "--json"], words].concat()).succeeded();
        let json: Value = serde_json::from_str(&plan.stdout).unwrap();
        json["estimates"]["data_tokens"].as_u64().unwrap()
    };
    let counted = workspace.json("runs/run/prepare/train/tokens.json");
    let counted = counted["tokens"].as_u64().unwrap();
    assert_eq!(tokens(&[]), counted);
    // Of a run that is not there the size of the files tells it.
    let other = tokens(&set(&["name=other"]));
    assert_eq!(tokens(&["--fresh"]), other);
    let big = tokens(&set(&["data.train=big.jsonl"]));
    assert!(big > 2 * counted, "{big} {counted}");
    assert_eq!(big, tokens(&set(&["name=other", "data.train=big.jsonl"])));
}

#[test]
fn a_plan_is_made_for_a_device_that_this_program_was_built_without() {
    if cfg!(feature = "cuda") {
        return;
    }
    let workspace = Workspace::new();
    let several = [
        "--devices",
        "cuda:0-1",
        "--set",
        "train.gradient_accumulation=2",
    ];
    for words in [&["--device", "cuda:0"][..], &several] {
        let told = ["device `cuda:0`", "feature `cuda`", "--features cuda-nvrtc"];
        recipe(&workspace, words).failed(&told);
        let plan = recipe(&workspace, &[words, &["--plan"]].concat()).succeeded();
        let warned = plan.stdout.split("\nwarnings:\n").nth(1).unwrap();
        for part in told.into_iter().chain(["refuses to run on it"]) {
            assert!(warned.contains(part), "no `{part}`: {plan:#?}");
        }
        assert!(plan.stdout.contains("\n  together    "), "{plan:#?}");
    }
    let plan = [&several[..], &["--plan"]].concat();
    let plan = recipe(&workspace, &plan).succeeded();
    let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("800 TFLOP/s on 2 devices (assumed"),
        "{words}"
    );
}

#[test]
fn what_is_said_of_each_stage_and_key_stands_behind_the_recipe() {
    let workspace = Workspace::new();
    let words = ["--plan", "--set", "evaluate.draft_lengths=[0]"];
    let plan = recipe(&workspace, &words).succeeded();
    for line in [
        "captured_layers = []  # [",
        "d_ff = 0  # ",
        "heads = 0  # ",
        "draft_lengths = [0]  # [5]",
    ] {
        let is_there = plan.stdout.lines().any(|of| of.starts_with(line));
        assert!(is_there, "no `{line}`: {plan:#?}");
    }
    let (_, times) = plan.stdout.split_once("\ntime:\n").unwrap();
    for stage in ["prepare", "train", "export", "evaluate", "together"] {
        let name = format!("  {stage:12}");
        let line = times.lines().find(|line| line.starts_with(&name));
        let line = line.unwrap_or_else(|| panic!("no `{stage}`: {plan:#?}"));
        assert!(line.contains(" s") && !line.contains("not known"), "{line}");
    }
    assert!(times.contains("2 tokens for each pass"), "{times}");
}

#[test]
fn a_plan_finds_what_a_run_would_come_to_at_once() {
    let workspace = Workspace::new();
    workspace.write("empty.jsonl", "");
    workspace.write("broken.jsonl", "{\"messages\": 3}\n");
    workspace.write("runs.txt", "");
    workspace.write_target("mute", crate::workspace::VOCAB);
    std::fs::remove_file(workspace.path("mute/tokenizer.json")).unwrap();
    let rows = "cannot prepare `data.train`";
    let cases: [(&[&str], &[&str], &[&str]); 7] = [
        (
            &["target.model=elsewhere"],
            &[],
            &["cannot open the target `elsewhere`", "not a hub id"],
        ),
        (
            &["evaluate.targets=[\"elsewhere\"]"],
            &[],
            &["cannot open the target `elsewhere`"],
        ),
        (&["target.model=mute"], &[], &["tokenizer.json"]),
        (
            &["data.train=empty.jsonl"],
            &[],
            &[rows, "the dataset is empty"],
        ),
        (&["data.train=broken.jsonl"], &[], &[rows, "row 1"]),
        (
            &["data.max_length=4", "train.batch_tokens=4"],
            &[],
            &[rows, "no sample is left of the 40 rows read"],
        ),
        (
            &[],
            &["--runs", "runs.txt"],
            &["cannot write to `", "name another folder with `--runs`"],
        ),
    ];
    for (changes, words, expected) in cases {
        let words = [&set(changes)[..], words].concat();
        let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat());
        let refused = plan.stderr.split("the run would be refused:").nth(1);
        let refused = refused.unwrap_or_else(|| panic!("not refused: {plan:#?}"));
        for part in expected {
            assert!(refused.contains(part), "no `{part}`: {plan:#?}");
        }
        recipe(&workspace, &words).failed(&expected[1..]);
        assert_eq!(plan.code, Some(1), "{plan:#?}");
    }
}

#[test]
fn a_plan_is_refused_where_training_cannot_start_from_a_drafter() {
    let workspace = Workspace::finished();
    let other = "the drafter `runs/run/export/drafter` has other settings than `[drafter]`";
    for (change, told) in [
        (
            "drafter.window=7",
            "`window`: expected 7, found 0; to train it further, `[drafter]` needs `window = 0`",
        ),
        (
            "drafter.draft_vocab=128",
            "`draft_vocab`: expected 128, found 256; to train it further, `[drafter]` needs `draft_vocab = 256`",
        ),
    ] {
        let words = set(&["name=b", "start=runs/run", change]);
        let run = recipe(&workspace, &words).failed(&[&format!("{other}: {told}")]);
        let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat());
        let said = run.stderr.trim().strip_prefix("error: ").unwrap();
        plan.failed(&[said]);
        assert!(!workspace.path("runs/b").exists(), "nothing was begun");
    }
    workspace.write_target_of("wide", 7, |spec| spec.d_model = 64);
    let words = set(&["name=b", "start=runs/run", "target.model=wide"]);
    let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat());
    plan.failed(&["is not for this target", "hidden size: expected 64, found"]);
}

#[test]
fn a_plan_is_refused_where_texts_hold_the_token_that_stands_for_tokens_to_come() {
    let workspace = Workspace::new();
    let tokenizer = Tokenizer::from_folder(&workspace.path("target")).unwrap();
    let held = tokenizer.token_id("<|im_end|>").unwrap();
    let drafter = format!("layers = 1\nblock_size = 4\nmask_token = {held}");
    let text = RECIPE
        .replace("\"eagle3\"", "\"dflash\"")
        .replace("draft_vocab = 256", &drafter)
        .replace("draft_steps = 2", "anchors = 4");
    workspace.write("recipe.toml", text);
    // Each of the conversations has two messages.
    let times = 2 * CONVERSATIONS;
    let told = format!(
        "`[drafter] mask_token`: expected a token that no text holds, found {held}, which the texts hold {times} times"
    );
    let plan = recipe(&workspace, &["--plan"]);
    let first = format!("the first texts of `data.train`: {told}");
    plan.failed(&[&first]);
    recipe(&workspace, &[]).failed(&[&told]);
}

#[test]
fn a_plan_is_refused_where_nothing_of_the_texts_is_a_prompt() {
    let workspace = Workspace::new();
    let row = |token: u32| {
        let row = json!({"input_ids": [token % 40, 5, 6, 7], "loss_mask": [1, 1, 1, 1]});
        format!("{row}\n")
    };
    let told = "it holds no prompt; rows that are trained on from their first token, so that nothing of them is a prompt: ";
    let held_out =
        format!("the held-out rows of `data.train` (`data.eval` can name others): {told}");
    let given = format!("`data.eval`: {told}");
    let alone = RECIPE.replace("eval = \"eval.jsonl\"\n", "");
    // Of many rows the first ones are looked at.
    for rows in [40, 140] {
        let text: String = (0..rows).map(row).collect();
        workspace.write("train.jsonl", &text);
        for (recipe_text, change, told) in [
            (alone.as_str(), "name=alone", &held_out),
            (RECIPE, "data.eval=train.jsonl", &given),
        ] {
            workspace.write("recipe.toml", recipe_text);
            let words = set(&[change]);
            recipe(&workspace, &[&words[..], &["--plan"]].concat()).failed(&[told]);
            recipe(&workspace, &words).failed(&[told]);
        }
        workspace.write("recipe.toml", RECIPE);
        recipe(&workspace, &["--plan"]).succeeded();
    }
}

#[test]
fn texts_longer_than_the_context_of_the_target_are_warned_of() {
    let workspace = Workspace::new();
    workspace.write_target_of("short", 7, |spec| spec.max_positions = 40);
    let numbers: String = (0..32).map(|number| format!(" {}", number % 10)).collect();
    let long = crate::workspace::conversation(0, "one").replace("count to", &numbers);
    let eval = format!("{}\n{long}\n", workspace.text("eval.jsonl"));
    workspace.write("eval.jsonl", eval);
    let words = set(&["target.model=short"]);
    let told = "`data.max_length` is 64, but the target's `max_position_embeddings` is 40";
    let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat()).succeeded();
    let warned = plan.stdout.split("\nwarnings:\n").nth(1).unwrap();
    assert!(warned.trim_start().starts_with(told), "{plan:#?}");
    let run = recipe(&workspace, &words).succeeded();
    assert_eq!(run.stderr.matches(told).count(), 1, "{run:#?}");
    let left_out = "context of 40 tokens and are left out: 1";
    assert!(run.stderr.contains(left_out), "{run:#?}");
    let fits = recipe(&workspace, &["--plan"]).succeeded();
    let warns = fits.stdout.contains("max_position_embeddings");
    assert!(!warns, "{fits:#?}");
}

#[test]
fn what_is_wrong_with_the_text_of_a_target_is_said_by_plan_run_and_linter() {
    let workspace = Workspace::new();
    let words = set(&["data.template_variables.enable_thinkng=false"]);
    let unread = "the chat template reads no variable `enable_thinkng`";
    let endless = "the target has no stop token";
    let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat()).succeeded();
    let warned = plan.stdout.split("\nwarnings:\n").nth(1).unwrap();
    for told in [unread, endless] {
        assert!(warned.contains(told), "{plan:#?}");
    }
    let run = recipe(&workspace, &[&words[..], &["--stage", "prepare"]].concat()).succeeded();
    for told in [unread, endless] {
        assert_eq!(run.stderr.matches(told).count(), 1, "{run:#?}");
    }
    let lint = "data lint --target target --train train.jsonl";
    let linted = workspace.run_line(format!("{lint} --template-variable enable_thinkng=false"));
    let linted = linted.failed(&["1 problem in the data"]);
    assert!(linted.stdout.contains(unread), "{linted:#?}");
    assert!(linted.stderr.contains(endless), "{linted:#?}");
    // One that has a stop token, read by a template with such a variable.
    workspace.write("target/generation_config.json", "{\"eos_token_id\": 1}");
    let template = workspace.text("target/chat_template.jinja");
    let template = format!("{{% if enable_thinking %}}{{% endif %}}{template}");
    workspace.write("target/chat_template.jinja", template);
    let read = set(&["data.template_variables.enable_thinking=false"]);
    let plan = recipe(&workspace, &[&read[..], &["--plan"]].concat()).succeeded();
    for told in ["reads no variable", endless] {
        assert!(!plan.stdout.contains(told), "{plan:#?}");
    }
    let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat()).succeeded();
    let near = format!("{unread} (did you mean `enable_thinking`?)");
    assert!(plan.stdout.contains(&near), "{plan:#?}");
}

#[test]
fn a_linter_says_that_texts_may_be_longer_than_the_context_of_the_target() {
    let workspace = Workspace::new();
    workspace.write_target_of("short", 7, |spec| spec.max_positions = 40);
    let told = "`--max-length` is 64, but the target's `max_position_embeddings` is 40";
    for (line, warns) in [
        ("data lint --train train.jsonl --max-length 64", true),
        ("data lint --train train.jsonl --max-length 40", false),
        (
            "data prepare --data train.jsonl --out in --max-length 64",
            true,
        ),
    ] {
        let outcome = workspace.run_line(format!("{line} --target short"));
        assert_eq!(outcome.stderr.contains(told), warns, "{line}: {outcome:#?}");
    }
}

#[test]
fn a_run_that_is_larger_than_the_disk_is_told_by_the_run_as_by_its_plan() {
    let workspace = Workspace::new();
    let words = set(&[
        "train.steps=1000000000",
        "train.save_every=1",
        "train.keep=1000000000",
    ]);
    let told = " of the disk, and ";
    let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat()).succeeded();
    assert!(plan.stdout.contains(told), "{plan:#?}");
    let run = recipe(&workspace, &[&words[..], &["--stage", "prepare"]].concat()).succeeded();
    assert_eq!(run.stderr.matches(told).count(), 1, "{run:#?}");
}

#[test]
fn a_target_whose_weights_are_not_those_of_its_configuration_is_refused_before_anything_is_begun() {
    let workspace = Workspace::new();
    let config = workspace.json("target/config.json");
    for (key, value, tensor) in [
        ("num_hidden_layers", 7, "model.layers.6."),
        ("vocab_size", 400, "model.embed_tokens.weight"),
    ] {
        let mut changed = config.clone();
        changed[key] = value.into();
        workspace.write("target/config.json", changed.to_string());
        let told =
            format!("`target/config.json`: `{key}` does not fit the weights: tensor `{tensor}");
        for words in [&[][..], &["--plan"]] {
            recipe(&workspace, words).failed(&["cannot open the target `target`", &told]);
        }
        assert!(!workspace.path("runs").exists(), "nothing was begun");
    }
}

/// A recipe of this kind for one of the targets of a workspace.
fn other(kind: &str, drafter: &str, target: &str) -> String {
    format!(
        "recipe = \"{kind}\"\nname = \"other\"\n[target]\nmodel = \"{target}\"\n[data]\ntrain = \"train.jsonl\"\n\
         eval = \"eval.jsonl\"\nmax_length = 64\n[drafter]\n{drafter}\n[train]\nsteps = 1\nbatch_tokens = 128\n"
    )
}

#[test]
fn a_drafter_that_no_engine_serves_beside_its_target_is_warned_of_before_it_is_trained() {
    let workspace = Workspace::new();
    workspace.write_qwen2("qwen2", |_| {});
    let experts = "experts = { count = 4, per_token = 2, d_ff = 24 }";
    let cases = [
        (
            "mtp",
            "",
            "target",
            Some("vLLM loads this layer only with MiMo and Qwen2 targets"),
        ),
        ("mtp", "", "qwen2", None),
        ("mtp", "after_final_norm = true", "target", None),
        (
            "mtp-qwen",
            "",
            "target",
            Some("vLLM loads this layer only with Qwen3.5 targets without experts"),
        ),
        (
            "mtp-qwen",
            experts,
            "qwen2",
            Some("only with Qwen3.5-MoE and Qwen3-Next targets"),
        ),
        (
            "mtp-deepseek",
            experts,
            "target",
            Some("only with GLM-4.5 targets"),
        ),
        ("eagle1", "", "target", None),
    ];
    for (kind, drafter, target, expected) in cases {
        workspace.write("other.toml", other(kind, drafter, target));
        let plan = workspace
            .run(&["recipe", "other.toml", "--plan"])
            .succeeded();
        let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let told = words.contains("no engine would serve this drafter:");
        assert_eq!(told, expected.is_some(), "{kind}, {target}: {plan:#?}");
        assert!(
            words.contains(expected.unwrap_or("")),
            "{kind}, {target}: {plan:#?}"
        );
    }
    workspace.write("other.toml", other("mtp", "", "target"));
    let run = workspace.run(&["recipe", "other.toml"]).succeeded();
    assert_eq!(
        run.stderr
            .matches("no engine would serve this drafter")
            .count(),
        1,
        "{run:#?}"
    );
}

#[test]
fn what_the_export_says_of_engines_is_said_before_a_drafter_is_trained() {
    let of = |kind: &str, drafter: &str| {
        let workspace = Workspace::new();
        workspace.write("recipe.toml", other(kind, drafter, "target"));
        workspace
    };
    let masked = "no serving engine loads a masked-diffusion drafter; this program decodes with it";
    for (workspace, told) in [
        (
            of("hydra", ""),
            "no serving engine loads Hydra heads; this program decodes with them",
        ),
        (crate::training_stages::workspace(), masked),
        (
            of("medusa", ""),
            "serving this drafter: vLLM up to 0.32.0, which drafts a chain; 0.33 and other engines do not load Medusa",
        ),
        // Nobody named these engines, but no other loads it either.
        (
            of("medusa", "draft_vocab = 256"),
            "`export.to`: `sglang`, `vllm` are not known to load a drafter with these settings (`draft_vocab = 256`)",
        ),
    ] {
        let plan = recipe(&workspace, &["--plan"]).succeeded();
        let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let (_, warned) = words.split_once(" warnings: ").unwrap();
        assert_eq!(warned.matches(told).count(), 1, "no `{told}`: {plan:#?}");
    }
    let plan = recipe(&of("eagle1", ""), &["--plan"]).succeeded();
    for part in ["serving engine", "serving this drafter"] {
        assert!(!plan.stdout.contains(part), "{plan:#?}");
    }
}

/// What a plan says of engines where `[drafter]` and `[export]` have these keys.
fn plan_for_engines(workspace: &Workspace, kind: &str, drafter: &str, export: &str) -> Outcome {
    let recipe = other(kind, drafter, "target") + "[export]\n" + export + "\n";
    workspace.write("other.toml", recipe);
    workspace.run(&["recipe", "other.toml", "--plan"])
}

#[test]
fn engines_that_do_not_load_a_drafter_with_its_settings_are_named_before_it_is_trained() {
    let workspace = Workspace::new();
    let told = "`export.to`: `llama-cpp` is not known to load a drafter with these settings";
    let cases = [
        ("norm_output = true", "to = [\"vllm\", \"llama-cpp\"]", true),
        ("", "to = [\"vllm\", \"llama-cpp\"]", false),
        // Those that nobody named are remarked upon when the drafter is written.
        ("norm_before_residual = true", "dtype = \"f32\"", false),
    ];
    for (drafter, export, expected) in cases {
        let plan = plan_for_engines(&workspace, "eagle3", drafter, export).succeeded();
        let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.contains(told), expected, "{drafter}: {plan:#?}");
        let keys = format!("{told} (`{drafter}`)");
        assert_eq!(words.contains(&keys), expected, "{drafter}: {plan:#?}");
        assert_eq!(
            words.contains("these do: `vllm`, `sglang`"),
            expected,
            "{plan:#?}"
        );
    }
    let drafter = "norm_before_residual = true\nnorm_output = true";
    let export = "to = [\"vllm\", \"sglang\", \"llama-cpp\"]";
    let plan = plan_for_engines(&workspace, "eagle3", drafter, export).succeeded();
    let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "`export.to`: `sglang`, `llama-cpp` are not known to load a drafter with these settings (",
        "`norm_before_residual = true`",
        "`norm_output = true`",
        ", and no command for them will be printed; these do: `vllm`",
    ] {
        let (_, warned) = words.split_once(" warnings: ").unwrap();
        assert!(warned.contains(part), "no `{part}`: {plan:#?}");
    }
    // Transformers has no layout for such a drafter, and vLLM no kernels for each rank.
    let xpress = |rank| format!("mask_token = 188\nmarkov_rank = {rank}\nmarkov = \"xpress\"");
    for (rank, known) in [
        (64, "these do: `vllm`"),
        (4, "no other engine is known to load it"),
    ] {
        let to = "to = [\"speculators\"]";
        let plan = plan_for_engines(&workspace, "dflash", &xpress(rank), to).succeeded();
        let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let (_, warned) = words.split_once(" warnings: ").unwrap();
        let told = format!(" will be printed; {known}");
        assert!(
            warned.contains(&told) && !warned.contains("`hf`"),
            "{plan:#?}"
        );
    }
    let drafter = &xpress(64);
    plan_for_engines(&workspace, "dflash", drafter, "to = [\"hf\"]").misused(&["`export.to`"]);
    let (drafter, export) = ("mask_token = 0\ncausal = true", "to = [\"hf\"]");
    plan_for_engines(&workspace, "dflash", drafter, export).misused(&["`export.to`", "causal"]);
}

#[test]
fn a_plan_is_refused_where_its_run_is_one_of_another_recipe() {
    let workspace = Workspace::finished();
    let other = RECIPE.replace("eagle3", "eagle1");
    let other = other
        .replace("draft_vocab = 256\n", "")
        .replace("draft_steps = 2\n\n", "passes = 2\n\n");
    workspace.write("recipe.toml", other);
    let before = workspace.files("runs");
    let refused = ["a run of the recipe `eagle3`, this is the recipe `eagle1`"];
    recipe(&workspace, &[]).failed(&refused);
    recipe(&workspace, &["--plan"]).failed(&refused);
    recipe(&workspace, &["--plan", "--fresh"]).succeeded();
    assert!(workspace.files("runs") == before, "a plan leaves nothing");
}

#[test]
fn a_plan_is_made_of_the_stages_that_are_asked_for() {
    let workspace = Workspace::new();
    let plan = |stages: &[&str]| {
        let stages = stages.iter().flat_map(|stage| ["--stage", *stage]);
        let words: Vec<&str> = ["--plan"].into_iter().chain(stages).collect();
        recipe(&workspace, &words)
    };
    let words = |plan: &Outcome| plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = words(&plan(&["prepare"]).succeeded());
    for part in [
        "stages: prepare runs train not asked for export not asked for evaluate not asked for",
        " time: prepare ",
    ] {
        assert!(told.contains(part), "no `{part}`: {told}");
    }
    let (_, times) = told.split_once(" time: ").unwrap();
    let (times, _) = times.split_once(" together ").unwrap();
    assert!(!times.contains("train"), "{times}");
    // As the run, which names the stage too.
    let first = "has to come first and has not run; run it with `--stage prepare` too";
    let told = format!("stage `prepare`: it {first}");
    plan(&["train"]).failed(&["the run would be refused: ", &told]);
    let told = format!("stage `prepare` {first}");
    recipe(&workspace, &["--stage", "train"]).failed(&[&told]);
    recipe(&workspace, &["--stage", "prepare"]).succeeded();
    let told = words(&plan(&["train"]).succeeded());
    assert!(told.contains("stages: prepare done in ") && told.contains(" train runs export not"));
    let sweep = ["--plan", "--stage", "prepare", "--sweep", "seed=0,1"];
    let told = words(&recipe(&workspace, &sweep).succeeded());
    assert!(told.contains("run-seed-1 runs "), "{told}");
}

#[test]
fn a_plan_says_why_a_stage_has_to_come_first_as_the_run_does() {
    let workspace = Workspace::finished();
    let words = ["--stage", "evaluate", "--set", "data.max_length=32"];
    let first = "has to come first and is out of date: `data.max_length`: 64 → 32; run it with `--stage prepare` too";
    let told = format!("the run would be refused: stage `prepare`: it {first}");
    recipe(&workspace, &[&words[..], &["--plan"]].concat()).failed(&[&told]);
    let told = format!("stage `prepare` {first}");
    recipe(&workspace, &words).failed(&[&told]);
}

#[test]
fn a_plan_says_that_a_stage_between_those_that_are_asked_for_has_to_be_named() {
    let workspace = Workspace::new();
    let stored = set(&["features.mode=stored"]);
    let named = |stages: &[&'static str], more: &[&'static str]| {
        let stages = stages.iter().flat_map(|stage| ["--stage", *stage]);
        let words: Vec<&str> = stages.chain(more.iter().copied()).collect();
        recipe(&workspace, &[&stored[..], &words[..]].concat())
    };
    named(&["prepare", "features"], &[]).succeeded();
    workspace.write_conversations("train.jsonl", 1, 41);
    let plan = named(&["prepare", "train"], &["--plan"]).succeeded();
    let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = " features has to be named with `--stage features` too if what it reads changes";
    assert!(words.contains(told), "{plan:#?}");
    let refused = "stage `features` has to come first and is out of date";
    named(&["prepare", "train"], &[]).failed(&[refused, "run it with `--stage features` too"]);
}

#[test]
fn a_plan_warns_where_the_evaluation_leaves_no_prompt_to_validations() {
    let workspace = Workspace::new();
    let warns = |changes: &[&str]| {
        let words = [&["--plan"][..], &set(changes)].concat();
        let plan = recipe(&workspace, &words).succeeded();
        let words = plan.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        words.contains(" leaves none of the 4 held-out prompts to validations, ")
    };
    let all = "evaluate.prompts=4";
    assert!(warns(&[all]) && warns(&["evaluate.prompts=64"]));
    assert!(!warns(&["evaluate.prompts=3"]));
    // Nothing is chosen, or by the loss alone.
    for other in ["train.validate_every=6", "train.decode_prompts=0"] {
        assert!(!warns(&[all, other]), "{other}");
    }
    // The weights are chosen.
    recipe(&workspace, &set(&[all])).succeeded();
    assert!(!warns(&[all]));
}

#[test]
fn a_plan_compares_inputs_and_outputs_as_the_run_does() {
    let workspace = Workspace::finished();
    let before = workspace.files("runs");
    let report = workspace.path("runs/run/evaluate/report.json");
    let kept = std::fs::read(&report).unwrap();
    std::fs::remove_file(&report).unwrap();
    assert_eq!(
        stage(&workspace, "evaluate"),
        "runs again: `report.json` is missing"
    );
    std::fs::write(&report, "{}").unwrap();
    let changed = "runs again: `report.json` was changed after it was written";
    assert_eq!(stage(&workspace, "evaluate"), changed);
    assert!(stage(&workspace, "export").starts_with("done in "));
    std::fs::write(&report, kept).unwrap();

    workspace.write_conversations("train.jsonl", 1, 41);
    let stale = "starts over: `data.train` has changed";
    assert_eq!(stage(&workspace, "prepare"), stale);
    assert_eq!(
        stage(&workspace, "train"),
        "runs again if the output of `prepare` changes"
    );
    assert!(workspace.files("runs") == before, "a plan leaves nothing");
    let run = recipe(&workspace, &["--stage", "prepare"]).succeeded();
    assert!(run.stderr.contains(stale), "{run:#?}");
}

#[test]
fn a_plan_knows_the_draft_vocabulary_of_the_drafter_that_training_starts_from() {
    let workspace = Workspace::finished();
    let start = [
        "name=b",
        "start=runs/run/export/drafter",
        "drafter.draft_vocab=0",
    ];
    let plan = recipe(&workspace, &[&["--plan"][..], &set(&start)].concat()).succeeded();
    let fresh = recipe(&workspace, &["--plan"]).succeeded();
    let drafter = |plan: &Outcome| {
        let line = plan
            .stdout
            .lines()
            .find(|line| line.starts_with("  drafter "));
        line.unwrap().to_owned()
    };
    assert!(
        drafter(&plan).ends_with(" draft vocabulary of 256"),
        "{plan:#?}"
    );
    assert_eq!(drafter(&plan), drafter(&fresh));
}

#[test]
fn a_target_that_the_hub_does_not_have_is_refused_by_the_plan() {
    let workspace = Workspace::new();
    let files = [("config.json", b"{}".to_vec())];
    let hub = FakeHub::new()
        .model(
            "org/there",
            "main",
            Repository::of(&files, serde_json::Value::Null),
        )
        .model("org/bare", "main", Repository::default());
    let plan = |changes: &[&str]| {
        let words = [&["recipe", "recipe.toml", "--plan"], &set(changes)[..]].concat();
        hub.run(&workspace, &words)
    };
    plan(&["target.model=org/there"]).succeeded();
    assert_eq!(
        hub.asked(),
        ["GET /api/models/org/there/revision/main?blobs=true"]
    );
    let told = "`target.model`: cannot open the target `org/typo`";
    plan(&["target.model=org/typo", "data.train=absent.jsonl"]).failed(&[
        "\n  ",
        "absent.jsonl",
        told,
    ]);
    plan(&["target.model=org/typo"]).failed(&[told, "has no `config.json` of `org/typo`"]);
    plan(&["target.model=org/there", "target.revision=other"]).failed(&["at revision `other`"]);
    plan(&["target.model=org/bare"]).failed(&["the hub has no `config.json` of it"]);
    // The same of the model that a drafter starts from.
    let text = RECIPE
        .replace("\"eagle3\"", "\"distillspec\"")
        .replace(
            "draft_vocab = 256",
            "model = \"org/there\"\nrevision = \"v1\"",
        )
        .replace("draft_steps = 2", "");
    workspace.write("from-model.toml", text);
    hub.asked();
    hub.run(&workspace, &["recipe", "from-model.toml", "--plan"])
        .failed(&[
            "`drafter.model`: cannot open the model to start from `org/there`",
            "at revision `v1`",
        ]);
    assert_eq!(
        hub.asked(),
        ["GET /api/models/org/there/revision/v1?blobs=true"]
    );
    plan(&["evaluate.targets=[\"org/typo\"]"])
        .failed(&["`evaluate.targets`: cannot open the target `org/typo`"]);
    // What is on this machine is not asked for.
    hub.asked();
    plan(&[]).succeeded();
    assert_eq!(hub.asked(), [""; 0]);
    drop(hub);
}
