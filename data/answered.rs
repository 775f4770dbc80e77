//! What a target wrote, as a message of the conversation that goes on behind it.

use std::collections::HashSet;

use crate::conversation::{Message, THOUGHT};
use crate::error::Result;
use crate::tokenizer::{Special, Tokenizer};

/// The tokens of an answer as a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// With the text as its content, the marks of a reasoning included.
    pub message: Message,
    /// The texts of the special tokens that the answer holds beside those, each once: they are not in the message, as the chat template
    /// writes them itself.
    pub lost: Vec<String>,
}

/// What the target said, of all tokens that it wrote: without the last one if that is one of those at which it stops.
pub fn said<'a>(answer: &'a [u32], stop: &[u32]) -> &'a [u32] {
    match answer.split_last() {
        Some((last, said)) if stop.contains(last) => said,
        _ => answer,
    }
}

impl Answered {
    /// Of all tokens that the target wrote, as far as it [`said`] them.
    ///
    /// # Errors
    /// They cannot be decoded.
    pub fn of(answer: &[u32], stop: &[u32], tokenizer: &Tokenizer) -> Result<Self> {
        let said = said(answer, stop);
        let special = tokenizer.special_texts().iter();
        let special = special.filter(|text| !THOUGHT.contains(&text.as_str()));
        let special: HashSet<u32> = special
            .filter_map(|text| tokenizer.token_id(text))
            .collect();
        let (mut kept, mut lost) = (Vec::with_capacity(said.len()), Vec::new());
        for &token in said {
            if !special.contains(&token) {
                kept.push(token);
            } else if let Some(text) = tokenizer.token(token).filter(|text| !lost.contains(text)) {
                lost.push(text);
            }
        }
        let content = tokenizer.decode(&kept, Special::Keep)?;
        Ok(Self {
            message: Message::new("assistant", content),
            lost,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::small;

    #[test]
    fn an_answer_is_a_message_without_its_end_and_says_which_special_tokens_it_lacks() {
        let tokenizer = small();
        let end = tokenizer.token_id("<|im_end|>").unwrap();
        let of = |text: &str| {
            let answer = tokenizer.encode(text).unwrap().ids;
            Answered::of(&answer, &[end], &tokenizer).unwrap()
        };
        let thought = "<think>\nthe cat\n</think>\n\nran";
        for (text, content, lost) in [
            ("the cat<|im_end|>", "the cat", vec![]),
            // One that was cut off.
            ("the cat", "the cat", vec![]),
            (thought, thought, vec![]),
            (
                "a<|im_start|>b<|im_end|><|im_start|>c<|im_end|>",
                "abc",
                vec!["<|im_start|>", "<|im_end|>"],
            ),
            ("", "", vec![]),
        ] {
            let found = of(text);
            assert_eq!(found.message, Message::new("assistant", content));
            assert_eq!(found.lost, lost, "{text}");
        }
    }
}
