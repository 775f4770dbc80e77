use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{TargetParts, Transformer};

use crate::batch::{Batch, Step};
use crate::divergence::Divergence;
use crate::error::{Error, Result};
use crate::judge::{Judge, Statistics};
use crate::objective::Loss;
use crate::row::{JudgedRow, times};
use crate::teacher::Teacher;
use crate::vocab_loss::{HeadParameter, JudgedRows, LossHead, VocabLoss, judged_loss};
use crate::weighing::Weighing;
use crate::weight::{Weight, changing, vanish_together};
use crate::workload::Judges;

/// Cross-entropy with the text, divergence from the target, or both.
#[derive(Debug, Clone)]
pub(crate) struct TokenLoss {
    /// Factor on the cross-entropy with the text.
    label_weight: Weight,
    /// Factor on the divergence from the target.
    teacher_weight: Weight,
    /// That divergence.
    divergence: Divergence,
}

/// What a loss on tokens is made of at one step.
pub(crate) struct TokenLossAt {
    /// Factor on the cross-entropy with the text.
    pub(crate) label_weight: f64,
    /// Factor on the divergence from the target.
    pub(crate) teacher_weight: f64,
    /// That divergence.
    pub(crate) divergence: Divergence,
    /// Whether what is reported is judged by the target: the same at all steps, whatever the factors become.
    pub(crate) reports_target: bool,
}

/// The names of its parts.
pub(crate) const LABELS: &str = "labels";
pub(crate) const TEACHER: &str = "teacher";

/// What judges the rows of a loss of these keys, over all steps.
pub(crate) fn judges(teacher_weight: Weight, divergence: &Divergence) -> Judges {
    if teacher_weight.largest() > 0.0 {
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
        label_weight: Weight,
        teacher_weight: Weight,
        divergence: Divergence,
    ) -> Result<Self> {
        let setting = |key, expected: &str, got| Err(Error::objective(key, expected, got));
        label_weight.check("label_weight")?;
        teacher_weight.check("teacher_weight")?;
        if let Some(when) = vanish_together(&[label_weight, teacher_weight]) {
            let expected = format!("above 0 where `label_weight` is 0{when}");
            return setting("teacher_weight", &expected, teacher_weight.to_string());
        }
        match divergence.problem() {
            Some((expected, got)) => setting("divergence", &expected, got),
            None => Ok(Self {
                label_weight,
                teacher_weight,
                divergence,
            }),
        }
    }

    /// What it is at a step.
    pub(crate) fn at(&self, step: Option<Step>) -> TokenLossAt {
        TokenLossAt {
            label_weight: self.label_weight.at(step),
            teacher_weight: self.teacher_weight.at(step),
            divergence: self.divergence.at(step),
            reports_target: self.reports_target(),
        }
    }

    pub(crate) fn reports_target(&self) -> bool {
        self.teacher_weight.largest() > 0.0
    }

    /// Its weights that change, with what they are at a step.
    pub(crate) fn changing(&self, step: Option<Step>) -> Vec<(&'static str, f64)> {
        let weights = [(LABELS, self.label_weight), (TEACHER, self.teacher_weight)];
        let of_divergence = match self.reports_target() {
            true => self.divergence.changing(step),
            false => Vec::new(),
        };
        changing(&weights, step).chain(of_divergence).collect()
    }

    /// The loss of a drafter over `rows`, each judged by the target's distribution of the position [`JudgedRow::teacher`] and by
    /// the token after it. Where the target judges, be it at other steps, what is reported is of its divergence, else of the
    /// cross-entropy. Rows that ask for a token which the model does not know are left out, and the others take their share of
    /// the weight. `weighing` sets the weights where they depend on the drafter.
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
        let step = judged.batch.step;
        let part = Part {
            rows,
            weighing,
            statistics,
        };
        let mut loss = self.at(step).of(judged, &hidden, part);
        loss.changing = self.changing(step);
        loss
    }

    /// What is reported of `rows` with all that is known of them, and nothing that only adds to the loss.
    ///
    /// # Shapes
    /// - hidden: as for [`of`](Self::of)
    ///
    /// # Panics
    /// The batch has no features.
    pub(crate) fn measured(
        &self,
        judged: &DrafterOnBatch,
        hidden: Tensor<2>,
        rows: Vec<JudgedRow>,
    ) -> Loss {
        let part = Part {
            rows,
            weighing: None,
            statistics: Statistics::All,
        };
        self.at(judged.batch.step).reported(judged, &hidden, part)
    }
}

impl TokenLossAt {
    /// See [`TokenLoss::of`].
    fn of(&self, judged: &DrafterOnBatch, hidden: &Tensor<2>, part: Part) -> Loss {
        if !self.reports_target {
            return self.reported(judged, hidden, part);
        }
        let rows = match part.weighing {
            None => Some(part.rows.clone()),
            Some(_) => None,
        };
        let mut loss = self.reported(judged, hidden, part);
        if self.label_weight > 0.0 {
            let part = Part {
                // Where weights are found beside the loss, these are its own.
                rows: rows.unwrap_or_else(|| loss.rows.clone()),
                weighing: None,
                statistics: Statistics::Loss,
            };
            loss.add_term(LABELS, self.by_text(judged, hidden, part));
        }
        loss
    }

    /// The part of it whose rows are reported.
    fn reported(&self, judged: &DrafterOnBatch, hidden: &Tensor<2>, part: Part) -> Loss {
        match self.reports_target {
            true => self.by_target(judged, hidden, part).named(TEACHER),
            false => Loss::from(self.by_text(judged, hidden, part)).named(LABELS),
        }
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
        let mut teacher = judged.teacher();
        teacher.find_proposable(part.rows.iter().map(|row| row.teacher));
        let met = |row: &JudgedRow| teacher.can_be_met(row.teacher);
        let (kept, missed): (Vec<JudgedRow>, Vec<JudgedRow>) =
            part.rows.iter().partition(|row| met(row));
        let judge = Judge::Target {
            teacher: &teacher,
            divergence: &self.divergence,
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
    /// Those of the rows that are `kept`, with the weight of all of them; what they come to is multiplied by `factor`.
    fn kept(self, kept: Vec<JudgedRow>, factor: f64, judge: Judge<'a>) -> JudgedRows<'a> {
        let sum = |rows: &[JudgedRow]| rows.iter().map(|row| row.weight).sum::<f32>();
        let share = sum(&self.rows) / sum(&kept).max(f32::MIN_POSITIVE);
        JudgedRows {
            rows: times(&kept, share),
            judge,
            statistics: self.statistics,
            weighing: self.weighing,
            factor,
            picks: None,
        }
    }
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
    /// The target's distributions.
    ///
    /// # Panics
    /// The batch has no features.
    pub(crate) fn teacher(&self) -> Teacher {
        let last = self.batch.features().last.clone().without_autodiff();
        Teacher::new(last, self.target, self.vocabulary).at(self.temperature)
    }

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
