use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use spectrain_checkpoints::Mismatch;
use spectrain_models::bounds;

use crate::error::{Error, Result};
use crate::optimizer::{Mover, OptimizerConfig};
use crate::schedule::{Decay, DecayShape, Schedule};
use crate::source::Samples;

/// The steps of a training that is counted in epochs, and those of its warm-up where nobody set them, until it is known how many
/// batches an epoch has; and those of a warm-up that is a share of the steps.
pub const OF_EPOCHS: usize = usize::MAX;

/// The keys that no schedule but [`Decay::Wsd`] reads.
pub const OF_WSD: [&str; 2] = ["decay_ratio", "decay_shape"];

/// The most epochs.
const MOST_EPOCHS: f64 = 100_000.0;

/// The largest rate, decay and gradient: far beyond any that trains.
const MOST: f64 = 1e6;

/// The smallest number beside 0: far below any that trains, and one that f32, in which training computes, still tells from 0.
const LEAST: f64 = 1e-30;

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn is_of_epochs(steps: &usize) -> bool {
    *steps == OF_EPOCHS
}

/// How a drafter is trained: with f32 master weights, and gradients that are clipped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Optimiser steps.
    #[serde(skip_serializing_if = "is_of_epochs")]
    pub steps: usize,
    /// In place of `steps`: passes over the training data, which may be a fraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Tokens in one batch, padding included; a multiple of `data.max_length`. Left out: as many whole rows as fit into 4096
    /// tokens, at least one.
    pub batch_tokens: usize,
    /// Batches whose gradients are averaged in one step, each weighted by how many of its positions count.
    pub gradient_accumulation: usize,
    /// The optimiser of matrices. AdamW always updates token tables (embeddings, heads, codebooks), norms and biases.
    pub optimizer: OptimizerName,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Peak learning rate of matrices. Left out: `learning_rate`, or ten times that with Muon. Muon's rate is in the units of its
    /// author: a rate for PyTorch's `match_rms_adamw`, which speculators uses, has to be multiplied by 0.2 √width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matrix_learning_rate: Option<f64>,
    /// Peak learning rate of token tables. Left out: `learning_rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_learning_rate: Option<f64>,
    /// Decay of Muon's momentum.
    pub muon_momentum: f64,
    /// How the learning rate changes after the warm-up.
    pub schedule: Decay,
    /// With `schedule = "wsd"`: the share of all steps, the last ones, over which the learning rate falls; at most those after the
    /// warm-up. Left out: 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_ratio: Option<f64>,
    /// With `schedule = "wsd"`: how the learning rate falls over them. Left out: `"linear"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_shape: Option<DecayShape>,
    /// Share of the peak learning rate left behind the last step, which itself is one step short of it.
    pub min_lr_ratio: f64,
    /// Steps over which the learning rate rises; of a training that is shorter it ends below its peak. Left out: 50, or a tenth
    /// of the steps if there are fewer than 500, those of `epochs` too.
    #[serde(skip_serializing_if = "is_of_epochs")]
    pub warmup_steps: usize,
    /// In place of `warmup_steps`: the share of the steps, those of `epochs` too, over which the learning rate rises, such as 0.04.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_ratio: Option<f64>,
    /// Largest global gradient norm; 0 clips nothing.
    pub max_grad_norm: f64,
    /// Size to which every element of the gradient is clipped after that; 0 clips nothing. EAGLE-1 uses 0.5 and does not clip
    /// the norm.
    pub clip_value: f64,
    /// Weight decay of matrices and tables, which shrink at each step by this times their learning rate; norms and biases do not
    /// decay. Beside a rate that was multiplied by 0.2 √width (see `matrix_learning_rate`) the decay has to be divided by that.
    pub weight_decay: f64,
    /// AdamW's decay of the first moment.
    pub beta1: f64,
    /// AdamW's decay of the second moment.
    pub beta2: f64,
    /// AdamW's epsilon.
    pub epsilon: f64,
    /// Decay of an exponential moving average of the weights over the steps, which is validated, saved and exported in place of
    /// the weights; 0 takes the weights themselves.
    pub ema_decay: f64,
    /// Whether the backward pass computes cheap activations again instead of keeping them: less memory, more time.
    pub gradient_checkpointing: bool,
    /// Steps between log lines, where loss, gradient norm and parameters are checked for NaN.
    pub log_every: usize,
    /// Steps between validations.
    pub validate_every: usize,
    /// Held-out samples on which a validation computes the loss, a mean over their batches by how many positions count in each,
    /// and the simulated τ. Of two states whose true τ is not surely different, the one with the smaller loss is better. 0
    /// measures no loss: of two such states the earlier one is better then.
    pub validate_samples: usize,
    /// Held-out prompts on which a validation computes the true τ. The target answers them once; each validation computes how
    /// much of its drafts for these answers a decoder would accept.
    pub decode_prompts: usize,
    /// The most tokens in each of these answers.
    pub decode_tokens: usize,
    /// Length in tokens of the chains that a validation drafts; 0 takes the drafter's own length, as in
    /// `evaluate.draft_lengths`.
    pub decode_draft_length: usize,
    /// Validations in a row that find no better weights than the best ones before, after which the training ends as if its steps
    /// were done. Left out: it ends with its steps alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<usize>,
    /// Steps between saved states.
    pub save_every: usize,
    /// Saved states to keep, besides the best one by true τ.
    pub keep: usize,
    /// A loss above this multiple of its running mean (in the first 20 steps: of the first loss), or of 1 if that is less, stops the
    /// run. It is taken here as the mean over the positions that are judged, whatever their weights.
    pub explosion: f64,
}

