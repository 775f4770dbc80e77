//! Made-up conversations, enough to train and judge a small target and its drafter without any download.
//!
//! Part of every answer follows from its prompt (sums, sorting, dates) and part is chance (names, objects, turns of a
//! story), so that a model can learn it and a drafter cannot know all of it.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::conversation::{Conversation, Message};

mod dice;
mod lists;
mod numbers;
mod prose;
mod records;
// Lists of words, many to a line.
#[rustfmt::skip]
mod words;

use dice::{Dice, Exchange};

/// Writes one exchange of a kind.
type Kind = fn(&mut Dice) -> Exchange;

const KINDS: &[Kind] = &[
    numbers::product,
    numbers::shopping,
    numbers::mean,
    numbers::duration,
    numbers::common_divisor,
    numbers::sequence,
    lists::sort,
    lists::reverse,
    lists::count,
    lists::weekday,
    records::json,
    records::table,
    records::program,
    records::trace,
    prose::story,
    prose::letter,
    prose::place,
    prose::instructions,
    prose::comparison,
    prose::dialogue,
];

const SYSTEM: &[&str] = &[
    "You are a helpful assistant.",
    "You are a patient teacher. Explain each step.",
    "Answer in plain words and keep it short.",
    "You are a careful assistant who shows the work before the result.",
    "You are a writer of small, friendly texts.",
];

/// Tries for a prompt not seen before; reached only when far more are wanted than there are.
const TRIES: usize = 100;

/// Conversations by seed, each with another first prompt; a longer run begins with the shorter one.
pub fn conversations(seed: u64, count: usize) -> Vec<Conversation> {
    Exchanges::new(seed).take(count).collect()
}

/// Conversations to train on and others to evaluate with; no prompt of either is in the other.
pub struct Split {
    /// To train on.
    pub train: Vec<Conversation>,
    /// To evaluate with.
    pub eval: Vec<Conversation>,
}

/// Draws evaluation conversations first, then training conversations that share no user prompt with them.
pub fn split(seed: u64, train: usize, eval: usize) -> Split {
    let mut exchanges = Exchanges::new(seed);
    let eval: Vec<Conversation> = exchanges.by_ref().take(eval).collect();
    let held_out: HashSet<&str> = eval.iter().flat_map(prompts).collect();
    let train = exchanges
        .filter(|conversation| prompts(conversation).all(|prompt| !held_out.contains(prompt)))
        .take(train)
        .collect();
    Split { train, eval }
}

/// What the user says in a conversation.
fn prompts(conversation: &Conversation) -> impl Iterator<Item = &str> {
    let messages = conversation.messages.iter();
    messages
        .filter(|message| message.role == "user")
        .map(|message| message.content.as_str())
}

/// Conversations without end.
struct Exchanges {
    dice: Dice,
    seen: HashSet<String>,
}

impl Exchanges {
    fn new(seed: u64) -> Self {
        Self {
            dice: Dice(StdRng::seed_from_u64(seed)),
            seen: HashSet::new(),
        }
    }

    fn exchange(&mut self) -> Exchange {
        let kind = KINDS[self.dice.0.random_range(0..KINDS.len())];
        let mut exchange = kind(&mut self.dice);
        for _ in 0..TRIES {
            if self.seen.insert(exchange.prompt.clone()) {
                break;
            }
            exchange = kind(&mut self.dice);
        }
        exchange
    }
}

impl Iterator for Exchanges {
    type Item = Conversation;

    fn next(&mut self) -> Option<Conversation> {
        let exchange = self.exchange();
        let mut messages = Vec::new();
        if self.dice.one_in(4) {
            messages.push(Message::new("system", self.dice.pick(SYSTEM)));
        }
        messages.push(Message::new("user", exchange.prompt));
        messages.push(Message::new("assistant", exchange.answer));
        if let Some((prompt, answer)) = exchange.follow_up {
            messages.push(Message::new("user", prompt));
            messages.push(Message::new("assistant", answer));
        }
        Some(Conversation::new(messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(conversation: &Conversation) -> impl Iterator<Item = &str> {
        let messages = conversation.messages.iter();
        messages
            .filter(|message| message.role == "assistant")
            .map(|message| message.content.as_str())
    }

    #[test]
    fn equal_seeds_give_equal_conversations_and_others_do_not() {
        assert_eq!(conversations(3, 50), conversations(3, 50));
        assert_eq!(conversations(3, 50)[..20], conversations(3, 20)[..]);
        assert_ne!(conversations(3, 50), conversations(4, 50));
    }

    #[test]
    fn no_user_prompt_is_in_both_parts_of_a_split() {
        let Split { train, eval } = split(1, 2000, 200);
        assert_eq!((train.len(), eval.len()), (2000, 200));
        let held_out: HashSet<&str> = eval.iter().flat_map(prompts).collect();
        assert!(
            train
                .iter()
                .flat_map(prompts)
                .all(|prompt| !held_out.contains(prompt))
        );
    }

    #[test]
    fn first_prompts_do_not_repeat() {
        let conversations = conversations(5, 5000);
        let first: HashSet<&str> = conversations
            .iter()
            .filter_map(|one| prompts(one).next())
            .collect();
        assert_eq!(first.len(), 5000);
    }

    #[test]
    fn every_kind_answers_in_a_length_to_learn_from() {
        for (number, kind) in KINDS.iter().enumerate() {
            let mut dice = Dice(StdRng::seed_from_u64(number as u64));
            for _ in 0..200 {
                let exchange = kind(&mut dice);
                let words = exchange.answer.split_whitespace().count();
                assert!(
                    (15..=130).contains(&words),
                    "kind {number}, {words} words: {}",
                    exchange.answer
                );
                assert!(!exchange.prompt.is_empty() && !exchange.answer.contains("  \n"));
            }
        }
    }

    #[test]
    fn some_conversations_have_a_system_message_and_some_two_turns() {
        let conversations = conversations(1, 400);
        let system = conversations
            .iter()
            .filter(|one| one.messages[0].role == "system")
            .count();
        let two_turns = conversations
            .iter()
            .filter(|one| answers(one).count() == 2)
            .count();
        assert!((60..140).contains(&system), "{system}");
        assert!((40..200).contains(&two_turns), "{two_turns}");
    }

    #[test]
    fn a_conversation_has_about_a_hundred_words_on_average() {
        let conversations = conversations(2, 1000);
        let messages = conversations.iter().flat_map(|one| &one.messages);
        let words: usize = messages
            .map(|message| message.content.split_whitespace().count())
            .sum();
        assert!((60_000..130_000).contains(&words), "{words}");
    }
}
