//! Drafters of others become runs of this program: recognised, measured, exported to other layouts and trained further.
use serde_json::{Value, json};
use spectrain_checkpoints::{DType, NamedTensor, write_folder};

use crate::program::SYNTHETIC;
use crate::workspace::{RECIPE, Workspace};

const EXPORTED: &str = "runs/run/export/drafter";
const LAYER_IDS: &str = "eagle_aux_hidden_state_layer_ids";

/// The exported drafter as `published`, as others would have written it: under other names, with a key of layer ids that
/// can be meant in two ways, and nothing of this program.
fn publish(workspace: &Workspace) {
    let (mut config, mut tensors) = workspace.contents(EXPORTED);
    for key in ["spectrain", "eagle_config", "rope_parameters"] {
        config.as_object_mut().unwrap().remove(key);
    }
    for tensor in &mut tensors {
        tensor.name = format!(
            "draft_model.{}",
            tensor.name.replace("midlayer.", "layers.0.")
        );
    }
    write_folder(&workspace.path("published"), &config, &tensors, &[]).unwrap();
}

const IMPORTED: &str = "runs/taken/import/drafter";

/// Fails unless a folder holds the tensors of the exported drafter.
fn is_the_exported(workspace: &Workspace, folder: &str) {
    let [found, expected] = [folder, EXPORTED].map(|folder| workspace.contents(folder).1);
    assert_eq!(found, expected, "{folder}");
}

/// `published` becomes the run `taken` once it is said which layers it reads.
fn is_imported_with_layers_that_are_told(workspace: &Workspace) {
    workspace
        .run_line("export published --to vllm --target target --out direct")
        .failed(&["more ways than one", "`spectrain import` measures"]);
    let layers = workspace.contents(EXPORTED).0["eagle_config"][LAYER_IDS].clone();
    let ids: Vec<String> = layers
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    let import = "import published --target target --name taken --layers";
    let outcome = workspace.run_line(format!("{import} {}", ids.join(",")));
    let outcome = outcome.succeeded();
    assert!(
        outcome.stdout.contains("EAGLE-3 drafter, as given: τ"),
        "{outcome:#?}"
    );
    is_the_exported(workspace, IMPORTED);
    let config = workspace.contents(IMPORTED).0;
    assert_eq!(config["eagle_config"][LAYER_IDS], layers);
    workspace
        .run_line(format!("{import} 0,1,2"))
        .failed(&["holds an imported drafter already"]);
}

/// The run `taken` is exported to `theirs` and, in 32 bits, to `wide`; `theirs` comes back.
fn is_exported_to_another_layout_and_back(workspace: &Workspace) {
    let export = |line: &str| workspace.run_line(format!("export {line}"));
    let here = workspace.path("").canonicalize().unwrap();
    // The target is a folder, which vLLM does not take from the drafter's.
    let lines = "vllm serve target --speculative-config '{\"method\":\"eagle3\",\"model\":\"theirs\",\"num_speculative_tokens\":5}'\n\
        # above temperature 0 vLLM drafts the likeliest tokens (`likeliest` in reports), and drawn ones (`drawn`) with \
        `\"draft_sample_method\": \"probabilistic\"` in `--speculative-config`\n";
    let outcome = export("taken --to speculators --out theirs").succeeded();
    let named = format!("# theirs, in {}\n", here.display());
    assert_eq!(outcome.stdout, named + lines);
    for told in [
        "was not trained by the program that wrote this folder, but converted from a local drafter.",
        "the data and of a local drafter, with whose weights it began, hold beside it.",
        "note = {converted with spectrain ",
    ] {
        let card = workspace.text("theirs/README.md");
        assert!(card.contains(told), "no `{told}`: {card}");
    }
    pushes_of_what_others_cannot_use_are_warned_of(workspace);
    let theirs = workspace.contents("theirs").0;
    let verifier = &theirs["speculators_config"]["verifier"];
    let target = here.join("target").display().to_string();
    assert_eq!(verifier["name_or_path"], target);
    assert_eq!(verifier["architectures"], json!(["Qwen3ForCausalLM"]));
    export("taken --to vllm --to sglang --out both")
        .misused(&["`--to`: expected one engine, found `vllm`, `sglang`"]);
    export("theirs --to sglang --out theirs/ours").failed(&["`theirs/ours` is inside the folder"]);
    export("theirs --to sglang --out ours").succeeded();
    is_the_exported(workspace, "ours");
    export("taken --to hf --out wide").failed(&[
        "Transformers is not known to load eagle3 drafters",
        "vLLM, SGLang",
    ]);
    assert!(!workspace.path("wide").exists());
    export("taken --to vllm --dtype f32 --out wide").succeeded();
    let (_, wide) = workspace.contents("wide");
    assert!(wide.iter().all(|tensor| tensor.dtype != DType::BF16));
}

