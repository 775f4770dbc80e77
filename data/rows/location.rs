//! Where rows stand.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::conversation::Row;

/// The longest row, in bytes of JSON.
pub const LONGEST_ROW: usize = 32 << 20;

/// Where a row stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file, or the name of what generated the row.
    pub file: Arc<Path>,
    /// Line of a text file, or row of a table or list, from 1.
    pub row: usize,
}

impl Location {
    /// The place of one row.
    pub fn new(file: impl AsRef<Path>, row: usize) -> Self {
        Self {
            file: Arc::from(file.as_ref()),
            row,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` row {}", self.file.display(), self.row)
    }
}

/// A row and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedRow {
    /// Where it stands.
    pub location: Location,
    /// The row.
    pub row: Row,
    /// How often its samples are taken: once, unless its source has a weight.
    pub copies: usize,
}

impl LocatedRow {
    /// A row that is taken once.
    pub fn new(location: Location, row: impl Into<Row>) -> Self {
        Self {
            location,
            row: row.into(),
            copies: 1,
        }
    }
}
