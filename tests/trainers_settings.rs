//! Settings of other trainers over all of them: that every published one is known, and what is the same in several.
use std::collections::BTreeSet;

use serde_json::Value;
use spectrain::cli::commands::schema;
use spectrain::families::registry::find;
use spectrain::trainers::{Becomes, FILE_KEYS, Row, TRAINERS, Translated, translate};

use crate::translated::{has, lacks, nemo, of, specforge, speculators, tells, torchspec};

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

    /// Whether such a recipe has this key, which has its tables before it.
    fn has(&self, path: &str) -> bool {
        let shared = &self.0["properties"];
        let Some((table, key)) = path.split_once('.') else {
            return !shared[path].is_null();
        };
        let own = &self.0["allOf"][0]["then"]["properties"][table];
        let mut at = if own.is_null() { &shared[table] } else { own };
        for key in key.split('.') {
            let Some(table) = self.table(at) else {
                return false;
            };
            at = &table["properties"][key];
        }
        !at.is_null()
    }

    /// The table that a key holds, where it holds one.
    fn table(&self, key: &Value) -> Option<&Value> {
        let names = [&key["$ref"], &key["allOf"][0]["$ref"]];
        let name = names.into_iter().find_map(Value::as_str)?;
        self.0.pointer(name.trim_start_matches('#'))
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
                training:\n  strategy: dflash\n  dflash2_selector_loss_alpha: 0.5\n  lk_loss_type: lambda\n";
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
            "objective.inject=false",
        ],
    );
    tells(&found, &["`draft.hidden_size = 2048`", "as wide"]);
    tells(&found, &["`draft.attention_bias = true`", "no bias"]);
    tells(
        &found,
        &["`draft.residual_scale = 2.0`", "no key of a drafter's file"],
    );
    tells(&found, &["input_embedding_scale = 3.0`", "as they are"]);
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
    lacks(&found, "objective.inject");
    lacks(&specforge("  strategy: dflash\n"), "objective.inject");
}

