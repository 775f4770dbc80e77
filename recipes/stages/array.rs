//! Array jobs: the stage `features` captured by many processes, each a part of the samples.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spectrain_data::features::SampleRange;

/// Parts, at most.
const MOST: u64 = 100_000;

/// What of the stage is captured, and where its parts are.
#[derive(Debug, Clone, Default)]
pub struct ArrayJob {
    /// The part that is captured; none where it is the whole stage.
    pub part: Option<PartOf>,
    /// Where the parts are, as given: a folder, or an address of one or of an object store.
    pub parts: Option<String>,
}

impl ArrayJob {
    /// The samples to capture, of so many.
    pub fn share(&self, all: usize) -> SampleRange {
        let whole = Part { part: 1, of: 1 };
        let Part { part, of } = self.part.as_ref().map_or(whole, |of| of.part);
        SampleRange::of_part(part, of, all as u64)
    }
}

/// A part of the samples: the number of one, from 1, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// Its number.
    pub part: u64,
    /// How many there are.
    pub of: u64,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "expected NUMBER/PARTS, such as 3/16 with numbers from 1 to 16, found `{given}`"
            )
        };
        let (part, of) = given.split_once('/').ok_or_else(expected)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| expected());
        let found = Self {
            part: number(part)?,
            of: number(of)?,
        };
        let is_one = (1..=found.of).contains(&found.part) && found.of <= MOST;
        is_one.then_some(found).ok_or_else(expected)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.part, self.of)
    }
}

impl Part {
    /// The name of its folder.
    pub fn folder(self) -> String {
        format!("part-{:05}-of-{:05}", self.part, self.of)
    }

    /// The part that a folder of this name is for.
    pub fn named(name: &str) -> Option<Self> {
        let (part, of) = name.strip_prefix("part-")?.split_once("-of-")?;
        let found = Self {
            part: part.parse().ok()?,
            of: of.parse().ok()?,
        };
        (found.folder() == name).then_some(found)
    }
}

/// A part that is captured, and where.
#[derive(Debug, Clone)]
pub struct PartOf {
    /// Which one.
    pub part: Part,
    /// Its folder.
    pub folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_number_of_so_many() {
        let part = |given: &str| given.parse::<Part>();
        assert_eq!(part("3/16"), Ok(Part { part: 3, of: 16 }));
        for given in [
            "0/16", "17/16", "3", "3/", "/3", "a/b", "-1/2", "1/0", "1/100001",
        ] {
            let told = part(given).unwrap_err();
            assert!(told.contains("expected NUMBER/PARTS"), "{given}: {told}");
        }
        let third = Part { part: 3, of: 16 };
        assert_eq!(Part::named(&third.folder()), Some(third));
        for name in ["part-3-of-16", "part-00003", "x", "part-00003-of-00016.old"] {
            assert_eq!(Part::named(name), None, "{name}");
        }
    }
}
