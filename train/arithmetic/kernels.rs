//! The element-wise work of the vocabulary loss and of AdamW on the CPU, each in as few passes over memory as it takes.
//!
//! Burn's CPU back end runs one pass per operation and takes exponentials one at a time; over a vocabulary that costs
//! more than the matrix products. Rows are independent and each is summed in a fixed order, so the result does not
//! depend on the number of threads.
use pulp::Arch;
use rayon::prelude::*;
use spectrain_models::{exp, vectorised};

use crate::arithmetic::logits::{Logits, RowJudged};
use crate::arithmetic::row_loops::{Exponentials, LANES, exponentials, largest};
use crate::arithmetic::teacher_panel::{Target, TeacherPanel};

/// Parameters that one thread updates at a time.
const BLOCK: usize = 1 << 16;
/// Moments smaller than this become 0. Where a parameter has no gradient, such as a rare token's row of a table, its moments decay, and
/// would end as subnormal numbers: these take some processors several times as long, and the smallest does not decay any more.
const SMALLEST_MOMENT: f32 = 1e-37;

/// The target's side of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TargetRow {
    /// Row of the panel.
    pub(crate) row: usize,
    /// Factor on the gradient.
    pub(crate) weight: f32,
}

/// Replaces each row of logits by the weighted gradient of the distance in it to the distribution that drafters are pulled towards:
/// `KL(p' ‖ q)` where it `takes_entropy_off`, else `-Σ p' log q`.
pub(super) fn judge_target(
    logits: Logits,
    rows: &[TargetRow],
    panel: &TeacherPanel,
    takes_entropy_off: bool,
) -> Vec<RowJudged> {
    let arch = Arch::new();
    logits.each_row(panel.vocab(), rows, |logits, at| {
        let target = panel.row(at.row);
        let mut judged = vectorised!(arch, target_row(logits, &target, at.weight));
        if takes_entropy_off {
            judged.value += target.negative_entropy;
        }
        judged
    })
}

/// Replaces each row of logits by the weighted gradient of `-log q[label]` in it. `rows`: label and weight.
pub(super) fn judge_labels(logits: Logits, vocab: usize, rows: &[(usize, f32)]) -> Vec<RowJudged> {
    let arch = Arch::new();
    logits.each_row(vocab, rows, |logits, &(label, weight)| {
        vectorised!(arch, label_row(logits, label, weight))
    })
}

/// `Σ x²`, summed block by block.
pub(super) fn sum_of_squares(values: &[f32]) -> f64 {
    let arch = Arch::new();
    let blocks: Vec<f64> = values
        .par_chunks(BLOCK)
        .map(|block| vectorised!(arch, squares(block)))
        .collect();
    blocks.iter().sum()
}

#[inline(always)]
fn squares(block: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let parts = block.chunks_exact(LANES);
    let rest: f64 = parts.remainder().iter().map(|&x| x as f64 * x as f64).sum();
    for part in parts {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane += x as f64 * x as f64;
        }
    }
    rest + lanes.iter().sum::<f64>()
}

/// Constants of one AdamW step; see [`crate::Optimizer`].
#[derive(Debug, Clone, Copy)]
pub(super) struct AdamWStep {
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) epsilon: f32,
    /// `1 / (1 - beta2^t)`.
    pub(crate) correct2: f32,
    /// Learning rate over `1 - beta1^t`.
    pub(crate) rate: f32,
    /// `1 - learning rate · weight decay`.
    pub(crate) shrink: f32,
    /// What the gradient is multiplied by before anything else.
    pub(crate) factor: f32,
}

/// Moves `weights` and both moments in place.
pub(super) fn adamw(
    weights: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    step: AdamWStep,
) {
    let arch = Arch::new();
    weights
        .par_chunks_mut(BLOCK)
        .zip(first.par_chunks_mut(BLOCK))
        .zip(second.par_chunks_mut(BLOCK))
        .zip(gradient.par_chunks(BLOCK))
        .for_each(|(((weights, first), second), gradient)| {
            vectorised!(arch, adamw_block(weights, first, second, gradient, step));
        });
}

#[inline(always)]
fn adamw_block(
    weights: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    step: AdamWStep,
) {
    let moments = first.iter_mut().zip(second.iter_mut());
    for ((weight, (first, second)), &gradient) in weights.iter_mut().zip(moments).zip(gradient) {
        let gradient = gradient * step.factor;
        *first = normal(step.beta1 * *first + (1.0 - step.beta1) * gradient);
        *second = normal(step.beta2 * *second + (1.0 - step.beta2) * gradient * gradient);
        let root = (*second * step.correct2).sqrt() + step.epsilon;
        *weight = *weight * step.shrink - step.rate * *first / root;
    }
}

#[inline(always)]
fn normal(moment: f32) -> f32 {
    if moment.abs() < SMALLEST_MOMENT {
        0.0
    } else {
        moment
    }
}

#[inline(always)]
fn target_row(row: &mut [f32], target: &Target, weight: f32) -> RowJudged {
    let Target {
        p,
        towards,
        covered,
        mass,
        ..
    } = *target;
    let Exponentials { sum, dot, best, .. } = exponentials(row, towards);
    let scale = 1.0 / sum;
    let mut shared = [0.0f32; LANES];
    let mut blocks = row.chunks_exact_mut(LANES);
    let both = p.chunks_exact(LANES).zip(towards.chunks_exact(LANES));
    for (block, (p, towards)) in (&mut blocks).zip(both) {
        let lanes = block.iter_mut().zip(&mut shared).zip(p);
        for (((value, shared), &p), &towards) in lanes.zip(towards) {
            let q = *value * scale;
            *shared += q.min(p * covered);
            *value = (q * mass - towards) * weight;
        }
    }
    let mut alpha = shared.iter().sum::<f32>();
    let rest = blocks.into_remainder();
    let done = p.len() - rest.len();
    for ((value, &p), &towards) in rest.iter_mut().zip(&p[done..]).zip(&towards[done..]) {
        let q = *value * scale;
        alpha += q.min(p * covered);
        *value = (q * mass - towards) * weight;
    }
    RowJudged {
        value: mass * sum.ln() - dot,
        alpha,
        correct: best == target.best,
    }
}

