//! What happens to rows that cannot be used.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What happens to a row that cannot be read, or that the chat template refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unusable {
    /// The program stops and names the file, the row and what is wrong.
    #[default]
    Refuse,
    /// The row is left out, counted and reported.
    Drop,
}

impl Unusable {
    /// Whether it is for this error that a row is left out.
    pub fn drops(self, error: &Error) -> bool {
        self == Self::Drop && error.is_of_row()
    }

    /// The rows without those that are left out.
    pub fn without<T>(
        self,
        rows: impl Iterator<Item = Result<T>>,
    ) -> impl Iterator<Item = Result<T>> {
        rows.filter(move |row| !matches!(row, Err(error) if self.drops(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_checkpoints::Mismatch;

    #[test]
    fn what_is_wrong_with_one_row_is_dropped_and_what_is_wrong_with_all_is_not() {
        let location = || "`a.jsonl` row 3".to_owned();
        let of_rows = || {
            [
                Error::NotJson {
                    location: location(),
                    fault: String::new(),
                },
                Error::Row {
                    location: location(),
                    mismatch: Mismatch::new("a", "b"),
                },
                Error::At {
                    location: location(),
                    source: Box::new(Error::TemplateEndless { limit: 1 }),
                },
            ]
        };
        let of_all = || {
            [
                Error::NoTemplate {
                    location: location(),
                },
                Error::TokenOutsideVocabulary {
                    location: location(),
                    token: 9,
                    vocab: 9,
                },
                Error::File {
                    path: "a.jsonl".into(),
                    mismatch: Mismatch::new("a", "b"),
                },
            ]
        };
        let left = |unusable: Unusable| {
            let rows = of_rows().into_iter().chain(of_all()).map(Err::<(), _>);
            unusable.without(rows).count()
        };
        assert_eq!((left(Unusable::Refuse), left(Unusable::Drop)), (6, 3));
    }
}
