//! SpecForge (<https://github.com/sgl-project/SpecForge>): the file of `specforge train --config`, its overrides, and the flags of
//! the scripts `train_eagle3.py` and so on that it had before.

use serde_json::{Map, Value, json};
use spectrain_models::TargetSpec;

use super::rows::Becomes::{Key, Made as By, Nothing, Read};
use super::rows::{Asked, Made, Program, Row, Trainer, row};
use super::settings::PROCESSES;
use super::shared::{
    self, NOT_SHARED, TRACKED, accumulate, as_many_layers, by_total_variation, conversations,
    dtype_of, given_or_as_many, layer_types, name, one_layer, positive, rounded, rows_of,
    sizes_file, steps_of, warm_up,
};
use super::torchspec;

const ALL: &[&str] = &[];
const EAGLE3: &[&str] = &["eagle3"];
const PEAGLE: &[&str] = &["peagle"];
const EAGLES: &[&str] = &["eagle3", "peagle"];
const BLOCKS: &[&str] = &["dflash", "dspark", "domino"];
const DFLASH: &[&str] = &["dflash"];
const DSPARK: &[&str] = &["dspark"];
const DOMINO: &[&str] = &["domino"];
const FALLING: &[&str] = &["dspark", "domino"];
const WITHOUT_BASE: &[&str] = &["eagle3", "peagle", "dflash", "dspark", "mtp"];
const MASKED: &[&str] = &["peagle", "dflash", "dspark", "domino"];
const MTP: &[&str] = &["mtp"];
const NOT_MTP: &[&str] = &["eagle3", "peagle", "dflash", "dspark", "domino"];

/// `specforge train`.
pub(super) const SPECFORGE: Trainer = Trainer {
    name: "SpecForge",
    version: "0.2",
    kinds: &[
        ("eagle3", "eagle3"),
        ("peagle", "peagle"),
        ("dflash", "dflash"),
        ("dspark", "dflash"),
        ("domino", "dflash"),
        ("mtp", "mtp-qwen"),
    ],
    rows: ROWS,
    always: &[
        (ALL, "train.beta2", "0.999"),
        (ALL, "data.overlong", "\"truncate\""),
        (DSPARK, "drafter.sample_from_anchor", "true"),
        (DOMINO, "drafter.markov", "\"domino\""),
    ],
    kind: |settings| {
        let kind = settings.get("training.strategy").and_then(Value::as_str);
        kind.unwrap_or("eagle3").to_owned()
    },
    is_of: |flat: &Map<String, Value>| {
        // TorchSpec has a setting of that name, too.
        flat.contains_key("model.target_model_path") && !torchspec::is_of(flat)
    },
    named: |name| name,
    programs: &[
        Program::named(&["specforge", "train"]),
        Program {
            words: &["train_eagle3.py"],
            implies: &[&["training.strategy=eagle3"], EAGLE_DEFAULTS],
            flags: EAGLE_FLAGS,
        },
        Program {
            words: &["train_peagle.py"],
            implies: &[
                &[
                    "training.strategy=peagle",
                    "model.draft_num_hidden_layers=4",
                    "training.learning_rate=6e-4",
                    "training.down_sample_ratio=0.7",
                ],
                EAGLE_DEFAULTS,
            ],
            flags: EAGLE_FLAGS,
        },
        Program {
            words: &["train_dflash.py"],
            implies: &[&["training.strategy=dflash"], BLOCK_DEFAULTS],
            flags: BLOCK_FLAGS,
        },
        Program {
            words: &["train_domino.py"],
            implies: &[&["training.strategy=domino"], BLOCK_DEFAULTS],
            flags: BLOCK_FLAGS,
        },
        Program {
            words: &["train_dspark.py"],
            implies: &[
                &[
                    "training.strategy=dspark",
                    "training.loss_decay_gamma=4.0",
                    "draft.dflash_config.markov_rank=256",
                    "draft.dflash_config.enable_confidence_head=true",
                ],
                BLOCK_DEFAULTS,
            ],
            flags: BLOCK_FLAGS,
        },
    ],
    before: &[],
    repeated: &[],
    further: Some(("model.draft_model_config", "draft.")),
};

