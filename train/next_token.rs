//! Next-token prediction: how the quickstart's target is trained, by the same loop as a drafter.
use serde::{Deserialize, Serialize};
use spectrain_models::{Capture, Transformer};

use crate::batch::Batch;
use crate::error::Result;
use crate::judge::{Judge, Statistics};
use crate::objective::{Loss, Objective};
use crate::row::JudgedRow;
use crate::token_loss::head;
use crate::vocab_loss::vocab_loss;
use crate::workload::{Judges, Workload};

/// It has no settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextTokenConfig {}

/// Cross-entropy of every token of a document but its first, prompt tokens included.
#[derive(Debug, Clone)]
pub struct NextToken;

impl Objective<Transformer> for NextToken {
    type Config = NextTokenConfig;

    fn new(_: &NextTokenConfig) -> Result<Self> {
        Ok(Self)
    }

    fn workload(_: &NextTokenConfig, _: &str) -> Workload {
        Workload::texts(Judges::Text)
    }

    fn loss(&self, model: &Transformer, batch: &Batch, statistics: Statistics) -> Loss {
        let features = model.features(batch.tokens.clone(), &batch.layout, &Capture::default());
        let [rows, seq, d_model] = features.last.dims();
        let hidden = features.last.reshape([rows * seq, d_model]);
        // Position t predicts x_{t+1}.
        let judged: Vec<usize> = (0..batch.rows.len())
            .filter(|&position| batch.rows.reaches(position, 1))
            .collect();
        let weight = 1.0 / judged.len().max(1) as f32;
        let judged = judged.into_iter().map(|position| JudgedRow {
            step: 0,
            position,
            teacher: position + 1,
            weight,
        });
        vocab_loss(
            &[hidden],
            head(model, true),
            judged.collect(),
            Judge::Labels(&batch.rows.tokens),
            statistics,
        )
        .into()
    }
}
