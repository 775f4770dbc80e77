//! What becomes of a training that has begun when a key of `[train]` changes.
use serde_json::{Map, Value};

use crate::settings::TrainConfig;

/// What a change of a key does to a training that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Something else is learnt, or other weights are kept: it starts over.
    StartsOver,
    /// It lasts longer or less long: to a later end it goes on.
    GoesOn,
    /// None on the weights: it goes on as if nothing had changed.
    Nothing,
}

use Effect::{GoesOn, Nothing, StartsOver};

/// Every key of [`TrainConfig`]. One that is not here counts as [`StartsOver`].
const EFFECTS: [(&str, Effect); 33] = [
    // The learning rate of a step may depend on it, but a state of any step can be trained on.
    ("steps", GoesOn),
    ("epochs", GoesOn),
    // One that its validations have ended goes on from there where they are to be waited for longer; with any other change a
    // finished one stays as it is.
    ("patience", GoesOn),
    // What a step learns from what.
    ("batch_tokens", StartsOver),
    ("gradient_accumulation", StartsOver),
    ("optimizer", StartsOver),
    ("learning_rate", StartsOver),
    ("matrix_learning_rate", StartsOver),
    ("table_learning_rate", StartsOver),
    ("muon_momentum", StartsOver),
    ("schedule", StartsOver),
    ("decay_ratio", StartsOver),
    ("decay_shape", StartsOver),
    ("min_lr_ratio", StartsOver),
    ("warmup_steps", StartsOver),
    ("warmup_ratio", StartsOver),
    ("max_grad_norm", StartsOver),
    ("clip_value", StartsOver),
    ("weight_decay", StartsOver),
    ("beta1", StartsOver),
    ("beta2", StartsOver),
    ("epsilon", StartsOver),
    ("ema_decay", StartsOver),
    // Which weights are kept: two validations compare only if they measure the same, and one that was left out cannot be
    // made up for, as its weights are gone.
    ("validate_every", StartsOver),
    ("validate_samples", StartsOver),
    ("decode_prompts", StartsOver),
    ("decode_tokens", StartsOver),
    ("decode_draft_length", StartsOver),
    // The same operations with the same numbers, some of them twice.
    ("gradient_checkpointing", Nothing),
    // What is shown.
    ("log_every", Nothing),
    // Where a training that stops can go on; the best weights are saved in any case.
    ("save_every", Nothing),
    ("keep", Nothing),
    // When a training is given up: no weight that it leaves.
    ("explosion", Nothing),
];

impl Effect {
    /// Of a change of this key of `[train]`; one in a table within, such as `table.key`, counts as the whole of that does.
    pub fn of(key: &str) -> Self {
        let key = key.split_once('.').map_or(key, |(table, _)| table);
        let found = EFFECTS.iter().find(|(known, _)| *known == key);
        found.map_or(StartsOver, |(_, effect)| *effect)
    }
}

impl TrainConfig {
    /// What must be the same for a saved state to be trained on.
    pub fn identity(&self) -> Value {
        let decides = |(key, _): &(String, Value)| Effect::of(key) == StartsOver;
        match serde_json::to_value(self) {
            Ok(Value::Object(keys)) => {
                Value::Object(keys.into_iter().filter(decides).collect::<Map<_, _>>())
            }
            other => unreachable!("a table of plain values is an object, found {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_of_the_table_is_classified_once_and_no_other() {
        // A key that is not always written is in no value of the table.
        let schema = schemars::schema_for!(TrainConfig).to_value();
        let keys = schema["properties"].as_object().unwrap();
        let keys: BTreeSet<&str> = keys.keys().map(String::as_str).collect();
        let known: BTreeSet<&str> = EFFECTS.iter().map(|(key, _)| *key).collect();
        assert_eq!(known, keys);
        assert_eq!(EFFECTS.len(), keys.len());
        assert_eq!(Effect::of("a key to come"), StartsOver);
        assert_eq!(Effect::of("patience"), GoesOn);
        assert_eq!(Effect::of("keep.within"), Nothing);
    }

    #[test]
    fn only_what_decides_over_the_weights_is_in_the_identity() {
        let table = TrainConfig::default();
        let other = TrainConfig {
            steps: 7,
            log_every: 1,
            save_every: 3,
            keep: 9,
            explosion: 2.0,
            patience: Some(3),
            gradient_checkpointing: true,
            ..table.clone()
        };
        assert_eq!(table.identity(), other.identity());
        let other = TrainConfig {
            decode_prompts: 9,
            ..table.clone()
        };
        assert_ne!(table.identity(), other.identity());
        assert!(table.identity()["learning_rate"].is_f64());
    }
}
