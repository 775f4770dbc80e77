//! How many rows of each source are read, where not all of a dataset is wanted.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::rows::{count_rows, known_rows};
use crate::words::{by_count, counted};

/// What of a dataset is read of more that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Rows that are read of all sources, at most.
    pub at_most: u64,
    /// Each source.
    pub sources: Vec<ReadPart>,
}

/// How much of a source is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPart {
    /// Its path or address.
    pub source: String,
    /// Rows that are read, the first ones.
    pub read: u64,
    /// Rows that it has; none where finding out would mean to read all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |part: &ReadPart| {
            let ReadPart { source, read, rows } = part;
            match rows {
                Some(rows) => {
                    let left_out = rows.saturating_sub(*read);
                    let rows = counted(*rows, "row");
                    format!("the first {read} of {rows} of `{source}`, {left_out} left out")
                }
                None => {
                    let first = by_count(*read, ["row", "rows"]);
                    let them = by_count(*read, ["it", "them"]);
                    format!(
                        "the first {read} {first} of `{source}`, those behind {them} left out, not counted"
                    )
                }
            }
        };
        let parts: Vec<String> = self.sources.iter().map(part).collect();
        write!(
            f,
            "at most {} {} read: {}",
            counted(self.at_most, "row"),
            by_count(self.at_most, ["is", "are"]),
            parts.join("; ")
        )
    }
}

/// The most rows that are read of a dataset.
#[derive(Debug)]
pub(crate) struct Cap {
    most: usize,
    parts: OnceLock<Vec<ReadPart>>,
    /// Whether a source has gone on behind the rows that were read of it.
    goes_on: AtomicBool,
}

impl Cap {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            parts: OnceLock::new(),
            goes_on: AtomicBool::new(false),
        }
    }

    /// Rows that are read, at most.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// How much is read of each of these sources, of which `files` says the names and the files. One alone gives its first rows;
    /// of several each gives its share, for which their rows are counted, once.
    pub(crate) fn parts(
        &self,
        files: impl FnOnce() -> Result<Vec<(String, Vec<PathBuf>)>>,
    ) -> Result<&[ReadPart]> {
        if let Some(parts) = self.parts.get() {
            return Ok(parts);
        }
        let (most, sources) = (self.most as u64, files()?);
        let counted = match &sources[..] {
            [(_, files)] => vec![known_rows(files)],
            several => {
                let counts = several.iter().map(|(_, files)| count_rows(files));
                counts.map(|count| count.map(Some)).collect::<Result<_>>()?
            }
        };
        let read = match &counted[..] {
            [rows] => vec![rows.map_or(most, |rows| rows.min(most))],
            several => shares(most, &several.iter().copied().flatten().collect::<Vec<_>>()),
        };
        let each = sources.into_iter().zip(read).zip(counted);
        let parts = each.map(|(((source, _), read), rows)| ReadPart { source, read, rows });
        Ok(self.parts.get_or_init(|| parts.collect()))
    }

    /// What is not read; nothing where no more is there, as far as it was read.
    pub(crate) fn left_out(&self) -> Option<LeftOut> {
        let parts = self.parts.get()?;
        let is_short = |part: &ReadPart| part.rows.is_some_and(|rows| part.read < rows);
        let is_known = parts.iter().any(is_short);
        (is_known || self.goes_on.load(Ordering::Relaxed)).then(|| LeftOut {
            at_most: self.most as u64,
            sources: parts.clone(),
        })
    }
}

/// How many of `most` rows each source gives, in the proportion of what they have; all where they have no more.
fn shares(most: u64, counts: &[u64]) -> Vec<u64> {
    let all: u64 = counts.iter().sum();
    if all <= most {
        return counts.to_vec();
    }
    let product = |count: u64| u128::from(most) * u128::from(count);
    // Less than `most`, of which all fit into 64 bits.
    let mut shares: Vec<u64> = counts
        .iter()
        .map(|&count| (product(count) / u128::from(all)) as u64)
        .collect();
    let mut by_rest: Vec<usize> = (0..counts.len()).collect();
    by_rest.sort_by_key(|&at| std::cmp::Reverse(product(counts[at]) % u128::from(all)));
    let missing = most - shares.iter().sum::<u64>();
    for at in by_rest.into_iter().take(missing as usize) {
        shares[at] += 1;
    }
    shares
}

/// How many rows of a source are wanted.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    /// All of them.
    All,
    /// So many, and whether there are more is known.
    Some(u64),
    /// So many, and whether there are more is found out.
    Unknown(u64, Arc<Cap>),
}

impl Wanted {
    /// Those of a part of what has a cap.
    pub(crate) fn of(cap: Option<&Arc<Cap>>, part: Option<&ReadPart>) -> Self {
        match (cap, part) {
            (Some(cap), Some(ReadPart { read, rows, .. })) => match rows {
                Some(_) => Self::Some(*read),
                None => Self::Unknown(*read, cap.clone()),
            },
            _ => Self::All,
        }
    }

    /// The rows that are wanted.
    pub(crate) fn first<I: Iterator>(self, rows: I) -> First<I> {
        First { rows, wanted: self }
    }
}

/// The first rows, and one more where it is to be known whether they go on.
pub(crate) struct First<I> {
    rows: I,
    wanted: Wanted,
}

