//! To how many samples something happened, and where the first few of them stand.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Places a category of a report names.
const EXAMPLES: usize = 5;

/// How many samples something happened to, and where the first few of them stand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Category {
    /// How many.
    pub count: u64,
    /// Places of the first few.
    pub examples: Vec<String>,
    /// Places of all others, where they are [wanted](Self::new).
    #[serde(skip)]
    others: Option<Vec<String>>,
}

impl Category {
    /// One of nothing yet, which will know all places where it `lists` them.
    pub(crate) fn new(lists: bool) -> Self {
        Self {
            others: lists.then(Vec::new),
            ..Self::default()
        }
    }

    /// All places that are known.
    pub(crate) fn known(&self) -> impl Iterator<Item = &String> {
        self.examples.iter().chain(self.others.iter().flatten())
    }

    /// Whether nothing happened to any.
    pub fn is_none(&self) -> bool {
        self.count == 0
    }

    /// What to say of rows that cannot be used.
    pub fn left_out(&self) -> String {
        format!(
            "rows that cannot be used, which are left out: {} ({})",
            self.count,
            self.places()
        )
    }

    /// The places of the first few, each file once with its rows: `` `a.jsonl` rows 1, 2, 5; … ``.
    pub(crate) fn places(&self) -> String {
        let same = |one: &String, other: &String| match (place(one), place(other)) {
            (Some((file, _, said)), Some(other)) => (file, said) == (other.0, other.2),
            _ => false,
        };
        let together = self.examples.chunk_by(same);
        let mut places: Vec<String> = together.map(rows_of_one_file).collect();
        if self.count > self.examples.len() as u64 {
            places.push("…".to_owned());
        }
        places.join("; ")
    }

    /// Counts those of another one, too.
    pub(crate) fn take(&mut self, other: Self) {
        self.count += other.count;
        let free = EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(free));
    }

    /// Counts one more.
    pub(crate) fn add(&mut self, place: impl fmt::Display) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(place.to_string());
        } else if let Some(others) = &mut self.others {
            others.push(place.to_string());
        }
    }
}

/// A place in its parts: the file behind a mark, the row, and what is said of it.
pub(crate) fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (file, rest) = text.split_once("` row ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (row, said) = rest.split_at(digits);
    (!row.is_empty()).then_some((file, row, said))
}

/// The same of a place that can stand beside others.
fn place(text: &str) -> Option<(&str, &str, &str)> {
    parts(text).filter(|(_, _, said)| said.is_empty() || said.starts_with(": "))
}

/// Places of which the same is said in one file, as one.
fn rows_of_one_file(places: &[String]) -> String {
    let parts = places.iter().filter_map(|text| place(text));
    let mut rows: Vec<&str> = parts.map(|(_, row, _)| row).collect();
    // A row can have several samples.
    rows.dedup();
    match (places.first().and_then(|text| place(text)), rows.len()) {
        (Some((file, _, said)), 2..) => format!("{file}` rows {}{said}", rows.join(", ")),
        _ => places.first().cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_file_are_named_together() {
        let places = |count, examples: &[&str]| {
            let examples = examples.iter().map(|place| (*place).to_owned()).collect();
            let category = Category {
                count,
                examples,
                others: None,
            };
            category.places()
        };
        assert_eq!(places(1, &["`a b.jsonl` row 3"]), "`a b.jsonl` row 3");
        assert_eq!(places(2, &["`a` row 3", "`a` row 3"]), "`a` row 3");
        assert_eq!(
            places(9, &["`a` row 1", "`a` row 2", "`a` row 2", "`b` row 1"]),
            "`a` rows 1, 2; `b` row 1; …"
        );
        assert_eq!(
            places(
                3,
                &["`a` row 1: wrong", "`a` row 2: wrong", "`a` row 4: worse"]
            ),
            "`a` rows 1, 2: wrong; `a` row 4: worse"
        );
        assert_eq!(
            places(
                3,
                &[
                    "`a` row 1 is not JSON: x",
                    "`a` row 2 is not JSON: x",
                    "elsewhere"
                ]
            ),
            "`a` row 1 is not JSON: x; `a` row 2 is not JSON: x; elsewhere"
        );
    }
}