/// A recipe that trains a folder of speculators further takes the target that it names.
fn names_its_target(workspace: &Workspace) {
    let (mut config, tensors) = workspace.contents("theirs");
    config.as_object_mut().unwrap().remove("spectrain");
    let mut write = |target: Value| {
        config["speculators_config"]["verifier"]["name_or_path"] = target;
        write_folder(&workspace.path("foreign"), &config, &tensors, &[]).unwrap();
    };
    let init = "init --start foreign --data train.jsonl --yes --name further";
    write(json!("target"));
    workspace.run_line(init).succeeded();
    let text = workspace.text("further.toml");
    assert!(text.contains("\nmodel = \"target\"\n"), "{text}");
    let again = format!("{init} --out again.toml");
    write(json!("traget"));
    let refused = workspace.run_line(&again);
    refused.misused(&[
        "`--start`: the target of `foreign`: ",
        "did you mean `target`?",
    ]);
    write(Value::Null);
    let refused = workspace.run_line(&again);
    refused.misused(&[
        "`--target` is missing",
        "`foreign` does not say which target",
    ]);
}

/// An import has no card, and `theirs` names its target by a folder of this machine.
fn pushes_of_what_others_cannot_use_are_warned_of(workspace: &Workspace) {
    for (drafter, told) in [
        (
            "taken",
            "warning: the folder has no card (`README.md`): `spectrain export taken --to ENGINE",
        ),
        (
            "theirs",
            "warning: `vllm serve me/drafter` takes the target from `config.json`, which names",
        ),
    ] {
        let outcome = workspace.run(&["push", drafter, "me/drafter", "--dry-run"]);
        let warned = outcome.succeeded().stderr;
        assert!(warned.contains(told), "{drafter}: {warned}");
        assert_eq!(warned.contains("no card"), drafter == "taken", "{warned}");
    }
}

/// Keys that the imported drafter does not have so.
const OTHER_KEYS: [(&str, &str); 6] = [
    ("drafter.d_ff=40", "`d_ff`: expected 40, found 48"),
    (
        "drafter.norm_output=true",
        "`norm_output`: expected true, found false",
    ),
    (
        "drafter.draft_vocab=200",
        "`draft_vocab`: expected 200, found 256",
    ),
    ("drafter.d_head=6", "`d_head`: expected 6, found 8"),
    ("drafter.window=7", "`window`: expected 7, found 0"),
    (
        "drafter.captured_layers=[0, 1]",
        "`captured_layers`: expected [0, 1]",
    ),
];

/// Training starts from the imported drafter, with its own settings only.
fn is_trained_further(workspace: &Workspace) {
    let start = format!("start={IMPORTED}");
    let further =
        |more: &[&str]| workspace.run_recipe(&[&["name=further", &start][..], more].concat());
    let kept = further(&[
        "train.steps=1",
        "train.warmup_steps=0",
        "train.learning_rate=1e-12",
    ])
    .succeeded();
    assert!(kept.stdout.contains("eagle3 drafter"), "{kept:#?}");
    // The run stands for the drafter that it has imported.
    let of_run = [
        "name=further",
        "start=runs/taken",
        "train.steps=1",
        "train.warmup_steps=0",
        "train.learning_rate=1e-12",
    ];
    let again = workspace.run_recipe(&of_run).succeeded();
    assert!(again.stderr.contains("train: done before"), "{again:#?}");
    let card = workspace.text("runs/further/export/drafter/README.md");
    let told = "\nThe training started from the weights of a local drafter.\n";
    assert!(card.contains(told), "{card}");
    let (_, before) = workspace.contents(IMPORTED);
    let (_, after) = workspace.contents("runs/further/export/drafter");
    assert_eq!(
        before, after,
        "a step of no length leaves what it started from"
    );
    for (key, part) in OTHER_KEYS {
        further(&[key]).failed(&["other settings than `[drafter]`", part]);
    }
}

