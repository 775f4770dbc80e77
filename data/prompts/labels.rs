//! The labels of prompts, by which reports break acceptance down.

use serde::{Deserialize, Serialize};
use spectrain_checkpoints::Mismatch;

use crate::conversation::{LABELS, Row};
use crate::json::keys;
use crate::prompts::cells::{Values, given, said};

/// By what reports break acceptance down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// What kind of task it is, in the words of its dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The language, in the words of its dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

impl Labels {
    /// Those in the columns of a prompt; a column that is named must be there.
    pub(super) fn of(values: &Values, named: [Option<&str>; 2]) -> Result<Self, Mismatch> {
        let label = |at: usize| {
            let column = named[at].unwrap_or(LABELS[at]);
            match given(column, values) {
                Some(value) => Ok(Some(said(column, value)?).filter(|said| !said.is_empty())),
                None if named[at].is_none() => Ok(None),
                None => {
                    let expected =
                        format!("a column `{column}` (`{}` can name another)", LABELS[at]);
                    Err(Mismatch::new(expected, keys(values)))
                }
            }
        };
        Ok(Self {
            category: label(0)?,
            language: label(1)?,
        })
    }

    /// Those of a row of conversations, which may have them among its other keys.
    pub fn of_row(row: &Row) -> Self {
        let label = |at: usize| {
            let (_, value) = row.extra.iter().find(|(name, _)| name == LABELS[at])?;
            let is_simple = value != "null" && !value.starts_with(['[', '{']);
            let said = is_simple.then(|| said(LABELS[at], value).ok())?;
            said.filter(|said| !said.is_empty())
        };
        Self {
            category: label(0),
            language: label(1),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.category.is_none() && self.language.is_none()
    }
}
