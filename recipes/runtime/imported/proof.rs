//! The proof that imported states are the target's, made from the texts alone: nobody says how likely a served model found them.
//!
//! The last state, read rightly, makes the token behind it likely; read in another way, from another slot, one place early or
//! late, or by another model's head, it does so less, and often no more than any token from elsewhere. So every reading is
//! tried, the one that is said must go best with the texts, and chance must not explain that it does.

use anyhow::{Result, bail};
use serde::Serialize;
use spectrain_models::TargetParts;

use super::evidence::{Places, Sample, all_norms, mean, standard_errors};
use super::readings::{Fit, Reading, ReadingReport, all, share_of_normed};
use crate::runtime::capture::proof::{LastState, check_norms};

/// Places that say anything, at least.
const LEAST_PLACES: usize = 16;
/// Standard errors that chance does not reach.
const BEYOND_CHANCE: f64 = 5.0;
/// Nats by which tokens that go with their states are likelier than tokens from elsewhere, at least. Places of one text are not
/// independent, so that standard errors alone are too small; states of another model come to a few tenths.
const LEAST_NATS: f64 = 0.5;
/// Share of the texts' tokens that are the likeliest, from which that alone is beyond chance: texts may say one thing over and
/// over.
const MOSTLY: f64 = 0.5;
/// Share of states of the norm's length from which they are taken to have gone through it.
const NORMED: f64 = 0.9;
/// Nats that tell two readings from each other.
const TELLS: f64 = 0.02;
/// Standard errors of a difference of two readings that tell them from each other.
const TELLS_ERRORS: f64 = 3.0;

/// What was found of imported states.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TextProof {
    /// What the last state is.
    pub last_state: LastState,
    /// Places of texts that were looked at.
    pub places: usize,
    /// Share of last states as long as the final norm leaves them.
    pub as_long_as_normed: f64,
    /// Every reading that was tried, the best first.
    pub readings: Vec<ReadingReport>,
    /// Median norm of the states of each slot.
    pub median_norms: Vec<f64>,
}

/// Proves that `samples` have states of the model that `target` is of, the last one in the last slot.
///
/// # Errors
/// They have not; the message says what fits better.
pub fn prove(samples: &[Sample], target: &TargetParts) -> Result<TextProof> {
    let device = target.norm.weight.val().device();
    let places = Places::of(samples, &device);
    if places.len() < LEAST_PLACES {
        bail!(
            "expected texts with at least {LEAST_PLACES} tokens to check the hidden states by, found {}",
            places.len()
        );
    }
    let slots = samples[0].states.shape[1];
    let median_norms = (0..slots)
        .map(|slot| check_norms(slot, &all_norms(samples, slot, &device)))
        .collect::<Result<Vec<f64>>>()?;
    let as_long_as_normed = share_of_normed(places.slot(slots - 1), target);
    let mut fits = all(&places, slots, target);
    fits.sort_by(|one, two| one.surprise().total_cmp(&two.surprise()));
    let (last_state, _) = said(&fits, slots, as_long_as_normed)?;
    fits.retain(|fit| can_be(fit.reading, slots, last_state));
    let (_, fit) = said(&fits, slots, as_long_as_normed)?;
    check(fit, &fits, slots)?;
    Ok(TextProof {
        last_state,
        places: places.len(),
        as_long_as_normed,
        readings: fits.iter().map(|fit| fit.report(slots)).collect(),
        median_norms,
    })
}

/// The reading of the last slot, by how long its states are: behind the norm they have, without its weight, the length of the
/// square root of their width.
fn said(fits: &[Fit], slots: usize, as_long_as_normed: f64) -> Result<(LastState, &Fit)> {
    let last_state = if as_long_as_normed > NORMED {
        LastState::AfterNorm
    } else {
        LastState::BeforeNorm
    };
    let reading = Reading::Slot(slots - 1, last_state);
    match fits.iter().find(|fit| fit.reading == reading) {
        Some(fit) => Ok((last_state, fit)),
        None => bail!("there is nothing to compare"),
    }
}

/// Whether states of the length that was found can be read so at all.
fn can_be(reading: Reading, slots: usize, last_state: LastState) -> bool {
    match reading {
        Reading::Slot(slot, other) => slot + 1 != slots || other == last_state,
        Reading::NormedTwice => last_state == LastState::AfterNorm,
        Reading::Late(other) | Reading::Early(other) => other == last_state,
    }
}

/// Fails where a reading does not go with the texts, or another one goes better.
fn check(said: &Fit, fits: &[Fit], slots: usize) -> Result<()> {
    let better = |fit: &&Fit| {
        let (fit, said) = (&fit.judged, &said.judged);
        let is_likelier = standard_errors(&fit.likely, &said.likely) > TELLS_ERRORS;
        let hits_more = standard_errors(&fit.hits, &said.hits) > TELLS_ERRORS;
        hits_more || (is_likelier && mean(&fit.likely) - mean(&said.likely) > TELLS)
    };
    let is_beyond = |fit: &Fit| {
        let nats = fit.surprise_by_chance() - fit.surprise();
        (fit.beyond_chance() > BEYOND_CHANCE && nats > LEAST_NATS) || fit.likeliest() > MOSTLY
    };
    let numbers = |fit: &Fit| {
        format!(
            "{:.2} nats a token, {:.0} % of them the likeliest",
            fit.surprise(),
            100.0 * fit.likeliest()
        )
    };
    if let Some(other) = fits.iter().find(|fit| is_beyond(fit) && better(fit)) {
        bail!(
            "the last hidden state is not the target's: {} fits better ({}) than {} ({})",
            other.reading.words(slots),
            numbers(other),
            said.reading.words(slots),
            numbers(said)
        );
    }
    if !is_beyond(said) {
        bail!(
            "the last hidden state is not the target's, or the target cannot predict these texts: by its norm and head the \
             texts' own tokens ({}) are no likelier than tokens from elsewhere ({:.2} nats), and no other slot, place or \
             norming does better. The states are those of another model, or the last slot is not that of the last layer",
            numbers(said),
            said.surprise_by_chance()
        );
    }
    Ok(())
}
