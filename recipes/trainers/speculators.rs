//! speculators (<https://github.com/vllm-project/speculators>): `speculators train`, its flags and its `run.yaml`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use spectrain_checkpoints::eagle3::paper_layers;

use super::rows::Becomes::{Key, Made as By, Nothing, Read};
use super::rows::{Asked, Made, Program, Row, Trainer, row};
use super::settings::PROCESSES;
use super::shared::{
    self, NOT_SHARED, TRACKED, accumulate, divergence, dtype_of, held_out, layers_before,
    matrix_decay, matrix_rate, name, one_layer, only_false, rows_of, server, sizes_file, steps_of,
};
use super::speculators_data::{
    REGENERATE, anew, answered, endpoint, limit, prepared, preprocessed, sampling, temperature,
};

const ALL: &[&str] = &[];
const EAGLE3: &[&str] = &["eagle3"];
const PEAGLE: &[&str] = &["peagle"];
const EAGLES: &[&str] = &["eagle3", "peagle"];
const MTP: &[&str] = &["mtp"];
const FEATURES: &[&str] = &["eagle3", "peagle", "dflash", "dspark", "dflash2", "xpress"];
const MASKED: &[&str] = &["peagle", "dflash", "dspark", "dflash2", "xpress"];
const BLOCKS: &[&str] = &["dflash", "dspark", "dflash2", "xpress"];
const SHORT_BLOCKS: &[&str] = &["dspark", "dflash2"];
const LONG_BLOCKS: &[&str] = &["dflash", "xpress"];
const XPRESS: &[&str] = &["xpress"];

/// `speculators train`.
pub(super) const SPECULATORS: Trainer = Trainer {
    name: "speculators",
    version: "0.9",
    kinds: &[
        ("eagle3", "eagle3"),
        ("peagle", "peagle"),
        ("dflash", "dflash"),
        ("dflash2", "dflash"),
        ("dspark", "dflash"),
        ("xpress", "dflash"),
        ("mtp", "mtp-qwen"),
    ],
    rows: ROWS,
    always: &[
        (ALL, "train.max_grad_norm", "1.0"),
        (ALL, "train.beta2", "0.999"),
        (ALL, "data.overlong", "\"truncate\""),
        (BLOCKS, "objective.divide_by_count", "true"),
        (XPRESS, "drafter.markov", "\"xpress\""),
        (EAGLES, "export.to", "[\"vllm\"]"),
    ],
    kind: |settings| {
        let kind = settings.get("speculator_type").and_then(Value::as_str);
        kind.unwrap_or("eagle3").to_owned()
    },
    is_of: |flat| {
        let mut keys = flat.keys();
        keys.any(|key| key.ends_with("verifier_name_or_path") || key.starts_with("train.verifier"))
    },
    named: |name| name.rsplit('.').next().unwrap_or(name),
    programs: &[
        Program::named(&["speculators", "train"]),
        Program::named(&["train.py"]),
    ],
    before: &[
        (&["speculators", "prepare-data"], "prepare_data."),
        (&["prepare_data.py"], "prepare_data."),
        (&["speculators", "regenerate-responses"], REGENERATE),
        (&["response_regeneration/script.py"], REGENERATE),
    ],
    repeated: &["prepare_data.data"],
    further: Some(("draft_config", "draft_config.")),
};

const NO_PATHS: &str = "a run's files are in `runs/NAME`";
const LOADING: &str = "spectrain's own reading of data needs no such setting";
const PREPARED: &str = "spectrain prepares the data itself, in the run's folder";
const COUNTED: &str = "spectrain counts the tokens of the training data itself; `start` keeps the draft vocabulary of a drafter";
const CODE: &str = "spectrain runs no code of a model's folder";

