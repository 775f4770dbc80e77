//! Stored features: the target's captured hidden states for every token of a token folder, as Arrow IPC shards.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ListArray, RecordBatch, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;
use serde::{Deserialize, Serialize};

use crate::durable::{self, PendingFile, TEMPORARY, Written};
use crate::error::{Error, Result};

mod shards;

pub use shards::FeatureShards;

const INDEX: &str = "features.json";
const VERSION: u32 = 1;
const DTYPE: &str = "bf16";

/// What a folder of features was computed from; two folders with equal headers hold the same numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureHeader {
    /// Hexadecimal SHA-256 of the target's weights.
    pub target_sha256: String,
    /// Captured layers, 0-based, in the order in which their outputs are concatenated.
    pub captured_layers: Vec<usize>,
    /// Width of one hidden state of the target.
    pub d_model: usize,
    /// Fingerprint of the token folder whose samples the rows are.
    pub tokens_fingerprint: String,
}

impl FeatureHeader {
    /// Fails, naming the first key, where `found` at `path` is not this header.
    pub fn require(&self, found: &FeatureHeader, path: &Path) -> Result<()> {
        for (key, expected, found) in [
            ("target_sha256", &self.target_sha256, &found.target_sha256),
            (
                "captured_layers",
                &format!("{:?}", self.captured_layers),
                &format!("{:?}", found.captured_layers),
            ),
            (
                "d_model",
                &self.d_model.to_string(),
                &found.d_model.to_string(),
            ),
            (
                "tokens_fingerprint",
                &self.tokens_fingerprint,
                &found.tokens_fingerprint,
            ),
        ] {
            if expected != found {
                return Err(Error::FeatureHeader {
                    path: path.to_owned(),
                    key,
                    expected: expected.clone(),
                    found: found.clone(),
                });
            }
        }
        Ok(())
    }

    fn metadata(&self) -> HashMap<String, String> {
        let layers: Vec<String> = self.captured_layers.iter().map(usize::to_string).collect();
        let pairs = [
            ("version", VERSION.to_string()),
            ("target_sha256", self.target_sha256.clone()),
            ("captured_layers", layers.join(",")),
            ("d_model", self.d_model.to_string()),
            ("dtype", DTYPE.to_owned()),
            ("tokens_fingerprint", self.tokens_fingerprint.clone()),
        ];
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }

    fn schema(&self) -> Schema {
        let list = |name: &str, item: DataType| {
            Field::new_list(name, Field::new_list_field(item, false), false)
        };
        let fields = vec![
            Field::new("sample", DataType::UInt64, false),
            list("tokens", DataType::UInt32),
            list("loss_mask", DataType::UInt8),
            list("captured", DataType::UInt16),
            list("last", DataType::UInt16),
        ];
        Schema::new_with_metadata(fields, self.metadata())
    }

    fn require_lengths(&self, number: u64, sample: &StoredSample<'_>) -> Result<()> {
        let seq = sample.tokens.len();
        let captured = seq * self.captured_layers.len() * self.d_model;
        for (what, expected, found) in [
            ("loss mask", seq, sample.loss_mask.len()),
            ("captured features", captured, sample.captured.len()),
            ("last hidden states", seq * self.d_model, sample.last.len()),
        ] {
            if expected != found {
                return Err(Error::sample(number, what, expected, found));
            }
        }
        Ok(())
    }
}

/// One sample with its features, borrowed from wherever they lie.
///
/// # Shapes
///
/// - tokens, loss_mask: `[seq]`
/// - captured: `[seq, layers * d_model]`
/// - last: `[seq, d_model]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredSample<'a> {
    /// Token ids of the target's tokenizer.
    pub tokens: &'a [u32],
    /// One per token: 1 where the token is trained on, else 0.
    pub loss_mask: &'a [u8],
    /// Bits of bf16: for every token its captured layers' outputs, one after the other.
    pub captured: &'a [u16],
    /// Bits of bf16: for every token the last hidden state after the final norm; the head turns it into logits.
    pub last: &'a [u16],
}

