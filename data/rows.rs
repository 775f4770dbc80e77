//! Streams the rows of JSON and Parquet files, one at a time and with their place.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use spectrain_checkpoints::Mismatch;

use crate::conversation::Row;
use crate::error::{Error, Result};
use crate::table::Table;

mod format;
mod found;
pub(crate) mod location;
mod texts;

use format::{Compression, FILES, Format};
use texts::{Texts, utf_16};

pub use self::found::{Found, files, found, is_same, would_read};
pub use self::location::{LONGEST_ROW, LocatedRow, Location};
pub use crate::table::Columns;

/// The rows of a file, folder or pattern in order; see [`read_rows`].
pub struct RowReader(TextReader);

/// The rows of a file, folder or pattern as the JSON that they are, each with its place.
pub(crate) struct TextReader {
    path: PathBuf,
    columns: Columns,
    waiting: VecDeque<PathBuf>,
    open: Option<OpenFile>,
    any: bool,
}

/// Reads the rows of [`files`], of Parquet files the columns that a row is read from.
///
/// A row that cannot be understood is an error and reading can go on after it; a file that cannot be read
/// is an error and reading goes on with the next file. A dataset without rows is an error.
pub fn read_rows(path: &Path) -> Result<RowReader> {
    read_columns(path, Columns::Needed)
}

/// As [`read_rows`], with these columns of Parquet files.
pub fn read_columns(path: &Path, columns: Columns) -> Result<RowReader> {
    read_texts(path, columns).map(RowReader)
}

/// As [`read_columns`], whatever the rows are.
pub(crate) fn read_texts(path: &Path, columns: Columns) -> Result<TextReader> {
    Ok(TextReader::of(path, files(path)?, columns))
}

impl TextReader {
    /// The rows of these files, which errors call `name`.
    pub(crate) fn of(name: &Path, files: Vec<PathBuf>, columns: Columns) -> Self {
        Self {
            path: name.to_path_buf(),
            columns,
            waiting: files.into(),
            open: None,
            any: false,
        }
    }
}

impl Iterator for RowReader {
    type Item = Result<LocatedRow>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.0.next()?;
        Some(found.and_then(|(location, text)| {
            let row =
                Row::from_json(&text).map_err(|mismatch| Error::row(&location, &text, mismatch))?;
            Ok(LocatedRow::new(location, row))
        }))
    }
}

impl Iterator for TextReader {
    type Item = Result<(Location, String)>;

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
            match OpenFile::open(&file, &self.columns) {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    self.any = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Bytes of the text in files of rows; none where one of them does not say how many it has, since it is compressed as a whole.
pub fn text_bytes(files: &[PathBuf]) -> Option<u64> {
    let of = |path: &PathBuf| match Format::of(path)? {
        (Format::Parquet, _) => Table::text_bytes(File::open(path).ok()?),
        (Format::Lines | Format::Json, Compression::None) => {
            Some(std::fs::metadata(path).ok()?.len())
        }
        (Format::Lines | Format::Json, _) => None,
    };
    files.iter().map(of).sum()
}

/// Rows of files, those included that cannot be understood. Tables say how many they have, other files are read through.
pub(crate) fn count_rows(files: &[PathBuf]) -> Result<u64> {
    let mut rows = 0;
    for file in files {
        if let Some(known) = known_rows(std::slice::from_ref(file)) {
            rows += known;
            continue;
        }
        let mut open = OpenFile::open(file, &Columns::All)?;
        while open.next().is_some() {
            rows += 1;
        }
    }
    Ok(rows)
}

/// The same where all files are tables that can be read.
pub(crate) fn known_rows(files: &[PathBuf]) -> Option<u64> {
    let of = |path: &PathBuf| match Format::of(path)? {
        (Format::Parquet, _) => Table::rows(File::open(path).ok()?),
        _ => None,
    };
    files.iter().map(of).sum()
}

struct OpenFile {
    location: Location,
    source: Contents,
}

enum Contents {
    Texts(Texts<Box<dyn BufRead + Send>>),
    Table(Table),
    Broken,
}

impl OpenFile {
    fn open(path: &Path, columns: &Columns) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path))?;
        let (format, compression) = Format::of(path).unwrap_or((Format::Lines, Compression::None));
        let source = match format {
            Format::Parquet => Contents::Table(Table::open(path, file, columns)?),
            Format::Lines | Format::Json => {
                let mut reader: Box<dyn BufRead + Send> = match compression {
                    Compression::None => Box::new(BufReader::new(file)),
                    Compression::Gzip => {
                        Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(file)))
                    }
                    Compression::Zstd => {
                        let decoder = zstd::Decoder::new(file).map_err(Error::io(path))?;
                        Box::new(BufReader::new(decoder))
                    }
                };
                if let Some(name) = utf_16(reader.fill_buf().map_err(Error::io(path))?) {
                    let found =
                        format!("{name}; `iconv -f {name} -t UTF-8` makes a file in UTF-8 of it");
                    return Err(Error::File {
                        path: path.to_owned(),
                        mismatch: Mismatch::new("text in UTF-8", found),
                    });
                }
                let texts = match format {
                    Format::Json => Texts::json(reader),
                    _ => Texts::lines(reader),
                };
                Contents::Texts(texts.map_err(Error::io(path))?)
            }
        };
        Ok(Self {
            location: Location::new(path, 0),
            source,
        })
    }

    fn next(&mut self) -> Option<Result<(Location, String)>> {
        let text = match &mut self.source {
            Contents::Texts(texts) => texts.next(&mut self.location),
            Contents::Table(table) => table.next_row(&mut self.location),
            Contents::Broken => None,
        }?;
        if matches!(text, Err(Error::Io { .. } | Error::File { .. })) {
            self.source = Contents::Broken;
        }
        Some(text.map(|text| (self.location.clone(), text)))
    }
}

#[cfg(test)]
mod tests;