// One setting a line, as a table.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    // The target and the drafter.
    row(ALL, "speculator_type", "\"eagle3\"", Read("`recipe`")),
    row(ALL, "verifier_name_or_path", "", Key("target.model")),
    row(ALL, "trust_remote_code", "false", Nothing(CODE)),
    row(ALL, "from_pretrained", "", Key("start")),
    row(ALL, "draft_config", "", By("its sizes, as below", |asked| sizes_file(asked, "draft_config.", "`d_ff`, `heads`, `kv_heads`, `d_head`"))),
    row(FEATURES, "draft_config.intermediate_size", "", Key("drafter.d_ff")),
    row(FEATURES, "draft_config.num_attention_heads", "", Key("drafter.heads")),
    row(FEATURES, "draft_config.num_key_value_heads", "", Key("drafter.kv_heads")),
    row(FEATURES, "draft_config.head_dim", "", By(shared::WIDTH_IN_FILE, |asked| shared::head_width_in_file(asked, "draft_config.", None))),
    row(EAGLES, "num_layers", "1", Key("drafter.layers")),
    row(BLOCKS, "num_layers", "5", Key("drafter.layers")),
    row(MTP, "num_layers", "1", By("only 1 is possible", |asked| one_layer(&asked.value))),
    row(EAGLE3, "draft_arch", "\"llama\"", By(HEAD_NORM, head_norm)),
    row(PEAGLE, "draft_arch", "\"qwen3\"", By(HEAD_NORM, head_norm)),
    row(ALL, "draft_arch", "", Nothing("layers are as the engines have them: Qwen3's")),
    row(EAGLES, "draft_config.model_type", "", Read("see `draft_arch`")),
    row(ALL, "draft_hidden_act", "\"silu\"", Nothing("layers have SiLU, as engines expect")),
    row(ALL, "draft_mrope_full_head_hack", "true", Nothing("spectrain reads targets with such positions from a server alone")),
    row(EAGLES, "target_layer_ids", "", By("`drafter.captured_layers`, each one less: spectrain counts outputs, speculators inputs", layers_before)),
    row(BLOCKS, "target_layer_ids", "", By("`drafter.captured_layers`, each one less; without it [1, n/2 − 1, n − 4] of the n layers", block_layers)),
    row(EAGLES, "draft_vocab_size", "", Key("drafter.draft_vocab")),
    row(ALL, "token_freq_path", "", Nothing(COUNTED)),
    row(ALL, "d2t_path", "", Nothing(COUNTED)),
    row(ALL, "t2d_path", "", Nothing(COUNTED)),
    row(MASKED, "mask_token_id", "", Key("drafter.mask_token")),
    row(EAGLES, "norm_before_residual", "true", Key("drafter.norm_before_residual")),
    row(EAGLE3, "norm_before_fc", "true", Key("drafter.norm_before_fc")),
    row(PEAGLE, "norm_before_fc", "false", Key("drafter.norm_before_fc")),
    row(EAGLES, "fc_norm", "false", Key("drafter.fc_norm")),
    row(EAGLE3, "norm_output", "true", Key("drafter.norm_output")),
    row(PEAGLE, "embed_requires_grad", "false", By("`drafter.shared_embeddings`, the opposite", |asked| Made::key("drafter.shared_embeddings", !asked.value.as_bool().unwrap_or_default()))),
    row(ALL, "embed_requires_grad", "false", Nothing("the target's embeddings stay frozen")),
    row(EAGLES, "sliding_window", "2048", By("`drafter.window`; 0 where `full_attention_indices` names every layer", window)),
    row(BLOCKS, "sliding_window", "2048", By("`drafter.window`, and `drafter.causal` unless `sliding_window_non_causal`; `full_attention_indices` is `drafter.full_layers`, or `window = 0` where it names all layers", window)),
    row(ALL, "sliding_window", "2048", Nothing("the layers see the whole text")),
    row(FEATURES, "full_attention_indices", "[]", Read("see `sliding_window`")),
    row(&["dflash2"], "sliding_window_non_causal", "true", Read("see `sliding_window`")),
    row(&["dflash", "dspark", "xpress"], "sliding_window_non_causal", "false", Read("see `sliding_window`")),
    row(FEATURES, "draft_config.num_hidden_layers", "", Key("drafter.layers")),
    row(FEATURES, "draft_config.layer_types", "", By("`drafter.window`, that of `draft_config.sliding_window`; the file of `draft_config` goes before `sliding_window`", window_of_file)),
    row(FEATURES, "draft_config.sliding_window", "", Read("see `draft_config.layer_types`")),
    row(FEATURES, "draft_config.use_sliding_window", "", Read("see `draft_config.layer_types`")),
    row(ALL, "draft_attn_impl", "\"simple_flex_attention\"", Nothing("there is one attention")),
    // Blocks.
    row(LONG_BLOCKS, "block_size", "16", Key("drafter.block_size")),
    row(SHORT_BLOCKS, "block_size", "8", Key("drafter.block_size")),
    row(&["dspark"], "sample_from_anchor", "true", Key("drafter.sample_from_anchor")),
    row(&["dflash", "dflash2"], "sample_from_anchor", "false", Key("drafter.sample_from_anchor")),
    row(XPRESS, "sample_from_anchor", "false", By("only false is possible", |asked| only_false(asked, "the bias of XPress is not known with it, so the anchor predicts no token"))),
    row(&["dflash"], "per_position_loss_weight", "\"dpace\"", By(SLOT_WEIGHTS, slot_weights)),
    row(&["dspark", "dflash2", "xpress"], "per_position_loss_weight", "\"fixed-exp-decay\"", By(SLOT_WEIGHTS, slot_weights)),
    row(BLOCKS, "dflash_decay_gamma", "4.0", Key("objective.decay_slots")),
    row(BLOCKS, "dpace_alpha", "0.5", Key("objective.certainty")),
    row(BLOCKS, "max_anchors", "512", Key("objective.anchors")),
    row(PEAGLE, "max_anchors", "512", By("nothing: rows of masks start at every position that counts, of which `objective.keep` keeps some", |_| Made::note(MASKS))),
    row(&["dflash2"], "conv_kernel_size", "2", Key("drafter.conv_taps")),
    row(&["dflash2"], "conv_group_size", "16", Key("drafter.conv_group")),
    row(&["dflash2"], "selector_rank", "256", Key("drafter.selector_rank")),
    row(&["dflash2"], "selector_top_k", "16", Key("drafter.selector_top_k")),
    row(&["dflash2"], "selector_loss_alpha", "1.0", Key("objective.selector_weight")),
    row(&["dspark"], "markov_rank", "256", Key("drafter.markov_rank")),
    row(&["dspark"], "markov_head_type", "\"vanilla\"", Key("drafter.markov")),
    row(&["dspark"], "enable_confidence_head", "true", Key("drafter.confidence")),
    row(&["dspark"], "confidence_head_with_markov", "true", Nothing("the confidence head reads the code of the token before wherever there is a `markov_rank`")),
    row(&["dspark"], "confidence_head_alpha", "1.0", Key("objective.confidence_weight")),
    row(XPRESS, "xpress_rank", "256", Key("drafter.markov_rank")),
    row(XPRESS, "xpress_mlp_ratio", "2", By("`drafter.markov_d_ff`, as many times `xpress_rank`", refiner_width)),
    row(XPRESS, "num_jacobi_passes", "6", Key("drafter.markov_passes")),
    row(XPRESS, "consistency_weight", "0.3", Key("objective.consistency_weight")),
    row(XPRESS, "consistency_passes", "3", By("`objective.consistency_passes`; 0 is `objective.consistency_weight = 0`", consistency_passes)),
    row(XPRESS, "base_anchor_weight", "0.6", Key("objective.guess_weight")),
    row(XPRESS, "base_anchor_full_weight", "false", By("only false is possible", |asked| only_false(asked, "the loss of guesses weighs slots as the others do (`objective.slot_weights`)"))),
    row(XPRESS, "ce_from_data", "false", By("only false is possible", |asked| only_false(asked, TEXT_LABELS))),
    row(ALL, "xpress_rank", "", Nothing(OF_XPRESS)),
    row(ALL, "xpress_mlp_ratio", "", Nothing(OF_XPRESS)),
    row(ALL, "num_jacobi_passes", "", Nothing(OF_XPRESS)),
    row(ALL, "consistency_weight", "", Nothing(OF_XPRESS)),
    row(ALL, "consistency_passes", "", Nothing(OF_XPRESS)),
    row(ALL, "base_anchor_weight", "", Nothing(OF_XPRESS)),
    row(ALL, "ce_from_data", "", Nothing(OF_XPRESS)),
    row(ALL, "base_anchor_full_weight", "", Nothing(OF_XPRESS)),
    // Losses and steps.
    row(EAGLES, "loss_fn", "\"kl_div\"", By("`objective.divergence`", divergence_of)),
    row(MTP, "loss_fn", "\"kl_div\"", By("nothing: speculators trains MTP with the cross-entropy of the text, whatever this says", |_| Made::note(format!("speculators' MTP does not read it: {}", shared::BY_TEXT)))),
    row(&["dflash"], "loss_fn", "\"ce\"", By("`objective.divergence` to the target, with `teacher_weight = 1`", block_loss)),
    row(XPRESS, "loss_fn", "{\"ce\": 0.1, \"tv\": 0.9}", By("`objective.divergence` to the target, with `teacher_weight = 1`", block_loss)),
    row(SHORT_BLOCKS, "loss_fn", "\"kl_div\"", By("`objective.divergence` to the target, with `teacher_weight = 1`", block_loss)),
    row(ALL, "loss_implementation", "\"fused\"", Nothing("losses never hold the logits of a whole batch")),
    row(EAGLE3, "ttt_steps", "3", Key("objective.draft_steps")),
    row(EAGLE3, "ttt_step_loss_decay", "1.0", Key("objective.decay")),
    row(MTP, "num_speculative_steps", "3", Key("objective.draft_steps")),
    row(MTP, "step_weight_beta", "0.6", Key("objective.decay")),
    row(PEAGLE, "num_depths", "8", Key("objective.draft_tokens")),
    row(PEAGLE, "down_sample_ratio", "0.7", Key("objective.keep")),
    row(PEAGLE, "down_sample_ratio_min", "0.2", Key("objective.keep_least")),
    // Data.
    row(ALL, "prepare_data.data", "", By("`data.train`, or `data.preset` where it is the name of one; `hf:org/name:subset:split` is `hf://org/name:subset/split`; nothing where it is what `regenerate.dataset` was made into", prepared)),
    row(ALL, "prepare_data.model", "", By("nothing: the target is `verifier_name_or_path`", another_target)),
    row(ALL, "prepare_data.output", "", Nothing(PREPARED)),
    row(ALL, "prepare_data.overwrite", "", Nothing(PREPARED)),
    row(ALL, "prepare_data.allow_empty_output", "", Nothing(PREPARED)),
    row(ALL, "prepare_data.render_endpoint", "", Nothing(PREPARED)),
    row(ALL, "prepare_data.num_preprocessing_workers", "", Nothing(LOADING)),
    row(ALL, "prepare_data.seed", "", Nothing("`seed` is that of the training")),
    row(ALL, "prepare_data.token_freq_path", "", Nothing(COUNTED)),
    row(ALL, "prepare_data.skip_token_freq", "", Nothing(COUNTED)),
    row(ALL, "prepare_data.trust_remote_code", "", Nothing(CODE)),
    row(ALL, "prepare_data.seq_length", "", Nothing("`total_seq_len` is the length of rows")),
    row(ALL, "prepare_data.minimum_valid_tokens", "", Key("data.min_trained_tokens")),
    row(ALL, "prepare_data.max_samples", "", Key("data.max_samples")),
    row(ALL, "regenerate.dataset", "\"ultrachat\"", By("`data.train`, or `data.preset` where it is the name of one, if the script trains on what the command writes; where that file is there already, it is `data.train`, without `[regenerate]`", answered)),
    row(ALL, "regenerate.outfile", "", Read("see `regenerate.dataset`")),
    row(ALL, "regenerate.split", "", By(OWN_SPLIT, |asked| anew(asked, |_| Made::note(OWN_SPLIT)))),
    row(ALL, "regenerate.subset", "", By(OWN_SPLIT, |asked| anew(asked, |_| Made::note(OWN_SPLIT)))),
    row(ALL, "regenerate.limit", "", By("`data.max_samples`, unless `prepare_data.max_samples` is smaller", |asked| anew(asked, limit))),
    row(ALL, "regenerate.language_filter", "", By(ALL_LANGUAGES, |asked| anew(asked, |_| Made::note(ALL_LANGUAGES)))),
    row(ALL, "regenerate.endpoint", "\"http://127.0.0.1:8000/v1/chat/completions\"", By("`regenerate.server`, with `failed = \"drop\"`: what gets no answer is left out", |asked| anew(asked, endpoint))),
    row(ALL, "regenerate.model", "", By("`regenerate.model`", |asked| regenerated(asked, "regenerate.model"))),
    row(ALL, "regenerate.max_tokens", "8192", By("`regenerate.max_tokens`", |asked| regenerated(asked, "regenerate.max_tokens"))),
    row(ALL, "regenerate.concurrency", "64", By("`regenerate.concurrency`", |asked| regenerated(asked, "regenerate.concurrency"))),
    row(ALL, "regenerate.max_retries", "3", By("`regenerate.retries`", |asked| regenerated(asked, "regenerate.retries"))),
    row(ALL, "regenerate.sampling_params", "", By("`regenerate.temperature`, `top_p` and `seed`; `chat_template_kwargs` in it is `data.template_variables`, the rest `regenerate.extra`", |asked| anew(asked, sampling))),
    row(ALL, "regenerate.temperature", "", By("`regenerate.temperature`, where it is only one", |asked| anew(asked, temperature))),
    row(ALL, "regenerate.reasoning_effort", "", By(ONE_TEMPLATE, |asked| anew(asked, |_| Made::note(ONE_TEMPLATE)))),
    row(ALL, "regenerate.seed", "", By("nothing: it draws from `regenerate.temperature` and `regenerate.reasoning_effort`", |asked| anew(asked, |_| Made::note(DRAWN)))),
    row(ALL, "regenerate.resume", "", By(RESUMED, |asked| anew(asked, |_| Made::note(RESUMED)))),
    row(ALL, "data_path", "", By("nothing: this is the dataset that `speculators prepare-data` made; spectrain reads the conversations themselves (`prepare_data.data`, or `--data`)", preprocessed)),
    row(ALL, "total_seq_len", "8192", By("`data.max_length` and `train.batch_tokens`", |asked| rows_of(asked, 1))),
    row(ALL, "train_data_ratio", "0.9", By("`data.held_out`, the rest", held_out)),
    row(ALL, "hidden_states_dtype", "", By("`target.dtype`", dtype_of)),
    row(ALL, "hidden_states_backend", "", By(NO_SERVER, of_states)),
    row(ALL, "hidden_states_path", "", Nothing("`spectrain features converter` and `spectrain features import` read such files; the recipe then has `features.mode = \"imported\"`")),
    row(ALL, "mooncake_*", "", Nothing("hidden states come through files (`target.server_folder`), or from another machine through `spectrain relay`")),
    row(ALL, "num_workers", "", Nothing(LOADING)),
    row(ALL, "prefetch_factor", "", Nothing(LOADING)),
    row(ALL, "vllm_endpoint", "", By("`target.server`, with `features.mode = \"streamed\"`", server)),
    row(ALL, "on_missing", "", By(NO_SERVER, of_states)),
    row(ALL, "on_generate", "", By(NO_SERVER, of_states)),
    row(ALL, "request_timeout", "", By("`features.timeout`, with `vllm_endpoint`", timeout)),
    row(ALL, "max_retries", "", Nothing("a server that fails gets no requests for a while, and others take over")),
    row(ALL, "generation_validation_retries", "", Nothing("states that are not finite end the run")),
    row(ALL, "max_consecutive_generation_failures", "", Nothing("where no server answers any more, the run ends")),
    // Optimiser and schedule.
    row(ALL, "optimizer", "\"muon\"", Key("train.optimizer")),
    row(ALL, "lr", "0.001", Key("train.learning_rate")),
    row(ALL, "muon_lr", "", By("`train.matrix_learning_rate`, times 0.2 √width unless `muon_adjust_lr_fn` is `original`", muon_rate)),
    row(ALL, "muon_adjust_lr_fn", "\"match_rms_adamw\"", Read("see `muon_lr` and `muon_weight_decay`")),
    row(ALL, "muon_momentum", "0.95", By("`train.muon_momentum`", muon_momentum)),
    row(ALL, "muon_weight_decay", "0.1", By("`train.weight_decay` with Muon, divided by 0.2 √width unless `muon_adjust_lr_fn` is `original`", muon_decay)),
    row(ALL, "muon_ns_steps", "5", Nothing("there are always five")),
    row(ALL, "weight_decay", "0.01", By("`train.weight_decay`, unless the optimiser is Muon", adamw_decay)),
    row(ALL, "scheduler_type", "\"linear\"", By("`train.schedule`; `none` is `constant`", schedule)),
    row(ALL, "scheduler_num_cosine_cycles", "0.5", Nothing("the cosine falls once, as with 0.5")),
    row(ALL, "scheduler_total_steps", "", Nothing("the schedule ends with the training")),
    row(ALL, "epochs", "20", Key("train.epochs")),
    row(ALL, "max_steps", "", By("`train.steps`, in place of `epochs`", steps_of)),
    row(ALL, "scheduler_warmup_steps", "", By("`train.warmup_steps`; none with `scheduler_type = \"none\"`", warm_up_steps)),
    row(ALL, "scheduler_warmup_ratio", "", By("`train.warmup_ratio`, where the schedule is made for a number of steps `train.warmup_steps`; without both, a hundredth of the steps", warm_up)),
    row(ALL, PROCESSES, "1", By("`train.gradient_accumulation`: the batches of one step", |asked| accumulate(1, asked.value.as_u64()))),
    // What is kept and shown.
    row(ALL, "checkpoint_freq", "", Nothing("`train.save_every` and `train.validate_every` count steps")),
    row(ALL, "save_best", "", Nothing("the weights with the best τ on held-out prompts are always kept, and exported")),
    row(ALL, "no_resume_from_checkpoint", "", Nothing("`spectrain recipe` goes on with a run of that name; `--fresh` begins it anew")),
    row(ALL, "log_freq", "", Key("train.log_every")),
    row(ALL, "save_path", "", Nothing(NO_PATHS)),
    row(ALL, "log_dir", "", Nothing(NO_PATHS)),
    row(ALL, "logger", "", Nothing(TRACKED)),
    row(ALL, "run_name", "", By("`name`", name)),
    row(ALL, "fsdp_shard", "", Nothing(NOT_SHARED)),
    row(EAGLE3, "gradient_checkpointing", "false", Nothing("`objective.recompute` computes the unrolled steps again, and is on unless it is set to false")),
    row(ALL, "gradient_checkpointing", "", Key("train.gradient_checkpointing")),
    row(ALL, "seed", "42", Key("seed")),
    row(ALL, "deterministic_cuda", "", Nothing("on the CPU a run is the same bit for bit each time; on a GPU sums may differ")),
    row(ALL, "dry_run", "", Nothing("`spectrain recipe FILE --plan` checks a recipe without training")),
];

