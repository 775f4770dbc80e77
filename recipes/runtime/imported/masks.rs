//! Which tokens of texts without a loss mask are trained on.

use anyhow::{Result, bail};
use spectrain_data::Message;
use spectrain_data::foreign::ForeignText;
use spectrain_data::template::{ChatTemplate, GenerationPrompt};
use spectrain_data::tokenizer::Tokenizer;

/// What texts without a loss mask are trained on.
#[derive(Debug, Clone)]
pub enum Unmasked {
    /// Every token.
    All,
    /// Each turn from the generation prompt to the token that ends it.
    Assistant {
        /// Tokens of the generation prompt.
        opening: Vec<u32>,
        /// Tokens that end a turn.
        closing: Vec<u32>,
    },
}

impl Unmasked {
    /// The assistant's turns, as a chat template opens them and `closing` ends them.
    ///
    /// # Errors
    /// The template does not render a question, or shows no generation prompt.
    pub fn assistant(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        closing: Vec<u32>,
    ) -> Result<Self> {
        let question = [Message::new("user", "?")];
        let render = |generation| template.render(&question[..], generation);
        let without = render(GenerationPrompt::Without)?;
        let with = render(GenerationPrompt::With)?;
        let opening = with.strip_prefix(without.as_str()).unwrap_or_default();
        let opening = tokenizer.encode(opening)?.ids;
        if opening.is_empty() || closing.is_empty() {
            bail!(
                "`--mask assistant`: expected a chat template with a generation prompt, and tokens that end a turn, found none"
            );
        }
        Ok(Self::Assistant { opening, closing })
    }

    fn mask(&self, tokens: &[u32]) -> Vec<u8> {
        match self {
            Self::All => vec![1; tokens.len()],
            Self::Assistant { opening, closing } => turns(tokens, opening, closing),
        }
    }
}

/// 1 behind each `opening` up to the next token of `closing`, which is in it.
fn turns(tokens: &[u32], opening: &[u32], closing: &[u32]) -> Vec<u8> {
    let mut mask = vec![0; tokens.len()];
    let mut at = 0;
    while at + opening.len() <= tokens.len() {
        if !tokens[at..].starts_with(opening) {
            at += 1;
            continue;
        }
        at += opening.len();
        while let Some(token) = tokens.get(at) {
            mask[at] = 1;
            at += 1;
            if closing.contains(token) {
                break;
            }
        }
    }
    mask
}

/// The loss mask of a text: its own, or what is said of texts without one.
///
/// # Errors
/// It has none, and nothing is said.
pub fn loss_mask(
    text: &ForeignText,
    sample: usize,
    unmasked: Option<&Unmasked>,
) -> Result<Vec<u8>> {
    match (&text.loss_mask, unmasked) {
        (Some(mask), _) => Ok(mask.clone()),
        (None, Some(unmasked)) => Ok(unmasked.mask(&text.tokens)),
        (None, None) => bail!(
            "sample {sample}: expected a loss mask, found none: `--rows DIR` names the folder of rows that have them, `--mask assistant` finds \
             the assistant's turns by the chat template, and `--mask all` trains on every token"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_trained_on_with_the_token_that_ends_it() {
        let tokens = [7, 1, 2, 5, 6, 9, 7, 1, 2, 8];
        assert_eq!(
            turns(&tokens, &[1, 2], &[9]),
            [0, 0, 0, 1, 1, 1, 0, 0, 0, 1]
        );
        assert_eq!(turns(&tokens, &[3], &[9]), [0; 10]);
        assert_eq!(turns(&[1, 2], &[1, 2], &[9]), [0, 0]);
    }
}
