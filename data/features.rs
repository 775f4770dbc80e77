//! Stored features: the target's captured hidden states for every token of a token folder, as Arrow IPC shards.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io::{BufWriter, Write};
use std::iter::once;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int8Array, ListArray, RecordBatch, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{Field, Schema};
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;

use crate::durable::{PendingFile, Written};
use crate::error::{Error, Result};

mod aside;
mod begun;
mod index;
mod parts;
mod recorded;
mod shards;
mod states;

pub use aside::set_aside;
use begun::{Begun, kept_aside};
pub use index::{FeatureHeader, SampleRange, StoredSample, disk_bytes};
use index::{FeatureIndex, FeatureShard, shard_name};
pub use parts::join;
pub use recorded::{Recorded, WrittenShard};
use recorded::{by_reading, prove};
pub use shards::FeatureShards;
pub(crate) use shards::map_file;
use states::Packed;
pub use states::{Int8States, States, StoredType};

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
/// index names only whole shards and the samples after them have yet to be computed. Where shards between others are lost, their
/// samples come first, and each is written anew under its name: what is behind it stays.
pub struct FeatureWriter {
    folder: PathBuf,
    samples_per_shard: u64,
    schema: Arc<Schema>,
    index: FeatureIndex,
    /// Places in the index of shards that are still to be written between others, in their order.
    lost: VecDeque<usize>,
    /// What was found amiss, for people.
    amiss: Vec<String>,
    open: Option<OpenShard>,
    /// What this writer has added to the index.
    written: Vec<WrittenShard>,
}

