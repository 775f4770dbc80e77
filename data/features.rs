//! Stored features: the target's captured hidden states for every token of a token folder, as Arrow IPC shards.

use std::fmt;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ListArray, RecordBatch, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{Field, Schema};
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;

use crate::durable::{self, PendingFile, Written};
use crate::error::{Error, Result};

mod aside;
mod index;
mod parts;
mod recorded;
mod shards;

pub use aside::set_aside;
pub use index::{FeatureHeader, SampleRange, StoredSample, disk_bytes};
use index::{FeatureIndex, FeatureShard, INDEX, is_ours, shard_name};
pub use parts::join;
pub use recorded::{Recorded, WrittenShard};
use recorded::{by_reading, prove};
pub use shards::FeatureShards;
pub(crate) use shards::map_file;

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
    /// What this writer has added to the index.
    written: Vec<WrittenShard>,
}

impl FeatureWriter {
    /// Starts or goes on in a folder; one begun under another header is refused, and so is a shard that is not as it was
    /// written. Shards from the first one on that is not there any more are computed again.
    pub fn open(
        folder: impl AsRef<Path>,
        header: FeatureHeader,
        samples_per_shard: u64,
    ) -> Result<Self> {
        Self::open_with(folder.as_ref(), header, samples_per_shard, None, by_reading)
    }

    /// The same for some of the samples, which keep their numbers; [`join`] makes one folder of all of them.
    pub fn open_part(
        folder: impl AsRef<Path>,
        header: FeatureHeader,
        samples_per_shard: u64,
        part: SampleRange,
    ) -> Result<Self> {
        let part = Some(part);
        Self::open_with(folder.as_ref(), header, samples_per_shard, part, by_reading)
    }

    /// The same, of all samples or of a `part` of them, for who knows more of the shards that are there: each has the length on
    /// record, and `proof` finds all unaltered.
    ///
    /// # Errors
    /// Those of `proof`; the folder was begun under another header, or cannot be read or written.
    pub fn open_with<E: From<Error>>(
        folder: &Path,
        header: FeatureHeader,
        samples_per_shard: u64,
        part: Option<SampleRange>,
        proof: impl FnOnce(&[Recorded]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let folder = folder.to_owned();
        fs::create_dir_all(&folder).map_err(|source| Error::write(&folder, source))?;
        let index = FeatureIndex::begun(&folder, header, part)?;
        prove(&index.recorded(&folder), proof)?;
        // A shard that was renamed but not yet entered is computed again.
        durable::remove_files(&folder, |name| {
            let listed = name == INDEX || index.shards.iter().any(|shard| shard.file == name);
            is_ours(name) && !listed
        })?;
        index.write(&folder)?;
        let schema = Arc::new(index.header.schema());
        Ok(Self {
            folder,
            samples_per_shard: samples_per_shard.max(1),
            schema,
            index,
            open: None,
            written: Vec::new(),
        })
    }

    /// The number that the next sample pushed will have.
    pub fn next_sample(&self) -> u64 {
        self.index.samples() + self.open.as_ref().map_or(0, |open| open.samples)
    }

    /// Gives `seen` every sample that is written, in their order, until it fails; those of the shard that is not yet whole are not.
    ///
    /// # Errors
    /// Those of `seen`; a shard cannot be read.
    pub fn each_sample<E: From<Error>>(
        &self,
        seen: &mut dyn FnMut(StoredSample<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        shards::each_sample(&self.folder, &self.index, seen)
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

    /// Closes the last shard, however short, so that a later writer goes on after its last sample. Returns the shards that this
    /// writer has written; those that were there before, their proof has seen.
    pub fn pause(mut self) -> Result<Vec<WrittenShard>> {
        if let Some(open) = self.open.take() {
            self.close_shard(open)?;
        }
        Ok(self.written)
    }

    /// Closes the last shard and marks the folder complete. Returns the same shards.
    pub fn finish(mut self) -> Result<Vec<WrittenShard>> {
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
        Ok(self.written)
    }

    fn shard_path(&self) -> PathBuf {
        self.folder.join(shard_name(self.index.shards.len()))
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
        let (Written { sha256, bytes }, look) = file.commit_and_look()?;
        let file = shard_name(self.index.shards.len());
        let first = self.index.samples();
        let shard = FeatureShard {
            file,
            first,
            samples: open.samples,
            tokens: open.tokens,
            bytes,
            sha256,
        };
        self.written.push(WrittenShard {
            file: shard.file.clone(),
            sha256: shard.sha256.clone(),
            look,
        });
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
