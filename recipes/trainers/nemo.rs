//! NeMo Automodel (<https://github.com/NVIDIA-NeMo/Automodel>): the files of its recipes for speculative decoding, and overrides of
//! them.

use serde_json::{Map, Value, json};

use super::rows::Becomes::{Key, Made as By, Nothing, Read};
use super::rows::{Asked, Made, Program, Row, Trainer, row};
use super::settings::PROCESSES;
use super::shared::{
    self, NOT_SHARED, accumulate, by_total_variation, given_or_as_many, hub_or_path, one_layer,
    positive, rows_of, sources,
};

const ALL: &[&str] = &[];
const EAGLE1: &[&str] = &["eagle1"];
const EAGLE3: &[&str] = &["eagle3"];
const PEAGLE: &[&str] = &["peagle"];
const EAGLES: &[&str] = &["eagle3", "peagle"];
const FROZEN: &[&str] = &["eagle1", "eagle3"];
const BLOCKS: &[&str] = &["dflash", "dflash2", "dspark", "domino", "jetspec"];
const LABELLED: &[&str] = &["dflash", "dflash2"];
const DFLASH2: &[&str] = &["dflash2"];
const DSPARK: &[&str] = &["dspark"];
const DOMINO: &[&str] = &["domino"];
const JETSPEC: &[&str] = &["jetspec"];

/// `automodel FILE`.
pub(super) const NEMO: Trainer = Trainer {
    name: "NeMo Automodel",
    version: "0.7",
    kinds: &[
        ("eagle3", "eagle3"),
        ("peagle", "peagle"),
        ("eagle1", "eagle1"),
        ("dflash", "dflash"),
        ("dflash2", "dflash"),
        ("dspark", "dflash"),
        ("domino", "dflash"),
        ("jetspec", "dflash"),
    ],
    rows: ROWS,
    always: &[
        (ALL, "train.schedule", "\"cosine\""),
        (ALL, "data.overlong", "\"truncate\""),
        (DFLASH2, "objective.inject", "false"),
        (DSPARK, "drafter.sample_from_anchor", "true"),
        (DOMINO, "drafter.markov", "\"domino\""),
        (JETSPEC, "drafter.causal", "true"),
        (JETSPEC, "objective.label_weight", "0.0"),
        (JETSPEC, "objective.teacher_weight", "1.0"),
        (JETSPEC, "objective.slot_weights", "\"uniform\""),
    ],
    kind,
    is_of: |flat| flat.contains_key("recipe_args.target_model_name_or_path"),
    named: |name| name,
    programs: &[
        Program::named(&["automodel"]),
        Program::named(&["nemo_automodel.cli.app"]),
    ],
    before: &[],
    repeated: &[],
    further: None,
};

/// The kind by the recipe's class; that of EAGLE-3 trains P-EAGLE as well.
fn kind(settings: &Map<String, Value>) -> String {
    let text = |key: &str| settings.get(key).and_then(Value::as_str);
    let class = text("recipe")
        .or(text("recipe._target_"))
        .unwrap_or_default();
    let class = class.rsplit('.').next().unwrap_or_default();
    let is_parallel = settings.get("recipe_args.parallel_drafting") == Some(&Value::Bool(true));
    let kind = match class {
        "TrainEagle3Recipe" if is_parallel => "peagle",
        "TrainEagle3Recipe" => "eagle3",
        // The drafters of EAGLE-2 are those of EAGLE-1.
        "TrainEagle1Recipe" | "TrainEagle2Recipe" => "eagle1",
        "TrainDFlashRecipe" => "dflash",
        "TrainDFlash2Recipe" => "dflash2",
        "TrainDSparkRecipe" => "dspark",
        "TrainDominoRecipe" => "domino",
        "TrainJetSpecRecipe" => "jetspec",
        other => other,
    };
    kind.to_owned()
}

const TARGETS: &str = "spectrain computes the target's hidden states itself, or takes them from a server of vLLM that you start (`target.server`)";
const COUNTED: &str = "spectrain counts the tokens of the training data itself";
const WHEN: &str = "`train.validate_every` says when τ is measured on held-out prompts";
const LOADING: &str = "spectrain's own reading of data needs no such setting";
const PLACES: &str = "a run's files are in `runs/NAME`, states among them: `spectrain recipe` goes on with a run of that name by itself";