/// Flags of the scripts for EAGLE-3 and P-EAGLE that `specforge train` calls otherwise.
const EAGLE_FLAGS: &[(&str, &str)] = &[
    ("num_draft_layers", "model.draft_num_hidden_layers"),
    ("max_num_steps", "training.max_steps"),
    ("draft_accumulation_steps", "training.accumulation_steps"),
    ("train_hidden_states_path", "data.hidden_states_path"),
    ("ckpt_dir", "model.draft_checkpoint_path"),
    MASK_TOKEN,
    TARGET_BACKEND,
];

/// The flag of all these scripts that names what runs the target.
const TARGET_BACKEND: (&str, &str) = ("target_model_backend", "model.target_backend");

/// The flag of all these scripts that names the token of masks; it goes before the drafter's file.
const MASK_TOKEN: (&str, &str) = ("mask_token_id", "model.mask_token_id");

/// Defaults of these scripts that `specforge train` does not have.
const EAGLE_DEFAULTS: &[&str] = &[
    "training.num_epochs=10",
    "training.seed=0",
    "training.save_interval=5000",
    "training.eval_interval=5000",
];

/// Flags of the scripts for drafters of blocks that `specforge train` calls otherwise.
const BLOCK_FLAGS: &[(&str, &str)] = &[
    ("draft_config_path", "model.draft_model_config"),
    ("num_draft_layers", "draft.num_hidden_layers"),
    ("ce_loss_alpha", "training.dspark_ce_loss_alpha"),
    ("l1_loss_alpha", "training.dspark_l1_loss_alpha"),
    (
        "confidence_head_alpha",
        "training.dspark_confidence_head_alpha",
    ),
    (
        "confidence_head",
        "draft.dflash_config.enable_confidence_head",
    ),
    MASK_TOKEN,
    TARGET_BACKEND,
];

/// Defaults of these scripts that `specforge train` does not have.
const BLOCK_DEFAULTS: &[&str] = &[
    "data.max_length=3072",
    "training.num_epochs=6",
    "training.learning_rate=6e-4",
    "training.warmup_ratio=0.04",
    "training.max_grad_norm=1.0",
    "training.save_interval=1000",
    "training.eval_interval=1000",
];

const NO_ENGINE: &str = "spectrain computes the target's hidden states itself, or takes them from a server that you start (`target.server`)";
const NO_SERVERS: &str = "spectrain starts no servers of the target and passes hidden states through no store: `target.server` names servers of vLLM that \
     hand them out, with `features.mode = \"served\"` or `\"streamed\"`";
const SGLANG: &str = "these are settings of the SGLang server that captures hidden states; those of a server of vLLM (`target.server`) stand in the \
     command that starts it";
const CHUNKED: &str = "losses never hold the logits of a whole batch";
const COMPILED: &str = "spectrain compiles its kernels without being asked, for rows that all have `data.max_length` tokens";
const OF_DOMINO: &str = "only Domino reads it";
const LOADING: &str = "spectrain's own reading of data needs no such setting";
const OF_TARGET: &str = "nothing: the layer has the target's sizes";

