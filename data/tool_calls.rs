//! Calls of tools in messages.
use serde_json::{Map, Value};

use crate::conversation::Message;

/// The key of a message with its calls.
pub const TOOL_CALLS: &str = "tool_calls";
/// The key of a call with what it passes to the tool.
const ARGUMENTS: &str = "arguments";

/// The messages with the arguments of their calls as objects; `None` where all calls have them so.
///
/// OpenAI's protocol, and data in its form, have arguments as a text; engines hand objects to chat templates, most of which would
/// print a text in quotes. What is no object, nor the text of one, is to vLLM a call without arguments.
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
        changed |= give_object(call);
    }
    changed.then_some(messages)
}

/// Gives a call its arguments as an object, unless it has them so; whether that changed it.
fn give_object(call: &mut Value) -> bool {
    let is_wrapped = call.get("function").is_some();
    let function = if is_wrapped {
        call.get_mut("function")
    } else {
        Some(call)
    };
    let Some(Value::Object(function)) = function else {
        return false;
    };
    let read = match function.get(ARGUMENTS) {
        Some(Value::Object(_)) => return false,
        // It may be no call at all.
        None if !is_wrapped => return false,
        Some(Value::String(text)) => object(text).unwrap_or_default(),
        _ => Map::new(),
    };
    function.insert(ARGUMENTS.into(), read.into());
    true
}

/// What the text of a call's arguments says; a call without arguments may have nothing there.
pub(crate) fn object(text: &str) -> Option<Map<String, Value>> {
    match text.trim() {
        "" => Some(Map::new()),
        text => serde_json::from_str(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // Expected: `_postprocess_messages` of vLLM 0.33.
    #[test]
    fn what_is_no_object_is_a_call_without_arguments() {
        let calling = |arguments: Value| {
            let mut message = Message::new("assistant", "");
            let call = json!([{"id": "c", "function": {"arguments": arguments, "name": "f"}}]);
            message.extra.insert(TOOL_CALLS.into(), call);
            [message]
        };
        for (given, expected) in [
            (json!("{\"b\": 1, \"a\": [2]}"), json!({"b": 1, "a": [2]})),
            (json!(null), json!({})),
            (json!(""), json!({})),
            (json!("[1]"), json!({})),
            (json!("{\"b\": "), json!({})),
            (json!([1]), json!({})),
        ] {
            let read = with_objects(&calling(given.clone()));
            assert_eq!(read.unwrap(), calling(expected), "{given}");
        }
        assert_eq!(with_objects(&calling(json!({"a": 1}))), None);
        assert_eq!(with_objects(&[Message::new("user", "u")]), None);
    }

    #[test]
    fn a_function_without_arguments_gets_none_and_a_bare_call_keeps_its_form() {
        let mut message = Message::new("assistant", "");
        let calls =
            json!([{"function": {"name": "f"}}, {"name": "g"}, {"name": "h", "arguments": null}]);
        message.extra.insert(TOOL_CALLS.into(), calls);
        let read = with_objects(&[message]).unwrap();
        assert_eq!(
            read[0].extra[TOOL_CALLS],
            json!([{"function": {"name": "f", "arguments": {}}}, {"name": "g"}, {"name": "h", "arguments": {}}])
        );
    }
}