/// What moves matrices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// AdamW.
    #[default]
    AdamW,
    /// Muon: each matrix moves along its orthogonalised momentum.
    Muon,
}

/// The steps of a warm-up that nobody set, unless they are more than a tenth of all.
const WARM_UP: usize = 50;

/// The share of the steps over which a rate falls at the end, unless it is given.
const DECAY_RATIO: f64 = 0.2;

/// How many times the other learning rate Muon's is, unless it is given.
const MUON_RATE: f64 = 10.0;

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 1000,
            epochs: None,
            batch_tokens: 4096,
            gradient_accumulation: 1,
            optimizer: OptimizerName::AdamW,
            learning_rate: 1e-4,
            matrix_learning_rate: None,
            table_learning_rate: None,
            muon_momentum: 0.95,
            schedule: Decay::Cosine,
            decay_ratio: None,
            decay_shape: None,
            min_lr_ratio: 0.0,
            warmup_steps: WARM_UP,
            warmup_ratio: None,
            max_grad_norm: 0.5,
            clip_value: 0.0,
            weight_decay: 0.0,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            ema_decay: 0.0,
            gradient_checkpointing: false,
            log_every: 10,
            validate_every: 200,
            validate_samples: 64,
            decode_prompts: 64,
            decode_tokens: 128,
            decode_draft_length: 0,
            patience: None,
            save_every: 200,
            keep: 2,
            explosion: 10.0,
        }
    }
}

fn is_share(ratio: f64) -> bool {
    (0.0..=1.0).contains(&ratio)
}

fn wrong<T>(key: &'static str, expected: impl std::fmt::Display, got: String) -> Result<T> {
    Err(Error::Setting {
        table: "train",
        key,
        mismatch: Mismatch::new(expected, got),
    })
}

/// A product of numbers that people wrote, without what computing it leaves behind their digits.
fn rounded(product: f64) -> f64 {
    format!("{product:.12e}").parse().unwrap_or(product)
}

/// A choice as a recipe has it.
fn word(choice: &impl Serialize) -> String {
    serde_json::json!(choice).to_string()
}