const OWN_SPLIT: &str = "a preset is read in its own split; in `data.train`, `hf://org/name:subset/split` is another one";
const ALL_LANGUAGES: &str = "no conversations are left out by their language";
const ONE_TEMPLATE: &str = "`data.template_variables` has what the target's template reads, the same for all conversations";
const RESUMED: &str = "`spectrain recipe` goes on with a run of that name by itself";

/// What is said of a model that the data is prepared with, where it is not the target.
fn another_target(asked: &Asked) -> Made {
    match &asked.value {
        Value::Null => Made::nothing(),
        same if *same == asked.of("verifier_name_or_path") => Made::nothing(),
        _ => Made::note("the target is `verifier_name_or_path`"),
    }
}

/// A key of `[regenerate]` with the value that was given.
fn regenerated(asked: &Asked, key: &'static str) -> Made {
    anew(asked, |asked| Made::key(key, asked.value.clone()))
}

const HEAD_NORM: &str = "`drafter.head_norm`, with `qwen3`; the `model_type` of the file of `draft_config` goes before it";

/// Whether queries and keys are normed, which is what Qwen3's layers have and Llama's have not.
fn head_norm(asked: &Asked) -> Made {
    let is_named = |key: &str| !matches!(asked.of(key).as_str(), None | Some(""));
    let is_given = asked.given.settings.contains_key("draft_arch");
    let is_of_file = is_named("from_pretrained") || is_named("draft_config");
    let has_norm = match (asked.of("draft_config.model_type"), asked.value.as_str()) {
        // What another drafter, or a file that is not here, has cannot be told.
        (Value::Null, _) if !is_given && is_of_file => return Made::nothing(),
        (Value::Null, Some(arch @ ("llama" | "qwen3"))) => arch == "qwen3",
        (Value::Null, _) => return Made::expected("`llama` or `qwen3`"),
        (of_file, _) => of_file == "qwen3",
    };
    Made::key("drafter.head_norm", has_norm)
}

