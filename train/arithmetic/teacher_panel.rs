//! The target's distributions at some positions, on the CPU.
use pulp::Arch;
use rayon::prelude::*;
use spectrain_models::{exp, ln, vectorised};

use crate::arithmetic::row_loops::{LANES, largest};
use crate::divergence::kernel::{Kernel, Towards};

/// The target's distributions at some positions.
pub(crate) struct TeacherPanel {
    vocab: usize,
    /// Probabilities, row by row.
    p: Vec<f32>,
    /// Those that drafters are pulled towards; none where they are the same.
    towards: Vec<f32>,
    /// Logarithms of `p`; none where nothing needs them.
    log_p: Vec<f32>,
    /// Of each row.
    rows: Vec<OfRow>,
}

/// What is said of a whole row.
#[derive(Debug, Clone, Copy)]
struct OfRow {
    /// `Σ p log p` of the distribution that drafters are pulled towards; no number where that is not normalised.
    negative_entropy: f32,
    /// Most likely token.
    best: usize,
    /// Share of the target's mass that the vocabulary holds.
    covered: f32,
    /// Sum of the distribution that drafters are pulled towards.
    mass: f32,
}

/// The target's side of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    /// Probabilities over the drafter's vocabulary.
    pub(super) p: &'a [f32],
    /// Those that drafters are pulled towards.
    pub(super) towards: &'a [f32],
    /// Logarithms of `p`, where they are needed; else none.
    pub(super) log_p: &'a [f32],
    /// `Σ p log p` of the distribution that drafters are pulled towards; no number where that is not normalised.
    pub(super) negative_entropy: f32,
    /// Most likely token.
    pub(super) best: usize,
    /// Share of the target's mass that the vocabulary holds.
    pub(super) covered: f32,
    /// Sum of the distribution that drafters are pulled towards.
    pub(super) mass: f32,
}

impl TeacherPanel {
    /// Turns logits into what `kernel` needs. [`Self::cover`] completes it where the vocabularies differ.
    pub(crate) fn new(mut logits: Vec<f32>, vocab: usize, kernel: Kernel) -> Self {
        let (distribution, takes_logarithms) = match kernel {
            Kernel::Towards { distribution, .. } => (distribution, false),
            Kernel::Blend(blend) => (Towards::Tempered(1.0), blend.takes_logarithms()),
        };
        let mut towards = match distribution {
            Towards::Tempered(temperature) if temperature != 1.0 => {
                let sharpness = temperature.recip() as f32;
                logits.iter().map(|logit| logit * sharpness).collect()
            }
            _ => Vec::new(),
        };
        let mut log_p = if takes_logarithms {
            logits.clone()
        } else {
            Vec::new()
        };
        let mut rows = softmaxes(&mut logits, vocab);
        let each = log_p.par_chunks_exact_mut(vocab);
        each.zip(logits.par_chunks_exact(vocab))
            .zip(&rows)
            .for_each(|((logs, p), row)| {
                let partition = logs[row.best] - ln(p[row.best]);
                logs.iter_mut().for_each(|logit| *logit -= partition);
            });
        match distribution {
            Towards::Tempered(1.0) => {}
            Towards::Tempered(_) => {
                let tempered = softmaxes(&mut towards, vocab);
                for (row, tempered) in rows.iter_mut().zip(tempered) {
                    row.negative_entropy = tempered.negative_entropy;
                }
            }
            Towards::Best => {
                towards = vec![0.0; logits.len()];
                for (row, towards) in rows.iter_mut().zip(towards.chunks_exact_mut(vocab)) {
                    towards[row.best] = 1.0;
                    row.negative_entropy = 0.0;
                }
            }
            Towards::Largest(count) => {
                towards.clone_from(&logits);
                let each = rows.par_iter_mut().zip(towards.par_chunks_exact_mut(vocab));
                each.for_each(|(row, towards)| {
                    row.mass = keep_largest(towards, count);
                    row.negative_entropy = f32::NAN;
                });
            }
        }
        Self {
            vocab,
            p: logits,
            towards,
            log_p,
            rows,
        }
    }

    /// Sets the share of the target's mass that the vocabulary holds, of each row.
    pub(crate) fn cover(&mut self, shares: &[f32]) {
        for (row, &share) in self.rows.iter_mut().zip(shares) {
            row.covered = share;
        }
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// How many tokens a row has.
    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    pub(super) fn row(&self, row: usize) -> Target<'_> {
        let of_row = |all| row_of(all, row, self.vocab);
        let OfRow {
            negative_entropy,
            best,
            covered,
            mass,
        } = self.rows[row];
        let p = of_row(&self.p);
        Target {
            p,
            towards: if self.towards.is_empty() {
                p
            } else {
                of_row(&self.towards)
            },
            log_p: if self.log_p.is_empty() {
                &[]
            } else {
                of_row(&self.log_p)
            },
            negative_entropy,
            best,
            covered,
            mass,
        }
    }
}

fn row_of(all: &[f32], row: usize, vocab: usize) -> &[f32] {
    &all[row * vocab..][..vocab]
}

/// Turns rows of logits into probabilities.
fn softmaxes(logits: &mut [f32], vocab: usize) -> Vec<OfRow> {
    let arch = Arch::new();
    let rows = logits.par_chunks_mut(vocab);
    rows.map(|row| vectorised!(arch, softmax(row))).collect()
}

/// Turns logits into probabilities.
#[inline(always)]
fn softmax(row: &mut [f32]) -> OfRow {
    let (largest, best) = largest(row);
    let (mut sums, mut dots) = ([0.0f32; LANES], [0.0f32; LANES]);
    let mut blocks = row.chunks_exact_mut(LANES);
    for block in &mut blocks {
        for ((value, sum), dot) in block.iter_mut().zip(&mut sums).zip(&mut dots) {
            let shifted = *value - largest;
            let e = exp(shifted);
            *sum += e;
            *dot += e * shifted;
            *value = e;
        }
    }
    let (mut sum, mut dot) = (sums.iter().sum::<f32>(), dots.iter().sum::<f32>());
    for value in blocks.into_remainder() {
        let shifted = *value - largest;
        *value = exp(shifted);
        sum += *value;
        dot += *value * shifted;
    }
    let scale = 1.0 / sum;
    row.iter_mut().for_each(|value| *value *= scale);
    OfRow {
        negative_entropy: dot * scale - sum.ln(),
        best,
        covered: 1.0,
        mass: 1.0,
    }
}

/// Leaves so many of the largest probabilities of a row, and those as large as the last of them; their sum.
fn keep_largest(row: &mut [f32], count: usize) -> f32 {
    if count < row.len() {
        let mut sorted = row.to_vec();
        let (_, least, _) = sorted.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        let least = *least;
        row.iter_mut()
            .filter(|p| **p < least)
            .for_each(|p| *p = 0.0);
    }
    row.iter().map(|&p| f64::from(p)).sum::<f64>() as f32
}