#[test]
fn a_published_drafter_is_imported_converted_and_trained_further() {
    let workspace = Workspace::finished();
    publish(&workspace);
    is_imported_with_layers_that_are_told(&workspace);
    is_exported_to_another_layout_and_back(&workspace);
    names_its_target(&workspace);
    for drafter in [IMPORTED, "theirs"] {
        let evaluate = format!("evaluate --target target --drafter {drafter} --prompts eval.jsonl");
        workspace
            .run_line(format!(
                "{evaluate} --count 2 --temperature 0 --max-new-tokens 8"
            ))
            .succeeded();
    }
    is_trained_further(&workspace);
}

#[test]
fn layer_ids_that_can_be_meant_in_two_ways_are_measured() {
    let workspace = Workspace::of(SYNTHETIC);
    let settings = [
        "synthetic.steps=150",
        "train.steps=150",
        "train.validate_every=150",
        "evaluate.temperatures=[0.0]",
        "evaluate.drafts=[]",
        // The layer behind it is the last one, which looks like no other.
        "drafter.captured_layers=[3]",
    ];
    workspace.run_recipe(&settings).succeeded();
    let target = "runs/run/synthetic/target";
    let import = |folder: &str| {
        let prompts = "runs/run/synthetic/eval.jsonl";
        let words = ["import", folder, "--target", target, "--prompts", prompts];
        workspace.run(&words).succeeded()
    };
    publish(&workspace);
    let outcome = import("published");
    let ids = |folder: &str| workspace.contents(folder).0["eagle_config"][LAYER_IDS].clone();
    let manifest = workspace.json("runs/published/import/manifest.json");
    let ways = manifest["summary"]["imported"]["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 2);
    let tau = |way: &Value| way["tau"].as_f64().unwrap();
    assert!(tau(&ways[0]) > tau(&ways[1]), "{ways:?}");
    assert_eq!(
        ids("runs/published/import/drafter"),
        ids(EXPORTED),
        "{outcome:#?}"
    );
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(
        lines[0].contains("counts the layers that have run: τ"),
        "{outcome:#?}"
    );
    assert!(
        lines[1].starts_with("not taken: ") && lines[1].contains("output is taken: τ"),
        "{outcome:#?}"
    );

    // The same ids under the other key, which then has not the meaning that engines give it.
    let (mut config, tensors) = workspace.contents("published");
    let given = config.as_object_mut().unwrap().remove(LAYER_IDS);
    config["eagle_config"] = json!({ LAYER_IDS: given });
    write_folder(&workspace.path("other"), &config, &tensors, &[]).unwrap();
    import("other");
    assert_eq!(ids("runs/other/import/drafter"), ids(EXPORTED));
}

/// The run `published` is used by what its import names, beside a folder that is called so too.
fn can_be_used_as_it_says(workspace: &Workspace, told: &str) {
    let named = "--target target --drafter runs/published --prompts FILE";
    assert!(told.contains(named), "{told}");
    workspace
        .run_line("init --start published --data train.jsonl --yes")
        .failed(&["can mean the folder `./published` or the run `runs/published`"]);
    let init = "spectrain init --start runs/published --data FILE";
    assert!(told.contains(init), "{told}");
    workspace
        .run_line("init --start runs/published --data train.jsonl --yes")
        .succeeded();
    let text = workspace.text("published-tuned.toml");
    assert!(text.contains("\nmodel = \"target\"\n"), "{text}");
}

#[test]
fn what_the_target_makes_up_decides_nothing_by_chance() {
    let workspace = Workspace::finished();
    publish(&workspace);
    let import = "import published --target target --count 2";
    let outcome = workspace.run_line(import).succeeded();
    can_be_used_as_it_says(&workspace, &outcome.stderr);
    let manifest = workspace.json("runs/published/import/manifest.json");
    let imported = &manifest["summary"]["imported"];
    let [likelier, other] = [0_usize, 1].map(|way| imported["ways"][way].clone());
    let [a, b] = [&likelier, &other].map(|way| way["accepted"].as_f64().unwrap());
    let is_chance = (a - b).abs() <= 2.0 * (a + b).sqrt();
    let told =
        "the difference may be chance, and the likelier way is taken: measure with `--prompts`";
    assert_eq!(outcome.stderr.contains(told), is_chance, "{outcome:#?}");
    let taken = if is_chance || a > b { likelier } else { other };
    assert_eq!(imported["read"], taken["read"], "{outcome:#?}");
}

#[test]
fn a_changed_folder_and_a_wrong_target_are_found_out() {
    let workspace = Workspace::finished();
    let check = |folder: &str, target: &str| {
        workspace.run_line(format!("check {folder} --target {target}"))
    };
    let outcome = check(EXPORTED, "target").succeeded();
    for part in [
        "every tensor and the configuration",
        "trained for this target, `target`",
        "τ ",
    ] {
        assert!(outcome.stdout.contains(part), "{outcome:#?}");
    }
    workspace.write_target_of("twin", 8, |_| ());
    check(EXPORTED, "twin").failed(&["was trained for `target`", "other weights than `twin`"]);
    let evaluate = format!("evaluate --target twin --drafter {EXPORTED} --prompts eval.jsonl");
    let evaluate = format!("{evaluate} --count 2 --temperature 0 --max-new-tokens 8 --no-baseline");
    workspace
        .run_line(&evaluate)
        .failed(&["was trained for `target`", "`--other-target`"]);
    workspace
        .run_line(format!("{evaluate} --other-target"))
        .succeeded();
    let generate = format!("generate --target twin --drafter {EXPORTED} --prompt count");
    let generate = format!("{generate} --max-new-tokens 4");
    workspace
        .run_line(&generate)
        .failed(&["was trained for `target`", "`--other-target`"]);
    workspace
        .run_line(format!("{generate} --other-target"))
        .succeeded();

    let changed = |name: &str, config: &Value, tensors: &[NamedTensor], parts: &[&str]| {
        write_folder(&workspace.path(name), config, tensors, &[]).unwrap();
        check(name, "target").failed(parts);
        workspace
            .run_line(format!(
                "generate --target target --drafter {name} --prompt count"
            ))
            .failed(parts);
    };
    let (config, tensors) = workspace.contents(EXPORTED);
    let expected = ["_proj.weight`", "changed after it was written"];
    changed("swapped", &config, &swapped(&tensors), &expected);
    let expected = ["configuration was changed"];
    changed("neighbour", &of_neighbours(&config), &tensors, &expected);
}

/// Two matrices of one shape under each other's names.
fn swapped(tensors: &[NamedTensor]) -> Vec<NamedTensor> {
    let at = |name: &str| {
        let found = tensors.iter().position(|tensor| tensor.name == name);
        found.unwrap()
    };
    let (gate, up) = (
        at("midlayer.mlp.gate_proj.weight"),
        at("midlayer.mlp.up_proj.weight"),
    );
    let mut swapped = tensors.to_vec();
    (swapped[gate].name, swapped[up].name) = (tensors[up].name.clone(), tensors[gate].name.clone());
    swapped
}

/// The last of the captured layers is the one behind it, under both keys.
fn of_neighbours(config: &Value) -> Value {
    let mut config = config.clone();
    let next = |ids: &mut Value| {
        let last = ids.as_array_mut().unwrap().last_mut().unwrap();
        *last = json!(last.as_u64().unwrap() + 1);
    };
    next(&mut config[LAYER_IDS]);
    next(&mut config["eagle_config"][LAYER_IDS]);
    config
}

#[test]
fn what_cannot_be_imported_is_refused_before_anything_is_made() {
    let workspace = Workspace::finished();
    publish(&workspace);
    let import = |words: &[&str]| workspace.run(&[&["import"], words].concat());
    import(&["nowhere", "--target", "target"]).failed(&["`nowhere`", "there is no such folder"]);
    workspace.write_target_of("small", 8, |spec| spec.layers = 1);
    import(&["published", "--target", "small"]).failed(&["layers of a target of 1"]);
    let none = import(&["published", "--target", "target", "--count", "0"]);
    assert!(
        none.code == Some(2) && none.stderr.contains("`--count`"),
        "{none:#?}"
    );
    import(&[
        "published",
        "--target",
        "target",
        "--prompts",
        "nowhere.jsonl",
    ])
    .failed(&["nowhere.jsonl"]);
    // What says which target it is for is not given to another.
    import(&[EXPORTED, "--target", "small", "--name", "other"])
        .failed(&["was trained for `target`", "other weights than `small`"]);
    for name in ["published", "other"] {
        assert!(
            !workspace.path(format!("runs/{name}")).exists(),
            "{name} is left"
        );
    }
    let start = |folder: &str| {
        let start = format!("start={folder}");
        workspace.run(&[
            "recipe",
            "recipe.toml",
            "--plan",
            "--set",
            "name=b",
            "--set",
            &start,
        ])
    };
    start("nowhere").failed(&["`start`", "`nowhere`"]);
    start("target").failed(&["`start`", "EAGLE-3", "language model", "`target`"]);
    start(EXPORTED).succeeded();
    std::fs::create_dir(workspace.path("pickled")).unwrap();
    workspace.write(
        "pickled/config.json",
        workspace.bytes("published/config.json"),
    );
    workspace.write("pickled/pytorch_model.bin", "");
    import(&["pickled", "--target", "target"]).failed(&["is a pickle", "save_file"]);
    let outcome = import(&["target", "--target", "target", "--layers", "1"]);
    outcome.misused(&["`--layers`", "a language model drafter's do not"]);
    for name in ["published", "pickled", "target"] {
        assert!(!workspace.path(format!("runs/{name}")).exists(), "{name}");
    }
}

#[test]
fn a_start_that_is_no_folder_or_can_be_read_in_two_ways_is_told_by_the_plan() {
    let workspace = Workspace::finished();
    let plan = |settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
        let words = ["recipe", "recipe.toml", "--plan", "--set", "name=b"];
        workspace.run(&words.into_iter().chain(settings).collect::<Vec<_>>())
    };
    plan(&["start=runs/run"]).succeeded();
    plan(&["start=run"]).failed(&["`start`", "found `run`, the name of a run", "`runs/run`"]);
    let question = "did you mean `runs/run/export/drafter`?";
    plan(&["start=runs/run/export"]).failed(&["`start`", question]);
    // It could be the id of a model, and what is in the folder of runs is looked for nowhere else.
    let missing = ["`start`", "no drafter `runs/rum`"];
    let outcome = plan(&["start=runs/rum"]).failed(&missing);
    assert!(!outcome.stderr.contains("HF_HUB_OFFLINE"), "{outcome:#?}");
    let words = ["recipe", "recipe.toml", "--plan", "--set", "name=b"];
    let sweep = ["--sweep", "start=runs/run,runs/rum"];
    workspace
        .run(&[&words[..], &sweep].concat())
        .failed(&missing);
    let prepared = ["recipe", "recipe.toml", "--stage", "prepare"];
    workspace
        .run(&[&prepared[..], &["--set", "name=half"]].concat())
        .succeeded();
    plan(&["start=runs/half"])
        .failed(&["`start`: the run `runs/half` has not exported a drafter yet"]);

    publish(&workspace);
    let ways = "`published` can be read in several ways and is read so: ";
    let outcome = plan(&["start=published"]).succeeded();
    let warned = outcome.stdout.split("\nwarnings:\n").nth(1).unwrap();
    assert!(warned.contains(&format!("`start`: {ways}")), "{outcome:#?}");
    plan(&["start=published", "drafter.window=7"]).failed(&[
        "`window`: expected 7, found 0",
        ways,
        "`spectrain import`",
    ]);
    let (mut config, tensors) = workspace.contents("published");
    config.as_object_mut().unwrap().remove(LAYER_IDS);
    write_folder(&workspace.path("unnamed"), &config, &tensors, &[]).unwrap();
    let told = ["expected layer ids", "`spectrain import --layers`"];
    plan(&["start=unnamed"]).failed(&told);
    workspace
        .run_line("check unnamed --target target")
        .failed(&told);
}

