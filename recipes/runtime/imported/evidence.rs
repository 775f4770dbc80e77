//! Places of texts, and how likely the target's head finds what stands behind them.

use burn::prelude::*;
use spectrain_checkpoints::NamedTensor;
use spectrain_models::weights::{host_f32, tensor_from};
use spectrain_models::{TargetParts, argmax};

use crate::runtime::capture::proof::norms;
use crate::runtime::capture::states::slot;

/// Places that are looked at, at most.
const MOST_PLACES: usize = 256;
/// How often the tokens are moved to other places, to see what chance gives.
const ROTATIONS: usize = 8;
/// What logits are multiplied with. A wrong reading may be sharper than the right one, which alone makes greedy texts likelier; so
/// each is taken as sharp as suits it best.
const SHARPNESSES: [f32; 6] = [0.5, 0.71, 1.0, 1.41, 2.0, SHARPEST];
/// The largest of them.
pub(super) const SHARPEST: f32 = 4.0;

/// A sample to look at.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its number.
    pub number: usize,
    /// `[seq]`
    pub tokens: Vec<u32>,
    /// `[seq]`
    pub loss_mask: Vec<u8>,
    /// `[seq, slots, d_model]`
    pub states: NamedTensor,
}

/// A state, and the tokens around it.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The token that the state is said to be of.
    same: u32,
    /// The token behind it.
    next: u32,
    /// The one behind that.
    later: u32,
}

/// States of some places, with the tokens around them.
pub(super) struct Places {
    places: Vec<Place>,
    /// `[places, slots, d_model]`, f32
    states: Tensor<3>,
}