impl TrainConfig {
    /// Fails on settings that make no sense, by name.
    ///
    /// # Errors
    /// Such a setting.
    pub fn check(&self, row_length: usize) -> Result<()> {
        let numbers = [
            bounds::up_to(
                "gradient_accumulation",
                self.gradient_accumulation,
                bounds::BATCHES,
            ),
            bounds::up_to("batch_tokens", self.batch_tokens, bounds::TEXT),
            bounds::up_to("log_every", self.log_every, usize::MAX),
            bounds::up_to("validate_every", self.validate_every, usize::MAX),
            bounds::up_to("save_every", self.save_every, usize::MAX),
            bounds::up_to("keep", self.keep, usize::MAX),
            bounds::up_to("decode_tokens", self.decode_tokens, bounds::REPLY),
            bounds::or_none(
                "decode_draft_length",
                self.decode_draft_length,
                bounds::DRAFT,
            ),
        ];
        let patience = self.patience;
        let patience = patience.map(|row| bounds::up_to("patience", row, usize::MAX));
        bounds::check(numbers.into_iter().chain(patience))
            .map_err(|out| Error::out_of_bounds("train", out))?;
        match self.epochs {
            None => bounds::check([bounds::up_to("steps", self.steps, bounds::STEPS)])
                .map_err(|out| Error::out_of_bounds("train", out))?,
            Some(epochs) if !(epochs > 0.0 && epochs <= MOST_EPOCHS) => {
                let expected = format!("above 0, at most {MOST_EPOCHS}");
                return wrong("epochs", expected, epochs.to_string());
            }
            Some(_) => {}
        }
        if !self.batch_tokens.is_multiple_of(row_length) {
            let expected = format!("a multiple of `[data] max_length` ({row_length})");
            return wrong("batch_tokens", expected, self.batch_tokens.to_string());
        }
        self.check_optimizer()?;
        self.check_decay()?;
        if self.validate_samples == 0 && self.decode_prompts == 0 {
            let expected = "at least 1, unless `decode_prompts` is, as one of the two chooses the best weights";
            return wrong("validate_samples", expected, "0".into());
        }
        if !(self.explosion > 1.0 && self.explosion.is_finite()) {
            return wrong("explosion", "a number above 1", self.explosion.to_string());
        }
        Ok(())
    }

    /// Fails on numbers of the optimiser that make no sense.
    fn check_optimizer(&self) -> Result<()> {
        let rates = [
            ("learning_rate", Some(self.learning_rate)),
            ("matrix_learning_rate", self.matrix_learning_rate),
            ("table_learning_rate", self.table_learning_rate),
        ];
        for (key, rate) in rates {
            if let Some(rate) = rate.filter(|rate| !(LEAST..=MOST).contains(rate)) {
                let expected = format!("a number from {LEAST:e} to {MOST}");
                return wrong(key, expected, rate.to_string());
            }
        }
        if !(LEAST..=1.0).contains(&self.epsilon) {
            let expected = format!("a number from {LEAST:e} to 1");
            return wrong("epsilon", expected, self.epsilon.to_string());
        }
        for (key, value, most) in [
            ("weight_decay", self.weight_decay, MOST),
            ("min_lr_ratio", self.min_lr_ratio, 1.0),
            ("max_grad_norm", self.max_grad_norm, MOST),
            ("clip_value", self.clip_value, MOST),
        ] {
            if value > 0.0 && value < LEAST {
                let expected = format!("0, or at least {LEAST:e}");
                return wrong(key, expected, value.to_string());
            }
            if !(0.0..=most).contains(&value) {
                return wrong(key, format!("0 to {most}"), value.to_string());
            }
        }
        if let Some(ratio) = self.warmup_ratio.filter(|ratio| !is_share(*ratio)) {
            return wrong("warmup_ratio", "0 to 1", ratio.to_string());
        }
        let betas = [
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("muon_momentum", self.muon_momentum),
            ("ema_decay", self.ema_decay),
        ];
        for (key, beta) in betas {
            if !(0.0..1.0).contains(&beta) {
                return wrong(key, "at least 0 and below 1", beta.to_string());
            }
        }
        Ok(())
    }

    /// Fails on what is said of how `"wsd"` falls where it makes no sense, or where another schedule would not read it.
    fn check_decay(&self) -> Result<()> {
        let given = [
            self.decay_ratio.map(|ratio| ratio.to_string()),
            self.decay_shape.map(|shape| word(&shape)),
        ];
        for (key, found) in OF_WSD.into_iter().zip(given) {
            if let Some(found) = found.filter(|_| self.schedule != Decay::Wsd) {
                let expected = format!(
                    "nothing beside `schedule = {}`, as only `\"wsd\"` reads it",
                    word(&self.schedule)
                );
                return wrong(key, expected, found);
            }
        }
        match self.decay_ratio {
            Some(ratio) if !(ratio > 0.0 && is_share(ratio)) => {
                wrong("decay_ratio", "above 0, at most 1", ratio.to_string())
            }
            _ => Ok(()),
        }
    }

