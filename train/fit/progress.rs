//! How far a training has come: what its states say of it, and its end.
use serde::{Deserialize, Serialize};
use serde_json::Value;
use spectrain_checkpoints::Mismatch;

use crate::defaults::Defaults;
use crate::identity::{differences, digest_of};
use crate::log::Interval;
use crate::settings::TrainConfig;
use crate::validation::{TextFound, Validation, or_nan};
use crate::watch::Watch;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FitSummary {
    /// Optimizer steps done.
    pub steps: usize,
    /// Tokens trained on, padding left out.
    pub tokens: u64,
    /// Seconds of its steps, over all its sessions: without validations and saving.
    pub seconds: f64,
    /// Loss at the last log interval.
    pub loss: f64,
    /// The validation of the weights to take, and its step: the first, and every later one that is surely better by true τ,
    /// or not surely worse and of less loss (for what does not draft, of less loss).
    pub best: Option<(usize, Validation)>,
    /// Whether it ended before its last step, to go on later.
    pub interrupted: bool,
    /// Validations in a row that found no better weights, where these ended it before its last step: see [`TrainConfig::patience`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_patience: Option<usize>,
    /// See [`Validation::text`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextFound>,
}

/// What a checkpoint says beside weights and moments.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Progress {
    /// The digest of what the training is made from.
    pub(super) identity: String,
    /// All of that; nothing in states of earlier versions.
    #[serde(default)]
    pub(super) made_from: Value,
    pub(super) step: usize,
    pub(super) updates: u64,
    pub(super) tokens: u64,
    pub(super) seconds: f64,
    #[serde(deserialize_with = "or_nan")]
    pub(super) loss: f64,
    pub(super) watch: Watch,
    #[serde(default)]
    pub(super) idle: Idle,
    /// The steps since the last log line.
    pub(super) interval: Interval,
    pub(super) best: Option<(usize, Validation)>,
    /// Whether its validation is due but was interrupted.
    pub(super) unvalidated: bool,
    /// The step of the last validation.
    #[serde(default)]
    pub(super) validated: usize,
    /// Validations in a row, the last ones, that found no better weights.
    #[serde(default)]
    pub(super) without_better: usize,
    /// Steps that were asked for.
    #[serde(default)]
    pub(super) asked: usize,
    /// What the first validation found of the text.
    #[serde(default)]
    pub(super) text: Option<TextFound>,
}

/// Steps, the last ones, in which no position counted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Idle {
    pub(super) steps: usize,
    pub(super) samples: usize,
}

impl Progress {
    /// That of a training of so many steps that has not begun, from `identity`; where it begins trained, its weights are validated first.
    pub(super) fn fresh(identity: &Value, steps: usize, begins_trained: bool) -> Self {
        Self {
            identity: digest_of(identity),
            made_from: identity.clone(),
            step: 0,
            updates: 0,
            tokens: 0,
            seconds: 0.0,
            loss: f64::NAN,
            watch: Watch::default(),
            idle: Idle::default(),
            interval: Interval::default(),
            best: None,
            unvalidated: begins_trained,
            validated: 0,
            without_better: 0,
            asked: steps,
            text: None,
        }
    }

    /// Takes on the identity of the training `fresh`, if it is that training but for keys that were not there yet when it was saved, and
    /// that have their `defaults`; returns what else differs.
    pub(super) fn adopt(&mut self, fresh: Self, defaults: &Defaults) -> Vec<(String, Mismatch)> {
        let mut made_from = self.made_from.clone();
        defaults.complete(&mut made_from, &fresh.made_from);
        let keys = differences(&fresh.made_from, &made_from);
        if keys.is_empty() {
            self.identity = fresh.identity;
            self.made_from = fresh.made_from;
        }
        keys
    }

    /// Goes on with these settings, whose end may be another than it was so far.
    pub(super) fn go_on(&mut self, config: &TrainConfig) {
        // A training that now ends where it was interrupted: its last weights were not due to be validated.
        self.unvalidated |= self.step == config.steps && self.validated < self.step;
        // To another end the rate is another one, too, and what was waited for in vain may come.
        if self.asked != config.steps {
            self.asked = config.steps;
            self.without_better = 0;
        }
    }