#[test]
fn a_dflash_drafter_goes_to_every_layout_and_back() {
    let recipe = RECIPE
        .replace("\"eagle3\"", "\"dflash\"")
        .replace(
            "draft_vocab = 256",
            // SGLang does not hand over the last layer's output.
            "layers = 1\nblock_size = 4\nmask_token = 4\ncaptured_layers = [0]",
        )
        .replace("[objective]\ndraft_steps = 2", "[objective]\nanchors = 4");
    let recipe = format!("{recipe}\n[export]\nto = [\"vllm\", \"hf\", \"speculators\"]\n");
    let workspace = Workspace::new();
    workspace.write("recipe.toml", recipe);
    workspace
        .run(&["recipe", "recipe.toml", "--quiet"])
        .succeeded();
    let launch = workspace.manifest("export")["summary"].clone();
    assert_eq!(launch["further"].as_array().unwrap().len(), 2, "{launch:#}");
    let hf = launch["further"][0]["launch"][0].as_str().unwrap();
    assert!(hf.contains("speculation_type='\\''dflash'\\''"), "{hf}");
    for apart in ["hf", "speculators"] {
        let out = format!("from-{apart}");
        let from = format!("{EXPORTED}-{apart}");
        workspace
            .run(&["export", &from, "--to", "sglang", "--out", &out])
            .succeeded();
        assert_eq!(workspace.contents(&out).1, workspace.contents(EXPORTED).1);
    }
    // Training goes on from a folder in another layout.
    let start = format!("start={EXPORTED}-speculators");
    let words = [
        "recipe",
        "recipe.toml",
        "--quiet",
        "--set",
        "name=further",
        "--set",
        &start,
    ];
    workspace.run(&words).succeeded();
    let block = [&words[..], &["--set", "drafter.block_size=3"]].concat();
    workspace
        .run(&block)
        .failed(&["other settings than `[drafter]`", "block_size"]);
}