// One setting a line, as a table.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    // The target and the drafter.
    row(MTP, "training.strategy", "\"mtp\"", By("`recipe`; the loss is by the target's distributions, SpecForge's by the text's tokens", |_| Made::note(shared::BY_TEXT))),
    row(ALL, "training.strategy", "\"eagle3\"", Read("`recipe`")),
    row(ALL, "model.target_model_path", "", Key("target.model")),
    row(ALL, "model.draft_checkpoint_path", "", Key("start")),
    row(MTP, "model.draft_model_config", "", Read(OF_TARGET)),
    row(NOT_MTP, "model.draft_model_config", "", By("its sizes, as below", |asked| sizes_file(asked, "draft.", "`draft_vocab`, `d_ff`, `heads`, `kv_heads`, `d_head`, `layers`"))),
    row(EAGLES, "draft.draft_vocab_size", "32000", By("`drafter.draft_vocab`, where the target has more tokens", draft_vocab)),
    row(NOT_MTP, "draft.intermediate_size", "", Key("drafter.d_ff")),
    row(NOT_MTP, "draft.num_attention_heads", "", Key("drafter.heads")),
    row(NOT_MTP, "draft.num_key_value_heads", "", Key("drafter.kv_heads")),
    row(EAGLES, "draft.head_dim", "", By(shared::WIDTH_IN_FILE, |asked| shared::head_width_in_file(asked, "draft.", Some("llama")))),
    row(BLOCKS, "draft.head_dim", "", By(shared::WIDTH_IN_FILE, |asked| shared::head_width_in_file(asked, "draft.", Some("qwen3")))),
    row(MTP, "draft.intermediate_size", "", By(OF_TARGET, |asked| of_target(asked, |spec| spec.d_ff))),
    row(MTP, "draft.num_attention_heads", "", By(OF_TARGET, |asked| of_target(asked, |spec| spec.heads))),
    row(MTP, "draft.num_key_value_heads", "", By(OF_TARGET, |asked| of_target(asked, |spec| spec.kv_heads))),
    row(MTP, "draft.head_dim", "", By(OF_TARGET, |asked| of_target(asked, |spec| spec.d_head))),
    row(EAGLE3, "draft.fc_norm", "false", Key("drafter.fc_norm")),
    row(EAGLE3, "draft.norm_output", "false", Key("drafter.norm_output")),
    row(EAGLE3, "draft.num_hidden_layers", "1", By("only 1 is possible", |asked| one_layer(&number_of_layers(asked)))),
    row(PEAGLE, "draft.num_hidden_layers", "4", By("`drafter.layers`", layers)),
    row(BLOCKS, "draft.num_hidden_layers", "1", By("`drafter.layers`", layers)),
    row(ALL, "model.draft_num_hidden_layers", "", Read("`drafter.layers`, before `draft.num_hidden_layers`")),
    row(BLOCKS, "draft.block_size", "16", By("`drafter.block_size`", block_size)),
    row(BLOCKS, "model.draft_block_size", "", Read("`drafter.block_size`, before `draft.block_size`")),
    row(BLOCKS, "draft.layer_types", "", By("`drafter.window`, that of `draft.sliding_window`, with `drafter.causal`; layers without one are `drafter.full_layers`, with `drafter.full_layers_see_block`", layer_types)),
    row(BLOCKS, "draft.sliding_window", "", Read("see `draft.layer_types`")),
    row(BLOCKS, "draft.use_sliding_window", "", Read("see `draft.layer_types`")),
    row(BLOCKS, "draft.dflash_config.mask_token_id", "", Key("drafter.mask_token")),
    row(PEAGLE, "draft.mask_token_id", "", Key("drafter.mask_token")),
    row(MASKED, "model.mask_token_id", "", Key("drafter.mask_token")),
    row(BLOCKS, "draft.dflash_config.target_layer_ids", "", By(shared::AS_MANY, captured)),
    row(DSPARK, "draft.dflash_config.markov_rank", "", Key("drafter.markov_rank")),
    row(DSPARK, "draft.dflash_config.markov_head_type", "", Key("drafter.markov")),
    row(DSPARK, "draft.dflash_config.enable_confidence_head", "", By("`drafter.confidence`; without it, whether `draft.dflash_config.confidence_head_alpha` is above 0", confidence)),
    row(DSPARK, "draft.dflash_config.confidence_head_alpha", "0.0", Read("see `draft.dflash_config.enable_confidence_head`")),
    row(DSPARK, "draft.dflash_config.confidence_head_with_markov", "false", By("only true is possible where there is a `markov_rank`", confidence_with_markov)),
    row(BLOCKS, "draft.dflash_config.projector_type", "", Read("`training.strategy` says the kind")),
    row(BLOCKS, "draft.dflash_config.block_size", "", Read("`drafter.block_size`, before `draft.block_size`")),
    row(DSPARK, "draft.dflash_config.attention_mode", "", Read("`drafter.kv_heads` says it")),
    row(DOMINO, "draft.dflash_config.emb_dim", "256", Key("drafter.markov_rank")),
    row(DOMINO, "draft.dflash_config.gru_hidden_dim", "1024", Key("drafter.markov_state")),
    row(DOMINO, "draft.dflash_config.pure_draft_prefix_len", "0", Key("drafter.markov_from")),
    row(DOMINO, "draft.dflash_config.shift_label", "false", Key("drafter.sample_from_anchor")),
    row(DFLASH, "draft.dflash_config.conv_kernel_size", "", Key("drafter.conv_taps")),
    row(DFLASH, "draft.dflash_config.conv_group_size", "", Key("drafter.conv_group")),
    row(DFLASH, "draft.dflash_config.selector_rank", "", Key("drafter.selector_rank")),
    row(DFLASH, "draft.dflash_config.selector_top_k", "", Key("drafter.selector_top_k")),
    row(BLOCKS, "draft.dflash_config.output_multiplier", "1.0", By("only 1 is possible", |asked| shared::only(asked, 1.0, "logits are those of the target's head, as they are"))),
    row(BLOCKS, "draft.dflash_config.input_embedding_scale", "1.0", By("only 1 is possible", |asked| shared::only(asked, 1.0, "embeddings are the target's, as they are"))),
    row(EAGLES, "draft.eagle_config.eagle_aux_hidden_state_layer_ids", "", Key("drafter.captured_layers")),
    row(EAGLES, "draft.eagle_config.use_aux_hidden_state", "true", By("only true is possible", |asked| shared::only_true(asked, "the drafter reads three layers of the target"))),
    row(PEAGLE, "draft.norm_before_residual", "", Key("drafter.norm_before_residual")),
    row(MTP, "draft.mtp_config.share_lm_head", "true", By("only true is possible", |asked| shared::only_true(asked, "the head is the target's, frozen"))),
    row(NOT_MTP, "model.aux_hidden_state_layer_ids", "", Key("drafter.captured_layers")),
    row(MTP, "model.aux_hidden_state_layer_ids", "", Nothing("the layer reads the target's last hidden state")),
    row(PEAGLE, "training.norm_before_residual", "", Key("drafter.norm_before_residual")),
    row(ALL, "model.torch_dtype", "", By("`target.dtype`", dtype_of)),
    row(ALL, "model.vocab_mapping_path", "", Nothing("spectrain counts the tokens of the training data itself")),
    row(ALL, "model.load_target_embedding", "true", Nothing("the target's embedding is always taken")),
    row(ALL, "model.trust_remote_code", "false", Nothing("spectrain runs no code of a model's folder")),
    row(ALL, "model.embedding_key", "", Nothing("spectrain finds the embedding by the target's architecture")),
    row(ALL, "model.lm_head_key", "", Nothing("spectrain finds the head by the target's architecture")),
    row(ALL, "model.tokenizer_pad_token_id", "", Nothing("padding needs no token")),
    row(ALL, "model.input_modality", "\"text\"", Nothing("spectrain trains on text")),
    row(ALL, "model.sglang_*", "", Nothing(SGLANG)),
    row(ALL, "model.cache_dir", "", Nothing("`HF_HOME` is the folder of what is downloaded")),
    row(ALL, "model.target_backend", "", Nothing(NO_ENGINE)),
    row(ALL, "model.shard_target_output", "", Nothing(NO_ENGINE)),
    row(ALL, "model.use_liger_kernel", "", Nothing("spectrain has kernels of its own")),
    // Data.
    row(ALL, "data.train_data_path", "", By("`data.train`, or `data.preset` where it is the name of one", conversations)),
    row(ALL, "data.prompts_path", "", By("`data.train`: rows with `input_ids` and `loss_mask` are read as they are", conversations)),
    row(ALL, "data.hidden_states_path", "", Nothing("`spectrain features converter` and `spectrain features import` read such files; the recipe then has `features.mode = \"imported\"`")),
    row(ALL, "data.eval_data_path", "", Key("data.eval")),
    row(ALL, "data.eval_hidden_states_path", "", Nothing("with imported features the held-out texts are some of them")),
    row(ALL, "data.max_length", "2048", By("`data.max_length` and `train.batch_tokens`", |asked| rows_of(asked, asked.count("training.batch_size").unwrap_or(1)))),
    row(ALL, "data.chat_template", "", Nothing("the target's own template is read; `data.template` takes the file of another")),
    row(ALL, "data.is_preformatted", "false", Nothing("spectrain applies the chat template itself")),
    row(ALL, "data.train_only_last_turn", "false", By("`data.mask = \"last_turn\"`", last_turn)),
    row(ALL, "data.max_prompts", "", By("`data.max_samples`, where it is not 0", |asked| positive(asked, "data.max_samples"))),
    row(ALL, "data.build_dataset_num_proc", "", Nothing(LOADING)),
    row(ALL, "data.dataloader_num_workers", "", Nothing(LOADING)),
    row(ALL, "data.cache_dir", "", Nothing(LOADING)),
    row(ALL, "data.cache_key", "", Nothing(LOADING)),
    // Objectives.
    row(EAGLE3, "training.ttt_length", "7", Key("objective.draft_steps")),
    row(EAGLE3, "training.lk_loss_type", "", By("`objective.divergence`: `lambda` is `lk_hybrid`, `alpha` is `nla`, `tv` is `tv`", lk_loss)),
    row(BLOCKS, "training.lk_loss_type", "", By("nothing: of the text's tokens there is the cross-entropy, which `alpha` is, too", |asked| shared::lk_of_labels(asked, "alpha"))),
    row(ALL, "training.kl_scale", "1.0", Read("see `training.lk_loss_type`: `lk_hybrid` has the paper's scale, 1")),
    row(ALL, "training.kl_decay", "1.0", Read("see `training.lk_loss_type`: `{ lk_hybrid = … }` has this decay; without a number it is the paper's, 3")),
    row(MTP, "training.mtp_num_speculative_steps", "1", Key("objective.draft_steps")),
    row(MTP, "training.mtp_step_weight_beta", "", By(shared::DECAY, shared::decay)),
    row(MTP, "training.mtp_objective_chunk_size", "", Nothing(CHUNKED)),
    row(PEAGLE, "training.num_depths", "8", Key("objective.draft_tokens")),
    row(PEAGLE, "training.down_sample_ratio", "0.8", Key("objective.keep")),
    row(PEAGLE, "training.down_sample_ratio_min", "0.2", Key("objective.keep_least")),
    row(BLOCKS, "training.num_anchors", "512", Key("objective.anchors")),
    row(DFLASH, "training.loss_type", "\"dflash\"", By("`objective.slot_weights`: `dflash` is `exponential` with a `loss_decay_gamma`, else `uniform`; `dpace` is `d_pace`", slot_weights)),
    row(DFLASH, "training.loss_decay_gamma", "", By("`objective.decay_slots`", |asked| positive(asked, "objective.decay_slots"))),
    row(FALLING, "training.loss_decay_gamma", "", By(shared::FALLING, shared::falling_weights)),
    row(FALLING, "training.loss_type", "", Nothing("weights fall by `training.loss_decay_gamma` whatever this says")),
    row(DFLASH, "training.dpace_alpha", "0.5", Key("objective.certainty")),
    row(DFLASH, "training.dspark_ce_loss_alpha", "", Nothing("only for `dspark`")),
    row(DSPARK, "training.dspark_ce_loss_alpha", "0.1", Key("objective.label_weight")),
    row(DSPARK, "training.dspark_l1_loss_alpha", "0.9", By(shared::BY_L1, by_total_variation)),
    row(DSPARK, "training.dspark_confidence_head_alpha", "1.0", Key("objective.confidence_weight")),
    row(DFLASH, "training.dflash2_selector_loss_alpha", "1.0", By("`objective.selector_weight`, where the drafter has a selector, with `objective.inject = false`; with one of the two below it rises from 0", selector_weight)),
    row(DFLASH, WARM_UP, "0.0", Read("see `training.dflash2_selector_loss_alpha`: the share of the steps at which it begins to rise")),
    row(DFLASH, RISE, "0.0", Read("see `training.dflash2_selector_loss_alpha`: the share of the steps in which it rises")),
    row(DFLASH, "training.dflash2_selector_stop_gradient", "false", By("only false is possible", |asked| shared::only_false(asked, "the selector's loss trains the layers, too"))),
    row(BLOCKS, "training.dflash_teacher_metrics", "true", Nothing("`train.validate_every` says when τ is measured on held-out prompts")),
    row(ALL, "training.objective_chunk_blocks", "", Nothing(CHUNKED)),
    row(ALL, "training.compact_teacher", "", Nothing(CHUNKED)),
    row(ALL, "training.compact_teacher_chunk_size", "", Nothing(CHUNKED)),
    row(ALL, "training.trim_loss_positions", "false", Nothing("logits are computed only at positions that count")),
    row(ALL, "training.static_shapes", "false", Nothing(COMPILED)),
    row(ALL, "training.static_shape_buckets", "", Nothing(COMPILED)),
    row(ALL, "training.compile_blocks", "false", Nothing(COMPILED)),
    row(DOMINO, "training.lambda_base_start", "1.0", Key("objective.base_weight")),
    row(DOMINO, "training.lambda_base_decay_ratio", "0.5", Key("objective.base_until")),
    row(WITHOUT_BASE, "training.lambda_base_*", "", Nothing(OF_DOMINO)),
    // Optimiser and schedule.
    row(ALL, "training.learning_rate", "0.0001", Key("train.learning_rate")),
    row(ALL, "training.lr_scheduler", "\"cosine\"", Key("train.schedule")),
    row(ALL, "training.max_grad_norm", "0.5", Key("train.max_grad_norm")),
    row(ALL, "training.num_epochs", "1", Key("train.epochs")),
    row(ALL, "training.max_steps", "", By("`train.steps`, in place of `num_epochs`", steps_of)),
    row(ALL, "training.total_steps", "", Nothing("the schedule ends with the training")),
    row(ALL, "training.warmup_ratio", "0.015", By("`train.warmup_ratio`, where the schedule is made for a number of steps `train.warmup_steps`", |asked| warm_up(asked.value.as_f64().unwrap_or_default(), horizon(asked)))),
    row(ALL, "training.batch_size", "1", Read("rows in a batch: see `data.max_length`")),
    row(ALL, "training.accumulation_steps", "1", By("`train.gradient_accumulation`: the batches of one step, of all devices", batches)),
    row(ALL, PROCESSES, "", Read("see `training.accumulation_steps`")),
    row(ALL, "deployment.trainer.nproc_per_node", "1", Read("see `training.accumulation_steps`")),
    row(ALL, "deployment.trainer.nnodes", "1", Read("see `training.accumulation_steps`")),
    row(ALL, "deployment.*", "", Nothing(NO_SERVERS)),
    row(ALL, "runtime.*", "", Nothing(NO_SERVERS)),
    row(ALL, "training.deployment_mode", "", Nothing(NO_SERVERS)),
    row(ALL, "training.server_urls", "", Nothing(NO_SERVERS)),
    row(ALL, "training.metadata_db_path", "", Nothing(NO_SERVERS)),
    row(ALL, "training.backend", "\"fsdp\"", Nothing(NOT_SHARED)),
    row(ALL, "training.optimizer_cpu_offload", "false", Nothing("the optimiser's state is on the device")),
    row(ALL, "training.fsdp_sharding", "", Nothing(NOT_SHARED)),
    row(ALL, "training.attention_backend", "", Nothing("spectrain has one attention for each device")),
    row(ALL, "training.tp_size", "", Nothing(NOT_SHARED)),
    row(ALL, "training.sp_ulysses_size", "", Nothing(NOT_SHARED)),
    row(ALL, "training.sp_ring_size", "", Nothing(NOT_SHARED)),
    row(ALL, "training.dist_timeout", "", Nothing("a process that dies ends the others at once")),
    // What is kept and shown.
    row(ALL, "training.save_interval", "0", By("`train.save_every`, where it is not 0", |asked| positive(asked, "train.save_every"))),
    row(ALL, "training.eval_interval", "0", By("`train.validate_every`, where it is not 0", |asked| positive(asked, "train.validate_every"))),
    row(ALL, "training.log_interval", "50", Key("train.log_every")),
    row(ALL, "training.max_checkpoints", "0", By("`train.keep`, where it is not 0", |asked| positive(asked, "train.keep"))),
    row(ALL, "training.resume_from", "", Nothing("`spectrain recipe` goes on with a run of that name by itself")),
    row(ALL, "training.role", "", Nothing("one program does all")),
    row(ALL, "training.seed", "42", Key("seed")),
    row(ALL, "training.prompt_seed", "", Nothing("`seed` sets the order of the data, too")),
    row(ALL, "run_id", "", By("`name`", name)),
    row(ALL, "output_dir", "", Nothing("a run's files are in `runs/NAME`")),
    row(ALL, "tracking.report_*", "", Nothing(TRACKED)),
    row(ALL, "tracking.wandb_*", "", Nothing(TRACKED)),
    row(ALL, "tracking.swanlab_*", "", Nothing(TRACKED)),
    row(ALL, "tracking.mlflow_*", "", Nothing(TRACKED)),
    row(ALL, "profiling.*", "", Nothing("`spectrain bench` and the log say where time goes")),
];

