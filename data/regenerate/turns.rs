//! Which turns of a conversation are answered anew, and the conversation with those answers.

use serde::{Deserialize, Serialize};

use super::answers::Answer;
use crate::conversation::{Conversation, Message, is_blank};

/// Why a row is copied as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unchanged {
    /// It has tools, calls or messages of tools, or another role than `system`, `developer`, `user` and `assistant`:
    /// what comes next depends on what the tool says.
    Tools,
    /// No user says anything in it.
    NoUser,
    /// It consists of tokens.
    Tokens,
}

/// A part of a conversation in its new form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The message with this index, as it is.
    Said(usize),
    /// An answer to all that stands before.
    Answered,
}

/// The parts of a conversation in order; none of one with tools, to which an answer may be a call.
pub(super) fn planned(conversation: &Conversation) -> Result<Vec<Step>, Unchanged> {
    if conversation.tools.is_empty() {
        steps(&conversation.messages)
    } else {
        Err(Unchanged::Tools)
    }
}

/// The parts of a conversation in order, with at least one answer.
///
/// What the assistant says after the first user's turn is replaced, several messages in a row by one answer; a last
/// turn of the user gets an answer. What the assistant says before any user is part of the question.
pub(super) fn steps(messages: &[Message]) -> Result<Vec<Step>, Unchanged> {
    if messages.iter().any(uses_tools) {
        return Err(Unchanged::Tools);
    }
    let mut steps = Vec::with_capacity(messages.len() + 1);
    let (mut asked, mut waiting) = (false, false);
    for (index, message) in messages.iter().enumerate() {
        let user = message.role == "user";
        asked |= user;
        waiting |= user;
        if !(message.is_assistant() && asked) {
            steps.push(Step::Said(index));
        } else if steps.last() != Some(&Step::Answered) {
            steps.push(Step::Answered);
            waiting = false;
        }
    }
    if waiting {
        steps.push(Step::Answered);
    }
    if asked {
        Ok(steps)
    } else {
        Err(Unchanged::NoUser)
    }
}

fn uses_tools(message: &Message) -> bool {
    let known = ["system", "developer", "user", "assistant"];
    let calls = ["tool_calls", "function_call", "tool_call_id"];
    let called = |key: &&str| {
        let value = message.extra.get(*key);
        value.is_some_and(|value| !is_blank(value))
    };
    !known.contains(&message.role.as_str()) || calls.iter().any(called)
}

/// How many answers a conversation takes.
pub(super) fn answers(steps: &[Step]) -> usize {
    steps.iter().filter(|&&step| step == Step::Answered).count()
}

/// The conversation with its answers, which are as many as [`answers`] says.
pub(super) fn answered(
    messages: Vec<Message>,
    steps: &[Step],
    answers: Vec<Answer>,
) -> Vec<Message> {
    let mut answers = answers.into_iter();
    let mut said: Vec<Option<Message>> = messages.into_iter().map(Some).collect();
    let next = |step: &Step| match step {
        Step::Said(index) => said[*index].take(),
        Step::Answered => answers.next().map(|answer| answer.message),
    };
    steps.iter().filter_map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Step::{Answered, Said};

    fn of(roles: &str) -> Result<Vec<Step>, Unchanged> {
        let role = |letter| match letter {
            's' => "system",
            'u' => "user",
            'a' => "assistant",
            't' => "tool",
            _ => "narrator",
        };
        let messages: Vec<Message> = roles.chars().map(|c| Message::new(role(c), "x")).collect();
        steps(&messages)
    }

    #[test]
    fn every_turn_of_the_user_gets_one_answer() {
        let cases: [(&str, &[Step]); 7] = [
            ("sua", &[Said(0), Said(1), Answered]),
            ("uaua", &[Said(0), Answered, Said(2), Answered]),
            ("uau", &[Said(0), Answered, Said(2), Answered]),
            ("uuaa", &[Said(0), Said(1), Answered]),
            ("aua", &[Said(0), Said(1), Answered]),
            ("uas", &[Said(0), Answered, Said(2)]),
            ("us", &[Said(0), Said(1), Answered]),
        ];
        for (roles, expected) in cases {
            assert_eq!(of(roles).as_deref(), Ok(expected), "{roles}");
        }
    }

    #[test]
    fn what_cannot_be_answered_turn_by_turn_says_why() {
        assert_eq!(of("sa"), Err(Unchanged::NoUser));
        assert_eq!(of("s"), Err(Unchanged::NoUser));
        assert_eq!(of("uata"), Err(Unchanged::Tools));
        assert_eq!(of("una"), Err(Unchanged::Tools));
        let mut call = Message::new("assistant", "");
        call.extra
            .insert("tool_calls".into(), serde_json::json!([]));
        let user = Message::new("user", "x");
        assert!(steps(&[user.clone(), call.clone()]).is_ok());
        call.extra["tool_calls"] = serde_json::json!([{"name": "f"}]);
        assert_eq!(steps(&[user, call]), Err(Unchanged::Tools));
    }

    #[test]
    fn answers_take_the_places_of_the_old_ones() {
        let said = |role: &str, text: &str| Message::new(role, text);
        let old = vec![
            said("user", "1"),
            said("assistant", "old"),
            said("user", "2"),
        ];
        let answer = |text: &str| Answer {
            message: said("assistant", text),
            truncated: false,
            written: None,
        };
        let steps = steps(&old).unwrap();
        assert_eq!(answers(&steps), 2);
        let new = answered(old, &steps, vec![answer("one"), answer("two")]);
        let texts: Vec<&str> = new.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(texts, ["1", "one", "2", "two"]);
    }
}
