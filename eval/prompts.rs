//! What is decoded: prompts, conversations of several turns among them, and what was answered.
use std::fmt::Debug;
use std::sync::Arc;

use spectrain_checkpoints::hash::sha256_bytes;

use crate::error::{Error, Result};
use crate::speculate::Generation;

/// What is asked after the first answer of a conversation.
pub trait Later: Debug + Send + Sync {
    /// Turns of the user after the first one.
    fn count(&self) -> usize;

    /// What the user says after the first answer, as far as it tells conversations with the same beginning apart.
    fn identity(&self) -> String;

    /// The tokens of the conversation up to where the target answers the turn that follows `answers`: with its own answers so
    /// far, each without the token that ended it.
    ///
    /// # Errors
    /// The conversation cannot be made into tokens.
    fn ask(
        &self,
        answers: &[Vec<u32>],
    ) -> std::result::Result<Vec<u32>, Box<dyn std::error::Error + Send + Sync>>;
}

/// What the target continues.
#[derive(Debug, Clone, Default)]
pub struct Prompt {
    /// Tokens up to the first answer.
    pub tokens: Vec<u32>,
    /// What is asked after it, in a conversation of several turns.
    pub later: Option<Arc<dyn Later>>,
    /// What kind of task it is, where its dataset says so.
    pub category: Option<String>,
    /// Its language, where its dataset says so.
    pub language: Option<String>,
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            ..Self::default()
        }
    }
}

impl Prompt {
    /// Whether the target is asked the same as in another one.
    pub fn asks_as(&self, other: &Self) -> bool {
        let later = |of: &Self| of.later.as_ref().map(|later| later.identity());
        self.tokens == other.tokens && later(self) == later(other)
    }

    /// Turns of the user.
    pub fn turns(&self) -> usize {
        1 + self.later.as_ref().map_or(0, |later| later.count())
    }

    /// The tokens of the turn that follows these answers; none after the last turn, nor where a later turn than the first has
    /// more than `longest` tokens.
    ///
    /// # Errors
    /// The conversation cannot be made into tokens.
    pub fn next(&self, answers: &[Vec<u32>], longest: usize) -> Result<Option<Vec<u32>>> {
        let turn = answers.len();
        if turn == self.turns() {
            return Ok(None);
        }
        let tokens = self.ask(answers)?;
        Ok((turn == 0 || tokens.len() <= longest).then_some(tokens))
    }

    fn ask(&self, answers: &[Vec<u32>]) -> Result<Vec<u32>> {
        match &self.later {
            Some(later) if !answers.is_empty() => {
                later.ask(answers).map_err(|source| Error::Turn {
                    turn: 1 + answers.len(),
                    source,
                })
            }
            _ => Ok(self.tokens.clone()),
        }
    }
}

/// At most `count` of these, spread evenly.
pub fn evenly<T>(all: Vec<T>, count: usize) -> Vec<T> {
    let total = all.len();
    let count = count.min(total);
    let mut taken = (0..count).map(|i| i * total / count).peekable();
    let keep = |(index, one)| (taken.next_if_eq(&index).is_some()).then_some(one);
    all.into_iter().enumerate().filter_map(keep).collect()
}

/// Prompts of one dataset.
#[derive(Debug, Clone)]
pub struct PromptSet {
    /// The dataset.
    pub name: String,
    /// Its prompts.
    pub prompts: Vec<Prompt>,
}

impl PromptSet {
    /// A hash of what is asked: the tokens of every first turn, the number of turns, and what later turns say.
    pub(crate) fn sha256(&self) -> String {
        let asked = self.prompts.iter().map(|prompt| {
            let ids: Vec<String> = prompt.tokens.iter().map(u32::to_string).collect();
            let later = prompt.later.iter().filter(|later| later.count() > 0);
            // Hashed by itself, as it may have any character in it.
            let later =
                later.map(|later| format!(":{}", sha256_bytes(later.identity().as_bytes())));
            let later: String = later.collect();
            format!("{}:{}{later}\n", prompt.turns(), ids.join(" "))
        });
        sha256_bytes(asked.collect::<String>().as_bytes())
    }
}

/// An answer of the target.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// 0-based index of the prompt in its set.
    pub conversation: usize,
    /// 0-based turn of the conversation.
    pub turn: usize,
    /// What it continues: the tokens of the whole conversation so far.
    pub prompt: Vec<u32>,
    /// What was decoded.
    pub generation: Generation,
}

/// The answers of one conversation, of which there is at least one, among those of a set.
pub(crate) fn conversations(answers: &[Answer]) -> impl Iterator<Item = &[Answer]> {
    answers.chunk_by(|one, other| one.conversation == other.conversation)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the user says later.
    #[derive(Debug)]
    struct Says(Vec<&'static str>);

    impl Later for Says {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn identity(&self) -> String {
            format!("{:?}", self.0)
        }

        fn ask(
            &self,
            _: &[Vec<u32>],
        ) -> std::result::Result<Vec<u32>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(Vec::new())
        }
    }

    /// The hash of one conversation that begins with these tokens.
    fn hash(tokens: &[u32], says: &[&'static str]) -> String {
        let later: Arc<dyn Later> = Arc::new(Says(says.to_vec()));
        let prompt = Prompt {
            later: Some(later),
            ..tokens.to_vec().into()
        };
        PromptSet {
            name: "eval".into(),
            prompts: vec![prompt],
        }
        .sha256()
    }

    #[test]
    fn prompts_are_taken_evenly_and_never_twice() {
        let prompts: Vec<Vec<u32>> = (0..10).map(|i| vec![i]).collect();
        assert_eq!(evenly(prompts.clone(), 3), [[0], [3], [6]]);
        assert_eq!(evenly(prompts.clone(), 10), prompts);
        assert_eq!(evenly(prompts.clone(), 64), prompts);
        assert!(evenly(prompts, 0).is_empty());
    }

    #[test]
    fn conversations_that_go_on_otherwise_are_other_prompts() {
        assert_eq!(hash(&[1, 2], &["why?"]), hash(&[1, 2], &["why?"]));
        assert_ne!(hash(&[1, 2], &["why?"]), hash(&[1, 2], &["how?"]));
        assert_ne!(hash(&[1, 2], &["why?"]), hash(&[1, 3], &["why?"]));
        assert_ne!(hash(&[1, 2], &["why?"]), hash(&[1, 2], &["why?", "how?"]));
        // Of one turn it is what it always was, so that earlier reports can be compared.
        assert_eq!(hash(&[1, 2], &[]), sha256_bytes(b"1:1 2\n"));
    }
}