// One setting a line, as a table.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    // The target and the drafter.
    row(ALL, "recipe", "", Read("`recipe`")),
    row(ALL, "recipe._target_", "", Read("`recipe`")),
    row(ALL, "recipe_args.parallel_drafting", "false", Read("`recipe`: EAGLE-3's class trains P-EAGLE with it")),
    row(ALL, "recipe_args.target_model_name_or_path", "", Key("target.model")),
    row(ALL, "recipe_args.draft_weights_path", "", Key("start")),
    row(EAGLES, "recipe_args.draft_vocab_size", "", Key("drafter.draft_vocab")),
    row(EAGLES, "recipe_args.selected_token_ids_path", "", Nothing(COUNTED)),
    row(EAGLES, "recipe_args.aux_layer_ids", "", Key("drafter.captured_layers")),
    row(EAGLE3, "recipe_args.fc_norm", "false", Key("drafter.fc_norm")),
    row(EAGLE3, "recipe_args.norm_output", "false", Key("drafter.norm_output")),
    row(PEAGLE, "recipe_args.fc_norm", "false", Key("drafter.fc_norm")),
    row(PEAGLE, "recipe_args.norm_output", "false", By("only false is possible", |asked| shared::only_false(asked, "P-EAGLE's drafts do not read each other"))),
    row(PEAGLE, "recipe_args.freeze_embeddings", "false", Key("drafter.shared_embeddings")),
    row(FROZEN, "recipe_args.freeze_embeddings", "true", By("only true is possible", |asked| shared::only_true(asked, FROZEN_EMBEDDINGS))),
    row(BLOCKS, "recipe_args.freeze_embeddings", "true", By("only true is possible", |asked| shared::only_true(asked, FROZEN_EMBEDDINGS))),
    row(PEAGLE, "recipe_args.num_draft_layers", "1", Key("drafter.layers")),
    row(EAGLE1, "recipe_args.draft_num_hidden_layers", "1", By("only 1 is possible", |asked| one_layer(&asked.value))),
    row(BLOCKS, "recipe_args.draft_num_hidden_layers", "5", Key("drafter.layers")),
    row(BLOCKS, "recipe_args.draft_num_attention_heads", "", Key("drafter.heads")),
    row(BLOCKS, "recipe_args.draft_num_key_value_heads", "", Key("drafter.kv_heads")),
    row(BLOCKS, "recipe_args.draft_head_dim", "", By(shared::WIDTH_OF_HEADS, shared::head_width)),
    row(DSPARK, "recipe_args.block_size", "7", Key("drafter.block_size")),
    row(BLOCKS, "recipe_args.block_size", "16", Key("drafter.block_size")),
    row(&["peagle", "dflash", "dflash2", "dspark", "domino", "jetspec"], "recipe_args.mask_token_id", "", Key("drafter.mask_token")),
    row(DSPARK, "recipe_args.target_layer_ids", "", By("`drafter.captured_layers`; without it as many as the drafter has layers, evenly from 1 to the last, which NeMo reads behind the final norm", up_to_the_last)),
    row(BLOCKS, "recipe_args.target_layer_ids", "", By(shared::AS_MANY, |asked| given_or_as_many(asked, asked.count("recipe_args.draft_num_hidden_layers")))),
    row(BLOCKS, "recipe_args.draft_sliding_window", "", Key("drafter.window")),
    row(BLOCKS, "recipe_args.output_multiplier", "1.0", By("only 1 is possible", |asked| shared::only(asked, 1.0, "logits are those of the target's head, as they are"))),
    row(BLOCKS, "recipe_args.final_logit_softcapping", "", Nothing("logits are those of the target's head, as they are")),
    row(BLOCKS, "recipe_args.input_embedding_scale", "1.0", By("only 1 is possible", |asked| shared::only(asked, 1.0, "embeddings are the target's, as they are"))),
    row(DFLASH2, "recipe_args.conv_kernel_size", "2", Key("drafter.conv_taps")),
    row(DFLASH2, "recipe_args.conv_group_size", "16", Key("drafter.conv_group")),
    row(DFLASH2, "recipe_args.selector_rank", "256", Key("drafter.selector_rank")),
    row(DFLASH2, "recipe_args.selector_top_k", "16", Key("drafter.selector_top_k")),
    row(DSPARK, "recipe_args.markov_rank", "256", Key("drafter.markov_rank")),
    row(DSPARK, "recipe_args.markov_head_type", "\"vanilla\"", Key("drafter.markov")),
    row(DOMINO, "recipe_args.emb_dim", "256", Key("drafter.markov_rank")),
    row(DOMINO, "recipe_args.gru_hidden_dim", "1024", Key("drafter.markov_state")),
    row(DOMINO, "recipe_args.pure_draft_prefix_len", "1", Key("drafter.markov_from")),
    row(DOMINO, "recipe_args.shift_label", "true", Key("drafter.sample_from_anchor")),
    row(DSPARK, "recipe_args.confidence_head_with_markov", "true", By("only true is possible where there is a `markov_rank`", |asked| shared::only_true(asked, "the confidence head reads the code of the token before wherever there is a `markov_rank`"))),
    row(DSPARK, "recipe_args.confidence_head_stop_gradient", "false", By("only false is possible", |asked| shared::only_false(asked, "the head's loss trains the layers, too"))),
    // Objectives.
    row(EAGLE3, "recipe_args.ttt_steps", "", Key("objective.draft_steps")),
    row(EAGLE3, "recipe_args.lk_loss_type", "", By("`objective.divergence`: `lambda` is `lk_hybrid`, `alpha` is `nla`", lk_loss)),
    row(EAGLE3, "recipe_args.lk_kl_scale", "1.0", Read("see `recipe_args.lk_loss_type`: `lk_hybrid` has the paper's scale, 1")),
    row(EAGLE3, "recipe_args.lk_kl_decay", "3.0", Read("see `recipe_args.lk_loss_type`: `{ lk_hybrid = … }` has this decay; without a number it is the paper's, 3")),
    row(PEAGLE, "recipe_args.num_depths", "8", Key("objective.draft_tokens")),
    row(PEAGLE, "recipe_args.down_sample_ratio", "0.7", Key("objective.keep")),
    row(PEAGLE, "recipe_args.down_sample_ratio_min", "0.2", Key("objective.keep_least")),
    row(PEAGLE, "recipe_args.sequence_partitions", "1", Nothing("`train.gradient_checkpointing` saves memory")),
    row(EAGLE1, "recipe_args.hidden_loss_weight", "1.0", Key("objective.regression_weight")),
    row(EAGLE1, "recipe_args.token_loss_weight", "0.1", Key("objective.class_weight")),
    row(EAGLE1, "recipe_args.feature_noise", "0.1", By("`objective.noise`: uniform between minus and plus this, for samples of any length", noise)),
    row(BLOCKS, "recipe_args.num_anchors", "512", Key("objective.anchors")),
    row(LABELLED, "recipe_args.loss_type", "\"dflash\"", By("`objective.slot_weights`: `dflash` is `exponential`, or `uniform` where `loss_decay_gamma` is 0; `dpace` is `d_pace`", slot_weights)),
    row(DOMINO, "recipe_args.loss_type", "\"dflash\"", Nothing("Domino's weights fall by `recipe_args.loss_decay_gamma`")),
    row(LABELLED, "recipe_args.loss_decay_gamma", "7.0", By("`objective.decay_slots`; `null` is read as not given", |asked| positive(asked, "objective.decay_slots"))),
    row(DSPARK, "recipe_args.loss_decay_gamma", "", By(shared::FALLING, shared::falling_weights)),
    row(DOMINO, "recipe_args.loss_decay_gamma", "7.0", By(shared::FALLING, shared::falling_weights)),
    row(DOMINO, "recipe_args.lambda_base_start", "1.0", Key("objective.base_weight")),
    row(DOMINO, "recipe_args.lambda_base_decay_ratio", "0.5", Key("objective.base_until")),
    row(LABELLED, "recipe_args.dpace_alpha", "0.5", Key("objective.certainty")),
    row(LABELLED, "recipe_args.prefix_weight_base", "", Nothing("only `loss_type = \"variable_prefix\"` reads it")),
    row(DFLASH2, "recipe_args.selector_loss_weight", "1.0", Key("objective.selector_weight")),
    row(DSPARK, "recipe_args.ce_loss_alpha", "0.1", Key("objective.label_weight")),
    row(DSPARK, "recipe_args.l1_loss_alpha", "0.9", By(shared::BY_L1, by_total_variation)),
    row(DSPARK, "recipe_args.confidence_head_alpha", "1.0", By("`objective.confidence_weight`, and `drafter.confidence` where it is above 0", confidence)),
    row(JETSPEC, "recipe_args.kd_temperature", "1.0", By("only 1 is possible", |asked| shared::only(asked, 1.0, "the divergence is at temperature 1; `objective.divergence = { tempered_kl = … }` tempers the target alone"))),
    row(JETSPEC, "recipe_args.kd_chunk_size", "0", Nothing("losses never hold the logits of a whole batch")),
    // Data.
    row(ALL, "recipe_args.train_data_path", "", By("`data.train`; what is no path and looks like `org/name` is a dataset of the hub", train)),
    row(ALL, "recipe_args.train_split", "", By("the split in `data.train`; of `train[:1000]`, `data.max_samples`", max_samples)),
    row(ALL, "recipe_args.val_data_path", "", By("`data.eval`", eval)),
    row(ALL, "recipe_args.val_split", "", By("the split in `data.eval`", eval_rows)),
    row(ALL, "recipe_args.seq_length", "", By("`data.max_length` and `train.batch_tokens`", |asked| rows_of(asked, asked.count("recipe_args.micro_batch_size").unwrap_or(1)))),
    row(ALL, "recipe_args.packed_sequence_size", "0", Nothing("rows of `data.max_length` are packed anyhow")),
    row(ALL, "recipe_args.micro_batch_size", "1", Read("rows in a batch: see `recipe_args.seq_length`")),
    row(ALL, "recipe_args.mask_reasoning_content", "false", By("only false is possible", |asked| shared::only_false(asked, "all that the assistant says is trained on, its reasoning too; take it out of the conversations"))),
    row(ALL, "recipe_args.mask_generation_prompt", "false", Nothing("what the template writes before an answer is never trained on")),
    row(ALL, "recipe_args.train_shuffle", "true", Nothing("spectrain shuffles the data in every epoch")),
    row(ALL, "recipe_args.num_workers", "0", Nothing(LOADING)),
    row(ALL, "recipe_args.cached_target_path", "", Nothing("`spectrain features converter` and `spectrain features import` read hidden states of other programs; the recipe then has `features.mode = \"imported\"`")),
    row(ALL, "recipe_args.multimodal", "false", Nothing("spectrain trains on text")),
    row(ALL, "recipe_args.regen.*", "", Nothing("`[regenerate]` has the target answer the prompts before the training")),
    row(ALL, "recipe_args.decode_eval.*", "", Nothing(WHEN)),
    // The target while it is read.
    row(ALL, "recipe_args.trust_remote_code", "false", Nothing("spectrain runs no code of a model's folder")),
    row(ALL, "recipe_args.chat_template", "", Nothing("the target's own template is read; `data.template` takes the file of another")),
    row(ALL, "recipe_args.target_*", "", Nothing(TARGETS)),
    row(ALL, "recipe_args.remote_*", "", Nothing(TARGETS)),
    row(ALL, "recipe_args.sglang_*", "", Nothing(TARGETS)),
    row(ALL, "recipe_args.vllm_*", "", Nothing(TARGETS)),
    row(ALL, "recipe_args.shard_dense_target", "false", Nothing(NOT_SHARED)),
    row(ALL, "recipe_args.attention_backend", "", Nothing("there is one attention for each device")),
    row(ALL, "recipe_args.draft_attn_implementation", "", Nothing("there is one attention for each device")),
    row(ALL, "recipe_args.cp_*", "", Nothing(NOT_SHARED)),
    row(ALL, "distributed.*", "", Nothing(NOT_SHARED)),
    // Optimiser and schedule.
    row(ALL, "optimizer.lr", "", Key("train.learning_rate")),
    row(ALL, "optimizer.betas", "[0.9, 0.95]", By("`train.beta1` and `train.beta2`", betas)),
    row(ALL, "optimizer.weight_decay", "0.0", Key("train.weight_decay")),
    row(ALL, "optimizer.warmup_ratio", "0.05", Key("train.warmup_ratio")),
    row(ALL, "optimizer.min_lr_ratio", "0.1", Key("train.min_lr_ratio")),
    row(ALL, "optimizer.*", "", Nothing("the optimiser is AdamW, with its states in f32")),
    row(ALL, "recipe_args.max_grad_norm", "1.0", Key("train.max_grad_norm")),
    row(ALL, "recipe_args.num_epochs", "", Key("train.epochs")),
    row(ALL, "recipe_args.grad_accumulation_steps", "1", By("`train.gradient_accumulation`: the batches of one step, of all devices", batches)),
    row(ALL, PROCESSES, "", Read("see `recipe_args.grad_accumulation_steps`")),
    row(ALL, "nproc_per_node", "", Read("see `recipe_args.grad_accumulation_steps`")),
    row(PEAGLE, "recipe_args.draft_gradient_checkpointing", "false", Key("train.gradient_checkpointing")),
    row(ALL, "fp8.*", "", Nothing("layers compute in f32, or in bf16 on a GPU")),
    row(ALL, "peft.*", "", Nothing("all weights of the drafter are trained, without low-rank matrices")),
    row(ALL, "compile.*", "", Nothing("spectrain compiles its kernels without being asked")),
    // What is kept and shown.
    row(ALL, "recipe_args.ckpt_every_steps", "", By("`train.save_every`, where it is above 0", |asked| positive(asked, "train.save_every"))),
    row(ALL, "recipe_args.save_checkpoint_every_epoch", "false", Nothing("states are saved every `train.save_every` steps")),
    row(ALL, "recipe_args.log_every_steps", "10", Key("train.log_every")),
    row(ALL, "recipe_args.output_dir", "", Nothing(PLACES)),
    row(ALL, "recipe_args.shuffle_seed", "42", Key("seed")),
    row(ALL, "checkpoint.*", "", Nothing(PLACES)),
    row(ALL, "wandb.*", "", Nothing(shared::TRACKED)),
    row(ALL, "dist_env.*", "", Nothing("a process that dies ends the others at once")),
];

