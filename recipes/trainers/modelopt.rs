//! ModelOpt (<https://github.com/NVIDIA/Model-Optimizer>): the recipes of its speculative decoding, and overrides of them.

use serde_json::{Map, Value, json};

use super::rows::Becomes::{Key, Made as By, Nothing, Read};
use super::rows::{Asked, Made, Program, Row, Trainer, row};
use super::settings::PROCESSES;
use super::shared::{
    self, NOT_SHARED, accumulate, by_total_variation, conversations, given_or_as_many, name,
    positive, rows_of, server, steps_of,
};

const ALL: &[&str] = &[];
const EAGLE3: &[&str] = &["eagle3"];
const BLOCKS: &[&str] = &["dflash", "dflash2", "dspark", "domino", "lilicorr"];
const LABELLED: &[&str] = &["dflash", "dflash2", "lilicorr"];
const FALLING: &[&str] = &["dspark", "domino"];
const WITHOUT_BASE: &[&str] = &["dflash", "dflash2", "dspark", "lilicorr"];
const WITHOUT_SELECTOR: &[&str] = &["dflash", "dspark", "domino", "lilicorr"];
const WITHOUT_LATTICE: &[&str] = &["dflash", "dflash2", "dspark", "domino"];
const CONVOLVED: &[&str] = &["dflash2", "lilicorr"];
const DFLASH2: &[&str] = &["dflash2"];
const LILICORR: &[&str] = &["lilicorr"];
const DSPARK: &[&str] = &["dspark"];
const DOMINO: &[&str] = &["domino"];
const MEDUSA: &[&str] = &["medusa"];

/// `launch_train.sh --config RECIPE`.
pub(super) const MODELOPT: Trainer = Trainer {
    name: "ModelOpt",
    version: "0.47",
    kinds: &[
        ("eagle3", "eagle3"),
        ("dflash", "dflash"),
        ("dflash2", "dflash"),
        ("dspark", "dflash"),
        ("domino", "dflash"),
        ("lilicorr", "dflash"),
        ("medusa", "medusa"),
    ],
    rows: ROWS,
    always: &[
        (ALL, "data.overlong", "\"truncate\""),
        (DFLASH2, "objective.inject", "false"),
        (DSPARK, "drafter.sample_from_anchor", "true"),
        (DOMINO, "drafter.markov", "\"domino\""),
    ],
    kind,
    is_of: |flat: &Map<String, Value>| {
        let kind = flat.get("metadata.recipe_type").and_then(Value::as_str);
        let sections = ["eagle.", "dflash.", "medusa."];
        let mut keys = flat.keys();
        kind.is_some_and(|kind| kind.starts_with("speculative_"))
            || keys.any(|key| sections.iter().any(|section| key.starts_with(section)))
    },
    named: |name| name,
    programs: &[
        Program::named(&["launch_train.sh"]),
        Program::named(&["main.py"]),
    ],
    before: &[],
    repeated: &[],
    further: None,
};

/// The kind by the recipe's type, and of DFlash by the head that its architecture has.
fn kind(settings: &Map<String, Value>) -> String {
    let text = |key: &str| settings.get(key).and_then(Value::as_str);
    let is_block = text("metadata.recipe_type") == Some("speculative_dflash")
        || settings.keys().any(|key| key.starts_with("dflash."));
    let is_medusa = settings.keys().any(|key| key.starts_with("medusa."));
    let kind = match (is_block, text("metadata.recipe_type")) {
        (true, _) => text(PROJECTOR).unwrap_or("dflash"),
        (false, Some("speculative_medusa")) => "medusa",
        (false, None) if is_medusa => "medusa",
        (false, Some("speculative_eagle") | None) => "eagle3",
        (false, Some(other)) => other,
    };
    kind.to_owned()
}