#[test]
fn heads_of_another_width_than_the_targets_are_carried_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| std::fs::write(folder.path().join("draft.json"), text).unwrap();
    let text = "model:\n  target_model_path: Qwen/Qwen3-8B\n  draft_model_config: draft.json\ndata:\n  train_data_path: a.jsonl\n\
                training:\n  strategy: eagle3\n";
    let of_specforge = || translate(text, &folder.path().join("a.yaml")).unwrap();
    let of_modelopt = |table: &str| {
        let text = format!(
            "metadata:\n  recipe_type: speculative_dflash\nmodel:\n  model_name_or_path: Qwen/Qwen3-8B\ndata:\n  data_path: a.jsonl\n\
             training:\n  training_seq_len: 64\n{table}"
        );
        of("a.yaml", &text)
    };
    file(r#"{"head_dim": 64}"#);
    let architecture = "dflash:\n  dflash_architecture_config:\n    head_dim: 64\n";
    for found in [
        of_specforge(),
        of_modelopt(architecture),
        nemo("TrainDFlashRecipe", "  draft_head_dim: 64\n"),
    ] {
        has(&found, &["drafter.d_head=64"]);
        let told = found.notes.iter().any(|note| note.contains("head_dim"));
        assert!(!told, "{:?}", found.notes);
    }
    // The target's need not be said.
    file(r#"{"head_dim": 128}"#);
    let usual = "dflash:\n  dflash_block_size: 16\n";
    for found in [of_specforge(), of_modelopt(usual)] {
        lacks(&found, "drafter.d_head");
    }
}

#[test]
fn a_drafters_file_without_a_width_of_heads_means_what_its_trainer_makes_of_it() {
    const QWEN: &str = "Qwen/Qwen3-8B";
    /// Its heads are 64 wide.
    const LLAMA: &str = "meta-llama/Llama-3.2-1B-Instruct";
    let folder = tempfile::tempdir().unwrap();
    let read = |file: &str, text: &str| translate(text, &folder.path().join(file)).unwrap();
    let sizes = |text: &str| std::fs::write(folder.path().join("draft.json"), text).unwrap();
    let specforge = |target: &str, kind: &str| {
        let text = format!(
            "model:\n  target_model_path: {target}\n  draft_model_config: draft.json\ndata:\n  train_data_path: a.jsonl\n\
             training:\n  strategy: {kind}\n"
        );
        read("a.yaml", &text)
    };
    let torchspec = |target: &str| {
        let text = format!(
            "model:\n  target_model_path: {target}\n  draft_model_config: draft.json\ndataset:\n  train_data_path: a.jsonl\n\
             training:\n  learning_rate: 1e-4\n"
        );
        read("b.yaml", &text)
    };
    let speculators = |target: &str| {
        let text = format!(
            "speculators train --verifier-name-or-path {target} --speculator-type dflash --draft-config draft.json\n"
        );
        read("c.sh", &text)
    };
    // Llama's layers share their width out among the heads, whatever the target does.
    sizes(
        r#"{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 64}"#,
    );
    for found in [
        specforge(QWEN, "eagle3"),
        specforge(QWEN, "peagle"),
        torchspec(QWEN),
        speculators(QWEN),
    ] {
        has(&found, &["drafter.heads=64", "drafter.d_head=64"]);
    }
    // Qwen3's are 128 wide: where the trainer makes them, or where the file says so.
    lacks(&specforge(QWEN, "dflash"), "drafter.d_head");
    has(&specforge(LLAMA, "dflash"), &["drafter.d_head=128"]);
    sizes(r#"{"model_type": "qwen3", "hidden_size": 2048, "num_attention_heads": 32}"#);
    has(&speculators(LLAMA), &["drafter.d_head=128"]);
    lacks(&specforge(LLAMA, "eagle3"), "drafter.d_head");
    // Of a file that says too little, or is not here, nothing is known.
    sizes(r#"{"num_attention_heads": 64}"#);
    lacks(&specforge(QWEN, "eagle3"), "drafter.d_head");
    std::fs::remove_file(folder.path().join("draft.json")).unwrap();
    for kind in ["eagle3", "dflash"] {
        lacks(&specforge(LLAMA, kind), "drafter.d_head");
    }
}

#[test]
fn d_pace_is_told_where_the_target_judges_and_the_trainer_goes_by_tokens() {
    let modelopt = |distillation: bool| {
        let text = format!(
            "metadata:\n  recipe_type: speculative_dflash\nmodel:\n  model_name_or_path: Qwen/Qwen3-8B\ndata:\n  data_path: a.jsonl\n\
             dflash:\n  dflash_self_logit_distillation: {distillation}\n"
        );
        of("a.yaml", &text)
    };
    let by_weight = |weight: f64| {
        let training =
            format!("  dflash_loss_objective: dpace\n  dflash_l1_loss_alpha: {weight}\n");
        torchspec("  draft_model_config: dflash.json\n", &training)
    };
    let paced = "objective.slot_weights=\"d_pace\"";
    for (found, is_told) in [
        (speculators("dflash"), true),
        (modelopt(true), true),
        (modelopt(false), false),
        (by_weight(0.5), true),
        (by_weight(0.0), false),
        (specforge("  strategy: dflash\n  loss_type: dpace\n"), false),
        (nemo("TrainDFlashRecipe", "  loss_type: dpace\n"), false),
    ] {
        has(&found, &[paced]);
        let mut notes = found.notes.iter();
        let told = notes.any(|note| note.contains("D-PACE") && note.contains("Σ min(p, q)"));
        assert_eq!(told, is_told, "{}: {:?}", found.trainer, found.notes);
    }
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
fn a_warm_up_is_a_share_of_the_steps_that_the_schedule_is_made_for() {
    let found = specforge("  warmup_ratio: 0.05\n  total_steps: 2000\n  max_steps: 500\n");
    has(&found, &["train.warmup_steps=100", "train.steps=500"]);
    let found = speculators("eagle3 --scheduler-total-steps 3000");
    has(&found, &["train.warmup_steps=30"]);
    let found = specforge("  warmup_ratio: 0.05\n");
    has(&found, &["train.warmup_ratio=0.05"]);
    lacks(&found, "train.warmup_steps");
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
