//! Token shards: tokenised conversations with their loss masks, as checksummed Parquet files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::iter::repeat_n;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, UInt8Array, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema, UInt8Type, UInt32Type};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use crate::contained::contained;
use crate::conversation::Sample;
use crate::durable::{self, TEMPORARY, Written};
use crate::error::{Error, Result};

/// Bytes of memory that a token of [`TokenShards`] takes: its id, and whether it is trained on.
pub const BYTES_PER_TOKEN: u64 = 5;

const INDEX: &str = "tokens.json";
const VERSION: u32 = 1;
/// Where a shard's columns stand.
const TOKENS: usize = 0;
const LOSS_MASK: usize = 1;

/// A sample of a token shard, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleView<'a> {
    /// Token ids of the target's tokenizer.
    pub tokens: &'a [u32],
    /// One per token: 1 where the token is trained on, else 0.
    pub loss_mask: &'a [u8],
}

/// One shard's line in `tokens.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenShard {
    /// File name within the folder.
    pub file: String,
    /// Samples held.
    pub samples: usize,
    /// Tokens held.
    pub tokens: u64,
    /// Tokens in the loss mask.
    pub trained_tokens: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Hexadecimal SHA-256 of the file.
    pub sha256: String,
}

/// `tokens.json`: what the folder holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenIndex {
    /// Format version.
    pub version: u32,
    /// Samples of all shards.
    pub samples: usize,
    /// Tokens of all shards.
    pub tokens: u64,
    /// Tokens in the loss masks of all shards.
    pub trained_tokens: u64,
    /// The shards in order.
    pub shards: Vec<TokenShard>,
    /// What the writer's caller wished to keep: tokenizer, template, settings.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl TokenIndex {
    /// Refuses one that cannot be what was written: shards that are missing, twice or in another order say so by their
    /// names and their sums.
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).map_err(|source| Error::read(path, source))?;
        let index: Self =
            serde_json::from_slice(&text).map_err(|source| Error::read(path, source))?;
        if index.version != VERSION {
            return Err(Error::altered(path, "version", VERSION, index.version));
        }
        if index.shards.is_empty() {
            return Err(Error::altered(path, "shards", "at least one", 0));
        }
        for (number, shard) in index.shards.iter().enumerate() {
            let expected = TokenWriter::shard(number);
            if shard.file != expected {
                return Err(Error::altered(path, "file", expected, &shard.file));
            }
        }
        let sum = |of: fn(&TokenShard) -> u64| {
            let shards = index.shards.iter();
            shards.fold(0, |sum: u64, shard| sum.saturating_add(of(shard)))
        };
        for (what, expected, found) in [
            (
                "samples",
                index.samples as u64,
                sum(|shard| shard.samples as u64),
            ),
            ("tokens", index.tokens, sum(|shard| shard.tokens)),
            (
                "trained_tokens",
                index.trained_tokens,
                sum(|shard| shard.trained_tokens),
            ),
        ] {
            if expected != found {
                return Err(Error::altered(path, what, expected, found));
            }
        }
        Ok(index)
    }

    /// One hash over every sample in order.
    pub fn fingerprint(&self) -> String {
        durable::fingerprint(self.shards.iter().map(|shard| shard.sha256.as_str()))
    }
}

/// Samples in memory: one flat vector of tokens, one of masks, and where each sample ends.
#[derive(Debug, Default)]
struct Columns {
    tokens: Vec<u32>,
    loss_mask: Vec<u8>,
    ends: Vec<usize>,
}

