use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{TargetParts, Transformer};

use crate::{
    Batch, Divergence, Error, Head, HeadParameter, Judge, Loss, Result, Row, Statistics, Teacher,
    vocab_loss,
};

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

    /// The loss of a drafter over `rows`, each judged by the target's distribution of the position
    /// [`Row::teacher`] and by the token after it. Where the target judges, what is reported is of its divergence, else of
    /// the cross-entropy. Both distributions are those at `temperature`; the cross-entropy is not changed by it. Rows that
    /// ask for a token which the model does not know are left out, and the others take their share of the weight.
    ///
    /// # Shapes
    /// - hidden: `[.., d_model]`, after the drafter's final norm
    ///
    /// # Panics
    /// The batch has no features.
    pub(crate) fn of(
        &self,
        judged: &Judged,
        hidden: Tensor<2>,
        rows: Vec<Row>,
        temperature: f64,
        statistics: Statistics,
    ) -> Loss {
        let sum = |rows: &[Row]| rows.iter().map(|row| row.weight).sum::<f32>();
        let weigh = |kept: &[Row], factor: f64| -> Vec<Row> {
            let share = sum(&rows) / sum(kept).max(f32::MIN_POSITIVE);
            let weighed = kept.iter().map(|row| Row {
                weight: row.weight * (share * factor as f32),
                ..*row
            });
            weighed.collect()
        };
        let by_text = |statistics| {
            let labels = judged.following();
            let rows = rows.iter().filter(|row| judged.knows(labels[row.teacher]));
            let rows: Vec<Row> = rows.copied().collect();
            vocab_loss(
                std::slice::from_ref(&hidden),
                (judged.head)(),
                weigh(&rows, self.label_weight),
                Judge::Labels(&labels),
                statistics,
            )
        };
        if self.teacher_weight == 0.0 {
            return by_text(statistics).into();
        }
        let last = judged.batch.features().last.clone().without_autodiff();
        let mut teacher = Teacher::new(last / temperature, judged.target, judged.vocabulary);
        teacher.find_proposable(rows.iter().map(|row| row.teacher));
        let (met, missed): (Vec<Row>, Vec<Row>) =
            rows.iter().partition(|row| teacher.can_be_met(row.teacher));
        let judge = Judge::Target {
            teacher: &teacher,
            divergence: self.divergence,
        };
        let softened = hidden.clone() / temperature;
        let mut loss = Loss::from(vocab_loss(
            &[softened],
            (judged.head)(),
            weigh(&met, self.teacher_weight),
            judge,
            statistics,
        ));
        loss.missed = missed.iter().map(|row| (row.step, row.position)).collect();
        if self.label_weight > 0.0 {
            loss.add_term("labels", by_text(Statistics::Loss));
        }
        loss
    }
}

/// A drafter over a batch, and the target it is judged by.
pub(crate) struct Judged<'a> {
    /// Its head.
    pub(crate) head: &'a dyn Fn() -> Head,
    pub(crate) target: &'a TargetParts,
    pub(crate) vocabulary: &'a DraftVocabulary,
    pub(crate) batch: &'a Batch,
}

impl Judged<'_> {
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
pub(crate) fn head(model: &Transformer, trained: bool) -> Head {
    let parameter = match model.config().tied_head {
        true => HeadParameter::Embedding(model.head_parameter()),
        false => HeadParameter::Weight(model.head_parameter()),
    };
    Head {
        weight: model.head().weight.val(),
        bias: None,
        trained: trained.then_some(parameter),
    }
}