#[inline(always)]
fn label_row(row: &mut [f32], label: usize, weight: f32) -> RowJudged {
    let (largest, found) = largest(row);
    let of_label = row[label] - largest;
    let mut sums = [0.0f32; LANES];
    let mut blocks = row.chunks_exact_mut(LANES);
    for block in &mut blocks {
        for (value, sum) in block.iter_mut().zip(&mut sums) {
            *value = exp(*value - largest);
            *sum += *value;
        }
    }
    let mut sum = sums.iter().sum::<f32>();
    for value in blocks.into_remainder() {
        *value = exp(*value - largest);
        sum += *value;
    }
    let scale = weight / sum;
    row.iter_mut().for_each(|value| *value *= scale);
    row[label] -= weight;
    let value = sum.ln() - of_label;
    RowJudged {
        value,
        alpha: (-value).exp(),
        correct: found == label,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::divergence::kernel::{Kernel, Towards};

    fn towards(distribution: Towards) -> Kernel {
        Kernel::Towards {
            distribution,
            takes_entropy_off: true,
        }
    }

    #[test]
    fn nothing_becomes_subnormal() {
        // The target is sure of one token, the drafter of another.
        let vocab = 2 * LANES + 5;
        let apart = |best: usize| -> Vec<f32> {
            let logits = (0..vocab).map(|i| -1.5 * i as f32);
            logits
                .enumerate()
                .map(|(i, x)| if i == best { 9.0 } else { x })
                .collect()
        };
        for distribution in [Towards::Tempered(1.0), Towards::Tempered(0.5)] {
            let panel = TeacherPanel::new(apart(3), vocab, towards(distribution));
            let mut gradient = apart(40);
            let rows = [TargetRow {
                row: 0,
                weight: 1e-4,
            }];
            judge_target(Logits::F32(&mut gradient), &rows, &panel, true);
            let Target { p, towards, .. } = panel.row(0);
            for value in gradient.iter().chain(p).chain(towards) {
                assert!(!value.is_subnormal(), "{value}");
            }
            assert!((gradient[40] - 1e-4).abs() < 1e-6 && gradient[3] < -0.9e-4);
        }

        let step = AdamWStep {
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            correct2: 1.0,
            rate: 1e-3,
            shrink: 1.0,
            factor: 1.0,
        };
        let (mut weight, mut first, mut second) = ([0.0], [0.0], [0.0]);
        adamw(&mut weight, &mut first, &mut second, &[1e-3], step);
        for _ in 0..2000 {
            adamw(&mut weight, &mut first, &mut second, &[0.0], step);
            assert!(!first[0].is_subnormal() && !second[0].is_subnormal());
        }
        assert_eq!([first, second], [[0.0]; 2]);
    }

    #[test]
    fn a_row_is_judged_as_by_the_formulas() {
        // Longer than the lanes, and no multiple of them.
        let vocab = LANES + 5;
        let logits: Vec<f32> = (0..vocab).map(|i| ((i * 7) % 11) as f32 * 0.3).collect();
        let teacher: Vec<f32> = (0..vocab).map(|i| ((i * 5) % 13) as f32 * 0.4).collect();
        let softmax = |x: &[f32]| -> Vec<f64> {
            let e: Vec<f64> = x.iter().map(|&x| (x as f64).exp()).collect();
            let sum: f64 = e.iter().sum();
            e.into_iter().map(|e| e / sum).collect()
        };
        let (q, p) = (softmax(&logits), softmax(&teacher));
        let alpha: f64 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
        let half: Vec<f32> = teacher.iter().map(|logit| logit / 2.0).collect();
        let mut best = vec![0.0; vocab];
        best[teacher.iter().position(|&logit| logit == 4.8).unwrap()] = 1.0;
        let cases = [
            (Towards::Tempered(1.0), p),
            (Towards::Tempered(2.0), softmax(&half)),
            (Towards::Best, best),
        ];
        for (distribution, expected) in cases {
            let panel = TeacherPanel::new(teacher.clone(), vocab, towards(distribution));
            let mut gradient = logits.clone();
            let rows = [TargetRow {
                row: 0,
                weight: 0.5,
            }];
            let judged = judge_target(Logits::F32(&mut gradient), &rows, &panel, true)[0];
            let terms = expected.iter().zip(&q).filter(|(p, _)| **p > 0.0);
            let kl: f64 = terms.map(|(p, q)| p * (p / q).ln()).sum();
            assert!((judged.value as f64 - kl).abs() < 1e-5, "{judged:?} {kl}");
            let apart = (judged.alpha as f64 - alpha).abs();
            assert!(apart < 1e-5, "{judged:?} {alpha}");
            for ((got, p), q) in gradient.iter().zip(&expected).zip(&q) {
                assert!((*got as f64 - 0.5 * (q - p)).abs() < 1e-6);
            }
        }

        let mut gradient = logits.clone();
        let judged = judge_labels(Logits::F32(&mut gradient), vocab, &[(3, 2.0)])[0];
        assert!((judged.value as f64 + q[3].ln()).abs() < 1e-5, "{judged:?}");
        assert!((gradient[3] as f64 - 2.0 * (q[3] - 1.0)).abs() < 1e-5);
        assert!((gradient[4] as f64 - 2.0 * q[4]).abs() < 1e-5);
    }
}
