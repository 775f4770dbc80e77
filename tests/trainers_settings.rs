//! Settings of other trainers one by one: that every published one is known, and what becomes of those that need more than a name.
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use spectrain::cli::commands::schema;
use spectrain::families::registry::find;
use spectrain::trainers::{Becomes, FILE_KEYS, Row, TRAINERS, Translated, translate};

use crate::workspace::Workspace;

/// The names of all settings of a trainer, which `tests/golden/other_trainers.py` reads from its package.
const PUBLISHED: [(&str, &str); 5] = [
    (
        "SpecForge",
        include_str!("golden/other_trainers/specforge.txt"),
    ),
    (
        "speculators",
        include_str!("golden/other_trainers/speculators.txt"),
    ),
    (
        "ModelOpt",
        include_str!("golden/other_trainers/modelopt.txt"),
    ),
    (
        "NeMo Automodel",
        include_str!("golden/other_trainers/nemo.txt"),
    ),
    (
        "TorchSpec",
        include_str!("golden/other_trainers/torchspec.txt"),
    ),
];

#[test]
fn every_published_setting_has_a_row() {
    for trainer in TRAINERS {
        let (_, published) = PUBLISHED
            .into_iter()
            .find(|(name, _)| *name == trainer.name)
            .unwrap_or_else(|| panic!("`PUBLISHED` lacks {}", trainer.name));
        let is_known = |key: &str| {
            let mut rows = trainer.rows.iter();
            rows.any(|row| match row.key.strip_suffix('*') {
                Some(prefix) => key.starts_with(prefix),
                None => row.key == key,
            })
        };
        let missing: Vec<&str> = published.lines().filter(|key| !is_known(key)).collect();
        assert!(published.lines().count() > 80, "{}", trainer.name);
        assert!(missing.is_empty(), "{}: {missing:?}", trainer.name);
    }
}

/// The schema of recipes of one kind.
struct Schema(Value);

impl Schema {
    fn of(recipe: &str) -> Self {
        Self(schema::of(&[find(recipe).unwrap()]).to_value())
    }

    /// Whether such a recipe has this key, which has its table before it.
    fn has(&self, path: &str) -> bool {
        let shared = &self.0["properties"];
        let Some((table, key)) = path.split_once('.') else {
            return !shared[path].is_null();
        };
        let own = &self.0["allOf"][0]["then"]["properties"][table];
        let table = if own.is_null() { &shared[table] } else { own };
        let names = [&table["$ref"], &table["allOf"][0]["$ref"]];
        let mut names = names.into_iter().filter_map(Value::as_str);
        let place = names.next().map(|name| name.trim_start_matches('#'));
        let found = place.and_then(|place| self.0.pointer(place));
        found.is_some_and(|table| !table["properties"][key].is_null())
    }
}

#[test]
fn every_key_that_a_row_names_is_one_of_the_recipe_that_it_is_for() {
    for trainer in TRAINERS {
        for (kind, recipe) in trainer.kinds {
            let schema = Schema::of(recipe);
            let rows = trainer.rows.iter().filter(|row| row.is_for(kind));
            let named = rows.filter_map(|row| match row.becomes {
                Becomes::Key(key) => Some(key),
                _ => None,
            });
            let always = trainer.always.iter();
            let always = always.filter(|(of, ..)| of.is_empty() || of.contains(kind));
            let keys = named.chain(always.map(|(_, key, _)| *key));
            let unknown: Vec<&str> = keys.filter(|key| !schema.has(key)).collect();
            assert!(
                unknown.is_empty(),
                "{}, {kind}: `{recipe}` has no {unknown:?}",
                trainer.name
            );
        }
    }
    let keys: BTreeSet<&str> = FILE_KEYS.iter().map(|key| key.key).collect();
    assert_eq!(keys.len(), FILE_KEYS.len());
    assert!(!Schema::of("mtp-qwen").has("drafter.d_ff"));
}

/// Whether the settings of a row are all those of an earlier one.
fn covers(earlier: &Row, row: &Row) -> bool {
    match earlier.key.strip_suffix('*') {
        // A setting with a row of its own is never one of several.
        Some(prefix) => row.key.ends_with('*') && row.key.starts_with(prefix),
        None => row.key == earlier.key,
    }
}

#[test]
fn every_row_is_read() {
    for trainer in TRAINERS {
        let kinds: Vec<&str> = trainer.kinds.iter().map(|(kind, _)| *kind).collect();
        for (at, row) in trainer.rows.iter().enumerate() {
            let what = format!("{}: `{}` of {:?}", trainer.name, row.key, row.kinds);
            let is_first = |kind: &&str| {
                let mut earlier = trainer.rows[..at].iter();
                row.is_for(kind) && !earlier.any(|other| other.is_for(kind) && covers(other, row))
            };
            let of_others = row.kinds.iter().find(|kind| !kinds.contains(kind));
            assert_eq!(of_others, None, "{what}: no such kind");
            assert!(kinds.iter().any(is_first), "{what}: earlier rows hold");
            let is_json = serde_json::from_str::<Value>(row.default).is_ok();
            assert!(
                row.default.is_empty() || is_json,
                "{what}: the default `{}` is no JSON",
                row.default
            );
        }
        for (of, key, value) in trainer.always {
            let what = format!("{}: {key} of {of:?}", trainer.name);
            assert!(of.iter().all(|kind| kinds.contains(kind)), "{what}");
            assert!(serde_json::from_str::<Value>(value).is_ok(), "{what}");
        }
    }
}

fn of(file: &str, text: &str) -> Translated {
    translate(text, Path::new(file)).unwrap()
}

/// The settings of SpecForge for a target, with lines of `training` behind them.
fn specforge(training: &str) -> Translated {
    let text = format!(
        "model:\n  target_model_path: Qwen/Qwen3-8B\ndata:\n  train_data_path: a.jsonl\ntraining:\n{training}"
    );
    of("a.yaml", &text)
}

/// The settings of speculators for a target, of this kind and with these flags.
fn speculators(kind: &str) -> Translated {
    let text = format!(
        "speculators train --verifier-name-or-path Qwen/Qwen3-8B --speculator-type {kind}\n"
    );
    of("a.sh", &text)
}

fn has(found: &Translated, settings: &[&str]) {
    for set in settings {
        let has = found.settings.iter().any(|given| given == set);
        assert!(has, "no `{set}`: {:?}", found.settings);
    }
}

