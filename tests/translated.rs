//! What becomes of settings of other trainers, for the tests.
use std::path::Path;

use spectrain::trainers::{Translated, translate};

pub fn of(file: &str, text: &str) -> Translated {
    translate(text, Path::new(file)).unwrap()
}

/// The settings of SpecForge for a target, with lines of `training` behind them.
pub fn specforge(training: &str) -> Translated {
    let text = format!(
        "model:\n  target_model_path: Qwen/Qwen3-8B\ndata:\n  train_data_path: a.jsonl\ntraining:\n{training}"
    );
    of("a.yaml", &text)
}

/// The settings of speculators for a target, of this kind and with these flags.
pub fn speculators(kind: &str) -> Translated {
    let text = format!(
        "speculators train --verifier-name-or-path Qwen/Qwen3-8B --speculator-type {kind}\n"
    );
    of("a.sh", &text)
}

/// A recipe of NeMo of this class, with lines of `recipe_args`.
pub fn nemo(class: &str, rest: &str) -> Translated {
    let text = format!(
        "recipe: {class}\nrecipe_args:\n  target_model_name_or_path: Qwen/Qwen3-8B\n  train_data_path: org/chats\n  \
         train_split: \"train[:70000]\"\n  seq_length: 1024\n  micro_batch_size: 2\n  num_epochs: 3\n{rest}optimizer:\n  lr: 6.0e-4\n  \
         betas: [0.9, 0.99]\ncheckpoint:\n  enabled: true\nwandb:\n  project: p\n"
    );
    of("a.yaml", &text)
}

/// A file of TorchSpec, with lines of `model` and of `training`.
pub fn torchspec(model: &str, training: &str) -> Translated {
    let text = format!(
        "model:\n  target_model_path: Qwen/Qwen3-8B\n{model}dataset:\n  train_data_path: ../data/a.jsonl\n  min_loss_tokens: 32\n\
         training:\n  learning_rate: 6e-4\n  min_lr: 6e-5\n  training_num_gpus_per_node: 2\n  draft_accumulation_steps: 2\n{training}\
         inference:\n  inference_engine_type: vllm\n  vllm:\n    tp_size: 2\nmooncake:\n  protocol: tcp\n"
    );
    of("a.yaml", &text)
}

pub fn has(found: &Translated, settings: &[&str]) {
    for set in settings {
        let has = found.settings.iter().any(|given| given == set);
        assert!(has, "no `{set}`: {:?}", found.settings);
    }
}

pub fn lacks(found: &Translated, key: &str) {
    let set = found.settings.iter().find(|set| set.starts_with(key));
    assert_eq!(set, None);
}

/// That one note has all these parts.
pub fn tells(found: &Translated, parts: &[&str]) {
    let mut notes = found.notes.iter();
    let told = notes.any(|note| parts.iter().all(|part| note.contains(part)));
    assert!(told, "{parts:?}: {:?}", found.notes);
}