const MASKS: &str = "there at most this many positions of a row, drawn at random, are followed by masks; here all that count, of which \
                     `objective.keep` and `objective.keep_least` keep a share";
const DRAWN: &str = "it draws from `regenerate.temperature` and `regenerate.reasoning_effort`, from which nothing is drawn here";
const OF_XPRESS: &str = "only XPress reads it";
const TEXT_LABELS: &str = "here the cross-entropy of `loss_fn` is with the target's likeliest tokens; that with the text's is `objective.label_weight`, and \
                           `objective.divergence` then goes without `ce`";

/// The width inside the feed-forward part of XPress' head.
fn refiner_width(asked: &Asked) -> Made {
    let (ratio, rank) = (asked.whole(), asked.count("xpress_rank"));
    let width = ratio.zip(rank);
    match width.and_then(|(ratio, rank)| ratio.checked_mul(rank)) {
        Some(width) => Made::key("drafter.markov_d_ff", width),
        None => Made::expected("a whole number"),
    }
}

/// The losses behind tokens that the drafter has drafted: here there is at least one, which may weigh nothing.
fn consistency_passes(asked: &Asked) -> Made {
    match asked.whole() {
        Some(0) => Made::key("objective.consistency_weight", 0.0),
        Some(passes) => Made::key("objective.consistency_passes", passes),
        None => Made::expected("a number of passes"),
    }
}