fn lacks(found: &Translated, key: &str) {
    let set = found.settings.iter().find(|set| set.starts_with(key));
    assert_eq!(set, None);
}

/// That one note has all these parts.
fn tells(found: &Translated, parts: &[&str]) {
    let mut notes = found.notes.iter();
    let told = notes.any(|note| parts.iter().all(|part| note.contains(part)));
    assert!(told, "{parts:?}: {:?}", found.notes);
}

#[test]
fn a_flag_that_may_be_repeated_gives_a_list() {
    let script = "speculators prepare-data --model Qwen/Qwen3-8B --data a.jsonl --data hf:openai/gsm8k:main:train \\\n  \
                  --data open-perfectblend --data magpie --max-samples 500 --max-samples 900\n\
                  speculators train --verifier-name-or-path Qwen/Qwen3-8B\n";
    let found = of("a.sh", script);
    let train = serde_json::json!([
        "a.jsonl",
        "hf://openai/gsm8k:main/train",
        {"preset": "perfectblend"},
        "hf://Magpie-Align/Magpie-Llama-3.1-Pro-300K-Filtered"
    ]);
    assert_eq!(found.train, Some(train));
    // Of other flags the last one holds, as the trainer has it.
    has(&found, &["data.max_samples=900"]);
    let other = script.replace("--data a.jsonl --data", "--data nemotron --data");
    let found = of("a.sh", &other);
    tells(&found, &["nemotron", "columns that no preset reads"]);
    assert_eq!(found.train.unwrap().as_array().unwrap().len(), 3);
    let twice = script.replace(
        "speculators train",
        "speculators prepare-data --data b.jsonl\nspeculators train",
    );
    let found = of("a.sh", &twice);
    assert_eq!(found.train, Some("b.jsonl".into()));
    tells(&found, &["`prepare_data.data = [", "another command"]);
    let one = of(
        "a.sh",
        "speculators prepare-data --data open-perfectblend\nspeculators train --verifier-name-or-path a/b\n",
    );
    assert_eq!((one.train, one.preset), (None, Some("perfectblend".into())));
}

#[test]
fn a_dataset_that_was_made_of_conversations_lacks_them_unless_they_are_named() {
    let train = "speculators train --verifier-name-or-path target --data-path out\n";
    let prepare = "speculators prepare-data --data a.jsonl --data b.jsonl --output out\n";
    let found = of("a.sh", &format!("{prepare}{train}"));
    assert_eq!(found.train, Some(serde_json::json!(["a.jsonl", "b.jsonl"])));
    let notes = found.notes.join("\n");
    assert!(!notes.contains("data_path"), "{notes}");
    tells(&of("a.sh", train), &["`data_path = out`", "(`--data`)"]);
    let workspace = Workspace::new();
    workspace.write("a.sh", train);
    let refused = workspace.run_line("init --from a.sh --yes --out out.toml");
    refused.misused(&["`--data` is missing", "`a.sh`: `data_path = out`: this is"]);
}

#[test]
fn several_datasets_are_written_into_the_recipe() {
    let workspace = Workspace::new();
    let text = workspace.text("train.jsonl");
    workspace.write("more.jsonl", &text);
    let script = "speculators prepare-data --data train.jsonl --data more.jsonl\n\
                  speculators train --verifier-name-or-path target --total-seq-len 64\n";
    workspace.write("a.sh", script);
    workspace
        .run_line("init --from a.sh --yes --out out.toml")
        .succeeded();
    let recipe = workspace.text("out.toml");
    let line = "\ntrain = [\"train.jsonl\", \"more.jsonl\"]\n";
    assert!(recipe.contains(line), "{recipe}");
    workspace.write("a.sh", script.replace("more", "none"));
    workspace
        .run_line("init --from a.sh --yes --out other.toml")
        .misused(&["`a.sh`: `prepare_data.data`: `none.jsonl`"]);
    // What an option gives goes before.
    workspace
        .run_line("init --from a.sh --data train.jsonl --yes --out other.toml")
        .succeeded();
    let recipe = workspace.text("other.toml");
    assert!(recipe.contains("\ntrain = \"train.jsonl\"\n"), "{recipe}");
}

#[test]
fn keys_of_a_drafters_file_are_carried_over_or_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    std::fs::write(
        folder.path().join("draft.json"),
        r#"{"architectures": ["DFlash2DraftModel"], "hidden_size": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
            "num_hidden_layers": 3, "attention_bias": true, "residual_scale": 2.0, "layer_types": ["full_attention", "full_attention", "full_attention"],
            "dflash_config": {"mask_token_id": 7, "conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 64, "selector_top_k": 4,
                "block_size": 8, "input_embedding_scale": 3.0}}"#,
    )
    .unwrap();
    let text = "model:\n  target_model_path: Qwen/Qwen3-8B\n  draft_model_config: draft.json\ndata:\n  train_data_path: a.jsonl\n\
                training:\n  strategy: dflash\n  dflash2_selector_loss_alpha: 0.5\n  dflash2_selector_warmup_ratio: 0.1\n  \
                lk_loss_type: lambda\n";
    let found = translate(text, &file).unwrap();
    has(
        &found,
        &[
            "drafter.layers=3",
            "drafter.mask_token=7",
            "drafter.block_size=8",
            "drafter.conv_taps=2",
            "drafter.conv_group=8",
            "drafter.selector_rank=64",
            "drafter.selector_top_k=4",
            "objective.selector_weight=0.5",
        ],
    );
    tells(&found, &["`draft.hidden_size = 2048`", "as wide"]);
    tells(&found, &["`draft.attention_bias = true`", "no bias"]);
    tells(
        &found,
        &["`draft.residual_scale = 2.0`", "no key of a drafter's file"],
    );
    tells(&found, &["input_embedding_scale = 3.0`", "as they are"]);
    tells(&found, &["selector_warmup_ratio = 0.1`", "at all steps"]);
    tells(
        &found,
        &[
            "`training.lk_loss_type = lambda`",
            "cross-entropy with the text",
        ],
    );
    for same in ["rope_theta", "rms_norm_eps", "architectures"] {
        let told = found.notes.iter().any(|note| note.contains(same));
        assert!(!told, "{same}: {:?}", found.notes);
    }
    std::fs::write(
        folder.path().join("draft.json"),
        r#"{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}}"#,
    )
    .unwrap();
    let found = translate(&text.replace("strategy: dflash", "strategy: eagle3"), &file).unwrap();
    has(&found, &["drafter.captured_layers=[2, 18, 33]"]);
}

