//! Which columns of a table are read.

use arrow::datatypes::{DataType, Fields};

use crate::conversation::{CONVERSATION, KEYS, LABELS, TEMPLATE_KEY};

/// Which columns of a Parquet file are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Columns {
    /// Those that a row is read from, its labels, and [`CONVERSATION`].
    Needed,
    /// All of them.
    All,
    /// These.
    Named(Named),
}

/// Columns by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// All of these must be there.
    pub all: Vec<String>,
    /// One of these must be there, unless there are none.
    pub one: Vec<String>,
    /// These are read where they are there and hold texts or numbers, and [`TEMPLATE_KEY`] whatever it holds.
    pub more: Vec<String>,
}

impl Columns {
    /// The places of those to read among the columns of a file; `None` for all. Fails with what is missing.
    pub(super) fn among(&self, fields: &Fields) -> Result<Option<Vec<usize>>, String> {
        let place = |name: &str| fields.iter().position(|field| field.name() == name);
        let (all, one, more): (Vec<&str>, Vec<&str>, Vec<&str>) = match self {
            Self::Needed | Self::All => {
                let more = LABELS.into_iter().chain([CONVERSATION]);
                (Vec::new(), KEYS.to_vec(), more.collect())
            }
            Self::Named(Named { all, one, more }) => (texts(all), texts(one), texts(more)),
        };
        if let Some(missing) = all.iter().find(|name| place(name).is_none()) {
            return Err(format!("a column `{missing}`"));
        }
        if !one.is_empty() && one.iter().all(|name| place(name).is_none()) {
            return Err(match self {
                Self::Named(_) => format!("a column `{}`", one.join("`, `")),
                _ => "a column `messages`, `conversations`, `input_ids` or `tokens`".into(),
            });
        }
        if *self == Self::All {
            return Ok(None);
        }
        let is_read =
            |at: &usize| fields[*at].name() == TEMPLATE_KEY || is_simple(fields[*at].data_type());
        let more = more.into_iter().filter_map(place).filter(is_read);
        let mut wanted: Vec<usize> = all.into_iter().chain(one).filter_map(place).collect();
        wanted.extend(more);
        wanted.sort_unstable();
        wanted.dedup();
        Ok(Some(wanted))
    }
}

fn texts(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// Whether a cell of this type is a text, a number or a truth value.
fn is_simple(kind: &DataType) -> bool {
    match kind {
        // Columns of categories in pandas and Polars.
        DataType::Dictionary(_, value) => is_simple(value),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Boolean => true,
        other => other.is_integer(),
    }
}