const SLOT_WEIGHTS: &str =
    "`objective.slot_weights`: `fixed-exp-decay` is `exponential`, `dpace` is `d_pace`";

fn slot_weights(asked: &Asked) -> Made {
    const KEY: &str = "objective.slot_weights";
    match asked.value.as_str() {
        Some("dpace") => Made::key(KEY, "d_pace").with_note(
            "there D-PACE takes a slot's chance from its loss, as exp(−loss), which with `loss_fn = ce` is the drafter's probability \
             of the target's likeliest token; here it is the acceptance rate, Σ min(p, q)",
        ),
        Some("fixed-exp-decay") => Made::key(KEY, "exponential"),
        _ => Made::expected("`fixed-exp-decay` or `dpace`"),
    }
}

/// The layers that a block drafter reads: the library's default has three, ours five.
fn block_layers(asked: &Asked) -> Made {
    if !asked.value.is_null() {
        return layers_before(asked);
    }
    let target = asked.sizes();
    match target.map(|spec| spec.layers) {
        Some(layers) => match paper_layers(layers) {
            three if three.len() == 3 => Made::key("drafter.captured_layers", three),
            // These are not three layers.
            _ => Made::nothing(),
        },
        None => Made::note(
            "speculators reads the outputs of layers 1, n/2 − 1 and n − 4 of the target's n; set `drafter.captured_layers` to these \
             (its sizes are not known here)",
        ),
    }
}