impl Columns {
    fn get(&self, sample: usize) -> SampleView<'_> {
        let start = if sample == 0 {
            0
        } else {
            self.ends[sample - 1]
        };
        let range = start..self.ends[sample];
        SampleView {
            tokens: &self.tokens[range.clone()],
            loss_mask: &self.loss_mask[range],
        }
    }

    fn lengths(&self) -> Vec<usize> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        self.ends
            .iter()
            .zip(starts)
            .map(|(end, start)| end - start)
            .collect()
    }

    fn trained_tokens(&self) -> u64 {
        self.loss_mask
            .iter()
            .filter(|&&trained| trained != 0)
            .count() as u64
    }

    /// Makes room for what these shards say that they hold, and for not a byte more; what they hold is checked as it is read. Without it
    /// vectors take up to twice as much.
    fn reserve<'a>(
        &mut self,
        samples: usize,
        shards: impl Iterator<Item = &'a TokenShard>,
        index: &Path,
    ) -> Result<()> {
        let tokens = shards.fold(0_u64, |sum, shard| sum.saturating_add(shard.tokens));
        let room = usize::try_from(tokens).map_err(|_| ());
        let room = room.and_then(|tokens| {
            let all = self.tokens.try_reserve_exact(tokens);
            let all = all.and_then(|()| self.loss_mask.try_reserve_exact(tokens));
            let all = all.and_then(|()| self.ends.try_reserve_exact(samples));
            all.map_err(|_| ())
        });
        room.map_err(|()| Error::altered(index, "tokens", "as many as there is memory for", tokens))
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.loss_mask.clear();
        self.ends.clear();
    }

    fn to_parquet(&self) -> std::result::Result<Vec<u8>, parquet::errors::ParquetError> {
        let offsets = OffsetBuffer::<i32>::from_lengths(self.lengths());
        let list = |values: ArrayRef| -> ArrayRef {
            let item = Arc::new(Field::new_list_field(values.data_type().clone(), false));
            Arc::new(ListArray::new(item, offsets.clone(), values, None))
        };
        let tokens = list(Arc::new(UInt32Array::from(self.tokens.clone())));
        let loss_mask = list(Arc::new(UInt8Array::from(self.loss_mask.clone())));
        let batch = RecordBatch::try_new(schema(), vec![tokens, loss_mask])?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties))?;
        writer.write(&batch)?;
        writer.into_inner()
    }

    /// Appends the rows of a shard already known to be whole.
    fn append_parquet(&mut self, path: &Path) -> Result<()> {
        for batch in batches(path, &[TOKENS, LOSS_MASK])? {
            let batch = batch.map_err(|source| Error::read(path, source))?;
            let tokens = batch.column(TOKENS).as_list::<i32>();
            let loss_mask = batch.column(LOSS_MASK).as_list::<i32>();
            if tokens.offsets().lengths().ne(loss_mask.offsets().lengths()) {
                return Err(Error::altered(
                    path,
                    "loss_mask",
                    "as many values as tokens in every row",
                    "another number",
                ));
            }
            let span = |list: &ListArray| {
                let offsets = list.value_offsets();
                offsets[0] as usize..offsets[list.len()] as usize
            };
            let values = tokens.values().as_primitive::<UInt32Type>().values();
            self.tokens.extend_from_slice(&values[span(tokens)]);
            let values = loss_mask.values().as_primitive::<UInt8Type>().values();
            self.loss_mask.extend_from_slice(&values[span(loss_mask)]);
            let mut end = self.ends.last().copied().unwrap_or(0);
            for length in tokens.offsets().lengths() {
                end += length;
                self.ends.push(end);
            }
        }
        Ok(())
    }
}

/// The rows of a shard a few at a time, of which these of the columns are read.
fn batches(path: &Path, columns: &[usize]) -> Result<ParquetRecordBatchReader> {
    let file = File::open(path).map_err(|source| Error::read(path, source))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)
        .map_err(|source| Error::read(path, source))?;
    let found = builder.schema();
    if found.fields() != schema().fields() {
        return Err(Error::altered(
            path,
            "columns",
            fields_line(&schema()),
            fields_line(found),
        ));
    }
    let read = ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied());
    builder
        .with_projection(read)
        .with_batch_size(4096)
        .build()
        .map_err(|source| Error::read(path, source))
}

/// Gives `seen` the tokens of every sample of a folder that [`TokenWriter`] finished, in their order, until it fails. A few of them
/// are in memory at a time, and without hashes of the shards it is quick: what is damaged may go unnoticed.
///
/// # Errors
/// Those of `seen`; a shard cannot be read.
pub fn each_text<E: From<Error>>(
    folder: &Path,
    seen: &mut dyn FnMut(&[u32]) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let index = TokenIndex::read(&folder.join(INDEX))?;
    for shard in &index.shards {
        let path = folder.join(&shard.file);
        let panicked = |panicked| Error::read(&path, panicked);
        let mut rows = contained(|| batches(&path, &[TOKENS])).map_err(panicked)??;
        while let Some(batch) = contained(|| rows.next()).map_err(panicked)? {
            let batch = batch.map_err(|source| Error::read(&path, source))?;
            let texts = batch.column(TOKENS).as_list::<i32>();
            let tokens = texts.values().as_primitive::<UInt32Type>().values();
            for ends in texts.value_offsets().windows(2) {
                seen(&tokens[ends[0] as usize..ends[1] as usize])?;
            }
        }
    }
    Ok(())
}

