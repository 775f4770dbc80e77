//! Rows of tokens as Hugging Face's `datasets` saves them to a disk: streams of Arrow, which `state.json` lists.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{
    DataType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow::ipc::reader::StreamDecoder;

use super::layout::{ForeignText, as_mask, as_tokens, inside, read_json};
use crate::contained::contained;
use crate::error::{Error, Result};
use crate::features::map_file;

/// The list of files.
pub(super) const STATE: &str = "state.json";
/// Bytes of the list, at most.
const LONGEST_STATE: u64 = 16 << 20;

/// Rows, still where they lie in the files.
#[derive(Debug)]
pub(super) struct Rows {
    folder: PathBuf,
    batches: Vec<RecordBatch>,
    /// The number of the first row behind each batch.
    ends: Vec<usize>,
}

impl Rows {
    /// Maps the rows in a folder.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let mut batches = Vec::new();
        for name in files(folder)? {
            let path = inside(folder, &name)?;
            let found = contained(|| read(&path));
            batches.extend(found.unwrap_or_else(|panicked| Err(Error::read(&path, panicked)))?);
        }
        let ends = batches.iter().scan(0, |end: &mut usize, batch| {
            *end += batch.num_rows();
            Some(*end)
        });
        Ok(Self {
            folder: folder.to_owned(),
            ends: ends.collect(),
            batches,
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The row of this number.
    pub(super) fn get(&self, row: usize) -> Result<ForeignText> {
        let at = self.ends.partition_point(|&end| end <= row);
        let batch = self.batches.get(at).ok_or_else(|| {
            Error::altered(&self.folder, "rows", format!("more than {row}"), self.len())
        })?;
        let within = row - (self.ends[at] - batch.num_rows());
        contained(|| self.read(batch, within, row))
            .unwrap_or_else(|panicked| Err(Error::read(&self.folder, panicked)))
    }

    fn read(&self, batch: &RecordBatch, within: usize, row: usize) -> Result<ForeignText> {
        let wrong = |what: &'static str, expected: &str, found: &dyn std::fmt::Display| {
            Error::altered(
                &self.folder,
                what,
                expected,
                format!("{found} in row {row}"),
            )
        };
        let column = |name: &'static str, column: Option<&ArrayRef>| match column {
            None => Ok(None),
            Some(column) => match list(column, within).and_then(|items| integers(&items)) {
                Some(numbers) => Ok(Some(numbers)),
                None => Err(wrong(name, "lists of whole numbers", column.data_type())),
            },
        };
        let tokens = column("input_ids", batch.column_by_name("input_ids"))?;
        let tokens = tokens.ok_or_else(|| wrong("input_ids", "a column", &"none"))?;
        let tokens = as_tokens(tokens);
        let tokens = tokens.ok_or_else(|| wrong("input_ids", "token ids", &"another number"))?;
        let loss_mask = column("loss_mask", batch.column_by_name("loss_mask"))?;
        let loss_mask = loss_mask.map(|mask| {
            as_mask(mask).ok_or_else(|| wrong("loss_mask", "0 or 1", &"another number"))
        });
        let loss_mask = loss_mask.transpose()?;
        if let Some(mask) = &loss_mask
            && mask.len() != tokens.len()
        {
            let expected = format!("{} values, one for each token", tokens.len());
            return Err(wrong("loss_mask", &expected, &mask.len()));
        }
        Ok(ForeignText { tokens, loss_mask })
    }
}

/// The files of rows in a folder, in their order.
fn files(folder: &Path) -> Result<Vec<String>> {
    let path = inside(folder, STATE)?;
    let state = read_json(&path, LONGEST_STATE)?;
    if state["_indices_files"]
        .as_array()
        .is_some_and(|files| !files.is_empty())
    {
        let expected = "none (call `dataset.flatten_indices()` before the dataset is saved)";
        return Err(Error::altered(&path, "_indices_files", expected, "some"));
    }
    let listed = state["_data_files"].as_array();
    let names = listed.into_iter().flatten();
    let names = names.map(|file| file["filename"].as_str().map(str::to_owned));
    let names: Option<Vec<String>> = names.collect();
    names.filter(|names| !names.is_empty()).ok_or_else(|| {
        Error::altered(
            &path,
            "_data_files",
            "the names of files",
            &state["_data_files"],
        )
    })
}

/// Every batch of a stream. Lengths that it states do not make memory: what is decoded lies in the map of the file.
fn read(path: &Path) -> Result<Vec<RecordBatch>> {
    let file = File::open(path).map_err(|source| Error::read(path, source))?;
    let length = file
        .metadata()
        .map_err(|source| Error::read(path, source))?;
    if length.len() == 0 {
        return Err(Error::altered(path, "bytes", "some", 0));
    }
    let mut buffer = map_file(&file).map_err(|source| Error::read(path, source))?;
    let mut decoder = StreamDecoder::new();
    let mut batches = Vec::new();
    while !buffer.is_empty() {
        let decoded = decoder.decode(&mut buffer);
        batches.extend(decoded.map_err(|source| Error::read(path, source))?);
    }
    let ended = decoder.finish();
    ended.map_err(|source| Error::read(path, source))?;
    Ok(batches)
}

/// One list of a column of lists.
fn list(column: &ArrayRef, row: usize) -> Option<ArrayRef> {
    if column.is_null(row) {
        return None;
    }
    match column.data_type() {
        DataType::List(_) => Some(column.as_list::<i32>().value(row)),
        DataType::LargeList(_) => Some(column.as_list::<i64>().value(row)),
        _ => None,
    }
}

/// Whole numbers of any type.
fn integers(items: &ArrayRef) -> Option<Vec<i64>> {
    if items.null_count() > 0 {
        return None;
    }
    macro_rules! values {
        ($kind:ty) => {{
            let values = items.as_primitive::<$kind>().values().iter();
            values.map(|&value| i64::try_from(value).ok()).collect()
        }};
    }
    match items.data_type() {
        DataType::Boolean => {
            let items: &BooleanArray = items.as_boolean();
            Some(
                (0..items.len())
                    .map(|at| i64::from(items.value(at)))
                    .collect(),
            )
        }
        DataType::Int8 => values!(Int8Type),
        DataType::Int16 => values!(Int16Type),
        DataType::Int32 => values!(Int32Type),
        DataType::Int64 => values!(Int64Type),
        DataType::UInt8 => values!(UInt8Type),
        DataType::UInt16 => values!(UInt16Type),
        DataType::UInt32 => values!(UInt32Type),
        DataType::UInt64 => values!(UInt64Type),
        _ => None,
    }
}
