//! Batches whose replies the drafter writes itself: it learns on the prefixes it will meet when it drafts.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spectrain_data::packing::RowLayout;
use spectrain_data::seed::{mix, uniform};
use spectrain_models::bounds;
use spectrain_models::generate::{Continuation, continue_texts};
use spectrain_models::{Sampling, Transformer};

use crate::batch::Rows;
use crate::error::{Error, Result};

/// Sets the draws of whether a batch is rewritten apart from other uses of its seed.
const CHOICE: u64 = 0x0b;

/// The table `[objective.on_policy]`. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnPolicyConfig {
    /// Share of the batches whose replies the drafter writes.
    pub fraction: f64,
    /// Temperature at which the drafter writes.
    pub temperature: f64,
    /// The most tokens in a reply; it is never longer than the reply that it replaces.
    pub max_new_tokens: usize,
}

impl Default for OnPolicyConfig {
    fn default() -> Self {
        Self {
            fraction: 0.0,
            temperature: 1.0,
            max_new_tokens: 128,
        }
    }
}

impl OnPolicyConfig {
    pub(crate) fn check(&self) -> Result<()> {
        let setting = |key, expected, got| Err(Error::objective(key, expected, got));
        if !(0.0..=1.0).contains(&self.fraction) {
            let got = self.fraction.to_string();
            return setting("on_policy.fraction", "a number from 0 to 1", got);
        }
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            let got = self.temperature.to_string();
            return setting("on_policy.temperature", "0 or more", got);
        }
        let (key, tokens) = ("on_policy.max_new_tokens", self.max_new_tokens);
        Error::check_objective([bounds::up_to(key, tokens, bounds::REPLY)])
    }
}

/// Whether the batch of this seed is among the `fraction` that the drafter writes.
pub(crate) fn is_chosen(fraction: f64, seed: u64) -> bool {
    let unit = uniform(mix(seed, CHOICE));
    unit < fraction
}

/// One of the conversations of `rows`.
struct Document {
    row: usize,
    tokens: Vec<u32>,
    loss_mask: Vec<bool>,
}

/// A reply to be written anew.
#[derive(Debug, PartialEq)]
struct Reply {
    /// The number of its conversation.
    document: usize,
    /// Its first token there.
    start: usize,
    /// The most tokens that it may have.
    limit: usize,
}

/// `rows` with one reply of each conversation, drawn from `seed`, written by `model` after the turns before it. What
/// comes after that reply is left out, and so is the rest of its row. A conversation without a reply that has a prompt stays;
/// none where all of them do.
pub(crate) fn rewrite(
    model: &Transformer,
    rows: &Rows,
    config: &OnPolicyConfig,
    stop: &[u32],
    seed: u64,
) -> Option<Rows> {
    let mut documents = documents(rows);
    let chosen = chosen(&documents, config.max_new_tokens, seed);
    if chosen.is_empty() {
        return None;
    }
    let prompt = |reply: &Reply| documents[reply.document].tokens[..reply.start].to_vec();
    let prompts: Vec<Vec<u32>> = chosen.iter().map(prompt).collect();
    let limits: Vec<usize> = chosen.iter().map(|reply| reply.limit).collect();
    let written = continue_texts(
        model,
        &prompts,
        &Continuation {
            sampling: Sampling::at(config.temperature),
            limits: &limits,
            stop,
            seed,
            // The step that trains on the batch has as many in memory, with more of each.
            positions: rows.len(),
        },
    );
    for ((reply, mut tokens), written) in chosen.iter().zip(prompts).zip(written) {
        let document = &mut documents[reply.document];
        document.loss_mask = vec![false; tokens.len()];
        document
            .loss_mask
            .resize(tokens.len() + written.len(), true);
        tokens.extend(written);
        document.tokens = tokens;
    }
    Some(packed(rows, documents))
}

/// A reply of each document that has one with a prompt, drawn from `seed`, to be written with at most `most` tokens.
fn chosen(documents: &[Document], most: usize, seed: u64) -> Vec<Reply> {
    let of_document = |(index, document): (usize, &Document)| {
        let starts = reply_starts(&document.loss_mask);
        let drawn = mix(seed, index as u64).checked_rem(starts.len() as u64)?;
        let start = starts[drawn as usize];
        let replaced = document.loss_mask[start..].iter();
        let replaced = replaced.take_while(|&&trained| trained).count();
        Some(Reply {
            document: index,
            start,
            limit: most.min(replaced),
        })
    };
    documents
        .iter()
        .enumerate()
        .filter_map(of_document)
        .collect()
}