#[test]
fn losses_of_specforge_are_told_where_they_differ() {
    let found = specforge("  lk_loss_type: lambda\n");
    has(&found, &["objective.divergence=\"lk_hybrid\""]);
    tells(
        &found,
        &["lk_loss_type = lambda`", "exp(−3 α)", "1 · exp(−1 · α)"],
    );
    let found = specforge("  lk_loss_type: lambda\n  kl_decay: 3.0\n");
    assert!(!found.notes.iter().any(|note| note.contains("lk_loss_type")));
    has(
        &specforge("  lk_loss_type: tv\n"),
        &["objective.divergence=\"tv\""],
    );
    let found = specforge("  strategy: mtp\n");
    assert_eq!(found.recipe, "mtp-qwen");
    lacks(&found, "objective.divergence");
    tells(
        &found,
        &["`training.strategy = mtp`", "cross-entropy with the text"],
    );
    // The sum of differences is twice the total variation.
    let found = specforge("  strategy: dspark\n");
    let weights = [
        "objective.teacher_weight=1.8",
        "objective.divergence=\"tv\"",
    ];
    has(&found, &weights);
}

#[test]
fn a_layer_of_prediction_has_the_sizes_of_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let sizes =
        r#"{"intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 4}"#;
    std::fs::write(folder.path().join("draft.json"), sizes).unwrap();
    let text = "model:\n  target_model_path: Qwen/Qwen3-8B\n  draft_model_config: draft.json\n  \
                aux_hidden_state_layer_ids: [2]\ndata:\n  train_data_path: a.jsonl\ntraining:\n  strategy: mtp\n";
    let found = translate(text, &folder.path().join("a.yaml")).unwrap();
    lacks(&found, "drafter.");
    tells(
        &found,
        &["`draft.num_key_value_heads = 4`", "has the target's sizes"],
    );
    tells(&found, &["aux_hidden_state_layer_ids", "last hidden state"]);
    // What is the same as in the target needs no word, nor does the file's name.
    for same in ["intermediate_size", "num_attention_heads", "draft.json"] {
        let told = found.notes.iter().any(|note| note.contains(same));
        assert!(!told, "{same}: {:?}", found.notes);
    }
}

#[test]
fn weights_of_steps_that_grow_are_all_the_same_here() {
    for (found, setting) in [
        (
            specforge("  strategy: mtp\n  mtp_step_weight_beta: 1.5\n"),
            "`training.mtp_step_weight_beta = 1.5`",
        ),
        (
            torchspec("", "  ploss_weights: [1.0, 1.2, 1.44]\n"),
            "`training.ploss_weights = [1.0,1.2,1.44]`",
        ),
    ] {
        has(&found, &["objective.decay=1.0"]);
        tells(&found, &[setting, "counts more than the one before"]);
    }
    let found = specforge("  strategy: mtp\n  mtp_step_weight_beta: 0.6\n");
    has(&found, &["objective.decay=0.6"]);
    lacks(&specforge("  strategy: mtp\n"), "objective.decay");
}

#[test]
fn settings_of_specforges_servers_are_told_together() {
    let text = "model:\n  target_model_path: Qwen/Qwen3-8B\n  sglang_page_size: 1\ndata:\n  prompts_path: tokens.jsonl\n  max_prompts: 100\n\
                runtime:\n  producer_lease: 4\ndeployment:\n  mode: disaggregated\n  trainer:\n    nproc_per_node: 2\n  disaggregated:\n    \
                control_dir: c\n    backend: mooncake\ntracking:\n  report_to: wandb\n  wandb_project: p\nprofiling:\n  start_step: 3\n";
    let found = of("a.yaml", text);
    assert_eq!(found.train, Some("tokens.jsonl".into()));
    let settings = ["data.max_samples=100", "train.gradient_accumulation=2"];
    has(&found, &settings);
    tells(
        &found,
        &[
            "`deployment.disaggregated.backend = mooncake`",
            "`deployment.disaggregated.control_dir = c`",
            "starts no servers",
        ],
    );
    tells(&found, &["`model.sglang_page_size = 1`", "SGLang server"]);
    tells(
        &found,
        &[
            "`tracking.report_to = wandb`",
            "`tracking.wandb_project = p`",
        ],
    );
    for note in &found.notes {
        assert!(!note.contains("that is known"), "{note}");
    }
    // A flag of the old scripts.
    let script = "python train_eagle3.py --target-model-path Qwen/Qwen3-8B --train-data-path a.jsonl --sglang-page-size 1\n";
    tells(&of("a.sh", script), &["`model.sglang_page_size = 1`"]);
}

#[test]
fn settings_that_speculators_does_not_read_are_not_carried_over() {
    let found = speculators("mtp --loss-fn tv");
    lacks(&found, "objective.divergence");
    tells(
        &found,
        &[
            "`loss_fn = tv`",
            "does not read it",
            "cross-entropy with the text",
        ],
    );
    let found = speculators("peagle --max-anchors 256");
    tells(&found, &["`max_anchors = 256`", "`objective.keep`"]);
    lacks(&found, "objective.anchors");
    let found = speculators(
        "eagle3 --hidden-states-path h --mooncake-master a:1 --mooncake-protocol rdma --xpress-rank 8",
    );
    tells(&found, &["`hidden_states_path = h`", "features import"]);
    tells(
        &found,
        &[
            "`mooncake_master = a:1`",
            "`mooncake_protocol = rdma`",
            "files",
        ],
    );
    for note in &found.notes {
        assert!(
            !note.contains("xpress") && !note.contains("that is known"),
            "{note}"
        );
    }
}

#[test]
fn a_file_with_the_layers_goes_before_speculators_windows() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("a.sh");
    let write = |text: &str| std::fs::write(folder.path().join("layers.json"), text).unwrap();
    let text = "speculators train --verifier-name-or-path Qwen/Qwen3-8B --speculator-type dflash --draft-config layers.json\n";
    write(r#"{"num_hidden_layers": 2, "intermediate_size": 64}"#);
    let found = translate(text, &script).unwrap();
    has(
        &found,
        &["drafter.layers=2", "drafter.window=0", "drafter.d_ff=64"],
    );
    lacks(&found, "drafter.causal");
    write(
        r#"{"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 512}"#,
    );
    let found = translate(text, &script).unwrap();
    has(
        &found,
        &[
            "drafter.layers=1",
            "drafter.window=512",
            "drafter.causal=true",
        ],
    );
}

