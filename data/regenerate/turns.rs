//! Which turns of a conversation are answered anew, and the conversation as it grows with those answers.

use serde::{Deserialize, Serialize};

use super::answers::ToolRows;
use super::tools::{Called, Recorded, are_askable, called, recorded, results};
use crate::conversation::{Conversation, Message, is_blank};

/// Why a row is copied as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unchanged {
    /// It has another role than `system`, `developer`, `user`, `assistant` and `tool`; or it has tools, their calls or their
    /// messages, and whoever answers does not take tools or the row does not define them in OpenAI's form.
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
    /// An answer to all that stands before; where it calls tools, their results and a further answer, and so on. It takes the
    /// place of the messages from the first index to before the second.
    Answered(usize, usize),
}

/// The parts of a conversation in order; none of one with tools, where those are not answered.
pub(super) fn planned(
    conversation: &Conversation,
    tool_rows: ToolRows,
) -> Result<Vec<Step>, Unchanged> {
    let asks = tool_rows == ToolRows::Answer && are_askable(conversation);
    if has_tools(conversation) && !asks {
        return Err(Unchanged::Tools);
    }
    steps(&conversation.messages)
}

/// The parts of a conversation in order, with at least one answer.
///
/// What the assistant says after the first user's turn is replaced, with what tools say to it: several messages in a row by one
/// answer. A last turn of the user gets an answer. What the assistant says before any user is part of the question.
fn steps(messages: &[Message]) -> Result<Vec<Step>, Unchanged> {
    let mut steps = Vec::with_capacity(messages.len() + 1);
    let (mut asked, mut waiting) = (false, false);
    for (index, message) in messages.iter().enumerate() {
        let user = message.role == "user";
        asked |= user;
        waiting |= user;
        let is_answer = message.is_assistant() || message.role == "tool";
        if !(is_answer && asked) {
            steps.push(Step::Said(index));
            continue;
        }
        waiting = false;
        match steps.last_mut() {
            Some(Step::Answered(_, end)) => *end = index + 1,
            _ => steps.push(Step::Answered(index, index + 1)),
        }
    }
    if waiting {
        steps.push(Step::Answered(messages.len(), messages.len()));
    }
    if asked {
        Ok(steps)
    } else {
        Err(Unchanged::NoUser)
    }
}

/// Whether each answer that a conversation has in its new form is trained on, as the messages say in whose places it stands; of one
/// that is copied, as its own do. Tools are answered.
pub(super) fn trained(conversation: &Conversation) -> Vec<bool> {
    let messages = &conversation.messages;
    let steps = planned(conversation, ToolRows::Answer);
    let steps = steps.unwrap_or_else(|_| (0..messages.len()).map(Step::Said).collect());
    let answers = steps.into_iter().filter_map(|step| match step {
        Step::Said(index) => {
            let message = &messages[index];
            message.is_assistant().then(|| message.is_trained_on())
        }
        Step::Answered(start, end) => Some(!are_context(&messages[start..end])),
    });
    answers.collect()
}

/// Whether an answer to the conversation may be a call of a tool, or what comes next depends on something else than answers.
fn has_tools(conversation: &Conversation) -> bool {
    !conversation.tools.is_empty() || conversation.messages.iter().any(uses_tools)
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

/// Why a conversation ends before its last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The last answer calls a tool with arguments to which the data has no result.
    Unpaired,
    /// The answer after the last message is a call that cannot be read; it is left off.
    Unreadable,
}

/// A conversation that grows by its answers, and by what its tools said to the same calls in the data.
pub(super) struct Talk<'a> {
    old: &'a [Message],
    steps: std::vec::IntoIter<Step>,
    has_tools: bool,
    said: Vec<Message>,
    /// Answers that are in it.
    answers: usize,
    /// The calls of this turn in the data whose results were not given yet.
    recorded: Vec<Recorded>,
    asks: bool,
    /// Whether the answers of this turn are trained on.
    trains: bool,
    cut: Option<Cut>,
}

