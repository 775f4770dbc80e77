//! What a user can get wrong: the program fails, says where, what was expected and what was found, and loses nothing.

use crate::workspace::{
    CONVERSATIONS, ENDLESS, Outcome, RECIPE, VOCAB, Workspace, conversation, wait_for,
};

const RUN: [&str; 2] = ["recipe", "recipe.toml"];

/// What [`Workspace::finished`] has made.
struct Made {
    workspace: Workspace,
    results: [Vec<u8>; 3],
}

impl Made {
    fn new() -> Self {
        let workspace = Workspace::finished();
        let results = [
            "train/drafter/model.safetensors",
            "export/drafter/model.safetensors",
            "evaluate/report.json",
        ];
        Self {
            results: results.map(|file| workspace.bytes(&format!("runs/run/{file}"))),
            workspace,
        }
    }

    /// Fails as [`Outcome::failed`] says, and the results are still somewhere in the folder of runs.
    fn refuses(&self, overrides: &[&str], expected: &[&str]) -> Outcome {
        let outcome = self.workspace.run_recipe(overrides).failed(expected);
        let left = self.workspace.files("runs");
        for result in &self.results {
            let kept = left.values().any(|file| file == result);
            assert!(kept, "something was lost: {outcome:#?}");
        }
        outcome
    }
}

/// Edits that make [`RECIPE`] wrong, and what is said of each.
const WRONG_EDITS: [(&str, &str, &[&str]); 5] = [
    (
        "[evaluate]",
        "[train]",
        &["line 33, column 2", "duplicate key: line 21 has it already"],
    ),
    (
        "warmup_steps",
        "warm_up",
        &[
            "`recipe.toml`",
            "line 25, column 1",
            "unknown field `warm_up`",
            "`warmup_steps`",
        ],
    ),
    (
        "[train]",
        "[trian]",
        &["line 21, column 2", "unknown field `trian`", "`train`"],
    ),
    (
        "steps = 6",
        "steps = \"six\"",
        &[
            "line 22, column 9",
            "string \"six\"",
            "expected a whole number",
        ],
    ),
    (
        "batch_tokens = 128",
        "batch_tokens = 100",
        &[
            "line 23, column 16",
            "`train.batch_tokens`",
            "a multiple of `[data] max_length` (64)",
            "100",
        ],
    ),
];

/// Files that do not say which recipe, or one that there is not.
const UNKNOWN_RECIPES: [(&str, &[&str]); 2] = [
    (
        "name = \"run\"\n",
        &["key `recipe` is missing", "known recipes: eagle3"],
    ),
    (
        "recipe = \"eagle\"\n",
        &[
            "line 1, column 10",
            "unknown recipe `eagle`",
            "known recipes: eagle3",
        ],
    ),
];

const WRONG_SETTINGS: [(&str, &[&str]); 2] = [
    (
        "train.stpes=3",
        &["`--set train.stpes=3`", "unknown field `stpes`", "`steps`"],
    ),
    (
        "train.steps=many",
        &[
            "`--set train.steps=many`",
            "string \"many\"",
            "expected a whole number",
        ],
    ),
];

#[test]
fn a_wrong_recipe_is_refused_where_it_is_wrong() {
    let workspace = Workspace::of(RECIPE);
    for (setting, expected) in WRONG_SETTINGS {
        workspace.run_recipe(&[setting]).misused(expected);
    }
    for (from, to, expected) in WRONG_EDITS {
        assert!(RECIPE.contains(from));
        workspace.write("recipe.toml", RECIPE.replacen(from, to, 1));
        workspace.run(&RUN).misused(expected);
    }
    for (recipe, expected) in UNKNOWN_RECIPES {
        workspace.write("recipe.toml", recipe);
        workspace.run(&RUN).misused(expected);
    }
    workspace
        .run_line("recipe other.toml")
        .failed(&["`other.toml`", "No such file"]);
    assert!(
        !workspace.path("runs").exists(),
        "a wrong recipe leaves nothing"
    );
}

#[test]
fn a_target_or_dataset_that_is_not_there_is_named() {
    let made = Made::new();
    let workspace = &made.workspace;
    let before = workspace.files("runs/run/prepare");
    made.refuses(
        &["target.model=elsewhere"],
        &["cannot open the target `elsewhere`", "not a hub id"],
    );
    made.refuses(
        &["target.model=some/model"],
        &[
            "the target `some/model`",
            "`HF_HUB_OFFLINE` is set",
            "without a network, name a folder",
        ],
    );
    made.refuses(
        &["data.train=elsewhere.jsonl"],
        &["`elsewhere.jsonl`", "No such file"],
    );
    made.refuses(&["data.eval=elsewhere"], &["`elsewhere`", "No such file"]);
    made.refuses(
        &["data.template=elsewhere.jinja"],
        &["cannot read `elsewhere.jinja`"],
    );
    assert!(
        workspace.files("runs/run/prepare") == before,
        "not even the tokens are touched"
    );
    std::fs::create_dir(workspace.path("hollow")).unwrap();
    made.refuses(
        &["target.model=hollow"],
        &["`hollow` holds no model", "expected `config.json`"],
    );
}