const FROZEN_EMBEDDINGS: &str = "the target's embeddings stay frozen";

fn lk_loss(asked: &Asked) -> Made {
    let of = |key: &str| asked.of(key).as_f64();
    match asked.value.as_str() {
        Some("lambda") => {
            shared::lk_hybrid(of("recipe_args.lk_kl_scale"), of("recipe_args.lk_kl_decay"))
        }
        Some("alpha") => Made::key("objective.divergence", "nla"),
        None if asked.value.is_null() => Made::nothing(),
        _ => Made::expected("`lambda` or `alpha`"),
    }
}

/// Noise of one width, which ours is between minus and plus half of.
fn noise(asked: &Asked) -> Made {
    let half = asked.value.as_f64().unwrap_or_default();
    Made::key(
        "objective.noise",
        json!({ "kind": "uniform", "std": 2.0 * half, "length_ref": 0 }),
    )
}

fn slot_weights(asked: &Asked) -> Made {
    const KEY: &str = "objective.slot_weights";
    let decays = asked.of("recipe_args.loss_decay_gamma").as_f64();
    match asked.value.as_str() {
        Some("dpace") => Made::key(KEY, "d_pace"),
        Some("dflash") if decays > Some(0.0) => Made::key(KEY, "exponential"),
        Some("dflash") => Made::key(KEY, "uniform"),
        _ => Made::key(KEY, "exponential").with_note(
            "there are the weights of `dflash` and the whole of D-PACE's, `d_pace`; all tokens of a block but the anchor are masked",
        ),
    }
}