/// The window of the layers. Blocks see only what is before them in it unless a setting says otherwise.
fn window(asked: &Asked) -> Made {
    let is_block = BLOCKS.contains(&asked.kind);
    let layers = asked.count("num_layers").unwrap_or(1);
    let full: BTreeSet<u64> = match asked.of("full_attention_indices") {
        Value::Array(indices) => indices.iter().filter_map(Value::as_u64).collect(),
        index => index.as_u64().into_iter().collect(),
    };
    let width = match asked.value.as_u64() {
        _ if full.len() as u64 >= layers => 0,
        Some(width) if is_block || full.is_empty() => width,
        _ => return Made::note("set `drafter.window`, how many positions back the layer sees"),
    };
    let mut made = Made::key("drafter.window", width);
    if is_block && width > 0 {
        let is_causal = asked.of("sliding_window_non_causal") != true;
        made.keys.push(("drafter.causal", json!(is_causal)));
        if !full.is_empty() {
            made.keys.push(("drafter.full_layers", json!(full)));
            made.keys
                .push(("drafter.full_layers_see_block", json!(is_causal)));
        }
    }
    made
}

/// The windows of layers whose sizes are from a file: `sliding_window` and `full_attention_indices` are not for them.
fn window_of_file(asked: &Asked) -> Made {
    let mut keys = asked.given.settings.keys();
    if !keys.any(|key| key.starts_with("draft_config.")) {
        return Made::nothing();
    }
    let types = match &asked.value {
        Value::Array(types) => &types[..],
        Value::Null => &[],
        _ => return Made::expected("the types of all layers"),
    };
    let sliding = types
        .iter()
        .filter(|kind| **kind == "sliding_attention")
        .count();
    match asked.count("draft_config.sliding_window") {
        _ if sliding == 0 => Made::keys([
            ("drafter.window", json!(0)),
            ("drafter.causal", Value::Null),
            ("drafter.full_layers", Value::Null),
            ("drafter.full_layers_see_block", Value::Null),
        ]),
        Some(width) if sliding == types.len() => Made::key("drafter.window", width),
        _ => Made::note("set `drafter.window` and `drafter.full_layers` by the file"),
    }
}