/// The steps that the schedule is made for: those that are set for it, else those of the training.
fn horizon(asked: &Asked) -> Option<u64> {
    asked
        .count("training.total_steps")
        .or(asked.count("training.max_steps"))
}

/// A size of a layer that is as large as the target's.
fn of_target(asked: &Asked, size: fn(&TargetSpec) -> usize) -> Made {
    let own = asked.sizes().map(|spec| size(&spec) as u64);
    match (asked.whole(), own) {
        (Some(given), Some(own)) if given != own => Made::note("the layer has the target's sizes"),
        (None, _) if !asked.value.is_null() => Made::expected("a whole number"),
        _ => Made::nothing(),
    }
}

/// Shares of the steps: those before the weight of a selector's loss begins to rise, and those in which it rises.
const WARM_UP: &str = "training.dflash2_selector_warmup_ratio";
const RISE: &str = "training.dflash2_selector_ramp_ratio";

/// The weight of a selector's loss, which learns nothing from slots whose right token is no candidate; nothing of drafters that
/// have none.
fn selector_weight(asked: &Asked) -> Made {
    if asked.of("draft.dflash_config.selector_rank").is_null() {
        return Made::nothing();
    }
    let of_steps = ["training.total_steps", "training.max_steps"];
    let [of, steps] = of_steps.map(|key| asked.count(key).map(|count| count as f64));
    // The shares are of the steps that the schedule is made for.
    let scale = of.zip(steps).map_or(1.0, |(of, steps)| of / steps.max(1.0));
    let share = |key| rounded(asked.of(key).as_f64().unwrap_or_default() * scale);
    let alpha = asked.value.as_f64().unwrap_or_default();
    let risen = risen(alpha, share(WARM_UP), share(RISE));
    let is_of_others = risen.is_some() && of.is_some() && steps.is_none();
    let made = Made::keys([
        (
            "objective.selector_weight",
            risen.unwrap_or_else(|| asked.value.clone()),
        ),
        ("objective.inject", json!(false)),
    ]);
    match is_of_others {
        true => made.with_note(
            "it rises by shares of the steps that are trained, there of `training.total_steps`",
        ),
        false => made,
    }
}

