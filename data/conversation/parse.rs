//! Rows from JSON, in any of the accepted shapes and within limits.
//!
//! A row is cut into its parts and only what is needed of them is taken in, so that it takes a few times its length in
//! memory whatever it holds.

use std::borrow::Cow;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::{Map, Value};
use spectrain_checkpoints::Mismatch;

use super::{
    BESIDE, Content, Conversation, KEYS, Message, Row, Sample, TEMPLATE_KEY, TRAINED, WEIGHT,
};
use crate::json::{check, count, fault, fields, items, keys, kind};
use crate::roles::SPEAKERS;
use crate::template::check_names;

/// The most messages of a conversation.
const MOST_MESSAGES: usize = 100_000;
/// The most values in further keys of messages, in definitions of tools and in variables, those inside of others included.
pub(crate) const MOST_VALUES: usize = 200_000;
/// The most keys of a row or message.
const MOST_KEYS: usize = 1000;

const SHAPES: &str =
    "`messages`, `conversations`, or `input_ids` (or `tokens`) with `loss_mask` or `labels`";

/// The keys of a row of tokens.
const OF_TOKENS: [&str; 4] = ["input_ids", "tokens", "loss_mask", "labels"];

/// The label that keeps a position out of the loss in pre-tokenised datasets.
const IGNORED_LABEL: i64 = -100;

pub(crate) type Fields<'t> = Vec<(Cow<'t, str>, &'t str)>;

impl Row {
    /// Reads a row in any of the accepted shapes; keys whose value is `null` count as absent. Tokens with a mask are what other
    /// programs train on where a conversation stands beside them, as a copy; it stays among the other keys.
    ///
    /// # Errors
    /// It is no JSON object, has none of the shapes, or is beyond the limits.
    pub fn from_json(text: &str) -> Result<Self, Mismatch> {
        let text = text.trim();
        check(text).map_err(|error| Mismatch::new("one JSON object", error.to_string()))?;
        if !text.starts_with('{') {
            return Err(Mismatch::new(
                format!("an object with {SHAPES}"),
                kind(text),
            ));
        }
        let mut fields = object(text, "a row")?;
        let owned = |(key, value): &(Cow<str>, &str)| (key.to_string(), (*value).to_owned());
        let others = fields
            .iter()
            .filter(|(key, _)| !KEYS.contains(&key.as_ref()));
        let mut extra: Vec<_> = others.map(owned).collect();
        fields.retain(|(_, value)| *value != "null");
        let given = |key: &str| {
            fields
                .iter()
                .find(|(known, _)| known == key)
                .map(|(_, value)| *value)
        };
        let messages = given("messages").or(given("conversations"));
        let tokens = given("input_ids").or(given("tokens"));
        let mask = given("loss_mask").or(given("labels"));
        let is_filled = |list: &&str| list.starts_with('[') && items(list).next().is_some();
        let has_tokens =
            tokens.as_ref().is_some_and(is_filled) && mask.as_ref().is_some_and(is_filled);
        if let Some(messages) = messages.filter(|_| !has_tokens) {
            let mut budget = MOST_VALUES;
            let tools = given("tools").map_or(Ok(Vec::new()), |text| tools(text, &mut budget))?;
            let messages = conversation(messages, given("system"), &mut budget)?;
            let content = Content::Conversation(Conversation {
                messages,
                tools,
                variables: variables(given(TEMPLATE_KEY), &mut budget)?,
            });
            // Such as a number of tokens, or a label of the whole; lists are tokens of another text than will be made of this one.
            let is_kept =
                |key: &str, value: &str| OF_TOKENS.contains(&key) && !value.starts_with('[');
            let beside = fields.iter().filter(|(key, value)| is_kept(key, value));
            extra.extend(beside.map(owned));
            return Ok(Self { content, extra });
        }
        if let Some(tokens) = tokens {
            let content = Content::Tokens(sample(tokens, &fields)?);
            // The other keys of a conversation are of use beside one alone.
            let is_kept =
                |key: &str| key == TEMPLATE_KEY || (messages.is_some() && BESIDE.contains(&key));
            let beside = fields.iter().filter(|(key, _)| is_kept(key));
            extra.extend(beside.map(owned));
            return Ok(Self { content, extra });
        }
        Err(Mismatch::new(SHAPES, keys(&fields)))
    }
}

