//! Rows that are judged by a [`Blend`] on the CPU, in three passes over the vocabulary.
use pulp::Arch;
use rayon::prelude::*;
use spectrain_models::vectorised;

use crate::arithmetic::kernels::{
    Exponentials, LANES, RowJudged, TargetRow, TeacherPanel, exponentials,
};
use crate::divergence::kernel::{Blend, Findings, Slopes};

/// Replaces each row of logits by the weighted gradient of the blend in it.
pub(super) fn judge_blend(
    logits: &mut [f32],
    vocab: usize,
    rows: &[TargetRow],
    panel: &TeacherPanel,
    blend: &Blend,
) -> Vec<RowJudged> {
    let arch = Arch::new();
    let judge = |(logits, at): (&mut [f32], &TargetRow)| {
        let [p, _] = panel.row(at.row, vocab);
        let target = Target {
            p,
            covered: panel.covered[at.row],
            best: panel.best[at.row],
            negative_entropy: panel.negative_entropy[at.row],
        };
        vectorised!(arch, blend_row(logits, &target, blend, at.weight))
    };
    logits
        .par_chunks_mut(vocab)
        .zip(rows.par_iter())
        .map(judge)
        .collect()
}

/// The target's side of a row.
struct Target<'a> {
    /// Probabilities over the drafter's vocabulary.
    p: &'a [f32],
    /// Share of the target's mass that this vocabulary holds.
    covered: f32,
    /// Most likely token.
    best: usize,
    /// `Σ p log p`.
    negative_entropy: f32,
}

#[inline(always)]
fn blend_row(row: &mut [f32], target: &Target, blend: &Blend, weight: f32) -> RowJudged {
    let of_best = row[target.best];
    let Exponentials {
        largest,
        best,
        sum,
        dot,
    } = exponentials(row, target.p);
    let Accepted {
        alpha,
        mean,
        variance,
    } = accepted(row, target, 1.0 / sum);
    let row_found = Findings {
        kl: target.negative_entropy + sum.ln() - dot,
        ce: sum.ln() - (of_best - largest),
        alpha,
        variance,
    };
    let (value, slopes) = blend.of(&row_found);
    form_gradient(row, target, slopes, mean, weight);
    RowJudged {
        value,
        alpha,
        correct: best == target.best,
    }
}

/// The acceptance rate of a row, and of its slope in each `q` what the gradient needs: mean and variance under `q`.
struct Accepted {
    alpha: f32,
    mean: f32,
    variance: f32,
}

/// Slope of `min(p, q)` in `q`: 1 below `p`, 0 above, and half where they are equal.
#[inline(always)]
fn rising(q: f32, p: f32) -> f32 {
    let below = if q < p { 0.5 } else { 0.0 };
    let not_above = if q <= p { 0.5 } else { 0.0 };
    below + not_above
}

/// Replaces a row of exponentials by the probabilities `q`, of which `scale` makes them.
#[inline(always)]
fn accepted(row: &mut [f32], target: &Target, scale: f32) -> Accepted {
    let mut shared = [0.0f32; LANES];
    let mut firsts = [0.0f32; LANES];
    let mut seconds = [0.0f32; LANES];
    let mut blocks = row.chunks_exact_mut(LANES);
    let mut p_blocks = target.p.chunks_exact(LANES);
    for (block, p) in (&mut blocks).zip(&mut p_blocks) {
        let lanes = shared.iter_mut().zip(&mut firsts).zip(&mut seconds);
        for ((value, &p), ((shared, first), second)) in block.iter_mut().zip(p).zip(lanes) {
            let (q, p) = (*value * scale, p * target.covered);
            let slope = rising(q, p);
            *shared += q.min(p);
            *first += q * slope;
            *second += q * slope * slope;
            *value = q;
        }
    }
    let [mut alpha, mut mean, mut second] =
        [shared, firsts, seconds].map(|lanes| lanes.iter().sum::<f32>());
    let rest = blocks.into_remainder().iter_mut();
    for (value, &p) in rest.zip(p_blocks.remainder()) {
        let (q, p) = (*value * scale, p * target.covered);
        let slope = rising(q, p);
        alpha += q.min(p);
        mean += q * slope;
        second += q * slope * slope;
        *value = q;
    }
    Accepted {
        alpha,
        mean,
        variance: second - mean * mean,
    }
}

/// Replaces a row of probabilities `q` by the weighted gradient in the logits behind them. `mean`: of the acceptance rate's slope.
#[inline(always)]
fn form_gradient(row: &mut [f32], target: &Target, slopes: Slopes, mean: f32, weight: f32) {
    let Slopes { kl, ce, alpha } = slopes;
    for (value, &p) in row.iter_mut().zip(target.p) {
        let q = *value;
        let slope = rising(q, p * target.covered) - mean;
        *value = (q * (kl + ce - alpha * slope) - kl * p) * weight;
    }
    row[target.best] -= ce * weight;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::divergence::kernel::Towards;

    #[test]
    fn nothing_becomes_subnormal() {
        // The target is sure of one token, the drafter of another.
        let vocab = 2 * LANES + 5;
        let apart = |best: usize| -> Vec<f32> {
            let logits = (0..vocab).map(|i| if i == best { 9.0 } else { -1.5 * i as f32 });
            logits.collect()
        };
        let blend = Blend {
            kl: 0.5,
            tv: 1.0,
            ..Blend::default()
        };
        let panel = TeacherPanel::new(apart(3), vocab, Towards::Tempered(1.0));
        let mut gradient = apart(40);
        let row = TargetRow {
            row: 0,
            weight: 1e-4,
        };
        judge_blend(&mut gradient, vocab, &[row], &panel, &blend);
        assert!(gradient.iter().all(|value| !value.is_subnormal()));
        assert!(gradient[40] > 0.0 && gradient[3] < 0.0);
    }
}
