//! Streams the rows of JSON-lines and Parquet files, one at a time and with their place.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::conversation::Row;
use crate::error::{Error, Result};
use crate::table::Table;

const FILES: &str = "rows in `.jsonl`, `.json` (one object per line) or `.parquet` files";

/// Where a row stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file, or the name of what generated the row.
    pub file: Arc<Path>,
    /// Line of a text file or row of a table, from 1.
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
pub type LocatedRow = (Location, Row);

/// The rows of a file or folder in order; see [`read_rows`].
pub struct Rows {
    path: PathBuf,
    waiting: VecDeque<PathBuf>,
    open: Option<OpenFile>,
    any: bool,
}

/// Reads a file, or every `.jsonl`, `.json` and `.parquet` file of a folder in the order of their names.
///
/// A row that cannot be understood is an error and reading can go on after it; a file that cannot be read
/// is an error and reading goes on with the next file. A dataset without rows is an error.
pub fn read_rows(path: &Path) -> Result<Rows> {
    let waiting: VecDeque<PathBuf> = if path.is_dir() {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(Error::io(path))? {
            let file = entry.map_err(Error::io(path))?.path();
            if file.is_file() && Format::of(&file).is_some() {
                files.push(file);
            }
        }
        files.sort();
        files.into()
    } else {
        std::fs::metadata(path).map_err(Error::io(path))?;
        if Format::of(path).is_none() {
            return Err(Error::File {
                path: path.to_path_buf(),
                expected: FILES.to_owned(),
                found: "a file of another kind".to_owned(),
            });
        }
        VecDeque::from([path.to_path_buf()])
    };
    if waiting.is_empty() {
        return Err(Error::EmptyDataset {
            path: path.to_path_buf(),
            expected: FILES,
        });
    }
    Ok(Rows {
        path: path.to_path_buf(),
        waiting,
        open: None,
        any: false,
    })
}

impl Iterator for Rows {
    type Item = Result<LocatedRow>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(open) = &mut self.open {
                match open.next() {
                    Some(row) => {
                        self.any = true;
                        return Some(row);
                    }
                    None => self.open = None,
                }
            }
            let Some(file) = self.waiting.pop_front() else {
                let empty = !std::mem::replace(&mut self.any, true);
                return empty.then(|| {
                    Err(Error::EmptyDataset {
                        path: self.path.clone(),
                        expected: FILES,
                    })
                });
            };
            match OpenFile::open(&file) {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    self.any = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    JsonLines,
    Parquet,
}

impl Format {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "jsonl" | "json" => Some(Self::JsonLines),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

struct OpenFile {
    location: Location,
    source: Source,
}

enum Source {
    Lines(BufReader<File>),
    Table(Table),
    Broken,
}

impl OpenFile {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path))?;
        let source = match Format::of(path) {
            Some(Format::Parquet) => Source::Table(Table::open(path, file)?),
            _ => Source::Lines(BufReader::new(file)),
        };
        Ok(Self {
            location: Location::new(path, 0),
            source,
        })
    }

    fn next(&mut self) -> Option<Result<LocatedRow>> {
        let value = match &mut self.source {
            Source::Lines(lines) => next_line(lines, &mut self.location),
            Source::Table(table) => table.next_row(&mut self.location),
            Source::Broken => None,
        }?;
        if matches!(value, Err(Error::Io { .. } | Error::File { .. })) {
            self.source = Source::Broken;
        }
        Some(value.and_then(|value| {
            let row = Row::from_json(value).map_err(|mismatch| Error::Row {
                location: self.location.to_string(),
                expected: mismatch.expected,
                found: mismatch.found,
            })?;
            Ok((self.location.clone(), row))
        }))
    }
}

fn next_line(lines: &mut BufReader<File>, location: &mut Location) -> Option<Result<Value>> {
    let mut line = String::new();
    loop {
        line.clear();
        location.row += 1;
        match lines.read_line(&mut line) {
            Ok(0) => return None,
            Ok(_) if line.trim().is_empty() => {}
            Ok(_) => break,
            Err(error) => return Some(Err(Error::io(&location.file)(error))),
        }
    }
    Some(serde_json::from_str(&line).map_err(|error| Error::Row {
        location: location.to_string(),
        expected: "one JSON object on the line".to_owned(),
        found: error.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_in_the_order_of_its_file_names() {
        let folder = tempfile::tempdir().unwrap();
        let line = |text: &str| {
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}\n")
        };
        std::fs::write(folder.path().join("b.json"), line("three")).unwrap();
        std::fs::write(
            folder.path().join("a.jsonl"),
            format!("{}\n{}", line("one"), line("two")),
        )
        .unwrap();
        std::fs::write(folder.path().join("notes.txt"), "not rows").unwrap();
        let rows: Vec<LocatedRow> = read_rows(folder.path())
            .unwrap()
            .collect::<Result<_>>()
            .unwrap();
        let seen: Vec<(usize, String)> = rows
            .into_iter()
            .map(|(location, row)| match row {
                Row::Conversation(mut conversation) => {
                    (location.row, conversation.messages.remove(0).content)
                }
                Row::Tokens(_) => panic!("no tokens were written"),
            })
            .collect();
        assert_eq!(
            seen,
            [(1, "one".into()), (3, "two".into()), (1, "three".into())]
        );
    }

    #[test]
    fn a_bad_line_is_named_and_the_next_one_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.jsonl");
        std::fs::write(
            &file,
            "{\"text\": 1}\n{oops\n{\"tokens\": [1], \"loss_mask\": [1]}\n",
        )
        .unwrap();
        let rows: Vec<_> = read_rows(&file).unwrap().collect();
        let place = |row| format!("`{}` row {row}: expected ", file.display());
        let first = rows[0].as_ref().unwrap_err().to_string();
        assert!(
            first.starts_with(&place(1)) && first.ends_with("found the keys `text`"),
            "{first}"
        );
        let second = rows[1].as_ref().unwrap_err().to_string();
        assert!(
            second.starts_with(&place(2)) && second.contains("one JSON object"),
            "{second}"
        );
        assert!(matches!(rows[2], Ok((_, Row::Tokens(_)))));
        assert_eq!(rows.len(), 3);
    }

    #[test]
    fn nothing_to_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(
            read_rows(folder.path()),
            Err(Error::EmptyDataset { .. })
        ));
        std::fs::write(folder.path().join("rows.jsonl"), "\n").unwrap();
        let rows: Vec<_> = read_rows(folder.path()).unwrap().collect();
        assert!(matches!(rows[..], [Err(Error::EmptyDataset { .. })]));
        assert!(matches!(
            read_rows(&folder.path().join("absent.jsonl")),
            Err(Error::Io { .. })
        ));
        std::fs::write(folder.path().join("rows.csv"), "a,b").unwrap();
        assert!(matches!(
            read_rows(&folder.path().join("rows.csv")),
            Err(Error::File { .. })
        ));
    }
}
