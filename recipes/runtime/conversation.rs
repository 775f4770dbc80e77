//! Conversations that go on with the target's own answers.

use std::error::Error;
use std::sync::Arc;

use spectrain_checkpoints::Mismatch;
use spectrain_data::conversation::{Conversation, Message};
use spectrain_data::mask;
use spectrain_data::template::ChatTemplate;
use spectrain_data::tokenizer::{Special, Tokenizer};
use spectrain_eval::Later;

/// What renders conversations for one target.
#[derive(Debug)]
pub(super) struct Renderer {
    pub(super) tokenizer: Tokenizer,
    pub(super) template: ChatTemplate,
    /// Tokens that the target knows.
    pub(super) vocab: usize,
}

/// What the user says after the first answer.
#[derive(Debug)]
pub(super) struct LaterTurns {
    pub(super) renderer: Arc<Renderer>,
    /// The conversation up to the first answer.
    pub(super) opening: Conversation,
    /// What the user says after each answer.
    pub(super) turns: Vec<String>,
}

impl Later for LaterTurns {
    fn count(&self) -> usize {
        self.turns.len()
    }

    fn identity(&self) -> String {
        format!("{:?}", self.turns)
    }

    fn ask(&self, answers: &[Vec<u32>]) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let Renderer {
            tokenizer,
            template,
            vocab,
        } = &*self.renderer;
        let mut conversation = self.opening.clone();
        for (answer, turn) in answers.iter().zip(&self.turns) {
            let said = tokenizer.decode(answer, Special::Skip)?;
            conversation.messages.push(Message::new("assistant", said));
            conversation.messages.push(Message::new("user", turn));
        }
        let tokens = mask::prompt(&conversation, template, tokenizer)?;
        match tokens.iter().find(|&&token| token as usize >= *vocab) {
            Some(token) => Err(Mismatch::new(
                format!("tokens of the target's vocabulary of {vocab}"),
                format!("token {token}"),
            )
            .to_string()
            .into()),
            None => Ok(tokens),
        }
    }
}
