//! TorchSpec (<https://github.com/lightseekorg/TorchSpec>): the file of `python -m torchspec.train_entry --config`, and overrides of it.

use serde_json::{Map, Value, json};

use super::rows::Becomes::{Key, Made as By, Nothing, Read};
use super::rows::{Asked, Made, Program, Row, Trainer, row};
use super::shared::{
    self, NOT_SHARED, accumulate, by_total_variation, hub_or_path, layer_types, one_layer,
    positive, rows_of, sizes_file, sources, steps_of, warm_up,
};

const ALL: &[&str] = &[];
const EAGLE3: &[&str] = &["eagle3"];
const DFLASH2: &[&str] = &["dflash2"];
const DSPARK: &[&str] = &["dspark"];
const DOMINO: &[&str] = &["domino"];
const LABELLED: &[&str] = &["dflash", "dflash2", "domino"];
const BLOCKS: &[&str] = &["dflash", "dflash2", "dspark", "domino"];
const BY_WEIGHT: &[&str] = &["dflash", "dflash2"];
const WITHOUT_SELECTOR: &[&str] = &["dflash", "domino"];

/// `python -m torchspec.train_entry`.
pub(super) const TORCHSPEC: Trainer = Trainer {
    name: "TorchSpec",
    version: "of 2026",
    kinds: &[
        ("eagle3", "eagle3"),
        ("dflash", "dflash"),
        ("dflash2", "dflash"),
        ("dspark", "dflash"),
        ("domino", "dflash"),
    ],
    rows: ROWS,
    always: &[
        (ALL, "train.beta2", "0.999"),
        (ALL, "data.overlong", "\"truncate\""),
        (DSPARK, "drafter.sample_from_anchor", "true"),
        (DOMINO, "drafter.markov", "\"domino\""),
        (DOMINO, "drafter.markov_from", "0"),
        (DOMINO, "objective.base_weight", "1.0"),
    ],
    kind,
    is_of,
    named: |name| name,
    programs: &[
        Program::named(&["torchspec.train_entry"]),
        Program::named(&["train_entry.py"]),
    ],
    before: &[],
    repeated: &[],
    further: Some(("model.draft_model_config", "draft.")),
};

/// Whether a file has the sections that no other trainer's has.
pub(super) fn is_of(flat: &Map<String, Value>) -> bool {
    let sections = ["dataset.", "inference.", "mooncake."];
    let mut keys = flat.keys();
    flat.contains_key("model.target_model_path")
        && keys.any(|key| sections.iter().any(|section| key.starts_with(section)))
}

/// The kind by the classes that a drafter's file names, or, where that file is not here, by its name.
fn kind(settings: &Map<String, Value>) -> String {
    let class = settings
        .get("draft.architectures")
        .and_then(Value::as_array);
    let class = class.and_then(|classes| classes.first()?.as_str());
    let file = settings
        .get("model.draft_model_config")
        .and_then(Value::as_str);
    let Some(named) = class.or(file) else {
        return "eagle3".to_owned();
    };
    let named = named.to_lowercase();
    let known = ["domino", "dspark", "dflash2", "dflash", "eagle3"];
    let found = known.iter().find(|kind| named.contains(**kind));
    let is_latent = named.contains("deepseek") || named.contains("mla");
    match found {
        // Of the layers with latent attention those of EAGLE-3 alone are its.
        Some(kind) if !is_latent || *kind == "eagle3" => (*kind).to_owned(),
        _ => named,
    }
}

const ENGINES: &str = "spectrain computes the target's hidden states itself, or takes them from a server of vLLM that you start (`target.server`)";
const LOADING: &str = "spectrain's own reading of data needs no such setting";
const RAY: &str = "`spectrain recipe --devices` says which devices train";
const BY_LABELS: &str = "Domino learns from the text's tokens whatever this says";
const OWN: &str = "spectrain's own training needs no such setting";

