//! The rows of Parquet files as JSON, so that one reader understands them and JSON files.

use std::fmt;
use std::fs::File;
use std::path::Path;

use arrow::array::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;
use parquet::file::metadata::ParquetMetaData;
use spectrain_checkpoints::Mismatch;

use crate::contained::contained;
use crate::conversation::{KEYS, TEMPLATE_KEY};
use crate::error::{Error, Result};
use crate::rows::location::Location;

mod cells;
mod columns;
#[cfg(test)]
pub(crate) mod tests;

use cells::{Formless, Nulls, Printing, begin_field, cell};
pub use columns::Columns;
pub(crate) use columns::Named;

/// Rows decoded at a time: bounds the memory of reading.
const BATCH_ROWS: usize = 256;

/// How the columns of Parquet files may be compressed.
const CODECS: &str = "columns compressed with Snappy, Zstandard, Gzip or LZ4, or not at all";

/// An open Parquet file, decoded a few rows at a time.
pub(crate) struct Table {
    batches: ParquetRecordBatchReader,
    batch: Option<(RecordBatch, usize)>,
    /// What is made of cells without a form in JSON in columns that no row is read from.
    beside: Formless,
}

impl Table {
    /// Opens these columns.
    pub(crate) fn open(path: &Path, file: File, columns: &Columns) -> Result<Self> {
        contained(|| Self::open_file(path, file, columns))
            .unwrap_or_else(|panicked| Err(unreadable_table(path, &panicked)))
    }

    /// Bytes of all values before they were compressed; none where the file cannot be read.
    pub(crate) fn text_bytes(file: File) -> Option<u64> {
        let read = || {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file).ok()?;
            let groups = builder.metadata().row_groups().iter();
            let bytes: i64 = groups.map(|group| group.total_byte_size()).sum();
            u64::try_from(bytes).ok()
        };
        contained(read).ok().flatten()
    }

    /// Rows that a file says it has; none where it cannot be read.
    pub(crate) fn rows(file: File) -> Option<u64> {
        let read = || {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file).ok()?;
            u64::try_from(builder.metadata().file_metadata().num_rows()).ok()
        };
        contained(read).ok().flatten()
    }

    fn open_file(path: &Path, file: File, columns: &Columns) -> Result<Self> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file)
            .map_err(|error| unreadable_table(path, &error))?;
        let wanted = columns.among(builder.schema().fields());
        let wanted = wanted.map_err(|expected| {
            let fields = builder.schema().fields();
            let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
            Error::File {
                path: path.to_path_buf(),
                mismatch: Mismatch::new(expected, format!("the columns `{}`", names.join("`, `"))),
            }
        })?;
        if let Some(found) = other_codec(builder.metadata(), wanted.as_deref()) {
            return Err(Error::File {
                path: path.to_path_buf(),
                mismatch: Mismatch::new(CODECS, found),
            });
        }
        let projection = match wanted {
            Some(wanted) => ProjectionMask::roots(builder.parquet_schema(), wanted),
            None => ProjectionMask::all(),
        };
        let batches = builder
            .with_projection(projection)
            .with_batch_size(BATCH_ROWS)
            .build()
            .map_err(|error| unreadable_table(path, &error))?;
        let beside = match columns {
            Columns::All => Formless::Printed,
            Columns::Needed | Columns::Named(_) => Formless::Refused,
        };
        Ok(Self {
            batches,
            batch: None,
            beside,
        })
    }

    /// The next row as a JSON object, and its number in `location`; none at the end.
    pub(crate) fn next_row(&mut self, location: &mut Location) -> Option<Result<String>> {
        contained(|| self.decode_row(location))
            .unwrap_or_else(|panicked| Some(Err(unreadable_table(&location.file, &panicked))))
    }

    fn decode_row(&mut self, location: &mut Location) -> Option<Result<String>> {
        loop {
            if let Some((rows, at)) = &mut self.batch
                && *at < rows.num_rows()
            {
                location.row += 1;
                let mut text = String::from("{");
                for (field, column) in rows.schema().fields().iter().zip(rows.columns()) {
                    begin_field(&mut text, field.name());
                    let name = field.name().as_str();
                    let printing = Printing {
                        formless: if KEYS.contains(&name) {
                            Formless::Refused
                        } else {
                            self.beside
                        },
                        nulls: match name {
                            "tools" | TEMPLATE_KEY => Nulls::LeftOut,
                            "messages" | "conversations" => Nulls::LeftOutInside,
                            _ => Nulls::Kept,
                        },
                    };
                    if let Err(refusal) = cell(column, *at, (&mut text, printing)) {
                        *at += 1;
                        return Some(Err(refusal.at(field.name(), location)));
                    }
                }
                *at += 1;
                text.push('}');
                return Some(Ok(text));
            }
            match self.batches.next()? {
                Ok(rows) => self.batch = Some((rows, 0)),
                Err(error) => return Some(Err(unreadable_table(&location.file, &error))),
            }
        }
    }
}

/// A column among those at these places, or among all, whose compression is not read, and that compression.
fn other_codec(metadata: &ParquetMetaData, wanted: Option<&[usize]>) -> Option<String> {
    let schema = metadata.file_metadata().schema_descr();
    let groups = metadata.row_groups().iter();
    let mut columns = groups.flat_map(|group| group.columns().iter().enumerate());
    columns.find_map(|(place, column)| {
        let root = schema.get_column_root_idx(place);
        let is_wanted = wanted.is_none_or(|wanted| wanted.contains(&root));
        let codec = match column.compression() {
            Compression::BROTLI(_) => "Brotli",
            Compression::LZO => "LZO",
            _ => return None,
        };
        let name = schema.get_column_root(place).name();
        is_wanted.then(|| format!("the column `{name}` compressed with {codec}"))
    })
}

fn unreadable_table(path: &Path, error: &impl fmt::Display) -> Error {
    Error::File {
        path: path.to_path_buf(),
        mismatch: Mismatch::new("a readable Parquet file", error),
    }
}
