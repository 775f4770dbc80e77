//! Draft vocabulary: the target's most frequent tokens, which is all a drafter's head need score.
//!
//! FR-Spec, <https://arxiv.org/abs/2502.14856>; EAGLE-3, <https://arxiv.org/abs/2503.01840>.

use std::cmp::Reverse;

use crate::conversation::Sample;
use crate::error::{Error, Result};

/// A subset of the target's tokens in ascending order; the drafter's token `d` is the subset's `d`-th.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftVocabulary {
    d2t: Vec<i64>,
    t2d: Vec<bool>,
}

impl DraftVocabulary {
    /// Every token of the target: draft and target ids are equal.
    pub fn full(vocab: usize) -> Self {
        Self {
            d2t: vec![0; vocab],
            t2d: vec![true; vocab],
        }
    }

    /// The `size` most frequent tokens of `counts` (of equals the smaller id), among them those of `always`.
    pub fn from_counts(counts: &[u64], size: usize, always: &[u32]) -> Result<Self> {
        let vocab = counts.len();
        if size == 0 || size > vocab {
            return Err(Error::vocabulary("size", format!("1 to {vocab}"), size));
        }
        let mut chosen = vec![false; vocab];
        for &token in always {
            let Some(place) = chosen.get_mut(token as usize) else {
                return Err(Error::vocabulary(
                    "token to include",
                    format!("less than {vocab}"),
                    token,
                ));
            };
            *place = true;
        }
        let included = chosen.iter().filter(|&&chosen| chosen).count();
        if included > size {
            return Err(Error::vocabulary(
                "size",
                format!("at least {included}, as so many tokens are always included"),
                size,
            ));
        }
        let mut rest: Vec<usize> = (0..vocab).filter(|&token| !chosen[token]).collect();
        rest.sort_by_key(|&token| (Reverse(counts[token]), token));
        for token in rest.into_iter().take(size - included) {
            chosen[token] = true;
        }
        Ok(Self::from_chosen(chosen))
    }

    /// Reads back the offsets of a checkpoint for a target of `vocab` tokens.
    pub fn from_d2t(d2t: &[i64], vocab: usize) -> Result<Self> {
        if d2t.is_empty() || d2t.len() > vocab {
            return Err(Error::vocabulary(
                "length of `d2t`",
                format!("1 to {vocab}"),
                d2t.len(),
            ));
        }
        let mut t2d = vec![false; vocab];
        let mut least = 0;
        for (draft, &offset) in d2t.iter().enumerate() {
            let target = offset.checked_add(draft as i64);
            let place = target
                .filter(|&target| target >= least)
                .and_then(|target| usize::try_from(target).ok());
            let Some(place) = place.and_then(|place| t2d.get_mut(place)) else {
                let found = format!("offset {offset}");
                let expected =
                    format!("a target token from {least} to {}", vocab.saturating_sub(1));
                return Err(Error::vocabulary(
                    format!("`d2t[{draft}]`"),
                    expected,
                    found,
                ));
            };
            *place = true;
            // Ascending: the next draft token stands for a later target token.
            least = offset + draft as i64 + 1;
        }
        Ok(Self {
            d2t: d2t.to_vec(),
            t2d,
        })
    }

    fn from_chosen(t2d: Vec<bool>) -> Self {
        let chosen = t2d.iter().enumerate().filter(|&(_, &chosen)| chosen);
        let d2t = chosen
            .enumerate()
            .map(|(draft, (target, _))| target as i64 - draft as i64)
            .collect();
        Self { d2t, t2d }
    }

    /// Number of draft tokens.
    pub fn len(&self) -> usize {
        self.d2t.len()
    }

    /// Whether there is no draft token, as only for a target without tokens.
    pub fn is_empty(&self) -> bool {
        self.d2t.is_empty()
    }

    /// Number of target tokens.
    pub fn target_len(&self) -> usize {
        self.t2d.len()
    }

    /// Whether draft and target ids are equal; a checkpoint then has neither `d2t` nor `t2d`.
    pub fn is_full(&self) -> bool {
        self.d2t.len() == self.t2d.len()
    }

    /// Offsets: the target's token is `draft + d2t[draft]`.
    pub fn d2t(&self) -> &[i64] {
        &self.d2t
    }

    /// Whether each target token is a draft token.
    pub fn t2d(&self) -> &[bool] {
        &self.t2d
    }

    /// The target's token.
    ///
    /// # Panics
    ///
    /// If `draft` is not a draft token.
    pub fn to_target(&self, draft: u32) -> u32 {
        (i64::from(draft) + self.d2t[draft as usize]) as u32
    }

    /// The drafter's token, if the target's is one.
    pub fn to_draft(&self, target: u32) -> Option<u32> {
        if !*self.t2d.get(target as usize)? {
            return None;
        }
        let target = i64::from(target);
        let (mut low, mut high) = (0, self.d2t.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if middle as i64 + self.d2t[middle] < target {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low as u32)
    }

    /// The target's token of every draft token, ascending.
    pub fn target_ids(&self) -> Vec<u32> {
        (0..self.d2t.len() as u32)
            .map(|draft| self.to_target(draft))
            .collect()
    }

    /// The share of counted tokens that are draft tokens; 1 where nothing was counted.
    pub fn coverage(&self, counts: &[u64]) -> f64 {
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return 1.0;
        }
        let covered: u64 = counts
            .iter()
            .zip(&self.t2d)
            .filter(|(_, chosen)| **chosen)
            .map(|(count, _)| count)
            .sum();
        covered as f64 / total as f64
    }
}

/// How often each token of a vocabulary occurs in the loss masks of samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenCounts {
    counts: Vec<u64>,
    samples: u64,
}