// One setting a line, as a table.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    // The target and the drafter.
    row(ALL, "model.target_model_path", "", Key("target.model")),
    row(ALL, "model.initial_draft_model_path", "", Key("start")),
    row(ALL, "model.draft_model_config", "", By("`recipe`, by its `architectures`, and its sizes, as below", |asked| sizes_file(asked, "draft.", "`draft_vocab`, `d_ff`, `heads`, `kv_heads`, `d_head`, `layers`"))),
    row(EAGLE3, "draft.draft_vocab_size", "", Key("drafter.draft_vocab")),
    row(ALL, "draft.intermediate_size", "", Key("drafter.d_ff")),
    row(ALL, "draft.num_attention_heads", "", Key("drafter.heads")),
    row(ALL, "draft.num_key_value_heads", "", Key("drafter.kv_heads")),
    row(ALL, "draft.head_dim", "", By(shared::WIDTH_IN_FILE, head_dim)),
    row(EAGLE3, "draft.kv_lora_rank", "", By("`drafter.latent`, with the four below, and its `scale` by `factor` and `mscale_all_dim` of `draft.rope_scaling`", latent)),
    row(EAGLE3, "draft.q_lora_rank", "1536", Read("see `draft.kv_lora_rank`")),
    row(EAGLE3, "draft.qk_nope_head_dim", "128", Read("see `draft.kv_lora_rank`")),
    row(EAGLE3, "draft.qk_rope_head_dim", "64", Read("see `draft.kv_lora_rank`")),
    row(EAGLE3, "draft.v_head_dim", "128", Read("see `draft.kv_lora_rank`")),
    row(EAGLE3, "draft.fc_norm", "false", Key("drafter.fc_norm")),
    row(EAGLE3, "draft.norm_output", "false", Key("drafter.norm_output")),
    row(EAGLE3, "draft.num_hidden_layers", "1", By("only 1 is possible", |asked| one_layer(&asked.value))),
    row(BLOCKS, "draft.num_hidden_layers", "5", Key("drafter.layers")),
    row(DSPARK, "draft.block_size", "7", Key("drafter.block_size")),
    row(LABELLED, "draft.block_size", "", Read("see `training.dflash_block_size`")),
    row(BLOCKS, "draft.layer_types", "", By("`drafter.window`, that of `draft.sliding_window`, with `drafter.causal`; layers without one are `drafter.full_layers`, with `drafter.full_layers_see_block`", layer_types)),
    row(BLOCKS, "draft.sliding_window", "", Read("see `draft.layer_types`")),
    row(BLOCKS, "draft.use_sliding_window", "", Read("see `draft.layer_types`")),
    row(BLOCKS, "draft.mask_token_id", "", Key("drafter.mask_token")),
    row(BLOCKS, "draft.target_layer_ids", "", Key("drafter.captured_layers")),
    row(BLOCKS, "draft.dflash_config.mask_token_id", "", Key("drafter.mask_token")),
    row(BLOCKS, "draft.dflash_config.target_layer_ids", "", Key("drafter.captured_layers")),
    row(DFLASH2, "draft.dflash_config.conv_kernel_size", "2", Key("drafter.conv_taps")),
    row(DFLASH2, "draft.dflash_config.conv_group_size", "16", Key("drafter.conv_group")),
    row(DFLASH2, "draft.dflash_config.selector_rank", "256", Key("drafter.selector_rank")),
    row(DFLASH2, "draft.dflash_config.selector_top_k", "16", Key("drafter.selector_top_k")),
    row(DSPARK, "draft.markov_rank", "256", Key("drafter.markov_rank")),
    row(DSPARK, "draft.markov_head_type", "\"vanilla\"", Key("drafter.markov")),
    row(DOMINO, "draft.gru_hidden_size", "1024", By("`drafter.markov_state`; of the recurrent unit, TorchSpec's has biases and this one has none", recurrent)),
    row(DOMINO, "draft.correction_rank", "256", Key("drafter.markov_rank")),
    row(DSPARK, "draft.enable_confidence_head", "true", Key("drafter.confidence")),
    row(DSPARK, "draft.confidence_head_with_markov", "true", By("only true is possible where there is a `markov_rank`", |asked| shared::only_true(asked, "the confidence head reads the code of the token before wherever there is a `markov_rank`"))),
    row(DSPARK, "draft.num_anchors", "", Read("see `training.dspark_num_anchors`")),
    row(EAGLE3, "draft.eagle_config.eagle_aux_hidden_state_layer_ids", "", Key("drafter.captured_layers")),
    row(EAGLE3, "draft.eagle_config.use_aux_hidden_state", "true", By("only true is possible", |asked| shared::only_true(asked, "the drafter reads three layers of the target"))),
    row(ALL, "inference.aux_hidden_states_layers", "", Key("drafter.captured_layers")),
    row(ALL, "model.keep_initial_vocab_mapping", "false", Nothing("`start` keeps the draft vocabulary of a drafter")),
    row(EAGLE3, "model.freeze_lm_head", "false", By("only false is possible", |asked| shared::only_false(asked, "`drafter.head = \"shared\"` is the target's head, frozen; the others are trained"))),
    row(ALL, "model.embedding_key", "", Nothing("spectrain finds the embedding by the target's architecture")),
    row(ALL, "model.lm_head_key", "", Nothing("spectrain finds the head by the target's architecture")),
    row(ALL, "model.norm_key", "", Nothing("spectrain finds the norm by the target's architecture")),
    row(ALL, "model.target_model_backend", "", Nothing(ENGINES)),
    row(ALL, "model.trust_remote_code", "false", Nothing("spectrain runs no code of a model's folder")),
    row(ALL, "model_download_dir", "", Nothing("`HF_HOME` is the folder of what is downloaded")),
    // Data.
    row(ALL, "dataset.train_data_path", "", By("`data.train`; what is no path and looks like `org/name` is a dataset of the hub", train)),
    row(ALL, "dataset.eval_data_path", "", By("`data.eval`", eval)),
    row(ALL, "dataset.eval_interval", "", Key("train.validate_every")),
    row(ALL, "dataset.min_loss_tokens", "0", By("`data.min_trained_tokens`, where it is above 0", |asked| positive(asked, "data.min_trained_tokens"))),
    row(ALL, "dataset.last_turn_loss_only", "\"auto\"", By("`data.mask = \"last_turn\"` where it is true; with `auto` it depends on the conversation", last_turn)),
    row(ALL, "dataset.chat_template", "", Nothing("the target's own template is read; `data.template` takes the file of another")),
    row(ALL, "dataset.renderer", "", Nothing("the target's own template is read; `data.template` takes the file of another")),
    row(ALL, "dataset.prompt_key", "", Nothing("conversations are read from `conversations` or `messages`")),
    row(ALL, "dataset.*", "", Nothing(LOADING)),
    row(ALL, "training.max_seq_length", "8192", By("`data.max_length` and `train.batch_tokens`", |asked| rows_of(asked, asked.count("training.micro_batch_size").unwrap_or(1)))),
    // Objectives.
    row(EAGLE3, "training.ttt_length", "7", Key("objective.draft_steps")),
    row(EAGLE3, "training.ploss_weights", "", By("`objective.decay`, where each weight is the same share of the one before; 1 where they grow", decay)),
    row(EAGLE3, "training.loss_type", "\"forward_kl\"", By("`objective.divergence`: `forward_kl` is `kl`, `lk_alpha` is `nla`, `lk_lambda` is `lk_hybrid`", loss)),
    row(EAGLE3, "training.lk_eta", "3.0", Read("see `training.loss_type`: `{ lk_hybrid = … }` has this decay; without a number it is the paper's, 3")),
    row(LABELLED, "training.dflash_block_size", "16", Key("drafter.block_size")),
    row(LABELLED, "training.dflash_num_anchors", "512", Key("objective.anchors")),
    row(LABELLED, "training.dflash_loss_objective", "\"decay\"", By("`objective.slot_weights`: `decay` is `exponential`, or `uniform` where its gamma is 0; `dpace` is `d_pace`, `auf` is `auf`", slot_weights)),
    row(LABELLED, "training.dflash_loss_decay_gamma", "7.0", By("`objective.decay_slots`", |asked| positive(asked, "objective.decay_slots"))),
    row(LABELLED, "training.dflash_dpace_alpha", "0.5", Key("objective.certainty")),
    row(BY_WEIGHT, "training.dflash_ce_loss_alpha", "1.0", Key("objective.label_weight")),
    row(BY_WEIGHT, "training.dflash_l1_loss_alpha", "0.0", By(shared::BY_L1, l1)),
    row(DOMINO, "training.dflash_ce_loss_alpha", "", Nothing(BY_LABELS)),
    row(DOMINO, "training.dflash_l1_loss_alpha", "", Nothing(BY_LABELS)),
    row(DFLASH2, "training.dflash2_selector_loss_alpha", "1.0", Key("objective.selector_weight")),
    row(DOMINO, "training.domino_curriculum_steps", "", By("`objective.base_until`, this by `training.num_train_steps`; the whole training where one is not given", curriculum)),
    row(DSPARK, "training.dspark_num_anchors", "512", Key("objective.anchors")),
    row(DSPARK, "training.dspark_loss_decay_gamma", "4.0", By(shared::FALLING, shared::falling_weights)),
    row(DSPARK, "training.dspark_ce_loss_alpha", "0.1", Key("objective.label_weight")),
    row(DSPARK, "training.dspark_l1_loss_alpha", "0.9", By(shared::BY_L1, by_total_variation)),
    row(DSPARK, "training.dspark_confidence_head_alpha", "1.0", Key("objective.confidence_weight")),
    row(BLOCKS, "training.ttt_length", "", Nothing("only EAGLE-3 reads it")),
    row(EAGLE3, "training.dflash_*", "", Nothing("only DFlash reads it")),
    row(EAGLE3, "training.dflash2_*", "", Nothing("only DFlash 2 reads it")),
    row(EAGLE3, "training.dspark_*", "", Nothing("only DSpark reads it")),
    row(WITHOUT_SELECTOR, "training.dflash2_*", "", Nothing("only DFlash 2 reads it")),
    row(LABELLED, "training.dspark_*", "", Nothing("only DSpark reads it")),
    row(LABELLED, "training.dflash_num_target_layers", "5", By("`drafter.captured_layers` says it; only 5 where these are not given", five_layers)),
    row(DSPARK, "training.dspark_num_target_layers", "5", By("`drafter.captured_layers` says it; only 5 where these are not given", five_layers)),
    // Optimiser and schedule.
    row(ALL, "training.learning_rate", "0.0001", Key("train.learning_rate")),
    row(ALL, "training.min_lr", "0.0", By("`train.min_lr_ratio`, this by `training.learning_rate`", min_rate)),
    row(ALL, DECAY_STYLE, "\"cosine\"", By("`train.schedule`; `WSD` is `wsd`", schedule)),
    row(EAGLE3, "training.lr_wsd_decay_ratio", "0.2", By(DECAY_RATIO, decay_ratio)),
    row(EAGLE3, "training.lr_wsd_decay_style", "\"cosine\"", By(DECAY_SHAPE, decay_shape)),
    row(BLOCKS, "training.wsd_decay_ratio", "0.2", By(DECAY_RATIO, decay_ratio)),
    row(BLOCKS, "training.wsd_decay_style", "\"cosine\"", By(DECAY_SHAPE, decay_shape)),
    row(ALL, "training.lr_total_steps", "", Nothing("the schedule ends with the training")),
    row(ALL, "training.weight_decay", "0.0", Key("train.weight_decay")),
    row(ALL, "training.max_grad_norm", "0.5", Key("train.max_grad_norm")),
    row(ALL, "training.num_epochs", "10", Key("train.epochs")),
    row(ALL, "training.num_train_steps", "", By("`train.steps`, in place of `num_epochs`", steps_of)),
    row(ALL, "training.warmup_ratio", "0.015", By("`train.warmup_ratio`, where the schedule is made for a number of steps `train.warmup_steps`", |asked| warm_up(asked.value.as_f64().unwrap_or_default(), asked.count("training.num_train_steps")))),
    row(ALL, "training.micro_batch_size", "2", Read("rows in a batch: see `training.max_seq_length`")),
    row(ALL, "training.draft_accumulation_steps", "1", By("`train.gradient_accumulation`: the batches of one step, of all devices", batches)),
    row(ALL, "training.training_num_gpus_per_node", "1", Read("see `training.draft_accumulation_steps`")),
    row(ALL, "training.training_num_nodes", "1", Read("see `training.draft_accumulation_steps`")),
    row(ALL, "training.sp_ulysses_size", "1", Nothing(NOT_SHARED)),
    row(ALL, "training.sp_ring_size", "1", Nothing(NOT_SHARED)),
    row(ALL, "training.fsdp_*", "", Nothing(NOT_SHARED)),
    row(ALL, "training.gradient_checkpointing", "false", Key("train.gradient_checkpointing")),
    row(ALL, "training.compile_model", "false", Nothing("spectrain compiles its kernels without being asked")),
    row(ALL, "training.train_with_decode", "false", Nothing("drafts are not trained on while the target decodes; `[regenerate]` has it answer the prompts before the training")),
    row(ALL, "training.load_path", "", Nothing("`start` takes the folder of an exported drafter")),
    row(ALL, "training.continual_training", "false", Nothing("`start` takes the weights of a drafter without the state of its training")),
    row(ALL, "training.seed", "0", Key("seed")),
    row(ALL, "training.training_node_*", "", Nothing(RAY)),
    row(ALL, "training.placement_strategy", "", Nothing(RAY)),
    row(ALL, "training.colocate", "false", Nothing(RAY)),
    // What is kept and shown.
    row(ALL, "training.save_interval", "5000", Key("train.save_every")),
    row(ALL, "training.save_per_epoch", "false", Nothing("states are saved every `train.save_every` steps")),
    row(ALL, "training.max_checkpoints", "0", By("`train.keep`, where it is not 0", |asked| positive(asked, "train.keep"))),
    row(ALL, "output_dir", "", Nothing("a run's files are in `runs/NAME`")),
    row(ALL, "cache_dir", "", Nothing(LOADING)),
    row(ALL, "cache_key", "", Nothing(LOADING)),
    row(ALL, "logging.*", "", Nothing(shared::TRACKED)),
    row(ALL, "debug.*", "", Nothing("`spectrain bench` and the log say where time goes")),
    row(ALL, "decode.*", "", Nothing("`[evaluate]` and `[regenerate]` say how the target decodes")),
    row(ALL, "inference.*", "", Nothing(ENGINES)),
    row(ALL, "mooncake.*", "", Nothing("hidden states pass through no store: they come through files (`target.server_folder`), or from another machine through `spectrain relay`")),
    row(ALL, "training.attention_backend", "", Nothing("there is one attention for each device")),
    row(ALL, "training.distributed_*", "", Nothing("a process that dies ends the others at once")),
    row(ALL, "training.max_concurrent_batches", "", Nothing(OWN)),
    row(ALL, "training.prefetch_depth", "", Nothing(OWN)),
    row(ALL, "training.train_backend", "", Nothing(OWN)),
    row(ALL, "training.train_env_vars", "", Nothing(OWN)),
];