#[test]
fn modelopts_own_sizes_are_its_defaults() {
    let recipe = |kind: &str, rest: &str| {
        let text = format!(
            "metadata:\n  recipe_type: speculative_{kind}\nmodel:\n  model_name_or_path: Qwen/Qwen3-8B\ndata:\n  data_path: a.jsonl\n  \
             sample_size: 50\ntraining:\n  save_total_limit: 3\n  eval_steps: 70\n  optim: adafactor\n{rest}"
        );
        of("a.yaml", &text)
    };
    let found = recipe(
        "eagle",
        "eagle:\n  eagle_base_lora: true\n  eagle_base_lora_rank: 8\n",
    );
    has(
        &found,
        &[
            "drafter.d_ff=14336",
            "drafter.heads=32",
            "drafter.kv_heads=8",
            "data.max_samples=50",
            "train.keep=3",
            "train.validate_every=70",
        ],
    );
    tells(&found, &["rope_theta = 10000`", "1000000"]);
    tells(
        &found,
        &["`eagle.eagle_base_lora = true`", "stays as it is"],
    );
    tells(&found, &["`training.optim = adafactor`", "AdamW"]);
    let found = recipe(
        "dflash",
        "dflash:\n  dflash_architecture_config:\n    target_layer_ids: [1, 5]\n  dflash_export_rope_scaling:\n    type: yarn\n",
    );
    has(
        &found,
        &[
            "drafter.d_ff=22016",
            "drafter.kv_heads=32",
            "drafter.captured_layers=[1, 5]",
        ],
    );
    tells(
        &found,
        &["`dflash.dflash_export_rope_scaling.type = yarn`", "rotary"],
    );
    let found = recipe("medusa", "medusa:\n  medusa_num_heads: 3\n");
    assert_eq!(found.recipe, "medusa");
    has(&found, &["drafter.medusa_heads=3", "drafter.head_layers=1"]);
}

/// A recipe of NeMo of this class, with lines of `recipe_args`.
fn nemo(class: &str, rest: &str) -> Translated {
    let text = format!(
        "recipe: {class}\nrecipe_args:\n  target_model_name_or_path: Qwen/Qwen3-8B\n  train_data_path: org/chats\n  \
         train_split: \"train[:70000]\"\n  seq_length: 1024\n  micro_batch_size: 2\n  num_epochs: 3\n{rest}optimizer:\n  lr: 6.0e-4\n  \
         betas: [0.9, 0.99]\ncheckpoint:\n  enabled: true\nwandb:\n  project: p\n"
    );
    of("a.yaml", &text)
}

#[test]
fn a_recipe_of_nemo_is_read_with_its_data_and_its_optimiser() {
    let found = nemo(
        "TrainEagle3Recipe",
        "  ttt_steps: 4\n  lk_loss_type: lambda\n",
    );
    has(
        &found,
        &[
            "objective.draft_steps=4",
            "objective.divergence=\"lk_hybrid\"",
            "data.max_samples=70000",
            "data.max_length=1024",
            "train.batch_tokens=2048",
            "train.beta2=0.99",
            "train.min_lr_ratio=0.1",
            "train.learning_rate=0.0006",
        ],
    );
    assert!(!found.notes.iter().any(|note| note.contains("lk_loss")));
    assert_eq!(found.train, Some("hf://org/chats:train".into()));
}

#[test]
fn recipes_of_nemo_are_known_by_their_class() {
    let parallel = "  parallel_drafting: true\n  mask_token_id: 9\n";
    for (class, rest, recipe, settings) in [
        (
            "TrainEagle3Recipe",
            parallel,
            "peagle",
            &[
                "objective.keep=0.7",
                "drafter.layers=1",
                "drafter.mask_token=9",
            ][..],
        ),
        (
            "nemo_automodel.recipes.llm.train_eagle2.TrainEagle2Recipe",
            "",
            "eagle1",
            &[
                "objective.regression_weight=1.0",
                "objective.class_weight=0.1",
            ][..],
        ),
        (
            "TrainDFlash2Recipe",
            "",
            "dflash",
            &[
                "objective.inject=false",
                "drafter.selector_rank=256",
                "objective.slot_weights=\"exponential\"",
            ][..],
        ),
        (
            "TrainDSparkRecipe",
            "  loss_decay_gamma: 4.0\n",
            "dflash",
            &[
                "drafter.block_size=7",
                "objective.decay_slots=4.0",
                "objective.teacher_weight=1.8",
                "drafter.confidence=true",
            ][..],
        ),
        (
            "TrainJetSpecRecipe",
            "",
            "dflash",
            &[
                "drafter.causal=true",
                "objective.teacher_weight=1.0",
                "objective.slot_weights=\"uniform\"",
            ][..],
        ),
    ] {
        let found = nemo(class, rest);
        assert_eq!(found.recipe, recipe, "{class}");
        has(&found, settings);
    }
}

#[test]
fn a_recipe_of_nemo_for_another_kind_of_drafter_is_refused() {
    let refused = "recipe: TrainViSpecRecipe\nrecipe_args:\n  target_model_name_or_path: a\n";
    let refused = translate(refused, Path::new("a.yaml"));
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("calls `TrainViSpecRecipe`"), "{error}");
}

#[test]
fn noise_of_nemo_is_of_one_width_for_all_samples() {
    let found = nemo("TrainEagle1Recipe", "  feature_noise: 0.05\n");
    let mut settings = found.settings.iter();
    let noise = settings.find(|set| set.starts_with("objective.noise="));
    let noise = noise.unwrap();
    for part in ["kind = \"uniform\"", "std = 0.1", "length_ref = 0"] {
        assert!(noise.contains(part), "{noise}");
    }
}

#[test]
fn automodel_takes_its_file_without_a_flag() {
    let folder = tempfile::tempdir().unwrap();
    let file = "recipe: TrainDFlashRecipe\nrecipe_args:\n  target_model_name_or_path: a/b\n  train_data_path: a.jsonl\n  seq_length: 64\n";
    std::fs::write(folder.path().join("x.yaml"), file).unwrap();
    let script = "automodel x.yaml --nproc-per-node 4 --recipe_args.seq_length=128\n";
    let found = translate(script, &folder.path().join("a.sh")).unwrap();
    has(
        &found,
        &[
            "data.max_length=128",
            "train.gradient_accumulation=4",
            "objective.decay_slots=7.0",
        ],
    );
}