/// The fields of an object, unless there are too many.
pub(crate) fn object<'t>(text: &'t str, what: &str) -> Result<Fields<'t>, Mismatch> {
    // Found one by one they take the square of their number.
    let most = MOST_KEYS;
    let found = items(text).take(2 * most + 2).count() / 2;
    if found > most {
        Err(Mismatch::new(
            format!("{what} of at most {most} keys"),
            "more",
        ))
    } else {
        Ok(fields(text))
    }
}

/// A value taken in as a whole, as long as the row has not too many of them.
fn value(text: &str, budget: &mut usize) -> Result<Value, Mismatch> {
    match budget.checked_sub(count(text)) {
        None => Err(Mismatch::new(
            format!(
                "at most {MOST_VALUES} values in further keys of messages, in `tools` and in `{TEMPLATE_KEY}`"
            ),
            "more",
        )),
        Some(left) => {
            *budget = left;
            serde_json::from_str(text).map_err(|error| {
                Mismatch::new(
                    "values that are nested, but not too deep, and texts without halves of surrogate pairs",
                    error.to_string(),
                )
            })
        }
    }
}

/// The definitions of tools: a list of objects, or such a list as a text.
fn tools(text: &str, budget: &mut usize) -> Result<Vec<Value>, Mismatch> {
    let expected = "`tools` to be a list of objects, or such a list as a text";
    let inner = if text.starts_with('"') {
        self::text(text, || expected.into())?
    } else {
        text.to_owned()
    };
    let inner = inner.trim();
    if ["", "{}", "null"].contains(&inner) {
        return Ok(Vec::new());
    }
    check(inner).map_err(|error| Mismatch::new(expected, error.to_string()))?;
    if !inner.starts_with('[') {
        return Err(Mismatch::new(expected, kind(inner)));
    }
    let tool = |tool: &str| {
        if tool.starts_with('{') {
            value(tool, budget)
        } else {
            Err(Mismatch::new(expected, format!("{} in it", kind(tool))))
        }
    };
    items(inner).map(tool).collect()
}

/// The variables that a row has for its chat template; none where it gives none.
pub(crate) fn variables(
    given: Option<&str>,
    budget: &mut usize,
) -> Result<Map<String, Value>, Mismatch> {
    let Some(given) = given else {
        return Ok(Map::new());
    };
    if !given.starts_with('{') {
        let expected = format!("`{TEMPLATE_KEY}` to be an object");
        return Err(Mismatch::new(expected, kind(given)));
    }
    let fields = object(given, &format!("`{TEMPLATE_KEY}`"))?;
    check_names(fields.iter().map(|(key, _)| key.as_ref())).map_err(|mismatch| {
        let expected = format!("{} in `{TEMPLATE_KEY}`", mismatch.expected);
        Mismatch::new(expected, mismatch.found)
    })?;
    let fields = fields.into_iter();
    fields
        .map(|(key, text)| Ok((key.into_owned(), value(text, budget)?)))
        .collect()
}

/// What is expected as messages.
const MESSAGES: &str = "a list of at least one message, or such a list as a text";

/// The JSON in a text that messages are given as.
fn messages_in(given: &str) -> Result<String, Mismatch> {
    let inner = text(given, || MESSAGES.into())?;
    let inner = inner.trim();
    let checked = check(inner);
    checked.map_err(|error| Mismatch::new(MESSAGES, format!("a text that is no JSON: {error}")))?;
    Ok(inner.to_owned())
}

fn conversation(
    messages: &str,
    system: Option<&str>,
    budget: &mut usize,
) -> Result<Vec<Message>, Mismatch> {
    let inner;
    let messages = match messages.starts_with('"') {
        true => {
            inner = messages_in(messages)?;
            inner.as_str()
        }
        false => messages,
    };
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
            (role.transpose()?, content.transpose()?)
        }
    };
    let calls = fields.iter().any(|(key, _)| key == "tool_calls");
    let content = content.or_else(|| calls.then(String::new));
    let (Some(role), Some(content)) = (role, content) else {
        return Err(Mismatch::new(
            format!("message {position} with `role` and `content`, or `from` and `value`"),
            found,
        ));
    };
    let extra = fields
        .into_iter()
        .map(|(key, text)| Ok((key.into_owned(), value(text, budget)?)));
    let message = Message {
        role,
        content,
        extra: extra.collect::<Result<Map<_, _>, _>>()?,
    };
    check_trained(position, &message)?;
    Ok(message)
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