/// A weight that is 0 up to one share of the steps and rises to `alpha` over another; `None` where it is `alpha` from the start.
fn risen(alpha: f64, from: f64, rise: f64) -> Option<Value> {
    if alpha <= 0.0 || (from <= 0.0 && rise <= 0.0) {
        return None;
    }
    if from >= 1.0 {
        return Some(json!(0.0));
    }
    let until = rounded((from + rise).min(1.0));
    // What has been reached where the training ends before.
    let end = rounded(alpha * ((1.0 - from) / rise).min(1.0));
    Some(json!({ "start": 0.0, "end": end, "from": from, "until": until }))
}

fn confidence(asked: &Asked) -> Made {
    let alpha = asked.of("draft.dflash_config.confidence_head_alpha");
    let has_file = !asked.of("model.draft_model_config").is_null();
    match asked.value {
        // What a file that is not read has cannot be told.
        Value::Null
            if has_file
                && asked
                    .given
                    .settings
                    .keys()
                    .any(|key| key.starts_with("draft.")) =>
        {
            Made::key("drafter.confidence", alpha.as_f64() > Some(0.0))
        }
        Value::Null => Made::nothing(),
        _ => Made::key("drafter.confidence", asked.value.clone()),
    }
}

fn confidence_with_markov(asked: &Asked) -> Made {
    let has_head = asked.of("draft.dflash_config.enable_confidence_head") == true;
    let has_bias = asked
        .count("draft.dflash_config.markov_rank")
        .is_some_and(|rank| rank > 0);
    if has_head && has_bias && asked.value != true {
        return Made::note(
            "the confidence head reads the code of the token before wherever there is a `markov_rank`",
        );
    }
    Made::nothing()
}