/// A file of TorchSpec, with lines of `model` and of `training`.
fn torchspec(model: &str, training: &str) -> Translated {
    let text = format!(
        "model:\n  target_model_path: Qwen/Qwen3-8B\n{model}dataset:\n  train_data_path: ../data/a.jsonl\n  min_loss_tokens: 32\n\
         training:\n  learning_rate: 6e-4\n  min_lr: 6e-5\n  training_num_gpus_per_node: 2\n  draft_accumulation_steps: 2\n{training}\
         inference:\n  inference_engine_type: vllm\n  vllm:\n    tp_size: 2\nmooncake:\n  protocol: tcp\n"
    );
    of("a.yaml", &text)
}

#[test]
fn files_of_torchspec_are_no_files_of_specforge() {
    let found = torchspec(
        "",
        "  ploss_weights: [1.0, 0.7, 0.49]\n  loss_type: lk_lambda\n  lk_eta: 2.0\n",
    );
    assert_eq!(found.recipe, "eagle3");
    has(
        &found,
        &[
            "data.min_trained_tokens=32",
            "train.min_lr_ratio=0.1",
            "train.gradient_accumulation=4",
            "objective.decay=0.7",
            "objective.divergence=\"lk_hybrid\"",
            "train.batch_tokens=16384",
        ],
    );
    tells(&found, &["`training.loss_type = lk_lambda`", "exp(−2 · α)"]);
    tells(
        &found,
        &[
            "`inference.inference_engine_type = vllm`",
            "`inference.vllm.tp_size = 2`",
        ],
    );
    assert_eq!(found.train, Some("../data/a.jsonl".into()));
}

#[test]
fn the_file_of_a_drafter_says_which_one_torchspec_trains() {
    let dspark = "  draft_model_config: torchspec/config/dspark_draft_config.json\n";
    let found = torchspec(dspark, "  dspark_l1_loss_alpha: 0.5\n");
    has(
        &found,
        &[
            "objective.teacher_weight=1.0",
            "objective.slot_weights=\"exponential\"",
            "drafter.sample_from_anchor=true",
        ],
    );
    let dflash = dspark.replace("dspark", "dflash");
    let found = torchspec(&dflash, "  dflash_loss_objective: dpace\n");
    let settings = ["objective.slot_weights=\"d_pace\"", "drafter.block_size=16"];
    has(&found, &settings);
    let refused = "model:\n  target_model_path: a\n  draft_model_config: xpress.json\ndataset:\n  prompt_key: x\n";
    let refused = translate(refused, Path::new("a.yaml"));
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("calls `xpress.json`"), "{error}");
}

#[test]
fn domino_of_every_trainer_keeps_its_head_and_its_curriculum() {
    let of_modelopt = "metadata:\n  recipe_type: speculative_dflash\nmodel:\n  model_name_or_path: Qwen/Qwen3-8B\ndata:\n  data_path: a.jsonl\n\
                       training:\n  training_seq_len: 64\ndflash:\n  dflash_loss_decay_factor: 7.0\n  dflash_architecture_config:\n    \
                       projector_type: domino\n    emb_dim: 128\n    gru_hidden_dim: 512\n    pure_draft_prefix_len: 1\n    shift_label: true\n";
    let file = "  draft_model_config: domino_draft_config.json\n";
    // The width between the head's matrices and of its recurrent unit, the first corrected slot, and the share of the steps
    // in which the layers' own loss fades out.
    for (trainer, found, [rank, state, from, until]) in [
        (
            "SpecForge",
            specforge(
                "  strategy: domino\n  loss_decay_gamma: 7.0\n  lambda_base_decay_ratio: 0.75\n",
            ),
            ["256", "1024", "0", "0.75"],
        ),
        (
            "ModelOpt",
            of("a.yaml", of_modelopt),
            ["128", "512", "1", "1.0"],
        ),
        (
            "NeMo",
            nemo("TrainDominoRecipe", "  gru_hidden_dim: 768\n"),
            ["256", "768", "1", "0.5"],
        ),
        (
            "TorchSpec",
            torchspec(
                file,
                "  num_train_steps: 2000\n  domino_curriculum_steps: 500\n",
            ),
            ["256", "1024", "0", "0.25"],
        ),
    ] {
        assert_eq!(found.recipe, "dflash", "{trainer}");
        let settings = [
            format!("drafter.markov_rank={rank}"),
            format!("drafter.markov_state={state}"),
            format!("drafter.markov_from={from}"),
            format!("objective.base_until={until}"),
        ];
        has(&found, &settings.each_ref().map(String::as_str));
        let same = [
            "drafter.markov=\"domino\"",
            "objective.base_weight=1.0",
            "objective.slot_weights=\"exponential\"",
            "objective.decay_slots=7.0",
        ];
        has(&found, &same);
    }
    // Slots that all count the same, where no fall is given.
    let found = specforge("  strategy: domino\n");
    has(&found, &["objective.slot_weights=\"uniform\""]);
    lacks(
        &specforge("  strategy: dflash\n  lambda_base_start: 1.0\n"),
        "objective.base",
    );
}

#[test]
fn weights_of_dspark_fall_whatever_else_the_objective_says() {
    let text = "metadata:\n  recipe_type: speculative_dflash\nmodel:\n  model_name_or_path: Qwen/Qwen3-8B\ndata:\n  data_path: a.jsonl\n\
                dflash:\n  dflash_loss_decay_factor: 7.0\n  dflash_architecture_config:\n    projector_type: dspark\n";
    let falls = [
        "objective.slot_weights=\"exponential\"",
        "objective.decay_slots=7.0",
    ];
    has(&of("a.yaml", text), &falls);
    let of_specforge = "  strategy: dspark\n  loss_type: dpace\n  loss_decay_gamma: 7.0\n";
    has(&specforge(of_specforge), &falls);
}

