//! Reading stored features where they lie on disk, through a memory map.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, Int8Type, Schema, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::root_as_footer;
use memmap2::Mmap;
use spectrain_checkpoints::hash::sha256_file;

use super::index::{FeatureHeader, FeatureIndex, FeatureShard, INDEX, StoredSample};
use super::recorded::{Recorded, by_reading, prove};
use super::states::{Int8States, States, StoredType};
use crate::contained::contained;
use crate::durable;
use crate::error::{Error, Result};
use crate::tokens::fields_line;

/// Length of the footer's length and the closing magic at the end of an Arrow IPC file.
const TRAILER: usize = 10;

/// Where one sample's columns lie in the map of its shard.
struct MappedSample {
    tokens: ScalarBuffer<u32>,
    loss_mask: ScalarBuffer<u8>,
    captured: MappedStates,
    last: MappedStates,
}

/// Where hidden states lie in a map.
enum MappedStates {
    Bf16(ScalarBuffer<u16>),
    Int8 {
        values: ScalarBuffer<i8>,
        scales: ScalarBuffer<u16>,
        exponents: ScalarBuffer<i8>,
    },
}

/// Every sample of a folder of features; the numbers stay on disk until they are read.
pub struct FeatureShards {
    path: PathBuf,
    index: FeatureIndex,
    files: Vec<Recorded>,
    samples: Vec<MappedSample>,
}

impl FeatureShards {
    /// Maps a folder that [`FeatureWriter`](super::FeatureWriter) finished, reading each shard once to refuse any that is
    /// not what was written.
    ///
    /// # Errors
    /// The folder is unfinished, holds a part of the samples, cannot be read or is not as it was written.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(folder.as_ref(), by_reading)
    }

    /// The same for who knows more of the shards: each is mapped once it has the length on record and `proof` has found all
    /// unaltered.
    ///
    /// # Errors
    /// Those of `proof`, and those of [`open`](Self::open).
    pub fn open_with<E: From<Error>>(
        folder: &Path,
        proof: impl FnOnce(&[Recorded]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let index = FeatureIndex::read_whole(folder)?;
        let files = index.recorded(folder);
        prove(&files, proof)?;
        Ok(Self {
            samples: all_mapped(&files, &index)?,
            path: folder.join(INDEX),
            index,
            files,
        })
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The sample of this number.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    pub fn get(&self, sample: usize) -> StoredSample<'_> {
        self.samples[sample].view()
    }

    /// The files that hold these samples, each once.
    pub fn files_of(&self, samples: impl IntoIterator<Item = usize>) -> Vec<Recorded> {
        let shards = &self.index.shards;
        let behind = |sample: usize| shards.partition_point(|shard| shard.first <= sample as u64);
        let holders: BTreeSet<usize> = samples.into_iter().map(behind).collect();
        let files = holders.iter().filter_map(|behind| behind.checked_sub(1));
        files.map(|file| self.files[file].clone()).collect()
    }

    /// Tokens of each sample.
    pub fn lengths(&self) -> Vec<usize> {
        self.samples
            .iter()
            .map(|sample| sample.tokens.len())
            .collect()
    }

    /// What the features were computed from.
    pub fn header(&self) -> &FeatureHeader {
        &self.index.header
    }

    /// Fails, naming the first key, where the features were computed from something else.
    pub fn require(&self, expected: &FeatureHeader) -> Result<()> {
        expected.require(&self.index.header, &self.path)
    }

    /// One hash over every sample in order.
    pub fn fingerprint(&self) -> String {
        durable::fingerprint(
            self.index
                .shards
                .iter()
                .map(|shard: &FeatureShard| shard.sha256.as_str()),
        )
    }
}

impl fmt::Debug for FeatureShards {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FeatureShards")
            .field("path", &self.path)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl MappedSample {
    fn view(&self) -> StoredSample<'_> {
        StoredSample {
            tokens: &self.tokens,
            loss_mask: &self.loss_mask,
            captured: self.captured.view(),
            last: self.last.view(),
        }
    }
}