/// The names and types of a schema on one line.
pub(crate) fn fields_line(schema: &Schema) -> String {
    let fields: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| format!("{}: {}", field.name(), field.data_type()))
        .collect();
    fields.join(", ")
}

fn schema() -> Arc<Schema> {
    let list = |name: &str, item: DataType| {
        Field::new_list(name, Field::new_list_field(item, false), false)
    };
    Arc::new(Schema::new(vec![
        list("tokens", DataType::UInt32),
        list("loss_mask", DataType::UInt8),
    ]))
}

/// Writes samples to `tokens-*.parquet` and, once all are there, `tokens.json`.
#[derive(Debug)]
pub struct TokenWriter {
    folder: PathBuf,
    tokens_per_shard: usize,
    pending: Columns,
    shards: Vec<TokenShard>,
}

impl TokenWriter {
    /// Starts afresh in a folder, removing the token shards of an earlier run; a shard is closed once it holds
    /// `tokens_per_shard` tokens.
    pub fn create(folder: impl AsRef<Path>, tokens_per_shard: usize) -> Result<Self> {
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder).map_err(|source| Error::write(&folder, source))?;
        // The index goes first: without it what is left does not open.
        durable::remove_files(&folder, |name| name == INDEX)?;
        durable::remove_files(&folder, Self::is_own)?;
        // Lists carry 32-bit offsets.
        let tokens_per_shard = tokens_per_shard.clamp(1, 1 << 29);
        Ok(Self {
            folder,
            tokens_per_shard,
            pending: Columns::default(),
            shards: Vec::new(),
        })
    }

    fn is_own(name: &str) -> bool {
        let whole = name.strip_suffix(TEMPORARY).unwrap_or(name);
        whole == INDEX || (whole.starts_with("tokens-") && whole.ends_with(".parquet"))
    }

    /// Whether [`create`](Self::create) removes a file of this name from its folder.
    pub fn replaces(name: &OsStr) -> bool {
        name.to_str().is_some_and(Self::is_own)
    }

    /// The name of a shard, counted from 0.
    pub fn shard(number: usize) -> String {
        format!("tokens-{number:05}.parquet")
    }

    /// Adds one sample.
    pub fn push(&mut self, sample: &Sample) -> Result<()> {
        let number =
            self.shards.iter().map(|shard| shard.samples).sum::<usize>() + self.pending.ends.len();
        if sample.tokens.is_empty() {
            return Err(Error::sample(number as u64, "tokens", "at least one", 0));
        }
        if sample.tokens.len() != sample.loss_mask.len() {
            return Err(Error::sample(
                number as u64,
                "loss mask",
                sample.tokens.len(),
                sample.loss_mask.len(),
            ));
        }
        self.pending.tokens.extend_from_slice(&sample.tokens);
        self.pending
            .loss_mask
            .extend(sample.loss_mask.iter().map(|&trained| u8::from(trained)));
        self.pending.ends.push(self.pending.tokens.len());
        if self.pending.tokens.len() >= self.tokens_per_shard {
            self.close_shard()?;
        }
        Ok(())
    }

    /// Writes the last shard and `tokens.json`, with what the caller wishes to keep in it.
    pub fn finish(
        mut self,
        extra: serde_json::Map<String, serde_json::Value>,
    ) -> Result<TokenIndex> {
        if !self.pending.ends.is_empty() {
            self.close_shard()?;
        }
        if self.shards.is_empty() {
            return Err(Error::NoSamples {
                folder: self.folder,
            });
        }
        let index = TokenIndex {
            version: VERSION,
            samples: self.shards.iter().map(|shard| shard.samples).sum(),
            tokens: self.shards.iter().map(|shard| shard.tokens).sum(),
            trained_tokens: self.shards.iter().map(|shard| shard.trained_tokens).sum(),
            shards: self.shards,
            extra,
        };
        let path = self.folder.join(INDEX);
        let text =
            serde_json::to_vec_pretty(&index).map_err(|source| Error::write(&path, source))?;
        durable::write_whole(&path, &text)?;
        Ok(index)
    }

    fn close_shard(&mut self) -> Result<()> {
        let file = TokenWriter::shard(self.shards.len());
        let path = self.folder.join(&file);
        let content = self
            .pending
            .to_parquet()
            .map_err(|source| Error::write(&path, source))?;
        let Written { sha256, bytes } = durable::write_whole(&path, &content)?;
        self.shards.push(TokenShard {
            file,
            samples: self.pending.ends.len(),
            tokens: self.pending.tokens.len() as u64,
            trained_tokens: self.pending.trained_tokens(),
            bytes,
            sha256,
        });
        self.pending.clear();
        Ok(())
    }
}