impl Places {
    /// Places of samples, spread evenly: those before trained tokens, which are the target's own where any are.
    pub(super) fn of(samples: &[Sample], device: &Device) -> Self {
        let all = |only_trained: bool| {
            samples.iter().enumerate().flat_map(move |(sample, of)| {
                let places = 0..of.tokens.len().saturating_sub(2);
                let taken = places.filter(move |&at| !only_trained || of.loss_mask[at + 1] != 0);
                taken.map(move |at| (sample, at))
            })
        };
        let mut found: Vec<_> = all(true).collect();
        if found.len() < MOST_PLACES / 4 {
            found = all(false).collect();
        }
        let count = found.len().min(MOST_PLACES);
        let chosen: Vec<_> = (0..count)
            .map(|at| found[at * found.len() / count])
            .collect();
        let places = chosen.iter().map(|&(sample, at)| {
            let tokens = &samples[sample].tokens;
            Place {
                same: tokens[at],
                next: tokens[at + 1],
                later: tokens[at + 2],
            }
        });
        Self {
            places: places.collect(),
            states: rows(samples, &chosen, device),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// States of a slot, `[places, d_model]`.
    pub(super) fn slot(&self, slot: usize) -> Tensor<2> {
        let [places, _, d_model] = self.states.dims();
        let states = self.states.clone().narrow(1, slot, 1);
        states.reshape([places, d_model])
    }

    /// What the head makes of states that are said to be normed, `[places, d_model]`, at each of [`SHARPNESSES`].
    pub(super) fn likely(&self, normed: Tensor<2>, target: &TargetParts) -> Vec<Likely> {
        let weight = target.lm_head.weight.val().dtype();
        let logits = target.logits(normed.cast(weight));
        let vocab = logits.dims()[1];
        let host = host_f32(logits);
        let rows: Vec<&[f32]> = host.chunks(vocab).collect();
        let sharpnesses = SHARPNESSES.iter();
        sharpnesses
            .map(|&sharpness| self.likely_at(&rows, sharpness))
            .collect()
    }

    fn likely_at(&self, rows: &[&[f32]], sharpness: f32) -> Likely {
        let places = self.places.len();
        let sums: Vec<f64> = rows.iter().map(|row| log_sum(row, sharpness)).collect();
        let of = |row: usize, token: u32| {
            let found = rows[row].get(token as usize);
            let found = found.map(|logit| f64::from(logit * sharpness) - sums[row]);
            // What cannot be is very unlikely, and its mean still a number.
            found.map_or(-100.0, |found| found.max(-100.0))
        };
        let each = |token: &dyn Fn(&Place) -> u32| {
            let places = self.places.iter().enumerate();
            let hit = |row: usize, place: &Place| argmax(rows[row]) == token(place) as usize;
            let hits = places
                .clone()
                .map(|(row, place)| f64::from(hit(row, place)));
            Judged {
                hits: hits.collect(),
                likely: places.map(|(row, place)| of(row, token(place))).collect(),
            }
        };
        let by_chance = (0..places).map(|row| {
            let moved = (1..=ROTATIONS).map(|turn| {
                let other = (row + turn * places / (ROTATIONS + 1)) % places;
                of(row, self.places[other].next)
            });
            moved.sum::<f64>() / ROTATIONS as f64
        });
        Likely {
            sharpness,
            by_chance: by_chance.collect(),
            same: each(&|place| place.same),
            next: each(&|place| place.next),
            later: each(&|place| place.later),
        }
    }
}

/// The logarithm of the sum of the exponentials of logits times `sharpness`.
fn log_sum(logits: &[f32], sharpness: f32) -> f64 {
    let most = logits
        .iter()
        .fold(f32::NEG_INFINITY, |most, &logit| most.max(logit));
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(((logit - most) * sharpness).exp()))
        .sum();
    f64::from(most * sharpness) + sum.ln()
}

/// The states of some places.
fn rows(samples: &[Sample], chosen: &[(usize, usize)], device: &Device) -> Tensor<3> {
    let states = &samples[0].states;
    let row = states.shape[1] * states.shape[2] * states.dtype.size();
    let bytes = chosen.iter().flat_map(|&(sample, at)| {
        let all = &samples[sample].states.bytes;
        all[at * row..(at + 1) * row].iter().copied()
    });
    let picked = NamedTensor {
        name: states.name.clone(),
        shape: vec![chosen.len(), states.shape[1], states.shape[2]],
        dtype: states.dtype,
        bytes: bytes.collect(),
    };
    tensor_from::<3>(picked, device).cast(burn::tensor::DType::F32)
}

/// What the head makes of one token at each place.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    /// Its log-probability.
    pub(super) likely: Vec<f64>,
    /// 1 where it is the likeliest, else 0: how sharp a reading is makes no difference to that.
    pub(super) hits: Vec<f64>,
}

/// What the head makes of tokens at each place.
#[derive(Debug, Clone)]
pub(super) struct Likely {
    /// What the logits were multiplied with.
    pub(super) sharpness: f32,
    /// Of the state's own token.
    pub(super) same: Judged,
    /// Of the one behind it.
    pub(super) next: Judged,
    /// Of the one behind that.
    pub(super) later: Judged,
    /// Log-probabilities of tokens that stand behind other states.
    pub(super) by_chance: Vec<f64>,
}

/// The mean of some numbers.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The mean of `one` less that of `two`, in its standard errors, of which no variance makes many.
pub(super) fn standard_errors(one: &[f64], two: &[f64]) -> f64 {
    let differences: Vec<f64> = one.iter().zip(two).map(|(one, two)| one - two).collect();
    let center = mean(&differences);
    let squares = differences.iter().map(|found| (found - center).powi(2));
    let variance = squares.sum::<f64>() / (differences.len().max(2) - 1) as f64;
    let error = (variance / differences.len().max(1) as f64).sqrt();
    center / error.max(1e-9)
}

/// The norms of all states of a slot, of each sample with its number.
pub(super) fn all_norms(
    samples: &[Sample],
    slot: usize,
    device: &Device,
) -> Vec<(usize, Vec<f64>)> {
    let of_sample = |sample: &Sample| {
        let states = self::slot(&sample.states, slot, device);
        (sample.number, norms(&states))
    };
    samples.iter().map(of_sample).collect()
}
