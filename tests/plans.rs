//! A plan says what the run does: it is refused where the run is, and finds stages done, stale or damaged as the run does.
use spectrain_data::tokenizer::Tokenizer;

use crate::fake_hub::{FakeHub, Repository};
use crate::workspace::{Outcome, RECIPE, REFUSED, Workspace};

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

/// Settings and words with which a run is refused before anything is begun, and what is said.
const REFUSALS: [(&[&str], &[&str], &str); 10] = [
    (&["data.train=absent.jsonl"], &[], "`absent.jsonl`"),
    (
        &["data.template=absent.jinja"],
        &[],
        "cannot read `absent.jinja`",
    ),
    (
        &["drafter.captured_layers=[7]"],
        &[],
        "ascending layers below",
    ),
    (&["drafter.kv_heads=3"], &[], "a divisor of"),
    (
        &["drafter.draft_vocab=500"],
        &[],
        "at most the target's 300",
    ),
    (&["start=train.jsonl"], &[], "`start`"),
    (
        &["target.model=org/model"],
        &[],
        "`HF_HUB_OFFLINE` is set; without a network, name a folder",
    ),
    (
        &["evaluate.targets=[\"org/other\"]"],
        &[],
        "cannot open the target `org/other`",
    ),
    (&["start=org/drafter"], &[], "the start `org/drafter`"),
    (
        &["evaluate.prompts=[\"math-500\"]"],
        &[],
        "cannot download the prompts `math-500`",
    ),
];

#[test]
fn a_plan_is_refused_where_the_run_is_and_in_the_same_words() {
    let workspace = Workspace::new();
    for (changes, words, message) in REFUSALS {
        let words = [&set(changes)[..], words].concat();
        let run = recipe(&workspace, &words);
        let plan = recipe(&workspace, &[&words[..], &["--plan"]].concat());
        assert_eq!((run.code, plan.code), (Some(1), Some(1)), "{plan:#?}");
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
    let times = 2 * crate::workspace::CONVERSATIONS;
    let told = format!(
        "`[drafter] mask_token`: expected a token that no text holds, found {held}, which the texts hold {times} times"
    );
    let plan = recipe(&workspace, &["--plan"]);
    let first = format!("the first texts of `data.train`: {told}");
    plan.failed(&[&first]);
    recipe(&workspace, &[]).failed(&[&told]);
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
    assert!(!fits.stdout.contains("\nwarnings:"), "{fits:#?}");
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
        assert_eq!(
            words.contains("these do: `vllm`, `sglang`"),
            expected,
            "{plan:#?}"
        );
    }
    let (drafter, export) = ("mask_token = 0\ncausal = true", "to = [\"hf\"]");
    plan_for_engines(&workspace, "dflash", drafter, export).failed(&["`export.to`", "causal"]);
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
    plan(&["evaluate.targets=[\"org/typo\"]"])
        .failed(&["`evaluate.targets`: cannot open the target `org/typo`"]);
    // What is on this machine is not asked for.
    hub.asked();
    plan(&[]).succeeded();
    assert_eq!(hub.asked(), [""; 0]);
    drop(hub);
}
