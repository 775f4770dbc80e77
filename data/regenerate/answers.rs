//! What is asked of whatever answers, and what it may say.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conversation::{CUT_OFF, Exchange, Message, Sample, WEIGHT};
use crate::seed::mix;

/// A turn to be answered.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The conversation's row, from 1.
    pub row: u64,
    /// The turn's number in it, from 1.
    pub turn: usize,
    /// All that was said before, the new answers included, with the tools that the answer may call and the variables of the row.
    pub exchange: Exchange<'a>,
    /// Whether the answer is trained on: not where it takes the place of answers that are only context.
    pub trained: bool,
}

impl Request<'_> {
    /// A seed for this turn alone, the same at every try and in every run.
    pub fn seed(&self, seed: u64) -> u64 {
        mix(mix(seed, self.row), self.turn as u64)
    }
}

/// An answer to a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// What the assistant says.
    pub message: Message,
    /// Whether it was cut off at the longest answer.
    pub truncated: bool,
    /// Its tokens, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
}

impl Answer {
    /// Says of itself that it is only context.
    pub(super) fn leave_out(&mut self) {
        self.message.extra.insert(WEIGHT.into(), 0.into());
    }

    /// What stands of it in a conversation that is trained on: with [`CUT_OFF`] where it was cut off.
    pub(super) fn marked(&self) -> Message {
        let mut message = self.message.clone();
        if self.truncated {
            message.extra.insert(CUT_OFF.into(), true.into());
        }
        message
    }
}

/// What a target read and wrote, token by token. A tokenizer may make other tokens of the same text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// All that stands before the answer.
    pub prompt: Vec<u32>,
    /// The answer, with the token that ends it.
    pub answer: Vec<u32>,
}

impl Written {
    /// The whole text, of which the answer is trained on.
    pub fn sample(self) -> Sample {
        let mut loss_mask = vec![false; self.prompt.len()];
        let mut tokens = self.prompt;
        tokens.extend(self.answer);
        loss_mask.resize(tokens.len(), true);
        Sample { tokens, loss_mask }
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Another try may succeed.
    Passing {
        /// What happened.
        reason: String,
        /// How long the server asks to wait.
        wait: Option<Duration>,
    },
    /// Another try would fail as well.
    Lasting {
        /// What happened.
        reason: String,
    },
}

/// What answers a turn: a server, or a decoder of this program.
pub trait Answers: Sync {
    /// Answers a turn, once. Calls of tools are in the answer's [`TOOL_CALLS`](super::TOOL_CALLS), their arguments as an object
    /// where they can be read.
    ///
    /// # Errors
    /// It did not, and [`Failure`] says whether another try makes sense.
    fn answer(&self, request: &Request) -> Result<Answer, Failure>;
}

/// What happens to rows with tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolRows {
    /// They are answered: where an answer calls a tool as the data does, the tool's result in the data follows, and where it calls
    /// another one or with other arguments, the conversation ends.
    Answer,
    /// They are copied as they are.
    Copy,
}

/// What happens to a conversation when an answer is cut off at the longest answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Truncated {
    /// It continues with the answer as it is. The end of its turn, which the target did not write, is not trained on.
    #[default]
    Keep,
    /// It is left out.
    Drop,
    /// It counts as failed, and the next run asks for it again.
    Fail,
}