/// Bytes on disk that features of so many tokens take, but for some hundred bytes a sample.
pub fn disk_bytes(tokens: u64, captured_layers: u64, d_model: u64) -> u64 {
    let hidden_states = (captured_layers + 1)
        .saturating_mul(d_model)
        .saturating_mul(2);
    tokens.saturating_mul(hidden_states + 4 + 1)
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FeatureShard {
    file: String,
    first: u64,
    samples: u64,
    tokens: u64,
    bytes: u64,
    sha256: String,
}

impl FeatureShard {
    fn written(&self) -> Written {
        Written {
            sha256: self.sha256.clone(),
            bytes: self.bytes,
        }
    }
}

/// `features.json`: the finished shards, and whether they are all there is.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FeatureIndex {
    version: u32,
    complete: bool,
    header: FeatureHeader,
    shards: Vec<FeatureShard>,
}

impl FeatureIndex {
    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(INDEX);
        let text = fs::read(&path).map_err(|source| Error::read(&path, source))?;
        let index: Self =
            serde_json::from_slice(&text).map_err(|source| Error::read(&path, source))?;
        if index.version != VERSION {
            return Err(Error::altered(&path, "version", VERSION, index.version));
        }
        let mut first: u64 = 0;
        for shard in &index.shards {
            if shard.first != first {
                return Err(Error::altered(
                    &folder.join(&shard.file),
                    "first sample",
                    first,
                    shard.first,
                ));
            }
            let next = first.checked_add(shard.samples);
            first = next.ok_or_else(|| {
                let path = folder.join(&shard.file);
                Error::altered(&path, "samples", "fewer", shard.samples)
            })?;
        }
        Ok(index)
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(INDEX);
        let text = serde_json::to_vec_pretty(self).map_err(|source| Error::write(&path, source))?;
        durable::write_whole(&path, &text).map(drop)
    }

    fn samples(&self) -> u64 {
        self.shards
            .last()
            .map_or(0, |shard| shard.first + shard.samples)
    }
}

impl fmt::Debug for FeatureWriter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FeatureWriter")
            .field("folder", &self.folder)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

/// The shard being written: under its temporary name until it is whole.
struct OpenShard {
    writer: FileWriter<BufWriter<PendingFile>>,
    samples: u64,
    tokens: u64,
}

/// Writes features to `features-*.arrow`; a run that is killed goes on at [`next_sample`](Self::next_sample).
///
/// A shard counts once it is synced, renamed and entered in `features.json`, in this order, so that at every moment the
/// index names only whole shards and the samples after them have yet to be computed.
pub struct FeatureWriter {
    folder: PathBuf,
    samples_per_shard: u64,
    schema: Arc<Schema>,
    index: FeatureIndex,
    open: Option<OpenShard>,
}