/// A part of the target's tokens; all of them where it has no more.
fn draft_vocab(asked: &Asked) -> Made {
    let target = asked.sizes();
    let has_no_more = |few: u64| target.is_some_and(|spec| spec.vocab as u64 <= few);
    match asked.value.as_u64() {
        Some(few) if has_no_more(few) => Made::nothing(),
        _ => Made::key("drafter.draft_vocab", asked.value.clone()),
    }
}

/// The number of layers: that of the settings before that of the drafter's file.
fn number_of_layers(asked: &Asked) -> Value {
    let own = asked.of("model.draft_num_hidden_layers");
    if own.is_null() {
        asked.value.clone()
    } else {
        own
    }
}

/// The layers that a block drafter reads. A number of layers in the settings goes before the ids of the drafter's file.
fn captured(asked: &Asked) -> Made {
    let own = asked.count("model.draft_num_hidden_layers");
    let of_file = |key: &String| key.starts_with("draft.") && asked.given.wrote(key);
    let is_unread = !asked.of("model.draft_model_config").is_null()
        && !asked.given.settings.keys().any(of_file);
    match own {
        None if is_unread => Made::nothing(),
        None => given_or_as_many(asked, asked.count("draft.num_hidden_layers")),
        own => as_many_layers(asked, own),
    }
}