#[test]
fn heads_that_no_engine_loads_are_exported_for_none() {
    let recipe = RECIPE
        .replace("\"eagle3\"", "\"hydra\"")
        .replace("draft_vocab = 256", "hydra_heads = 2")
        .replace("[objective]\ndraft_steps = 2\n", "");
    let workspace = Workspace::new();
    // The two engines that are there unless a recipe says otherwise are remarked upon.
    workspace.write("recipe.toml", &recipe);
    workspace
        .run(&["recipe", "recipe.toml", "--quiet"])
        .succeeded();
    for engine in ["vllm", "sglang", "hf", "llama-cpp", "tensorrt-llm"] {
        let words = ["export", "run", "--to", engine, "--out", "out"];
        workspace
            .run(&words)
            .failed(&["no serving engine loads hydra drafters"]);
        let words = ["export", EXPORTED, "--to", engine, "--out", "out"];
        workspace
            .run(&words)
            .failed(&["no serving engine loads hydra drafters"]);
    }
    assert!(!workspace.path("out").exists());
    // One that a recipe names is meant.
    workspace.write(
        "recipe.toml",
        format!("{recipe}\n[export]\nto = [\"vllm\"]\n"),
    );
    workspace
        .run(&["recipe", "recipe.toml", "--plan"])
        .misused(&[
            "`export.to`",
            "no engine loads hydra drafters",
            "found `\"vllm\"`",
        ]);
}
