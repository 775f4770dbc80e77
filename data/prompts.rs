//! Prompts to evaluate with: what is asked, turn by turn, and the labels by which a report breaks acceptance down.
//!
//! [`sets`] describes the sets that are known by name. A row of any other file shows by itself what is asked.

use spectrain_checkpoints::Mismatch;

use crate::conversation::parse::{MOST_VALUES, object, variables};
use crate::conversation::{Content, Conversation, Message, Row, TEMPLATE_KEY};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::json::{check, keys, kind};
use crate::rows::{LocatedRow, Location};

pub(crate) mod ask;
mod cells;
mod labels;
pub mod sets;

pub use ask::{Ask, Fields, Placeholder};
pub use labels::Labels;

use ask::{MESSAGES, SHAPES, TOKENS};
use cells::given;

/// A prompt of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Where it stands.
    pub location: Location,
    /// The conversation that the target continues, or its tokens.
    pub content: Content,
    /// What the user says after the first answer, after the second, …
    pub later: Vec<String>,
    /// By what reports break acceptance down.
    pub labels: Labels,
}

impl From<LocatedRow> for Asked {
    /// The conversation of a row up to its last answer, or its tokens.
    fn from(LocatedRow { location, row, .. }: LocatedRow) -> Self {
        Self {
            labels: Labels::of_row(&row),
            location,
            content: row.content,
            later: Vec::new(),
        }
    }
}

/// Reads the prompts of a dataset: of a preset its conversations, of others what these columns ask.
///
/// # Errors
/// A path leads to no file with rows. Each item fails for itself: a row that asks nothing names the file, what was expected
/// of it, and its columns.
pub fn read_prompts(
    dataset: &Dataset,
    fields: Fields,
) -> Result<Box<dyn Iterator<Item = Result<Asked>>>> {
    if dataset.is_converted() {
        return Ok(Box::new(dataset.rows()?.map(|row| row.map(Asked::from))));
    }
    let texts = dataset.texts(&fields.columns())?;
    Ok(Box::new(texts.map(move |found| {
        let (location, text) = found?;
        asked(&location, &text, &fields).map_err(|mismatch| Error::row(&location, &text, mismatch))
    })))
}

fn asked(location: &Location, text: &str, fields: &Fields) -> Result<Asked, Mismatch> {
    let text = text.trim();
    check(text).map_err(|error| Mismatch::new("one JSON object", error.to_string()))?;
    if !text.starts_with('{') {
        return Err(Mismatch::new("an object", kind(text)));
    }
    let all = object(text, "a row")?;
    let mut columns = all.clone();
    columns.retain(|(_, value)| *value != "null");
    let labels = Labels::of(
        &columns,
        [fields.category.as_deref(), fields.language.as_deref()],
    )?;
    let is_there = |key: &str| columns.iter().any(|(column, _)| column == key);
    // `tokens` may also be a number of them.
    let are_tokens = |key: &str| given(key, &columns).is_some_and(|value| value.starts_with('['));
    let is_dialogue =
        MESSAGES.iter().any(|key| is_there(key)) || TOKENS.iter().any(|key| are_tokens(key));
    let (content, later) = match &fields.ask {
        Ask::Row if is_dialogue => (Row::from_json(text)?.content, Vec::new()),
        Ask::Row if !["turns", "prompt"].iter().any(|key| is_there(key)) => {
            return Err(Mismatch::new(SHAPES, keys(&columns)));
        }
        _ => {
            // A column of a text may be empty, but not missing.
            let told = match fields.ask {
                Ask::Text(_) => &all,
                Ask::Row | Ask::Turns(_) => &columns,
            };
            let mut turns = fields.turns(told)?.into_iter();
            let first = turns.next().unwrap_or_default();
            let mut budget = MOST_VALUES;
            let first = Conversation {
                variables: variables(given(TEMPLATE_KEY, &columns), &mut budget)?,
                ..Conversation::new(vec![Message::new("user", first)])
            };
            (Content::Conversation(first), turns.collect())
        }
    };
    Ok(Asked {
        location: location.clone(),
        content,
        later,
        labels,
    })
}

#[cfg(test)]
mod tests;
