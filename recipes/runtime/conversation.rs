//! Conversations that go on with the target's own answers.

use std::error::Error;
use std::sync::Arc;

use serde_json::json;
use spectrain_checkpoints::Mismatch;
use spectrain_data::conversation::{Conversation, Message};
use spectrain_data::mask;
use spectrain_data::template::ChatTemplate;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_eval::Later;

use crate::runtime::answered;

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
        let variables = self.renderer.template.changed_by(&self.opening.variables);
        match variables.is_empty() {
            true => format!("{:?}", self.turns),
            // The first turn may be rendered alike nevertheless.
            false => format!("{:?}{}", self.turns, json!(variables)),
        }
    }

    fn ask(&self, answers: &[Vec<u32>]) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let Renderer {
            tokenizer,
            template,
            vocab,
        } = &*self.renderer;
        let mut conversation = self.opening.clone();
        for (answer, turn) in answers.iter().zip(&self.turns) {
            // The token that ended it is gone by now.
            let said = answered::message(answer, &[], tokenizer)?;
            conversation.messages.push(said);
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn conversations_with_other_variables_are_others_although_they_begin_alike() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat_tokenizer");
        let source = "{% for m in messages %}{{ m.content }};{% endfor %}\
                      {% if messages | length > 1 and quiet %}!{% endif %}";
        let renderer = Arc::new(Renderer {
            tokenizer: Tokenizer::from_folder(&folder).unwrap(),
            template: ChatTemplate::from_source(source, None, None).unwrap(),
            vocab: usize::MAX,
        });
        let later = |variables: serde_json::Value| {
            let opening = Conversation {
                variables: variables.as_object().unwrap().clone(),
                ..Conversation::new(vec![Message::new("user", "count")])
            };
            LaterTurns {
                renderer: renderer.clone(),
                opening,
                turns: vec!["on".into()],
            }
        };
        let (plain, quiet) = (later(json!({})), later(json!({"quiet": true})));
        let first = |of: &LaterTurns| {
            let Renderer {
                tokenizer,
                template,
                ..
            } = &*of.renderer;
            mask::prompt(&of.opening, template, tokenizer).unwrap()
        };
        assert_eq!(first(&plain), first(&quiet));
        let second = |of: &LaterTurns| of.ask(&[vec![5]]).unwrap();
        assert_ne!(second(&plain), second(&quiet));
        assert_ne!(plain.identity(), quiet.identity());
        // What the template does not read makes no difference, nor does the order.
        let unread = later(json!({"other": 1, "quiet": true}));
        assert_eq!(unread.identity(), quiet.identity());
        assert_eq!(later(json!({"other": 1})).identity(), plain.identity());
        // Hashes of reports are of it.
        assert_eq!(plain.identity(), "[\"on\"]");
    }
}
