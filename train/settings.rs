use serde::{Deserialize, Serialize};

use spectrain_models::bounds;

use crate::optimizer::AdamWConfig;
use crate::{Decay, Error, Result, Schedule};

/// The `[train]` table. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Optimizer steps. 1000.
    pub steps: usize,
    /// Positions of one batch, padding included; a multiple of `[data] max_length`. 4096; a recipe that
    /// leaves it out has the whole rows in them, one at least.
    pub batch_tokens: usize,
    /// Batches whose gradients are averaged in one step, each counting by its positions that count. 1.
    pub accumulate: usize,
    /// Peak learning rate. 1e-4.
    pub learning_rate: f64,
    /// Decay after the warm-up: `"constant"`, `"linear"`, `"cosine"` or `"wsd"`. `"cosine"`.
    pub schedule: Decay,
    /// Share of the peak learning rate left at the end. 0.
    pub floor: f64,
    /// Steps of linear warm-up. 50; a recipe that leaves it out has a tenth of its steps at most.
    pub warmup: usize,
    /// Largest global gradient norm; 0 clips nothing. 0.5.
    pub clip: f64,
    /// Size to which every element of the gradient is cut after that; 0 cuts nothing. 0.
    pub clip_value: f64,
    /// AdamW's weight decay, of matrices; norms and biases do not decay. 0.
    pub weight_decay: f64,
    /// AdamW's decay of the first moment. 0.9.
    pub beta1: f64,
    /// AdamW's decay of the second moment. 0.95.
    pub beta2: f64,
    /// AdamW's epsilon. 1e-8.
    pub epsilon: f64,
    /// Whether cheap activations are computed again in the backward pass instead of kept. `false`.
    pub gradient_checkpointing: bool,
    /// Steps between log lines. 10.
    pub log_every: usize,
    /// Steps between validations. 200.
    pub validate_every: usize,
    /// Held-out samples of a validation's loss and simulated τ. 64.
    pub validate_samples: usize,
    /// Held-out prompts that a validation decodes for the true τ. 8.
    pub decode_prompts: usize,
    /// Tokens decoded for each. 64.
    pub decode_tokens: usize,
    /// Length of the chains drafted for them. 5.
    pub decode_draft_length: usize,
    /// Steps between saved states. 200.
    pub save_every: usize,
    /// Saved states kept, beside the best by true τ. 2.
    pub keep: usize,
    /// A loss above this multiple of its running mean stops the run. 10.
    pub explosion: f64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 1000,
            batch_tokens: 4096,
            accumulate: 1,
            learning_rate: 1e-4,
            schedule: Decay::Cosine,
            floor: 0.0,
            warmup: 50,
            clip: 0.5,
            clip_value: 0.0,
            weight_decay: 0.0,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            gradient_checkpointing: false,
            log_every: 10,
            validate_every: 200,
            validate_samples: 64,
            decode_prompts: 8,
            decode_tokens: 64,
            decode_draft_length: 5,
            save_every: 200,
            keep: 2,
            explosion: 10.0,
        }
    }
}

impl TrainConfig {
    /// Fails on settings that make no sense, by name.
    ///
    /// # Errors
    /// Such a setting.
    pub fn check(&self, row_length: usize) -> Result<()> {
        let numbers = [
            bounds::up_to("steps", self.steps, bounds::STEPS),
            bounds::up_to("accumulate", self.accumulate, bounds::BATCHES),
            bounds::up_to("batch_tokens", self.batch_tokens, bounds::TEXT),
            bounds::up_to("log_every", self.log_every, usize::MAX),
            bounds::up_to("validate_every", self.validate_every, usize::MAX),
            bounds::up_to("save_every", self.save_every, usize::MAX),
            bounds::up_to("keep", self.keep, usize::MAX),
            bounds::up_to("decode_tokens", self.decode_tokens, bounds::REPLY),
            bounds::up_to(
                "decode_draft_length",
                self.decode_draft_length,
                bounds::DRAFT,
            ),
        ];
        bounds::check(numbers).map_err(|out| Error::out_of_bounds("train", out))?;
        let wrong = |key, expected: String, got: String| {
            Err(Error::Setting {
                table: "train",
                key,
                expected,
                got,
            })
        };
        if !self.batch_tokens.is_multiple_of(row_length) {
            let expected = format!("a multiple of `[data] max_length`, {row_length}");
            return wrong("batch_tokens", expected, self.batch_tokens.to_string());
        }
        if !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            let got = self.learning_rate.to_string();
            return wrong("learning_rate", "a positive number".into(), got);
        }
        if self.validate_samples == 0 && self.decode_prompts == 0 {
            let expected = "at least 1, or `decode_prompts` of at least 1: one of them chooses the best weights";
            return wrong("validate_samples", expected.into(), "0".into());
        }
        if self.explosion.is_nan() || self.explosion <= 1.0 {
            return wrong("explosion", "above 1".into(), self.explosion.to_string());
        }
        if self.epsilon.is_nan() || self.epsilon <= 0.0 {
            return wrong(
                "epsilon",
                "a positive number".into(),
                self.epsilon.to_string(),
            );
        }
        let not_negative = [
            ("clip", self.clip),
            ("clip_value", self.clip_value),
            ("weight_decay", self.weight_decay),
            ("floor", self.floor),
        ];
        for (key, value) in not_negative {
            if value.is_nan() || value < 0.0 {
                return wrong(key, "0 or more".into(), value.to_string());
            }
        }
        for (key, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return wrong(key, "at least 0 and below 1".into(), beta.to_string());
            }
        }
        if self.warmup > self.steps {
            let expected = format!("at most `steps`, {}", self.steps);
            return wrong("warmup", expected, self.warmup.to_string());
        }
        Ok(())
    }

    /// The learning rate over the run.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            learning_rate: self.learning_rate,
            warmup: self.warmup,
            steps: self.steps,
            decay: self.schedule,
            floor: self.floor,
        }
    }

    /// The optimiser's settings.
    pub fn optimizer(&self) -> AdamWConfig {
        AdamWConfig {
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            clip_value: self.clip_value,
        }
    }
}
