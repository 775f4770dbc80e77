//! The curves of a training, as its stage logged them.
use serde_json::{Map, Value};
use spectrain_checkpoints::Mismatch;

use crate::error::{Error, Result};

/// What one stage of a training logged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curves {
    /// The stage.
    pub stage: String,
    /// When the first line was logged, in seconds since 1970.
    pub begun: f64,
    /// Mean loss of the steps up to each of these.
    pub loss: Vec<(u64, f64)>,
    /// The validations.
    pub validations: Vec<ValidationPoint>,
}

/// One validation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ValidationPoint {
    /// After how many steps.
    pub step: u64,
    /// Loss on held-out conversations.
    pub loss: Option<f64>,
    /// Mean acceptance length τ on held-out prompts.
    pub tau: Option<f64>,
    /// Its 95 % interval over prompts.
    pub tau_ci95: Option<[f64; 2]>,
}

impl Curves {
    /// Reads the text of `events/metrics.jsonl` of a stage.
    ///
    /// # Errors
    /// A line is no JSON object, or has no step.
    pub fn read(stage: &str, text: &str) -> Result<Self> {
        let mut curves = Self {
            stage: stage.to_owned(),
            ..Self::default()
        };
        for (at, line) in text.lines().enumerate() {
            let line: Map<String, Value> = serde_json::from_str(line)?;
            let number = |key: &str| line.get(key).and_then(Value::as_f64);
            if at == 0 {
                curves.begun = number("time").unwrap_or(0.0);
            }
            let Some(step) = line.get("step").and_then(Value::as_u64) else {
                return Err(Error::Setting {
                    key: "step",
                    mismatch: Mismatch::new("a number in every line of the metrics", "none"),
                });
            };
            if let Some(loss) = number("train/loss") {
                curves.loss.push((step, loss));
            }
            let point = ValidationPoint {
                step,
                loss: number("validation/loss"),
                tau: number("validation/tau"),
                tau_ci95: number("validation/tau_low")
                    .zip(number("validation/tau_high"))
                    .map(|(low, high)| [low, high]),
            };
            if point.loss.is_some() || point.tau.is_some() {
                curves.validations.push(point);
            }
        }
        Ok(curves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_validations_are_read_line_by_line() {
        let text = "\
{\"step\":10,\"time\":1.5,\"train/loss\":3.5}
{\"step\":20,\"time\":2.5,\"train/loss\":null}
{\"step\":20,\"time\":3.5,\"validation/loss\":2.5,\"validation/tau\":2.0,\"validation/tau_low\":1.5,\"validation/tau_high\":2.25}
";
        let curves = Curves::read("train", text).unwrap();
        assert_eq!((curves.begun, &curves.loss[..]), (1.5, &[(10, 3.5)][..]));
        let point = ValidationPoint {
            step: 20,
            loss: Some(2.5),
            tau: Some(2.0),
            tau_ci95: Some([1.5, 2.25]),
        };
        assert_eq!(curves.validations, [point]);
        assert!(Curves::read("train", "{\"step\": 1").is_err());
        let error = Curves::read("train", "{}").unwrap_err().to_string();
        assert!(error.contains("`step`"), "{error}");
    }
}
