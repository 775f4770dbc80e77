//! Distributions of which top-k and top-p leave few tokens.
use std::collections::{BTreeMap, BTreeSet};

use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{Sampling, in_parallel};

use crate::error::Result;
use crate::estimate::text::Judges;
use crate::verify::rows::{host_rows, processed};

/// The tokens that can be drawn, in order of their ids, each with its probability.
#[derive(Debug, PartialEq)]
pub(super) struct Drawable(Vec<(u32, f64)>);

impl Drawable {
    /// Those that `sampling` leaves of the logits of `row`.
    ///
    /// # Errors
    /// They are no distribution.
    pub(super) fn of(logits: &[f32], row: usize, sampling: &Sampling) -> Result<Self> {
        let all = processed(logits, row, sampling)?;
        let ids = (0..).zip(all).filter(|&(_, probability)| probability > 0.0);
        Ok(Self(ids.collect()))
    }

    /// The probability of a token.
    pub(super) fn at(&self, token: u32) -> f64 {
        let found = self.0.binary_search_by_key(&token, |&(id, _)| id);
        found.map_or(0.0, |place| self.0[place].1)
    }

    /// The probability of the likeliest token.
    pub(super) fn largest(&self) -> f64 {
        self.0.iter().map(|&(_, q)| q).fold(0.0, f64::max)
    }

    /// `-Σ q ln q`, in nats.
    pub(super) fn entropy(&self) -> f64 {
        self.0.iter().map(|&(_, q)| -q * q.ln()).sum()
    }

    /// `Σ min(p, q)` of a drafter's distribution `q` over its `vocabulary` and the target's `p`.
    pub(super) fn overlap(&self, p: &Self, vocabulary: &DraftVocabulary) -> f64 {
        let of_target = |id| p.at(vocabulary.to_target(id));
        self.0.iter().map(|&(id, q)| q.min(of_target(id))).sum()
    }
}

/// Tokens that are in memory at most before some row is made anew, each with its probability: 128 MiB of them.
const MOST_TOKENS: usize = 1 << 23;

/// The target's distributions behind the places of a text. Steps of drafts behind several places land on the same row, which is made
/// once.
#[derive(Default)]
pub(super) struct OfTarget {
    rows: BTreeMap<usize, Drawable>,
}

impl OfTarget {
    /// Makes those of `rows` that are not known yet.
    ///
    /// # Errors
    /// The target's logits are no distribution, or the device fails.
    pub(super) fn learn(
        &mut self,
        rows: &[usize],
        judges: &Judges,
        sampling: &Sampling,
    ) -> Result<()> {
        if self.rows.values().map(|of| of.0.len()).sum::<usize>() > MOST_TOKENS {
            self.rows.clear();
        }
        let is_new = |row: &usize| !self.rows.contains_key(row);
        let new: BTreeSet<usize> = rows.iter().copied().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let new = Vec::from_iter(new);
        let logits = judges.logits(&new);
        let width = logits.dims()[1];
        let host = host_rows(logits)?;
        let given = new.into_iter().zip(host.chunks(width)).collect();
        let made = in_parallel(given, |(row, logits): (usize, &[f32])| {
            Drawable::of(logits, row, sampling).map(|of| (row, of))
        });
        for known in made {
            let (row, of) = known?;
            self.rows.insert(row, of);
        }
        Ok(())
    }

    /// That of a row which was made.
    pub(super) fn get(&self, row: usize) -> Option<&Drawable> {
        self.rows.get(&row)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
    use spectrain_models::Capture;

    use super::*;
    use crate::estimate::text::OwnText;
    use crate::toy::ToyTarget;

    #[test]
    fn what_is_left_says_to_the_last_bit_what_all_tokens_say() {
        const VOCAB: usize = 300;
        let mut rng = StdRng::seed_from_u64(1);
        let drafted = (0..VOCAB as i64).filter(|token| token % 3 != 1);
        let d2t: Vec<i64> = (0..).zip(drafted).map(|(id, token)| token - id).collect();
        let vocabulary = DraftVocabulary::from_d2t(&d2t, VOCAB).unwrap();
        for (top_k, top_p) in [(1, 1.0), (20, 1.0), (0, 0.9), (40, 0.95)] {
            let sampling = Sampling {
                temperature: 0.8,
                top_k,
                top_p,
            };
            // Many are equal.
            let mut row = |width: usize| -> Vec<f32> {
                (0..width)
                    .map(|_| rng.random_range(0..40) as f32 / 8.0)
                    .collect()
            };
            let (target, drafter) = (row(VOCAB), row(vocabulary.len()));
            let [p, q] = [&target, &drafter].map(|of| processed(of, 0, &sampling).unwrap());
            let [of_p, of_q] =
                [&target, &drafter].map(|of| Drawable::of(of, 0, &sampling).unwrap());
            for (token, &p) in (0..).zip(&p) {
                assert_eq!(of_p.at(token), p);
            }
            assert_eq!(of_q.largest(), q.iter().copied().fold(0.0, f64::max));
            let entropy = q.iter().filter(|&&q| q > 0.0).map(|q| -q * q.ln());
            assert_eq!(of_q.entropy(), entropy.sum::<f64>());
            let shared = (0..).zip(&q).map(|(id, &q)| {
                let token = vocabulary.to_target(id);
                q.min(p[token as usize])
            });
            assert_eq!(of_q.overlap(&of_p, &vocabulary), shared.sum::<f64>());
        }
    }

    #[test]
    fn a_row_of_the_target_is_made_once() {
        let capture = Capture::default();
        let judges = |target: &ToyTarget| {
            let text = OwnText::read(target, &capture, &[1, 4, 2], &[1, 2, 3, 0], 4);
            text.unwrap().judges
        };
        let (good, broken) = (judges(&ToyTarget::default()), judges(&ToyTarget::broken()));
        let sampling = Sampling {
            top_k: 2,
            ..Sampling::at(1.0)
        };
        let mut known = OfTarget::default();
        known.learn(&[1, 0, 1], &good, &sampling).unwrap();
        known.learn(&[0, 1], &broken, &sampling).unwrap();
        assert!(known.get(0).is_some() && known.get(1).is_some() && known.get(2).is_none());
        assert!(known.learn(&[1, 2], &broken, &sampling).is_err());
    }
}