impl FeatureWriter {
    /// Starts or goes on in a folder; one begun under another header is refused, and so is a shard that is not as it was
    /// written. Shards from the first one on that is not there any more are computed again.
    pub fn open(
        folder: impl AsRef<Path>,
        header: FeatureHeader,
        samples_per_shard: u64,
    ) -> Result<Self> {
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder).map_err(|source| Error::write(&folder, source))?;
        let index = if folder.join(INDEX).exists() {
            let mut index = FeatureIndex::read(&folder)?;
            header.require(&index.header, &folder.join(INDEX))?;
            let there = |shard: &FeatureShard| folder.join(&shard.file).exists();
            let kept = index.shards.iter().take_while(|shard| there(shard)).count();
            if kept < index.shards.len() {
                index.shards.truncate(kept);
                index.complete = false;
            }
            index
        } else {
            FeatureIndex {
                version: VERSION,
                complete: false,
                header,
                shards: Vec::new(),
            }
        };
        for shard in &index.shards {
            durable::verify(&folder.join(&shard.file), &shard.written())?;
        }
        // A shard that was renamed but not yet entered is computed again.
        durable::remove_files(&folder, |name| {
            let whole = name.strip_suffix(TEMPORARY).unwrap_or(name);
            let ours =
                whole == INDEX || (whole.starts_with("features-") && whole.ends_with(".arrow"));
            let listed = name == INDEX || index.shards.iter().any(|shard| shard.file == name);
            ours && !listed
        })?;
        index.write(&folder)?;
        let schema = Arc::new(index.header.schema());
        Ok(Self {
            folder,
            samples_per_shard: samples_per_shard.max(1),
            schema,
            index,
            open: None,
        })
    }

    /// The number that the next sample pushed will have.
    pub fn next_sample(&self) -> u64 {
        self.index.samples() + self.open.as_ref().map_or(0, |open| open.samples)
    }

    /// Adds the sample numbered [`next_sample`](Self::next_sample).
    ///
    /// After an error the samples of the unfinished shard are gone, and `next_sample` says so.
    pub fn push(&mut self, sample: &StoredSample<'_>) -> Result<()> {
        let number = self.next_sample();
        self.index.header.require_lengths(number, sample)?;
        let path = self.shard_path();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.start_shard(&path)?,
        };
        self.row(number, sample)
            .and_then(|row| open.writer.write(&row))
            .map_err(|source| Error::write(&path, source))?;
        open.samples += 1;
        open.tokens += sample.tokens.len() as u64;
        if open.samples >= self.samples_per_shard {
            self.close_shard(open)?;
        } else {
            self.open = Some(open);
        }
        Ok(())
    }

    /// Closes the last shard, however short, so that a later writer goes on after its last sample.
    pub fn pause(mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => self.close_shard(open),
            None => Ok(()),
        }
    }

    /// Closes the last shard and marks the folder complete. Returns the name and the SHA-256 of each shard.
    pub fn finish(mut self) -> Result<Vec<(String, String)>> {
        if let Some(open) = self.open.take() {
            self.close_shard(open)?;
        }
        if self.index.shards.is_empty() {
            return Err(Error::NoSamples {
                folder: self.folder,
            });
        }
        self.index.complete = true;
        self.index.write(&self.folder)?;
        let shards = self.index.shards.into_iter();
        Ok(shards.map(|shard| (shard.file, shard.sha256)).collect())
    }

    fn shard_path(&self) -> PathBuf {
        self.folder
            .join(format!("features-{:05}.arrow", self.index.shards.len()))
    }

    fn start_shard(&self, path: &Path) -> Result<OpenShard> {
        let file = PendingFile::create(path)?;
        let writer = FileWriter::try_new_buffered(file, &self.schema)
            .map_err(|source| Error::write(path, source))?;
        Ok(OpenShard {
            writer,
            samples: 0,
            tokens: 0,
        })
    }

    fn close_shard(&mut self, open: OpenShard) -> Result<()> {
        let path = self.shard_path();
        let mut buffered = open
            .writer
            .into_inner()
            .map_err(|source| Error::write(&path, source))?;
        buffered
            .flush()
            .map_err(|source| Error::write(&path, source))?;
        let file = buffered
            .into_inner()
            .map_err(|source| Error::write(&path, source.into_error()))?;
        let Written { sha256, bytes } = file.commit()?;
        let file = format!("features-{:05}.arrow", self.index.shards.len());
        let first = self.index.samples();
        let shard = FeatureShard {
            file,
            first,
            samples: open.samples,
            tokens: open.tokens,
            bytes,
            sha256,
        };
        self.index.shards.push(shard);
        self.index.complete = false;
        self.index.write(&self.folder)
    }

    /// A batch of one row: list offsets are 32-bit, and the row is all that is held in memory.
    fn row(
        &self,
        number: u64,
        sample: &StoredSample<'_>,
    ) -> std::result::Result<RecordBatch, ArrowError> {
        let list = |values: ArrayRef| -> std::result::Result<ArrayRef, ArrowError> {
            if values.len() > i32::MAX as usize {
                return Err(ArrowError::OffsetOverflowError(values.len()));
            }
            let item = Arc::new(Field::new_list_field(values.data_type().clone(), false));
            let offsets = OffsetBuffer::from_lengths([values.len()]);
            Ok(Arc::new(ListArray::try_new(item, offsets, values, None)?))
        };
        RecordBatch::try_new(
            self.schema.clone(),
            vec![
                Arc::new(UInt64Array::from(vec![number])),
                list(Arc::new(UInt32Array::from(sample.tokens.to_vec())))?,
                list(Arc::new(UInt8Array::from(sample.loss_mask.to_vec())))?,
                list(Arc::new(UInt16Array::from(sample.captured.to_vec())))?,
                list(Arc::new(UInt16Array::from(sample.last.to_vec())))?,
            ],
        )
    }
}

#[cfg(test)]
mod tests;