/// Every sample of a folder of token shards, in memory; or the tokens of [some](Self::open_some) of them.
#[derive(Debug)]
pub struct TokenShards {
    index: TokenIndex,
    columns: Columns,
}

impl TokenShards {
    /// Whether [`TokenWriter`] finished a folder.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(INDEX).is_file()
    }

    /// Loads a folder that [`TokenWriter`] finished, refusing any shard that is not what was written.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::open_some(folder, |all| 0..all)
    }

    /// The same, of which `wanted` says, from how many samples there are, whose tokens are read: those of all shards that hold some of
    /// them. The others are there and have no tokens; of their shards nothing is known.
    pub fn open_some(
        folder: impl AsRef<Path>,
        wanted: impl FnOnce(usize) -> Range<usize>,
    ) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join(INDEX);
        let index = TokenIndex::read(&path)?;
        let wanted = wanted(index.samples);
        let mut first = 0_usize;
        let is_read = index.shards.iter().map(|shard| {
            let samples = first..first.saturating_add(shard.samples);
            first = samples.end;
            samples.start < wanted.end && wanted.start < samples.end
        });
        let is_read: Vec<bool> = is_read.collect();
        let shards = || index.shards.iter().zip(&is_read);
        let mut columns = Columns::default();
        let read = shards().filter(|(_, is_read)| **is_read);
        columns.reserve(index.samples, read.map(|(shard, _)| shard), &path)?;
        for (shard, is_read) in shards() {
            if !is_read {
                let end = columns.tokens.len();
                columns.ends.extend(repeat_n(end, shard.samples));
                continue;
            }
            let path = folder.join(&shard.file);
            durable::verify(
                &path,
                &Written {
                    sha256: shard.sha256.clone(),
                    bytes: shard.bytes,
                },
            )?;
            let (samples, tokens) = (columns.ends.len(), columns.tokens.len());
            contained(|| columns.append_parquet(&path))
                .unwrap_or_else(|panicked| Err(Error::read(&path, panicked)))?;
            if columns.ends.len() - samples != shard.samples {
                return Err(Error::altered(
                    &path,
                    "rows",
                    shard.samples,
                    columns.ends.len() - samples,
                ));
            }
            if (columns.tokens.len() - tokens) as u64 != shard.tokens {
                return Err(Error::altered(
                    &path,
                    "tokens",
                    shard.tokens,
                    columns.tokens.len() - tokens,
                ));
            }
        }
        Ok(Self { index, columns })
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.columns.ends.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.columns.ends.is_empty()
    }

    /// The sample of this number.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    pub fn get(&self, sample: usize) -> SampleView<'_> {
        self.columns.get(sample)
    }

    /// Every sample in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SampleView<'_>> {
        (0..self.len()).map(|sample| self.get(sample))
    }

    /// Tokens of each sample.
    pub fn lengths(&self) -> Vec<usize> {
        self.columns.lengths()
    }

    /// What the folder's `tokens.json` says.
    pub fn index(&self) -> &TokenIndex {
        &self.index
    }

    /// One hash over every sample in order.
    pub fn fingerprint(&self) -> String {
        self.index.fingerprint()
    }
}

#[cfg(test)]
mod tests;