impl<'a> Talk<'a> {
    /// One without answers yet.
    pub(super) fn of(
        conversation: &'a Conversation,
        tool_rows: ToolRows,
    ) -> Result<Self, Unchanged> {
        let steps = planned(conversation, tool_rows)?;
        Ok(Self {
            old: &conversation.messages,
            said: Vec::with_capacity(conversation.messages.len() + 1),
            steps: steps.into_iter(),
            has_tools: has_tools(conversation),
            answers: 0,
            recorded: Vec::new(),
            asks: false,
            trains: true,
            cut: None,
        })
    }

    /// Goes on to where an answer is wanted; false at the end.
    pub(super) fn asks(&mut self) -> bool {
        while !self.asks && self.cut.is_none() {
            match self.steps.next() {
                None => return false,
                Some(Step::Said(index)) => self.said.push(self.old[index].clone()),
                Some(Step::Answered(start, end)) => {
                    self.recorded = recorded(&self.old[start..end]);
                    self.trains = !are_context(&self.old[start..end]);
                    self.asks = true;
                }
            }
        }
        self.asks
    }

    /// Whether the answer that is wanted is trained on: not where it takes the place of answers that are only context.
    pub(super) fn trains(&self) -> bool {
        self.trains
    }

    /// All that was said.
    pub(super) fn said(&self) -> &[Message] {
        &self.said
    }

    /// Takes the answer that is wanted.
    pub(super) fn take(&mut self, answer: Message) {
        self.asks = false;
        let called = if self.has_tools {
            called(&answer)
        } else {
            Called::Nothing
        };
        let Called::Tools(calls) = called else {
            if called == Called::Unreadable {
                self.cut = Some(Cut::Unreadable);
            } else {
                self.push(answer);
            }
            return;
        };
        self.push(answer);
        match results(&calls, &mut self.recorded) {
            Some(results) => {
                self.said.extend(results);
                self.asks = true;
            }
            None => self.cut = Some(Cut::Unpaired),
        }
    }

    fn push(&mut self, answer: Message) {
        self.said.push(answer);
        self.answers += 1;
    }

    /// The conversation, how many answers are in it, and why it ends early, if it does.
    pub(super) fn end(mut self) -> (Vec<Message>, usize, Option<Cut>) {
        self.asks();
        (self.said, self.answers, self.cut)
    }
}

