//! Calls of tools in answers, and what the tools said to the same calls in the data.
//!
//! No tool is called. An answer's call takes the result of the call in the data that has the same name and the same arguments,
//! in the same turn of the user. Speculators (`regenerate-responses`) gives the n-th call the n-th result whatever its
//! arguments are, and ends at an answer with several calls.

use serde_json::{Map, Value};

use crate::conversation::{Conversation, Message, is_blank};
use crate::tool_calls::{TOOL_CALLS, object};

/// The key of a tool's message that names the call.
const CALL_ID: &str = "tool_call_id";
/// What surrounds a call, and what a tool said, where datasets and templates write them as text.
const CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
const RESPONSE: [&str; 2] = ["<tool_response>", "</tool_response>"];
/// Marks of calls in a text: a server that leaves them there did not find the call, or could not read it.
const MARKS: [&str; 5] = [
    CALL[0],
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "<|tool_calls_section_begin|>",
];

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    id: Option<String>,
    name: String,
    arguments: Value,
}

/// A call in the data with what the tool said.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recorded {
    call: Call,
    result: Option<Message>,
}

/// What an answer calls.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Called {
    /// It is an answer in words.
    Nothing,
    /// These, at least one.
    Tools(Vec<Call>),
    /// Something that cannot be read: arguments that are no object, or a call in the text.
    Unreadable,
}

/// Whether a request can have the tools of a conversation, which are then defined as OpenAI's protocol has them.
pub(super) fn are_askable(conversation: &Conversation) -> bool {
    let is_defined = |tool: &Value| {
        let name = tool["function"]["name"].as_str();
        tool["type"] == "function" && name.is_some_and(|name| !name.is_empty())
    };
    let known = ["system", "developer", "user", "assistant", "tool"];
    let is_known = |message: &Message| {
        let old_form = message.extra.get("function_call");
        known.contains(&message.role.as_str()) && old_form.is_none_or(is_blank)
    };
    let Conversation {
        messages, tools, ..
    } = conversation;
    !tools.is_empty() && tools.iter().all(is_defined) && messages.iter().all(is_known)
}

/// What an answer calls.
pub(super) fn called(answer: &Message) -> Called {
    let calls = answer.extra.get(TOOL_CALLS).and_then(Value::as_array);
    let Some(calls) = calls.filter(|calls| !calls.is_empty()) else {
        let is_marked = MARKS.iter().any(|mark| answer.content.contains(mark));
        return if is_marked {
            Called::Unreadable
        } else {
            Called::Nothing
        };
    };
    let calls: Vec<Call> = calls.iter().map(Call::read).collect();
    let is_whole = |call: &Call| !call.name.is_empty() && call.arguments.is_object();
    if calls.iter().all(is_whole) {
        Called::Tools(calls)
    } else {
        Called::Unreadable
    }
}

/// The messages of tools to these calls, which are taken out of what is recorded; none unless each of them is there.
pub(super) fn results(calls: &[Call], recorded: &mut Vec<Recorded>) -> Option<Vec<Message>> {
    let result = |call: &Call| {
        let is_same = |other: &Recorded| {
            (&other.call.name, &other.call.arguments) == (&call.name, &call.arguments)
        };
        let found = recorded.remove(recorded.iter().position(is_same)?);
        let mut message = found.result?;
        match &call.id {
            Some(id) => drop(message.extra.insert(CALL_ID.into(), id.as_str().into())),
            None => drop(message.extra.shift_remove(CALL_ID)),
        }
        Some(message)
    };
    calls.iter().map(result).collect()
}

/// The calls of an assistant's messages that have a result behind them: by the id of the call, else by their order.
pub(super) fn recorded(messages: &[Message]) -> Vec<Recorded> {
    let mut all: Vec<Recorded> = Vec::new();
    let mut latest = 0;
    for message in messages {
        if message.is_assistant() {
            latest = all.len();
            let calls = calls_of(message).into_iter();
            all.extend(calls.map(|call| Recorded { call, result: None }));
            continue;
        }
        for (name, result) in said_by_tools(message) {
            let id = text_of(&result.extra, CALL_ID);
            let is_asked = |recorded: &&mut Recorded| {
                let Recorded { call, result } = recorded;
                let may_be = |one: Option<&str>, other: Option<&str>| {
                    one.is_none_or(|one| other.is_none_or(|other| one == other))
                };
                let is_named = may_be(name.as_deref(), Some(&call.name));
                result.is_none() && is_named && may_be(id, call.id.as_deref())
            };
            let place = all[latest..].iter_mut().find(is_asked);
            if let Some(place) = place {
                place.result = Some(result);
            }
        }
    }
    all.retain(|recorded| recorded.result.is_some());
    all
}