/// The layers that a DSpark drafter reads. Of the last, NeMo takes what the final norm makes of it.
fn up_to_the_last(asked: &Asked) -> Made {
    let layers = asked.sizes().map(|spec| spec.layers);
    let count = asked.count("recipe_args.draft_num_hidden_layers");
    let given: Option<Vec<u64>> = match &asked.value {
        Value::Array(ids) => ids.iter().map(Value::as_u64).collect(),
        _ => None,
    };
    if given.is_none() && !asked.value.is_null() {
        return Made::expected("numbers of layers");
    }
    let ids = given.or_else(|| {
        let ids = shared::evenly(1, layers?.saturating_sub(1), count? as usize);
        Some(ids.into_iter().map(|id| id as u64).collect())
    });
    let Some(ids) = ids else {
        return Made::note(
            "NeMo reads as many layers of the target as the drafter has, evenly from 1 to the last; set `drafter.captured_layers` (the target's \
             sizes are not known here)",
        );
    };
    let reads_last = layers.is_some_and(|layers| ids.contains(&(layers as u64 - 1)));
    let made = Made::key("drafter.captured_layers", json!(ids));
    match reads_last {
        true => made.with_note(
            "NeMo reads the last layer behind the target's final norm; here it is read before it",
        ),
        false => made,
    }
}

