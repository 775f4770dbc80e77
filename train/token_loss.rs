use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{TargetParts, Transformer};

use crate::batch::Batch;
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::judge::{Judge, Statistics};
use crate::objective::Loss;
use crate::row::JudgedRow;
use crate::teacher::Teacher;
use crate::vocab_loss::{HeadParameter, JudgedRows, LossHead, VocabLoss, judged_loss};
use crate::weighing::Weighing;
use crate::workload::Judges;

/// Cross-entropy with the text, divergence from the target, or both.
#[derive(Debug, Clone)]
pub(crate) struct TokenLoss {
    /// Factor on the cross-entropy with the text.
    pub(crate) label_weight: f64,
    /// Factor on the divergence from the target.
    pub(crate) teacher_weight: f64,
    /// That divergence.
    pub(crate) divergence: Divergence,
}

/// What judges the rows of a loss of these keys.
pub(crate) fn judges(teacher_weight: f64, divergence: Divergence) -> Judges {
    if teacher_weight > 0.0 {
        divergence.judges()
    } else {
        Judges::Text
    }
}

impl TokenLoss {
    /// The loss of these keys of an objective.
    ///
    /// # Errors
    /// A setting makes no sense.
    pub(crate) fn new(
        label_weight: f64,
        teacher_weight: f64,
        divergence: Divergence,
    ) -> Result<Self> {
        let setting = |key, expected, got| Err(Error::objective(key, expected, got));
        for (key, weight) in [
            ("label_weight", label_weight),
            ("teacher_weight", teacher_weight),
        ] {
            if !(weight >= 0.0 && weight.is_finite()) {
                return setting(key, "0 or more", weight.to_string());
            }
        }
        if label_weight + teacher_weight == 0.0 {
            let expected = "above 0 where `label_weight` is 0";
            return setting("teacher_weight", expected, "0".into());
        }
        match divergence.problem() {
            Some((expected, got)) => setting("divergence", expected, got),
            None => Ok(Self {
                label_weight,
                teacher_weight,
                divergence,
            }),
        }
    }

    /// The factor on the term whose rows are reported.
    pub(crate) fn reported_weight(&self) -> f64 {
        if self.teacher_weight > 0.0 {
            self.teacher_weight
        } else {
            self.label_weight
        }
    }

    /// The loss of a drafter over `rows`, each judged by the target's distribution of the position [`JudgedRow::teacher`] and by
    /// the token after it. Where the target judges, what is reported is of its divergence, else of the cross-entropy. Rows
    /// that ask for a token which the model does not know are left out, and the others take their share of the weight.
    /// `weighing` sets the weights where they depend on the drafter.
    ///
    /// # Shapes
    /// - hidden: `[.., d_model]`, after the drafter's final norm
    ///
    /// # Panics
    /// The batch has no features.
    pub(crate) fn of(
        &self,
        judged: &DrafterOnBatch,
        hidden: Tensor<2>,
        rows: Vec<JudgedRow>,
        weighing: Option<Weighing>,
        statistics: Statistics,
    ) -> Loss {
        if self.teacher_weight == 0.0 {
            let part = Part {
                rows,
                weighing,
                statistics,
            };
            return self.by_text(judged, &hidden, part).into();
        }
        let part = Part {
            rows: rows.clone(),
            weighing,
            statistics,
        };
        let mut loss = self.by_target(judged, &hidden, part);
        if self.label_weight > 0.0 {
            let part = Part {
                rows: match weighing {
                    None => rows,
                    Some(_) => times(&loss.rows, (1.0 / self.teacher_weight) as f32),
                },
                weighing: None,
                statistics: Statistics::Loss,
            };
            loss.add_term("labels", self.by_text(judged, &hidden, part));
        }
        loss
    }

