//! What the linter found, for a person and for a file.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::mask::Masking;
use crate::prepare::Category;

/// How a quantity is distributed over samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The smallest.
    pub min: f64,
    /// 5 % are below.
    pub p05: f64,
    /// Half are below.
    pub median: f64,
    /// 95 % are below.
    pub p95: f64,
    /// The largest.
    pub max: f64,
}

impl Quantiles {
    /// The quantiles of some values; zeros where there are none.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[(share * (values.len() - 1) as f64).round() as usize];
        Self {
            min: at(0.0),
            p05: at(0.05),
            median: at(0.5),
            p95: at(0.95),
            max: at(1.0),
        }
    }
}

/// What was found in one set of rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SetReport {
    /// Rows that became samples.
    pub samples: u64,
    /// Rows that could not be read, rendered or tokenised, with the reason.
    pub refused: Category,
    /// Tokens of all samples, uncut.
    pub tokens: u64,
    /// Of these, how many are trained on.
    pub trained_tokens: u64,
    /// Tokens per sample.
    pub length: Quantiles,
    /// Share of trained tokens per sample.
    pub trained_share: Quantiles,
    /// Samples without a trained token.
    pub all_zero: Category,
    /// Samples of nothing but trained tokens.
    pub all_one: Category,
    /// Samples beyond the maximum length.
    pub overlong: Category,
    /// Samples equal to an earlier one of the set.
    pub duplicates: Category,
    /// Rows with definitions of tools that the chat template does not show.
    pub hidden_tools: Category,
}

/// How much of the trained tokens a draft vocabulary of the most frequent ones contains.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Size of the draft vocabulary.
    pub size: usize,
    /// Share of the trained tokens in it.
    pub share: f64,
}

/// A sample to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownSample {
    /// Where it stands.
    pub location: String,
    /// Its text, special tokens included; what is trained on stands between `⟦` and `⟧`.
    pub text: String,
}

/// What is in a dataset and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LintReport {
    /// Which tokens were to be trained on.
    pub masking: Masking,
    /// The rows to train on.
    pub train: SetReport,
    /// The rows to evaluate on; no samples where there are none.
    pub eval: SetReport,
    /// Evaluation rows whose prompt is trained on.
    pub overlap: Category,
    /// Coverage of the training set by draft vocabularies.
    pub coverage: Vec<Coverage>,
    /// The first training samples.
    pub shown: Vec<ShownSample>,
}

impl LintReport {
    /// What should be mended before training, worst first; empty where nothing is wrong.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.train.samples > 0 && self.train.trained_tokens == 0 {
            problems.push("no token at all is trained on: the loss mask is empty".to_owned());
        }
        let expected_full = self.masking == Masking::All;
        for (name, set) in [("training", &self.train), ("evaluation", &self.eval)] {
            for (category, what) in [
                (&set.refused, ["row cannot be used", "rows cannot be used"]),
                (
                    &set.all_zero,
                    [
                        "sample has nothing to train on",
                        "samples have nothing to train on",
                    ],
                ),
                (
                    &set.all_one,
                    [
                        "sample is trained on from end to end, prompt included",
                        "samples are trained on from end to end, prompt included",
                    ],
                ),
                (
                    &set.duplicates,
                    [
                        "sample repeats an earlier one",
                        "samples repeat an earlier one",
                    ],
                ),
                (
                    &set.overlong,
                    [
                        "sample is longer than `max_length`",
                        "samples are longer than `max_length`",
                    ],
                ),
                (
                    &set.hidden_tools,
                    [
                        "row defines tools that the chat template does not show",
                        "rows define tools that the chat template does not show",
                    ],
                ),
            ] {
                let wanted = expected_full && std::ptr::eq(category, &raw const set.all_one);
                if !wanted {
                    problems.extend(category.problem(name, what));
                }
            }
        }
        let both = [
            "prompt also occurs in the training data",
            "prompts also occur in the training data",
        ];
        problems.extend(self.overlap.problem("evaluation", both));
        problems
    }
}

impl Category {
    /// What is wrong, in the words for one and for several of these of a set, and where; none where there is none.
    fn problem(&self, set: &str, [one, several]: [&str; 2]) -> Option<String> {
        let what = match self.count {
            0 => return None,
            1 => one,
            _ => several,
        };
        let places = self.examples.join("; ");
        Some(format!("{} {set} {what}: {places}", self.count))
    }
}

impl fmt::Display for SetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.trained_tokens as f64 / self.tokens.max(1) as f64;
        writeln!(
            f,
            "{} samples, {} tokens, {} trained on ({share:.1} %)",
            self.samples, self.tokens, self.trained_tokens
        )?;
        let (length, part) = (&self.length, &self.trained_share);
        writeln!(
            f,
            "  tokens per sample: min {}, 5 % {}, median {}, 95 % {}, max {}",
            length.min, length.p05, length.median, length.p95, length.max
        )?;
        write!(
            f,
            "  trained share: min {:.3}, 5 % {:.3}, median {:.3}, 95 % {:.3}, max {:.3}",
            part.min, part.p05, part.median, part.p95, part.max
        )
    }
}

impl fmt::Display for LintReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "train: {}", self.train)?;
        if self.eval.samples + self.eval.refused.count > 0 {
            writeln!(f, "eval: {}", self.eval)?;
        }
        for coverage in &self.coverage {
            writeln!(
                f,
                "draft vocabulary of {}: {:.2} % of the trained tokens",
                coverage.size,
                100.0 * coverage.share
            )?;
        }
        for sample in &self.shown {
            writeln!(f, "\n{}:\n{}", sample.location, sample.text.trim_end())?;
        }
        let problems = self.problems();
        if problems.is_empty() {
            return write!(f, "\nno problems found");
        }
        let noun = if problems.len() == 1 {
            "problem"
        } else {
            "problems"
        };
        write!(f, "\n{} {noun}:", problems.len())?;
        problems
            .iter()
            .try_for_each(|problem| write!(f, "\n- {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_read_from_the_sorted_values() {
        let quantiles = Quantiles::of((0..=20).rev().map(f64::from).collect());
        assert_eq!(
            (
                quantiles.min,
                quantiles.p05,
                quantiles.median,
                quantiles.p95,
                quantiles.max
            ),
            (0.0, 1.0, 10.0, 19.0, 20.0)
        );
        assert_eq!(Quantiles::of(Vec::new()), Quantiles::default());
    }
}
