//! Greedy outputs of a server against those of another, or against its own of another run.
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::figures::ServedTalk;
use crate::greedy_test::Difference;

/// Differences that a table names.
const SHOWN: usize = 3;

/// What outputs are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedWith {
    /// Those of the baseline server with as many requests under way.
    Baseline,
    /// Those of the same server with as many requests under way as in its first run. An engine's arithmetic may depend on
    /// what else is in a batch, so this is how many outputs differ without any speculation.
    FirstRun,
}

/// How many outputs differ, token by token up to the first difference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedOutputs {
    /// What they were compared with.
    pub with: ComparedWith,
    /// Outputs compared.
    pub outputs: u64,
    /// Of these, those that differ.
    pub differ: u64,
    /// Tokens compared.
    pub tokens: u64,
    /// Where each of them differs first, `plain` being the token compared with. The margin of the two tokens is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
}

impl ServedOutputs {
    /// Compares the answers to the same prompts; the datasets of their conversations and the numbers there are `places`. `None`
    /// where a server gives no token ids.
    pub fn new(
        with: ComparedWith,
        places: &[(&str, usize)],
        [ours, theirs]: [&[ServedTalk]; 2],
    ) -> Option<Self> {
        let mut found = Self {
            with,
            outputs: 0,
            differ: 0,
            tokens: 0,
            differences: Vec::new(),
        };
        for (place, (ours, theirs)) in places.iter().zip(ours.iter().zip(theirs)) {
            for (turn, answers) in ours.answers.iter().zip(&theirs.answers).enumerate() {
                found.compare(*place, turn, (ids(answers.0)?, ids(answers.1)?));
            }
        }
        Some(found)
    }

    fn compare(
        &mut self,
        (dataset, prompt): (&str, usize),
        turn: usize,
        (ids, plain): (&[u32], &[u32]),
    ) {
        let equal = ids.iter().zip(plain).take_while(|(a, b)| a == b).count();
        self.outputs += 1;
        self.tokens += equal as u64;
        if ids.len() == equal && plain.len() == equal {
            return;
        }
        self.tokens += 1;
        self.differ += 1;
        self.differences.push(Difference {
            dataset: dataset.into(),
            prompt,
            turn,
            token: equal,
            plain: plain.get(equal).copied(),
            speculative: ids.get(equal).copied(),
            margin: None,
            tolerance: 0.0,
        });
    }

    /// A sentence, and a line for each of the first differences.
    pub(super) fn lines(&self, what: &str) -> String {
        let with = match self.with {
            ComparedWith::Baseline => "from those of the baseline server",
            ComparedWith::FirstRun => "from those of its own first run",
        };
        let mut text = format!(
            "{what}: {} of {} outputs differ {with} ({} tokens compared).\n",
            self.differ, self.outputs, self.tokens
        );
        for difference in self.differences.iter().take(SHOWN) {
            _ = writeln!(text, "  - {difference}");
        }
        text
    }
}

/// The token ids of an answer, where the server gives them. An answer without tokens has no part in which they could stand.
fn ids(answer: &Answer) -> Option<&[u32]> {
    let none = (answer.tokens == 0).then_some(&[][..]);
    answer.ids.as_deref().or(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ids: &[u32]) -> Answer {
        Answer {
            tokens: ids.len() as u64,
            ids: Some(ids.to_vec()),
            ..Answer::default()
        }
    }

    fn talk(answers: &[Answer]) -> ServedTalk {
        ServedTalk {
            answers: answers.to_vec(),
            counted: None,
        }
    }

    const PLACES: [(&str, usize); 3] = [("a", 0), ("a", 1), ("b", 0)];

    fn compared(answers: [&[u32]; 3], others: [&[u32]; 3]) -> ServedOutputs {
        let [answers, others] = [answers, others].map(|all| all.map(|ids| talk(&[answer(ids)])));
        ServedOutputs::new(ComparedWith::Baseline, &PLACES, [&answers, &others]).unwrap()
    }

    #[test]
    fn later_turns_are_compared_too() {
        let [ours, theirs] = [[1, 2], [1, 3]].map(|of| [talk(&of.map(|id| answer(&[id])))]);
        let found = ServedOutputs::new(ComparedWith::Baseline, &PLACES, [&ours, &theirs]).unwrap();
        assert_eq!((found.outputs, found.differ), (2, 1));
        assert_eq!(found.differences[0].turn, 1);
    }

    #[test]
    fn the_first_place_where_outputs_differ_is_told() {
        let found = compared([&[1, 2], &[1, 2, 3], &[4]], [&[1, 2], &[1, 5, 3], &[4, 6]]);
        assert_eq!((found.outputs, found.differ), (3, 2));
        assert_eq!(found.tokens, 2 + 2 + 2);
        let expected = "\
T=0: 2 of 3 outputs differ from those of the baseline server (6 tokens compared).
  - a, prompt 1, token 1: 2 in place of 5
  - b, prompt 0, token 1: the end in place of 6
";
        assert_eq!(found.lines("T=0"), expected);
    }

    #[test]
    fn outputs_that_are_equal_or_empty_do_not_differ() {
        let found = compared([&[1], &[], &[2, 3]], [&[1], &[], &[2, 3]]);
        assert_eq!((found.outputs, found.differ, found.tokens), (3, 0, 3));
    }

    #[test]
    fn without_ids_nothing_is_compared() {
        let silent = Answer {
            tokens: 2,
            ..Answer::default()
        };
        let answers = [talk(&[answer(&[1, 2])])];
        let compared = |other| {
            let others = [talk(&[other])];
            ServedOutputs::new(ComparedWith::Baseline, &PLACES[..1], [&answers, &others])
        };
        assert_eq!(compared(silent), None);
        let found = compared(Answer::default());
        assert_eq!(found.unwrap().differ, 1);
    }
}
