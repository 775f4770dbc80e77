//! Rows of the target's logits, and what they say of the next token.
use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_models::Sampling;
use spectrain_models::reductions::likeliest;

use super::chance::Chance;
use crate::error::{Error, Result};

/// The first largest entry of each row; of a row only its index, largest entry and sum leave the device.
///
/// # Errors
/// A row is not finite. A broken target would otherwise be judged by whatever comes first.
pub(crate) fn most_likely(logits: Tensor<2>) -> Result<Vec<u32>> {
    let best = likeliest(logits.clone());
    // A sum is no number where an entry is none, and infinity where one is.
    let sums = logits.clone().sum_dim(1);
    let largest = logits.gather(1, best.clone());
    let checked = host_rows(Tensor::cat(vec![largest, sums], 1))?;
    for (row, &[largest, sum]) in checked.as_chunks::<2>().0.iter().enumerate() {
        if !largest.is_finite() || sum.is_nan() || sum == f32::INFINITY {
            return Err(Error::Logits { row });
        }
    }
    let indices = best.try_into_data();
    let indices = indices.map_err(|error| Error::Device(error.to_string()))?;
    Ok(indices.iter::<i64>().map(|index| index as u32).collect())
}

/// Whether each token is the one that [`most_likely`] finds in its row of `logits`, `[tokens, vocab]`.
///
/// # Errors
/// A row is not finite.
pub(crate) fn are_most_likely(tokens: &[u32], logits: Tensor<2>) -> Result<Vec<bool>> {
    let best = most_likely(logits)?.into_iter();
    let same = best.zip(tokens).map(|(best, token)| best == *token);
    Ok(same.collect())
}

/// The entries of `logits` on the host, row by row.
pub(crate) fn host_rows(logits: Tensor<2>) -> Result<Vec<f32>> {
    let host = logits.try_into_vec_as::<f32>();
    host.map_err(|error| Error::Device(error.to_string()))
}

/// The processed distribution of one row of logits, summing to 1 in f64.
pub(super) fn probabilities(
    logits: &Tensor<2>,
    row: usize,
    sampling: &Sampling,
) -> Result<Vec<f64>> {
    processed(&host_rows(logits.clone().narrow(0, row, 1))?, row, sampling)
}

/// The processed distribution of the logits of `row`, summing to 1 in f64.
///
/// # Errors
/// They are none: see [`Error::Logits`].
pub(crate) fn processed(logits: &[f32], row: usize, sampling: &Sampling) -> Result<Vec<f64>> {
    // Minus infinity marks a token as impossible, and is meant.
    let bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if logits.iter().any(bad) || logits.iter().all(|logit| !logit.is_finite()) {
        return Err(Error::Logits { row });
    }
    let kept = sampling.distribution(logits).probabilities;
    Ok(normalised(kept.into_iter().map(f64::from).collect()))
}

/// The target's own token after one row of logits.
pub(crate) fn choose(logits: Tensor<2>, sampling: &Sampling, rng: &mut StdRng) -> Result<u32> {
    if sampling.is_greedy() {
        return Ok(most_likely(logits)?[0]);
    }
    Ok(rng.draw(&probabilities(&logits, 0, sampling)?) as u32)
}

/// `weights` divided by their sum, where that is not 0.
pub(super) fn normalised(mut weights: Vec<f64>) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    if total > 0.0 {
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
    weights
}
