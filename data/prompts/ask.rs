//! Which columns of a row say what is asked.

use spectrain_checkpoints::Mismatch;

use crate::conversation::{KEYS, LABELS, TEMPLATE_KEY};
use crate::json::keys;
use crate::prompts::cells::{Values, given, said, text, texts};
use crate::table::{Columns, Named};

/// The keys of a row that is a conversation by itself.
pub(super) const MESSAGES: [&str; 2] = ["messages", "conversations"];

/// The keys of a row that is tokens by itself.
pub(super) const TOKENS: [&str; 2] = ["input_ids", "tokens"];

/// What a row must have to be a prompt.
pub(super) const SHAPES: &str = "`messages`, `conversations`, `input_ids` (or `tokens`) with a mask, `turns` (a list of \
                                 texts) or `prompt` (name other columns with `template` or `turns`)";

/// The columns in which rows have the user's turns when nothing is said.
const USUAL_TURNS: [&str; 2] = ["turns", "prompt"];

/// What of a row is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// What the row itself shows: a conversation up to its last answer, tokens, or the user's turns in `turns` or `prompt`.
    Row,
    /// One text, in which `{column}` stands for what this column of the row says; without white space around it.
    Text(String),
    /// The user's turns: a list of texts, or one text, in the first of these columns that the row has.
    Turns(Vec<String>),
}

/// A text that stands in rows whose question has to be fetched from elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placeholder {
    /// The text, or how it begins.
    pub text: &'static str,
    /// What is to be done about it.
    pub remedy: &'static str,
}

/// What the columns of a file are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    /// What is asked.
    pub ask: Ask,
    /// The column with the category; without it `category`, where rows have it.
    pub category: Option<String>,
    /// The column with the language; without it `language`, where rows have it.
    pub language: Option<String>,
    /// What stands in the place of questions that are not there.
    pub placeholder: Option<Placeholder>,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            ask: Ask::Row,
            category: None,
            language: None,
            placeholder: None,
        }
    }
}

impl Fields {
    /// The columns of a table that these are read from.
    pub(crate) fn columns(&self) -> Columns {
        let owned = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let (mut all, one) = match &self.ask {
            Ask::Row => (Vec::new(), [owned(&KEYS), owned(&USUAL_TURNS)].concat()),
            Ask::Text(text) => {
                let columns = pieces(text).filter_map(|piece| match piece {
                    Piece::Column(name) => Some(name.to_owned()),
                    Piece::Text(_) => None,
                });
                (columns.collect(), Vec::new())
            }
            Ask::Turns(columns) => (Vec::new(), columns.clone()),
        };
        all.extend(self.category.iter().chain(&self.language).cloned());
        all.sort_unstable();
        all.dedup();
        Columns::Named(Named {
            all,
            one,
            more: [owned(&LABELS), owned(&[TEMPLATE_KEY])].concat(),
        })
    }

    /// A text with the columns of a row in their places, which may be empty; nothing where none is asked for.
    pub(crate) fn said(&self, values: &Values) -> Result<String, Mismatch> {
        match &self.ask {
            Ask::Text(text) => filled(text, values),
            _ => Ok(String::new()),
        }
    }

    /// What the user says, turn by turn: at least one text, none of them empty.
    pub(super) fn turns(&self, values: &Values) -> Result<Vec<String>, Mismatch> {
        let usual = || USUAL_TURNS.map(str::to_owned).to_vec();
        let turns = match &self.ask {
            Ask::Text(text) => vec![filled(text, values)?],
            Ask::Turns(columns) => listed(columns, values)?,
            Ask::Row => listed(&usual(), values)?,
        };
        if turns.is_empty() || turns.iter().any(|turn| turn.trim().is_empty()) {
            let found = match turns.len() {
                0 => "no turn".to_owned(),
                turns => format!("an empty text among {turns}"),
            };
            return Err(Mismatch::new("a question in every turn", found));
        }
        if let Some(Placeholder { text, remedy }) = self.placeholder
            && turns.iter().any(|turn| turn.contains(text))
        {
            let found = format!("the placeholder `{text}…`; {remedy}");
            return Err(Mismatch::new("a question", found));
        }
        Ok(turns)
    }
}

/// The turns in the first of some columns that is there.
fn listed(columns: &[String], values: &Values) -> Result<Vec<String>, Mismatch> {
    let found = columns
        .iter()
        .find_map(|column| Some((column, given(column, values)?)));
    match found {
        Some((column, list)) if list.starts_with('[') => texts(column, list),
        Some((column, one)) => Ok(vec![text(column, one)?]),
        None => {
            let names: Vec<String> = columns.iter().map(|name| format!("`{name}`")).collect();
            let expected = format!("a column {} (`turns` can name another)", names.join(" or "));
            Err(Mismatch::new(expected, keys(values)))
        }
    }
}

/// A text with the columns of a row in their places.
fn filled(template: &str, values: &Values) -> Result<String, Mismatch> {
    let mut text = String::new();
    for piece in pieces(template) {
        match piece {
            Piece::Text(own) => text.push_str(own),
            Piece::Column(column) => {
                // A column may be empty, as `input` of Alpaca often is, but it must be one of the file's.
                let Some(value) = given(column, values) else {
                    let expected = format!(
                        "a column `{column}` (for prompts of your own, `template` can name another)"
                    );
                    return Err(Mismatch::new(expected, keys(values)));
                };
                text.push_str(&said(column, value)?);
            }
        }
    }
    Ok(text.trim().to_owned())
}

/// A part of a template.
enum Piece<'t> {
    /// As it is.
    Text(&'t str),
    /// The name between two braces.
    Column(&'t str),
}

/// The parts of a template. Braces around anything but a name are text, as those of `\boxed{}`.
fn pieces(template: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = template;
    std::iter::from_fn(move || {
        let (start, name) = next_column(rest).unwrap_or((rest.len(), ""));
        match (start, rest.len()) {
            (_, 0) => None,
            (0, _) => {
                rest = &rest[name.len() + 2..];
                Some(Piece::Column(name))
            }
            (start, _) => {
                let (text, after) = rest.split_at(start);
                rest = after;
                Some(Piece::Text(text))
            }
        }
    })
}

/// Where the first column of a template stands, and its name.
fn next_column(template: &str) -> Option<(usize, &str)> {
    template.match_indices('{').find_map(|(start, _)| {
        let (name, _) = template[start + 1..].split_once('}')?;
        let is_name = !name.is_empty()
            && name
                .chars()
                .all(|letter| letter.is_alphanumeric() || "_-.".contains(letter));
        is_name.then_some((start, name))
    })
}
