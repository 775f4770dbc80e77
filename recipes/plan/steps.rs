//! How many steps a training takes.

use serde_json::{Value, json};
use spectrain_train::TrainConfig;

use super::words::grouped;

/// How many steps a stage trains for, and on how many tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Steps {
    pub(super) stage: &'static str,
    /// Known once the data is, where they are counted in epochs.
    pub(super) steps: Option<u64>,
    /// Whether they are counted in epochs: how many there are depends on how the samples fill their rows.
    is_estimated: bool,
    /// Validations without better weights behind which there are fewer.
    patience: Option<usize>,
    tokens_per_step: u64,
    /// Tokens of all steps, known as the steps are.
    pub(super) trained_tokens: Option<u64>,
}

impl Steps {
    pub(super) fn of(
        stage: &'static str,
        training: &TrainConfig,
        data_tokens: Option<u64>,
    ) -> Self {
        let [tokens, steps, batches] = [
            training.batch_tokens,
            training.steps,
            training.gradient_accumulation,
        ]
        .map(|number| number as u64);
        let tokens_per_step = tokens.saturating_mul(batches);
        let (steps, trained_tokens) = match training.epochs {
            None => (Some(steps), Some(tokens_per_step.saturating_mul(steps))),
            Some(epochs) => {
                let trained = data_tokens.map(|tokens| (tokens as f64 * epochs) as u64);
                let steps = trained.map(|trained| trained.div_ceil(tokens_per_step.max(1)));
                (steps, trained)
            }
        };
        Self {
            stage,
            steps,
            is_estimated: training.epochs.is_some(),
            patience: training.patience,
            tokens_per_step,
            trained_tokens,
        }
    }

    /// For people; nothing where they are not known.
    pub(super) fn words(&self) -> Option<String> {
        let about = if self.is_estimated { "about " } else { "" };
        let steps = self.steps?;
        let noun = if steps == 1 { "step" } else { "steps" };
        let (most, why) = match self.patience {
            Some(patience) => ("at most ", format!(" (`patience = {patience}`)")),
            None => ("", String::new()),
        };
        Some(format!(
            "{most}{about}{} {noun} of {} tokens{why}",
            grouped(steps),
            grouped(self.tokens_per_step)
        ))
    }

    /// For programs, under the name of the stage.
    pub(super) fn json(&self) -> (String, Value) {
        let mut numbers = json!({"steps": self.steps, "tokens_per_step": self.tokens_per_step});
        if let Some(patience) = self.patience {
            numbers["patience"] = patience.into();
        }
        (self.stage.to_owned(), numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_as_they_are_set_or_by_the_epochs_of_the_data() {
        let training = TrainConfig {
            steps: 20,
            batch_tokens: 2048,
            gradient_accumulation: 2,
            ..TrainConfig::default()
        };
        let counted = Steps::of("train", &training, None);
        assert_eq!(counted.words().unwrap(), "20 steps of 4,096 tokens");
        assert_eq!(counted.trained_tokens, Some(81_920));
        let numbers = json!({"steps": 20, "tokens_per_step": 4096});
        assert_eq!(counted.json(), ("train".into(), numbers));
        let training = TrainConfig {
            epochs: Some(2.5),
            ..training
        };
        let counted = Steps::of("train", &training, Some(10_000));
        assert_eq!(counted.words().unwrap(), "about 7 steps of 4,096 tokens");
        assert_eq!(counted.trained_tokens, Some(25_000));
        assert_eq!(Steps::of("train", &training, None).words(), None);
    }

    #[test]
    fn steps_that_validations_may_end_are_the_most_that_there_can_be() {
        let training = TrainConfig {
            steps: 1000,
            patience: Some(3),
            ..TrainConfig::default()
        };
        let counted = Steps::of("train", &training, None);
        let words = "at most 1,000 steps of 4,096 tokens (`patience = 3`)";
        assert_eq!(counted.words().unwrap(), words);
        let numbers = json!({"steps": 1000, "tokens_per_step": 4096, "patience": 3});
        assert_eq!(counted.json(), ("train".into(), numbers));
    }
}