/// The width of a head in a file of a drafter with grouped heads.
fn head_dim(asked: &Asked) -> Made {
    match asked.of("draft.kv_lora_rank") {
        Value::Null => shared::head_width_in_file(asked, "draft.", Some("llama")),
        _ => Made::nothing(),
    }
}

/// Latent attention, where a file has it. With YaRN scores are scaled by the square of what TorchSpec calls `mscale`.
fn latent(asked: &Asked) -> Made {
    if asked.value.is_null() {
        return Made::nothing();
    }
    let settings = &asked.given.settings;
    let number = |key: &str| {
        // Transformers 5 has them elsewhere.
        let tables = ["draft.rope_scaling", "draft.rope_parameters"];
        let mut found = tables
            .iter()
            .filter_map(|table| settings.get(&format!("{table}.{key}")));
        found.find_map(Value::as_f64)
    };
    let factor = number("factor").unwrap_or(1.0).max(1.0);
    let by = number("mscale_all_dim").unwrap_or(0.0);
    let scale = (0.1 * by * factor.ln() + 1.0).powi(2);
    Made::keys([
        ("drafter.latent.kv_rank", asked.value.clone()),
        ("drafter.latent.q_rank", asked.of("draft.q_lora_rank")),
        ("drafter.latent.d_fixed", asked.of("draft.qk_nope_head_dim")),
        (
            "drafter.latent.d_turned",
            asked.of("draft.qk_rope_head_dim"),
        ),
        ("drafter.latent.d_value", asked.of("draft.v_head_dim")),
        ("drafter.latent.scale", json!(scale)),
    ])
}