#[test]
fn block_drafters_read_as_many_layers_as_their_trainer_takes() {
    let captured = |found: &Translated, layers: &str| {
        has(found, &[&format!("drafter.captured_layers={layers}")]);
    };
    let three = "  draft_num_hidden_layers: 3\n";
    captured(&nemo("TrainDFlashRecipe", three), "[1, 17, 33]");
    lacks(&nemo("TrainDFlashRecipe", ""), "drafter.captured_layers");
    let found = nemo("TrainDSparkRecipe", "");
    captured(&found, "[1, 10, 18, 26, 35]");
    tells(&found, &["target_layer_ids", "final norm"]);
    captured(&specforge("  strategy: dflash\n"), "[18]");
    let script = "python train_dflash.py --target-model-path Qwen/Qwen3-8B --train-data-path a.jsonl --num-draft-layers 3\n";
    captured(&of("a.sh", script), "[1, 17, 33]");
    // What the file of a drafter says goes before, unless another number of layers is asked for.
    let folder = tempfile::tempdir().unwrap();
    let file = r#"{"num_hidden_layers": 2, "dflash_config": {"target_layer_ids": [3, 7]}}"#;
    std::fs::write(folder.path().join("d.json"), file).unwrap();
    let with = |flags: &str| {
        let script = format!(
            "specforge train model.target_model_path=Qwen/Qwen3-8B data.train_data_path=a.jsonl training.strategy=dflash \
                              model.draft_model_config=d.json{flags}\n"
        );
        translate(&script, &folder.path().join("a.sh")).unwrap()
    };
    captured(&with(""), "[3, 7]");
    captured(&with(" model.draft_num_hidden_layers=4"), "[1, 12, 22, 33]");
    let unread = specforge("  strategy: dflash\n").settings.len();
    let text = "model:\n  target_model_path: Qwen/Qwen3-8B\n  draft_model_config: none.json\ndata:\n  train_data_path: a.jsonl\n\
                training:\n  strategy: dflash\n";
    let found = of("a.yaml", text);
    lacks(&found, "drafter.captured_layers");
    assert_eq!(found.settings.len(), unread - 1);
}

#[test]
fn scripts_of_specforge_have_defaults_and_flags_of_their_own() {
    let script = |program: &str, flags: &str| {
        let script = format!(
            "python {program} --target-model-path Qwen/Qwen3-8B --train-data-path a.jsonl {flags}\n"
        );
        of("a.sh", &script)
    };
    let found = script("train_dflash.py", "--learning-rate 1e-3");
    let set = [
        "train.epochs=6",
        "train.learning_rate=0.001",
        "data.max_length=3072",
        "train.max_grad_norm=1.0",
    ];
    has(&found, &set);
    // The target, the data and the rate: what the script does by itself nobody gave.
    assert_eq!(found.carried, [3, 3], "{:?}", found.notes);
    let found = script(
        "train_dspark.py",
        "--l1-loss-alpha 0.5 --no-confidence-head",
    );
    let set = [
        "drafter.confidence=false",
        "drafter.markov_rank=256",
        "objective.decay_slots=4.0",
        "objective.teacher_weight=1.0",
    ];
    has(&found, &set);
    let found = script("train_peagle.py", "--draft-accumulation-steps 3");
    let set = [
        "drafter.layers=4",
        "objective.keep=0.7",
        "train.epochs=10",
        "train.gradient_accumulation=3",
        "seed=0",
    ];
    has(&found, &set);
}

#[test]
fn processes_that_share_a_target_read_the_same_rows() {
    let found = nemo(
        "TrainDFlashRecipe",
        "nproc_per_node: 8\ndistributed:\n  tp_size: 4\n",
    );
    has(&found, &["train.gradient_accumulation=2"]);
}

#[test]
fn without_a_schedule_there_is_no_warm_up() {
    let found = speculators("eagle3 --scheduler-type none --max-steps 1000");
    has(
        &found,
        &["train.schedule=\"constant\"", "train.warmup_steps=0"],
    );
    let found = speculators("eagle3 --scheduler-type cosine --max-steps 1000");
    has(&found, &["train.warmup_steps=10"]);
}

#[test]
fn matrices_decay_as_much_as_with_the_rates_of_speculators() {
    // Of width 4096: a rate 12.8 times as high, and a decay of 0.1 over that.
    let found = speculators("eagle3");
    has(
        &found,
        &[
            "train.optimizer=\"muon\"",
            "train.matrix_learning_rate=0.0128",
            "train.weight_decay=0.00781",
        ],
    );
    let found = speculators("eagle3 --muon-adjust-lr-fn original --weight-decay 0.02");
    has(
        &found,
        &["train.matrix_learning_rate=0.001", "train.weight_decay=0.1"],
    );
    tells(&found, &["`weight_decay = 0.02`", "tables"]);
    let found = speculators("eagle3 --muon-weight-decay 0");
    has(&found, &["train.weight_decay=0.0"]);
    let found = speculators("eagle3 --optimizer adamw");
    has(&found, &["train.weight_decay=0.01"]);
    let script = "speculators train --verifier-name-or-path someone/unknown\n";
    let found = of("a.sh", script);
    has(&found, &["train.weight_decay=0.1"]);
    tells(
        &found,
        &["`muon_weight_decay = 0.1`", "divide", "0.2 √width"],
    );
}

#[test]
fn a_warm_up_is_a_share_of_the_steps_that_the_schedule_is_made_for() {
    let found = specforge("  warmup_ratio: 0.05\n  total_steps: 2000\n  max_steps: 500\n");
    has(&found, &["train.warmup_steps=100", "train.steps=500"]);
    let found = speculators("eagle3 --scheduler-total-steps 3000");
    has(&found, &["train.warmup_steps=30"]);
    let found = specforge("  warmup_ratio: 0.05\n");
    has(&found, &["train.warmup_ratio=0.05"]);
    lacks(&found, "train.warmup_steps");
}

#[test]
fn what_a_shell_reads_itself_is_no_value_of_the_last_flag() {
    let mut flags = [
        "--seed 7",
        "--run-name mine",
        "--vllm-endpoint http://a:1/v1",
        "--max-steps=5000",
    ];
    for (before, behind) in [
        ("", " > train.log 2>&1 &"),
        ("nohup ", " &>log&"),
        ("", " 2>&1 | tee log"),
        ("", "|tee log"),
        ("", " >> \"$OUT/a log\"; echo done"),
        ("", " \"$@\""),
        ("", " ${MORE:-} $*"),
        ("(cd x && ", ")"),
        ("{ ", "; } 2> >(tee log)"),
    ] {
        for _ in 0..flags.len() {
            flags.rotate_left(1);
            let flags = flags.join(" ");
            let script = format!(
                "{before}speculators train --verifier-name-or-path Qwen/Qwen3-8B {flags}{behind}\n"
            );
            let found = of("a.sh", &script);
            let set = [
                "seed=7",
                "target.server=[\"http://a:1\"]",
                "train.steps=5000",
            ];
            has(&found, &set);
            lacks(&found, "train.epochs");
            assert_eq!(found.name.as_deref(), Some("mine"), "{script}");
            assert_eq!(found.carried, [5, 5], "{script}: {:?}", found.notes);
        }
    }
}

