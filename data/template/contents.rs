//! In which form a template takes what messages say: as texts, or as lists of parts.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::conversation::Message;

/// Texts of the parts that a template is tried with.
const PROBES: [&str; 2] = ["kprobek", "zprobez"];
/// What such a part says beside its text: a template that shows it prints the list as a whole.
const BESIDE: &str = "qprobeq";
/// The role that every conversation has.
const USER: &str = "user";
/// Roles whose messages may have lists of parts beside those of users: templates often write them otherwise.
const FURTHER_ROLES: [&str; 3] = ["system", "developer", "assistant"];

/// The form in which a template takes contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contents {
    /// Texts. Parts have a line each.
    Texts,
    /// Lists of parts from messages of these roles that have them, texts from others.
    Parts(Vec<&'static str>),
    /// Lists of parts alone: of a text it shows nothing, or it fails on it.
    PartsAlone,
}

impl Contents {
    /// The form that a template takes by what it shows of one message of a role: it takes parts if it shows the texts of two, and
    /// nothing of what stands beside these texts. Where it takes none from users, it gets texts from all, and otherwise from the roles
    /// from which it takes none.
    ///
    /// vLLM looks in the source for a loop over what a message says (`_detect_content_format`), and hands parts to all roles but tools
    /// then. It finds the same of what users say for the 72 templates that TRL 1.16 has, those of Qwen, Llama, Gemma, GLM, LFM2,
    /// DeepSeek, gpt-oss and Nemotron among them, but no loop inside of a macro, as Kimi-K2 has it.
    pub(super) fn of(source: &str, shown: impl Fn(&Value) -> Option<String>) -> Self {
        // Whoever takes parts looks up this key of each.
        if !source.contains("text") {
            return Self::Texts;
        }
        let [first, second] = PROBES;
        let takes_parts = |role: &str| {
            let content = json!([
                {"type": "text", "text": first, "beside": BESIDE},
                {"type": "text", "text": second},
            ]);
            let text = shown(&with_message(role, content));
            text.is_some_and(|text| {
                text.contains(first) && text.contains(second) && !text.contains(BESIDE)
            })
        };
        if !takes_parts(USER) {
            return Self::Texts;
        }
        match shown(&with_message(USER, first.into())) {
            Some(text) if text.contains(first) => {
                let further = FURTHER_ROLES.into_iter().filter(|role| takes_parts(role));
                Self::Parts(std::iter::once(USER).chain(further).collect())
            }
            _ => Self::PartsAlone,
        }
    }

    /// The messages with their contents in this form.
    pub(super) fn formed<'m>(&self, messages: &'m [Message]) -> Cow<'m, [Message]> {
        if messages.iter().all(|message| self.has_formed(message)) {
            return Cow::Borrowed(messages);
        }
        let mut messages = messages.to_vec();
        for message in &mut messages {
            if !self.has_formed(message) {
                message.parts = match self {
                    Self::Texts | Self::Parts(_) => Vec::new(),
                    Self::PartsAlone => vec![message.content.len()],
                };
            }
        }
        Cow::Owned(messages)
    }

    fn has_formed(&self, message: &Message) -> bool {
        match self {
            Self::Texts => message.parts.is_empty(),
            Self::Parts(roles) => {
                message.parts.is_empty() || roles.contains(&message.role.as_str())
            }
            Self::PartsAlone => message.texts().is_some(),
        }
    }
}

/// A short conversation in which one of this role says this, where templates expect it.
fn with_message(role: &str, content: Value) -> Value {
    let message = json!({"role": role, "content": content});
    let user = || json!({"role": USER, "content": "u"});
    match role {
        "system" | "developer" => json!([message, user()]),
        "assistant" => json!([user(), message]),
        _ => json!([message]),
    }
}