fn train(asked: &Asked) -> Made {
    sources(asked, |text| Ok(json!(hub_or_path(text, None))))
}

fn eval(asked: &Asked) -> Made {
    match asked.value.as_str() {
        Some(text) if !text.is_empty() => Made::key("data.eval", hub_or_path(text, None)),
        None if !asked.value.is_null() => Made::expected("a path"),
        _ => Made::nothing(),
    }
}

fn last_turn(asked: &Asked) -> Made {
    match &asked.value {
        Value::Bool(true) => Made::key("data.mask", "last_turn"),
        Value::Bool(false) => Made::nothing(),
        _ if asked
            .given
            .settings
            .contains_key("dataset.last_turn_loss_only") =>
        {
            Made::note(
                "all that the assistant says is trained on; `data.mask = \"last_turn\"` trains on its last turn alone",
            )
        }
        _ => Made::nothing(),
    }
}

/// Weights of steps of which each is the same share of the one before.
fn decay(asked: &Asked) -> Made {
    let weights: Option<Vec<f64>> = match &asked.value {
        Value::Null => return Made::nothing(),
        Value::Array(weights) => weights.iter().map(Value::as_f64).collect(),
        _ => None,
    };
    let Some(weights) = weights else {
        return Made::expected("a list of numbers");
    };
    let shares: Vec<f64> = weights.windows(2).map(|pair| pair[1] / pair[0]).collect();
    match shares.first() {
        Some(first) if shares.iter().all(|share| (share - first).abs() < 1e-3) => {
            shared::decay_by(shared::rounded(*first))
        }
        None => Made::nothing(),
        _ => Made::note("each step counts by the same share of the one before: `objective.decay`"),
    }
}