impl MappedStates {
    /// Finds those of a row, whose columns begin at `column`. Returns the column behind theirs as well.
    fn find(batch: &RecordBatch, row: usize, dtype: StoredType, column: usize) -> (Self, usize) {
        let bits = |at| list_values::<UInt16Type>(batch.column(at), row);
        let integers = |at| list_values::<Int8Type>(batch.column(at), row);
        match dtype {
            StoredType::Bf16 => (Self::Bf16(bits(column)), column + 1),
            StoredType::Int8 => {
                let found = Self::Int8 {
                    values: integers(column),
                    scales: bits(column + 1),
                    exponents: integers(column + 2),
                };
                (found, column + 3)
            }
        }
    }

    fn view(&self) -> States<'_> {
        match self {
            Self::Bf16(bits) => States::Bf16(bits),
            Self::Int8 {
                values,
                scales,
                exponents,
            } => States::Int8(Int8States {
                values,
                scales,
                exponents,
            }),
        }
    }
}

fn require_count(path: &Path, what: &'static str, expected: u64, found: u64) -> Result<()> {
    if expected != found {
        return Err(Error::altered(path, what, expected, found));
    }
    Ok(())
}

/// Refuses columns or metadata other than those the header calls for.
fn require_schema(path: &Path, header: &FeatureHeader, schema: &Schema) -> Result<()> {
    let expected = header.schema();
    if schema.fields() != expected.fields() {
        return Err(Error::altered(
            path,
            "columns",
            fields_line(&expected),
            fields_line(schema),
        ));
    }
    if schema.metadata() != expected.metadata() {
        let (expected, found) = (expected.metadata(), schema.metadata());
        return Err(Error::altered(
            path,
            "metadata",
            format!("{expected:?}"),
            format!("{found:?}"),
        ));
    }
    Ok(())
}