/// Distils a model that the command line names.
const FROM_A_MODEL: &str = r#"recipe = "distillspec"
name = "run"

[target]
model = "target"

[data]
train = "train.jsonl"
eval = "eval.jsonl"
max_length = 64

[train]
batch_tokens = 128
"#;

#[test]
fn a_model_to_start_from_that_is_none_for_the_target_is_refused_before_anything_is_made() {
    let workspace = Workspace::new();
    workspace.write("recipe.toml", FROM_A_MODEL);
    std::fs::create_dir(workspace.path("hollow")).unwrap();
    for name in ["whole", "cut", "foreign", "deeper"] {
        workspace.write_target(name, VOCAB);
    }
    let mut config = workspace.json("deeper/config.json");
    config["num_hidden_layers"] = 9.into();
    workspace.write("deeper/config.json", config.to_string());
    let weights = workspace.bytes("cut/model.safetensors");
    workspace.write("cut/model.safetensors", &weights[..weights.len() / 2]);
    let foreign = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/chat_tokenizer/tokenizer.json"
    );
    std::fs::copy(foreign, workspace.path("foreign/tokenizer.json")).unwrap();
    for (model, expected) in [
        ("./missing", "not a hub id"),
        ("some/model", "`HF_HUB_OFFLINE` is set"),
        ("hollow", "`hollow/config.json`"),
        ("cut", "bytes of tensors after the header"),
        ("deeper", "`num_hidden_layers` does not fit the weights"),
        ("foreign", "a drafter needs the tokenizer of its target"),
    ] {
        let model = format!("drafter.model={model}");
        for last in [&[][..], &["--plan"]] {
            let words = [&RUN[..], &["--set", &model], last].concat();
            let said = workspace.run(&words).failed(&["`drafter.model`", expected]);
            assert!(!said.stderr.contains("the target `"), "{said:#?}");
        }
    }
    assert!(!workspace.path("runs").exists());
    let words = [&RUN[..], &["--set", "drafter.model=whole", "--plan"]].concat();
    workspace.run(&words).succeeded();
}

#[test]
fn a_tokenizer_that_is_not_the_targets_is_refused() {
    let made = Made::new();
    let workspace = &made.workspace;
    workspace.write_target("small", VOCAB - 20);
    made.refuses(
        &["target.model=small"],
        &[
            "`train.jsonl` row ",
            ": token ",
            "outside the target's vocabulary of 280",
            "the tokenizer is not the target's",
        ],
    );
    std::fs::remove_file(workspace.path("target/tokenizer.json")).unwrap();
    made.refuses(&[], &["tokenizer.json"]);
}

#[test]
fn a_dataset_of_which_nothing_is_left_is_refused() {
    let made = Made::new();
    let workspace = &made.workspace;
    workspace.write("empty.jsonl", "");
    for key in ["data.train=empty.jsonl", "data.eval=empty.jsonl"] {
        made.refuses(
            &[key],
            &[
                "stage `prepare`",
                "`empty.jsonl`: the dataset is empty: expected rows",
            ],
        );
    }
    workspace.write(
        "broken.jsonl",
        format!("{}\n{{\"messages\": 3}}\n", conversation(1, "one")),
    );
    made.refuses(
        &["data.train=broken.jsonl"],
        &["`broken.jsonl` row 2", "expected", "found"],
    );
    made.refuses(
        &["data.max_length=4", "train.batch_tokens=4"],
        &[
            "`train.jsonl`",
            "no sample is left of the 40 rows read",
            "40 too long",
        ],
    );
}