fn loss(asked: &Asked) -> Made {
    const KEY: &str = "objective.divergence";
    match asked.value.as_str() {
        Some("forward_kl") => Made::key(KEY, "kl"),
        Some("lk_alpha") => Made::key(KEY, "nla"),
        Some("lk_lambda") => shared::lk_hybrid(Some(1.0), asked.of("training.lk_eta").as_f64()),
        _ => Made::note("set `objective.divergence`"),
    }
}

fn slot_weights(asked: &Asked) -> Made {
    const KEY: &str = "objective.slot_weights";
    let decays = asked.of("training.dflash_loss_decay_gamma").as_f64();
    let by_target = asked.of("training.dflash_l1_loss_alpha").as_f64();
    match asked.value.as_str() {
        // Domino has no second term.
        Some("dpace") if BY_WEIGHT.contains(&asked.kind) && by_target > Some(0.0) => {
            Made::key(KEY, "d_pace").with_note(shared::PACED_BY_TEXT)
        }
        Some("dpace") => Made::key(KEY, "d_pace"),
        Some("auf") => Made::key(KEY, "auf"),
        Some("decay") if decays > Some(0.0) => Made::key(KEY, "exponential"),
        Some("decay") => Made::key(KEY, "uniform"),
        _ => Made::note(
            "set `objective.slot_weights`, `label_weight`, `teacher_weight` and `divergence`",
        ),
    }
}

