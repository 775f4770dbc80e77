//! The messages of a row.

use serde_json::{Map, Value};
use spectrain_checkpoints::Mismatch;

use super::values::{Fields, inner, object, text, value};
use crate::conversation::{Message, OTHER_REASONING, REASONING, TRAINED, WEIGHT, in_lines};
use crate::json::{items, keys, kind};
use crate::roles::SPEAKERS;
use crate::tool_calls::TOOL_CALLS;

/// The most messages of a conversation.
pub(super) const MOST_MESSAGES: usize = 100_000;
/// What is expected as messages.
pub(super) const MESSAGES: &str = "a list of at least one message, or such a list as a text";

pub(super) fn conversation(
    messages: &str,
    system: Option<&str>,
    budget: &mut usize,
) -> Result<Vec<Message>, Mismatch> {
    let messages = inner(messages, MESSAGES)?;
    let messages = messages.ok_or_else(|| Mismatch::new(MESSAGES, "a text that says nothing"))?;
    let messages = &*messages;
    if !messages.starts_with('[') || items(messages).next().is_none() {
        return Err(Mismatch::new(MESSAGES, kind(messages)));
    }
    if items(messages).nth(MOST_MESSAGES).is_some() {
        return Err(Mismatch::new(
            format!("at most {MOST_MESSAGES} messages"),
            "more",
        ));
    }
    // In errors they count from 1, as rows do.
    let mut messages: Vec<Message> = (1..)
        .zip(items(messages))
        .map(|(position, text)| message(position, text, budget))
        .collect::<Result<_, _>>()?;
    let Some(system) = system else {
        return Ok(messages);
    };
    let system = if system.starts_with('"') {
        text(system, || "`system` to be a text".into())?
    } else if ["[]", "{}"].contains(&system) {
        String::new()
    } else {
        return Err(Mismatch::new("`system` to be a text", kind(system)));
    };
    if system.trim().is_empty() {
        return Ok(messages);
    }
    if messages[0].role == "system" {
        return Err(Mismatch::new(
            "one system message",
            "`system` and a first message with the role `system`",
        ));
    }
    messages.insert(0, Message::new("system", system));
    Ok(messages)
}

fn message(position: usize, given: &str, budget: &mut usize) -> Result<Message, Mismatch> {
    if !given.starts_with('{') {
        return Err(Mismatch::new(
            format!("message {position} to be an object"),
            kind(given),
        ));
    }
    let mut fields = object(given, "a message")?;
    let found = with_nulls(&fields);
    // `content` is kept although it may be null: an assistant that calls a tool may say nothing.
    fields.retain(|(key, value)| key == "content" || *value != "null");
    let mut take = |key: &str| {
        let place = fields.iter().position(|(known, _)| known == key)?;
        Some(fields.remove(place).1)
    };
    let part = |key: &str, value: &str| {
        text(value, || {
            format!("`{key}` of message {position} to be a text")
        })
    };
    let (role, content) = match take("role") {
        Some(role) => {
            let content = take("content").map(|given| content(position, given));
            (Some(part("role", role)?), content.transpose()?)
        }
        None => {
            let role = take("from").map(|from| role_of(position, &part("from", from)?));
            let content = take("value").map(|given| part("value", given));
            let content = content.transpose()?.map(|text| (text, Vec::new()));
            (role.transpose()?, content)
        }
    };
    let calls = fields.iter().any(|(key, _)| key == TOOL_CALLS);
    let content = content.or_else(|| calls.then(Default::default));
    let (Some(role), Some((content, parts))) = (role, content) else {
        return Err(Mismatch::new(
            format!("message {position} with `role` and `content`, or `from` and `value`"),
            found,
        ));
    };
    // A list of no calls would be calls to some templates; vLLM leaves it out too.
    let is_empty = |list: &str| list.starts_with('[') && items(list).next().is_none();
    fields.retain(|(key, value)| key != TOOL_CALLS || !is_empty(value));
    let extra = fields
        .into_iter()
        .map(|(key, text)| Ok((key.into_owned(), value(text, budget)?)));
    let mut message = Message {
        role,
        content,
        parts,
        extra: extra.collect::<Result<Map<_, _>, _>>()?,
    };
    check_trained(position, &message)?;
    name_reasoning(&mut message);
    Ok(message)
}

