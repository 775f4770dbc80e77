//! Keys and values by the names that other trainers and engines have for them.

use crate::trainers::{Becomes, TRAINERS};

/// A name that is used elsewhere, and what recipes call the same; what settings of other trainers become under their own names, their
/// rows say.
const NAMES: [(&str, &str); 61] = [
    ("adam_beta1", "beta1"),
    ("adam_beta2", "beta2"),
    ("adam_epsilon", "epsilon"),
    ("base_model", "model"),
    ("batch_size", "batch_tokens"),
    ("bfloat16", "bf16"),
    ("chat_template", "template"),
    ("draft_vocab_size", "draft_vocab"),
    ("early_stopping", "patience"),
    ("early_stopping_patience", "patience"),
    ("ema", "ema_decay"),
    ("eps", "epsilon"),
    ("eval_data", "eval"),
    ("eval_data_path", "eval"),
    ("eval_interval", "validate_every"),
    ("eval_steps", "validate_every"),
    ("float16", "f16"),
    ("float32", "f32"),
    ("fp16", "f16"),
    ("fp32", "f32"),
    ("gradient_accumulation_steps", "gradient_accumulation"),
    ("1-sqrt", "minus_sqrt"),
    ("accumulation_steps", "gradient_accumulation"),
    ("grad_clip", "max_grad_norm"),
    ("gradient_clipping", "max_grad_norm"),
    ("head_dim", "d_head"),
    ("huggingface", "hf"),
    ("intermediate_size", "d_ff"),
    ("llama.cpp", "llama-cpp"),
    ("log_interval", "log_every"),
    ("logging_steps", "log_every"),
    ("lr", "learning_rate"),
    ("lr_scheduler", "schedule"),
    ("lr_scheduler_type", "schedule"),
    ("lr_wsd_decay_ratio", "decay_ratio"),
    ("lr_wsd_decay_style", "decay_shape"),
    ("max_num_steps", "steps"),
    ("max_seq_len", "max_length"),
    ("max_seq_length", "max_length"),
    ("max_steps", "steps"),
    ("model_name_or_path", "model"),
    ("num_attention_heads", "heads"),
    ("num_epochs", "epochs"),
    ("num_hidden_layers", "layers"),
    ("num_key_value_heads", "kv_heads"),
    ("num_steps", "steps"),
    ("num_train_epochs", "epochs"),
    ("per_device_train_batch_size", "batch_tokens"),
    ("save_interval", "save_every"),
    ("save_steps", "save_every"),
    ("mtp_step_weight_beta", "decay"),
    ("save_total_limit", "keep"),
    ("target_model_path", "model"),
    ("total_seq_len", "max_length"),
    ("train_data_path", "train"),
    ("transformers", "hf"),
    ("trt-llm", "tensorrt-llm"),
    ("trtllm", "tensorrt-llm"),
    ("ttt_length", "draft_steps"),
    ("wsd_decay_ratio", "decay_ratio"),
    ("wsd_decay_style", "decay_shape"),
];

/// What of the names that are `known` is meant by one that another program has.
pub(super) fn meant<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let known: Vec<&str> = known.into_iter().collect();
    let mut names = known.iter();
    let named = names.find(|name| NAMES.contains(&(given.as_str(), **name)));
    named.copied().or_else(|| {
        let mut names = known.iter();
        names.find(|name| is_setting(&given, name)).copied()
    })
}

/// Whether a trainer has a setting of this name that becomes the key `name`.
fn is_setting(given: &str, name: &str) -> bool {
    let last = |path: &'static str| path.rsplit('.').next().unwrap_or_default();
    let mut rows = TRAINERS.into_iter().flat_map(|trainer| trainer.rows);
    rows.any(
        |row| matches!(row.becomes, Becomes::Key(key) if last(row.key) == given && last(key) == name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That of all recipes.
    const SCHEMA: &str = include_str!("../schema.json");

    #[test]
    fn every_name_that_is_meant_is_one_of_a_recipe() {
        for (_, name) in NAMES {
            let is_known = SCHEMA.contains(&format!("\"{name}\""));
            assert!(is_known, "{name}");
        }
    }

    #[test]
    fn only_what_is_known_in_a_table_is_meant() {
        assert_eq!(
            meant("lr", ["steps", "learning_rate"]),
            Some("learning_rate")
        );
        assert_eq!(meant("LR", ["learning_rate"]), Some("learning_rate"));
        assert_eq!(meant("lr", ["model"]), None);
        for (setting, key) in [
            ("ttt_steps", "draft_steps"),
            ("num_layers", "layers"),
            ("lr_wsd_decay_ratio", "decay_ratio"),
            ("wsd_decay_style", "decay_shape"),
            ("early_stopping", "patience"),
            ("1-sqrt", "minus_sqrt"),
            ("base_anchor_weight", "guess_weight"),
        ] {
            assert_eq!(meant(setting, ["steps", key]), Some(key));
            assert_eq!(meant(setting, ["steps", "model"]), None);
        }
    }
}