/// Gives `seen` each sample of the shards on record in an index, which are as they were written, with its number.
pub(super) fn each_sample<E: From<Error>>(
    folder: &Path,
    index: &FeatureIndex,
    seen: &mut dyn FnMut(u64, StoredSample<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    for shard in index.on_record() {
        let path = folder.join(&shard.file);
        let (first, samples) = mapped(&path, &index.header, Some(shard.first))?;
        for (number, sample) in (first..).zip(&samples) {
            seen(number, sample.view())?;
        }
    }
    Ok(())
}

/// What a shard says of itself, as an index would have it on record: which samples it holds, all of them whole, of what the header
/// says. It is read whole for its SHA-256, and that this is the one with which it was written, nobody says.
///
/// # Errors
/// It is no whole shard, is of something else or cannot be read.
pub(super) fn described(folder: &Path, file: &str, header: &FeatureHeader) -> Result<FeatureShard> {
    let path = folder.join(file);
    let (first, samples) = mapped(&path, header, None)?;
    let data = fs::metadata(&path).map_err(|source| Error::read(&path, source))?;
    Ok(FeatureShard {
        file: file.to_owned(),
        first,
        samples: samples.len() as u64,
        tokens: samples
            .iter()
            .map(|sample| sample.tokens.len() as u64)
            .sum(),
        bytes: data.len(),
        sha256: sha256_file(&path).map_err(|source| Error::read(&path, source))?,
    })
}

/// Every sample of all shards in an index.
fn all_mapped(files: &[Recorded], index: &FeatureIndex) -> Result<Vec<MappedSample>> {
    let mut samples = Vec::new();
    for (Recorded { path, .. }, shard) in files.iter().zip(&index.shards) {
        let (before, mut tokens) = (samples.len(), 0);
        for sample in mapped(path, &index.header, Some(shard.first))?.1 {
            tokens += sample.tokens.len() as u64;
            samples.push(sample);
        }
        let rows = (samples.len() - before) as u64;
        require_count(path, "rows", shard.samples, rows)?;
        require_count(path, "tokens", shard.tokens, tokens)?;
    }
    Ok(samples)
}

/// Every row of a shard, and the number of the first one.
fn mapped(
    path: &Path,
    header: &FeatureHeader,
    first: Option<u64>,
) -> Result<(u64, Vec<MappedSample>)> {
    contained(|| map_shard(path, header, first))
        .unwrap_or_else(|panicked| Err(Error::read(path, panicked)))
}

/// Finds every row of a shard, the first of which is the sample numbered `first`, or whichever it says where that is not known.
fn map_shard(
    path: &Path,
    header: &FeatureHeader,
    mut first: Option<u64>,
) -> Result<(u64, Vec<MappedSample>)> {
    let invalid = |source: ArrowError| Error::read(path, source);
    let malformed = || invalid(ArrowError::IpcError("not an Arrow IPC file".to_owned()));
    let file = File::open(path).map_err(|source| Error::read(path, source))?;
    let buffer = map_file(&file).map_err(|source| Error::read(path, source))?;

    let trailer_start = buffer.len().checked_sub(TRAILER).ok_or_else(malformed)?;
    let trailer = buffer[trailer_start..]
        .try_into()
        .map_err(|_| malformed())?;
    let footer_length = read_footer_length(trailer).map_err(invalid)?;
    let footer_start = trailer_start
        .checked_sub(footer_length)
        .ok_or_else(malformed)?;
    let footer = root_as_footer(&buffer[footer_start..trailer_start]).map_err(|_| malformed())?;
    let schema = try_fb_to_schema(footer.schema().ok_or_else(malformed)?).map_err(invalid)?;
    require_schema(path, header, &schema)?;

    // Alignment is required: a misaligned buffer would be copied into memory without a word.
    let decoder = FileDecoder::new(Arc::new(schema), footer.version()).with_require_alignment(true);
    let mut samples = Vec::new();
    for block in footer.recordBatches().iter().flatten() {
        let start = usize::try_from(block.offset()).map_err(|_| malformed())?;
        let metadata = usize::try_from(block.metaDataLength()).map_err(|_| malformed())?;
        let body = usize::try_from(block.bodyLength()).map_err(|_| malformed())?;
        let length = metadata.checked_add(body).ok_or_else(malformed)?;
        if start
            .checked_add(length)
            .is_none_or(|end| end > buffer.len())
        {
            return Err(malformed());
        }
        let data = buffer.slice_with_length(start, length);
        let batch = decoder
            .read_record_batch(block, &data)
            .map_err(invalid)?
            .ok_or_else(malformed)?;
        for row in 0..batch.num_rows() {
            let first = *first.get_or_insert_with(|| number_of(&batch, row));
            let number = first.saturating_add(samples.len() as u64);
            samples.push(
                map_row(&batch, row, header, number).map_err(|source| Error::read(path, source))?,
            );
        }
    }
    let first = first.ok_or_else(|| Error::altered(path, "rows", "at least one", 0))?;
    Ok((first, samples))
}

/// The number of the sample that a row of a batch holds.
fn number_of(batch: &RecordBatch, row: usize) -> u64 {
    batch.column(0).as_primitive::<UInt64Type>().value(row)
}

/// Finds one row of a batch, which must be the sample of this number.
fn map_row(
    batch: &RecordBatch,
    row: usize,
    header: &FeatureHeader,
    number: u64,
) -> Result<MappedSample> {
    let found = number_of(batch, row);
    if found != number {
        return Err(Error::sample(number, "number", number, found));
    }
    let (captured, behind) = MappedStates::find(batch, row, header.dtype, 3);
    let (last, _) = MappedStates::find(batch, row, header.dtype, behind);
    let sample = MappedSample {
        tokens: list_values::<UInt32Type>(batch.column(1), row),
        loss_mask: list_values::<UInt8Type>(batch.column(2), row),
        captured,
        last,
    };
    header.require_lengths(number, &sample.view())?;
    Ok(sample)
}

/// One row of a list column, still in the map.
fn list_values<T: ArrowPrimitiveType>(column: &ArrayRef, row: usize) -> ScalarBuffer<T::Native> {
    column
        .as_list::<i32>()
        .value(row)
        .as_primitive::<T>()
        .values()
        .clone()
}

/// The content of a file as a buffer backed by its memory map.
#[expect(
    unsafe_code,
    reason = "a memory map cannot be made without; this is the only one"
)]
pub(crate) fn map_file(file: &File) -> std::io::Result<Buffer> {
    // SAFETY: shards are renamed into place whole and never written again by this program. Whoever truncates one
    // while it is mapped takes the process down, as with any memory map.
    let map = Arc::new(unsafe { Mmap::map(file)? });
    let start = NonNull::from(&map[..]).cast::<u8>();
    let length = map.len();
    // SAFETY: the map is valid for `length` bytes from `start` for as long as the buffer owns it.
    Ok(unsafe { Buffer::from_custom_allocation(start, length, map) })
}