    /// The same settings with the steps that `epochs` come to on these samples, a part of a step counted as a whole. A
    /// warm-up that is longer becomes a tenth of them, as does one that nobody set if that is less.
    ///
    /// # Errors
    /// A sample is longer than a row, or there is none.
    pub fn with_steps(&self, samples: &Samples) -> Result<Self> {
        let Some(epochs) = self.epochs else {
            return Ok(self.clone());
        };
        let (whole, part) = (epochs.trunc() as u64, epochs.fract());
        let mut batches = 0.0;
        // Packed anew each time, epochs differ a little.
        for epoch in 0..whole {
            batches += samples.epoch(epoch)?.len() as f64;
        }
        if part > 0.0 {
            batches += part * samples.epoch(whole)?.len() as f64;
        }
        if batches == 0.0 {
            return Err(Error::NoSamples);
        }
        let steps = (batches / self.gradient_accumulation as f64).ceil() as usize;
        Ok(Self {
            steps,
            epochs: None,
            warmup_steps: match self.warmup_steps {
                OF_EPOCHS if self.warmup_ratio.is_some() => OF_EPOCHS,
                OF_EPOCHS => WARM_UP.min(steps / 10),
                // It was said without the steps being known.
                longer if longer > steps => steps / 10,
                asked => asked,
            },
            ..self.clone()
        })
    }

    /// Steps over which the learning rate rises; a share of them is rounded down, as other trainers do. `steps` must be known.
    pub fn warm_up(&self) -> usize {
        match (self.warmup_steps, self.warmup_ratio) {
            (OF_EPOCHS, Some(ratio)) => (ratio * self.steps as f64) as usize,
            (steps, _) => steps,
        }
    }

    /// Validations behind steps before the last one, behind which there always is one; nothing where the steps are not known.
    pub fn validations_before_last(&self) -> Option<usize> {
        let before = self.steps.saturating_sub(1) / self.validate_every.max(1);
        self.epochs.is_none().then_some(before)
    }

    /// That `patience` cannot end `what`, such as "this training": nothing where it can, where there is none, and where the steps are not
    /// known. One that begins trained has best weights before its first step, with which its validations are compared.
    pub fn patience_in_vain(&self, what: &str, begins_trained: bool) -> Option<String> {
        let (patience, validations) = (self.patience?, self.validations_before_last()?);
        // The first one of all finds the best weights so far.
        let most = validations.saturating_sub(usize::from(!begins_trained));
        let noun = match most {
            1 => "validation",
            _ => "validations",
        };
        (most < patience).then(|| {
            format!(
                "`train.patience = {patience}` cannot end {what}: before its last step no more than {most} {noun} \
                 (`train.validate_every`) may find no better weights"
            )
        })
    }

    /// The same with what is read in the place of keys that were left out, where that is more than another key's value, as people
    /// write it.
    pub fn explicit(&self) -> Self {
        let (schedule, optimizer) = (self.schedule(), self.optimizer());
        let falls = self.schedule == Decay::Wsd;
        let matrices = optimizer.matrix_rate;
        let own = (matrices != 1.0).then(|| rounded(matrices * self.learning_rate));
        Self {
            decay_ratio: falls.then_some(schedule.decay_ratio),
            decay_shape: falls.then_some(schedule.decay_shape),
            matrix_learning_rate: self.matrix_learning_rate.or(own),
            ..self.clone()
        }
    }