fn confidence(asked: &Asked) -> Made {
    let has_head = asked.value.as_f64() > Some(0.0);
    let mut made = Made::key("drafter.confidence", has_head);
    if has_head {
        made.keys
            .push(("objective.confidence_weight", asked.value.clone()));
    }
    made
}

/// The split and the rows of it that a setting such as `train[:1000]` names.
fn split_of(setting: &Value) -> (Option<String>, Option<String>) {
    let Some(text) = setting.as_str() else {
        return (None, None);
    };
    let (split, rows) = match text.split_once('[') {
        Some((split, rows)) => (split, Some(rows.trim_end_matches(']').to_owned())),
        None => (text, None),
    };
    (
        Some(split.to_owned()).filter(|split| !split.is_empty()),
        rows,
    )
}

fn train(asked: &Asked) -> Made {
    let (split, _) = split_of(&asked.of("recipe_args.train_split"));
    sources(asked, |text| Ok(json!(hub_or_path(text, split.as_deref()))))
}

fn eval(asked: &Asked) -> Made {
    let (split, _) = split_of(&asked.of("recipe_args.val_split"));
    match asked.value.as_str() {
        Some(text) if !text.is_empty() => {
            Made::key("data.eval", hub_or_path(text, split.as_deref()))
        }
        None if !asked.value.is_null() => Made::expected("a path"),
        _ => Made::nothing(),
    }
}