#[test]
fn samples_that_are_too_long_are_left_out_or_cut_and_counted() {
    let workspace = Workspace::new();
    let long = conversation(99, &"one two three ".repeat(40));
    let rows = workspace.text("train.jsonl");
    workspace.write("train.jsonl", format!("{rows}\n{long}\n"));
    let prepare = |overlong: &str| {
        let overlong = format!("data.overlong={overlong}");
        let words = [
            "recipe",
            "recipe.toml",
            "--stage",
            "prepare",
            "--set",
            &overlong,
        ];
        workspace.run(&words).succeeded();
        workspace.manifest("prepare")["summary"]["train"].clone()
    };
    let place = format!("`train.jsonl` row {}", CONVERSATIONS + 1);
    let report = prepare("drop");
    assert_eq!((&report["read"], &report["kept"]), (&41.into(), &40.into()));
    assert_eq!(
        report["overlong"],
        serde_json::json!({"count": 1, "examples": [place]})
    );
    assert_eq!(report["truncated"]["count"], 0);
    let kept = report["tokens"].as_u64().unwrap();
    let report = prepare("truncate");
    assert_eq!((&report["read"], &report["kept"]), (&41.into(), &41.into()));
    assert_eq!(
        report["truncated"],
        serde_json::json!({"count": 1, "examples": [place]})
    );
    assert_eq!(report["overlong"]["count"], 0);
    assert_eq!(report["tokens"], kept + 64, "it is cut to `max_length`");
}

#[test]
fn the_drafter_of_another_target_is_refused() {
    let workspace = Workspace::finished();
    workspace.write_target("large", VOCAB + 10);
    let evaluate = |target: &str, drafter: &str, more: &str| {
        let words = format!("evaluate --target {target} --drafter {drafter}");
        workspace.run_line(format!("{words} --prompts eval.jsonl{more}"))
    };
    let exported = "runs/run/export/drafter";
    evaluate("large", exported, " --other-target").failed(&[
        "the drafter `runs/run/export/drafter` is not for this target",
        "target vocabulary: expected 310, found 300",
    ]);
    let other = workspace.text("target/config.json");
    workspace.write(
        "large/config.json",
        other.replace("Qwen3ForCausalLM", "GPT2LMHeadModel"),
    );
    evaluate("target", "large", "").failed(&[
        "config.json",
        "`architectures`",
        "expected a drafter of EAGLE-3, P-EAGLE, EAGLE-1",
        "GPT2LMHeadModel",
    ]);
}

#[test]
fn settings_of_a_command_that_make_no_sense_are_refused() {
    let workspace = Workspace::new();
    let generate = ["generate", "--target", "target", "--prompt", "count to 3"];
    let cases = [
        (
            "--temperature=-1",
            ["`temperatures`", "expected 0 to 100, found -1"],
        ),
        (
            "--max-new-tokens=0",
            ["`max_new_tokens`", "expected at least 1, found 0"],
        ),
    ];
    for (wrong, expected) in cases {
        workspace
            .run(&[&generate[..], &[wrong]].concat())
            .misused(&expected);
        let evaluate = "evaluate --target target --drafter none --prompts eval.jsonl";
        workspace
            .run_line(format!("{evaluate} {wrong}"))
            .misused(&expected);
    }
    workspace
        .run(&[&generate[..], &["--temperature", "-1"]].concat())
        .misused(&["expected 0 to 100, found -1"]);
    let init = "init --target target --data train.jsonl --yes --name ../x";
    workspace
        .run_line(init)
        .misused(&["`--name`: expected a folder name", "found `../x`"]);
    let calibrated = "--draft={ shape = \"calibrated\", nodes = 4 }";
    for (wrong, expected) in [
        ("--draft={ shape = \"bush\" }", "unknown variant `bush`"),
        ("--draft=medusa-63", "invalid value 'medusa-63'"),
        (
            calibrated,
            "`spectrain evaluate` calibrates trees and tunes thresholds",
        ),
    ] {
        let drafter = ["--drafter", "none", wrong];
        let outcome = workspace.run(&[&generate[..], &drafter].concat());
        assert!(outcome.stderr.contains(expected), "{outcome:#?}");
    }
}

#[test]
fn rotary_keys_that_are_not_read_are_told_once_however_often_the_file_is() {
    let workspace = Workspace::new();
    let mut config = workspace.json("target/config.json");
    config["rope_parameters"]["other"] = 1.into();
    workspace.write("target/config.json", config.to_string());
    for words in ["recipe recipe.toml --plan", "recipe recipe.toml"] {
        let outcome = workspace.run_line(words).succeeded();
        let told = "`target/config.json`: key `rope_parameters`: `other` is not read";
        assert_eq!(outcome.stderr.matches(told).count(), 1, "{outcome:#?}");
    }
}

