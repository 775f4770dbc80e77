//! Prompt lookup (Saxena 2023, <https://github.com/apoorvumang/prompt-lookup-decoding>): the draft is what followed the last
//! tokens of the text where they stood before.
//!
//! Of several places the last one counts, and a copy that reaches the end of the text goes on with what it copied itself, so
//! that a text which repeats itself is drafted to the full length; the original takes the first place and ends there.
use burn::prelude::*;
use rand::rngs::StdRng;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::draft::{Draft, DraftRequest, Proposal};
use crate::drafter::USUAL_DRAFT;
use crate::known_text::{DraftStep, KnownText, TakeLogits};
use crate::proposer::Proposer;
use crate::target::Features;

/// The most tokens at the end of a text that are looked for in it.
const LONGEST: usize = 3;

/// See the module. Its draft is a chain whatever shape is asked for, or nothing where the last token never stood before.
#[derive(Debug, Clone)]
pub struct PromptLookup {
    vocabulary: DraftVocabulary,
    text: Vec<u32>,
}

impl PromptLookup {
    /// Of texts over `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        Self {
            vocabulary: DraftVocabulary::full(vocab),
            text: Vec::new(),
        }
    }

    /// One row of logits: 0 for `token`, and nothing else can be proposed.
    fn row(&self, token: Option<u32>) -> Vec<f32> {
        let mut row = vec![f32::NEG_INFINITY; self.vocabulary.len()];
        if let Some(token) = token {
            row[token as usize] = 0.0;
        }
        row
    }
}

/// What is drafted behind `text`: nothing, or `length` tokens.
fn look_up(text: &[u32], length: usize) -> Vec<u32> {
    let found = (1..=LONGEST).rev().find_map(|size| follows(text, size));
    let Some(start) = found else {
        return Vec::new();
    };
    // The copy may catch up with the end of the text, and then reads itself.
    let period = text.len() - start;
    (0..length)
        .map(|step| text[start + step % period])
        .collect()
}

/// Where the text goes on behind the last place, but the end, at which its last `size` tokens stand.
fn follows(text: &[u32], size: usize) -> Option<usize> {
    let end = text.len().checked_sub(size).filter(|&end| end > 0)?;
    let wanted = &text[end..];
    let mut places = (0..end).rev();
    let place = places.find(|&place| &text[place..place + size] == wanted)?;
    Some(place + size)
}

impl Proposer for PromptLookup {
    fn start(&mut self, _: usize, first: u32) {
        self.text = vec![first];
    }

    fn observe(&mut self, tokens: &[u32], _: &Features) {
        self.text.extend(tokens);
    }

    fn judged(&mut self, _: &[u32], _: &Tensor<2>) {}

    fn propose(&mut self, request: &DraftRequest, _: &mut StdRng) -> Draft {
        let length = request.length.min(request.shape.length());
        Draft::chain(look_up(&self.text, length), Proposal::Deterministic)
    }

    fn ranks(&mut self, tokens: &[u32]) -> Vec<Option<usize>> {
        let drafted = look_up(&self.text, tokens.len());
        let right = (drafted.iter().zip(tokens)).take_while(|(drafted, token)| drafted == token);
        let mut ranks = vec![Some(0); right.count()];
        if ranks.len() < tokens.len() {
            ranks.push(None);
        }
        ranks
    }

    fn forced(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let drafted = look_up(&self.text, 1 + tokens.len());
        // What would follow other tokens than its own is never asked for.
        let row = |step: usize| {
            let is_its_own = drafted.starts_with(&tokens[..step]);
            self.row(drafted.get(step).copied().filter(|_| is_its_own))
        };
        (0..=tokens.len()).map(row).collect()
    }

    fn along(&self, text: &KnownText, take: &mut TakeLogits) {
        let device = text.features.last.device();
        for place in text.places(0) {
            let drafted = look_up(&text.tokens[..=place], text.known(place));
            if drafted.is_empty() {
                continue;
            }
            let rows: Vec<f32> = (drafted.iter())
                .flat_map(|&token| self.row(Some(token)))
                .collect();
            let rows = Tensor::<1>::from_floats(rows.as_slice(), &device);
            let steps: Vec<_> = (0..drafted.len())
                .map(|step| DraftStep { place, step })
                .collect();
            let rows = rows.reshape([steps.len(), self.vocabulary.len()]);
            if take(&steps, rows).is_break() {
                return;
            }
        }
    }

    fn follows_text(&self) -> bool {
        true
    }

    fn vocabulary(&self) -> &DraftVocabulary {
        &self.vocabulary
    }

    fn max_depth(&self) -> Option<usize> {
        None
    }

    fn draft_length(&self) -> usize {
        USUAL_DRAFT
    }

    fn passes(&self, depth: usize) -> usize {
        depth.min(1)
    }

    fn parameters_per_pass(&self) -> u64 {
        0
    }

    fn has_confidence(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_ending_counts_and_of_its_places_the_last() {
        // `1 2` stands at 0 and at 4, `3 1 2` only at 3.
        assert_eq!(look_up(&[1, 2, 7, 3, 1, 2, 8, 9, 3, 1, 2], 2), [8, 9]);
        // Of three tokens there is no second place; `1 2` was last followed by 8.
        assert_eq!(look_up(&[1, 2, 7, 3, 1, 2, 8, 9, 4, 1, 2], 2), [8, 9]);
        // Nor of two.
        assert_eq!(look_up(&[5, 6, 7, 6, 8, 0, 6], 3), [8, 0, 6]);
    }

    #[test]
    fn a_copy_that_catches_up_with_the_end_goes_on_with_itself() {
        assert_eq!(look_up(&[9, 1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(look_up(&[4, 4], 3), [4, 4, 4]);
    }

    #[test]
    fn a_new_token_is_followed_by_nothing() {
        assert!(look_up(&[1, 2, 3], 4).is_empty());
        assert!(look_up(&[1], 4).is_empty());
    }

    #[test]
    fn ranks_and_logits_are_those_of_the_draft() {
        let mut lookup = PromptLookup::new(4);
        lookup.start(8, 1);
        lookup.text.extend([2, 3, 1]);
        assert_eq!(lookup.ranks(&[2, 3, 0, 1]), [Some(0), Some(0), None]);
        let best = |row: &Vec<f32>| row.iter().position(|logit| logit.is_finite());
        let rows = lookup.forced(&[2, 0]);
        let rows: Vec<_> = rows.iter().map(best).collect();
        assert_eq!(rows, [Some(2), Some(3), None]);
    }
}