impl TokenCounts {
    /// Those of no sample yet, with a vocabulary of so many tokens.
    pub fn new(vocab: usize) -> Self {
        Self {
            counts: vec![0; vocab],
            samples: 0,
        }
    }

    /// Adds those of a sample.
    ///
    /// # Errors
    /// It has a token outside of the vocabulary.
    pub fn add(&mut self, sample: &Sample) -> Result<()> {
        let vocab = self.counts.len();
        for (&token, &trained) in sample.tokens.iter().zip(&sample.loss_mask) {
            let Some(count) = self.counts.get_mut(token as usize) else {
                let expected = format!("less than the vocabulary of {vocab}");
                return Err(Error::sample(self.samples, "token", expected, token));
            };
            *count += u64::from(trained);
        }
        self.samples += 1;
        Ok(())
    }

    /// The counts, by the ids of the tokens.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_tokens_are_taken_and_equals_by_smaller_id() {
        let vocabulary = DraftVocabulary::from_counts(&[3, 0, 9, 3, 3, 1], 3, &[]).unwrap();
        assert_eq!(vocabulary.target_ids(), [0, 2, 3]);
        assert_eq!(vocabulary.d2t(), [0, 1, 1]);
        assert_eq!(vocabulary.t2d(), [true, false, true, true, false, false]);
    }

    #[test]
    fn tokens_that_must_be_included_are_and_take_a_place() {
        let vocabulary = DraftVocabulary::from_counts(&[3, 0, 9, 3, 3, 1], 3, &[5, 1, 5]).unwrap();
        assert_eq!(vocabulary.target_ids(), [1, 2, 5]);
        let message = DraftVocabulary::from_counts(&[1, 2], 1, &[0, 1])
            .unwrap_err()
            .to_string();
        assert!(message.contains("size: expected at least 2"), "{message}");
        assert!(DraftVocabulary::from_counts(&[1, 2], 1, &[2]).is_err());
        assert!(DraftVocabulary::from_counts(&[1, 2], 3, &[]).is_err());
        assert!(DraftVocabulary::from_counts(&[1, 2], 0, &[]).is_err());
    }

    #[test]
    fn ids_survive_the_way_to_the_target_and_back() {
        let counts: Vec<u64> = (0..200).map(|token| token * 7919 % 101).collect();
        let vocabulary = DraftVocabulary::from_counts(&counts, 60, &[0, 199]).unwrap();
        for draft in 0..60 {
            assert_eq!(
                vocabulary.to_draft(vocabulary.to_target(draft)),
                Some(draft)
            );
        }
        let present = (0..200)
            .filter(|&target| vocabulary.to_draft(target).is_some())
            .count();
        assert_eq!(present, 60);
        assert_eq!(vocabulary.to_draft(200), None);
        assert_eq!(
            DraftVocabulary::from_d2t(vocabulary.d2t(), 200).unwrap(),
            vocabulary
        );
    }

    #[test]
    fn offsets_out_of_range_or_order_are_refused_by_place() {
        assert_eq!(
            DraftVocabulary::from_d2t(&[0, 1, 1], 4)
                .unwrap()
                .target_ids(),
            [0, 2, 3]
        );
        let error = |d2t: &[i64]| DraftVocabulary::from_d2t(d2t, 4).unwrap_err().to_string();
        assert_eq!(
            error(&[0, 0, -1]),
            "draft vocabulary: `d2t[2]`: expected a target token from 2 to 3, found offset -1"
        );
        assert!(error(&[0, 3]).contains("`d2t[1]`"));
        assert!(error(&[-1]).contains("`d2t[0]`"));
        assert!(error(&[0, i64::MAX]).contains("`d2t[1]`"));
        assert!(error(&[]).contains("length of `d2t`"));
        assert!(error(&[0; 5]).contains("length of `d2t`"));
    }

    #[test]
    fn a_vocabulary_as_large_as_the_targets_is_the_identity() {
        let vocabulary = DraftVocabulary::from_counts(&[5, 0, 2], 3, &[1]).unwrap();
        assert!(vocabulary.is_full());
        assert_eq!(vocabulary, DraftVocabulary::full(3));
        assert_eq!(
            (vocabulary.to_target(2), vocabulary.to_draft(1)),
            (2, Some(1))
        );
        assert!(
            !DraftVocabulary::from_counts(&[5, 0, 2], 2, &[])
                .unwrap()
                .is_full()
        );
    }

    #[test]
    fn coverage_is_the_counted_share() {
        let vocabulary = DraftVocabulary::from_counts(&[6, 1, 3], 2, &[]).unwrap();
        assert!((vocabulary.coverage(&[6, 1, 3]) - 0.9).abs() < 1e-12);
        assert!((vocabulary.coverage(&[0, 4, 0]) - 0.0).abs() < 1e-12);
        assert!((vocabulary.coverage(&[0, 0, 0]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn only_tokens_in_the_loss_mask_are_counted() {
        let sample = |tokens: &[u32], mask: &[u8]| Sample {
            tokens: tokens.to_vec(),
            loss_mask: mask.iter().map(|&bit| bit == 1).collect(),
        };
        let samples = [
            sample(&[0, 1, 1, 2], &[0, 1, 1, 0]),
            sample(&[2, 1], &[1, 0]),
        ];
        let counted = |vocab: usize| {
            let mut counts = TokenCounts::new(vocab);
            let added = samples.iter().try_for_each(|sample| counts.add(sample));
            added.map(|()| counts.counts().to_vec())
        };
        assert_eq!(counted(4).unwrap(), [0, 2, 1, 0]);
        let message = counted(2).unwrap_err().to_string();
        assert_eq!(
            message,
            "sample 0: token: expected less than the vocabulary of 2, found 2"
        );
    }
}
