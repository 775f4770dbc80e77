//! Rows from JSON, in any of the accepted shapes and within limits.
//!
//! A row is cut into its parts and only what is needed of them is taken in, so that it takes a few times its length in
//! memory whatever it holds.

use std::borrow::Cow;

use serde_json::{Map, Value};
use spectrain_checkpoints::Mismatch;

use super::{BESIDE, Content, Conversation, KEYS, Row, TEMPLATE_KEY};
use crate::json::{check, items, keys, kind};
use crate::template::check_names;

mod messages;
#[cfg(test)]
mod tests;
mod tokens;
mod values;

use messages::conversation;
use tokens::sample;
pub(crate) use values::{MOST_VALUES, object};
use values::{inner, value};

const SHAPES: &str =
    "`messages`, `conversations`, or `input_ids` (or `tokens`) with `loss_mask` or `labels`";

/// The keys of a row of tokens.
const OF_TOKENS: [&str; 4] = ["input_ids", "tokens", "loss_mask", "labels"];

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

/// The definitions of tools: a list of objects, or such a list as a text.
fn tools(given: &str, budget: &mut usize) -> Result<Vec<Value>, Mismatch> {
    let expected = "`tools` to be a list of objects, or such a list as a text";
    let Some(list) = inner(given, expected)?.filter(|inner| inner != "{}") else {
        return Ok(Vec::new());
    };
    if !list.starts_with('[') {
        return Err(Mismatch::new(expected, kind(&list)));
    }
    let tool = |tool: &str| {
        if tool.starts_with('{') {
            value(tool, budget)
        } else {
            Err(Mismatch::new(expected, format!("{} in it", kind(tool))))
        }
    };
    items(&list).map(tool).collect()
}

/// The variables that a row has for its chat template, in an object or in such an object as a text; none where it gives none.
pub(crate) fn variables(
    given: Option<&str>,
    budget: &mut usize,
) -> Result<Map<String, Value>, Mismatch> {
    let expected = format!("`{TEMPLATE_KEY}` to be an object, or such an object as a text");
    let given = given.map(|given| inner(given, &expected)).transpose()?;
    let Some(given) = given.flatten() else {
        return Ok(Map::new());
    };
    if !given.starts_with('{') {
        return Err(Mismatch::new(expected, kind(&given)));
    }
    let fields = object(&given, &format!("`{TEMPLATE_KEY}`"))?;
    check_names(fields.iter().map(|(key, _)| key.as_ref())).map_err(|mismatch| {
        let expected = format!("{} in `{TEMPLATE_KEY}`", mismatch.expected);
        Mismatch::new(expected, mismatch.found)
    })?;
    let fields = fields.into_iter();
    fields
        .map(|(key, text)| Ok((key.into_owned(), value(text, budget)?)))
        .collect()
}