fn layers(asked: &Asked) -> Made {
    Made::key("drafter.layers", number_of_layers(asked))
}

fn slot_weights(asked: &Asked) -> Made {
    const KEY: &str = "objective.slot_weights";
    let decays = asked.of("training.loss_decay_gamma").as_f64();
    match asked.value.as_str() {
        Some("dpace") => Made::key(KEY, "d_pace"),
        Some("dflash") if decays.is_some_and(|gamma| gamma > 0.0) => Made::key(KEY, "exponential"),
        Some("dflash") => Made::key(KEY, "uniform"),
        _ => Made::note("of D-PACE's weights there is the whole, `d_pace`"),
    }
}

fn batches(asked: &Asked) -> Made {
    let of = |key: &str| asked.count(key).unwrap_or(1);
    let launched = asked.of(PROCESSES);
    let processes = match launched {
        Value::Null => {
            of("deployment.trainer.nproc_per_node").checked_mul(of("deployment.trainer.nnodes"))
        }
        launched => launched.as_u64(),
    };
    accumulate(asked.whole().unwrap_or(1), processes)
}

fn block_size(asked: &Asked) -> Made {
    let others = ["model.draft_block_size", "draft.dflash_config.block_size"];
    let mut others = others.into_iter().map(|key| asked.of(key));
    let own = others.find(|size| !size.is_null());
    Made::key("drafter.block_size", own.unwrap_or(asked.value.clone()))
}