impl FeatureWriter {
    /// Starts or goes on in a folder; one begun under another header is refused, and so is a shard that is not as it was
    /// written. Shards that are not there any more are computed again. An index that is gone or damaged is made anew of the shards, by
    /// what they say of themselves; [`amiss`](Self::amiss) tells.
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
        let Begun { index, lost, amiss } = Begun::find(&folder, header, part)?;
        prove(&index.recorded(&folder), proof)?;
        index.write(&folder)?;
        let schema = Arc::new(index.header.schema());
        Ok(Self {
            folder,
            samples_per_shard: samples_per_shard.max(1),
            schema,
            index,
            lost,
            amiss,
            open: None,
            written: Vec::new(),
        })
    }

    /// What was found amiss in the folder, and what became of it, for people.
    pub fn amiss(&self) -> &[String] {
        &self.amiss
    }

    /// Gives up the shards behind the first one that is lost, which are kept under other names: for samples that cannot be computed
    /// again in the same order.
    ///
    /// # Errors
    /// A file cannot be renamed.
    pub fn cut(&mut self) -> Result<()> {
        let Some(&first) = self.lost.front() else {
            return Ok(());
        };
        for shard in self
            .index
            .shards
            .drain(first..)
            .filter(FeatureShard::is_on_record)
        {
            let why = "a shard before it is lost";
            self.amiss
                .push(kept_aside(&self.folder.join(&shard.file), why)?);
        }
        self.lost.clear();
        self.index.write(&self.folder)
    }

    /// Ranges of samples that are still to be pushed, in their order, where `end` is the one behind the last.
    pub fn missing(&self, end: u64) -> Vec<Range<u64>> {
        let lost = self
            .lost
            .iter()
            .map(|&place| self.index.shards[place].range());
        let mut missing: Vec<_> = lost.chain(once(self.index.samples()..end)).collect();
        missing[0].start = self.next_sample();
        missing.retain(|range| !range.is_empty());
        missing
    }

    /// The number that the next sample pushed will have.
    pub fn next_sample(&self) -> u64 {
        let first = match self.lost.front() {
            Some(&place) => self.index.shards[place].first,
            None => self.index.samples(),
        };
        first + self.open.as_ref().map_or(0, |open| open.samples)
    }

    /// Gives `seen` every sample that is written, with its number, in their order, until it fails; those of the shard that is not yet
    /// whole are not.
    ///
    /// # Errors
    /// Those of `seen`; a shard cannot be read.
    pub fn each_sample<E: From<Error>>(
        &self,
        seen: &mut dyn FnMut(u64, StoredSample<'_>) -> std::result::Result<(), E>,
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
        let columns = self.states(number, sample)?;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.start_shard(&path)?,
        };
        self.row(number, sample, columns)
            .and_then(|row| open.writer.write(&row))
            .map_err(|source| Error::write(&path, source))?;
        open.samples += 1;
        open.tokens += sample.tokens.len() as u64;
        let full = match self.lost.front() {
            Some(&place) => self.index.shards[place].samples,
            None => self.samples_per_shard,
        };
        if open.samples >= full {
            self.close_shard(open)?;
        } else {
            self.open = Some(open);
        }
        Ok(())
    }

    /// Closes the last shard, however short, so that a later writer goes on after its last sample; one between others is begun anew.
    /// Returns the shards that this writer has written; those that were there before, their proof has seen.
    pub fn pause(mut self) -> Result<Vec<WrittenShard>> {
        self.close_last()?;
        Ok(self.written)
    }

    /// Closes the last shard and marks the folder complete. Returns the same shards.
    ///
    /// # Errors
    /// No sample is there, or some are [`missing`](Self::missing) between others; a file cannot be written.
    pub fn finish(mut self) -> Result<Vec<WrittenShard>> {
        self.close_last()?;
        if !self.lost.is_empty() {
            return Err(Error::FeaturesUnfinished {
                samples: self.index.on_record().map(|shard| shard.samples).sum(),
                folder: self.folder,
            });
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

    /// Closes the shard behind all others.
    fn close_last(&mut self) -> Result<()> {
        match self.open.take() {
            Some(open) if self.lost.is_empty() => self.close_shard(open),
            _ => Ok(()),
        }
    }

    /// The name of the shard that is written next.
    fn shard_file(&self) -> String {
        match self.lost.front() {
            Some(&place) => self.index.shards[place].file.clone(),
            None => shard_name(self.index.shards.len()),
        }
    }

    fn shard_path(&self) -> PathBuf {
        self.folder.join(self.shard_file())
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
        let (file, first) = (self.shard_file(), self.next_sample());
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
        match self.lost.pop_front() {
            Some(place) => self.index.shards[place] = shard,
            None => self.index.shards.push(shard),
        }
        self.index.complete = false;
        self.index.write(&self.folder)
    }

    /// The columns of a sample's hidden states, as the header says that they are stored.
    fn states(&self, number: u64, sample: &StoredSample<'_>) -> Result<Vec<ArrayRef>> {
        let header = &self.index.header;
        let mut columns: Vec<ArrayRef> = Vec::new();
        for (states, width) in [sample.captured, sample.last]
            .into_iter()
            .zip(header.widths())
        {
            let bits = states.bits();
            match header.dtype {
                StoredType::Bf16 => columns.push(Arc::new(UInt16Array::from(bits.into_owned()))),
                StoredType::Int8 => {
                    let packed = Packed::of(&bits, width).ok_or_else(|| {
                        Error::sample(number, "hidden states", "numbers", "one that is none")
                    })?;
                    columns.push(Arc::new(Int8Array::from(packed.values)));
                    columns.push(Arc::new(UInt16Array::from(packed.scales)));
                    columns.push(Arc::new(Int8Array::from(packed.exponents)));
                }
            }
        }
        Ok(columns)
    }

    /// A batch of one row: list offsets are 32-bit, and the row is all that is held in memory.
    fn row(
        &self,
        number: u64,
        sample: &StoredSample<'_>,
        states: Vec<ArrayRef>,
    ) -> std::result::Result<RecordBatch, ArrowError> {
        let list = |values: ArrayRef| -> std::result::Result<ArrayRef, ArrowError> {
            if values.len() > i32::MAX as usize {
                return Err(ArrowError::OffsetOverflowError(values.len()));
            }
            let item = Arc::new(Field::new_list_field(values.data_type().clone(), false));
            let offsets = OffsetBuffer::from_lengths([values.len()]);
            Ok(Arc::new(ListArray::try_new(item, offsets, values, None)?))
        };
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from(vec![number])),
            list(Arc::new(UInt32Array::from(sample.tokens.to_vec())))?,
            list(Arc::new(UInt8Array::from(sample.loss_mask.to_vec())))?,
        ];
        for values in states {
            columns.push(list(values)?);
        }
        RecordBatch::try_new(self.schema.clone(), columns)
    }
}

#[cfg(test)]
mod tests;