#[test]
fn steps_that_are_given_go_before_epochs_of_a_file() {
    let workspace = Workspace::new();
    let script = "speculators train --verifier-name-or-path target --epochs 3 --lr 1e-4\n";
    workspace.write("a.sh", script);
    let line =
        "init --from a.sh --data train.jsonl --set train.steps=7 --yes --out own.toml --name own";
    workspace.run_line(line).succeeded();
    let recipe = workspace.text("own.toml");
    assert!(recipe.contains("\nsteps = 7\n"), "{recipe}");
    assert!(!recipe.contains("\nepochs = "), "{recipe}");
    assert!(recipe.contains("\nlearning_rate = 0.0001\n"), "{recipe}");
}

#[test]
fn settings_may_be_kept_in_variables_of_a_script() {
    let train = "speculators train --verifier-name-or-path Qwen/Qwen3-8B";
    for script in [
        format!("OPTS=\"--lr 1e-4 --epochs 7\"\n{train} $OPTS --run-name \"a b\"\n"),
        format!(
            "OPTS=\"--lr 1e-4\"\nOPTS+=\" --epochs 7\"\nNAME=\"a b\"\n{train} ${{OPTS}} --run-name \"$NAME\"\n"
        ),
        format!(
            "ARGS=(\n  --lr 1e-4\n  --run-name \"a b\" # why\n)\nARGS+=(--epochs 7)\n{train} \"${{ARGS[@]}}\"\n"
        ),
        format!("CMD=({train} --lr 1e-4)\n\"${{CMD[@]}}\" --epochs 7 --run-name 'a b'\n"),
    ] {
        let found = of("a.sh", &script);
        has(&found, &["train.learning_rate=0.0001", "train.epochs=7"]);
        assert_eq!(found.name.as_deref(), Some("a b"), "{script}");
        assert_eq!(found.carried, [4, 4], "{script}: {:?}", found.notes);
    }
    // What a script gets from elsewhere may be settings, too.
    let found = of(
        "a.sh",
        &format!("{train} $MORE\n").replace(" --", " $FLAGS --"),
    );
    tells(&found, &["`$FLAGS`", "does not set the variable $FLAGS"]);
    let folder = tempfile::tempdir().unwrap();
    let file = "model:\n  target_model_path: a/b\ndata:\n  train_data_path: a.jsonl\ntraining:\n  max_steps: 9\n";
    std::fs::write(folder.path().join("a.yaml"), file).unwrap();
    let script = folder.path().join("a.sh");
    let found = translate("specforge train --config a.yaml $MORE\n", &script).unwrap();
    tells(&found, &["`$MORE`", "does not set the variable $MORE"]);
    has(&found, &["train.steps=9"]);
    let text = "specforge train --config a.yaml training.max_steps=null\n";
    let found = translate(text, &script).unwrap();
    lacks(&found, "train.steps");
    has(&found, &["train.epochs=1"]);
    assert_eq!(found.carried, [2, 2], "{:?}", found.notes);
}

/// Settings with values that cannot be read, each with what was expected.
type Unread = Vec<(Translated, &'static str, &'static str)>;

fn unread_of_speculators() -> Unread {
    let eagle3 = |flags: &str| speculators(&format!("eagle3 {flags}"));
    vec![
        (
            eagle3("--max-steps soon"),
            "max_steps = soon",
            "a number of steps",
        ),
        (
            eagle3("--max-steps 5 6"),
            "max_steps = [5,6]",
            "a number of steps",
        ),
        (eagle3("--run-name a/b"), "run_name = a/b", "a name without"),
        (
            eagle3("--vllm-endpoint a:1 b:1"),
            "vllm_endpoint = [",
            "the address",
        ),
        (
            eagle3("--train-data-ratio most"),
            "train_data_ratio = most",
            "a number",
        ),
        (
            eagle3("--draft-arch mistral"),
            "draft_arch = mistral",
            "`llama` or `qwen3`",
        ),
        (
            speculators("dflash --per-position-loss-weight other"),
            "per_position_loss_weight = other",
            "`fixed-exp-decay` or `dpace`",
        ),
        (
            speculators("dflash --sliding-window-non-causal maybe"),
            "sliding_window_non_causal = maybe",
            "true or false",
        ),
    ]
}

fn unread_of_others() -> Unread {
    let modelopt = |rest: &str| {
        let text = format!(
            "metadata:\n  recipe_type: speculative_dflash\nmodel:\n  model_name_or_path: Qwen/Qwen3-8B\ndata:\n  data_path: a.jsonl\n{rest}"
        );
        of("a.yaml", &text)
    };
    vec![
        (
            specforge("  batch_size: many\n"),
            "training.batch_size = many",
            "a number",
        ),
        (
            specforge("  accumulation_steps: 1.5\n"),
            "training.accumulation_steps = 1.5",
            "a whole number",
        ),
        (
            specforge("  lk_loss_type: other\n"),
            "training.lk_loss_type = other",
            "`lambda`, `alpha` or `tv`",
        ),
        (
            specforge("  save_interval: often\n"),
            "training.save_interval = often",
            "a number",
        ),
        (
            nemo("TrainEagle3Recipe", "  lk_loss_type: tv\n"),
            "recipe_args.lk_loss_type = tv",
            "`lambda` or `alpha`",
        ),
        (
            nemo("TrainDSparkRecipe", "  loss_decay_gamma: x\n"),
            "recipe_args.loss_decay_gamma = x",
            "a number",
        ),
        (
            torchspec("", "  ploss_weights: 1\n"),
            "training.ploss_weights = 1",
            "a list of numbers",
        ),
        (
            modelopt("training:\n  bf16: 5\n"),
            "training.bf16 = 5",
            "true or false",
        ),
        (
            modelopt("dflash:\n  dflash_draft_attention: other\n"),
            "dflash.dflash_draft_attention = other",
            "`causal` or `bidirectional`",
        ),
    ]
}

