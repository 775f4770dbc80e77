//! The ways to read captured states, and how well each goes with the texts.

use burn::prelude::*;
use serde::Serialize;
use spectrain_models::TargetParts;
use spectrain_models::weights::host_f32;

use super::evidence::{Judged, Likely, Places, SHARPEST, mean, standard_errors};
use crate::runtime::capture::proof::LastState;

/// A way to read the states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// The last hidden state is in this slot, and is this.
    Slot(usize, LastState),
    /// It is in the last slot, and went through the norm twice.
    NormedTwice,
    /// It is in the last slot, and stands one place late: the state of a token stands at the next one.
    Late(LastState),
    /// It stands one place early.
    Early(LastState),
}

impl Reading {
    /// What the folder would have to be, in words.
    pub(super) fn words(self, slots: usize) -> String {
        match self {
            Self::Slot(slot, last_state) if slot + 1 == slots => {
                format!("the last slot, {last_state}")
            }
            Self::Slot(slot, last_state) => {
                format!("slot {slot} of {slots} in place of the last one, {last_state}")
            }
            Self::NormedTwice => "the last slot, which went through the final norm twice".into(),
            Self::Late(_) => "the last slot, one token late".into(),
            Self::Early(_) => "the last slot, one token early".into(),
        }
    }
}

/// A reading, with what the head makes of it.
pub(super) struct Fit {
    pub(super) reading: Reading,
    /// The tokens that the states should make likely.
    pub(super) judged: Judged,
    by_chance: Vec<f64>,
    sharpness: f32,
}

/// How well a reading goes with the texts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadingReport {
    /// What would be so.
    pub reading: String,
    /// Mean surprise of the texts' tokens, nats.
    pub surprise: f64,
    /// The same of tokens from other places.
    pub surprise_by_chance: f64,
    /// Share of places at which the head finds the text's token likeliest.
    pub likeliest: f64,
    /// What the logits were multiplied with, as made the texts' tokens likeliest.
    pub sharpness: f32,
}

impl ReadingReport {
    /// Whether the logits fit the texts best at half their size or less. Texts that were sampled at a temperature near 1 fit
    /// them as they are, and greedy ones where they are larger; logits that a factor of the model should have made smaller do not.
    pub fn is_blunt(&self) -> bool {
        self.sharpness < 0.7
    }

    /// Whether the texts tell how large logits are. Greedy ones do not: they fit logits of any size, and the larger the better.
    pub fn tells_size(&self) -> bool {
        self.sharpness < SHARPEST
    }
}

impl Fit {
    /// The reading as sharp as makes its tokens likeliest; nothing where there is none.
    fn new(reading: Reading, likely: &[Likely], judged: fn(&Likely) -> &Judged) -> Option<Self> {
        let of = |likely: &Likely| mean(&judged(likely).likely);
        let best = likely
            .iter()
            .max_by(|one, two| of(one).total_cmp(&of(two)))?;
        Some(Self {
            reading,
            judged: judged(best).clone(),
            by_chance: best.by_chance.clone(),
            sharpness: best.sharpness,
        })
    }

    /// Share of places at which the head finds the token likeliest.
    pub(super) fn likeliest(&self) -> f64 {
        mean(&self.judged.hits)
    }

    /// Mean surprise, nats.
    pub(super) fn surprise(&self) -> f64 {
        -mean(&self.judged.likely)
    }

    /// Mean surprise of tokens from other places, nats.
    pub(super) fn surprise_by_chance(&self) -> f64 {
        -mean(&self.by_chance)
    }

    /// By how many standard errors its tokens are likelier than those of other places.
    pub(super) fn beyond_chance(&self) -> f64 {
        standard_errors(&self.judged.likely, &self.by_chance)
    }

    pub(super) fn report(&self, slots: usize) -> ReadingReport {
        ReadingReport {
            reading: self.reading.words(slots),
            surprise: self.surprise(),
            surprise_by_chance: self.surprise_by_chance(),
            likeliest: self.likeliest(),
            sharpness: self.sharpness,
        }
    }
}

/// Every reading of the states of some places.
pub(super) fn all(places: &Places, slots: usize, target: &TargetParts) -> Vec<Fit> {
    let mut fits = Vec::new();
    for slot in (0..slots).rev() {
        for last_state in [LastState::BeforeNorm, LastState::AfterNorm] {
            let states = places.slot(slot);
            let normed = match last_state {
                LastState::BeforeNorm => target.norm.forward(states),
                LastState::AfterNorm => states,
            };
            let likely = places.likely(normed, target);
            let own = Reading::Slot(slot, last_state);
            fits.extend(Fit::new(own, &likely, |likely| &likely.next));
            if slot + 1 == slots {
                let late = Reading::Late(last_state);
                fits.extend(Fit::new(late, &likely, |likely| &likely.same));
                let early = Reading::Early(last_state);
                fits.extend(Fit::new(early, &likely, |likely| &likely.later));
            }
        }
    }
    let likely = places.likely(normed_once(places.slot(slots - 1), target), target);
    fits.extend(Fit::new(Reading::NormedTwice, &likely, |likely| {
        &likely.next
    }));
    fits
}

/// The weights of the final norm, each with what undoes it; 0 for a weight of 0, behind which nothing is left.
pub(super) fn without_weight(states: Tensor<2>, target: &TargetParts) -> Tensor<2> {
    let weight = target.norm.weight.val().cast(burn::tensor::DType::F32);
    let is_zero = weight.clone().equal_elem(0.0);
    let inverse = weight.mask_fill(is_zero.clone(), 1.0).recip();
    states * inverse.mask_fill(is_zero, 0.0).unsqueeze()
}

/// Of states that went through the norm twice what they were after the first time. A norm keeps their direction, but for its
/// weight, and after one norm and without its weight they have the length of the square root of their width.
fn normed_once(states: Tensor<2>, target: &TargetParts) -> Tensor<2> {
    let once = without_weight(states, target);
    let length = size(without_weight(once.clone(), target));
    once / length.clamp_min(1e-30)
}

/// The root of the mean square of each row, `[rows, 1]`.
fn size(states: Tensor<2>) -> Tensor<2> {
    states.square().mean_dim(1).sqrt()
}

/// Share of rows that have, without the norm's weight, the length that they have behind the norm.
pub(super) fn share_of_normed(states: Tensor<2>, target: &TargetParts) -> f64 {
    const TOLERANCE: f32 = 0.03;
    let sizes = host_f32(size(without_weight(states, target)));
    let normed = sizes.iter().filter(|size| (*size - 1.0).abs() < TOLERANCE);
    normed.count() as f64 / sizes.len().max(1) as f64
}