/// What is said: a text, nothing, or a list of texts as OpenAI's protocol has them, each of which gets a line.
fn content(position: usize, given: &str) -> Result<String, Mismatch> {
    let expected = || format!("`content` of message {position} to be a text or a list of texts");
    match given.as_bytes().first() {
        Some(b'n') => Ok(String::new()),
        Some(b'[') => {
            let parts = items(given).map(|part| match part.as_bytes().first() {
                Some(b'"') => text(part, expected),
                Some(b'{') => content_part(part, expected),
                _ => Err(Mismatch::new(expected(), format!("{} in it", kind(part)))),
            });
            Ok(parts.collect::<Result<Vec<String>, _>>()?.join("\n"))
        }
        _ => text(given, expected),
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

fn text(given: &str, expected: impl Fn() -> String) -> Result<String, Mismatch> {
    serde_json::from_str(given).map_err(|error| {
        // That it is JSON is known by now, but not that each half of a surrogate pair has its other half.
        let found = match given.as_bytes().first() {
            Some(b'"') => format!("a text with half of a surrogate pair: {}", fault(&error)),
            _ => kind(given),
        };
        Mismatch::new(expected(), found)
    })
}

fn sample(tokens: &str, fields: &Fields<'_>) -> Result<Sample, Mismatch> {
    let given = |key: &str| {
        fields
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| *value)
    };
    let tokens = integers(tokens, "the token ids", |token| {
        u32::try_from(token)
            .map_err(|_| Mismatch::new("token ids from 0 to 4294967295", format!("`{token}`")))
    })?;
    let loss_mask = if let Some(mask) = given("loss_mask") {
        integers(mask, "`loss_mask`", |bit| match bit {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Mismatch::new(
                "`loss_mask` of 0 and 1",
                format!("`{other}`"),
            )),
        })?
    } else if let Some(labels) = given("labels") {
        let labels = integers(labels, "`labels`", Ok)?;
        check_labels(&tokens, &labels)?;
        labels.iter().map(|&label| label != IGNORED_LABEL).collect()
    } else {
        return Err(Mismatch::new(
            "`loss_mask` or `labels` beside the token ids",
            keys(fields),
        ));
    };
    if tokens.is_empty() || tokens.len() != loss_mask.len() {
        return Err(Mismatch::new(
            "at least one token and a mask of the same length",
            format!("{} tokens and a mask of {}", tokens.len(), loss_mask.len()),
        ));
    }
    Ok(Sample { tokens, loss_mask })
}

/// Fails at the first label that would have the token at its place trained on as if it were another.
fn check_labels(tokens: &[u32], labels: &[i64]) -> Result<(), Mismatch> {
    let differs =
        |(&token, &label): (&u32, &i64)| label != IGNORED_LABEL && label != i64::from(token);
    let mut each = tokens.iter().zip(labels);
    let Some(at) = each
        .position(differs)
        .filter(|_| tokens.len() == labels.len())
    else {
        return Ok(());
    };
    let (place, token, label) = (at + 1, tokens[at], labels[at]);
    let shifted = tokens
        .get(at + 1)
        .is_some_and(|&next| label == i64::from(next));
    let next = if shifted { ", the token behind it" } else { "" };
    Err(Mismatch::new(
        format!(
            "label {place} of `labels` to be {IGNORED_LABEL} or the token at the same place, `{token}` (labels are not shifted)"
        ),
        format!("`{label}`{next}"),
    ))
}

fn integers<T>(
    list: &str,
    what: &str,
    read: impl Fn(i64) -> Result<T, Mismatch>,
) -> Result<Vec<T>, Mismatch> {
    let expected = || format!("{what} to be a list of integers");
    if !list.starts_with('[') {
        return Err(Mismatch::new(expected(), kind(list)));
    }
    let item = |item: &str| match serde_json::from_str::<Integer>(item) {
        Ok(Integer(number)) => read(number),
        Err(_) => Err(Mismatch::new(expected(), format!("{} in it", kind(item)))),
    };
    items(list).map(item).collect()
}