fn recurrent(asked: &Asked) -> Made {
    Made::key("drafter.markov_state", asked.value.clone())
        .with_note("TorchSpec's recurrent unit has biases, this one has none")
}

/// The part of the training in which the layers' own loss fades out.
fn curriculum(asked: &Asked) -> Made {
    let steps = asked.of("training.num_train_steps").as_f64();
    let part = match (asked.value.as_f64(), steps) {
        (Some(falls), Some(steps)) if falls > 0.0 && falls < steps => falls / steps,
        (None, _) if !asked.value.is_null() => return Made::expected("a number of steps"),
        (Some(falls), None) if falls > 0.0 => {
            return Made::key("objective.base_until", 1.0).with_note(
                "set `objective.base_until` to this by the number of steps, which is not known here",
            );
        }
        _ => 1.0,
    };
    Made::key("objective.base_until", part)
}

fn l1(asked: &Asked) -> Made {
    match asked.value.as_f64() {
        Some(weight) if weight > 0.0 => by_total_variation(asked),
        _ => Made::nothing(),
    }
}

fn five_layers(asked: &Asked) -> Made {
    let named = [
        "draft.dflash_config.target_layer_ids",
        "draft.target_layer_ids",
        "inference.aux_hidden_states_layers",
    ];
    let is_named = named.iter().any(|key| !asked.of(key).is_null());
    if is_named || asked.value == 5 {
        return Made::nothing();
    }
    Made::note(
        "the drafter reads five layers of the target unless `drafter.captured_layers` names others",
    )
}