fn last_turn(asked: &Asked) -> Made {
    match asked.value {
        Value::Bool(true) => Made::key("data.mask", "last_turn"),
        _ => Made::nothing(),
    }
}

fn lk_loss(asked: &Asked) -> Made {
    const KEY: &str = "objective.divergence";
    let of = |key: &str| asked.of(key).as_f64();
    match asked.value.as_str() {
        Some("lambda") => shared::lk_hybrid(of("training.kl_scale"), of("training.kl_decay")),
        Some("alpha") => Made::key(KEY, "nla"),
        Some("tv") => Made::key(KEY, "tv"),
        None if asked.value.is_null() => Made::nothing(),
        _ => Made::expected("`lambda`, `alpha` or `tv`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_rises_by_shares_of_the_steps_that_there_are() {
        let rises = |end: f64, from: f64, until: f64| {
            Some(json!({ "start": 0.0, "end": end, "from": from, "until": until }))
        };
        for (given, expected) in [
            ([0.5, 0.0, 0.0], None),
            ([0.0, 0.1, 0.1], None),
            ([0.5, 0.1, 0.2], rises(0.5, 0.1, 0.3)),
            ([0.5, 0.0, 0.25], rises(0.5, 0.0, 0.25)),
            // At once, and cut off by the end of the training.
            ([0.5, 0.1, 0.0], rises(0.5, 0.1, 0.1)),
            ([0.5, 0.5, 1.0], rises(0.25, 0.5, 1.0)),
            ([0.5, 1.0, 0.0], Some(json!(0.0))),
        ] {
            let [alpha, from, rise] = given;
            assert_eq!(risen(alpha, from, rise), expected, "{given:?}");
        }
    }
}
