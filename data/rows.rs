//! Streams the rows of JSON and Parquet files, one at a time and with their place.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use spectrain_checkpoints::Mismatch;

use crate::conversation::Row;
use crate::error::{Error, Result};
use crate::table::Table;

pub(crate) mod location;
mod texts;

use texts::Texts;

pub use self::location::{LONGEST_ROW, LocatedRow, Location};
pub use crate::table::Columns;

const FILES: &str =
    "rows in `.jsonl` or `.json` files, also compressed as `.gz` or `.zst`, or in `.parquet` files";

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

/// The files that [`read_rows`] reads: the file itself, those of a folder or those that match a pattern such as
/// `data/*.jsonl`, in the order of their names.
pub fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_dir() {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(Error::io(path))? {
            let file = entry.map_err(Error::io(path))?.path();
            if file.is_file() && Format::of(&file).is_some() {
                files.push(file);
            }
        }
        return sorted(path, files);
    }
    match std::fs::metadata(path) {
        Err(error) => match matching(path)? {
            Some(files) => sorted(path, files),
            None => Err(Error::io(path)(error)),
        },
        Ok(_) if Format::of(path).is_none() => Err(Error::File {
            path: path.to_path_buf(),
            mismatch: Mismatch::new(FILES, "a file of another kind"),
        }),
        Ok(_) => Ok(vec![path.to_path_buf()]),
    }
}

/// The readable files that match a path with `*`, `?` or `[…]`; none where it has none of these.
fn matching(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    let Some(pattern) = path.to_str().filter(|text| text.contains(['*', '?', '['])) else {
        return Ok(None);
    };
    let paths = glob::glob(pattern).map_err(|error| Error::File {
        path: path.to_path_buf(),
        mismatch: Mismatch::new("a pattern such as `data/*.jsonl`", error),
    })?;
    let mut files = Vec::new();
    for found in paths {
        let found = found.map_err(|error| Error::io(path)(error.into()))?;
        if found.is_file() && Format::of(&found).is_some() {
            files.push(found);
        }
    }
    Ok(Some(files))
}

fn sorted(path: &Path, mut files: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    files.sort();
    if files.is_empty() {
        Err(Error::EmptyDataset {
            path: path.to_path_buf(),
            expected: FILES,
        })
    } else {
        Ok(files)
    }
}

/// Whether a file, which need not be there yet, is one of [`files`].
pub fn would_read(path: &Path, file: &Path) -> bool {
    let whole = |path: &Path| match path.canonicalize() {
        Ok(path) => Some(path),
        // What is not there stands in a folder that is.
        Err(_) => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(folder.join(path.file_name()?))
        }
    };
    let (Some(file), true) = (whole(file), Format::of(file).is_some()) else {
        return false;
    };
    if path.is_dir() {
        return path
            .canonicalize()
            .is_ok_and(|folder| file.parent() == Some(&folder));
    }
    if path.exists() {
        return whole(path).is_some_and(|path| path == file);
    }
    let pattern = std::path::absolute(path).ok();
    let pattern = pattern
        .as_deref()
        .and_then(Path::to_str)
        .and_then(|text| glob::Pattern::new(text).ok());
    pattern.is_some_and(|pattern| pattern.matches_path(&file))
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// An object on each line.
    Lines,
    /// The same, or a list of objects.
    Json,
    Parquet,
}

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Format {
    fn of(path: &Path) -> Option<(Self, Compression)> {
        let name = path.file_name()?.to_str()?;
        let (name, compression) = match name.rsplit_once('.')? {
            (name, "gz") => (name, Compression::Gzip),
            (name, "zst") => (name, Compression::Zstd),
            _ => (name, Compression::None),
        };
        match (name.rsplit_once('.')?.1, compression) {
            ("jsonl", _) => Some((Self::Lines, compression)),
            ("json", _) => Some((Self::Json, compression)),
            ("parquet", Compression::None) => Some((Self::Parquet, compression)),
            _ => None,
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
                let reader: Box<dyn BufRead + Send> = match compression {
                    Compression::None => Box::new(BufReader::new(file)),
                    Compression::Gzip => {
                        Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(file)))
                    }
                    Compression::Zstd => {
                        let decoder = zstd::Decoder::new(file).map_err(Error::io(path))?;
                        Box::new(BufReader::new(decoder))
                    }
                };
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