/// An integer, or a truth value as 0 or 1.
struct Integer(i64);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Integer;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an integer")
            }

            fn visit_bool<E: de::Error>(self, bit: bool) -> Result<Integer, E> {
                Ok(Integer(bit.into()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Integer, E> {
                Ok(Integer(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Integer, E> {
                i64::try_from(number).map(Integer).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(value: Value) -> Vec<Message> {
        match Row::from_json(&value.to_string()).unwrap().content {
            Content::Conversation(conversation) => conversation.messages,
            Content::Tokens(sample) => panic!("{sample:?}"),
        }
    }

    #[test]
    fn both_spellings_of_a_conversation_read_the_same() {
        let ours = messages(json!({"messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}));
        let theirs = messages(json!({"id": 3, "conversations": [
            {"from": "system", "value": "s"}, {"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]}));
        let beside = messages(json!({"system": "s", "conversations": [
            {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}));
        assert_eq!(ours, theirs);
        assert_eq!(ours, beside);
        assert_eq!(ours[2], Message::new("assistant", "a"));
    }

    #[test]
    fn further_keys_of_a_message_are_kept_and_nulls_dropped() {
        let read = messages(json!({"messages": [
            {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}], "reasoning_content": "r", "name": null}]}));
        assert_eq!(read[0].content, "");
        assert_eq!(
            read[0].extra.keys().collect::<Vec<_>>(),
            ["tool_calls", "reasoning_content"]
        );
    }

    #[test]
    fn tokens_take_their_mask_from_either_column() {
        let expected = Row::from(Sample {
            tokens: vec![5, 6, 7],
            loss_mask: vec![false, true, true],
        });
        for row in [
            json!({"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}),
            json!({"tokens": [5, 6, 7], "loss_mask": [false, true, true]}),
            json!({"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "loss_mask": null}),
        ] {
            assert_eq!(Row::from_json(&row.to_string()).unwrap(), expected);
        }
    }

    #[test]
    fn labels_that_are_not_the_tokens_at_their_places_are_refused() {
        let refused = |labels: Value| {
            let row = json!({"input_ids": [1, 100, 200, 300, 2], "labels": labels});
            Row::from_json(&row.to_string()).unwrap_err()
        };
        let shifted = refused(json!([100, 200, 300, 2, -100]));
        assert_eq!(
            shifted.expected,
            "label 1 of `labels` to be -100 or the token at the same place, `1` (labels are not shifted)"
        );
        assert_eq!(shifted.found, "`100`, the token behind it");
        let other = refused(json!([-100, -100, 200, -1, 2]));
        assert!(other.expected.starts_with("label 4 of"), "{other:?}");
        assert_eq!(other.found, "`-1`");
        let short = refused(json!([100, 200]));
        assert_eq!(short.found, "5 tokens and a mask of 2");
        // Where there is a mask nothing is read from the labels.
        let row = json!({"input_ids": [1, 2], "labels": [2, -100], "loss_mask": [0, 1]});
        assert!(Row::from_json(&row.to_string()).is_ok());
    }

    #[test]
    fn half_a_surrogate_pair_is_named_as_what_is_wrong_with_a_text() {
        let of = |row: &str| Row::from_json(row).unwrap_err();
        for content in [r#""a\ud800""#, r#"[{"type":"text","text":"a\ud800"}]"#] {
            let row = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
            let found = of(&row).found;
            assert!(
                found.starts_with("a text with half of a surrogate pair: ")
                    && found.contains("hex escape at column"),
                "{found}"
            );
        }
        let further = of(r#"{"messages":[{"role":"user","content":"a","name":"\ud800"}]}"#);
        assert!(further.expected.contains("surrogate"), "{further:?}");
        assert!(further.found.contains("hex escape"), "{further:?}");
    }

    #[test]
    fn tokens_with_their_mask_are_read_where_a_conversation_stands_beside_them() {
        let said = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        let text = format!(
            r#"{{"messages":{said},"id":1,"input_ids":[5,6],"loss_mask":[0,1],"tools":[]}}"#
        );
        let row = Row::from_json(&text).unwrap();
        let expected = Sample {
            tokens: vec![5, 6],
            loss_mask: vec![false, true],
        };
        assert_eq!(row.content, Content::Tokens(expected));
        assert!(row.has_conversation_beside());
        let written = row.to_json();
        assert_eq!(
            written,
            format!(
                r#"{{"input_ids":[5,6],"loss_mask":[0,1],"id":1,"messages":{said},"tools":[]}}"#
            )
        );
        assert_eq!(Row::from_json(&written).unwrap(), row);
        // One with an image has no other form, one of texts has.
        assert_eq!(row.clone().or_conversation(), row);
        let of_texts = text.replace(&said.to_string(), r#"[{"role":"user","content":"u"}]"#);
        let row = Row::from_json(&of_texts).unwrap().or_conversation();
        assert_eq!(
            row.to_json(),
            r#"{"messages":[{"role":"user","content":"u"}],"id":1}"#
        );
        let alone = r#"{"input_ids":[1],"loss_mask":[1],"tools":[]}"#;
        assert!(!Row::from_json(alone).unwrap().has_conversation_beside());
    }

    #[test]
    fn without_a_mask_or_with_empty_lists_the_conversation_is_read() {
        let said = json!([{"role": "user", "content": "u"}]);
        for beside in [
            json!({"input_ids": [5, 6]}),
            json!({"tokens": 512, "labels": [1]}),
            json!({"input_ids": [], "loss_mask": []}),
        ] {
            let mut row = beside;
            row["messages"] = said.clone();
            assert_eq!(messages(row), [Message::new("user", "u")]);
        }
        let row = json!({"messages": said, "input_ids": [1, 2], "loss_mask": [1]});
        let mismatch = Row::from_json(&row.to_string()).unwrap_err();
        assert_eq!(mismatch.found, "2 tokens and a mask of 1");
    }

    #[test]
    fn a_mismatch_says_what_was_expected_and_which_keys_are_there() {
        let reject = |row: Value| Row::from_json(&row.to_string()).unwrap_err();
        let mismatch = reject(json!({"prompt": "p", "answer": "a"}));
        assert_eq!(mismatch.expected, SHAPES);
        assert_eq!(mismatch.found, "the keys `prompt`, `answer`");
        assert_eq!(
            reject(json!({"messages": [{"role": "user", "text": "x"}]})).found,
            "the keys `role`, `text`"
        );
        let second = reject(json!({"conversations": [
            {"from": "human", "value": "x"}, {"from": "gpt", "value": null}]}));
        assert_eq!(
            second.expected,
            "message 2 with `role` and `content`, or `from` and `value`"
        );
        assert_eq!(
            second.found,
            "the keys `from`, `value`, of which `value` is null"
        );
        assert_eq!(reject(json!({"messages": []})).found, "a list of 0");
        assert_eq!(
            reject(json!({"input_ids": [1]})).expected,
            "`loss_mask` or `labels` beside the token ids"
        );
        assert_eq!(
            reject(json!({"input_ids": [1], "loss_mask": [1, 1]})).found,
            "1 tokens and a mask of 2"
        );
        assert_eq!(
            reject(json!({"input_ids": [-1], "loss_mask": [1]})).found,
            "`-1`"
        );
        assert!(
            reject(json!({"messages": [{"from": "function_call", "value": "x"}]}))
                .found
                .contains("function_call")
        );
        assert_eq!(reject(json!([1])).found, "a list of 1");
    }

    #[test]
    fn contents_in_parts_become_lines_and_other_parts_are_refused_by_name() {
        let parts = json!([{"type": "text", "text": "one"}, "two", {"type": "text", "text": ""}]);
        let read = messages(
            json!({"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": []}]}),
        );
        assert_eq!(
            (read[0].content.as_str(), read[1].content.as_str()),
            ("one\ntwo\n", "")
        );
        let image = json!([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}]);
        let row = json!({"messages": [{"role": "user", "content": image}]});
        let mismatch = Row::from_json(&row.to_string()).unwrap_err();
        assert_eq!(
            mismatch.expected,
            "`content` of message 1 to be a text or a list of texts"
        );
        assert_eq!(mismatch.found, "a part of the type `image_url`");
        let row =
            json!({"messages": [{"role": "user", "content": [{"type": "text", "value": "x"}]}]});
        let mismatch = Row::from_json(&row.to_string()).unwrap_err();
        assert_eq!(
            mismatch.found,
            "a part of the type `text` without the key `text`, with the keys `type`, `value`"
        );
    }

    #[test]
    fn tools_are_read_as_a_list_or_as_its_text() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let said = json!([{"role": "user", "content": "u"}]);
        for given in [tools.clone(), json!(tools.to_string())] {
            let row = json!({"messages": said, "tools": given});
            let Content::Conversation(read) = Row::from_json(&row.to_string()).unwrap().content
            else {
                panic!("{row}");
            };
            assert_eq!(Value::from(read.tools), tools);
        }
        for (given, found) in [
            (json!({"name": "f"}), "an object with the keys `name`"),
            (json!("f"), "at line 1"),
            (json!([1]), "`1` in it"),
        ] {
            let row = json!({"messages": said, "tools": given});
            let mismatch = Row::from_json(&row.to_string()).unwrap_err();
            assert!(
                mismatch.expected.contains("`tools`") && mismatch.found.contains(found),
                "{mismatch:?}"
            );
        }
    }

    #[test]
    fn an_answer_says_whether_it_is_trained_on_in_few_words() {
        let row = |role: &str, key: &str, value: &Value| {
            let mut answer = json!({"role": role, "content": "a"});
            answer[key] = value.clone();
            json!({"messages": [{"role": "user", "content": "u"}, answer]})
        };
        for (key, value, is_trained_on) in [
            ("weight", json!(0), false),
            ("weight", json!(1.0), true),
            ("train", json!(false), false),
            ("training", json!(true), true),
            ("weight", json!(null), true),
        ] {
            let read = messages(row("assistant", key, &value));
            assert_eq!(read[1].is_trained_on(), is_trained_on, "{key} {value}");
        }
        for (key, value, known, found) in [
            ("weight", json!(0.5), "0 or 1", "`0.5`"),
            ("weight", json!("0"), "0 or 1", "a text"),
            ("weight", json!(false), "0 or 1", "`false`"),
            ("train", json!(0), "true or false", "`0`"),
            ("training", json!([]), "true or false", "a list of 0"),
        ] {
            let refused = Row::from_json(&row("assistant", key, &value).to_string()).unwrap_err();
            let expected = format!("`{key}` of message 2 to be {known}");
            assert_eq!(refused.expected, expected);
            assert_eq!(refused.found, found);
            // What others say is not trained on whatever this says.
            assert_eq!(messages(row("user", key, &value)).len(), 2);
        }
    }

    #[test]
    fn variables_of_a_row_are_an_object_and_come_back_beside_its_messages() {
        let said = json!([{"role": "user", "content": "u"}]);
        let read = |variables: Value| {
            let row = json!({"id": 1, "chat_template_kwargs": variables, "messages": said});
            Row::from_json(&row.to_string())
        };
        let row = read(json!({"enable_thinking": false, "effort": null})).unwrap();
        let Content::Conversation(conversation) = &row.content else {
            panic!("{row:?}");
        };
        let variables = json!({"enable_thinking": false, "effort": null});
        assert_eq!(Value::from(conversation.variables.clone()), variables);
        let written = row.to_json();
        assert_eq!(
            written,
            format!(r#"{{"messages":{said},"chat_template_kwargs":{variables},"id":1}}"#)
        );
        assert_eq!(Row::from_json(&written).unwrap(), row);
        for none in [json!(null), json!({})] {
            let written = read(none).unwrap().to_json();
            assert_eq!(written, format!(r#"{{"messages":{said},"id":1}}"#));
        }
        let refused = |variables: Value| read(variables).unwrap_err();
        let other = refused(json!("{}"));
        assert_eq!(other.expected, "`chat_template_kwargs` to be an object");
        assert_eq!(other.found, "a text");
        let own = refused(json!({"tools": []}));
        assert_eq!(
            own.to_string(),
            "expected only variables of the template itself in `chat_template_kwargs`, found `tools`, which the program sets"
        );
        // They stay with a row of tokens, whose conversation may be read in their place.
        let mut both = json!({"input_ids": [5, 6], "loss_mask": [0, 1], "messages": said});
        both["chat_template_kwargs"] = variables.clone();
        let row = Row::from_json(&both.to_string()).unwrap();
        assert!(row.to_json().contains("\"chat_template_kwargs\":{"));
        let Content::Conversation(conversation) = row.or_conversation().content else {
            panic!("tokens");
        };
        assert_eq!(Value::from(conversation.variables), variables);
        // So they do where there is no conversation.
        let alone =
            format!(r#"{{"input_ids":[5],"loss_mask":[1],"chat_template_kwargs":{variables}}}"#);
        assert_eq!(Row::from_json(&alone).unwrap().to_json(), alone);
    }

    #[test]
    fn messages_are_read_as_a_list_or_as_its_text() {
        let said =
            json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "\"a\" é"}]);
        let spoken = json!([{"from": "human", "value": "u"}, {"from": "gpt", "value": "\"a\" é"}]);
        let expected = messages(json!({"messages": said}));
        for row in [
            json!({"messages": said.to_string()}),
            json!({"messages": format!(" {said:#}\n")}),
            json!({"conversations": spoken.to_string(), "input_ids": [5]}),
        ] {
            assert_eq!(messages(row), expected);
        }
        let row = json!({"messages": said.to_string(), "id": 1}).to_string();
        let written = Row::from_json(&row).unwrap().to_json();
        assert_eq!(written, format!(r#"{{"messages":{said},"id":1}}"#));
        for (given, found) in [
            (json!("hello"), "a text that is no JSON: "),
            (
                json!("{\"role\": \"user\"}"),
                "an object with the keys `role`",
            ),
            (json!("[]"), "a list of 0"),
            (json!(said.to_string() + "x"), "a text that is no JSON: "),
            (json!(json!(said.to_string()).to_string()), "a text"),
            (json!(3), "`3`"),
        ] {
            let refused = Row::from_json(&json!({ "messages": given }).to_string()).unwrap_err();
            assert_eq!(refused.expected, MESSAGES);
            assert!(refused.found.starts_with(found), "{given}: {refused:?}");
        }
    }

    #[test]
    fn other_keys_come_back_as_they_stood() {
        let text = r#"{"id":"é\u0041","messages":[{"role":"user","content":"u"}],"score":1.50,"system":null,"more":{"a":[1, 2]}}"#;
        let row = Row::from_json(text).unwrap();
        let written = row.to_json();
        assert_eq!(
            written,
            r#"{"messages":[{"role":"user","content":"u"}],"id":"é\u0041","score":1.50,"more":{"a":[1, 2]}}"#
        );
        assert_eq!(Row::from_json(&written).unwrap(), row);
        let tokens = r#"{"input_ids":[1,2],"loss_mask":[0,1],"id":7}"#;
        assert_eq!(Row::from_json(tokens).unwrap().to_json(), tokens);
    }

    #[test]
    fn a_row_beyond_the_limits_is_refused_and_a_long_one_is_not() {
        let refused = |messages: String| {
            let row = format!(r#"{{"messages": [{messages}]}}"#);
            Row::from_json(&row).unwrap_err().expected
        };
        let user = r#"{"role":"user","content":""}"#;
        assert_eq!(
            refused(vec![user; MOST_MESSAGES + 1].join(",")),
            "at most 100000 messages"
        );
        let many = vec!["[]"; MOST_VALUES].join(",");
        let values = format!(r#"{{"role":"user","content":"","more":[{many}]}}"#);
        let expected = "at most 200000 values in further keys of messages, in `tools` and in `chat_template_kwargs`";
        assert_eq!(refused(values), expected);
        // They are counted together.
        let half = vec!["[]"; MOST_VALUES / 2].join(",");
        let both = format!(
            r#"{{"chat_template_kwargs":{{"a":[{half}]}},"messages":[{{"role":"user","content":"","more":[{half}]}}]}}"#
        );
        assert_eq!(Row::from_json(&both).unwrap_err().expected, expected);
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let nested = format!(r#"{{"role":"user","content":"","more":{deep}}}"#);
        assert!(refused(nested).contains("not too deep"));
        let keys: Vec<String> = (0..2000).map(|n| format!("\"{n}\":1")).collect();
        assert_eq!(
            refused(format!("{{{}}}", keys.join(","))),
            "a message of at most 1000 keys"
        );
        let long = "word ".repeat(2_000_000);
        assert_eq!(
            messages(json!({"messages": [{"role": "user", "content": long}]}))[0]
                .content
                .len(),
            10_000_000
        );
        // Of no account, they are not taken apart.
        let beside = format!(r#"{{"messages":[{user}],"more":[{many}],"deep":{deep}}}"#);
        assert!(Row::from_json(&beside).is_ok());
    }
}
