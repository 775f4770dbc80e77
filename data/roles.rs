//! Which roles the messages of a dataset have, and what to say where none of them is the assistant's.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use spectrain_checkpoints::near::nearest;
use spectrain_checkpoints::printable;

use crate::conversation::{Content, Message};
use crate::words::counted;

/// The role of answers.
const ASSISTANT: &str = "assistant";
/// Roles of messages that are no answers, as chat templates know them.
const ASKING: [&str; 8] = [
    "system",
    "developer",
    "user",
    "tool",
    "function",
    "ipython",
    "environment",
    "observation",
];
/// Speakers, as datasets in ShareGPT's form name them, and the roles that these are.
pub(crate) const SPEAKERS: [(&str, &str); 8] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("chatgpt", "assistant"),
    ("bing", "assistant"),
    ("bard", "assistant"),
    ("system", "system"),
];
/// What other programs call the assistant.
const ALIASES: [&str; 6] = ["bot", "chatbot", "model", "gpt", "ai", "agent"];
/// Roles that are told apart.
const MOST: usize = 16;
/// Characters of a role by which it is known.
const LONGEST: usize = 40;

/// How many conversations there are, and how many messages of each role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// Conversations.
    pub conversations: u64,
    /// Of these, the ones with a message of the assistant.
    pub answered: u64,
    /// Messages of each role, in the order in which the first of them came.
    pub messages: Vec<(String, u64)>,
}

impl Roles {
    /// Counts what a row holds; rows of tokens have no roles.
    pub fn add(&mut self, content: &Content) {
        let Content::Conversation(conversation) = content else {
            return;
        };
        let messages = &conversation.messages;
        self.conversations += 1;
        self.answered += u64::from(messages.iter().any(Message::is_assistant));
        for message in messages {
            self.count(&message.role);
        }
    }

    fn count(&mut self, role: &str) {
        let end = role.char_indices().nth(LONGEST).map(|(end, _)| end);
        let role = &role[..end.unwrap_or(role.len())];
        match self.messages.iter().position(|(known, _)| known == role) {
            Some(place) => self.messages[place].1 += 1,
            None if self.messages.len() < MOST => self.messages.push((role.to_owned(), 1)),
            None => {}
        }
    }

    /// That no message is the assistant's, and which roles there are; nothing where one is or there are no conversations.
    pub fn lack(&self) -> Option<String> {
        self.lacks()
            .then(|| format!("no message has the role `assistant`; {}", self.found()))
    }

    /// The same of prompts, where a message seems to be an answer: one that is asked is still to be answered.
    pub fn lack_in_prompts(&self) -> Option<String> {
        let lacks = self.lacks() && self.has_unknown();
        lacks.then(|| {
            let (prompts, found) = (counted(self.conversations, "prompt"), self.found());
            format!(
                "none of {prompts} has a message with the role `assistant`, so each is asked whole, including any \
                 answer in it; {found}"
            )
        })
    }

    /// Whether there is a role that is neither the assistant's nor known for messages that are no answers.
    pub(crate) fn has_unknown(&self) -> bool {
        self.messages.iter().any(|(role, _)| !is_known(role))
    }

    /// Whether a role is a slip of one that is known, or another word for it.
    pub(crate) fn has_slips(&self) -> bool {
        let mut unknown = self.messages.iter().filter(|(role, _)| !is_known(role));
        unknown.any(|(role, _)| meant(role).is_some())
    }

    /// The roles that are not known, with what each may be meant for; nothing where all are.
    pub(crate) fn unknown(&self) -> Option<String> {
        let unknown = self.messages.iter().filter(|(role, _)| !is_known(role));
        let each = unknown.map(|(role, count)| {
            let question = meant(role).map(|known| format!(" (did you mean `{known}`?)"));
            let question = question.unwrap_or_default();
            format!("`{}` {count}{question}", printable(role))
        });
        let each: Vec<String> = each.collect();
        (!each.is_empty()).then(|| format!("unknown roles: {}", each.join(", ")))
    }

