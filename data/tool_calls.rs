//! Calls of tools in messages.
use serde_json::{Map, Value};

use crate::conversation::Message;

/// The key of a message with its calls.
pub const TOOL_CALLS: &str = "tool_calls";

/// The messages with the arguments of their calls as objects; `None` where no call has them as the text of an object.
///
/// OpenAI's protocol, and data in its form, have arguments as a text; engines hand objects to chat templates, most of which would
/// print a text in quotes.
pub(crate) fn with_objects(messages: &[Message]) -> Option<Vec<Message>> {
    if !messages.iter().any(|m| m.extra.contains_key(TOOL_CALLS)) {
        return None;
    }
    let mut changed = false;
    let mut messages = messages.to_vec();
    let with_calls = messages
        .iter_mut()
        .filter_map(|m| m.extra.get_mut(TOOL_CALLS));
    for call in with_calls.filter_map(Value::as_array_mut).flatten() {
        let arguments = match call.get_mut("function") {
            Some(function) => function.get_mut("arguments"),
            None => call.get_mut("arguments"),
        };
        if let Some(arguments) = arguments
            && let Some(object) = arguments.as_str().and_then(object)
        {
            *arguments = object.into();
            changed = true;
        }
    }
    changed.then_some(messages)
}

/// What the text of a call's arguments says; a call without arguments may have nothing there.
pub(crate) fn object(text: &str) -> Option<Map<String, Value>> {
    match text.trim() {
        "" => Some(Map::new()),
        text => serde_json::from_str(text).ok(),
    }
}