impl<I: Iterator> Iterator for First<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        match &mut self.wanted {
            Wanted::All => self.rows.next(),
            Wanted::Some(left) | Wanted::Unknown(left, _) if *left > 0 => {
                *left -= 1;
                self.rows.next()
            }
            Wanted::Some(_) => None,
            Wanted::Unknown(_, cap) => {
                if !cap.goes_on.load(Ordering::Relaxed) && self.rows.next().is_some() {
                    cap.goes_on.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::path::Path;

    use serde_json::json;
    use spectrain_checkpoints::HubOptions;

    use super::*;
    use crate::dataset::Dataset;
    use crate::sources::Sources;

    #[test]
    fn shares_are_in_proportion_and_add_up() {
        assert_eq!(shares(10, &[3, 4]), [3, 4]);
        assert_eq!(shares(10, &[990, 10]), [10, 0]);
        assert_eq!(shares(10, &[100, 100, 100]), [4, 3, 3]);
        assert_eq!(shares(7, &[30, 20, 50]), [2, 1, 4]);
        let most = u64::MAX / 4;
        assert_eq!(shares(most, &[most, most, 0]).iter().sum::<u64>(), most);
    }

    fn write(folder: &Path, name: &str, rows: usize) {
        let row = |row: usize| format!("{}\n", json!({"input_ids": [row], "loss_mask": [1]}));
        let text: String = (0..rows).map(row).collect();
        std::fs::write(folder.join(name), text).unwrap();
    }

    fn dataset(folder: &Path, given: &[(&str, f64)], most: usize) -> Dataset {
        let each = given.iter();
        let each = each.map(|(name, weight)| json!({"path": folder.join(name), "weight": weight}));
        let sources: Sources = serde_json::from_value(each.collect()).unwrap();
        let dataset = sources.fetch(&HubOptions::default()).unwrap();
        dataset.at_most(Some(most))
    }

    /// The places of the rows, with their copies.
    fn read(dataset: &Dataset) -> Vec<(String, usize, usize)> {
        let rows = dataset.rows().unwrap().map(|row| {
            let row = row.unwrap();
            let file = row.location.file.file_name().unwrap().to_string_lossy();
            (file.into_owned(), row.location.row, row.copies)
        });
        rows.collect()
    }

    #[test]
    fn the_first_rows_over_all_files_are_read_and_what_is_behind_them_is_said() {
        let folder = tempfile::tempdir().unwrap();
        for (name, rows) in [("a.jsonl", 3), ("b.jsonl", 4)] {
            write(folder.path(), name, rows);
        }
        let of = |most| dataset(folder.path(), &[("", 1.0)], most);
        let found: Vec<_> = read(&of(5))
            .into_iter()
            .map(|(file, row, _)| (file, row))
            .collect();
        let expected = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)];
        let expected = expected.map(|(file, row)| (format!("{file}.jsonl"), row));
        assert_eq!(found, expected);
        let capped = of(5);
        assert_eq!(capped.left_out(), None, "nothing was read");
        for _ in 0..2 {
            assert_eq!(read(&capped).len(), 5);
            let told = capped.left_out().unwrap().to_string();
            let end = "`, those behind them left out, not counted";
            assert!(
                told.starts_with("at most 5 rows are read: the first 5 rows of `"),
                "{told}"
            );
            assert!(told.ends_with(end), "{told}");
        }
        for most in [7, 8] {
            let whole = of(most);
            assert_eq!((read(&whole).len(), whole.left_out()), (7, None));
        }
    }

    #[test]
    fn of_several_sources_each_gives_its_share_and_weights_say_how_often_it_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        for (name, rows) in [("a.jsonl", 300), ("b.jsonl", 100)] {
            write(folder.path(), name, rows);
        }
        let mixed = dataset(folder.path(), &[("a.jsonl", 1.0), ("b.jsonl", 2.0)], 8);
        let found = read(&mixed);
        let of = |name: &str| {
            let rows = found.iter().filter(|(file, ..)| file == name);
            rows.map(|(_, row, copies)| (*row, *copies))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("a.jsonl"), [1, 2, 3, 4, 5, 6].map(|row| (row, 1)));
        assert_eq!(of("b.jsonl"), [(1, 2), (2, 2)]);
        let told = mixed.left_out().unwrap().to_string();
        for expected in [
            "the first 6 of 300 rows of",
            "the first 2 of 100 rows of",
            ", 98 left out",
        ] {
            assert!(told.contains(expected), "{told}");
        }
    }

    #[test]
    fn what_is_not_wanted_of_a_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.jsonl.gz");
        let row = format!("{}\n", json!({"input_ids": [1], "loss_mask": [1]}));
        let mut packed = flate2::read::GzEncoder::new(
            std::io::Cursor::new(row.repeat(50_000)),
            flate2::Compression::none(),
        );
        let mut bytes = Vec::new();
        packed.read_to_end(&mut bytes).unwrap();
        // Whoever reads on to the end finds that it is broken.
        bytes.truncate(bytes.len() / 2);
        std::fs::File::create(&path)
            .unwrap()
            .write_all(&bytes)
            .unwrap();
        let capped = dataset(folder.path(), &[("long.jsonl.gz", 1.0)], 100);
        assert_eq!(read(&capped).len(), 100);
        assert!(capped.left_out().is_some());
        let whole = Dataset::from(path);
        assert!(whole.rows().unwrap().any(|row| row.is_err()));
    }
}