    fn lacks(&self) -> bool {
        self.conversations > 0 && self.answered == 0
    }

    fn found(&self) -> String {
        let mut messages: Vec<&(String, u64)> = self.messages.iter().collect();
        messages.sort_by_key(|(_, count)| Reverse(*count));
        let each = messages
            .iter()
            .map(|(role, count)| format!("`{}` {count}", printable(role)));
        let each: Vec<String> = each.collect();
        let more = if each.len() == MOST { ", …" } else { "" };
        let is_meant = messages
            .iter()
            .any(|(role, _)| meant(role) == Some("assistant"));
        let question = if is_meant {
            "; did you mean `assistant`?"
        } else {
            ""
        };
        format!("roles found: {}{more}{question}", each.join(", "))
    }
}

/// Whether a role is the assistant's, or known for messages that are no answers.
fn is_known(role: &str) -> bool {
    role == ASSISTANT || ASKING.contains(&role)
}

/// The known role that another one is a slip of or another word for.
fn meant(role: &str) -> Option<&'static str> {
    let role = role.to_lowercase();
    let speaker = SPEAKERS.into_iter().find(|(speaker, _)| *speaker == role);
    match speaker {
        Some((_, known)) => Some(known),
        None if ALIASES.contains(&role.as_str()) => Some(ASSISTANT),
        None => nearest(&role, ASKING.into_iter().chain([ASSISTANT])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Conversation, Sample};

    fn roles(conversations: &[&[&str]]) -> Roles {
        let mut roles = Roles::default();
        for given in conversations {
            let messages = given.iter().map(|role| Message::new(*role, "text"));
            roles.add(&Content::Conversation(Conversation::new(
                messages.collect(),
            )));
        }
        roles
    }

    #[test]
    fn roles_are_named_where_none_is_the_assistants() {
        for (given, expected) in [
            (
                &["User", "Assistant"][..],
                "roles found: `User` 2, `Assistant` 2; did you mean `assistant`?",
            ),
            (
                &["system", "user", "bot", "user"],
                "roles found: `user` 4, `system` 2, `bot` 2; did you mean `assistant`?",
            ),
            (&["user", "x\ny"], r"roles found: `user` 2, `x\ny` 2"),
        ] {
            let found = roles(&[given, given]);
            assert_eq!(
                found.lack().unwrap(),
                format!("no message has the role `assistant`; {expected}")
            );
            assert!(found.has_unknown());
        }
        let some = roles(&[&["user", "bot"], &["user", "assistant"]]);
        assert_eq!((some.lack(), some.lack_in_prompts()), (None, None));
    }

    #[test]
    fn prompts_need_no_answer_but_what_seems_to_be_one_is_named() {
        let asked = roles(&[&["system", "user"], &["developer", "user", "tool"]]);
        assert!(asked.lack().is_some());
        assert_eq!(asked.lack_in_prompts(), None);
        let warning = roles(&[&["user", "bot"], &["user", "bot"]]).lack_in_prompts();
        let warning = warning.unwrap();
        assert!(
            warning.starts_with("none of 2 prompts has a message with the role `assistant`")
                && warning.ends_with("roles found: `user` 2, `bot` 2; did you mean `assistant`?"),
            "{warning}"
        );
    }

    #[test]
    fn rows_of_tokens_have_no_roles_and_many_or_long_roles_take_little() {
        let mut roles = Roles::default();
        roles.add(&Content::Tokens(Sample::default()));
        assert_eq!((roles.lack(), &roles), (None, &Roles::default()));
        let messages = (0..100).map(|number| Message::new(format!("{number}"), ""));
        let long = Message::new("é".repeat(1000), "");
        let messages = std::iter::once(long).chain(messages).collect();
        roles.add(&Content::Conversation(Conversation::new(messages)));
        assert_eq!(roles.messages.len(), MOST);
        assert_eq!(roles.messages[0].0.chars().count(), LONGEST);
        assert!(roles.lack().unwrap().ends_with("`14` 1, …"));
    }
}
