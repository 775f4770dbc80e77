//! Rows that are judged by a [`Blend`] on the CPU, in three passes over the vocabulary, or four where it takes logarithms.
use pulp::Arch;
use spectrain_models::{ln, vectorised};

use crate::arithmetic::kernels::TargetRow;
use crate::arithmetic::logits::{Logits, RowJudged};
use crate::arithmetic::row_loops::{Exponentials, LANES, exponentials};
use crate::arithmetic::teacher_panel::{Target, TeacherPanel};
use crate::divergence::kernel::{Blend, Findings, Slopes};

/// Replaces each row of logits by the weighted gradient of the blend in it.
pub(super) fn judge_blend(
    logits: Logits,
    rows: &[TargetRow],
    panel: &TeacherPanel,
    blend: &Blend,
) -> Vec<RowJudged> {
    let arch = Arch::new();
    logits.each_row(panel.vocab(), rows, |logits, at| {
        let target = panel.row(at.row);
        if blend.takes_logarithms() {
            vectorised!(arch, blend_row::<true>(logits, &target, blend, at.weight))
        } else {
            vectorised!(arch, blend_row::<false>(logits, &target, blend, at.weight))
        }
    })
}

#[inline(always)]
fn blend_row<const LOGARITHMS: bool>(
    row: &mut [f32],
    target: &Target,
    blend: &Blend,
    weight: f32,
) -> RowJudged {
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
    let apart = if LOGARITHMS {
        apart(row, target, blend.beta)
    } else {
        Apart::default()
    };
    let to_both = blend.beta * apart.to_p + (1.0 - blend.beta) * apart.to_q;
    let row_found = Findings {
        kl: target.negative_entropy + sum.ln() - dot,
        reverse_kl: apart.reverse,
        jsd: to_both,
        ce: sum.ln() - (of_best - largest),
        alpha,
        variance,
    };
    let (value, slopes) = blend.of(&row_found);
    let pulls = Pulls {
        slopes,
        mean,
        apart,
        blend,
    };
    form_gradient::<LOGARITHMS>(row, target, &pulls, weight);
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

/// How far `q` is from `p`, and both from their mixture `m = β p + (1 - β) q`.
#[derive(Debug, Clone, Copy, Default)]
struct Apart {
    /// `KL(q ‖ p)`.
    reverse: f32,
    /// `KL(p ‖ m)`.
    to_p: f32,
    /// `KL(q ‖ m)`.
    to_q: f32,
}

/// Logarithms of `q / p`, `p / m` and `q / m`. Where both underflow, they are multiplied by zero, so they need only be finite.
#[inline(always)]
fn logarithms(q: f32, p: f32, log_p: f32, beta: f32) -> [f32; 3] {
    let log_q = ln(q.max(f32::MIN_POSITIVE));
    let log_m = ln((beta * p + (1.0 - beta) * q).max(f32::MIN_POSITIVE));
    [log_q - log_p, log_p - log_m, log_q - log_m]
}

/// Of a row of probabilities `q`.
#[inline(always)]
fn apart(row: &[f32], target: &Target, beta: f32) -> Apart {
    let mut sums = [[0.0f32; LANES]; 3];
    let blocks = row.chunks_exact(LANES);
    let of_p = target.p.chunks_exact(LANES);
    let of_log_p = target.log_p.chunks_exact(LANES);
    let rest = [blocks.remainder(), of_p.remainder(), of_log_p.remainder()];
    for ((q, p), log_p) in blocks.zip(of_p).zip(of_log_p) {
        add_apart(&mut sums, [q, p, log_p], beta);
    }
    add_apart(&mut sums, rest, beta);
    let [reverse, to_p, to_q] = sums.map(|lanes| lanes.iter().sum());
    Apart {
        reverse,
        to_p,
        to_q,
    }
}

/// Adds what at most [`LANES`] probabilities, with `p` and its logarithms, say of the three distances.
#[inline(always)]
fn add_apart(sums: &mut [[f32; LANES]; 3], [q, p, log_p]: [&[f32]; 3], beta: f32) {
    let [reverses, to_p, to_q] = sums;
    let sums = reverses.iter_mut().zip(to_p).zip(to_q);
    for (((&q, &p), &log_p), ((of_reverse, of_p), of_q)) in q.iter().zip(p).zip(log_p).zip(sums) {
        let [reverse, p_apart, q_apart] = logarithms(q, p, log_p, beta);
        *of_reverse += q * reverse;
        *of_p += p * p_apart;
        *of_q += q * q_apart;
    }
}

/// What a row's gradient is made of.
struct Pulls<'a> {
    slopes: Slopes,
    /// Of the acceptance rate's slope.
    mean: f32,
    apart: Apart,
    blend: &'a Blend,
}

/// Replaces a row of probabilities `q` by the weighted gradient in the logits behind them.
#[inline(always)]
fn form_gradient<const LOGARITHMS: bool>(
    row: &mut [f32],
    target: &Target,
    pulls: &Pulls,
    weight: f32,
) {
    let Slopes { kl, ce, alpha } = pulls.slopes;
    let Blend {
        reverse_kl,
        jsd,
        beta,
        ..
    } = *pulls.blend;
    let of_mixture = jsd * (1.0 - beta);
    // Nothing is read of them where there are none.
    let log_p = if LOGARITHMS { target.log_p } else { target.p };
    for ((value, &p), &log_p) in row.iter_mut().zip(target.p).zip(log_p) {
        let q = *value;
        let slope = rising(q, p * target.covered) - pulls.mean;
        let mut pull = kl + ce - alpha * slope;
        if LOGARITHMS {
            let [reverse, _, to_q] = logarithms(q, p, log_p, beta);
            pull += reverse_kl * (reverse - pulls.apart.reverse);
            pull += of_mixture * (to_q - pulls.apart.to_q);
        }
        *value = (q * pull - kl * p) * weight;
    }
    row[target.best] -= ce * weight;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::divergence::kernel::Kernel;

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
        let reverse = Blend {
            reverse_kl: 0.5,
            jsd: 1.0,
            beta: 0.5,
            ..blend
        };
        for blend in [blend, reverse] {
            let panel = TeacherPanel::new(apart(3), vocab, Kernel::Blend(blend));
            let mut gradient = apart(40);
            let row = TargetRow {
                row: 0,
                weight: 1e-4,
            };
            judge_blend(Logits::F32(&mut gradient), &[row], &panel, &blend);
            assert!(gradient.iter().all(|value| !value.is_subnormal()));
            assert!(gradient[40] > 0.0 && gradient[3] < 0.0);
        }
    }
}