const PROJECTOR: &str = "dflash.dflash_architecture_config.projector_type";
const OBJECTIVE: &str = "dflash.dflash_loss_objective";
const DISTILLATION: &str = "dflash.dflash_self_logit_distillation";
const LK_TYPE: &str = "dflash.dflash_lk_loss_type";
const DECAY_STEPS: &str = "training.lr_scheduler_kwargs.num_decay_steps";
const DECAY_TYPE: &str = "training.lr_scheduler_kwargs.decay_type";
const OF_DFLASH2: &str = "only DFlash 2 reads it";
const OF_LILICORR: &str = "only LiLiCorr reads it";
const WIDTH_OF_LATTICE: &str = "dflash.dflash_architecture_config.lilicorr_hidden_size";
const COMPILED: &str = "spectrain compiles its kernels without being asked";
const WHEN: &str = "`train.validate_every` says when τ is measured on held-out prompts";
const OWN: &str = "spectrain's own training needs no such setting";

// One setting a line, as a table.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    // The target and the drafter.
    row(ALL, "metadata.recipe_type", "", Read("`recipe`")),
    row(ALL, "metadata.description", "", Nothing("it is a comment")),
    row(BLOCKS, PROJECTOR, "", Read("`recipe`")),
    row(ALL, "model.model_name_or_path", "", Key("target.model")),
    row(ALL, "model.trust_remote_code", "false", Nothing("spectrain runs no code of a model's folder")),
    row(ALL, "model.use_fake_base_for_offline", "false", Nothing("with features from a server or from files, only the parts of the target that are needed are read")),
    row(EAGLE3, "eagle.eagle_architecture_config.draft_vocab_size", "", Key("drafter.draft_vocab")),
    row(EAGLE3, "eagle.eagle_architecture_config.intermediate_size", "14336", By("`drafter.d_ff`, whatever the target has", |asked| llama_size(asked, "drafter.d_ff"))),
    row(EAGLE3, "eagle.eagle_architecture_config.num_attention_heads", "32", By("`drafter.heads`, whatever the target has", |asked| llama_size(asked, "drafter.heads"))),
    row(EAGLE3, "eagle.eagle_architecture_config.num_key_value_heads", "8", By("`drafter.kv_heads`, whatever the target has", |asked| llama_size(asked, "drafter.kv_heads"))),
    row(EAGLE3, "eagle.eagle_architecture_config.head_dim", "128", By(shared::WIDTH_OF_HEADS, llama_head_width)),
    row(EAGLE3, "eagle.eagle_architecture_config.rope_theta", "10000", By("nothing: the drafter keeps the target's rotary embedding", rope_theta)),
    row(EAGLE3, "eagle.eagle_architecture_config.rope_scaling.*", "", Nothing(ROPE)),
    row(EAGLE3, "eagle.eagle_architecture_config.hidden_size", "", Nothing("the drafter is as wide as the target, in ModelOpt, too")),
    row(EAGLE3, "eagle.eagle_architecture_config.hidden_act", "\"silu\"", Nothing("layers have SiLU, as engines expect")),
    row(EAGLE3, "eagle.eagle_architecture_config.rms_norm_eps", "0.00001", By("nothing: norms have the target's epsilon", norm_epsilon)),
    row(EAGLE3, "eagle.eagle_architecture_config.use_aux_hidden_state", "true", By("only true is possible", |asked| shared::only_true(asked, "the drafter reads three layers of the target; `recipe = \"eagle1\"` reads its last hidden state"))),
    row(EAGLE3, "eagle.eagle_architecture_config.use_input_layernorm_in_first_layer", "true", By("only true is possible", |asked| shared::only_true(asked, "the embedding is normed"))),
    row(EAGLE3, "eagle.eagle_architecture_config.use_last_layernorm", "true", By("only true is possible", |asked| shared::only_true(asked, "there is a norm before the head"))),
    row(EAGLE3, "eagle.eagle_architecture_config.use_mtp_layernorm", "false", By("only false is possible", |asked| shared::only_false(asked, "`recipe = \"mtp\"` has such norms"))),
    row(EAGLE3, "eagle.eagle_architecture_config.has_lm_head", "false", Nothing("`drafter.head` says where the head comes from")),
    row(EAGLE3, "eagle.eagle_architecture_config.attention_bias", "false", By("only false is possible", |asked| shared::only_false(asked, "the layer has no bias"))),
    row(EAGLE3, "eagle.eagle_architecture_config.mlp_bias", "false", By("only false is possible", |asked| shared::only_false(asked, "the layer has no bias"))),
    row(EAGLE3, "eagle.eagle_architecture_config.*", "", Nothing("the layer is that of the paper, in the sizes above")),
    row(EAGLE3, "eagle.eagle_architecture_config.num_hidden_layers", "1", Key("drafter.layers")),
    row(EAGLE3, "eagle.eagle_architecture_config.eagle_aux_hidden_state_layer_ids", "", Key("drafter.captured_layers")),
    row(EAGLE3, "eagle.eagle_decoder_type", "\"llama\"", By("only `llama` is possible", decoder_type)),
    row(EAGLE3, "eagle.eagle_ttt_steps", "3", Key("objective.draft_steps")),
    row(EAGLE3, "eagle.eagle_loss_decay_factor", "0.9", Key("objective.decay")),
    row(EAGLE3, "eagle.eagle_self_logit_distillation", "true", By("only true is possible: the loss is by the target's distributions", distillation)),
    row(EAGLE3, "eagle.eagle_hidden_state_distillation", "false", Nothing("EAGLE-3 has no loss on hidden states; `recipe = \"eagle1\"` has one")),
    row(EAGLE3, "eagle.eagle_freeze_base_model", "true", Nothing("the target is always frozen")),
    row(EAGLE3, "eagle.eagle_reuse_base_decoder", "false", Nothing("the layer starts at random; `recipe = \"mtp\"` takes the target's own")),
    row(EAGLE3, "eagle.eagle_mix_hidden_states", "false", Nothing("each step reads the drafter's own states")),
    row(EAGLE3, "eagle.eagle_report_acc", "true", Nothing(WHEN)),
    row(EAGLE3, "eagle.eagle_use_torch_compile", "true", Nothing(COMPILED)),
    row(EAGLE3, "eagle.eagle_enable_nvtx", "false", Nothing(OWN)),
    row(EAGLE3, "eagle.eagle_export_rope_scaling.*", "", Nothing(ROPE)),
    row(EAGLE3, "eagle.eagle_base_lora", "false", By("only false is possible", |asked| shared::only_false(asked, "the target stays as it is: the drafter is trained for it alone"))),
    row(EAGLE3, "eagle.eagle_base_lora_*", "", Read("see `eagle.eagle_base_lora`")),
    row(EAGLE3, "eagle.eagle_offline", "", Read("`data.mode` says it")),
    row(MEDUSA, "medusa.medusa_num_heads", "2", Key("drafter.medusa_heads")),
    row(MEDUSA, "medusa.medusa_num_layers", "1", Key("drafter.head_layers")),
    row(BLOCKS, "dflash.dflash_block_size", "8", Key("drafter.block_size")),
    row(BLOCKS, "dflash.dflash_num_anchors", "512", Key("objective.anchors")),
    row(BLOCKS, "dflash.dflash_mask_token_id", "", Key("drafter.mask_token")),
    row(BLOCKS, "dflash.dflash_init_checkpoint", "", Key("start")),
    row(LABELLED, OBJECTIVE, "\"dpace\"", By("`objective.slot_weights`: `dpace` is `d_pace`, `decay` is `exponential`, or `uniform` where its factor is 0", slot_weights)),
    row(LABELLED, "dflash.dflash_loss_decay_factor", "0.0", By("`objective.decay_slots`, where it is not 0", |asked| positive(asked, "objective.decay_slots"))),
    row(FALLING, "dflash.dflash_loss_decay_factor", "0.0", By(shared::FALLING, shared::falling_weights)),
    row(FALLING, OBJECTIVE, "", Nothing("weights fall by `dflash.dflash_loss_decay_factor` whatever this says")),
    row(LABELLED, "dflash.dflash_dpace_alpha", "0.5", Key("objective.certainty")),
    row(LABELLED, DISTILLATION, "true", By("true is `objective.teacher_weight = 1` with `label_weight = 0`, false the opposite", labels_or_teacher)),
    row(DSPARK, DISTILLATION, "true", Nothing("DSpark's three weights say what it learns from")),
    row(DOMINO, DISTILLATION, "true", Nothing("Domino learns from the text's tokens whatever this says")),
    row(DFLASH2, LK_TYPE, "\"ce\"", By("nothing: of the text's tokens there is the cross-entropy, `ce`", |asked| shared::lk_of_labels(asked, "ce"))),
    row(DFLASH2, "dflash.dflash_lk_*", "", Read("see `dflash.dflash_lk_loss_type`")),
    row(DFLASH2, "dflash.dflash_selector_loss_alpha", "1.0", By("`objective.selector_weight`; the selector's loss is divided by all slots, which count as in that of the layers (`objective.slot_weights`); there by those that have their token among the candidates, which all count the same", selector_weight)),
    row(WITHOUT_SELECTOR, LK_TYPE, "", Nothing(OF_DFLASH2)),
    row(WITHOUT_SELECTOR, "dflash.dflash_lk_*", "", Nothing(OF_DFLASH2)),
    row(WITHOUT_SELECTOR, "dflash.dflash_selector_loss_alpha", "", Nothing(OF_DFLASH2)),
    row(LILICORR, "dflash.dflash_lilicorr_w_ce", "", By("`objective.paths.weight`; there a block counts only if all its slots do", |asked| Made::key("objective.paths.weight", asked.value.clone()).with_note("there the lattice learns nothing from blocks that the end of a reply cuts, here from their slots before it"))),
    row(LILICORR, "dflash.dflash_lilicorr_w_margin", "", Key("objective.paths.hinge_weight")),
    row(LILICORR, "dflash.dflash_lilicorr_w_pen", "", Key("objective.paths.penalty_weight")),
    row(LILICORR, "dflash.dflash_lilicorr_margin", "", By("`objective.paths.hinge`, where it is above 0", |asked| positive(asked, "objective.paths.hinge"))),
    row(WITHOUT_LATTICE, "dflash.dflash_lilicorr_*", "", Nothing(OF_LILICORR)),
    row(DSPARK, "dflash.dflash_ce_loss_alpha", "0.1", Key("objective.label_weight")),
    row(DSPARK, "dflash.dflash_l1_loss_alpha", "0.9", By(shared::BY_L1, by_total_variation)),
    row(DSPARK, "dflash.dflash_confidence_head_alpha", "0.0", By("`objective.confidence_weight`", confidence)),
    row(BLOCKS, "dflash.dflash_swa_window_size", "", Key("drafter.window")),
    row(BLOCKS, "dflash.dflash_draft_attention", "\"bidirectional\"", By("`drafter.causal`", causal)),
    row(BLOCKS, "dflash.dflash_attention_sink", "false", Key("drafter.sinks")),
    row(BLOCKS, "dflash.dflash_freeze_base_model", "true", Nothing("the target is always frozen")),
    row(BLOCKS, "dflash.dflash_report_acc", "true", Nothing(WHEN)),
    row(BLOCKS, "dflash.dflash_use_torch_compile", "true", Nothing(COMPILED)),
    row(BLOCKS, "dflash.dflash_use_flex_attention", "false", Nothing("there is one attention for each device")),
    row(BLOCKS, "dflash.dflash_fp32_master_weights", "", Nothing("weights are trained in f32")),
    row(BLOCKS, "dflash.dflash_architecture_config.num_hidden_layers", "5", Key("drafter.layers")),
    row(BLOCKS, "dflash.dflash_architecture_config.intermediate_size", "22016", Key("drafter.d_ff")),
    row(BLOCKS, "dflash.dflash_architecture_config.num_attention_heads", "32", Key("drafter.heads")),
    row(BLOCKS, "dflash.dflash_architecture_config.num_key_value_heads", "32", Key("drafter.kv_heads")),
    row(BLOCKS, "dflash.dflash_architecture_config.head_dim", "128", By(shared::WIDTH_OF_HEADS, shared::head_width)),
    row(BLOCKS, "dflash.dflash_architecture_config.target_layer_ids", "", By(shared::AS_MANY, |asked| given_or_as_many(asked, asked.count("dflash.dflash_architecture_config.num_hidden_layers")))),
    row(BLOCKS, "dflash.dflash_architecture_config.mask_token_id", "", Key("drafter.mask_token")),
    row(CONVOLVED, "dflash.dflash_architecture_config.conv_kernel_size", "", Key("drafter.conv_taps")),
    row(CONVOLVED, "dflash.dflash_architecture_config.conv_group_size", "", Key("drafter.conv_group")),
    row(LILICORR, "dflash.dflash_architecture_config.conv_projection_init_std", "0.0", Nothing("untrained convolutions change nothing")),
    row(LILICORR, "dflash.dflash_architecture_config.lilicorr_candidate_topk", "", Key("drafter.lattice.top_k")),
    row(LILICORR, WIDTH_OF_LATTICE, "0", Key("drafter.lattice.d_model")),
    row(LILICORR, "dflash.dflash_architecture_config.lilicorr_num_layers", "", Key("drafter.lattice.layers")),
    row(LILICORR, "dflash.dflash_architecture_config.lilicorr_num_heads", "", Key("drafter.lattice.heads")),
    row(LILICORR, "dflash.dflash_architecture_config.lilicorr_mlp_ratio", "", By("`drafter.lattice.d_ff`, so many times its width", width_inside_lattice)),
    row(LILICORR, "dflash.dflash_architecture_config.lilicorr_factor_dim", "", Key("drafter.lattice.rank")),
    row(LILICORR, "dflash.dflash_architecture_config.lilicorr_logit_scale", "", Key("drafter.lattice.scale")),
    row(LILICORR, "dflash.dflash_architecture_config.lilicorr_vector_eps", "", Key("drafter.lattice.epsilon")),
    row(DFLASH2, "dflash.dflash_architecture_config.selector_rank", "", Key("drafter.selector_rank")),
    row(DFLASH2, "dflash.dflash_architecture_config.selector_top_k", "", Key("drafter.selector_top_k")),
    row(DSPARK, "dflash.dflash_architecture_config.markov_rank", "256", Key("drafter.markov_rank")),
    row(DSPARK, "dflash.dflash_architecture_config.markov_head_type", "\"vanilla\"", Key("drafter.markov")),
    row(DSPARK, "dflash.dflash_architecture_config.use_confidence_head", "false", Key("drafter.confidence")),
    row(DOMINO, "dflash.dflash_architecture_config.emb_dim", "256", Key("drafter.markov_rank")),
    row(DOMINO, "dflash.dflash_architecture_config.gru_hidden_dim", "1024", Key("drafter.markov_state")),
    row(DOMINO, "dflash.dflash_architecture_config.pure_draft_prefix_len", "1", Key("drafter.markov_from")),
    row(DOMINO, "dflash.dflash_architecture_config.shift_label", "true", Key("drafter.sample_from_anchor")),
    row(BLOCKS, "dflash.dflash_architecture_config.rms_norm_eps", "0.000001", By("nothing: norms have the target's epsilon", norm_epsilon)),
    row(BLOCKS, "dflash.dflash_architecture_config.rope_*", "", Nothing(ROPE)),
    row(BLOCKS, "dflash.dflash_architecture_config.*", "", Nothing("the layers are Qwen3's, in the sizes above, with the target's rotary embedding")),
    row(BLOCKS, "dflash.dflash_offline", "", Read("`data.mode` says it")),
    row(BLOCKS, "dflash.dflash_export_rope_scaling.*", "", Nothing(ROPE)),
    row(DOMINO, "dflash.dflash_lambda_base_start", "1.0", Key("objective.base_weight")),
    row(DOMINO, "dflash.dflash_lambda_base_decay_ratio", "1.0", Key("objective.base_until")),
    row(WITHOUT_BASE, "dflash.dflash_lambda_base_*", "", Nothing("only Domino reads it")),
    // Data.
    row(ALL, "data.mode", "", Nothing("`features.mode` says where hidden states come from")),
    row(ALL, "data.data_path", "", By("`data.train`, or `data.preset` where it is the name of one", conversations)),
    row(ALL, "data.offline_data_path", "", Nothing("`spectrain features converter` and `spectrain features import` read such files; the recipe then has `features.mode = \"imported\"`")),
    row(ALL, "data.chat_template", "", Nothing("the target's own template is read, and spectrain finds by itself what the assistant says; `data.template` takes the file of another template")),
    row(ALL, "data.draft_vocab_cache", "", Nothing("spectrain counts the tokens of the training data itself")),
    row(ALL, "data.sample_size", "-1", By("`data.max_samples`, where it is above 0", |asked| positive(asked, "data.max_samples"))),
    row(ALL, "data.lazy_preprocess", "true", Nothing(OWN)),
    row(ALL, "data.vlm_img_dir", "", Nothing(TEXT)),
    row(ALL, "data.vlm_processor", "", Nothing(TEXT)),
    row(ALL, "data.final_aux_is_base_hidden", "false", Nothing("which layers a server hands out follows from `drafter.captured_layers`")),
    row(ALL, "data.streaming_server_url", "", By("`target.server`, with `features.mode = \"streamed\"`", server)),
    row(ALL, "data.streaming_model_name", "", Key("target.server_model")),
    row(ALL, "training.training_seq_len", "2048", By("`data.max_length` and `train.batch_tokens`", |asked| rows_of(asked, asked.count("training.per_device_train_batch_size").unwrap_or(1)))),
    row(ALL, "training.answer_only_loss", "false", By("`data.mask`: `\"assistant\"`, or `\"all\"`", mask)),
    // Optimiser and schedule: those of Transformers.
    row(ALL, "training.learning_rate", "0.00005", Key("train.learning_rate")),
    row(ALL, "training.lr_scheduler_type", "\"linear\"", By("`train.schedule`; `warmup_stable_decay` is `wsd`, with `train.decay_ratio` and `train.decay_shape` by the two below", schedule)),
    row(ALL, DECAY_STEPS, "", Read("see `training.lr_scheduler_type`")),
    row(ALL, DECAY_TYPE, "\"cosine\"", Read("see `training.lr_scheduler_type`")),
    row(ALL, "training.lr_scheduler_kwargs.min_lr_ratio", "", By("`train.min_lr_ratio`", |asked| positive(asked, "train.min_lr_ratio"))),
    row(ALL, "training.num_train_epochs", "3", Key("train.epochs")),
    row(ALL, "training.max_steps", "", By("`train.steps`, in place of `num_train_epochs`", steps_of)),
    row(ALL, "training.warmup_steps", "0", Key("train.warmup_steps")),
    row(ALL, "training.warmup_ratio", "", By("`train.warmup_ratio`", |asked| positive(asked, "train.warmup_ratio"))),
    row(ALL, "training.weight_decay", "0.0", Key("train.weight_decay")),
    row(ALL, "training.max_grad_norm", "1.0", Key("train.max_grad_norm")),
    row(ALL, "training.adam_beta1", "0.9", Key("train.beta1")),
    row(ALL, "training.adam_beta2", "0.999", Key("train.beta2")),
    row(ALL, "training.adam_epsilon", "1e-8", Key("train.epsilon")),
    row(ALL, "training.per_device_train_batch_size", "8", Read("rows in a batch: see `training.training_seq_len`")),
    row(ALL, "training.gradient_accumulation_steps", "1", By("`train.gradient_accumulation`: the batches of one step, of all devices", batches)),
    row(ALL, PROCESSES, "", Read("see `training.gradient_accumulation_steps`")),
    row(ALL, "training.gradient_checkpointing", "false", Key("train.gradient_checkpointing")),
    row(ALL, "training.cp_size", "1", Nothing(NOT_SHARED)),
    row(ALL, "training.dp_shard_size", "", Nothing(NOT_SHARED)),
    row(ALL, "training.ddp_find_unused_parameters", "", Nothing(OWN)),
    row(ALL, "training.ddp_timeout", "", Nothing("a process that dies ends the others at once")),
    row(ALL, "training.dataloader_drop_last", "true", Nothing("a last batch that is not full counts by its tokens")),
    row(ALL, "training.remove_unused_columns", "", Nothing(OWN)),
    row(ALL, "training.bf16", "", By("`target.dtype = \"bf16\"`", bf16)),
    row(ALL, "training.tf32", "", Nothing("the device decides how it multiplies numbers in f32")),
    row(ALL, "training.optim", "\"adamw_torch_fused\"", By("`train.optimizer`, which is AdamW", optimizer)),
    row(ALL, "training.dataloader_num_workers", "0", Nothing(OWN)),
    row(ALL, "training.gradient_checkpointing_kwargs.*", "", Read("see `training.gradient_checkpointing`")),
    row(ALL, "training.seed", "42", Key("seed")),
    // What is kept and shown.
    row(ALL, "training.output_dir", "", Nothing("a run's files are in `runs/NAME`")),
    row(ALL, "training.logging_steps", "500", Key("train.log_every")),
    row(ALL, "training.save_steps", "500", Key("train.save_every")),
    row(ALL, "training.save_strategy", "\"steps\"", Nothing("states are saved every `train.save_every` steps")),
    row(ALL, "training.save_total_limit", "", Key("train.keep")),
    row(ALL, "training.eval_steps", "", Key("train.validate_every")),
    row(ALL, "training.eval_strategy", "\"no\"", Nothing(WHEN)),
    row(ALL, "training.run_name", "", By("`name`", name)),
    row(ALL, "training.do_eval", "false", Nothing(WHEN)),
    row(ALL, "training.estimate_ar", "false", Nothing(WHEN)),
    row(ALL, "training.ar_validate_steps", "", Nothing(WHEN)),
    row(ALL, "training.disable_tqdm", "", Nothing(OWN)),
    row(ALL, "training.report_to", "", Nothing(shared::TRACKED)),
];