/// Whether these messages have answers, none of which is trained on.
fn are_context(messages: &[Message]) -> bool {
    let mut answers = messages.iter().filter(|message| message.is_assistant());
    let mut trained = answers.clone();
    answers.next().is_some() && !trained.any(Message::is_trained_on)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
        planned(&Conversation::new(messages), ToolRows::Copy)
    }

    #[test]
    fn every_turn_of_the_user_gets_one_answer() {
        let cases: [(&str, &[Step]); 7] = [
            ("sua", &[Said(0), Said(1), Answered(2, 3)]),
            ("uaua", &[Said(0), Answered(1, 2), Said(2), Answered(3, 4)]),
            ("uau", &[Said(0), Answered(1, 2), Said(2), Answered(3, 3)]),
            ("uuaa", &[Said(0), Said(1), Answered(2, 4)]),
            ("aua", &[Said(0), Said(1), Answered(2, 3)]),
            ("uas", &[Said(0), Answered(1, 2), Said(2)]),
            ("us", &[Said(0), Said(1), Answered(2, 2)]),
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
        call.extra.insert("tool_calls".into(), json!([]));
        let user = Message::new("user", "x");
        let plan = |call: &Message| {
            let conversation = Conversation::new(vec![user.clone(), call.clone()]);
            planned(&conversation, ToolRows::Answer)
        };
        assert!(plan(&call).is_ok());
        call.extra["tool_calls"] = json!([{"name": "f"}]);
        assert_eq!(
            plan(&call),
            Err(Unchanged::Tools),
            "its tools are not defined"
        );
    }

    #[test]
    fn answers_take_the_places_of_the_old_ones() {
        let said = |role: &str, text: &str| Message::new(role, text);
        let old = Conversation::new(vec![
            said("user", "1"),
            said("assistant", "old"),
            said("user", "2"),
        ]);
        let mut talk = Talk::of(&old, ToolRows::Copy).unwrap();
        // A text is none but a text where there are no tools.
        for answer in ["one", "<tool_call>two"] {
            assert!(talk.asks());
            talk.take(said("assistant", answer));
        }
        assert!(!talk.asks());
        let (new, answers, cut) = talk.end();
        let texts: Vec<&str> = new.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(texts, ["1", "one", "2", "<tool_call>two"]);
        assert_eq!((answers, cut), (2, None));
    }

    fn conversation() -> Conversation {
        let call = |id: &str, city: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": format!("{{\"city\": \"{city}\"}}")}});
        let row = json!({
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "messages": [
                {"role": "user", "content": "1"},
                {"role": "assistant", "content": "", "tool_calls": [call("a", "Oslo")]},
                {"role": "tool", "content": "cold", "tool_call_id": "a"},
                {"role": "assistant", "content": "", "tool_calls": [call("b", "Rome")]},
                {"role": "tool", "content": "warm", "tool_call_id": "b"},
                {"role": "assistant", "content": "old"},
                {"role": "user", "content": "2"},
                {"role": "assistant", "content": "old"},
            ],
        });
        match crate::Row::from_json(&row.to_string()).unwrap().content {
            crate::Content::Conversation(conversation) => conversation,
            crate::Content::Tokens(_) => panic!("tokens"),
        }
    }

    fn calling(calls: &[(&str, Value)]) -> Message {
        let calls = calls.iter().map(|(id, arguments)| {
            json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}})
        });
        let mut message = Message::new("assistant", "");
        message.extra.insert("tool_calls".into(), calls.collect());
        message
    }

    /// The messages, a letter for each role, what tools said with the ids of their calls, and how it ends.
    fn talked(answers: &[Message]) -> (String, Vec<(String, String)>, usize, Option<Cut>) {
        let conversation = conversation();
        let mut talk = Talk::of(&conversation, ToolRows::Answer).unwrap();
        for answer in answers {
            assert!(talk.asks());
            talk.take(answer.clone());
        }
        assert!(!talk.asks());
        let (said, count, cut) = talk.end();
        let results = said.iter().filter(|message| message.role == "tool");
        let results = results.map(|message| {
            let id = message.extra["tool_call_id"].as_str().unwrap();
            (message.content.clone(), id.to_owned())
        });
        let roles = said.iter().map(|message| &message.role[..1]).collect();
        (roles, results.collect(), count, cut)
    }

    #[test]
    fn a_call_gets_the_result_of_the_same_call_in_the_data_and_ends_the_conversation_where_there_is_none()
     {
        let [oslo, rome, rio] = ["Oslo", "Rome", "Rio"].map(|city| json!({"city": city}));
        let text = Message::new("assistant", "new");
        let result = |said: &str, id: &str| (said.to_owned(), id.to_owned());
        let both = vec![result("warm", "x"), result("cold", "y")];
        // In one answer, in another order than in the data.
        let parallel = calling(&[("x", rome.clone()), ("y", oslo.clone())]);
        let one_by_one = [("x", rome.clone()), ("y", oslo.clone())].map(|call| calling(&[call]));
        let [first, second] = one_by_one;
        assert_eq!(
            talked(&[parallel, text.clone(), text.clone()]),
            ("uattaua".into(), both.clone(), 3, None)
        );
        assert_eq!(
            talked(&[first, second, text.clone(), text.clone()]),
            ("uatataua".into(), both, 4, None)
        );
        assert_eq!(
            talked(&[text.clone(), text.clone()]),
            ("uaua".into(), Vec::new(), 2, None)
        );
        // A result is given once, and to its own turn.
        let same = calling(&[("z", oslo.clone())]);
        let cold = vec![result("cold", "z")];
        assert_eq!(
            talked(&[same.clone(), same.clone()]),
            ("uata".into(), cold, 2, Some(Cut::Unpaired))
        );
        assert_eq!(
            talked(&[text.clone(), same]),
            ("uaua".into(), Vec::new(), 2, Some(Cut::Unpaired))
        );
        let other = calling(&[("x", oslo), ("y", rio)]);
        assert_eq!(
            talked(&[other]),
            ("ua".into(), Vec::new(), 1, Some(Cut::Unpaired))
        );
        for unreadable in [
            calling(&[("x", json!("{\"city\": "))]),
            Message::new("assistant", "<tool_call>\n{\"name\""),
        ] {
            assert_eq!(
                talked(&[text.clone(), unreadable]),
                ("uau".into(), Vec::new(), 1, Some(Cut::Unreadable))
            );
        }
    }
}