#[test]
fn damaged_weights_are_refused_and_whole_ones_taken_again() {
    let made = Made::new();
    let workspace = &made.workspace;
    let weights = workspace.bytes("target/model.safetensors");
    let config = workspace.text("target/config.json");
    let half = &weights[..weights.len() / 2];
    for damaged in [half, &b"\xff\xff\xff\xff\xff\xff\xff\xffnone"[..], &[]] {
        workspace.write("target/model.safetensors", damaged);
        let expected = [
            "cannot open the target `target`",
            "`target/model.safetensors` is not a valid safetensors file",
            "expected",
            "found",
        ];
        made.refuses(&[], &expected);
    }
    workspace.write("target/model.safetensors", &weights);
    let deeper = config.replace("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7");
    assert_ne!(deeper, config);
    workspace.write("target/config.json", deeper);
    made.refuses(&[], &["tensor `model.layers.6.", "is not in `target`"]);
    let wider = config.replace("\"intermediate_size\": 48", "\"intermediate_size\": 56");
    assert_ne!(wider, config);
    workspace.write("target/config.json", wider);
    made.refuses(
        &[],
        &[
            "gate_proj.weight` in `target",
            "expected [56, 32], found [48, 32]",
        ],
    );
    workspace.write("target/config.json", config);
    assert!(
        !workspace.path("runs/run/train.old-2").exists(),
        "only what was trained is kept aside"
    );
    workspace.run(&RUN).succeeded();
    workspace.open_drafter(&workspace.path("runs/run/export/drafter"));
}

#[test]
fn a_full_disk_fails_the_stage_and_the_run_goes_on_when_there_is_room() {
    let whole = Workspace::finished();
    let workspace = Workspace::new();
    let limited = |words: &[&str], expected: &[&str]| {
        workspace.run_with_file_limit(48, words).failed(expected);
    };
    limited(
        &RUN,
        &[
            "stage `train`: cannot write `runs/run/train/step-",
            "weights.safetensors`: File too large",
        ],
    );
    assert_eq!(workspace.manifest("prepare")["status"], "done");
    assert_eq!(workspace.manifest("train")["status"], "started");
    assert!(
        !workspace
            .files("runs/run/train")
            .keys()
            .any(|file| file.ends_with("weights.safetensors"))
    );
    workspace.run(&RUN).succeeded();
    let trained = "runs/run/train/drafter/model.safetensors";
    assert!(workspace.bytes(trained) == whole.bytes(trained));

    let stored = [&RUN[..], &["--set", "features.mode=stored"]].concat();
    limited(
        &stored,
        &[
            "stage `features`: could not write `runs/run/features/features-",
            ".arrow`",
            "File too large",
        ],
    );
    assert!(
        workspace.bytes(trained) == whole.bytes(trained),
        "what was trained before is still there"
    );
    workspace.run(&stored).succeeded();
}

#[test]
fn two_processes_cannot_use_one_run() {
    let workspace = Workspace::new();
    let steps = format!("train.steps={ENDLESS}");
    let words = [&RUN[..], &["--set", &steps]].concat();
    let mut first = workspace.start(&words);
    wait_for(&mut first, || {
        workspace.path("runs/run/train/manifest.json").exists()
    });
    for second in [&words, &[&words[..], &["--fresh"]].concat()] {
        workspace.run(second).failed(&[
            "`runs/run` is in use by another run",
            "choose another `name`",
        ]);
    }
    assert!(!workspace.path("runs/run.old-1").exists());
    assert_eq!(first.try_wait().unwrap(), None, "it was not disturbed");
    first.kill().unwrap();
    first.wait().unwrap();
    workspace
        .run(&[&RUN[..], &["--fresh"]].concat())
        .succeeded();
}

#[test]
fn the_folder_of_another_recipe_is_left_alone() {
    let made = Made::new();
    let workspace = &made.workspace;
    let run = workspace.text("runs/run/run.json");
    workspace.write("runs/run/run.json", run.replace("eagle3", "other"));
    made.refuses(
        &[],
        &[
            "`runs/run` holds a run of the recipe `other`, this is the recipe `eagle3`",
            "--fresh",
        ],
    );
    let before = workspace.files("runs/run");
    workspace
        .run(&["recipe", "recipe.toml", "--fresh"])
        .succeeded();
    assert!(
        workspace.files("runs/run.old-1") == before,
        "the old run is moved aside as it was"
    );

    std::fs::create_dir(workspace.path("runs/notes")).unwrap();
    workspace.write("runs/notes/thesis.txt", "irreplaceable");
    for words in [
        &["--set", "name=notes"][..],
        &["--set", "name=notes", "--fresh"],
    ] {
        let words = [&RUN[..], words].concat();
        workspace
            .run(&words)
            .failed(&["`runs/notes` is no run of this program", "`thesis.txt`"]);
    }
    assert_eq!(workspace.text("runs/notes/thesis.txt"), "irreplaceable");
}