/// Gives the reasoning of an answer that has only vLLM's name for it the name that templates read, beside its own, as vLLM does.
fn name_reasoning(message: &mut Message) {
    if !message.is_assistant() || message.extra.contains_key(REASONING) {
        return;
    }
    if let Some(Value::String(reasoning)) = message.extra.get(OTHER_REASONING) {
        let reasoning = reasoning.as_str().into();
        message.extra.insert(REASONING.into(), reasoning);
    }
}

/// Fails where an answer says neither that it is trained on nor that it is not.
fn check_trained(position: usize, message: &Message) -> Result<(), Mismatch> {
    if !message.is_assistant() {
        return Ok(());
    }
    for key in TRAINED {
        let Some(value) = message.extra.get(key) else {
            continue;
        };
        let number = value.as_f64();
        let (is_known, known) = match key {
            WEIGHT => (number == Some(0.0) || number == Some(1.0), "0 or 1"),
            _ => (value.is_boolean(), "true or false"),
        };
        if !is_known {
            let expected = format!("`{key}` of message {position} to be {known}");
            return Err(Mismatch::new(expected, kind(&value.to_string())));
        }
    }
    Ok(())
}

/// The keys of an object, and which of them say nothing.
fn with_nulls(fields: &Fields<'_>) -> String {
    let nulls = fields.iter().filter(|(_, value)| *value == "null");
    let nulls: Vec<String> = nulls.map(|(key, _)| format!("`{key}`")).collect();
    let found = keys(fields);
    match nulls.len() {
        0 => found,
        1 => format!("{found}, of which {} is null", nulls[0]),
        _ => format!("{found}, of which {} are null", nulls.join(", ")),
    }
}

/// What is said, and how long each part of it is: a text, nothing, or a list of texts as OpenAI's protocol has them, each of which
/// gets a line.
fn content(position: usize, given: &str) -> Result<(String, Vec<usize>), Mismatch> {
    let expected = || format!("`content` of message {position} to be a text or a list of texts");
    match given.as_bytes().first() {
        Some(b'n') => Ok(Default::default()),
        Some(b'[') => {
            let parts = items(given).map(|part| match part.as_bytes().first() {
                Some(b'"') => text(part, expected),
                Some(b'{') => content_part(part, expected),
                _ => Err(Mismatch::new(expected(), format!("{} in it", kind(part)))),
            });
            let parts = parts.collect::<Result<Vec<String>, _>>()?;
            Ok(in_lines(&parts))
        }
        _ => Ok((text(given, expected)?, Vec::new())),
    }
}

fn content_part(part: &str, expected: impl Fn() -> String) -> Result<String, Mismatch> {
    let fields = object(part, "a part of a content")?;
    let given = |key: &str| {
        fields
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| *value)
    };
    match (given("type"), given("text")) {
        (Some("\"text\"") | None, Some(said)) => text(said, expected),
        (Some("\"text\""), None) => Err(Mismatch::new(
            expected(),
            format!(
                "a part of the type `text` without the key `text`, with {}",
                keys(&fields)
            ),
        )),
        (Some(other), _) => {
            let found = format!("a part of the type `{}`", other.trim_matches('"'));
            Err(Mismatch::new(expected(), found))
        }
        (None, None) => Err(Mismatch::new(
            expected(),
            format!("a part with {}", keys(&fields)),
        )),
    }
}

fn role_of(position: usize, from: &str) -> Result<String, Mismatch> {
    let known = SPEAKERS.into_iter().chain([("tool", "tool")]);
    match known.clone().find(|(speaker, _)| *speaker == from) {
        Some((_, role)) => Ok(role.to_owned()),
        None => {
            let speakers: Vec<String> = known.map(|(speaker, _)| format!("`{speaker}`")).collect();
            Err(Mismatch::new(
                format!(
                    "`from` of message {position} to be one of {}",
                    speakers.join(", ")
                ),
                format!("`{from}`"),
            ))
        }
    }
}
