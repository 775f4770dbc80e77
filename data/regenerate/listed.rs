//! Rows that a report lists, by the files that they stand in.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rows::Location;
use crate::words::by_count;

/// Rows that a line for people names.
pub(super) const EXAMPLES: usize = 10;

/// Lines of text files, and rows of tables and lists, from 1, by the files that they stand in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ListedRows(BTreeMap<String, Vec<usize>>);

impl ListedRows {
    /// Adds a row, which stands behind those of its file that are listed.
    pub fn add(&mut self, place: &Location) {
        let file = place.file.display().to_string();
        self.0.entry(file).or_default().push(place.row);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.values().map(|rows| rows.len() as u64).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for ListedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = EXAMPLES;
        for (number, (file, rows)) in self.0.iter().enumerate() {
            let shown: Vec<String> = rows.iter().take(left).map(usize::to_string).collect();
            if shown.is_empty() {
                break;
            }
            left -= shown.len();
            let between = if number > 0 { "; " } else { "" };
            let row = by_count(rows.len() as u64, ["row", "rows"]);
            write!(f, "{between}`{file}` {row} {}", shown.join(", "))?;
        }
        match self.count() > EXAMPLES as u64 {
            true => write!(f, ", …"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_by_their_files_and_only_the_first_of_many() {
        let listed = |rows: &[(&str, usize)]| {
            let mut listed = ListedRows::default();
            for (file, row) in rows {
                listed.add(&Location::new(file, *row));
            }
            listed
        };
        let few = listed(&[("a", 3), ("b", 1), ("a", 7)]);
        assert_eq!(few.to_string(), "`a` rows 3, 7; `b` row 1");
        assert_eq!(
            serde_json::to_string(&few).unwrap(),
            r#"{"a":[3,7],"b":[1]}"#
        );
        let mut many: Vec<(&str, usize)> = (1..EXAMPLES).map(|row| ("a", row)).collect();
        many.extend([("b", 1), ("b", 2), ("c", 1)]);
        let many = listed(&many);
        let first = "`a` rows 1, 2, 3, 4, 5, 6, 7, 8, 9; `b` rows 1, …";
        assert_eq!((many.to_string().as_str(), many.count()), (first, 12));
        assert!(ListedRows::default().is_empty());
    }
}