const TEXT: &str = "spectrain trains on text";

/// A size of Llama's layer, whose default is ModelOpt's own and not the target's; other layers have other sizes.
fn llama_size(asked: &Asked, key: &'static str) -> Made {
    match asked.of("eagle.eagle_decoder_type").as_str() {
        Some("llama") => Made::key(key, asked.value.clone()),
        _ => Made::nothing(),
    }
}

fn llama_head_width(asked: &Asked) -> Made {
    match asked.of("eagle.eagle_decoder_type").as_str() {
        Some("llama") => shared::head_width(asked),
        _ => Made::nothing(),
    }
}

fn decoder_type(asked: &Asked) -> Made {
    match asked.value.as_str() {
        Some("llama") => Made::nothing(),
        _ => Made::note("the layer is Llama's, in the target's sizes"),
    }
}

fn rope_theta(asked: &Asked) -> Made {
    match asked.sizes() {
        Some(spec) if asked.value.as_f64() != Some(spec.rope.theta) => Made::note(format!(
            "the drafter keeps the target's rotary embedding, whose base is {}",
            spec.rope.theta
        )),
        _ => Made::nothing(),
    }
}

fn norm_epsilon(asked: &Asked) -> Made {
    match asked.sizes() {
        Some(spec) if asked.value.as_f64() != Some(spec.norm_epsilon) => Made::note(format!(
            "norms have the target's epsilon, {}",
            spec.norm_epsilon
        )),
        _ => Made::nothing(),
    }
}