    /// The learning rate over the run.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            learning_rate: self.learning_rate,
            warmup_steps: self.warm_up(),
            steps: self.steps,
            decay: self.schedule,
            decay_ratio: self.decay_ratio.unwrap_or(DECAY_RATIO),
            decay_shape: self.decay_shape.unwrap_or_default(),
            min_lr_ratio: self.min_lr_ratio,
        }
    }

    /// The optimiser's settings.
    pub fn optimizer(&self) -> OptimizerConfig {
        let (matrices, usual) = match self.optimizer {
            OptimizerName::AdamW => (Mover::AdamW, 1.0),
            OptimizerName::Muon => (Mover::Muon(self.muon_momentum), MUON_RATE),
        };
        let multiple = |own: Option<f64>| own.map(|own| own / self.learning_rate);
        OptimizerConfig {
            matrices,
            matrix_rate: multiple(self.matrix_learning_rate).unwrap_or(usual),
            table_rate: multiple(self.table_learning_rate).unwrap_or(1.0),
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            clip_value: self.clip_value,
            average: self.ema_decay,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use spectrain_data::Sample;
    use spectrain_data::tokens::{TokenShards, TokenWriter};

    use super::*;

    #[test]
    fn epochs_come_to_the_steps_of_their_batches() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::create(folder.path(), 1000).unwrap();
        for _ in 0..10 {
            let sample = Sample {
                tokens: vec![1; 8],
                loss_mask: vec![true; 8],
            };
            writer.push(&sample).unwrap();
        }
        writer.finish(serde_json::Map::new()).unwrap();
        let shards = Arc::new(TokenShards::open(folder.path()).unwrap());
        // Ten samples in rows of one, two rows a batch: five batches an epoch.
        let samples = Samples::new(shards, 8, 2, 0);
        let steps = |epochs: f64, gradient_accumulation: usize| {
            let config = TrainConfig {
                steps: OF_EPOCHS,
                epochs: Some(epochs),
                gradient_accumulation,
                ..TrainConfig::default()
            };
            let resolved = config.with_steps(&samples).unwrap();
            assert_eq!(
                (resolved.epochs, resolved.schedule().steps),
                (None, resolved.steps)
            );
            resolved.steps
        };
        assert_eq!([steps(1.0, 1), steps(3.0, 1), steps(0.5, 1)], [5, 15, 3]);
        assert_eq!([steps(2.0, 4), steps(0.01, 1)], [3, 1]);
        let warm_up = |epochs: f64, warmup_steps: usize| {
            let config = TrainConfig {
                steps: OF_EPOCHS,
                epochs: Some(epochs),
                warmup_steps,
                ..TrainConfig::default()
            };
            config.with_steps(&samples).unwrap().warmup_steps
        };
        // Of 60 and 1000 steps: a tenth, but at most 50.
        assert_eq!(
            [warm_up(12.0, OF_EPOCHS), warm_up(200.0, OF_EPOCHS)],
            [6, 50]
        );
        // What was asked for holds unless there are fewer steps.
        assert_eq!([warm_up(12.0, 50), warm_up(12.0, 61)], [50, 6]);
        // A share of 60 steps; with more epochs the same training goes on.
        let share = |epochs: f64| {
            let config = TrainConfig {
                steps: OF_EPOCHS,
                epochs: Some(epochs),
                warmup_steps: OF_EPOCHS,
                warmup_ratio: Some(0.26),
                ..TrainConfig::default()
            };
            config.with_steps(&samples).unwrap()
        };
        let [some, more] = [share(12.0), share(24.0)];
        assert_eq!([some.warm_up(), more.warm_up()], [15, 31]);
        assert_eq!(some.schedule().warmup_steps, 15);
        assert_eq!(some.identity(), more.identity());
        let given = TrainConfig::default();
        assert_eq!(given.with_steps(&samples).unwrap(), given);
    }

    #[test]
    fn validations_that_are_too_few_to_end_a_training_are_known_before_it() {
        let in_vain = |steps, epochs, begins_trained| {
            let training = TrainConfig {
                steps,
                epochs,
                validate_every: 10,
                patience: Some(2),
                ..TrainConfig::default()
            };
            training.patience_in_vain("this training", begins_trained)
        };
        // Behind steps 10, 20 and 30.
        assert_eq!(in_vain(31, None, false), None);
        let told = "`train.patience = 2` cannot end this training: before its last step no more than 1 validation \
                    (`train.validate_every`) may find no better weights";
        assert_eq!(in_vain(30, None, false).as_deref(), Some(told));
        assert_eq!(in_vain(30, None, true), None);
        assert!(in_vain(20, None, true).is_some());
        // How many steps these are is not surely known.
        assert_eq!(in_vain(30, Some(1.0), false), None);
        let endless = TrainConfig::default();
        assert_eq!(endless.patience_in_vain("this training", false), None);
    }

    #[test]
    fn a_rate_that_was_left_out_is_said_with_the_digits_of_the_one_that_it_is_made_of() {
        let said = |learning_rate: f64| {
            let training = TrainConfig {
                optimizer: OptimizerName::Muon,
                learning_rate,
                ..TrainConfig::default()
            };
            training.explicit().matrix_learning_rate
        };
        assert_ne!(10.0 * 3e-4, 3e-3, "the product has digits of its own");
        let rates = [3e-4, 7e-5, 0.5, 1.25e-30];
        assert_eq!(rates.map(said), [3e-3, 7e-4, 5.0, 1.25e-29].map(Some));
        assert_eq!(TrainConfig::default().explicit().matrix_learning_rate, None);
    }

    #[test]
    fn only_one_of_steps_and_epochs_is_written() {
        let config = TrainConfig {
            steps: OF_EPOCHS,
            epochs: Some(2.0),
            ..TrainConfig::default()
        };
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(
            (&written["epochs"], written.get("steps")),
            (&2.0.into(), None)
        );
        let written = serde_json::to_value(TrainConfig::default()).unwrap();
        assert_eq!(
            (written.get("epochs"), &written["steps"]),
            (None, &1000.into())
        );
    }

    #[test]
    fn an_explosion_and_a_share_that_make_no_sense_are_refused() {
        let refused = |change: fn(&mut TrainConfig)| {
            let mut config = TrainConfig::default();
            change(&mut config);
            config.check(64).unwrap_err().to_string()
        };
        for (told, change) in [
            (
                "a number above 1",
                (|of| of.explosion = f64::INFINITY) as fn(&mut TrainConfig),
            ),
            ("a number above 1", |of| of.explosion = 1.0),
            ("a number above 1", |of| of.explosion = f64::NAN),
            ("warmup_ratio", |of| of.warmup_ratio = Some(1.5)),
            ("warmup_ratio", |of| of.warmup_ratio = Some(f64::NAN)),
        ] {
            let refused = refused(change);
            assert!(refused.contains(told), "{refused}");
        }
    }

    #[test]
    fn what_only_wsd_reads_is_refused_beside_another_schedule() {
        let wsd = TrainConfig {
            schedule: Decay::Wsd,
            decay_ratio: Some(0.4),
            decay_shape: Some(DecayShape::MinusSqrt),
            ..TrainConfig::default()
        };
        wsd.check(64).unwrap();
        let schedule = wsd.schedule();
        let found = (schedule.decay_ratio, schedule.decay_shape);
        assert_eq!(found, (0.4, DecayShape::MinusSqrt));
        // Of another fall a saved state is of another training.
        let usual = TrainConfig {
            decay_ratio: None,
            decay_shape: None,
            ..wsd.clone()
        };
        assert_ne!(usual.identity(), wsd.identity());
        let schedule = usual.schedule();
        let found = (schedule.decay_ratio, schedule.decay_shape);
        assert_eq!(found, (0.2, DecayShape::Linear));
        let refused = |config: TrainConfig| config.check(64).unwrap_err().to_string();
        let beside = "beside `schedule = \"linear\"`, as only `\"wsd\"` reads it, found";
        for (change, told) in [
            (
                (|of| of.decay_shape = None) as fn(&mut TrainConfig),
                format!("`[train] decay_ratio`: expected nothing {beside} 0.4"),
            ),
            (
                |of| of.decay_ratio = None,
                format!("`[train] decay_shape`: expected nothing {beside} \"minus_sqrt\""),
            ),
        ] {
            let mut other = TrainConfig {
                schedule: Decay::Linear,
                ..wsd.clone()
            };
            change(&mut other);
            assert_eq!(refused(other), told);
        }
        for ratio in [0.0, -0.5, 1.5, f64::NAN] {
            let told = refused(TrainConfig {
                decay_ratio: Some(ratio),
                ..wsd.clone()
            });
            assert!(told.contains("decay_ratio`: expected above 0"), "{told}");
        }
    }

    #[test]
    fn epochs_that_make_no_sense_are_refused() {
        for epochs in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let config = TrainConfig {
                steps: OF_EPOCHS,
                epochs: Some(epochs),
                ..TrainConfig::default()
            };
            let error = config.check(2048).unwrap_err().to_string();
            assert!(error.contains("epochs"), "{error}");
        }
    }
}