fn divergence_of(asked: &Asked) -> Made {
    match divergence(&asked.value) {
        Some(found) => Made::key("objective.divergence", found),
        None => Made::note("set `objective.divergence`"),
    }
}

/// A loss of block drafters: its labels are the target's, not the text's.
fn block_loss(asked: &Asked) -> Made {
    match divergence(&asked.value) {
        Some(found) => Made::keys([
            ("objective.label_weight", json!(0.0)),
            ("objective.teacher_weight", json!(1.0)),
            ("objective.divergence", found),
        ]),
        None => Made::note(
            "set `objective.divergence` with `teacher_weight = 1.0` and `label_weight = 0.0`",
        ),
    }
}

fn has_muon(asked: &Asked) -> bool {
    asked.of("optimizer") == "muon"
}

/// Whether Muon's rate is in the units of its author.
fn is_original(asked: &Asked) -> bool {
    asked.of("muon_adjust_lr_fn") == "original"
}

fn muon_momentum(asked: &Asked) -> Made {
    if has_muon(asked) {
        Made::key("train.muon_momentum", asked.value.clone())
    } else {
        Made::nothing()
    }
}

/// Without a schedule the rate is the same from the first step on.
fn has_schedule(asked: &Asked) -> bool {
    asked.of("scheduler_type") != "none"
}