    /// Goes on without the best weights so far, which are lost: those that it goes on from are validated, and are the best then.
    pub(super) fn forget_best(&mut self) {
        self.best = None;
        self.without_better = 0;
        self.unvalidated = true;
    }

    /// The step behind which it ends: the last one, unless its validations have shown that no better weights are to be waited for.
    pub(super) fn end(&self, config: &TrainConfig) -> usize {
        let is_patient = |patience: usize| self.without_better < patience;
        match self.unvalidated || config.patience.is_none_or(is_patient) {
            true => config.steps,
            false => self.step,
        }
    }

    /// What is said where validations have ended it before its last step.
    pub(super) fn early_end(&self, config: &TrainConfig) -> Option<String> {
        let (best, _) = self.best.as_ref()?;
        let validations = match self.without_better {
            1 => "1 validation".to_owned(),
            several => format!("{several} validations in a row"),
        };
        (self.end(config) < config.steps).then(|| {
            format!(
                "step {}: the training ends here, as {validations} found no better weights than those of step {best} \
                 (`train.patience`)",
                self.step
            )
        })
    }

    pub(super) fn summary(self, config: &TrainConfig) -> FitSummary {
        let end = self.end(config);
        FitSummary {
            interrupted: self.step < end || self.unvalidated,
            out_of_patience: (end < config.steps).then_some(self.without_better),
            steps: self.step,
            tokens: self.tokens,
            seconds: self.seconds,
            loss: self.loss,
            text: self.text,
            // The counts are for comparisons, of which no more come.
            best: self.best.map(|(step, best)| {
                let best = Validation {
                    decoded: Vec::new(),
                    decoded_sha256: None,
                    ..best
                };
                (step, best)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_state_of_before_a_key_is_of_the_training_in_which_the_key_has_its_default() {
        let defaults = Defaults::default().with::<TrainConfig>("train");
        let now = json!({ "seed": 7, "train": TrainConfig::default().identity() });
        let mut before = now.clone();
        let keys = before["train"].as_object_mut().unwrap();
        assert!(keys.shift_remove("ema_decay").is_some());
        let fresh = |identity: &Value| Progress::fresh(identity, 10, false);
        let mut progress = fresh(&before);
        assert_ne!(progress.identity, digest_of(&now));
        assert!(progress.adopt(fresh(&now), &defaults).is_empty());
        // States that it leaves from here on have the key.
        assert_eq!(progress.identity, digest_of(&now));
        assert_eq!(progress.made_from, now);
        // Another value is another training, and so is another one of a key that was there.
        for key in ["ema_decay", "beta1"] {
            let mut other = now.clone();
            other["train"][key] = json!(0.5);
            let mut progress = fresh(&before);
            let differs = progress.adopt(fresh(&other), &defaults);
            let differs: Vec<&str> = differs.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(differs, [format!("train.{key}")]);
            assert_eq!(progress.identity, digest_of(&before));
        }
    }

    #[test]
    fn a_training_that_its_validations_have_ended_says_why_whenever_it_is_taken_up() {
        let waited = |without_better: usize, unvalidated: bool| Progress {
            identity: String::new(),
            made_from: Value::Null,
            step: 600,
            updates: 600,
            tokens: 0,
            seconds: 0.0,
            loss: 1.0,
            watch: Watch::default(),
            idle: Idle::default(),
            interval: Interval::default(),
            best: Some((400, Validation::default())),
            unvalidated,
            validated: 600,
            without_better,
            asked: 1000,
            text: None,
        };
        let config = |patience: usize| TrainConfig {
            patience: Some(patience),
            ..TrainConfig::default()
        };
        let told = waited(2, false).early_end(&config(2)).unwrap();
        assert_eq!(
            told,
            "step 600: the training ends here, as 2 validations in a row found no better weights than those of step 400 \
             (`train.patience`)"
        );
        let told = waited(1, false).early_end(&config(1)).unwrap();
        assert!(told.contains("as 1 validation found"), "{told}");
        // It waits for more of them, or for one that is due.
        assert_eq!(waited(1, false).early_end(&config(2)), None);
        assert_eq!(waited(2, true).early_end(&config(2)), None);
        assert_eq!(waited(2, false).early_end(&TrainConfig::default()), None);
    }
}
