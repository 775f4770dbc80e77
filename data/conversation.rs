//! What a row of a dataset can be: a conversation, or tokens with their loss mask.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool` or what else the chat template knows.
    pub role: String,
    /// What is said; empty where an assistant only calls tools.
    pub content: String,
    /// Further keys the template may read (`reasoning_content`, `tool_calls`, …), passed on as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message without further keys.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            extra: Map::new(),
        }
    }

    /// Whether the target wrote it: what a drafter learns to predict.
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }
}

/// Messages in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// At least one.
    pub messages: Vec<Message>,
    /// Definitions of the tools that the assistant may call; the chat template shows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}

/// Messages, or the first of them, as a chat template gets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange<'a> {
    /// In order.
    pub messages: &'a [Message],
    /// See [`Conversation::tools`].
    pub tools: &'a [Value],
}

impl<'a> Exchange<'a> {
    /// The first `count` messages, with the same tools.
    #[must_use]
    pub fn first(self, count: usize) -> Self {
        Self {
            messages: &self.messages[..count],
            ..self
        }
    }
}

impl<'a> From<&'a [Message]> for Exchange<'a> {
    fn from(messages: &'a [Message]) -> Self {
        Self {
            messages,
            tools: &[],
        }
    }
}

impl<'a> From<&'a Conversation> for Exchange<'a> {
    fn from(conversation: &'a Conversation) -> Self {
        Self {
            messages: &conversation.messages,
            tools: &conversation.tools,
        }
    }
}

impl Conversation {
    /// A conversation without tools.
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            tools: Vec::new(),
        }
    }

    /// Index of the last assistant message.
    pub fn last_assistant(&self) -> Option<usize> {
        self.messages.iter().rposition(Message::is_assistant)
    }
}

/// Tokens and which of them are trained on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sample {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// True for every token the drafter learns to predict; as long as `tokens`.
    pub loss_mask: Vec<bool>,
}

impl Sample {
    /// How many tokens are trained on.
    pub fn trained_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|&&trained| trained).count()
    }

    /// The tokens before the first one that is trained on.
    pub fn prompt(&self) -> &[u32] {
        let end = self.loss_mask.iter().position(|&trained| trained);
        &self.tokens[..end.unwrap_or(self.tokens.len())]
    }
}

/// One row of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// Messages, still to be rendered and tokenised.
    Conversation(Conversation),
    /// Tokens made by another program.
    Tokens(Sample),
}

/// What a row should have been and what it is, both for a person to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The accepted shape.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

impl Mismatch {
    fn new(expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            expected: expected.into(),
            found: found.into(),
        }
    }
}

const SHAPES: &str =
    "`messages`, `conversations`, or `input_ids` (or `tokens`) with `loss_mask` or `labels`";

/// The keys a row is read from; others (ids, scores, sources) say nothing about the text.
pub const KEYS: [&str; 8] = [
    "messages",
    "conversations",
    "input_ids",
    "tokens",
    "loss_mask",
    "labels",
    "system",
    "tools",
];

/// The label that keeps a position out of the loss in pre-tokenised datasets.
const IGNORED_LABEL: i64 = -100;

impl Row {
    /// Reads a row in any of the accepted shapes; keys whose value is `null` count as absent.
    pub fn from_json(value: Value) -> Result<Self, Mismatch> {
        let mut row = match value {
            Value::Object(row) => row,
            other => {
                return Err(Mismatch::new(
                    format!("an object with {SHAPES}"),
                    kind(&other),
                ));
            }
        };
        row.retain(|_, value| !value.is_null());
        if row.get("tools").is_some_and(|tools| !is_blank(tools)) {
            return Err(Mismatch::new(
                "a row without tool definitions",
                "`tools`: they would have to be shown to the chat template, which is not supported",
            ));
        }
        if let Some(messages) = row
            .remove("messages")
            .or_else(|| row.remove("conversations"))
        {
            return conversation(messages, row.remove("system")).map(Self::Conversation);
        }
        if let Some(tokens) = row.remove("input_ids").or_else(|| row.remove("tokens")) {
            return sample(&tokens, &row).map(Self::Tokens);
        }
        Err(Mismatch::new(SHAPES, keys(&row)))
    }
}

fn conversation(messages: Value, system: Option<Value>) -> Result<Conversation, Mismatch> {
    let messages = match messages {
        Value::Array(messages) if !messages.is_empty() => messages,
        other => {
            return Err(Mismatch::new(
                "a list of at least one message",
                kind(&other),
            ));
        }
    };
    let mut messages: Vec<Message> = messages
        .into_iter()
        .enumerate()
        .map(|(position, value)| message(position, value))
        .collect::<Result<_, _>>()?;
    if let Some(system) = system.filter(|system| !is_blank(system)) {
        let Value::String(system) = system else {
            return Err(Mismatch::new("`system` to be a text", kind(&system)));
        };
        if messages[0].role == "system" {
            return Err(Mismatch::new(
                "one system message",
                "`system` and a first message with the role `system`",
            ));
        }
        messages.insert(0, Message::new("system", system));
    }
    Ok(Conversation::new(messages))
}