fn min_rate(asked: &Asked) -> Made {
    let rate = asked.of("training.learning_rate").as_f64();
    match (asked.value.as_f64(), rate) {
        (Some(least), Some(rate)) if least > 0.0 && rate > 0.0 => {
            Made::key("train.min_lr_ratio", shared::rounded(least / rate))
        }
        _ => Made::nothing(),
    }
}

fn schedule(asked: &Asked) -> Made {
    let style = asked.value.as_str().unwrap_or_default().to_lowercase();
    match style.as_str() {
        "cosine" | "linear" | "constant" | "wsd" => Made::key("train.schedule", style),
        _ => Made::note(shared::SCHEDULES),
    }
}

const DECAY_STYLE: &str = "training.lr_decay_style";
const DECAY_RATIO: &str = "`train.decay_ratio`, with `lr_decay_style = \"WSD\"`";
const DECAY_SHAPE: &str = "`train.decay_shape`, with `lr_decay_style = \"WSD\"`";

/// Whether the rate stays as it is and falls at the end.
fn falls_at_the_end(asked: &Asked) -> bool {
    let style = asked.of(DECAY_STYLE);
    style
        .as_str()
        .is_some_and(|style| style.eq_ignore_ascii_case("wsd"))
}

fn decay_ratio(asked: &Asked) -> Made {
    match falls_at_the_end(asked) {
        true => Made::key("train.decay_ratio", asked.value.clone()),
        false => Made::nothing(),
    }
}

fn decay_shape(asked: &Asked) -> Made {
    match asked.value.as_str() {
        _ if !falls_at_the_end(asked) => Made::nothing(),
        Some(shape @ ("linear" | "cosine" | "exponential" | "minus_sqrt")) => {
            Made::key("train.decay_shape", shape)
        }
        _ => Made::expected("`linear`, `cosine`, `exponential` or `minus_sqrt`"),
    }
}

fn batches(asked: &Asked) -> Made {
    let of = |key: &str| asked.count(key).unwrap_or(1);
    let devices =
        of("training.training_num_gpus_per_node").checked_mul(of("training.training_num_nodes"));
    let shared = of("training.sp_ulysses_size").saturating_mul(of("training.sp_ring_size"));
    let processes = devices.map(|devices| devices / shared.max(1));
    accumulate(asked.whole().unwrap_or(1), processes)
}
