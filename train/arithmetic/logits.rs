//! Rows of logits on the CPU, in the type that they are held in, which judges turn into gradients.
use burn::prelude::*;
use burn::tensor::{DType, bf16};
use pulp::Arch;
use rayon::prelude::*;
use spectrain_models::vectorised;
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
                    vectorised!(Arch::new(), widen(narrow, wide));
                    let judged = judge(wide, row);
                    vectorised!(Arch::new(), round(wide, narrow));
                    judged
                })
                .collect()
            }
        }
    }
}

#[inline(always)]
fn widen(narrow: &[bf16], wide: &mut [f32]) {
    for (wide, narrow) in wide.iter_mut().zip(narrow) {
        *wide = f32::from_bits(u32::from(narrow.to_bits()) << 16);
    }
}

/// To the nearest number of bf16, and of two that are as near to the even one.
#[inline(always)]
fn round(wide: &[f32], narrow: &mut [bf16]) {
    for (narrow, wide) in narrow.iter_mut().zip(wide) {
        let bits = wide.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        // What is no number stays none.
        let bits = if wide.is_nan() {
            bits | 1 << 22
        } else {
            nearest
        };
        *narrow = bf16::from_bits((bits >> 16) as u16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_type() {
        let ones = (0..1 << 16).map(|high: u32| high << 16);
        let lows = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        let wide: Vec<f32> = ones
            .flat_map(|high| lows.map(|low| f32::from_bits(high | low)))
            .collect();
        let mut narrow = vec![bf16::ZERO; wide.len()];
        round(&wide, &mut narrow);
        for (narrow, wide) in narrow.iter().zip(&wide) {
            let expected = bf16::from_f32(*wide);
            let alike = narrow.is_nan() && expected.is_nan();
            assert!(alike || narrow.to_bits() == expected.to_bits(), "{wide}");
        }
        let mut back = vec![0.0; narrow.len()];
        widen(&narrow, &mut back);
        for (back, narrow) in back.iter().zip(&narrow) {
            assert!(back.to_bits() == narrow.to_f32().to_bits() || back.is_nan());
        }
    }
}