fn optimizer(asked: &Asked) -> Made {
    match asked.value.as_str() {
        Some(name) if name.starts_with("adamw") && !name.contains("bit") => Made::nothing(),
        _ => Made::note("the optimiser is AdamW; `train.optimizer = \"muon\"` is Muon"),
    }
}

const ROPE: &str =
    "a drafter keeps the target's rotary embedding, with its scaling, in training as in the export";

fn slot_weights(asked: &Asked) -> Made {
    const KEY: &str = "objective.slot_weights";
    let decays = asked.of("dflash.dflash_loss_decay_factor").as_f64();
    match asked.value.as_str() {
        Some("decay") if decays.is_some_and(|gamma| gamma > 0.0) => Made::key(KEY, "exponential"),
        Some("decay") => Made::key(KEY, "uniform"),
        Some("dpace") if asked.of(DISTILLATION) != false => {
            Made::key(KEY, "d_pace").with_note(shared::PACED_BY_TEXT)
        }
        Some("dpace") => Made::key(KEY, "d_pace"),
        _ => Made::expected("`dpace` or `decay`"),
    }
}

/// The weight of a selector's loss. There its slots count the same, and those without their token among the candidates not at all.
fn selector_weight(asked: &Asked) -> Made {
    let made = Made::key("objective.selector_weight", asked.value.clone());
    if asked.value.as_f64() == Some(0.0) {
        return made;
    }
    let falls = asked.of("dflash.dflash_loss_decay_factor").as_f64() > Some(0.0);
    let is_even = asked.of(OBJECTIVE) == "decay" && !falls;
    let weights = match is_even {
        true => "",
        false => {
            "; there all slots count the same, here as in that of the layers (`objective.slot_weights`)"
        }
    };
    made.with_note(format!(
        "there the selector's loss is divided by the slots that have their token among the candidates, here by all{weights}"
    ))
}