    /// The cross-entropy with the tokens of the text.
    fn by_text(&self, judged: &DrafterOnBatch, hidden: &Tensor<2>, part: Part) -> VocabLoss {
        let labels = judged.following();
        let known = |row: &&JudgedRow| judged.knows(labels[row.teacher]);
        let kept: Vec<JudgedRow> = part.rows.iter().filter(known).copied().collect();
        let judge = Judge::Labels(&labels);
        judged_loss(
            std::slice::from_ref(hidden),
            (judged.head)(),
            part.kept(kept, self.label_weight, judge),
        )
    }

    /// The divergence from the target's distributions.
    fn by_target(&self, judged: &DrafterOnBatch, hidden: &Tensor<2>, part: Part) -> Loss {
        let last = judged.batch.features().last.clone().without_autodiff();
        let mut teacher =
            Teacher::new(last, judged.target, judged.vocabulary).at(judged.temperature);
        teacher.find_proposable(part.rows.iter().map(|row| row.teacher));
        let met = |row: &JudgedRow| teacher.can_be_met(row.teacher);
        let (kept, missed): (Vec<JudgedRow>, Vec<JudgedRow>) =
            part.rows.iter().partition(|row| met(row));
        let judge = Judge::Target {
            teacher: &teacher,
            divergence: self.divergence,
        };
        let softened = hidden.clone() / judged.temperature;
        let mut loss = Loss::from(judged_loss(
            &[softened],
            (judged.head)(),
            part.kept(kept, self.teacher_weight, judge),
        ));
        loss.missed = missed.iter().map(|row| (row.step, row.position)).collect();
        loss
    }
}

/// The rows of one term of the loss.
struct Part<'a> {
    rows: Vec<JudgedRow>,
    weighing: Option<Weighing<'a>>,
    statistics: Statistics,
}

impl<'a> Part<'a> {
    /// Those of the rows that are `kept`, with the weight of all of them, times `factor`.
    fn kept(self, kept: Vec<JudgedRow>, factor: f64, judge: Judge<'a>) -> JudgedRows<'a> {
        let sum = |rows: &[JudgedRow]| rows.iter().map(|row| row.weight).sum::<f32>();
        let share = sum(&self.rows) / sum(&kept).max(f32::MIN_POSITIVE);
        JudgedRows {
            rows: times(&kept, share * factor as f32),
            judge,
            statistics: self.statistics,
            weighing: self
                .weighing
                .map(|weighing| Weighing { factor, ..weighing }),
        }
    }
}

/// Rows with their weights times `factor`.
pub(crate) fn times(rows: &[JudgedRow], factor: f32) -> Vec<JudgedRow> {
    let weighed = rows.iter().map(|row| JudgedRow {
        weight: row.weight * factor,
        ..*row
    });
    weighed.collect()
}

/// A drafter over a batch, and the target it is judged by.
pub(crate) struct DrafterOnBatch<'a> {
    /// Its head.
    pub(crate) head: &'a dyn Fn() -> LossHead,
    pub(crate) target: &'a TargetParts,
    pub(crate) vocabulary: &'a DraftVocabulary,
    pub(crate) batch: &'a Batch,
    /// Of both distributions that a divergence compares; the cross-entropy is not changed by it.
    pub(crate) temperature: f64,
}

impl DrafterOnBatch<'_> {
    /// The token after each position; 0 after the last one.
    fn following(&self) -> Vec<u32> {
        let tokens = self.batch.rows.tokens.iter().copied();
        tokens.skip(1).chain([0]).collect()
    }

    /// Whether the drafter's vocabulary, the first tokens of the target's, holds a token.
    fn knows(&self, token: u32) -> bool {
        (token as usize) < self.vocabulary.len()
    }
}

/// The head of a language model.
pub(crate) fn head(model: &Transformer, trained: bool) -> LossHead {
    let parameter = if model.config().tied_head {
        HeadParameter::Embedding(model.head_parameter())
    } else {
        HeadParameter::Weight(model.head_parameter())
    };
    LossHead {
        weight: model.head().weight.val(),
        bias: None,
        trained: trained.then_some(parameter),
    }
}
