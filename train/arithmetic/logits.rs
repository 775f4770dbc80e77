//! Rows of logits on the CPU, in the type that they are held in, which judges turn into gradients.
use burn::prelude::*;
use burn::tensor::{DType, bf16};
use rayon::prelude::*;
use spectrain_models::rounding::{round, widen};
use spectrain_models::weights::on_host;

/// Rows of logits, one after the other.
pub(super) enum Logits<'a> {
    F32(&'a mut [f32]),
    /// The product before rounded them, and the ones behind would round their gradients anyway.
    Bf16(&'a mut [bf16]),
}

/// What a row's logits were judged to be.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RowJudged {
    /// The distance to the distribution that drafters are pulled towards, the blend of distances, or `-log q` of the label.
    pub(crate) value: f32,
    /// `Σ min(p, q)`, or `q` of the label.
    pub(crate) alpha: f32,
    /// Whether the most likely tokens agree.
    pub(crate) correct: bool,
}

impl Logits<'_> {
    /// Those of a tensor, for `judge` to turn into their gradients, which come in the type of the logits.
    ///
    /// # Shapes
    /// - logits, output: `[rows, vocab]`, f32 or bf16
    pub(super) fn judged_in(
        logits: Tensor<2>,
        judge: impl FnOnce(Logits) -> Vec<RowJudged>,
    ) -> (Tensor<2>, Vec<RowJudged>) {
        match logits.dtype() {
            DType::BF16 => on_host(logits, |values: &mut [bf16]| judge(Logits::Bf16(values))),
            _ => on_host(logits, |values: &mut [f32]| judge(Logits::F32(values))),
        }
    }

    /// Lets `judge` turn the logits of each row, as f32, into their gradient.
    pub(super) fn each_row<R: Sync>(
        self,
        vocab: usize,
        rows: &[R],
        judge: impl Fn(&mut [f32], &R) -> RowJudged + Sync,
    ) -> Vec<RowJudged> {
        match self {
            Self::F32(values) => {
                let each = values.par_chunks_exact_mut(vocab).zip(rows);
                each.map(|(logits, row)| judge(logits, row)).collect()
            }
            Self::Bf16(values) => {
                let each = values.par_chunks_exact_mut(vocab).zip(rows);
                let room = || vec![0.0; vocab];
                each.map_init(room, |wide, (narrow, row)| {
                    widen(narrow, wide);
                    let judged = judge(wide, row);
                    round(wide, narrow);
                    judged
                })
                .collect()
            }
        }
    }
}