/// The width inside the feed-forward parts of a lattice, as its trainer rounds it; by default it is twice the width.
fn width_inside_lattice(asked: &Asked) -> Made {
    let own = asked.count(WIDTH_OF_LATTICE).filter(|&width| width > 0);
    let width = own.or_else(|| Some(asked.sizes()?.d_model as u64));
    match (asked.value.as_f64(), width) {
        (Some(2.0), _) => Made::nothing(),
        (Some(ratio), Some(width)) if ratio > 0.0 => {
            Made::key("drafter.lattice.d_ff", (width as f64 * ratio) as u64)
        }
        (Some(_), None) => Made::note(
            "set `drafter.lattice.d_ff` to so many times the target's width, which is not known here",
        ),
        _ => Made::expected("a number above 0"),
    }
}

fn causal(asked: &Asked) -> Made {
    match asked.value.as_str() {
        Some(kind @ ("causal" | "bidirectional")) => Made::key("drafter.causal", kind == "causal"),
        _ => Made::expected("`causal` or `bidirectional`"),
    }
}

fn distillation(asked: &Asked) -> Made {
    match asked.value {
        Value::Bool(false) => Made::note(
            "the loss is by the target's distributions; `objective.divergence = \"ce\"` is by its likeliest tokens",
        ),
        _ => Made::nothing(),
    }
}