/// The calls of a message: those under its key, else those that its text has in tags of `tool_call`.
fn calls_of(message: &Message) -> Vec<Call> {
    match message.extra.get(TOOL_CALLS) {
        Some(Value::Array(calls)) if !calls.is_empty() => calls.iter().map(Call::read).collect(),
        _ => {
            let texts = between(&message.content, CALL).into_iter();
            let call = |text: &str| Call::read(&serde_json::from_str(text).unwrap_or_default());
            texts.map(call).collect()
        }
    }
}

/// What a message of a tool says: all of it, or each text that it has in tags of `tool_response`; with the tool's name, where
/// it is said.
fn said_by_tools(message: &Message) -> Vec<(Option<String>, Message)> {
    let named = text_of(&message.extra, "name").map(str::to_owned);
    let parts = between(&message.content, RESPONSE);
    if parts.is_empty() {
        return vec![(named, message.clone())];
    }
    let part = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let name = value["name"].as_str().map(str::to_owned);
        let message = Message {
            content: text.to_owned(),
            ..message.clone()
        };
        (name.or(named.clone()), message)
    };
    parts.into_iter().map(part).collect()
}

/// The texts between two tags, without white space around them.
fn between<'t>(text: &'t str, [start, end]: [&str; 2]) -> Vec<&'t str> {
    let pieces = text.split(start).skip(1);
    let ended = pieces.filter_map(|piece| piece.split_once(end));
    ended.map(|(inner, _)| inner.trim()).collect()
}

impl Call {
    /// A call as OpenAI's protocol has it, or what stands under its key `function` alone. What is missing is empty.
    fn read(value: &Value) -> Self {
        let function = match &value["function"] {
            Value::Null => value,
            function => function,
        };
        let id = value["id"].as_str().filter(|id| !id.is_empty());
        let arguments = match &function["arguments"] {
            Value::String(text) => object(text).map_or(Value::Null, Value::Object),
            Value::Null => Value::Object(Map::new()),
            given => given.clone(),
        };
        Self {
            id: id.map(str::to_owned),
            name: function["name"].as_str().unwrap_or_default().to_owned(),
            arguments: without_nulls(arguments),
        }
    }
}

/// A value without keys that say nothing: tables give every row all keys of any.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            let fields = fields.map(|(key, value)| (key, without_nulls(value)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

fn text_of<'m>(fields: &'m Map<String, Value>, key: &str) -> Option<&'m str> {
    let text = fields.get(key).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(value: Value) -> Message {
        serde_json::from_value(value).unwrap()
    }

    /// What the tools said to calls of `f` with these arguments, one after the other.
    fn found(messages: &[Value], calls: &[Value]) -> Vec<Option<String>> {
        let messages: Vec<Message> = messages.iter().cloned().map(message).collect();
        let mut recorded = recorded(&messages);
        let call = |arguments: &Value| {
            let call = Call::read(&json!({"name": "f", "arguments": arguments}));
            Some(results(&[call], &mut recorded)?.remove(0).content)
        };
        calls.iter().map(call).collect()
    }

    #[test]
    fn results_belong_to_calls_by_their_ids_and_else_by_their_order() {
        let call = |id: Value, x: u32| json!({"id": id, "function": {"name": "f", "arguments": {"x": x, "y": null}}});
        let said =
            |id: Value, text: &str| json!({"role": "tool", "content": text, "tool_call_id": id});
        let calls = |ids: [Value; 2]| {
            let [one, two] = ids;
            json!({"role": "assistant", "content": "", "tool_calls": [call(one, 1), call(two, 2)]})
        };
        let asked = [json!("{\"x\": 2}"), json!({"x": 1})];
        let texts = |one: &str, two: &str| [Some(one.to_owned()), Some(two.to_owned())];
        let swapped = [
            calls([json!("a"), json!("b")]),
            said(json!("b"), "2"),
            said(json!("a"), "1"),
        ];
        assert_eq!(found(&swapped, &asked), texts("2", "1"));
        let ordered = [
            calls([json!(null), json!(null)]),
            said(json!(null), "1"),
            said(json!("q"), "2"),
        ];
        assert_eq!(found(&ordered, &asked), texts("2", "1"));
        // Of another call than those before it.
        let other = [
            calls([json!("a"), json!("b")]),
            said(json!("c"), "?"),
            said(json!("a"), "1"),
        ];
        assert_eq!(found(&other, &asked), [None, Some("1".to_owned())]);
    }

    #[test]
    fn calls_and_results_in_tags_are_read_as_such() {
        let messages = [
            json!({"role": "assistant", "content": "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n\
                <tool_call>\n{\"arguments\": {\"x\": 1}, \"name\": \"f\"}\n</tool_call>"}),
            json!({"role": "tool", "content": "<tool_response>\n{\"name\": \"f\", \"content\": 5}\n</tool_response>\n\
                <tool_response>\n{\"name\": \"g\", \"content\": 6}\n</tool_response>"}),
        ];
        let expected = "{\"name\": \"f\", \"content\": 5}".to_owned();
        assert_eq!(found(&messages, &[json!({"x": 1})]), [Some(expected)]);
    }
}
