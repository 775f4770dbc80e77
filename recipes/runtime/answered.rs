//! Answers as messages of conversations that go on.

use std::sync::Once;

use spectrain_data::answered::Answered;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_data::{Message, Result};

/// The message of an answer of the target, which may end with one of the tokens at which it stops. What the message lacks of it is said
/// once.
///
/// # Errors
/// The answer cannot be decoded.
pub fn message(answer: &[u32], stop: &[u32], tokenizer: &Tokenizer) -> Result<Message> {
    static TOLD: Once = Once::new();
    let Answered { message, lost } = Answered::of(answer, stop, tokenizer)?;
    if !lost.is_empty() {
        TOLD.call_once(|| tracing::warn!("{}", told_of(&lost)));
    }
    Ok(message)
}

/// What is said of the special tokens that messages lack.
fn told_of(lost: &[String]) -> String {
    let lost: Vec<String> = lost.iter().map(|token| format!("`{token}`")).collect();
    format!(
        "the target writes the special tokens {} in its answers: messages have what stands between them as one text, so that these \
         answers are other ones in the prompts of later turns",
        lost.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_that_messages_lack_are_named() {
        let lost = ["<|channel|>", "<|message|>"].map(str::to_owned);
        let told = told_of(&lost);
        let named =
            "the target writes the special tokens `<|channel|>`, `<|message|>` in its answers: ";
        assert!(told.starts_with(named), "{told}");
    }
}