fn labels_or_teacher(asked: &Asked) -> Made {
    let taught = asked.value != false;
    let weights = [f64::from(u8::from(!taught)), f64::from(u8::from(taught))];
    Made::keys([
        ("objective.label_weight", json!(weights[0])),
        ("objective.teacher_weight", json!(weights[1])),
    ])
}

fn confidence(asked: &Asked) -> Made {
    if asked.of("dflash.dflash_architecture_config.use_confidence_head") == true {
        return Made::key("objective.confidence_weight", asked.value.clone());
    }
    Made::nothing()
}

fn mask(asked: &Asked) -> Made {
    Made::key(
        "data.mask",
        if asked.value == true {
            "assistant"
        } else {
            "all"
        },
    )
}

fn schedule(asked: &Asked) -> Made {
    match asked.value.as_str() {
        Some(same @ ("linear" | "cosine" | "constant")) => Made::key("train.schedule", same),
        Some("constant_with_warmup") => Made::key("train.schedule", "constant"),
        Some("warmup_stable_decay") => falls_at_the_end(asked),
        _ => Made::note(shared::SCHEDULES),
    }
}

/// A rate that stays as it is and falls over the last steps.
fn falls_at_the_end(asked: &Asked) -> Made {
    let shape = match asked.of(DECAY_TYPE).as_str() {
        Some(same @ ("linear" | "cosine")) => same.to_owned(),
        Some("1-sqrt") => "minus_sqrt".to_owned(),
        _ => return Made::expected("a `decay_type` of `linear`, `cosine` or `1-sqrt`"),
    };
    let mut made = Made::keys([
        ("train.schedule", json!("wsd")),
        ("train.decay_shape", json!(shape)),
    ]);
    match (asked.count(DECAY_STEPS), asked.count("training.max_steps")) {
        (Some(falls), Some(steps)) if falls > 0 && falls <= steps => {
            // Rounded up: a share that is a little too small would be a step less.
            let millionths = falls.saturating_mul(1_000_000).div_ceil(steps);
            let share = millionths as f64 / 1e6;
            made.keys.push(("train.decay_ratio", json!(share)));
            made
        }
        _ => made.with_note(
            "set `train.decay_ratio` to `num_decay_steps` by the number of steps, which is not known here",
        ),
    }
}

fn batches(asked: &Asked) -> Made {
    let processes = match asked.of(PROCESSES) {
        Value::Null => Some(1),
        launched => launched.as_u64(),
    };
    let processes = shared::batches_apart(processes, asked.count("training.cp_size"));
    accumulate(asked.whole().unwrap_or(1), processes)
}

fn bf16(asked: &Asked) -> Made {
    match asked.value {
        Value::Bool(true) => Made::key("target.dtype", "bf16"),
        Value::Bool(false) | Value::Null => Made::nothing(),
        _ => Made::expected("true or false"),
    }
}