#[test]
fn a_value_that_cannot_be_read_is_told() {
    let eagle3 = |flags: &str| speculators(&format!("eagle3 {flags}"));
    let all = unread_of_speculators()
        .into_iter()
        .chain(unread_of_others());
    for (found, setting, expected) in all {
        tells(&found, &[setting, &format!("expected {expected}")]);
        let [carried, given] = found.carried;
        assert!(carried < given, "{setting}: {:?}", found.carried);
    }
    // As Python and its YAML read numbers, and as Transformers says that there are none.
    has(&eagle3("--max-steps 10_000"), &["train.steps=10000"]);
    has(&specforge("  max_steps: 5e3\n"), &["train.steps=5000"]);
    let found = eagle3("--max-steps -1 --run-name 2024");
    has(&found, &["train.epochs=20"]);
    assert_eq!(found.name.as_deref(), Some("2024"));
    assert_eq!(found.carried, [4, 4], "{:?}", found.notes);
}

#[test]
fn what_is_said_of_a_target_that_is_not_here_is_what_its_file_says() {
    let modelopt = |layer: &str| {
        let text = format!(
            "metadata:\n  recipe_type: speculative_eagle\nmodel:\n  model_name_or_path: meta-llama/Llama-3.1-8B-Instruct\n\
             data:\n  data_path: a.jsonl\n{layer}"
        );
        of("a.yaml", &text)
    };
    let silent = |found: &Translated, part: &str| {
        let told = found.notes.iter().find(|note| note.contains(part));
        assert_eq!(told, None);
    };
    let found = modelopt(
        "eagle:\n  eagle_architecture_config:\n    rope_theta: 500000\n    rms_norm_eps: 1e-5\n",
    );
    silent(&found, "rope_theta");
    silent(&found, "rms_norm_eps");
    // ModelOpt's own default is another base.
    tells(&modelopt(""), &["rope_theta = 10000`", "500000"]);
    let folder = tempfile::tempdir().unwrap();
    let text = "model:\n  target_model_path: meta-llama/Llama-3.1-8B-Instruct\n  draft_model_config: draft.json\n\
                data:\n  train_data_path: a.jsonl\n";
    for (factor, is_same) in [(8.0, true), (32.0, false)] {
        let file = serde_json::json!({"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "rope_scaling": {
            "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}});
        std::fs::write(folder.path().join("draft.json"), file.to_string()).unwrap();
        let found = translate(text, &folder.path().join("a.yaml")).unwrap();
        silent(&found, "rms_norm_eps");
        if is_same {
            silent(&found, "draft.rope");
        } else {
            tells(&found, &["`draft.rope_scaling.factor = 32.0`", "rotary"]);
        }
    }
}

#[test]
fn a_script_finds_its_own_folder() {
    let workspace = Workspace::new();
    let text = workspace.text("train.jsonl");
    for folder in ["examples", "cache", "configs"] {
        std::fs::create_dir_all(workspace.path("SF").join(folder)).unwrap();
    }
    workspace.write("SF/cache/train.jsonl", &text);
    workspace.write("SF/configs/draft.json", r#"{"intermediate_size": 96}"#);
    let warm_up = "\nwarmup_ratio = 0.1\n";
    for (number, own) in [
        "SCRIPT_DIR=$( cd -- \"$( dirname -- \"${BASH_SOURCE[0]}\" )\" &> /dev/null && pwd )\nROOT_DIR=$(dirname $SCRIPT_DIR)",
        "SCRIPT_DIR=`dirname $0`\nROOT_DIR=\"$(dirname \"$SCRIPT_DIR\")\"",
        "ROOT_DIR=$(cd \"$(dirname \"$0\")/..\"; pwd)",
    ]
    .into_iter()
    .enumerate()
    {
        let script = format!(
            "#!/bin/bash\n{own}\nNUM_GPUS=${{1:-4}}\nDATA=${{DATA:-$ROOT_DIR/cache/train.jsonl}}\ntorchrun --nproc_per_node $NUM_GPUS \\\n  \
             $ROOT_DIR/scripts/train_eagle3.py --target-model-path target --train-data-path $DATA \\\n  \
             --draft-model-config $ROOT_DIR/configs/draft.json --max-length 32 --num-epochs 20 --warmup-ratio 0.1 \\\n  \
             --target-model-backend sglang --report-to wandb --wandb-project mine --wandb-key secret\n"
        );
        workspace.write("SF/examples/run.sh", script);
        let line = format!("init --from SF/examples/run.sh --yes --out {number}.toml --name a{number}");
        let found = workspace.run_line(line).succeeded();
        let recipe = workspace.text(&format!("{number}.toml"));
        assert!(recipe.contains("SF/cache/train.jsonl\"\n"), "{recipe}");
        for line in ["\nd_ff = 96\n", "\ngradient_accumulation = 4\n", warm_up] {
            assert!(recipe.contains(line), "no {line}: {recipe}");
        }
        let said = found.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "--devices cuda:0-3 --plan",
            "with a table `[track]`",
            "`model.target_backend = sglang`: spectrain computes the target's hidden states itself",
        ] {
            assert!(said.contains(part), "no {part}: {said}");
        }
        for text in [&said, &recipe] {
            assert!(!text.contains("secret") && !text.contains("that is known"), "{text}");
        }
    }
    // A device that is given is the one that is used.
    let line = "init --from SF/examples/run.sh --yes --out own.toml --device cpu";
    let found = workspace.run_line(line).succeeded();
    assert!(found.stderr.contains("own.toml --device cpu"), "{found:?}");
}

#[test]
fn what_a_script_does_not_say_is_named_where_it_is_missing() {
    let workspace = Workspace::new();
    let script = |data: &str| {
        format!(
            "python train_eagle3.py --target-model-path target --train-data-path {data}/a.jsonl --draft-model-config $SIZES\n"
        )
    };
    workspace.write("a.sh", script("data/$(git rev-parse HEAD)"));
    workspace.run_line("init --from a.sh --yes").misused(&[
        "`--data` is missing",
        "`a.sh`: `data.train_data_path = data/$(git rev-parse HEAD)/a.jsonl`: what the command $(git rev-parse HEAD) prints",
    ]);
    workspace.write("a.sh", script("$DATA"));
    workspace
        .run_line("init --from a.sh --yes")
        .misused(&["the script does not set the variable $DATA"]);
    let script = script("$DATA").replace("$SIZES", "$SIZES --unheard-of 1");
    let found = translate(&script, Path::new("a.sh")).unwrap();
    assert_eq!(found.train, None);
    let first: Vec<bool> = found
        .notes
        .iter()
        .map(|note| note.contains("does not set"))
        .collect();
    // The sizes and the data, before all else.
    assert_eq!(
        first.iter().position(|lacks| !lacks),
        Some(2),
        "{:?}",
        found.notes
    );
}
