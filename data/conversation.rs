//! What a row of a dataset can be: a conversation, or tokens with their loss mask.

use std::fmt::Write as _;

use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

pub mod parse;

/// The key of a message that holds reasoning apart from what is said.
pub const REASONING: &str = "reasoning_content";

/// The name that vLLM has for [`REASONING`].
pub(crate) const OTHER_REASONING: &str = "reasoning";

/// The marks between which targets write their reasoning, where nobody has taken it apart.
pub const THOUGHT: [&str; 2] = ["<think>", "</think>"];

/// The key of a message that says that the target was stopped before it ended: the end of its turn is not the target's.
pub const CUT_OFF: &str = "truncated";

/// OpenAI's key of an assistant's message that says whether it is trained on: 0 or 1.
pub const WEIGHT: &str = "weight";

/// The keys of an assistant's message that say whether it is trained on: [`WEIGHT`], and two as Axolotl's data has them, which are
/// truth values.
pub const TRAINED: [&str; 3] = [WEIGHT, "train", "training"];

/// The key of a row with variables of its own for the chat template, and of a request with those that a server renders with.
pub const TEMPLATE_KEY: &str = "chat_template_kwargs";

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Given")]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool` or what else the chat template knows.
    pub role: String,
    /// What is said; empty where an assistant only calls tools. Texts of several parts each have a line.
    pub content: String,
    /// How many bytes each part of the content has, where it was given in parts: see [`Self::texts`].
    pub(crate) parts: Vec<usize>,
    /// Further keys the template may read (`reasoning_content`, `tool_calls`, …), passed on as they are.
    pub extra: Map<String, Value>,
}

/// A message as it was [serialised](Message).
#[derive(Deserialize)]
struct Given {
    role: String,
    content: Said,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    text: String,
}

impl From<Given> for Message {
    fn from(given: Given) -> Self {
        let (content, parts) = match given.content {
            Said::Text(text) => (text, Vec::new()),
            Said::Parts(parts) => {
                let texts = parts.into_iter().map(|part| part.text);
                in_lines(&texts.collect::<Vec<_>>())
            }
        };
        Self {
            role: given.role,
            content,
            parts,
            extra: given.extra,
        }
    }
}

impl Message {
    /// A message without further keys.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            parts: Vec::new(),
            extra: Map::new(),
        }
    }

    /// The texts of its parts, where its content was given in parts and still has them.
    pub fn texts(&self) -> Option<Vec<&str>> {
        let mut texts = Vec::with_capacity(self.parts.len());
        let mut rest = Some(self.content.as_str());
        for &length in &self.parts {
            let (text, behind) = rest?.split_at_checked(length)?;
            texts.push(text);
            rest = match behind {
                "" => None,
                _ => Some(behind.strip_prefix('\n')?),
            };
        }
        rest.is_none().then_some(texts)
    }

    /// Whether the target wrote it: what a drafter learns to predict.
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    /// Whether whoever wrote it was stopped before its end.
    pub fn is_cut_off(&self) -> bool {
        self.extra.get(CUT_OFF) == Some(&Value::Bool(true))
    }

    /// Whether none of its [keys](TRAINED) says that it is only context.
    pub fn is_trained_on(&self) -> bool {
        let mut said = TRAINED
            .iter()
            .filter_map(|&key| Some((key, self.extra.get(key)?)));
        said.all(|(key, value)| match key {
            WEIGHT => value.as_f64() != Some(0.0),
            _ => value.as_bool() != Some(false),
        })
    }
}

/// As a row has it: the content is a list of parts where [`Message::texts`] has some.
impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(2 + self.extra.len()))?;
        fields.serialize_entry("role", &self.role)?;
        match self.texts() {
            Some(texts) => fields.serialize_entry("content", &in_parts(&texts))?,
            None => fields.serialize_entry("content", &self.content)?,
        }
        for (key, value) in &self.extra {
            fields.serialize_entry(key, value)?;
        }
        fields.end()
    }
}

/// A content with a line for each of these parts, and how many bytes each has.
pub(crate) fn in_lines(parts: &[String]) -> (String, Vec<usize>) {
    (parts.join("\n"), parts.iter().map(String::len).collect())
}

/// Texts as the parts of a content.
pub(crate) fn in_parts(texts: &[&str]) -> Value {
    let part = |text: &&str| json!({"type": "text", "text": text});
    texts.iter().map(part).collect()
}

