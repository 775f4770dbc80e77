//! Rows that are judged by tensor operations: what kernels are compared with, and the way of devices that have none.
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, IndexingUpdateOp};

use crate::arithmetic::operations::{JudgedChunk, RowJudge};
use crate::divergence::{Distance, TeacherRows, overlap};
use crate::judge::{Judge, Statistics};
use crate::row::JudgedRow;
use crate::teacher::indices;

/// Judges by tensor operations.
pub(super) struct JudgedByTensors<'a> {
    pub(super) judge: Judge<'a>,
    pub(super) statistics: Statistics,
}

impl RowJudge for JudgedByTensors<'_> {
    fn judge(&mut self, logits: Tensor<2>, rows: &[JudgedRow]) -> JudgedChunk {
        let device = logits.device();
        let (mut judged, statistics) = match self.judge {
            Judge::Target {
                teacher,
                divergence,
            } => {
                let possible: Vec<f32> = rows
                    .iter()
                    .map(|row| f32::from(u8::from(teacher.can_be_met(row.teacher))))
                    .collect();
                let possible = Tensor::<1>::from_floats(possible.as_slice(), &device);
                let teacher = teacher.rows_of(rows);
                let measured = match self.statistics {
                    Statistics::Loss => None,
                    Statistics::All => Some(measure(&logits, &teacher, possible.unsqueeze_dim(1))),
                };
                (divergence.judge(logits, &teacher), measured)
            }
            Judge::Labels(labels) => {
                let labels: Vec<usize> = rows.iter().map(|r| labels[r.teacher] as usize).collect();
                label_loss(logits, indices(&labels, &device), self.statistics)
            }
        };
        let weights: Vec<f32> = rows.iter().map(|row| row.weight).collect();
        let weights =
            Tensor::<1>::from_floats(weights.as_slice(), &device).reshape([rows.len(), 1]);
        judged.gradient = judged.gradient * weights;
        JudgedChunk {
            distance: judged,
            statistics,
        }
    }
}

/// Acceptance rate and agreement of the most likely tokens, `[rows, 2]`. `possible` is `[rows, 1]`: 0 where the drafter
/// cannot agree, whatever it says.
fn measure(logits: &Tensor<2>, teacher: &TeacherRows, possible: Tensor<2>) -> Tensor<2> {
    let q = burn::tensor::activation::softmax(logits.clone(), 1);
    let same = logits
        .clone()
        .argmax(1)
        .equal(teacher.log_p.clone().argmax(1));
    Tensor::cat(
        vec![
            overlap(teacher.full(), q),
            same.float().cast(DType::F32) * possible,
        ],
        1,
    )
}

fn label_loss(
    logits: Tensor<2>,
    labels: Tensor<1, Int>,
    statistics: Statistics,
) -> (Distance, Option<Tensor<2>>) {
    let labels: Tensor<2, Int> = labels.unsqueeze_dim(1); // [rows, 1]
    let log_q = log_softmax(logits, 1);
    let of_label = log_q.clone().gather(1, labels.clone());
    let measured = (statistics == Statistics::All).then(|| {
        let same = log_q.clone().argmax(1).equal(labels.clone());
        Tensor::cat(
            vec![of_label.clone().exp(), same.float().cast(DType::F32)],
            1,
        )
    });
    let minus_one = -Tensor::ones(labels.dims(), (&log_q.device(), DType::F32));
    let gradient = log_q
        .exp()
        .scatter(1, labels, minus_one, IndexingUpdateOp::Add);
    let judged = Distance {
        value: -of_label,
        gradient,
    };
    (judged, measured)
}