/// Rows of the split that is evaluated with.
fn eval_rows(asked: &Asked) -> Made {
    match split_of(&asked.value) {
        (_, Some(rows)) => Made::note(format!(
            "`data.eval` is read whole, not the rows `[{rows}]` alone; `evaluate.prompts` says how many of it are asked"
        )),
        (None, None) => no_split(asked),
        _ => Made::nothing(),
    }
}

/// Where a setting names no split: whether that is what it says.
fn no_split(asked: &Asked) -> Made {
    match asked.value {
        Value::Null | Value::String(_) => Made::nothing(),
        _ => Made::expected("the name of a split"),
    }
}

fn max_samples(asked: &Asked) -> Made {
    let (_, rows) = split_of(&asked.value);
    let Some(rows) = rows else {
        return no_split(asked);
    };
    let first = rows
        .strip_prefix(':')
        .and_then(|most| most.parse::<u64>().ok());
    match first {
        Some(most) => Made::key("data.max_samples", most),
        None => Made::note("of a split the first rows can be taken, with `data.max_samples`"),
    }
}

fn betas(asked: &Asked) -> Made {
    match asked.value.as_array().map(Vec::as_slice) {
        Some([first, second]) => Made::keys([
            ("train.beta1", first.clone()),
            ("train.beta2", second.clone()),
        ]),
        _ => Made::expected("two numbers"),
    }
}

fn batches(asked: &Asked) -> Made {
    let launched = [PROCESSES, "nproc_per_node"].map(|key| asked.of(key));
    let launched = launched.into_iter().find(|count| !count.is_null());
    let processes = launched.map_or(Some(1), |count| count.as_u64());
    // Processes that share one target read the same rows.
    let sharing =
        ["distributed.tp_size", "distributed.cp_size"].map(|key| asked.given.settings.get(key));
    let sharing = sharing.into_iter().flatten().filter_map(Value::as_u64);
    let processes = shared::batches_apart(processes, Some(sharing.fold(1, u64::saturating_mul)));
    accumulate(asked.whole().unwrap_or(1), processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_may_name_some_of_its_rows() {
        let of = |text: &str| split_of(&json!(text));
        assert_eq!(of("train"), (Some("train".to_owned()), None));
        let first = (Some("train".to_owned()), Some(":200".to_owned()));
        assert_eq!(of("train[:200]"), first);
        assert_eq!(split_of(&Value::Null), (None, None));
    }
}