/// Messages in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conversation {
    /// At least one.
    pub messages: Vec<Message>,
    /// Definitions of the tools that the assistant may call; the chat template shows them.
    pub tools: Vec<Value>,
    /// Variables that the chat template reads in place of those that it has for all rows.
    pub variables: Map<String, Value>,
}

/// Messages, or the first of them, as a chat template gets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange<'a> {
    /// In order.
    pub messages: &'a [Message],
    /// See [`Conversation::tools`].
    pub tools: &'a [Value],
    /// See [`Conversation::variables`].
    pub variables: Option<&'a Map<String, Value>>,
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
            variables: None,
        }
    }
}

impl<'a> From<&'a Conversation> for Exchange<'a> {
    fn from(conversation: &'a Conversation) -> Self {
        Self {
            messages: &conversation.messages,
            tools: &conversation.tools,
            variables: Some(&conversation.variables),
        }
    }
}

impl Conversation {
    /// A conversation without tools and variables.
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }

    /// The conversation as the fields of a row.
    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("messages".into(), json!(self.messages));
        if !self.tools.is_empty() {
            fields.insert("tools".into(), json!(self.tools));
        }
        if !self.variables.is_empty() {
            fields.insert(TEMPLATE_KEY.into(), json!(self.variables));
        }
        fields
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
pub struct Row {
    /// What it is for.
    pub content: Content,
    /// Its other keys (an id, a score, a source) with their values as JSON: of no account here, but kept.
    pub extra: Vec<(String, String)>,
}

/// What a row holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Messages, still to be rendered and tokenised.
    Conversation(Conversation),
    /// Tokens made by another program.
    Tokens(Sample),
}

impl From<Conversation> for Row {
    fn from(conversation: Conversation) -> Self {
        Self {
            content: Content::Conversation(conversation),
            extra: Vec::new(),
        }
    }
}

impl From<Sample> for Row {
    fn from(sample: Sample) -> Self {
        Self {
            content: Content::Tokens(sample),
            extra: Vec::new(),
        }
    }
}

/// The keys of a conversation, which stay with a row that is read by its tokens.
pub(crate) const BESIDE: [&str; 5] = ["messages", "conversations", "system", "tools", TEMPLATE_KEY];

impl Row {
    /// Whether a conversation stands beside the tokens that the row was read by.
    pub fn has_conversation_beside(&self) -> bool {
        let is_one = |key: &str| BESIDE[..2].contains(&key);
        let is_tokens = matches!(self.content, Content::Tokens(_));
        is_tokens && self.extra.iter().any(|(key, _)| is_one(key))
    }

    /// The conversation that stands beside the tokens of a row, in their place; the same row where there is none that can be read.
    #[must_use]
    pub fn or_conversation(self) -> Self {
        if !self.has_conversation_beside() {
            return self;
        }
        let fields = self.extra.iter();
        let fields = fields.map(|(key, value)| format!("{}:{value}", Value::from(key.as_str())));
        let text = format!("{{{}}}", fields.collect::<Vec<_>>().join(","));
        Self::from_json(&text).unwrap_or(self)
    }

    /// The row as a JSON object on one line, with its other keys behind what it is for.
    pub fn to_json(&self) -> String {
        let mut text = match &self.content {
            Content::Conversation(conversation) => Value::Object(conversation.fields()).to_string(),
            Content::Tokens(Sample { tokens, loss_mask }) => {
                let mask: Vec<u8> = loss_mask.iter().map(|&bit| bit.into()).collect();
                json!({"input_ids": tokens, "loss_mask": mask}).to_string()
            }
        };
        text.pop();
        for (key, value) in &self.extra {
            // Into a text one can always write.
            _ = write!(text, ",{}:{value}", Value::from(key.as_str()));
        }
        text.push('}');
        text
    }
}

/// The keys a row is read from.
pub const KEYS: [&str; 9] = [
    "messages",
    "conversations",
    "input_ids",
    "tokens",
    "loss_mask",
    "labels",
    "system",
    "tools",
    TEMPLATE_KEY,
];

/// Keys of a row that reports break acceptance down by: the category and the language, where rows have them.
pub const LABELS: [&str; 2] = ["category", "language"];

/// The key that rows of tokens of one conversation have alike: the hexadecimal SHA-256 of the tokens before its first answer, each as
/// four bytes, the lowest first.
pub const CONVERSATION: &str = "conversation_sha256";

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