fn warm_up_steps(asked: &Asked) -> Made {
    match &asked.value {
        _ if !has_schedule(asked) => Made::key("train.warmup_steps", 0),
        Value::Null => Made::nothing(),
        steps => Made::key("train.warmup_steps", steps.clone()),
    }
}

fn warm_up(asked: &Asked) -> Made {
    if !has_schedule(asked) || !asked.of("scheduler_warmup_steps").is_null() {
        return Made::nothing();
    }
    let share = match asked.value.as_f64() {
        None if !asked.value.is_null() => return Made::expected("a number"),
        share => share.unwrap_or(0.01),
    };
    let horizon = asked
        .count("scheduler_total_steps")
        .or(asked.count("max_steps"));
    shared::warm_up(share, horizon)
}

const NO_SERVER: &str = "nothing: `features.mode` says where hidden states come from: from the server of `vllm_endpoint` all of them, and \
                         without it spectrain computes them itself";

/// How hidden states that were not stored before are had.
fn of_states(asked: &Asked) -> Made {
    if asked.value.is_null() {
        return Made::nothing();
    }
    match asked.of("vllm_endpoint") {
        Value::Null => Made::note(
            "spectrain computes the target's hidden states itself, as the script names no server (`vllm_endpoint`)",
        ),
        _ => Made::note(
            "the server computes the hidden states of all texts while the drafter trains, in every epoch; with `features.mode = \
             \"served\"` it does so once, and they are written to the disk",
        ),
    }
}

fn timeout(asked: &Asked) -> Made {
    match (asked.of("vllm_endpoint"), asked.value.as_f64()) {
        (_, None) if !asked.value.is_null() => Made::expected("a number of seconds"),
        (Value::Null, _) => Made::nothing(),
        (_, seconds) => {
            let seconds = seconds.unwrap_or(600.0);
            Made::key("features.timeout", seconds.ceil() as u64)
        }
    }
}

fn muon_rate(asked: &Asked) -> Made {
    if !has_muon(asked) {
        return Made::nothing();
    }
    let is_given = !asked.value.is_null();
    let rate = match is_given {
        true => asked.value.as_f64(),
        false => asked.of("lr").as_f64(),
    };
    match rate {
        Some(rate) => matrix_rate(rate, is_original(asked), asked.sizes()),
        None if is_given => Made::expected("a number"),
        None => Made::nothing(),
    }
}

fn muon_decay(asked: &Asked) -> Made {
    if !has_muon(asked) {
        return Made::nothing();
    }
    match asked.value.as_f64() {
        Some(decay) => matrix_decay(decay, is_original(asked), asked.sizes()),
        None => Made::expected("a number"),
    }
}

fn adamw_decay(asked: &Asked) -> Made {
    if !has_muon(asked) {
        return Made::key("train.weight_decay", asked.value.clone());
    }
    if asked.given.wrote("weight_decay") {
        return Made::note(
            "here tables, which AdamW moves, decay as matrices do: see `muon_weight_decay`",
        );
    }
    Made::nothing()
}

fn schedule(asked: &Asked) -> Made {
    let value = if asked.value == "none" {
        json!("constant")
    } else {
        asked.value.clone()
    };
    Made::key("train.schedule", value)
}