fn documents(rows: &Rows) -> Vec<Document> {
    let length = rows.layout.row_length;
    let mut documents: Vec<Document> = Vec::new();
    let mut before = (usize::MAX, 0);
    for at in 0..rows.len() {
        let place = (at / length, rows.layout.documents[at]);
        if place.1 == 0 {
            continue;
        }
        if place != before {
            documents.push(Document {
                row: place.0,
                tokens: Vec::new(),
                loss_mask: Vec::new(),
            });
            before = place;
        }
        if let Some(document) = documents.last_mut() {
            document.tokens.push(rows.tokens[at]);
            document.loss_mask.push(rows.loss_mask[at]);
        }
    }
    documents
}

/// Where replies start that have a prompt.
fn reply_starts(loss_mask: &[bool]) -> Vec<usize> {
    (1..loss_mask.len())
        .filter(|&at| loss_mask[at] && !loss_mask[at - 1])
        .collect()
}

/// Documents, none longer than before, in the rows they were in.
fn packed(rows: &Rows, documents: Vec<Document>) -> Rows {
    let (count, length) = (rows.layout.rows, rows.layout.row_length);
    let mut layout = RowLayout {
        rows: count,
        row_length: length,
        documents: vec![0; count * length],
        positions: vec![0; count * length],
    };
    let (mut tokens, mut loss_mask) = (vec![0; count * length], vec![false; count * length]);
    let (mut filled, mut numbers) = (vec![0; count], vec![0; count]);
    for document in documents {
        let row = document.row;
        numbers[row] += 1;
        let start = row * length + filled[row];
        for (index, (token, counts)) in document.tokens.iter().zip(&document.loss_mask).enumerate()
        {
            let at = start + index;
            (tokens[at], loss_mask[at]) = (*token, *counts);
            (layout.documents[at], layout.positions[at]) = (numbers[row], index as u32);
        }
        filled[row] += document.tokens.len();
    }
    Rows {
        packed: rows.packed.clone(),
        layout,
        tokens,
        loss_mask,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_data::packing::PackedBatch;

    fn rows() -> Rows {
        // Two conversations and padding in the first row, one in the second.
        Rows {
            packed: PackedBatch {
                rows: vec![vec![0, 1], vec![2]],
            },
            layout: RowLayout {
                rows: 2,
                row_length: 6,
                documents: vec![1, 1, 1, 2, 2, 0, 1, 1, 1, 1, 1, 1],
                positions: vec![0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 4, 5],
            },
            tokens: vec![5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6],
            loss_mask: [0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1, 0]
                .map(|bit| bit == 1)
                .to_vec(),
        }
    }

    #[test]
    fn unpacking_and_packing_again_changes_nothing() {
        let rows = rows();
        let again = packed(&rows, documents(&rows));
        assert_eq!(again.layout, rows.layout);
        assert_eq!(
            (again.tokens, again.loss_mask),
            (rows.tokens, rows.loss_mask)
        );
    }

    #[test]
    fn shorter_documents_move_together_and_leave_padding() {
        let rows = rows();
        let mut documents = documents(&rows);
        documents[0].tokens.truncate(1);
        documents[0].loss_mask.truncate(1);
        let shorter = packed(&rows, documents);
        assert_eq!(shorter.tokens[..6], [5, 8, 9, 0, 0, 0]);
        assert_eq!(shorter.layout.documents[..6], [1, 2, 2, 0, 0, 0]);
        assert_eq!(shorter.layout.positions[..6], [0, 0, 1, 0, 0, 0]);
        assert_eq!(shorter.tokens[6..], rows.tokens[6..]);
    }

    #[test]
    fn every_reply_with_a_prompt_can_be_chosen() {
        assert_eq!(reply_starts(&rows().loss_mask[6..]), [1, 3]);
        assert_eq!(reply_starts(&[true, true, false]), [0usize; 0]);
    }

    #[test]
    fn a_reply_is_written_at_most_as_long_as_the_one_that_it_replaces() {
        let documents = documents(&rows());
        let found: Vec<Vec<Reply>> = (0..20).map(|seed| chosen(&documents, 9, seed)).collect();
        let reply = |document, start, limit| Reply {
            document,
            start,
            limit,
        };
        // The second conversation has none.
        let first = reply(0, 1, 2);
        for of_last in [reply(2, 1, 1), reply(2, 3, 2)] {
            assert!(found.iter().any(|found| found[1] == of_last), "{of_last:?}");
        }
        assert!(
            found
                .iter()
                .all(|found| found.len() == 2 && found[0] == first)
        );
        assert!(
            chosen(&documents, 1, 0)
                .iter()
                .all(|reply| reply.limit == 1)
        );
    }

    #[test]
    fn the_share_of_chosen_batches_is_the_fraction() {
        let chosen = |fraction| {
            (0..10_000)
                .filter(|&seed| is_chosen(fraction, mix(7, seed)))
                .count()
        };
        assert_eq!((chosen(0.0), chosen(1.0)), (0, 10_000));
        assert!((4_800..5_200).contains(&chosen(0.5)), "{}", chosen(0.5));
    }
}