fn message(position: usize, value: Value) -> Result<Message, Mismatch> {
    let Value::Object(mut fields) = value else {
        return Err(Mismatch::new(
            format!("message {position} to be an object"),
            kind(&value),
        ));
    };
    let found = keys(&fields);
    // `content` is kept although it may be null: an assistant that calls a tool may say nothing.
    fields.retain(|key, value| key == "content" || !value.is_null());
    let text = |fields: &mut Map<String, Value>, key: &str| match fields.shift_remove(key) {
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) if key == "content" && other.is_null() => Ok(Some(String::new())),
        Some(other) => Err(Mismatch::new(
            format!("`{key}` of message {position} to be a text"),
            kind(&other),
        )),
        None => Ok(None),
    };
    let (role, content) = if fields.contains_key("role") {
        (text(&mut fields, "role")?, text(&mut fields, "content")?)
    } else {
        let role = text(&mut fields, "from")?
            .map(|from| role_of(position, &from))
            .transpose()?;
        (role, text(&mut fields, "value")?)
    };
    let content = content.or_else(|| fields.contains_key("tool_calls").then(String::new));
    match (role, content) {
        (Some(role), Some(content)) => Ok(Message {
            role,
            content,
            extra: fields,
        }),
        _ => Err(Mismatch::new(
            format!("message {position} with `role` and `content`, or `from` and `value`"),
            found,
        )),
    }
}

fn role_of(position: usize, from: &str) -> Result<String, Mismatch> {
    let role = match from {
        "human" | "user" => "user",
        "gpt" | "assistant" => "assistant",
        "system" => "system",
        "tool" => "tool",
        other => {
            return Err(Mismatch::new(
                format!(
                    "`from` of message {position} to be `human`, `user`, `gpt`, `assistant`, `system` or `tool`"
                ),
                format!("`{other}`"),
            ));
        }
    };
    Ok(role.to_owned())
}

fn sample(tokens: &Value, row: &Map<String, Value>) -> Result<Sample, Mismatch> {
    let tokens: Vec<u32> = integers(tokens, "the token ids")?
        .into_iter()
        .map(|token| {
            u32::try_from(token)
                .map_err(|_| Mismatch::new("token ids from 0 to 4294967295", format!("`{token}`")))
        })
        .collect::<Result<_, _>>()?;
    let loss_mask: Vec<bool> = if let Some(mask) = row.get("loss_mask") {
        integers(mask, "`loss_mask`")?
            .into_iter()
            .map(|bit| match bit {
                0 => Ok(false),
                1 => Ok(true),
                other => Err(Mismatch::new(
                    "`loss_mask` of 0 and 1",
                    format!("`{other}`"),
                )),
            })
            .collect::<Result<_, _>>()?
    } else if let Some(labels) = row.get("labels") {
        let labels = integers(labels, "`labels`")?;
        labels
            .into_iter()
            .map(|label| label != IGNORED_LABEL)
            .collect()
    } else {
        return Err(Mismatch::new(
            "`loss_mask` or `labels` beside the token ids",
            keys(row),
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

fn integers(value: &Value, what: &str) -> Result<Vec<i64>, Mismatch> {
    let Value::Array(items) = value else {
        return Err(Mismatch::new(
            format!("{what} to be a list of integers"),
            kind(value),
        ));
    };
    items
        .iter()
        .map(|item| match item {
            Value::Bool(bit) => Ok(i64::from(*bit)),
            other => other.as_i64().ok_or_else(|| {
                Mismatch::new(
                    format!("{what} to be a list of integers"),
                    format!("{} in it", kind(other)),
                )
            }),
        })
        .collect()
}

/// Whether a value says nothing: `null`, or an empty text, list or object.
pub(crate) fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The keys of an object as a list for a message.
fn keys(fields: &Map<String, Value>) -> String {
    if fields.is_empty() {
        return "no keys".to_owned();
    }
    let keys: Vec<String> = fields.keys().map(|key| format!("`{key}`")).collect();
    format!("the keys {}", keys.join(", "))
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "`null`".to_owned(),
        Value::Bool(bit) => format!("`{bit}`"),
        Value::Number(number) => format!("`{number}`"),
        Value::String(_) => "a text".to_owned(),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(fields) => format!("an object with {}", keys(fields)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(value: Value) -> Vec<Message> {
        match Row::from_json(value).unwrap() {
            Row::Conversation(conversation) => conversation.messages,
            Row::Tokens(sample) => panic!("{sample:?}"),
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
        let expected = Row::Tokens(Sample {
            tokens: vec![5, 6, 7],
            loss_mask: vec![false, true, true],
        });
        for row in [
            json!({"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}),
            json!({"tokens": [5, 6, 7], "loss_mask": [false, true, true]}),
            json!({"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "loss_mask": null}),
        ] {
            assert_eq!(Row::from_json(row).unwrap(), expected);
        }
    }

    #[test]
    fn a_mismatch_says_what_was_expected_and_which_keys_are_there() {
        let reject = |row: Value| Row::from_json(row).unwrap_err();
        let mismatch = reject(json!({"prompt": "p", "answer": "a"}));
        assert_eq!(mismatch.expected, SHAPES);
        assert_eq!(mismatch.found, "the keys `prompt`, `answer`");
        assert_eq!(
            reject(json!({"messages": [{"role": "user", "text": "x"}]})).found,
            "the keys `role`, `text`"
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
            reject(json!({"messages": [{"from": "bing", "value": "x"}]}))
                .found
                .contains("bing")
        );
        assert!(
            reject(json!({"tools": [{}], "messages": []}))
                .found
                .contains("tools")
        );
        assert_eq!(reject(json!([1])).found, "a list of 1");
    }
}
